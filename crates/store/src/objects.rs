//! The trait that every backend implements, with its errors and arguments.
//!
//! An engine may ask for no more than this: one object compared and swapped at a time, a collection
//! at a revision, and a watch from a revision. Invariants of every backend:
//!
//! * A write is durable before it is acknowledged, and is either whole or absent.
//! * Revisions only grow, across crashes too. Each change has its own.
//! * A watch sees every change of its scope after its starting revision exactly once, in order.
//! * History that is no longer kept is an error ([`Error::Expired`]), never silence.
//! * A watcher that falls behind is cut off; it never holds up a writer.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::cache::{Collection, Watch};
use crate::object::{Body, Event, Key, Record, Resource, Revision};
use crate::remote::Remote;
use crate::select::Selection;
use crate::snapshot::{Medium, Snapshot};
use crate::status::Reason;

/// Why the store refused a request. No object was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// There is such an object already. Do not retry.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The object in the way.
        key: Key,
    },
    /// There is no such object. Do not retry.
    #[error("{key} not found")]
    NotFound {
        /// The missing object.
        key: Key,
    },
    /// The object is not at the revision the caller saw. Read again, decide again, then retry.
    #[error("{key} is at revision {actual}, not {expected}")]
    Conflict {
        /// The contested object.
        key: Key,
        /// The revision that the caller expected.
        expected: Revision,
        /// Where the object is.
        actual: Revision,
    },
    /// The lease this writer holds was taken over. Do not retry: the writer no longer holds the
    /// lease.
    #[error("lease \"{lease}\" was taken over: token {token} is no longer valid")]
    Fenced {
        /// The lease.
        lease: String,
        /// The token that no longer holds.
        token: Revision,
    },
    /// The history at that revision is no longer kept. List again.
    #[error("revision {requested} is too old: history begins at {oldest}")]
    Expired {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can still be had.
        oldest: Revision,
    },
    /// That revision does not exist yet. Retry a little later.
    #[error("revision {requested} is too new: the store is at {current}")]
    TooNew {
        /// The requested revision.
        requested: Revision,
        /// Where the store is.
        current: Revision,
    },
    /// The object is larger than the store takes. Do not retry.
    #[error("{key} takes {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// The object.
        key: Key,
        /// Its size.
        size: usize,
        /// The largest size that is accepted.
        limit: usize,
    },
    /// More writes are waiting than the store can take. Retry a little later.
    #[error("the store is overloaded: {waiting} writes are waiting")]
    Busy {
        /// How many are waiting.
        waiting: usize,
    },
    /// The medium failed (full disk, lost connection). Retry once it is mended.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// The error of the medium.
        reason: String,
    },
    /// The disk is full: only deletions are taken. Retry once there is space.
    #[error("{reason}")]
    Full {
        /// Which disk, how much is missing, and what to do.
        reason: String,
    },
    /// The request is not allowed, or not valid. Do not retry.
    #[error("{message}")]
    Refused {
        /// The class of the refusal.
        reason: Reason,
        /// The message of the refusal.
        message: String,
    },
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// Proof of holding a lease: the write is refused once another holder took the lease over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The object whose revision is the token. It changes only when the lease changes hands.
    pub key: Key,
    /// The revision it must still have.
    pub token: Revision,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Change {
    /// Create it; it must not exist.
    Create(Body),
    /// Replace it; it must be at this revision.
    Update(Revision, Body),
    /// Remove it; it must be at this revision.
    Delete(Revision),
}

/// One write of one object.
#[derive(Clone, Debug)]
pub struct Write {
    /// The object.
    pub key: Key,
    /// The change.
    pub change: Change,
    /// The lease under which it is done, if any.
    pub fence: Option<Fence>,
}

/// Which state of a collection is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The newest one: it holds every write acknowledged before the call.
    Latest,
    /// The newest one, which must be at least this.
    NotOlderThan(Revision),
    /// Exactly this one.
    Exactly(Revision),
}

/// Which objects of a collection are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The collection.
    pub resource: Resource,
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only this name.
    pub name: Option<String>,
    /// Only objects with these labels and fields.
    pub selection: Selection,
}

impl Scope {
    /// The whole collection.
    #[must_use]
    pub fn all(resource: &Resource) -> Self {
        let selection = Selection::default();
        Self { resource: resource.clone(), namespace: None, name: None, selection }
    }

    /// Whether an object with this key can be in the scope: its namespace and name are. Labels and
    /// fields are not looked at.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| key.namespace() == Some(namespace))
            && self.name.as_deref().is_none_or(|name| key.name() == name)
    }
}

/// Versioned objects: the store as everything above it sees it.
pub trait Objects: Send + Sync + std::fmt::Debug {
    /// Commits one change, and returns it as watchers will see it.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>>;

    /// One object as it is now.
    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>>;

    /// An immutable view of one collection.
    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>>;

    /// The objects of `scope` as they are now, and no others. A backend that copies its objects from a
    /// server asks the server for these only.
    fn select(&self, scope: &Scope) -> BoxFuture<'_, Result<Collection, Error>> {
        let scope = scope.clone();
        Box::pin(async move {
            let all = self.collection(&scope.resource, At::Latest).await?;
            Ok(all.narrowed(&scope))
        })
    }

    /// Every change of `scope` after `from`. An object that begins to match the selection of the
    /// scope is added, and one that no longer matches it is deleted.
    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>>;

    /// The newest revision of the history `resource` belongs to.
    fn revision(&self, resource: &Resource) -> Revision;

    /// Forgets history up to and including `through`. Objects stay; watches from before expire.
    /// Calling it again with the same or an older revision does nothing.
    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>>;

    /// Everything that is kept, as it is now: it holds every write acknowledged before the call.
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>>;

    /// Raises the revision to at least `to` and forgets the history before it, so that versions
    /// another store handed out are recognised as gone. A medium that counts by itself (etcd)
    /// leaves everything as it is. Calling it again does nothing.
    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>>;

    /// The medium that holds the objects.
    fn medium(&self) -> Medium;

    /// Reads the medium itself, not the copy in memory, and returns every problem, one sentence
    /// each.
    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;

    /// Whether reads and writes can be expected to work now, asked of the medium itself within a
    /// second or two; an error says why not. Cheap enough to be asked every second.
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stores a new data key and starts to re-encrypt every value with it; returns the key's id.
    /// Calling it again before that is finished is refused.
    fn rekey(&self) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(std::future::ready(Err(crate::seal::not_encrypted())))
    }

    /// Everything that can be read, without the objects whose stored value is damaged: for checks.
    fn readable(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.snapshot()
    }

    /// How many values the medium holds encrypted while no data key is in use: those that are left
    /// while encryption is being turned off. Reads everything.
    fn values_left(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// The remote server that keeps the objects and checks writes; `None` if they are kept here.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }

    /// Finishes what was accepted and refuses the rest. Calling it again does nothing.
    fn close(&self) -> BoxFuture<'_, ()>;
}
