//! The user of provisioned disks: registers them as pools, and empties them before they are removed.
//!
//! The agent implements [`Backend`] with LVMVolumeGroup objects; [`MemoryBackend`] is for tests. Every
//! call may be made twice: the second changes nothing.

mod memory;

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use mainstay_host::{Place, Space};

pub use self::memory::MemoryBackend;
use crate::phase::Record;

/// A provisioned disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The BlockDevice.
    pub device: String,
    /// The node that has it.
    pub node: String,
    /// Where its space is.
    pub place: Place,
    /// Its tags.
    pub tags: Vec<String>,
    /// Why it takes no replicas; `None` if it does.
    pub unready: Option<Unready>,
}

/// Why a pool takes no replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// In one word, for conditions.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

/// The record of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// How it is registered.
    pub record: Record,
    /// It is closed for new replicas.
    pub closed: bool,
    /// It takes replicas.
    pub ready: bool,
    /// The names of its replicas.
    pub replicas: Vec<String>,
}

/// Why a call of the backend failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The record changed since it was read. Read again and retry.
    #[error("the record of the pool changed meanwhile")]
    Conflict,
    /// The Node object does not exist.
    #[error("the Node object does not exist")]
    NoNode,
    /// It cannot be reached. Retry later.
    #[error("{0}")]
    Unavailable(String),
    /// It refused. Do not retry.
    #[error("{0}")]
    Refused(String),
}

/// The user of provisioned disks.
pub trait Backend: Debug + Send + Sync + 'static {
    /// The record of a pool.
    fn look<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Known, Error>>;

    /// Registers a pool, or updates its record.
    fn register<'a>(&'a self, pool: &'a Pool, space: Space) -> BoxFuture<'a, Result<(), Error>>;

    /// Reports that a pool takes no replicas, for the reason in [`Pool::unready`]. Changes nothing else,
    /// and creates no record.
    fn report_unready<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), Error>>;

    /// Asks for a pool to be emptied: it takes no new replicas, and those on it are moved elsewhere.
    fn evict<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), Error>>;

    /// Waits until a pool may have changed.
    fn changed<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, ()>;

    /// Removes the record of a pool; refuses while replicas are there, naming them, unless the disk
    /// is lost.
    fn remove<'a>(&'a self, pool: &'a Pool, lost: bool) -> BoxFuture<'a, Result<(), Error>>;
}
