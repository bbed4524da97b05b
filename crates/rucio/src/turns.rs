//! Shares the work on request bodies between accounts, and keeps large bodies off the shared threads.
//!
//! Parsing a body and writing its rows costs CPU time and the catalog's writer in proportion to its
//! size. Every body takes a turn of its weight in bytes ([`crate::fair`]): the bodies of one account
//! in flight are at most half of [`IN_FLIGHT`], so that an account with many bodies, of whatever size,
//! does not delay those of others for long. A body of more than [`LARGE`] bytes takes one of
//! [`AT_ONCE`] turns for large bodies instead, and is worked on by a thread of its own.

use std::sync::LazyLock;
use std::time::Duration;

use axum::body::Bytes;
use mainstay_rules::error::{Class, Error, Result, refuse};
use serde_json::Value;
use tokio::task::JoinError;

use super::fair::{self, Lane};
use super::route::KnownHandler;
use super::{Call, Reply, python};

/// The largest body, in bytes, that is worked on by the shared threads.
const LARGE: usize = 256 << 10;

/// The bytes of smaller bodies in flight.
const IN_FLIGHT: usize = 1 << 20;

/// The bytes that a request counts in addition to its body.
const OVERHEAD: usize = 256;

/// The most large bodies processed at a time.
const AT_ONCE: usize = 4;

/// The longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(30);

/// The turns of this process.
static TURNS: LazyLock<Turns> = LazyLock::new(Turns::default);

/// The turns of bodies.
#[derive(Debug)]
struct Turns {
    large: Lane<String>,
    others: Lane<String>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { large: Lane::new(AT_ONCE), others: Lane::new(IN_FLIGHT) }
    }
}

/// One turn; ends when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    large: bool,
    _places: fair::Turn<String>,
}

impl Turns {
    async fn take(&self, account: &str, bytes: usize) -> Turn {
        let large = bytes > LARGE;
        let (lane, weight) = match large {
            true => (&self.large, 1),
            false => (&self.others, bytes + OVERHEAD),
        };
        Turn { large, _places: lane.take(account.to_owned(), weight).await }
    }
}

/// Takes the turn of a body, and parses it.
pub(super) async fn read(account: &str, bytes: Bytes) -> Result<(Value, Option<Turn>)> {
    if bytes.is_empty() {
        return Ok((Value::Null, None));
    }
    let late = || {
        let waited = PATIENCE.as_secs();
        Error::Crowded(format!(
            "Too many requests with a body are under way: this one has waited {waited} s for its turn; try again later"
        ))
    };
    let turn = TURNS.take(account, bytes.len());
    let turn = tokio::time::timeout(PATIENCE, turn).await.map_err(|_| late())?;
    if !turn.large {
        return Ok((parse(&bytes)?, Some(turn)));
    }
    // The task owns the turn, so that it is held even if the client disconnects.
    on_blocking_thread(move || Ok((parse(&bytes)?, Some(turn)))).await
}

/// Runs a handler; with a large body, on a thread of its own instead of the server's shared threads.
/// The turn ends with the work, also if the client disconnects before.
pub(super) async fn answered(
    mut call: Call,
    handle: KnownHandler,
    parts: Vec<String>,
) -> Result<Reply> {
    let Some(turn) = call.turn.take() else { return handle(&call, parts).await };
    if !turn.large {
        let done = tokio::spawn(async move {
            let reply = handle(&call, parts).await;
            drop(turn);
            reply
        });
        return outcome(done.await);
    }
    let runtime = tokio::runtime::Handle::current();
    on_blocking_thread(move || {
        let reply = runtime.block_on(handle(&call, parts));
        drop(turn);
        reply
    })
    .await
}

async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    outcome(tokio::task::spawn_blocking(work).await)
}

/// The result of a task; its panic goes on here.
fn outcome<T>(done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Err(Error::Internal(error.to_string())),
    })
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let body = serde_json::from_slice(&python::json(bytes))
        .map_err(|error| refuse(Class::InvalidObject, format!("The body is not JSON: {error}")))?;
    match has_nul(&body) {
        true => Err(nul_character()),
        false => Ok(body),
    }
}

/// The error for a NUL character, which PostgreSQL does not store in texts.
pub(super) fn nul_character() -> Error {
    refuse(Class::InvalidObject, "A text must not contain the NUL character")
}

/// Whether any text in a body contains a NUL character.
fn has_nul(body: &Value) -> bool {
    match body {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(has_nul),
        Value::Object(map) => map.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn bodies_of_one_account_do_not_delay_other_accounts_whatever_their_size() {
        for bytes in [1 << 10, 100 << 10, LARGE - 1, LARGE, LARGE + 1, 8 << 20] {
            let turns = Turns::default();
            let mut held = Vec::new();
            while let Some(turn) = turns.take("eve", bytes).now_or_never() {
                held.push(turn);
            }
            let in_flight = held.len() * (bytes + OVERHEAD);
            assert!(held.len() <= AT_ONCE / 2 || in_flight <= IN_FLIGHT / 2, "{bytes}");
            for other in ["ada", "bob"] {
                let turn = turns.take(other, bytes).now_or_never();
                held.push(turn.expect("others do not wait"));
            }
        }
    }

    #[tokio::test]
    async fn a_body_holds_its_turn_until_its_request_is_answered() {
        let body = |length: usize| Bytes::from(format!("\"{}\"", "x".repeat(length)));
        assert!(read("me", Bytes::new()).await.unwrap().1.is_none(), "there is nothing to do");
        assert!(!read("me", body(10)).await.unwrap().1.unwrap().large);
        assert!(read("me", body(LARGE)).await.unwrap().1.unwrap().large);
        assert!(read("me", Bytes::from_static(b"{\"a\": \"\\u0000\"}")).await.is_err());
        assert!(TURNS.others.is_idle() && TURNS.large.is_idle());
    }
}
