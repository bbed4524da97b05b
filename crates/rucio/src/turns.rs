//! Parses and answers requests with large bodies on a bounded number of separate threads.
//!
//! Parsing a large body and writing its rows takes a good part of a second of CPU time. A body of
//! more than [`LARGE`] bytes waits for a turn and holds it until its request is answered. There are
//! [`AT_ONCE`] turns; an account holds at most one and queues for at most one, so that many large
//! bodies of one account do not delay those of another. Small bodies never wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use mainstay_rules::error::{Class, Error, Result, refuse};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::route::KnownHandler;
use super::{Call, Reply, python};

/// The largest body, in bytes, that needs no turn.
const LARGE: usize = 256 << 10;

/// The most large bodies processed at a time.
const AT_ONCE: usize = 4;

/// The longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(30);

/// The turns of this process.
static TURNS: Turns = Turns::new();

/// A pool of turns for large bodies.
#[derive(Debug)]
struct Turns {
    all: Semaphore,
    accounts: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// One turn; ends when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: &'static Turns,
    account: String,
    own: Option<OwnedSemaphorePermit>,
    _one: SemaphorePermit<'static>,
}

impl Turns {
    const fn new() -> Self {
        Self { all: Semaphore::const_new(AT_ONCE), accounts: Mutex::new(BTreeMap::new()) }
    }

    async fn take(&'static self, account: &str) -> Result<Turn> {
        let own = {
            let mut accounts = self.accounts.lock();
            let own = accounts.entry(account.to_owned());
            Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        let ended = || Error::Internal("the semaphore for large bodies is closed".to_owned());
        let own = own.acquire_owned().await.map_err(|_| ended())?;
        let one = self.all.acquire().await.map_err(|_| ended())?;
        Ok(Turn { turns: self, account: account.to_owned(), own: Some(own), _one: one })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut accounts = self.turns.accounts.lock();
        drop(self.own.take());
        // Waiting requests of the account hold a reference too.
        if accounts.get(&self.account).is_some_and(|own| Arc::strong_count(own) == 1) {
            accounts.remove(&self.account);
        }
    }
}

/// Parses a body, and takes a turn first if it is large.
pub(super) async fn read(account: &str, bytes: Bytes) -> Result<(Value, Option<Turn>)> {
    if bytes.len() <= LARGE {
        return Ok((parse(&bytes)?, None));
    }
    let late = || {
        let waited = PATIENCE.as_secs();
        Error::Crowded(format!(
            "Too many large requests: this one has waited {waited} s for its turn; try again later"
        ))
    };
    let turn = tokio::time::timeout(PATIENCE, TURNS.take(account)).await.map_err(|_| late())??;
    // The task owns the turn, so that it is held even if the client disconnects.
    on_blocking_thread(move || Ok((parse(&bytes)?, Some(turn)))).await
}

/// Runs a handler; with a large body, on a thread of its own instead of the server's shared threads.
pub(super) async fn answered(
    mut call: Call,
    handle: KnownHandler,
    parts: Vec<String>,
) -> Result<Reply> {
    let Some(turn) = call.turn.take() else { return handle(&call, parts).await };
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
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Err(Error::Internal(error.to_string())),
    })
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&python::json(bytes)).map_err(|error| {
            refuse(Class::InvalidObject, format!("The body is not JSON: {error}"))
        })?
    };
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
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn large_bodies_of_one_account_do_not_delay_other_accounts() {
        static TURNS: Turns = Turns::new();
        let first = TURNS.take("eve").await.unwrap();
        let mut second = pin!(TURNS.take("eve"));
        assert!(poll!(second.as_mut()).is_pending(), "one of each account at a time");
        let mut others = Vec::new();
        for account in ["a", "b", "c"] {
            others.push(TURNS.take(account).await.unwrap());
        }
        let mut late = pin!(TURNS.take("late"));
        assert!(poll!(late.as_mut()).is_pending(), "all turns are taken");
        drop(first);
        // The freed turn goes to `late`, which queued before eve's second request.
        assert!(poll!(second.as_mut()).is_pending());
        let late = late.await.unwrap();
        drop(others.pop());
        let second = second.await.unwrap();
        drop((second, late, others));
        assert!(TURNS.accounts.lock().is_empty(), "finished accounts are removed");
    }

    #[tokio::test]
    async fn only_large_bodies_take_a_turn() {
        let body = |length: usize| Bytes::from(format!("\"{}\"", "x".repeat(length)));
        assert!(read("me", body(10)).await.unwrap().1.is_none());
        assert!(read("me", body(LARGE)).await.unwrap().1.is_some());
        assert!(read("me", Bytes::from_static(b"{\"a\": \"\\u0000\"}")).await.is_err());
    }
}
