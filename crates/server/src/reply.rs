//! Answers: bodies that cost no more than they must, and refusals as `Status` objects.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::connection::Busy;
use crate::gate::Place;
use bytes::Bytes;
use futures_util::Stream;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WARNING, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use mainstay_store::status::{Details, Error, Reason};
use serde_json::{Map, Value, json};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// An answer.
pub(crate) type Reply = Response<Body>;

/// The body of an answer, and what is held until it is gone.
pub(crate) struct Body {
    content: Content,
    held: Option<Box<dyn Any + Send + Sync>>,
    /// When it is cut off, and what is said then.
    until: Option<Box<Until>>,
    /// The request this answers, under way until the body is gone.
    busy: Option<Busy>,
    /// The memory of an answer that is all there, as long as it is not sent.
    pub(crate) room: Option<Place>,
    /// The rest of a piece that is sent in slices.
    rest: Bytes,
}

/// The most that is handed over at once: the client decides when the next slice is asked for.
const SLICE: usize = 64 << 10;

struct Until {
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    farewell: Option<Frame<Bytes>>,
}

enum Content {
    Whole(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    Routed(axum::body::Body),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl Body {
    fn of(content: Content) -> Self {
        Self { content, held: None, until: None, busy: None, room: None, rest: Bytes::new() }
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::of(Content::Whole(bytes.into()))
    }

    pub(crate) fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::of(Content::Stream(Box::pin(stream)))
    }

    pub(crate) fn routed(body: axum::body::Body) -> Self {
        Self::of(Content::Routed(body))
    }

    /// Keeps `held` until the body was sent, or nobody wants it any more.
    pub(crate) fn holding(&mut self, held: impl Any + Send + Sync) {
        let before = self.held.take();
        self.held = Some(match before {
            Some(before) => Box::new((before, held)),
            None => Box::new(held),
        });
    }

    /// Cuts it off when `end` comes, unless it is all there already: with a farewell where the
    /// client can tell it from the rest, else as broken.
    pub(crate) fn until(&mut self, end: CancellationToken, farewell: Option<Frame<Bytes>>) {
        if !self.is_whole() {
            self.until = Some(Box::new(Until { end: Box::pin(end.cancelled_owned()), farewell }));
        }
    }

    /// The answer is complete and waits for the client from now on.
    pub(crate) fn send(&mut self, mut busy: Busy) {
        if let Content::Whole(bytes) = &mut self.content
            && let Some(room) = self.room.take()
        {
            *bytes = crate::answers::counted(std::mem::take(bytes), room, Some(busy.owe()));
        }
        busy.0.waits();
        self.busy = Some(busy);
    }

    /// How long it is, if that is known.
    pub(crate) fn known_len(&self) -> Option<usize> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes.len()),
            Content::Stream(_) => None,
            Content::Routed(body) => {
                body.size_hint().exact().and_then(|length| usize::try_from(length).ok())
            }
        }
    }

    /// How long it is, if it is all there already.
    pub(crate) fn whole_len(&self) -> Option<usize> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes.len()),
            Content::Stream(_) | Content::Routed(_) => None,
        }
    }

    /// Takes what is all there already, and leaves nothing.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.content {
            Content::Whole(bytes) => Some(std::mem::take(bytes)),
            Content::Stream(_) | Content::Routed(_) => None,
        }
    }

    /// Sends this instead; what is held stays held.
    pub(crate) fn put_whole(&mut self, bytes: Bytes) {
        self.content = Content::Whole(bytes);
    }

    /// Whether it is all there already.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.content, Content::Whole(_))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = self.as_mut().next(context);
        if let Some(Busy(owed)) = &mut self.busy {
            match polled {
                Poll::Ready(Some(_)) => {
                    owed.waits();
                    owed.took();
                }
                Poll::Ready(None) | Poll::Pending => owed.goes_on(),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            _ if !self.rest.is_empty() => false,
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Stream(_) => false,
            Content::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact((bytes.len() + self.rest.len()) as u64),
            Content::Routed(body) if self.rest.is_empty() => body.size_hint(),
            Content::Stream(_) | Content::Routed(_) => SizeHint::default(),
        }
    }
}

impl Body {
    /// The next slice.
    fn next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            let slice = slice(&mut self.rest);
            return Poll::Ready(Some(Ok(Frame::data(slice))));
        }
        if let Some(until) = &mut self.until
            && until.end.as_mut().poll(context).is_ready()
        {
            let farewell = until.farewell.take();
            self.until = None;
            self.content = Content::Whole(Bytes::new());
            let ended =
                || axum::Error::new("the credential of this request was revoked or has expired");
            return Poll::Ready(Some(farewell.ok_or_else(ended)));
        }
        match &mut self.content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(slice(bytes))))),
            Content::Stream(stream) => stream
                .as_mut()
                .poll_next(context)
                .map(|next| next.map(|bytes| Ok(Frame::data(bytes)))),
            Content::Routed(body) => match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => Poll::Ready(Some(Ok(match frame.into_data() {
                    Ok(mut data) => {
                        let first = slice(&mut data);
                        self.rest = data;
                        Frame::data(first)
                    }
                    Err(frame) => frame,
                }))),
                other => Poll::Ready(other),
            },
        }
    }
}

/// Takes the next slice.
fn slice(bytes: &mut Bytes) -> Bytes {
    if bytes.len() <= SLICE { std::mem::take(bytes) } else { bytes.split_to(SLICE) }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer in JSON.
pub(crate) fn json(code: StatusCode, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = code;
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

/// An answer made from a tree.
pub(crate) fn value(code: StatusCode, value: &Value) -> Reply {
    json(code, Body::whole(value.to_string()))
}

/// An answer in plain text.
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Body::whole(text.into()));
    *reply.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, plain);
    reply
}

/// A refusal.
pub(crate) fn refusal(error: &Error) -> Reply {
    let code = StatusCode::from_u16(error.reason.code());
    let mut reply = value(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &status(error));
    if let Some(seconds) = error.retry_after {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.reason == Reason::Unauthorized {
        reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

/// A refusal in the form that clients of gRPC read: no body, and the status among the headers.
pub(crate) fn grpc_refusal(error: &Error) -> Reply {
    let mut reply = Reply::new(Body::whole(""));
    *reply.headers_mut() = grpc_trailers(error);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    reply
}

/// The status of a stream that ends with an error, in the form that clients of gRPC read.
pub(crate) fn grpc_trailers(error: &Error) -> HeaderMap {
    let status = match error.reason {
        Reason::BadRequest | Reason::Invalid => 3,
        Reason::Timeout => 4,
        Reason::NotFound => 5,
        Reason::AlreadyExists => 6,
        Reason::Forbidden => 7,
        Reason::TooManyRequests => 8,
        Reason::Conflict => 9,
        Reason::MethodNotAllowed => 12,
        Reason::ServiceUnavailable => 14,
        Reason::Unauthorized => 16,
        _ => 2,
    };
    let message = percent_encoding::utf8_percent_encode(&error.message, GRPC_MESSAGE).to_string();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    if let Ok(message) = HeaderValue::try_from(message) {
        trailers.insert("grpc-message", message);
    }
    trailers
}

/// A refusal as a `Status` object.
pub(crate) fn status(error: &Error) -> Value {
    let mut body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason.as_str(),
        "code": error.reason.code(),
    });
    let details = details(&error.details, error.retry_after);
    if !details.is_empty()
        && let Some(body) = body.as_object_mut()
    {
        body.insert("details".to_owned(), Value::Object(details));
    }
    body
}

fn details(details: &Details, retry_after: Option<u32>) -> Map<String, Value> {
    let mut body = Map::new();
    let texts = [
        ("name", &details.name),
        ("group", &details.group),
        ("kind", &details.kind),
        ("uid", &details.uid),
    ];
    for (name, text) in texts {
        if !text.is_empty() {
            body.insert(name.to_owned(), text.as_str().into());
        }
    }
    if !details.causes.is_empty() {
        let causes = details.causes.iter().map(|cause| {
            let mut body = json!({"reason": cause.reason, "message": cause.message});
            if !cause.field.is_empty() {
                body["field"] = cause.field.as_str().into();
            }
            body
        });
        body.insert("causes".to_owned(), causes.collect());
    }
    if let Some(seconds) = retry_after {
        body.insert("retryAfterSeconds".to_owned(), seconds.into());
    }
    body
}

/// The `Status` of a success.
pub(crate) fn success(details: &Details) -> Reply {
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": self::details(details, None),
    });
    value(StatusCode::OK, &body)
}

/// The characters that a message of gRPC has as they are: printable ASCII without the percent sign.
const GRPC_MESSAGE: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b'%');

/// The most bytes of warnings an answer carries.
const WARNINGS: usize = 4096;

/// Adds warnings as headers, the way kubectl prints them.
pub(crate) fn warn(reply: &mut Reply, warnings: &[String]) {
    let mut total = 0;
    for warning in warnings {
        let clean: String = warning
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .flat_map(|char| matches!(char, '"' | '\\').then_some('\\').into_iter().chain([char]))
            .collect();
        total += clean.len();
        if total > WARNINGS {
            return;
        }
        if let Ok(header) = HeaderValue::from_bytes(format!("299 - \"{clean}\"").as_bytes()) {
            reply.headers_mut().append(WARNING, header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_everything_clients_look_at() {
        let mut error = Error::new(Reason::TooManyRequests, "later");
        error.retry_after = Some(3);
        let reply = refusal(&error);
        assert_eq!(reply.status(), 429);
        assert_eq!(reply.headers()[RETRY_AFTER], "3");
        let body = status(&error);
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "later", "reason": "TooManyRequests", "code": 429,
            "details": {"retryAfterSeconds": 3},
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn warnings_are_quoted_and_bounded() {
        let mut reply = text(StatusCode::OK, "");
        let warnings = ["a \"b\"\nc".to_owned(), "x".repeat(5000), "never".to_owned()];
        warn(&mut reply, &warnings);
        let headers: Vec<_> = reply.headers().get_all(WARNING).iter().collect();
        assert_eq!(headers, ["299 - \"a \\\"b\\\" c\""]);
    }
}
