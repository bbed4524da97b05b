//! Two stores behind one trait: one durable, one in memory.
//!
//! Each collection belongs to one of them, decided by its kind; each has its own history. The
//! memory store's revisions carry an epoch that is counted in the durable one, so that no two
//! starts, on whichever server, ever share one.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use crate::cache::{Collection, Watch};
use crate::memory::MemoryStore;
use crate::object::{Body, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Objects, Scope, Write};
use crate::snapshot::{Medium, Snapshot};

/// A durable store with a memory store beside it.
#[derive(Debug)]
pub struct Tiered {
    durable: Arc<dyn Objects>,
    memory: MemoryStore,
    in_memory: BTreeSet<Resource>,
}

impl Tiered {
    /// Sends the collections of `in_memory` to `memory`, and all others to `durable`.
    #[must_use]
    pub fn new(
        durable: Arc<dyn Objects>,
        memory: MemoryStore,
        in_memory: impl IntoIterator<Item = Resource>,
    ) -> Self {
        Self { durable, memory, in_memory: in_memory.into_iter().collect() }
    }

    fn tier(&self, resource: &Resource) -> &dyn Objects {
        if self.in_memory.contains(resource) { &self.memory } else { &*self.durable }
    }
}

impl Objects for Tiered {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        let tier = self.tier(write.key.resource());
        // Leases live in the durable store, whatever is written under them.
        let fenced_from_memory =
            write.fence.is_some() && self.in_memory.contains(write.key.resource());
        if !fenced_from_memory {
            return tier.write(write);
        }
        async move {
            if let Some(fence) = &write.fence {
                let held = self.durable.get(&fence.key).await?;
                if held.is_none_or(|record| record.revision() != fence.token) {
                    let lease = fence.key.name().to_owned();
                    return Err(Error::Fenced { lease, token: fence.token });
                }
            }
            tier.write(Write { fence: None, ..write }).await
        }
        .boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        self.tier(key.resource()).get(key)
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        self.tier(resource).collection(resource, at)
    }

    fn select(&self, scope: &Scope) -> BoxFuture<'_, Result<Collection, Error>> {
        self.tier(&scope.resource).select(scope)
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.tier(&scope.resource).watch(scope, from)
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.tier(resource).revision(resource)
    }

    /// Compacts the durable history; the memory store bounds its own.
    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.durable.compact(through)
    }

    /// The durable objects; those in memory are rebuilt after a restart.
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.durable.snapshot()
    }

    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.durable.advance(to)
    }

    fn medium(&self) -> Medium {
        self.durable.medium()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.durable.verify()
    }

    fn rekey(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.durable.rekey()
    }

    fn readable(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.durable.readable()
    }

    fn values_left(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.durable.values_left()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.durable.ready()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            self.memory.close().await;
            self.durable.close().await;
        }
        .boxed()
    }
}

/// Counts one more start in `objects` and returns its number, which no other start has.
///
/// # Errors
/// Errors of the store.
pub async fn next_epoch(objects: &dyn Objects) -> Result<u64, Error> {
    let key = Key::new(&Resource::new("internal.mainstay.dev", "epochs"), None, "memory");
    loop {
        let current = objects.get(&key).await?;
        let last = current.as_ref().and_then(|record| record.object().get("epoch")?.as_u64());
        let epoch = last.unwrap_or(0) + 1;
        let mut object = Map::new();
        object.insert("epoch".into(), Value::from(epoch));
        let change = match current {
            Some(record) => Change::Update(record.revision(), Body::new(&object)),
            None => Change::Create(Body::new(&object)),
        };
        match objects.write(Write { key: key.clone(), change, fence: None }).await {
            Ok(_) => return Ok(epoch),
            Err(Error::Conflict { .. } | Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}
