//! Tokens over HTTP: `POST` and `GET /mainstay/v1/tokens`, `DELETE /mainstay/v1/tokens/ID`.
//! For admins only; the caller has checked that.

use http::request::Parts;
use http::{Method, StatusCode};
use mainstay_store::object::Resource;
use mainstay_store::status::{Details, Error, Reason};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{self, Incoming};
use crate::negotiate::Format;
use crate::reply::{self, Reply};
use crate::service::{App, Asked, wrong_method};
use crate::tokens::{self, Wish};

pub(crate) async fn answer(
    app: &App,
    parts: &Parts,
    incoming: Incoming,
    id: &str,
    asked: &mut Asked,
) -> Result<Reply, Error> {
    asked.resource = Some(Resource::from_stored("tokens"));
    id.clone_into(&mut asked.name);
    match (&parts.method, id) {
        (&Method::GET, "") => {
            asked.verb = "list";
            let items = json!({"items": app.tokens.list()});
            Ok(reply::value(StatusCode::OK, &items))
        }
        (&Method::POST, "") => {
            asked.changes = true;
            let bytes = body::read_small(parts, incoming, &app.limits).await?;
            let object = body::object(Format::Json, &bytes)?.object;
            let wish = Wish::deserialize(Value::Object(object))
                .map_err(|error| Error::bad_request(format!("token: {error}")))?;
            let created = app.tokens.create(wish).await.map_err(refused)?;
            created.description.id.clone_into(&mut asked.name);
            let body = serde_json::to_value(&created).map_err(Error::internal)?;
            Ok(reply::value(StatusCode::CREATED, &body))
        }
        (&Method::DELETE, id) if !id.is_empty() => {
            asked.changes = true;
            app.tokens.revoke(id).await.map_err(refused)?;
            let (name, kind) = (id.to_owned(), "tokens".to_owned());
            Ok(reply::success(&Details { name, kind, ..Details::default() }))
        }
        _ => Err(wrong_method()),
    }
}

pub(crate) fn refused(error: tokens::Error) -> Error {
    match &error {
        tokens::Error::Wish(_) => Error::new(Reason::Invalid, error.to_string()),
        tokens::Error::Unknown(_) => Error::new(Reason::NotFound, error.to_string()),
        tokens::Error::Spent | tokens::Error::Ended => {
            Error::new(Reason::Forbidden, error.to_string())
        }
        tokens::Error::Random | tokens::Error::Late | tokens::Error::Store(_) => {
            Error::new(Reason::ServiceUnavailable, error.to_string())
        }
    }
}
