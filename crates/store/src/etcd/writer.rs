//! Sends writes to etcd, grouping concurrent writes into shared transactions.
//!
//! A write that comes alone is sent at once. While [`LANES`] transactions are on their way others
//! wait, and the next transaction takes many of them: etcd agrees on it, syncs it and notifies its
//! watchers once. A transaction succeeds or fails as a whole, so only writes that should succeed as
//! far as the cache knows are grouped; if one fails after all, each is tried by itself and gets its
//! own answer. Each write has its place in the transaction, which is part of its version.
//!
//! etcd compares the revision that last wrote a value. Rewriting a value to encrypt it changes that
//! revision and not the object's version, so a write whose version still holds is repeated.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, State};
use crate::object::{Action, Body, Event, Key, Revision};
use crate::objects::{Change, Error, Fence, Write};

use super::client::{self, Client};
use super::layout::Layout;
use super::proto::{
    DeleteRangeRequest, PutRequest, Request, RequestOp, Response, TxnRequest, TxnResponse,
};
use super::roster::{self, Roster};
use super::version::{end, number, version};
use super::{look, sealing, unchanged};

/// How many transactions may be on their way at once.
const LANES: usize = 4;
/// The most writes that go together. etcd takes 128 conditions: each write may have two. It must
/// not be more than a version has places.
const TOGETHER: usize = 48;
const _: () = assert!(TOGETHER <= u8::MAX as usize);
/// The most bytes of objects that go together; etcd takes 1.5 MiB.
const BYTES: usize = 256 << 10;
/// How long a write waits for the cache to show it before the feed is moved to another endpoint.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a write is repeated because the value of its object was rewritten meanwhile.
const REWRITTEN: u32 = 8;

type Outcome = Result<Arc<Event>, Error>;

/// A write whose caller waits for the reply.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) write: Write,
    pub(super) reply: oneshot::Sender<Outcome>,
}

/// Sends writes to etcd.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) client: Arc<Client>,
    pub(super) layout: Layout,
    pub(super) cache: Arc<Cache>,
    pub(super) stop: CancellationToken,
    pub(super) stalled: Arc<Notify>,
    pub(super) roster: Arc<Roster>,
}

/// Why a transaction wrote nothing.
enum Failure {
    /// Its conditions did not hold; this is the answer.
    Conditions(TxnResponse),
    /// etcd takes no transaction as large as this.
    TooLarge,
    Error(Error),
}

impl Writer {
    pub(super) async fn run(self, mut queue: mpsc::Receiver<PendingWrite>) {
        let mut waiting: VecDeque<PendingWrite> = VecDeque::new();
        let mut sent = FuturesUnordered::new();
        let mut come = Vec::new();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                Some(()) = sent.next() => {}
                count = queue.recv_many(&mut come, TOGETHER), if waiting.len() < TOGETHER * LANES => {
                    if count == 0 {
                        return;
                    }
                    waiting.extend(come.drain(..));
                }
            }
            while sent.len() < LANES && !waiting.is_empty() {
                sent.push(self.send(take(&self.cache.load(), &mut waiting)));
            }
        }
    }

    /// Sends a group of writes, and answers their callers.
    async fn send(&self, group: Vec<PendingWrite>) {
        let (writes, replies): (Vec<Write>, Vec<_>) =
            group.into_iter().map(|waiting| (waiting.write, waiting.reply)).unzip();
        let outcomes = match &writes[..] {
            [write] => vec![self.alone(write).await],
            writes => match self.together(writes).await {
                Ok(outcomes) => outcomes,
                Err(Failure::Error(error)) => vec![Err(error); writes.len()],
                Err(Failure::Conditions(_) | Failure::TooLarge) => {
                    let each = writes.iter().map(|write| self.alone(write));
                    futures_util::future::join_all(each).await
                }
            },
        };
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            // A writer that gave up waiting finds out by reading.
            let _ = reply.send(outcome);
        }
    }

    async fn together(&self, writes: &[Write]) -> Result<Vec<Outcome>, Failure> {
        let made = self.admission().await.map_err(Failure::Error)?;
        let at = self.transact(writes, made).await?;
        self.caught_up(at).await;
        let versions = (0..=u8::MAX).map(|place| version(at, place));
        Ok(writes.iter().zip(versions).map(|(write, at)| Ok(self.seen(write, at))).collect())
    }

    /// Waits until this server may write; returns the revision at which its record was made.
    async fn admission(&self) -> Result<Revision, Error> {
        let made = self.roster.admission().await?;
        self.layout.writable(&self.cache.load()).map(|()| made)
    }

    async fn alone(&self, write: &Write) -> Outcome {
        let mut rewritten = 0;
        loop {
            let made = self.admission().await?;
            if let Some(error) = misplaced(&self.cache.load(), write) {
                return Err(error);
            }
            match self.transact(std::slice::from_ref(write), made).await {
                Ok(at) => {
                    self.caught_up(at).await;
                    return Ok(self.seen(write, version(at, 0)));
                }
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::TooLarge) => {
                    let size = body(&write.change).map_or(0, Body::len);
                    return Err(Error::TooLarge { key: write.key.clone(), size, limit: size });
                }
                Err(Failure::Conditions(seen)) => {
                    let looks = seen.responses.len();
                    if looks > 0 && roster::found(&seen, looks - 1) != Some(made) {
                        // Another server removed our record. The write was not made; it is repeated
                        // once this server is admitted again.
                        self.roster.note_removed(made);
                    } else if rewritten < REWRITTEN && self.was_rewritten(write, &seen) {
                        rewritten += 1;
                        self.caught_up(seen.header.map_or(0, |header| header.revision)).await;
                    } else {
                        return Err(self.refusal(write, &seen));
                    }
                }
            }
        }
    }

    /// Sends one transaction; gives the revision of etcd it was made at.
    async fn transact(&self, writes: &[Write], admitted: Revision) -> Result<i64, Failure> {
        let request = self.transaction(writes, admitted);
        let sent: Result<TxnResponse, _> = self.client.write("/etcdserverpb.KV/Txn", request).await;
        match sent {
            Ok(response) if response.succeeded => {
                Ok(response.header.map_or(0, |header| header.revision))
            }
            Ok(response) => Err(Failure::Conditions(response)),
            Err(client::Error::TooLarge) => Err(Failure::TooLarge),
            Err(error) => Err(Failure::Error(Error::Unavailable { reason: error.to_string() })),
        }
    }

    /// Conditions, and reads for the case that they fail: for each write of its object and its
    /// fence, then of our own record.
    fn transaction(&self, writes: &[Write], admitted: Revision) -> TxnRequest {
        // To etcd revision 0 means "no such key", which only a creation may mean; nothing was ever
        // changed at revision 1.
        let state = self.cache.load();
        let in_the_clear = sealing::condition_in_the_clear(&self.layout, &state);
        let known = |key: &Key, expected| written_at(&state, key, expected).max(1);
        let (mut compare, mut success, mut failure) = (Vec::new(), Vec::new(), Vec::new());
        for (place, write) in (0..=u8::MAX).zip(writes) {
            let key = self.layout.encode(&write.key);
            let put = |body: &Body| {
                let value = self.layout.write(&write.key, body, place);
                Request::Put(PutRequest { key: key.clone(), value })
            };
            let (expected, operation) = match &write.change {
                Change::Create(body) => (0, put(body)),
                Change::Update(expected, body) => (known(&write.key, *expected), put(body)),
                Change::Delete(expected) => {
                    let request = DeleteRangeRequest { key: key.clone(), range_end: Vec::new() };
                    (known(&write.key, *expected), Request::DeleteRange(request))
                }
            };
            compare.push(unchanged(key.clone(), expected));
            success.push(RequestOp { request: Some(operation) });
            failure.push(look(key));
            if let Some(fence) = &write.fence {
                let key = self.layout.encode(&fence.key);
                compare.push(unchanged(key.clone(), known(&fence.key, fence.token)));
                failure.push(look(key));
            }
        }
        compare.extend(in_the_clear);
        let (condition, look) = self.roster.condition(admitted);
        compare.push(condition);
        failure.push(look);
        if writes.len() > 1 {
            // Each write of a group that failed is tried again by itself, so no answers are needed.
            failure.clear();
        }
        TxnRequest { compare, success, failure }
    }

    /// The change a write made at a version.
    fn seen(&self, write: &Write, at: Revision) -> Arc<Event> {
        self.cache.event_at(&write.key, at).unwrap_or_else(|| self.event(write, at))
    }

    /// The change as it must have been, for a cache that no longer has it.
    fn event(&self, write: &Write, at: Revision) -> Arc<Event> {
        let previous = self.cache.get(&write.key).filter(|record| record.revision() < at);
        let created = previous.as_ref().map_or(at, |record| record.created());
        let (action, record) = match (&write.change, &previous) {
            (Change::Delete(_), Some(previous)) => (Action::Deleted, previous.at(at)),
            (change, _) => {
                let action = if matches!(change, Change::Create(_)) {
                    Action::Added
                } else {
                    Action::Modified
                };
                let empty = Body::new(&serde_json::Map::new());
                (action, body(change).unwrap_or(&empty).at(write.key.clone(), created, at))
            }
        };
        Arc::new(Event::new(action, Arc::new(record), previous))
    }

    /// Waits until the cache shows etcd's revision `at`. A feed that does not get there is moved to
    /// another endpoint; the write is committed either way.
    async fn caught_up(&self, at: i64) {
        for _ in 0..3 {
            if tokio::time::timeout(PATIENCE, self.cache.reached(end(at))).await.is_ok() {
                return;
            }
            self.stalled.notify_one();
        }
        self.roster.end_promise();
        tracing::warn!(revision = at, "the cache did not catch up with a write to etcd in time");
    }

    /// The version of the object that an operation of a failed transaction found.
    fn found(&self, response: &TxnResponse, operation: usize) -> Option<Revision> {
        match response.responses.get(operation).map(|answer| &answer.response) {
            Some(Some(Response::Range(range))) => {
                range.kvs.first().map(|kv| self.layout.version(kv))
            }
            _ => None,
        }
    }

    /// Whether a transaction failed only because values were rewritten that the cache had not seen
    /// yet: the objects have the versions that the write expects.
    fn was_rewritten(&self, write: &Write, response: &TxnResponse) -> bool {
        let fenced = |fence: &Fence| self.found(response, 1) == Some(fence.token);
        self.found(response, 0) == expected(&write.change)
            && write.fence.as_ref().is_none_or(fenced)
    }

    /// Why a transaction did not succeed, from what it saw instead.
    fn refusal(&self, write: &Write, response: &TxnResponse) -> Error {
        let seen = |operation| self.found(response, operation);
        if let Some(Fence { key, token }) = &write.fence
            && seen(1) != Some(*token)
        {
            return Error::Fenced { lease: key.name().to_owned(), token: *token };
        }
        let key = write.key.clone();
        match (&write.change, seen(0)) {
            (Change::Create(_), _) => Error::AlreadyExists { key },
            (_, None) => Error::NotFound { key },
            (Change::Update(expected, _) | Change::Delete(expected), Some(actual)) => {
                Error::Conflict { key, expected: *expected, actual }
            }
        }
    }
}

/// Takes the next group of writes: the first that waits, and others that should succeed as far as
/// the cache knows, each of another object, and not more than etcd takes.
fn take(state: &State, waiting: &mut VecDeque<PendingWrite>) -> Vec<PendingWrite> {
    let mut group: Vec<PendingWrite> = Vec::new();
    let mut keys: HashSet<Key> = HashSet::new();
    let mut bytes = 0;
    while group.len() < TOGETHER
        && let Some(next) = waiting.front()
    {
        let write = &next.write;
        let sound = should_succeed(state, write);
        bytes += body(&write.change).map_or(0, Body::len);
        if !group.is_empty() && (!sound || bytes > BYTES || keys.contains(&write.key)) {
            break;
        }
        keys.insert(write.key.clone());
        group.extend(waiting.pop_front());
        if !sound {
            break;
        }
    }
    group
}

fn should_succeed(state: &State, write: &Write) -> bool {
    let current = |key: &Key| state.get(key).map(|record| record.revision());
    let fenced = |fence: &Fence| current(&fence.key) == Some(fence.token);
    current(&write.key) == expected(&write.change) && write.fence.as_ref().is_none_or(fenced)
}

fn body(change: &Change) -> Option<&Body> {
    match change {
        Change::Create(body) | Change::Update(_, body) => Some(body),
        Change::Delete(_) => None,
    }
}

/// etcd compares its own revisions, which changes of one transaction share. A version that names
/// the right transaction but another change of it is refused here.
fn misplaced(state: &State, write: &Write) -> Option<Error> {
    let other = |key: &Key, expected: Revision| {
        let actual = state.get(key)?.revision();
        let shared = written_at(state, key, actual) == number(expected);
        (shared && actual != expected).then_some(actual)
    };
    if let Some(Fence { key, token }) = &write.fence
        && other(key, *token).is_some()
    {
        return Some(Error::Fenced { lease: key.name().to_owned(), token: *token });
    }
    let expected = expected(&write.change)?;
    let actual = other(&write.key, expected)?;
    Some(Error::Conflict { key: write.key.clone(), expected, actual })
}

/// The revision of etcd that last wrote the value of an object at this version: the one that made
/// the version, unless the value was rewritten since.
fn written_at(state: &State, key: &Key, version: Revision) -> i64 {
    let rewritten = state.rewritten(key);
    let current = || state.get(key).is_some_and(|record| record.revision() == version);
    rewritten.filter(|_| current()).unwrap_or_else(|| number(version))
}

/// The version that a change starts from.
pub(super) fn expected(change: &Change) -> Option<Revision> {
    match change {
        Change::Create(_) => None,
        Change::Update(expected, _) | Change::Delete(expected) => Some(*expected),
    }
}

#[cfg(test)]
mod tests {
    use crate::object::Resource;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(&Resource::new("", "configmaps"), Some("default"), name)
    }

    fn of_size(size: usize) -> Body {
        let mut object = serde_json::Map::new();
        object.insert("data".to_owned(), "x".repeat(size).into());
        Body::new(&object)
    }

    /// The groups in which waiting writes are sent, as names.
    fn turns(state: &State, writes: Vec<(&str, Change)>) -> Vec<Vec<String>> {
        let mut waiting: VecDeque<PendingWrite> = writes
            .into_iter()
            .map(|(name, change)| PendingWrite {
                write: Write { key: key(name), change, fence: None },
                reply: oneshot::channel().0,
            })
            .collect();
        let mut turns = Vec::new();
        while !waiting.is_empty() {
            let group = take(state, &mut waiting);
            turns.push(group.iter().map(|it| it.write.key.name().to_owned()).collect());
        }
        turns
    }

    #[test]
    fn only_writes_that_should_succeed_are_grouped() {
        let mut state = State::new(Revision(5), Revision(5));
        state.load(Arc::new(of_size(1).at(key("old"), Revision(3), Revision(4))));
        let create = || Change::Create(of_size(1));
        let large = || Change::Create(of_size(BYTES));
        let right = || Change::Update(Revision(4), of_size(1));
        let stale = || Change::Delete(Revision(3));
        for (writes, expected) in [
            (vec![("a", create()), ("b", create()), ("old", right())], vec![vec!["a", "b", "old"]]),
            (
                vec![("a", create()), ("old", stale()), ("b", create())],
                vec![vec!["a"], vec!["old"], vec!["b"]],
            ),
            (vec![("a", create()), ("old", create())], vec![vec!["a"], vec!["old"]]),
            (
                vec![("a", create()), ("a", create()), ("b", create())],
                vec![vec!["a"], vec!["a", "b"]],
            ),
            (vec![("a", large()), ("b", large())], vec![vec!["a"], vec!["b"]]),
        ] {
            assert_eq!(turns(&state, writes), expected);
        }
        let many: Vec<String> = (0..2 * TOGETHER + 1).map(|number| number.to_string()).collect();
        let many = many.iter().map(|name| (name.as_str(), create())).collect();
        let sizes: Vec<usize> = turns(&state, many).iter().map(Vec::len).collect();
        assert_eq!(sizes, [TOGETHER, TOGETHER, 1]);
    }
}
