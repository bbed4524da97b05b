//! Restores a backup into an empty store.
//!
//! Objects are written one by one, many at a time, so a restore can break off in the middle. A
//! marker shows that: it is made before the first object and removed after the last. A store that
//! has one is not to be served; the next restore empties it and begins again. The marker has the
//! name of the restore, which the next attempt uses again: by it, another engine recognises the
//! data that an earlier attempt left and that may be removed.
//!
//! Every write is fenced by the marker's revision, which each attempt moves. So an attempt that
//! still runs is stopped by the one that follows it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::check::INTERNAL;
use crate::object::{Body, Key, Record, Resource, Revision};
use crate::objects::{self, Change, Fence, Objects, Write};
use crate::resources::{Identities, RandomIdentities};
use crate::snapshot::{Medium, Snapshot};

use super::part::{PartError, Parts};
use super::read::{self, Entry, Source};
use super::{Error, Summary};

/// How many objects are read ahead of the store.
const AHEAD: usize = 1024;
/// How often a write is tried that the store may or may not have taken.
const TRIES: u32 = 5;
/// How long to wait before it is tried again, times the tries so far.
const PAUSE: Duration = Duration::from_millis(100);
/// How far beyond the backup's revision the store is moved on: more than could have been written
/// between the backup and the loss, so that no version that a client still has means another
/// change.
const BEYOND: u64 = 1 << 30;

fn marker() -> Key {
    Key::new(&Resource::new(INTERNAL, "restores"), None, "unfinished")
}

/// Whether a restore broke off in this store, which then must not be used.
///
/// # Errors
/// Errors of the store.
pub async fn unfinished(objects: &dyn Objects) -> Result<bool, objects::Error> {
    Ok(objects.get(&marker()).await?.is_some())
}

/// Whether a restore broke off in the store that this snapshot is of.
#[must_use]
pub fn unfinished_in(snapshot: &Snapshot) -> bool {
    let marker = marker();
    let mut collections = snapshot.collections.iter();
    collections
        .any(|(resource, objects)| resource == marker.resource() && objects.get(&marker).is_some())
}

/// Whether a restore may fill this store: it is empty, or a restore broke off in it, whose name is
/// returned. Changes nothing.
///
/// # Errors
/// [`Error::NotEmpty`], or errors of the store.
pub async fn may_take(objects: &dyn Objects) -> Result<Option<String>, Error> {
    match objects.get(&marker()).await? {
        Some(unfinished) => Ok(name_in(&unfinished)),
        None => must_be_empty(&objects.snapshot().await?).map(|()| None),
    }
}

/// The name of a restore; markers of older versions have none.
fn name_in(marker: &Record) -> Option<String> {
    Some(marker.object().get("name")?.as_str()?.to_owned())
}

/// Refuses every part.
struct NoParts;

impl Parts for NoParts {
    fn begin(&mut self, name: &str, _about: &Value) -> Result<(), PartError> {
        Err(PartError::Newer(format!("only objects are restored here, not {name}")))
    }

    fn line(&mut self, _line: &[u8]) -> Result<(), PartError> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), PartError> {
        Ok(())
    }
}

/// Restores the backup at `path`, which has objects only, into a store that is empty, or that an
/// unfinished restore left. The file is read twice: it is checked to its end before anything is
/// written.
///
/// # Errors
/// As [`restore_from`].
pub async fn restore(path: &Path, objects: Arc<dyn Objects>) -> Result<Summary, Error> {
    let source = Source::file(path);
    let checked = source.clone();
    let summary = blocking(move || read::check(&checked, &mut NoParts)).await?;
    restore_from(source, &summary, objects, Box::new(NoParts)).await
}

/// Restores a backup that [`super::check`] found whole and of this `summary`: objects into a store
/// that is empty, or that an unfinished restore left, and the rest into `parts`.
///
/// # Errors
/// [`Error`]. After [`Error::Store`], [`Error::Part`] and [`Error::Changed`] the store is left
/// marked as unfinished; after all others it is as it was.
pub async fn restore_from(
    source: Source,
    summary: &Summary,
    objects: Arc<dyn Objects>,
    parts: Box<dyn Parts>,
) -> Result<Summary, Error> {
    fill_from(source, summary, objects.clone(), parts).await?.complete(&*objects).await
}

/// A store and parts that are whole, while the store is still marked as unfinished.
#[derive(Debug)]
#[must_use]
pub struct Filled {
    summary: Summary,
    marker: Fence,
}

impl Filled {
    /// Removes the marker, so that the store may be used.
    ///
    /// # Errors
    /// [`Error::Store`]; the store is then left marked as unfinished.
    pub async fn complete(self, objects: &dyn Objects) -> Result<Summary, Error> {
        let change = Change::Delete(self.marker.token);
        settle(objects, Write { key: self.marker.key, change, fence: None }).await?;
        Ok(self.summary)
    }
}

/// As [`restore_from`], but leaves the store marked, for whatever is to be done before it is used.
///
/// # Errors
/// As [`restore_from`].
pub async fn fill_from(
    source: Source,
    summary: &Summary,
    objects: Arc<dyn Objects>,
    mut parts: Box<dyn Parts>,
) -> Result<Filled, Error> {
    let (fence, name) = begin(&*objects, RandomIdentities.uid()).await?;
    let mut parts = blocking(move || parts.prepare(&name).map(|()| parts).map_err(failed)).await?;
    clear(&*objects, &fence).await?;
    objects.advance(Revision(summary.head.revision.saturating_add(BEYOND))).await?;
    let (restored, filled) = fill(source, &*objects, &fence, parts).await?;
    parts = filled;
    if restored != *summary {
        return Err(Error::Changed);
    }
    blocking(move || parts.finish().map_err(failed)).await?;
    Ok(Filled { summary: restored, marker: fence })
}

fn failed(error: PartError) -> Error {
    Error::Part(error.to_string())
}

/// Marks the store as being restored, if it may be, and returns the name of the restore: that of
/// the one which broke off, or a fresh one.
async fn begin(objects: &dyn Objects, fresh: String) -> Result<(Fence, String), Error> {
    let key = marker();
    let earlier = objects.get(&key).await?;
    let name = earlier.as_deref().and_then(name_in).unwrap_or(fresh);
    let mut object = Map::new();
    object.insert("name".to_owned(), Value::from(&*name));
    let body = Body::new(&object);
    let change = match earlier {
        Some(unfinished) => Change::Update(unfinished.revision(), body),
        None => {
            must_be_empty(&objects.snapshot().await?)?;
            Change::Create(body)
        }
    };
    let event = objects.write(Write { key: key.clone(), change, fence: None }).await?;
    Ok((Fence { key, token: event.revision() }, name))
}

/// Whether a store holds nothing but what one run of a server leaves behind.
#[must_use]
pub fn is_untouched(snapshot: &Snapshot) -> bool {
    snapshot.collections.iter().all(|(resource, _)| is_trace(resource))
}

/// Objects that one run of a cluster leaves behind do not count.
fn must_be_empty(snapshot: &Snapshot) -> Result<(), Error> {
    let mut counted = snapshot.collections.iter().filter(|(resource, _)| !is_trace(resource));
    let Some((_, collection)) = counted.next() else { return Ok(()) };
    let Some(first) = collection.range(None, None).next() else { return Ok(()) };
    let rest: usize = counted.map(|(_, collection)| collection.len()).sum();
    Err(Error::NotEmpty { objects: collection.len() + rest, first: first.key().clone() })
}

fn is_trace(resource: &Resource) -> bool {
    super::is_left_out(resource) || *resource == Resource::new(INTERNAL, "epochs")
}

/// Removes everything but the marker and the records of the backend itself.
async fn clear(objects: &dyn Objects, fence: &Fence) -> Result<(), Error> {
    let snapshot = objects.snapshot().await?;
    let touched = ["ticks", "servers", "datakeys"].map(|plural| Resource::new(INTERNAL, plural));
    let records = snapshot
        .collections
        .iter()
        .filter(|(resource, _)| !touched.contains(resource) && resource != fence.key.resource())
        .flat_map(|(_, collection)| collection.range(None, None));
    let deletions = records.map(|record| {
        let (key, change) = (record.key().clone(), Change::Delete(record.revision()));
        Ok(Write { key, change, fence: Some(fence.clone()) })
    });
    let write = |write| settle(objects, write);
    Ok(stream::iter(deletions).try_for_each_concurrent(at_once(objects), write).await?)
}

/// Writes every object of the file, and hands its parts on.
async fn fill(
    source: Source,
    objects: &dyn Objects,
    fence: &Fence,
    mut parts: Box<dyn Parts>,
) -> Result<(Summary, Box<dyn Parts>), Error> {
    let (sender, mut entries) = mpsc::channel::<Entry>(AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        let mut reader = source.open()?;
        let send = |entry| sender.blocking_send(entry).is_ok();
        if !read::read_all(&mut reader, &mut *parts, send)? {
            // The store refused an object and takes no further ones.
            return Ok(None);
        }
        reader.finish().map(|summary| Some((summary, parts)))
    });
    let entries = stream::poll_fn(move |context| entries.poll_recv(context)).map(Ok);
    let write = |Entry { key, body }| {
        let (change, fence) = (Change::Create(body), Some(fence.clone()));
        settle(objects, Write { key, change, fence })
    };
    let written = entries.try_for_each_concurrent(at_once(objects), write).await;
    let read = joined(reading.await);
    written?;
    read?.ok_or(Error::Changed)
}

/// How many writes are under way at once: as many as one commit to a file takes, or as many as a
/// cluster answers in time.
fn at_once(objects: &dyn Objects) -> usize {
    if matches!(objects.medium(), Medium::Etcd(_)) { 128 } else { 1024 }
}

/// Writes until the outcome is known. There is no other writer here, so an effect of an earlier try
/// of unknown outcome is recognised as its own.
async fn settle(objects: &dyn Objects, write: Write) -> Result<(), objects::Error> {
    let mut tries = 0;
    loop {
        let outcome = objects.write(write.clone()).await;
        let again = tries > 0;
        tries += 1;
        match (outcome, &write.change) {
            (Err(objects::Error::AlreadyExists { .. }), Change::Create(_)) if again => {
                return Ok(());
            }
            (Err(objects::Error::NotFound { .. }), Change::Delete(_)) if again => return Ok(()),
            (Err(objects::Error::Unavailable { .. } | objects::Error::Busy { .. }), _)
                if tries < TRIES =>
            {
                tokio::time::sleep(PAUSE * tries).await;
            }
            (outcome, _) => return outcome.map(drop),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    joined(tokio::task::spawn_blocking(work).await)
}

fn joined<T>(outcome: Result<T, tokio::task::JoinError>) -> T {
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
