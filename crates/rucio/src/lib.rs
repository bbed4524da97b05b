//! Serves Rucio's REST API, plus Mainstay's own extensions below `/mainstay/…`.
//!
//! [`router`] works at any mount point. A caller that the server has authenticated is a [`Caller`]
//! in the request's extensions; every other caller sends a token that it got for its password
//! ([`auth`]). The client's address is an [`IpAddr`] in the extensions.
//! Names may hold encoded slashes and look like verbs, so paths are matched by `route` with the
//! table of `routes`, and not by axum.
//! Lists are streamed row by row as the database yields them.

mod accounts;
mod audit_facts;
pub mod auth;
mod dids;
mod extensions;
pub mod fair;
mod listing;
mod local;
mod meta;
mod python;
mod replicas;
mod requests;
mod route;
mod routes;
mod rules;
mod search;
mod show;
mod sites;
mod storage;
mod stream;
mod turns;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use audit_facts::{AuditFacts, Described};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::any;
pub use local::Local;
use mainstay_catalog::{self as catalog, Catalog, Tx};
use mainstay_rules::Environment;
use mainstay_rules::error::{Class, Error, Result, refuse};
use mainstay_rules::logins::Logins;
use mainstay_rules::rule::Settings;
use mainstay_transfers::store::Access;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use self::route::{Found, Handler, Needs, OpenCall, Route};

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The account.
    pub account: String,
    /// Whether it has all rights.
    pub privileged: bool,
    /// Whether it may only read.
    pub read_only: bool,
}

impl Caller {
    fn denied(&self, what: &str) -> Error {
        refuse(Class::AccessDenied, format!("Account {} can not {what}", self.account))
    }
}

/// The parts that the REST API works with.
#[derive(Clone, Debug)]
pub struct Service {
    /// The rule catalog.
    pub catalog: Catalog,
    /// Settings of the rule engine.
    pub settings: Settings,
    /// The clock and the source of randomness.
    pub around: Environment,
    /// Access to storage, for judge daemons that are run by hand.
    pub access: Arc<Access>,
    /// Password checks and their rate limits.
    pub logins: Logins,
}

/// The largest request body accepted, in bytes.
const LARGEST_BODY: usize = 64 << 20;

/// A router for the REST API.
pub fn router(service: Service) -> Router {
    Router::new().fallback(move |request: Request| {
        let service = service.clone();
        async move { answer(service, request).await }
    })
}

/// A router for the REST API below `path`. `who` finds the caller in the request's extensions and
/// headers.
pub fn mounted(
    path: &str,
    service: Service,
    who: impl Fn(&Extensions, &HeaderMap) -> Option<Caller> + Clone + Send + Sync + 'static,
) -> Router {
    let answered = move |mut request: Request| {
        let service = service.clone();
        if let Some(caller) = who(request.extensions(), request.headers()) {
            request.extensions_mut().insert(caller);
        }
        async move { answer(service, request).await }
    };
    let below = Router::new().fallback(answered.clone());
    // `nest` does not match `path/` itself.
    Router::new().route(&format!("{path}/"), any(answered)).nest(path, below)
}

/// One parsed request with its caller.
struct Call {
    service: Service,
    method: Method,
    query: Vec<(String, String)>,
    body: Value,
    /// The turn that a body holds.
    turn: Option<turns::Turn>,
    /// Whether the client asks for a metalink document.
    metalink: bool,
    caller: Caller,
}

type Lines = Box<dyn Fn(&mut Tx<'_>, &mut dyn FnMut(String) -> Result<()>) -> Result<()> + Send>;

/// The result of a handler, before it becomes an HTTP response.
enum Reply {
    Json(Value),
    /// One JSON document per line, read from the catalog.
    Lines(Lines),
    /// One JSON document per line, from another source than the catalog alone.
    Streamed(Body),
    /// A metalink document, line by line.
    Metalink(Lines),
    /// 201 with this text.
    Created(String),
    /// 201 with a document.
    CreatedJson(Value),
    /// 303 with this location.
    Redirect(String),
    Done,
    /// JSON that may contain the word Infinity, which `serde_json` cannot write.
    Text(String),
}

async fn answer(service: Service, request: Request) -> Response {
    let mut facts = AuditFacts::of(request.method(), request.uri().path(), request.headers());
    let mut response = answer_with_facts(service, request, &mut facts).await;
    facts.add_response(&response);
    response.extensions_mut().insert(facts);
    response
}

async fn answer_with_facts(
    service: Service,
    mut request: Request,
    facts: &mut AuditFacts,
) -> Response {
    // HEAD is answered like GET; the server drops the body.
    if request.method() == Method::HEAD {
        *request.method_mut() = Method::GET;
    }
    let path = parts(request.uri().path());
    let found = route::find(request.method(), &path);
    let part = Part::of(request.method(), &path);
    if let Found::Route(Route { handler: Handler::Open(handle), .. }, _) = &found {
        let from = request.extensions().get::<IpAddr>().copied();
        let (headers, user_exists) = (request.headers(), &AtomicBool::new(false));
        let call = OpenCall { service: &service, headers, from, user_exists };
        let answer = handle(&call).await.unwrap_or_else(|error| failure(&error, part));
        facts.claim_exists = user_exists.load(Relaxed);
        return answer;
    }
    // Unknown paths below the open routes are answered without a token too.
    if matches!(path.first().map(String::as_str), Some("auth" | "ping")) {
        return unknown_route(&found);
    }
    let known = request.extensions().get::<Caller>().is_some();
    if !known && !request.headers().contains_key(auth::TOKEN) {
        facts.denied = true;
        return without_token(request.headers());
    }
    let (call, service) = match call(service, request).await {
        Ok(taken) => taken,
        Err(error) => return failure(&error, part),
    };
    facts.account.clone_from(&call.caller.account);
    if let Err(error) = admit(&call.caller, needs(&call.method, &found)) {
        return failure(&error, part);
    }
    let Found::Route(Route { handler: Handler::Known(handle), .. }, parts) = found else {
        return unknown_route(&found);
    };
    match turns::answered(call, *handle, parts).await {
        Ok(reply) => render(service, reply, part).await,
        Err(error) => failure(&error, part),
    }
}

/// Fails unless the caller may use the route.
fn admit(caller: &Caller, needs: Needs) -> Result<()> {
    if caller.read_only && needs.changes() {
        let message = format!("Account {} may only read", caller.account);
        return Err(refuse(Class::AccessDenied, message));
    }
    match needs {
        Needs::Administrator(what) if !caller.privileged => Err(caller.denied(what)),
        _ => Ok(()),
    }
}

/// The rights that a request needs.
fn needs(method: &Method, found: &Found) -> Needs {
    match found {
        Found::Route(route, _) => route.needs,
        _ if matches!(*method, Method::GET | Method::HEAD) => Needs::Token,
        _ => Needs::Change,
    }
}

/// The decision about a request before it is looked at in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It is allowed.
    Allowed,
    /// It is allowed for objects that the account owns, or that have no owner.
    ByOwner,
    /// It is denied; the text tells why.
    Denied(String),
}

/// Whether a caller may make a request, as far as method and path tell. `path` is relative to the
/// mount point. Requests are decided by the same code.
#[must_use]
pub fn permission(caller: &Caller, method: &Method, path: &str) -> Permission {
    let needs = needs(method, &route::find(method, &parts(path)));
    match admit(caller, needs) {
        Err(error) => Permission::Denied(error.to_string()),
        Ok(()) if needs == Needs::Change && !caller.privileged => Permission::ByOwner,
        Ok(()) => Permission::Allowed,
    }
}

/// The response to a request without a route: 405 if the path has other methods, else 404.
fn unknown_route(found: &Found) -> Response {
    let (status, methods) = match found {
        Found::OtherMethods(methods) => (StatusCode::METHOD_NOT_ALLOWED, Some(methods)),
        _ => (StatusCode::NOT_FOUND, None),
    };
    let message = "The server has no such path, or the path does not support this method";
    let mut response = error_response(status, Class::UnsupportedOperation.to_string(), message);
    if let Some(methods) = methods.and_then(|methods| HeaderValue::from_str(methods).ok()) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// The part of the API that a request addresses, as far as the status of an error depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `/rses`: an invalid expression is a bad request (400), not a conflict.
    Rses,
    /// `PUT /rules`: an invalid value is a conflict (409) with the rule's state.
    ChangedRule,
    /// Every other path.
    Other,
}

impl Part {
    fn of(method: &Method, path: &[String]) -> Self {
        match path.first().map(String::as_str) {
            Some("rses") => Self::Rses,
            Some("rules") if *method == Method::PUT => Self::ChangedRule,
            _ => Self::Other,
        }
    }
}

/// The response to a request without a valid caller or a Rucio token.
///
/// Clients log in again after 401. A new token does not help a request that sends none, so the
/// answer is 400; it does help one whose `Authorization` the server does not accept.
fn without_token(headers: &HeaderMap) -> Response {
    if headers.contains_key(header::AUTHORIZATION) {
        if headers.get("x-rucio-account").is_some_and(HeaderValue::is_empty) {
            let message = "The header X-Rucio-Account is empty: leave it out, or name an account";
            return error_response(
                StatusCode::BAD_REQUEST,
                Class::InvalidObject.to_string(),
                message,
            );
        }
        let message = "The token in Authorization is not valid";
        return error_response(
            StatusCode::UNAUTHORIZED,
            Class::CannotAuthenticate.to_string(),
            message,
        );
    }
    let message = "The header X-Rucio-Auth-Token is missing";
    error_response(StatusCode::BAD_REQUEST, Class::CannotAuthenticate.to_string(), message)
}

async fn call(service: Service, request: Request) -> Result<(Call, Service)> {
    let (parts, body) = request.into_parts();
    let path = self::parts(parts.uri.path());
    let query = parts.uri.query().map(pairs).unwrap_or_default();
    let caller = match parts.extensions.get::<Caller>() {
        Some(caller) => caller.clone(),
        None => auth::bearer(&service, &parts.headers).await?,
    };
    let accepts = parts.headers.get_all(header::ACCEPT);
    let metalink = accepts
        .iter()
        .any(|value| value.to_str().is_ok_and(|text| text.contains("application/metalink4+xml")));
    let bytes = to_bytes(body, LARGEST_BODY)
        .await
        .map_err(|_| refuse(Class::InvalidObject, "The body is too large or was cut short"))?;
    let (body, turn) = turns::read(&caller.account, bytes).await?;
    let words = path.iter().chain(query.iter().flat_map(|(key, value)| [key, value]));
    if words.into_iter().any(|text| text.contains('\0')) {
        return Err(turns::nul_character());
    }
    let method = parts.method;
    let call = Call { service: service.clone(), method, query, body, turn, metalink, caller };
    Ok((call, service))
}

/// The decoded parts of a path.
fn parts(path: &str) -> Vec<String> {
    path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
}

/// Decodes one part of a path or query: percent-encoding, and `+` for a space.
fn decode(part: &str) -> String {
    let part = part.replace('+', " ");
    percent_decode_str(&part).decode_utf8_lossy().into_owned()
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        (decode(key), decode(value))
    };
    query.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

impl Call {
    fn arg(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn object(&self) -> Result<&Map<String, Value>> {
        self.body
            .as_object()
            .ok_or_else(|| refuse(Class::InvalidObject, "The body should be a JSON object"))
    }

    fn field<'a>(&'a self, key: &str) -> Result<&'a Value> {
        let missing = || refuse(Class::InvalidObject, format!("The field {key} is missing"));
        self.object()?.get(key).ok_or_else(missing)
    }

    fn text(&self, key: &str) -> Result<String> {
        let wrong = || refuse(Class::InvalidObject, format!("The field {key} should be a text"));
        self.field(key)?.as_str().map(str::to_owned).ok_or_else(wrong)
    }

    fn number(&self, key: &str) -> Result<i64> {
        let wrong =
            || refuse(Class::InvalidObject, format!("The field {key} should be a whole number"));
        mainstay_rules::api::whole(self.field(key)?).ok_or_else(wrong)
    }

    fn now(&self) -> i64 {
        self.service.around.now()
    }

    /// Fails unless the caller is privileged.
    fn privileged(&self, what: &str) -> Result<()> {
        match self.caller.privileged {
            true => Ok(()),
            false => Err(self.caller.denied(what)),
        }
    }

    /// Fails unless the caller is this account or is privileged. A caller that may only read owns
    /// nothing, though its name may be that of an account.
    fn owner_or_privileged(&self, what: &str, owner: &str) -> Result<()> {
        let Caller { account, privileged, read_only } = &self.caller;
        match *privileged || (account == owner && !owner.is_empty() && !read_only) {
            true => Ok(()),
            false => Err(self.caller.denied(what)),
        }
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.service.catalog.write(work).await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.service.catalog.read(work).await
    }
}

/// An optional field of a body. The error for a wrong type names the field and what it `should` be.
fn field<'a, T>(
    body: &'a Value,
    key: &str,
    should: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let wrong = || wrong(&format!("The field {key} should be {should}"));
            read(value).map(Some).ok_or_else(wrong)
        }
    }
}

fn text<'a>(body: &'a Value, key: &str) -> Result<Option<&'a str>> {
    field(body, key, "a text", Value::as_str)
}

fn number(body: &Value, key: &str) -> Result<Option<i64>> {
    field(body, key, "a whole number", mainstay_rules::api::whole)
}

fn flag(body: &Value, key: &str) -> Result<Option<bool>> {
    field(body, key, "true or false", Value::as_bool)
}

fn list<'a>(body: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(field(body, key, "a list", |value| value.as_array())?.map_or(&[], Vec::as_slice))
}

fn texts(body: &Value, key: &str) -> Result<Option<Vec<String>>> {
    field(body, key, "a list of texts", |value| {
        value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
    })
}

/// The new value of an attribute, as text.
fn attribute(body: &Value) -> Result<String> {
    let should = "a text, a number, or true or false";
    let read = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    field(body, "value", should, read)?.ok_or_else(|| wrong(&format!("value should be {should}")))
}

/// A boolean query argument, as Python or JSON writes it; false if it is missing.
fn query_flag(call: &Call, key: &str) -> Result<bool> {
    match call.arg(key) {
        None | Some("" | "None" | "False" | "false" | "0") => Ok(false),
        Some("True" | "true" | "1") => Ok(true),
        Some(_) => Err(wrong(&format!("{key} is True or False"))),
    }
}

/// The error for an invalid body.
fn wrong(what: &str) -> Error {
    refuse(Class::InvalidObject, what)
}

fn created() -> Reply {
    Reply::Created("Created".to_owned())
}

const TEXT: &str = "text/html; charset=utf-8";
const LINES: &str = "application/x-json-stream";

fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

async fn render(service: Service, reply: Reply, part: Part) -> Response {
    match reply {
        Reply::Json(value) => {
            with_type(StatusCode::OK, "application/json", value.to_string().into())
        }
        Reply::Text(text) => with_type(StatusCode::OK, "application/json", text.into()),
        Reply::Created(text) => with_type(StatusCode::CREATED, TEXT, text.into()),
        Reply::CreatedJson(value) => {
            with_type(StatusCode::CREATED, "application/json", value.to_string().into())
        }
        Reply::Redirect(place) => {
            let body = "<!doctype html>\n<title>Redirecting...</title>\n";
            let mut answer = with_type(StatusCode::SEE_OTHER, TEXT, body.into());
            if let Ok(place) = HeaderValue::from_str(&place) {
                answer.headers_mut().insert(header::LOCATION, place);
            }
            answer
        }
        Reply::Done => with_type(StatusCode::OK, TEXT, Body::empty()),
        Reply::Lines(lines) => streamed(service, lines, LINES, part).await,
        Reply::Streamed(body) => with_type(StatusCode::OK, LINES, body),
        Reply::Metalink(lines) => streamed(service, lines, "application/metalink4+xml", part).await,
    }
}

async fn streamed(service: Service, lines: Lines, kind: &'static str, part: Part) -> Response {
    match stream::body(service.catalog, lines).await {
        Ok(body) => with_type(StatusCode::OK, kind, body),
        Err(error) => failure(&error, part),
    }
}

/// The HTTP response to an error. Clients raise the exception that its class names.
fn failure(error: &Error, part: Part) -> Response {
    let (status, class) = match error {
        Error::Refused(refusal) => {
            let status = match (part, refusal.class) {
                (Part::Rses, Class::InvalidRSEExpression) => 400,
                (Part::ChangedRule, Class::InputValidationError) => 409,
                (_, class) => class.status(),
            };
            (status, refusal.class.to_string())
        }
        Error::Busy(_)
        | Error::Crowded(_)
        | Error::Catalog(
            catalog::Error::Unavailable(_)
            | catalog::Error::Moved
            | catalog::Error::Unknown
            | catalog::Error::Damaged { .. }
            | catalog::Error::Deleted { .. }
            | catalog::Error::Replaced { .. }
            | catalog::Error::Disk { .. },
        ) => (503, "DatabaseException".to_owned()),
        Error::Catalog(catalog::Error::Full { .. }) => (507, "DatabaseException".to_owned()),
        _ => (500, "RucioException".to_owned()),
    };
    if status >= 500 {
        tracing::error!(%error, "Rucio request failed");
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    error_response(status, class, &error.to_string())
}

fn error_response(status: StatusCode, class: String, message: &str) -> Response {
    let body = serde_json::json!({"ExceptionClass": class, "ExceptionMessage": message});
    let mut response = with_type(status, "application/octet-stream", body.to_string().into());
    let short: String =
        message.chars().filter(|letter| (' '..='~').contains(letter)).take(125).collect();
    for (name, value) in [("exceptionclass", class), ("exceptionmessage", short)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parts_are_percent_decoded() {
        for (part, expected) in [
            ("a%2Fb", "a/b"),
            ("a+b", "a b"),
            ("100%25", "100%"),
            ("tier%3D1", "tier=1"),
            ("%zz", "%zz"),
            ("a%4", "a%4"),
            ("%%41", "%A"),
        ] {
            assert_eq!(decode(part), expected);
        }
    }
}
