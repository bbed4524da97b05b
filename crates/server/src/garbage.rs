//! Garbage collection: an object goes when everything that owned it is gone.
//!
//! Owners are named in `metadata.ownerReferences`, by identity and not only by name. How an owner
//! is deleted decides what happens to its dependents: in the *background* they go after it; in the
//! *foreground* it waits, with a finalizer, until those that block it are gone; as *orphans* they
//! are let go of first, and stay.
//!
//! A [`Web`] of who owns whom is kept from the watches of all kinds, so that a deletion costs work
//! for its dependents only. It is never trusted: before anything is deleted the object and its
//! owners are read again, and the deletion names the identity and version that were judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use mainstay_controller::queue::{Limits, Queue, Verdict};
use mainstay_store::cache::Watch;
use mainstay_store::meta::{ObjectMeta, OwnerReference};
use mainstay_store::object::{Action, Event, Key, Record};
use mainstay_store::objects::{self, At};
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Resources, WriteOptions};
use mainstay_store::status::{Error, Reason};
use mainstay_store::strategy::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};

/// How many objects are worked on at once.
const WORKERS: usize = 8;
/// How often a lost cause is looked at again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Owners and their dependents.
#[derive(Debug, Default)]
struct Web {
    /// Dependents by the identity of an owner.
    dependents: BTreeMap<String, BTreeSet<Key>>,
    /// The identities a dependent names as owners.
    owners: BTreeMap<Key, Vec<String>>,
}

impl Web {
    fn note(&mut self, key: &Key, owners: Vec<String>) {
        self.forget(key);
        for owner in &owners {
            self.dependents.entry(owner.clone()).or_default().insert(key.clone());
        }
        if !owners.is_empty() {
            self.owners.insert(key.clone(), owners);
        }
    }

    fn forget(&mut self, key: &Key) {
        for owner in self.owners.remove(key).unwrap_or_default() {
            if let Some(dependents) = self.dependents.get_mut(&owner) {
                dependents.remove(key);
                if dependents.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    fn dependents(&self, owner: &str) -> Vec<Key> {
        self.dependents.get(owner).into_iter().flatten().cloned().collect()
    }
}

/// The state of an owner that an object names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// There, or not ours to know.
    Present,
    /// There, but waiting for its dependents to go.
    Leaving,
    /// Gone: nothing has that name, or something else has.
    Absent,
}

/// The action for a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judgement {
    Keep,
    /// It has other owners: only these references go.
    LetGo(Vec<String>),
    Delete(Propagation),
}

/// Decides about an object from the state of each of its owners.
fn judge(owners: &[(String, Owner)], finalizers: &[String], has_dependents: bool) -> Judgement {
    let gone = |owner: &&(String, Owner)| owner.1 != Owner::Present;
    let lost: Vec<String> = owners.iter().filter(gone).map(|(uid, _)| uid.clone()).collect();
    if lost.is_empty() {
        return Judgement::Keep;
    }
    if lost.len() < owners.len() {
        return Judgement::LetGo(lost);
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let waited_for = owners.iter().any(|(_, owner)| *owner == Owner::Leaving);
    Judgement::Delete(match () {
        () if has(ORPHAN) => Propagation::Orphan,
        () if has(FOREGROUND) || (waited_for && has_dependents) => Propagation::Foreground,
        () => Propagation::Background,
    })
}

#[derive(Debug, Deserialize)]
struct Head {
    #[serde(default)]
    metadata: ObjectMeta,
}

fn head(record: &Record) -> ObjectMeta {
    serde_json::from_slice::<Head>(record.json()).map(|head| head.metadata).unwrap_or_default()
}

/// Whether an object can concern the collector at all; cheaper than reading it.
fn may_matter(record: &Record) -> bool {
    let contains = |needle: &str| memchr::memmem::find(record.json(), needle.as_bytes()).is_some();
    contains("\"ownerReferences\"") || contains(FOREGROUND) || contains(&format!("\"{ORPHAN}\""))
}

/// Collects garbage until the store closes.
pub(crate) async fn run(resources: &Resources) -> Result<(), Error> {
    let queue = Queue::new("garbage", Limits::default(), resources.clock().clone());
    let collector =
        Collector { resources: resources.clone(), queue, web: Mutex::new(Web::default()) };
    let workers = join_all((0..WORKERS).map(|_| collector.work()));
    tokio::select! {
        outcome = collector.follow() => outcome,
        _ = workers => Ok(()),
    }
}

struct Collector {
    resources: Resources,
    queue: Queue<Key>,
    web: Mutex<Web>,
}

impl Collector {
    fn web(&self) -> parking_lot::MutexGuard<'_, Web> {
        self.web.lock()
    }

    /// Keeps the web, and queues what a change may have orphaned.
    async fn follow(&self) -> Result<(), Error> {
        let mut changes = FuturesUnordered::new();
        let kinds: Vec<Arc<Kind>> = self.resources.registry().iter().cloned().collect();
        for kind in kinds {
            let all = self.resources.list(&kind, At::Latest).await?;
            for record in all.range(None, None).filter(|record| may_matter(record)) {
                self.notice(record);
            }
            let watch = self.resources.watch(&kind, None, None, all.revision()).await?;
            changes.push(next(watch));
        }
        while let Some((watch, events)) = changes.next().await {
            match events {
                Ok(events) => events.iter().for_each(|event| self.saw(event)),
                Err(objects::Error::Closed) => return Ok(()),
                // Too slow: the housekeeper begins again with a list.
                Err(error) => return Err(error.into()),
            }
            changes.push(next(watch));
        }
        Ok(())
    }

    fn notice(&self, record: &Record) {
        let metadata = head(record);
        let owners = metadata.owner_references.iter().map(|owner| owner.uid.clone()).collect();
        self.web().note(record.key(), owners);
        self.queue.add(record.key().clone());
    }

    fn saw(&self, event: &Event) {
        let mattered = event.previous.as_ref().is_some_and(|previous| may_matter(previous));
        if event.action != Action::Deleted {
            if mattered || may_matter(&event.record) {
                self.notice(&event.record);
            }
            return;
        }
        if mattered {
            // Its owners may have waited for it.
            for owner in head(&event.record).owner_references {
                if let Some(key) = self.owner_key(event.record.key(), &owner) {
                    self.queue.add(key);
                }
            }
        }
        let mut web = self.web();
        web.forget(event.record.key());
        if !web.dependents.is_empty() {
            for dependent in web.dependents(&head(&event.record).uid) {
                self.queue.add(dependent);
            }
        }
    }

    fn owner_key(&self, dependent: &Key, owner: &OwnerReference) -> Option<Key> {
        let kind = self.resources.registry().by_kind(&owner.api_version, &owner.kind)?;
        let namespace = match (kind.namespaced, dependent.namespace()) {
            (true, None) => return None,
            (true, namespace) => namespace,
            (false, _) => None,
        };
        Some(kind.key(namespace, &owner.name))
    }

    async fn work(&self) {
        loop {
            let work = self.queue.take().await;
            let verdict = match self.look_at(work.key()).await {
                Ok(verdict) => verdict,
                Err(error) if matches!(error.reason, Reason::NotFound | Reason::Conflict) => {
                    Verdict::Retry
                }
                Err(error) => {
                    tracing::warn!(object = %work.key(), %error, "collecting garbage failed; retrying");
                    Verdict::Retry
                }
            };
            work.finish(verdict);
        }
    }

    async fn look_at(&self, key: &Key) -> Result<Verdict, Error> {
        let Some(kind) = self.resources.registry().by_resource(key.resource()).cloned() else {
            return Ok(Verdict::Done);
        };
        let Some(record) = self.resources.objects().get(key).await? else {
            return Ok(Verdict::Done);
        };
        let metadata = head(&record);
        let leaving = metadata.deletion_timestamp.is_some();
        let has = |name: &str| metadata.finalizers.iter().any(|finalizer| finalizer == name);
        if leaving && has(ORPHAN) {
            self.let_dependents_go(&kind, key, &metadata.uid).await?;
            return Ok(Verdict::Done);
        }
        if leaving && has(FOREGROUND) {
            return self.wait_for_dependents(&kind, key, &metadata.uid).await;
        }
        if leaving || metadata.owner_references.is_empty() {
            return Ok(Verdict::Done);
        }
        let mut owners = Vec::new();
        for owner in &metadata.owner_references {
            owners.push((owner.uid.clone(), self.state_of(key, owner).await?));
        }
        let has_dependents = !self.web().dependents(&metadata.uid).is_empty();
        match judge(&owners, &metadata.finalizers, has_dependents) {
            Judgement::Keep => {}
            Judgement::LetGo(lost) => self.drop_references(&kind, key, &lost).await?,
            Judgement::Delete(propagation) => {
                let delete = DeleteOptions {
                    uid: Some(metadata.uid.clone()),
                    resource_version: Some(record.revision().to_string()),
                    propagation: Some(propagation),
                    ..DeleteOptions::default()
                };
                let options = WriteOptions::default();
                match self.resources.delete(&kind, key, &delete, &options).await {
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                    Ok(_) => {}
                }
            }
        }
        Ok(Verdict::Done)
    }

    async fn state_of(&self, dependent: &Key, owner: &OwnerReference) -> Result<Owner, Error> {
        let Some(key) = self.owner_key(dependent, owner) else { return Ok(Owner::Present) };
        let Some(record) = self.resources.objects().get(&key).await? else {
            return Ok(Owner::Absent);
        };
        let metadata = head(&record);
        if metadata.uid != owner.uid {
            return Ok(Owner::Absent);
        }
        let waits = metadata.finalizers.iter().any(|finalizer| finalizer == FOREGROUND);
        let leaving = metadata.deletion_timestamp.is_some() && waits;
        Ok(if leaving { Owner::Leaving } else { Owner::Present })
    }

    /// Lets an owner go once nothing blocks it any more, and sees to what still does.
    async fn wait_for_dependents(
        &self,
        kind: &Kind,
        key: &Key,
        uid: &str,
    ) -> Result<Verdict, Error> {
        let mut blocked = false;
        let dependents = self.web().dependents(uid);
        for dependent in dependents {
            let Some(record) = self.resources.objects().get(&dependent).await? else { continue };
            let blocks = |owner: &OwnerReference| {
                owner.uid == uid && owner.block_owner_deletion == Some(true)
            };
            blocked |= head(&record).owner_references.iter().any(blocks);
            self.queue.add(dependent);
        }
        if blocked {
            return Ok(Verdict::After(PATIENCE));
        }
        self.drop_finalizer(kind, key, FOREGROUND).await?;
        Ok(Verdict::Done)
    }

    async fn let_dependents_go(&self, kind: &Kind, key: &Key, uid: &str) -> Result<(), Error> {
        let dependents = self.web().dependents(uid);
        for dependent in dependents {
            if let Some(kind) = self.resources.registry().by_resource(dependent.resource()) {
                self.drop_references(kind, &dependent, &[uid.to_owned()]).await?;
            }
        }
        self.drop_finalizer(kind, key, ORPHAN).await
    }

    async fn drop_references(&self, kind: &Kind, key: &Key, lost: &[String]) -> Result<(), Error> {
        let is_lost = |owner: &Value| {
            let uid = owner.get("uid").and_then(Value::as_str);
            uid.is_some_and(|uid| lost.iter().any(|lost| lost == uid))
        };
        self.edit_list(kind, key, "ownerReferences", is_lost).await
    }

    async fn drop_finalizer(&self, kind: &Kind, key: &Key, name: &str) -> Result<(), Error> {
        self.edit_list(kind, key, "finalizers", |finalizer| finalizer == name).await
    }

    /// Takes the items that match out of a list in the metadata of an object.
    async fn edit_list(
        &self,
        kind: &Kind,
        key: &Key,
        list: &str,
        goes: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Result<(), Error> {
        let edit = |old: &Map<String, Value>| {
            let mut new = old.clone();
            let items = new.get_mut("metadata").and_then(|metadata| metadata.get_mut(list));
            if let Some(items) = items.and_then(Value::as_array_mut) {
                items.retain(|item| !goes(item));
            }
            Ok(new)
        };
        match self.resources.modify(kind, key, None, &WriteOptions::default(), edit).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Waits for the next changes and gives the watch back with them.
async fn next(mut watch: Watch) -> (Watch, Result<Vec<Arc<Event>>, objects::Error>) {
    let events = watch.next().await;
    (watch, events)
}

#[cfg(test)]
mod tests;
