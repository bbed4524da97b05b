//! Lists: pages of a collection at one revision, however much is written meanwhile.
//!
//! The first page fixes the revision; its snapshot is kept for those who come back for more, so
//! that a page costs its own objects and nothing else. Snapshots are persistent maps that share
//! what did not change: keeping one costs what was written since, and that is what bounds them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use mainstay_store::cache::Collection;
use mainstay_store::object::{Key, Record, Resource, Revision};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::select::Selection;
use mainstay_store::status::{Error, Reason, Violation};
use parking_lot::Mutex;
use serde_json::Value;

use crate::answers::Room;
use crate::cursor::Cursor;
use crate::negotiate::Form;
use crate::query::{Query, number};
use crate::render;
use crate::reply::{self, Body, Reply};
use crate::service::App;
use crate::write::invalid_options;

/// How many objects are looked at before others get a turn.
const TURN: usize = 512;
/// The largest collection that is answered in one piece when no limit is given.
const ONE_PIECE: usize = 2_000;
/// About how large the pieces of larger ones are, in bytes.
const PIECE: usize = 128 << 10;

/// Snapshots behind continue tokens.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    kept: Mutex<VecDeque<Snapshot>>,
}

#[derive(Debug)]
struct Snapshot {
    resource: Resource,
    collection: Collection,
    at: Duration,
}

impl Snapshots {
    const COUNT: usize = 64;
    const AGE: Duration = Duration::from_secs(300);
    /// How many changes a snapshot may be behind: each keeps about an object alive.
    const CHANGES: u64 = 50_000;

    fn keep(&self, resource: &Resource, collection: &Collection, now: Duration) {
        let mut kept = self.kept.lock();
        let revision = collection.revision();
        kept.retain(|old| {
            let same = old.resource == *resource;
            // Revisions are no measure: on etcd they leave gaps.
            let behind = collection.changes().saturating_sub(old.collection.changes());
            now.saturating_sub(old.at) <= Self::AGE
                && !(same && (old.collection.revision() == revision || behind > Self::CHANGES))
        });
        if kept.len() == Self::COUNT {
            kept.pop_front();
        }
        let (resource, collection) = (resource.clone(), collection.clone());
        kept.push_back(Snapshot { resource, collection, at: now });
    }

    fn find(&self, resource: &Resource, revision: Revision, now: Duration) -> Option<Collection> {
        let kept = self.kept.lock();
        let found = kept
            .iter()
            .find(|kept| kept.resource == *resource && kept.collection.revision() == revision)?;
        (now.saturating_sub(found.at) <= Self::AGE).then(|| found.collection.clone())
    }
}

/// The selectors of a request.
///
/// # Errors
/// 400 if one cannot be read.
pub(crate) fn selection(kind: &Kind, query: &Query<'_>) -> Result<Selection, Error> {
    let labels = query.label_selector.as_deref().unwrap_or_default();
    let fields = query.field_selector.as_deref().unwrap_or_default();
    Ok(Selection::parse(kind, labels, fields)?)
}

/// Which state of a collection a list asks for.
///
/// # Errors
/// 400 or 422 in Kubernetes' words if the parameters contradict each other.
pub(crate) fn state_wanted(query: &Query<'_>, limit: usize) -> Result<At, Error> {
    let version = query.resource_version.as_deref();
    let mut violations = Vec::new();
    let mut forbid = |field: &str, why: &str| violations.push(Violation::forbidden(field, why));
    const MATCH: &str = "resourceVersionMatch";
    if query.send_initial_events.is_some() {
        forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if let Some(rule) = query.resource_version_match.as_deref() {
        if version.is_none() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            forbid(MATCH, why);
        }
        if query.continuation.is_some() {
            forbid(MATCH, "resourceVersionMatch is forbidden when continue is provided");
        }
        if rule == "Exact" && version == Some("0") {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            forbid(MATCH, why);
        }
        if !matches!(rule, "Exact" | "NotOlderThan") {
            let known = ["Exact", "NotOlderThan", ""];
            violations.push(Violation::not_supported(MATCH, &Value::from(rule), &known));
        }
    }
    if !violations.is_empty() {
        return Err(invalid_options("ListOptions", violations));
    }
    let Some(version) = version else {
        return Ok(At::Latest);
    };
    let revision = parse_version(version)?;
    if query.continuation.is_some() && revision != Revision::ZERO {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Error::bad_request(message));
    }
    Ok(match query.resource_version_match.as_deref() {
        _ if revision == Revision::ZERO => At::Latest,
        Some("Exact") => At::Exactly(revision),
        // Pages from before there was a choice: the first page shows exactly what was asked for.
        None if limit > 0 => At::Exactly(revision),
        _ => At::NotOlderThan(revision),
    })
}

/// The revision a client names.
///
/// # Errors
/// 400 if it is none.
pub(crate) fn parse_version(version: &str) -> Result<Revision, Error> {
    version.parse().map_err(|_| {
        let version = Value::from(version);
        let violation =
            Violation::invalid("resourceVersion", &version, "must be a version the server gave");
        Error::bad_request(violation.to_string())
    })
}

/// The objects of a collection that a filter lets through, at most `limit`; and whether there are
/// more. Gives others a turn now and then.
pub(crate) async fn scan(
    collection: &Collection,
    namespace: Option<&str>,
    after: Option<&str>,
    filter: &Selection,
    limit: usize,
) -> (Vec<Arc<Record>>, bool) {
    if let (Some(name), None) = (filter.name(), after)
        && let Some(first) = one(collection, namespace, name)
    {
        let found = first.filter(|record| filter.matches(record));
        return (found.into_iter().cloned().collect(), false);
    }
    let mut found: Vec<Arc<Record>> = Vec::with_capacity(limit.min(collection.len()).min(1024));
    let mut after = after.map(str::to_owned);
    loop {
        let mut looked = 0;
        for record in collection.range(namespace, after.as_deref()).take(TURN) {
            looked += 1;
            if filter.matches(record) {
                if found.len() == limit {
                    return (found, true);
                }
                found.push(record.clone());
            }
            if looked == TURN {
                after = Some(record.key().path().to_owned());
                break;
            }
        }
        if looked < TURN {
            return (found, false);
        }
        tokio::task::yield_now().await;
    }
}

/// The object of that name, if a name is all it takes; `None` if there may be one in every
/// namespace.
fn one<'a>(
    collection: &'a Collection,
    namespace: Option<&str>,
    name: &str,
) -> Option<Option<&'a Arc<Record>>> {
    let any = collection.range(None, None).next();
    let namespaced = any.is_some_and(|record| record.key().namespace().is_some());
    match (any, namespace) {
        (Some(_), None) if namespaced => None,
        (None, _) => Some(None),
        (Some(any), namespace) => {
            let key = Key::new(any.key().resource(), namespace, name);
            Some(collection.get(&key))
        }
    }
}

/// Answers a list.
pub(crate) async fn list(
    app: &App,
    kind: &Arc<Kind>,
    namespace: Option<&str>,
    query: &Query<'_>,
    form: Form,
    room: Room<'_>,
) -> Result<Reply, Error> {
    let limit = number::<usize>("limit", query.limit.as_deref())?.unwrap_or(0);
    let at = state_wanted(query, limit)?;
    let filter = selection(kind, query)?;
    let cursor = match query.continuation.as_deref() {
        Some(token) => Some(app.seal.open(token, kind.resource(), namespace)?),
        None => None,
    };
    let whole = match collection(app, kind, at, cursor.as_ref()).await {
        Err(error) if error.reason == Reason::Expired => {
            let Some(cursor) = cursor else {
                return Err(error);
            };
            return Ok(expired(app, kind, namespace, &cursor));
        }
        other => other?,
    };
    let fields = query.field_selector.as_deref();
    let own = app.owners.narrow(&app.resources, kind, fields, &whole).await;
    let collection = own.unwrap_or_else(|| whole.clone());
    if limit == 0 && collection.len() > ONE_PIECE && form == Form::Plain {
        let after = cursor.map(|cursor| cursor.after);
        return Ok(in_pieces(kind, collection, namespace, after, filter));
    }
    let after = cursor.as_ref().map(|cursor| cursor.after.as_str());
    let most = if limit == 0 { usize::MAX } else { limit };
    let (records, more) = scan(&collection, namespace, after, &filter, most).await;
    // Tables are about as large as the objects they show.
    let size = records.iter().map(|record| record.json().len()).sum();
    let place = room.take(size)?;
    let revision = collection.revision();
    let (mut token, mut remaining) = (None, None);
    if let (true, Some(last)) = (more, records.last()) {
        let last = last.key().path();
        if filter.is_everything() {
            let known = cursor.as_ref().and_then(|cursor| cursor.remaining);
            remaining = Some(match (known, namespace) {
                (Some(known), _) => known.saturating_sub(records.len()),
                (None, None) if cursor.is_none() => collection.len() - records.len(),
                (None, _) => collection.range(namespace, Some(last)).count(),
            });
        }
        app.snapshots.keep(kind.resource(), &whole, app.clock.elapsed());
        let next = Cursor::new(Some(revision), last, remaining, kind.resource(), namespace);
        token = Some(app.seal.token(&next));
    }
    let now = app.clock.now();
    let body = match form {
        Form::Plain => {
            let head = render::list_head(kind, revision, token.as_deref(), remaining);
            Bytes::from(render::plain_list(head, &records))
        }
        _ => {
            let page = render::Page { revision, token, remaining };
            render::list(kind, &records, &page, form, query, now).await?
        }
    };
    let mut body = Body::whole(body);
    body.room = place;
    Ok(reply::json(StatusCode::OK, body))
}

async fn collection(
    app: &App,
    kind: &Kind,
    at: At,
    cursor: Option<&Cursor>,
) -> Result<Collection, Error> {
    let at = match cursor.map(Cursor::revision) {
        Some(Some(revision)) => {
            let now = app.clock.elapsed();
            if let Some(kept) = app.snapshots.find(kind.resource(), revision, now) {
                return Ok(kept);
            }
            At::Exactly(revision)
        }
        Some(None) => At::Latest,
        None => at,
    };
    app.resources.list(kind, at).await
}

/// The answer to a continue token whose snapshot is gone: with a token to go on inconsistently.
fn expired(app: &App, kind: &Kind, namespace: Option<&str>, cursor: &Cursor) -> Reply {
    const MESSAGE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
    let next = Cursor::new(None, &cursor.after, None, kind.resource(), namespace);
    let mut body = reply::status(&Error::new(Reason::Expired, MESSAGE));
    body["metadata"]["continue"] = app.seal.token(&next).into();
    reply::value(StatusCode::GONE, &body)
}

/// A whole collection, made while it is sent.
fn in_pieces(
    kind: &Kind,
    collection: Collection,
    namespace: Option<&str>,
    after: Option<String>,
    filter: Selection,
) -> Reply {
    let head = render::list_head(kind, collection.revision(), None, None);
    let pieces = Pieces {
        collection,
        namespace: namespace.map(str::to_owned),
        after,
        filter,
        buffer: head,
        first: true,
        done: false,
    };
    let pieces = stream::unfold(Box::new(pieces), async |mut pieces| {
        pieces.next().await.map(|piece| (piece, pieces))
    });
    reply::json(StatusCode::OK, Body::stream(pieces))
}

struct Pieces {
    collection: Collection,
    namespace: Option<String>,
    after: Option<String>,
    filter: Selection,
    buffer: Vec<u8>,
    first: bool,
    done: bool,
}

impl Pieces {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.done {
            let mut looked = 0;
            let mut last = None;
            let range = self.collection.range(self.namespace.as_deref(), self.after.as_deref());
            for record in range.take(TURN) {
                looked += 1;
                last = Some(record);
                if self.filter.matches(record) {
                    if !std::mem::replace(&mut self.first, false) {
                        self.buffer.push(b',');
                    }
                    self.buffer.extend_from_slice(record.json());
                }
                if self.buffer.len() >= PIECE {
                    break;
                }
            }
            let full = self.buffer.len() >= PIECE;
            self.done = looked < TURN && !full;
            self.after = last.map(|record| record.key().path().to_owned()).or(self.after.take());
            if self.done {
                self.buffer.extend_from_slice(b"]}");
            }
            if full || self.done {
                let next = Vec::with_capacity(if self.done { 0 } else { PIECE + 4096 });
                return Some(std::mem::replace(&mut self.buffer, next).into());
            }
            tokio::task::yield_now().await;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_a_list_shows_is_as_kubernetes_has_it() {
        let exactly = At::Exactly(Revision(7));
        let not_older = At::NotOlderThan(Revision(7));
        let cases = [
            ("", 0, Ok(At::Latest)),
            ("resourceVersion=", 0, Ok(At::Latest)),
            ("resourceVersion=0", 0, Ok(At::Latest)),
            ("resourceVersion=0", 5, Ok(At::Latest)),
            ("resourceVersion=7", 0, Ok(not_older)),
            ("resourceVersion=7", 5, Ok(exactly)),
            ("resourceVersion=7&resourceVersionMatch=Exact", 0, Ok(exactly)),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", 5, Ok(not_older)),
            ("resourceVersion=0&resourceVersionMatch=NotOlderThan", 0, Ok(At::Latest)),
            ("resourceVersion=0&continue=x", 5, Ok(At::Latest)),
            ("resourceVersion=x", 0, Err(Reason::BadRequest)),
            ("resourceVersion=-1", 0, Err(Reason::BadRequest)),
            ("resourceVersion=7&continue=x", 5, Err(Reason::BadRequest)),
            ("resourceVersionMatch=Exact", 0, Err(Reason::Invalid)),
            ("resourceVersion=0&resourceVersionMatch=Exact", 0, Err(Reason::Invalid)),
            ("resourceVersion=7&resourceVersionMatch=About", 0, Err(Reason::Invalid)),
            ("resourceVersion=7&resourceVersionMatch=Exact&continue=x", 0, Err(Reason::Invalid)),
            ("sendInitialEvents=true", 0, Err(Reason::Invalid)),
        ];
        for (text, limit, expected) in cases {
            let query = Query::parse(Some(text)).unwrap();
            let wanted = state_wanted(&query, limit).map_err(|error| error.reason);
            assert_eq!(wanted, expected, "{text} limit {limit}");
        }
    }

    #[test]
    fn snapshots_are_forgotten_by_age_number_and_distance() {
        let snapshots = Snapshots::default();
        let maps = Resource::new("", "configmaps");
        let at = |revision| Collection::new(Revision(revision), []);
        let start = Duration::ZERO;
        snapshots.keep(&maps, &at(1), start);
        assert!(snapshots.find(&maps, Revision(1), start).is_some());
        assert!(snapshots.find(&maps, Revision(2), start).is_none());
        assert!(snapshots.find(&Resource::new("", "nodes"), Revision(1), start).is_none());
        assert!(snapshots.find(&maps, Revision(1), Snapshots::AGE * 2).is_none());
        snapshots.keep(&maps, &at(2 + Snapshots::CHANGES), start);
        assert!(snapshots.find(&maps, Revision(1), start).is_none());
        for revision in 0..200 {
            snapshots.keep(&Resource::new("", &format!("r{revision}")), &at(1), start);
        }
        assert_eq!(snapshots.kept.lock().len(), Snapshots::COUNT);
    }
}
