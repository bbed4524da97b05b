//! Joining: `POST /mainstay/v1/join` signs the key of an agent for the node it speaks for.
//!
//! Whoever calls is a node already, by a token or by the certificate it renews. The certificate
//! names that node, whatever the request says.

use http::request::Parts;
use http::{Method, StatusCode};
use mainstay_store::object::Resource;
use mainstay_store::status::{Error, Reason};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{self, Incoming};
use crate::identity::{self, User};
use crate::negotiate::Format;
use crate::reply::{self, Reply};
use crate::service::{App, Asked, wrong_method};

/// Where an agent joins.
pub(crate) const PATH: &str = "/mainstay/v1/join";

#[derive(Deserialize)]
struct Wish {
    csr: String,
}

pub(crate) async fn answer(
    app: &App,
    parts: &Parts,
    incoming: Incoming,
    user: &User,
    asked: &mut Asked,
) -> Result<Reply, Error> {
    if parts.method != Method::POST {
        return Err(wrong_method());
    }
    let Some(node) = &user.node else {
        return Err(identity::forbidden_path(user, asked.verb, PATH));
    };
    asked.changes = true;
    asked.resource = Some(Resource::from_stored("nodecertificates"));
    node.clone_into(&mut asked.name);
    let bytes = body::read(parts, incoming, app.limits.body).await?;
    let object = body::object(Format::Json, &bytes)?.object;
    let wish = Wish::deserialize(Value::Object(object))
        .map_err(|error| Error::bad_request(format!("join: {error}")))?;
    let (now, life) = (app.clock.now(), app.limits.node_certificate);
    let certificate = app.authority.node(&wish.csr, node, now, life).map_err(|error| {
        Error::new(
            Reason::Invalid,
            format!("csr: it must be a certificate request as PEM: {error}"),
        )
    })?;
    let granted = json!({
        "certificate": certificate,
        "node": node,
        "lifetimeSeconds": life.as_secs(),
    });
    Ok(reply::value(StatusCode::CREATED, &granted))
}
