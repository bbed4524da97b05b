//! Reading the body of a request: bounded in size, time and memory, and turned into a tree once.
//!
//! A body that is still on its way holds no place among the requests under way: it counts among the
//! bodies ([`Pool::Bodies`]), and takes its request's place once it is here ([`Intake`]). It must
//! arrive at a [`Pace`], and what it takes in memory is counted too, except for a small part that
//! every body has for nothing. Enter at [`Incoming::new`] and [`read`].

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use http::Version;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming as Raw;
use mainstay_store::clock::Clock;
use mainstay_store::schema::{Decoded, decode};
use mainstay_store::status::{Error, Reason};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::fairness::Pace;
use crate::gate::{Place, Pool, Who};
use crate::negotiate::Format;
use crate::options::Limits;
use crate::patch::{DEPTH, shallow};
use crate::protobuf;
use crate::turns::LARGE;

/// How much of a body that is too large is still taken over HTTP/1, so that its sender hears the
/// answer instead of a broken connection.
const DRAINED: usize = 32 << 20;
/// How much of each body is not counted: most are smaller, and their number is bounded.
const UNCOUNTED: usize = 16 << 10;
/// In which steps the memory of a body of unknown length is counted.
const STEP: usize = 64 << 10;

/// The body of a request, from which something may still come.
#[derive(Debug)]
pub(crate) struct Incoming {
    body: Option<Raw>,
    intake: Option<Arc<Intake>>,
}

/// A body on its way in, and the places its request holds meanwhile and afterwards.
#[derive(Debug)]
pub(crate) struct Intake {
    clock: Arc<dyn Clock>,
    pace: Pace,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The part that no handler read.
    rest: Option<Raw>,
    who: Option<Who>,
    /// Where its request enters once the body is here.
    then: Option<Pool>,
    inside: Option<Place>,
    memory: Option<Place>,
}

impl Incoming {
    pub(crate) fn new(body: Raw, clock: &Arc<dyn Clock>, limits: &Limits) -> Self {
        if body.is_end_stream() {
            return Self { body: None, intake: None };
        }
        let pace = Pace { grace: limits.body_grace, rate: limits.body_rate };
        let state = Mutex::default();
        let intake = Arc::new(Intake { clock: clock.clone(), pace, state });
        Self { body: Some(body), intake: Some(intake) }
    }

    /// The places its request holds, if there is a body at all.
    pub(crate) fn intake(&self) -> Option<Arc<Intake>> {
        self.intake.clone()
    }

    /// Admits a request: at once if there is no body to wait for, otherwise among the bodies first,
    /// and to `pool` when the body was read.
    ///
    /// # Errors
    /// 429 with the bound that was met.
    pub(crate) fn admit(&self, who: &Who, pool: Pool) -> Result<Inside, Error> {
        let Some(intake) = &self.intake else {
            return Ok(Inside::Place(who.enter(pool)?));
        };
        let (first, then) = match pool {
            Pool::Strangers => (Pool::Strangers, None),
            pool => (Pool::Bodies, Some(pool)),
        };
        let place = who.enter(first)?;
        let mut state = intake.lock();
        state.who = Some(who.clone());
        state.then = then;
        state.inside = Some(place);
        drop(state);
        Ok(Inside::Intake(intake.clone()))
    }

    /// The body as it is, for streams that stay open and have bounds of their own.
    pub(crate) fn stream(mut self) -> axum::body::Body {
        self.body.take().map_or_else(axum::body::Body::empty, axum::body::Body::new)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let (Some(body), Some(intake)) = (self.body.take(), &self.intake)
            && !body.is_end_stream()
        {
            intake.lock().rest = Some(body);
        }
    }
}

/// A request that was admitted, until dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "places are held, not looked at")]
pub(crate) enum Inside {
    Place(Place),
    Intake(Arc<Intake>),
}

impl Intake {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The part that no handler read, if there is any.
    pub(crate) fn take_rest(&self) -> Option<Raw> {
        self.lock().rest.take()
    }

    /// The next piece, unless it takes too long.
    async fn next(
        &self,
        body: &mut Raw,
        started: Duration,
        received: usize,
    ) -> Result<Option<Frame<Bytes>>, Error> {
        let mut frame = body.frame();
        let arrived = match futures_util::poll!(&mut frame) {
            std::task::Poll::Ready(arrived) => arrived,
            std::task::Poll::Pending => {
                let took = self.clock.elapsed().saturating_sub(started);
                let left = self.pace.deadline(received).saturating_sub(took);
                match select(frame, self.clock.sleep(left)).await {
                    Either::Left((arrived, _)) => arrived,
                    Either::Right(_) => return Err(too_slow(self.pace, received)),
                }
            }
        };
        let broken = |error| Error::bad_request(format!("the body could not be read: {error}"));
        arrived.transpose().map_err(broken)
    }

    /// Counts the memory of a body of so many bytes.
    fn count(&self, bytes: usize) -> Result<(), Error> {
        let mut state = self.lock();
        let State { who, memory, .. } = &mut *state;
        let Some(who) = who else { return Ok(()) };
        match memory {
            None => *memory = Some(who.enter_many(who.bytes(), bytes)?),
            Some(place) => place.grow(bytes)?,
        }
        Ok(())
    }

    /// The body is here: its request may begin.
    fn complete(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if let (Some(pool), Some(who)) = (state.then.take(), &state.who) {
            let place = who.enter(pool)?;
            // This leaves the bodies.
            state.inside = Some(place);
        }
        Ok(())
    }

    async fn drain(&self, body: &mut Raw, started: Duration, mut received: usize) {
        while let Ok(Some(frame)) = self.next(body, started, received).await {
            received += frame.data_ref().map_or(0, Bytes::len);
            if received > DRAINED {
                return;
            }
        }
    }
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// 413 if it is larger, 408 if it is slower than it may be, 429 if there is no room for it, 400 if
/// it breaks off.
pub(crate) async fn read(
    parts: &Parts,
    mut incoming: Incoming,
    limit: usize,
) -> Result<Bytes, Error> {
    let Some(intake) = incoming.intake() else {
        return Ok(Bytes::new());
    };
    let Some(body) = &mut incoming.body else {
        return Ok(Bytes::new());
    };
    let started = intake.clock.elapsed();
    // Over HTTP/2 a client reads its answer while it still sends the body.
    let hears = parts.version == Version::HTTP_2;
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse::<usize>().ok());
    if let Some(length) = length.filter(|length| *length > limit) {
        if length <= DRAINED && !hears && !parts.headers.contains_key(EXPECT) {
            intake.drain(body, started, 0).await;
        }
        return Err(too_large(limit));
    }
    let mut counted = UNCOUNTED;
    if let Some(length) = length.filter(|length| *length > counted) {
        intake.count(length - counted)?;
        counted = length;
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = intake.next(body, started, first.len() + rest.len()).await? {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let received = first.len() + rest.len() + data.len();
        if received > limit {
            if !hears {
                intake.drain(body, started, received).await;
            }
            return Err(too_large(limit));
        }
        if received > counted {
            let more = STEP.max(received - counted);
            intake.count(more)?;
            counted += more;
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(length.unwrap_or(0).max(first.len() + data.len()));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    intake.complete()?;
    let whole = if rest.is_empty() { first } else { rest.freeze() };
    if let Some(tap) = parts.extensions.get::<crate::audit::Tap>() {
        tap.keep(&whole);
    }
    Ok(whole)
}

/// Reads the body of a request that never needs a large one: it is parsed on a shared thread.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_small(
    parts: &Parts,
    incoming: Incoming,
    limits: &Limits,
) -> Result<Bytes, Error> {
    read(parts, incoming, limits.body.min(LARGE)).await
}

/// How long the unread rest of a body is taken, and how much of it, so that a client that
/// is still sending over HTTP/2 reads its answer before its stream is reset.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 1 << 20);

/// Takes the rest that a client sends though it was answered. When this ends the stream is reset,
/// with `NO_ERROR`, as RFC 9113 section 8.1 has it.
pub(crate) async fn linger(mut rest: Raw, clock: &dyn Clock) {
    let (time, most) = LINGER;
    let take = async {
        let mut taken = 0;
        while taken < most {
            match rest.frame().await {
                Some(Ok(frame)) => taken += frame.data_ref().map_or(0, Bytes::len),
                _ => return,
            }
        }
        // No more is taken, and flow control stops the client.
        std::future::pending().await
    };
    select(std::pin::pin!(take), clock.sleep(time)).await;
}

fn too_large(limit: usize) -> Error {
    let message = format!("Request entity too large: limit is {limit}");
    Error::new(Reason::RequestEntityTooLarge, message)
}

fn too_slow(pace: Pace, received: usize) -> Error {
    let Pace { grace, rate } = pace;
    let message = format!(
        "Request timeout: {received} bytes of the body arrived in time; after {} s it must arrive at {rate} bytes a second",
        grace.as_secs()
    );
    Error::new(Reason::RequestTimeout, message)
}

/// Turns a body into an object.
///
/// # Errors
/// 400 if it is none.
pub(crate) fn object(format: Format, body: &[u8]) -> Result<Decoded, Error> {
    if body.is_empty() {
        return Err(Error::bad_request("the body of the request is empty: an object is expected"));
    }
    // Clients send JSON as YAML, which it is, but which JSON's own parser reads faster.
    let may_be_json = || body.trim_ascii_start().first() == Some(&b'{');
    let decoded = match format {
        Format::Yaml => from_yaml(body)?,
        Format::Protobuf => Decoded { object: protobuf::object(body)?, duplicates: Vec::new() },
        Format::Apply if may_be_json() => decode(body).or_else(|_| from_yaml(body))?,
        Format::Apply => from_yaml(body)?,
        _ => decode(body)?,
    };
    if decoded.object.values().all(|value| shallow(value, DEPTH)) {
        return Ok(decoded);
    }
    Err(Error::bad_request(format!("the object is nested deeper than {DEPTH} levels")))
}

fn from_yaml(body: &[u8]) -> Result<Decoded, Error> {
    let wrong = |why: String| Error::bad_request(format!("yaml parse error: {why}"));
    let text = std::str::from_utf8(body).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match value {
        Value::Object(object) => Ok(Decoded { object, duplicates: Vec::new() }),
        _ => Err(wrong("the document is not an object".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        let deep = "[".repeat(1_000_000);
        let nested = format!("{{\"a\":{}1{}}}", "[".repeat(110), "]".repeat(110));
        let bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n".to_owned()
            + &('d'..='z')
                .map(|letter| {
                    let before = char::from_u32(letter as u32 - 1).unwrap();
                    format!("{letter}: &{letter} [{}]\n", vec![format!("*{before}"); 9].join(","))
                })
                .collect::<String>();
        let cases: [(Format, &[u8]); 11] = [
            (Format::Json, b""),
            (Format::Json, b"{"),
            (Format::Json, b"[]"),
            (Format::Json, b"{\"a\":1} x"),
            (Format::Json, b"{\"a\":\"\xff\"}"),
            (Format::Json, deep.as_bytes()),
            (Format::Json, nested.as_bytes()),
            (Format::Yaml, b"a: \xff"),
            (Format::Yaml, b"- a"),
            (Format::Yaml, deep.as_bytes()),
            (Format::Yaml, bomb.as_bytes()),
        ];
        for (format, body) in cases {
            let refused = object(format, body).unwrap_err();
            assert_eq!(refused.reason, Reason::BadRequest, "{}", refused.message);
        }
    }

    #[test]
    fn json_and_yaml_mean_the_same() {
        let json = object(Format::Json, b"{\"a\":{\"b\":[1,\"x\",true,null]}}").unwrap();
        let yaml = object(Format::Yaml, b"a:\n  b: [1, x, true, null]\n").unwrap();
        assert_eq!(json, yaml);
    }
}
