//! What uses disks: where a provisioned disk is registered, and emptied before it is taken back.
//!
//! The agent implements [`Backend`] with LVMVolumeGroup objects; tests have one in memory. Every
//! call may be made twice: the second changes nothing.

use std::fmt::Debug;

use futures_util::future::BoxFuture;

use crate::host::{Place, Space};
use crate::phase::Record;

/// A provisioned disk, as what uses disks knows it.
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
    pub unready: Option<String>,
}

/// What is known of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// How it is registered.
    pub record: Record,
    /// It is closed for new replicas.
    pub closed: bool,
    /// It is said to take replicas.
    pub ready: bool,
    /// The replicas that are there, by name.
    pub replicas: Vec<String>,
}

/// Why the backend did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else was faster. Read again and retry.
    #[error("somebody else changed the record meanwhile")]
    Conflict,
    /// The node is not known.
    #[error("the node is not known")]
    NoNode,
    /// It cannot be reached. Retry later.
    #[error("{0}")]
    Unavailable(String),
    /// It refused. Do not retry.
    #[error("{0}")]
    Refused(String),
}

/// What uses disks.
pub trait Backend: Debug + Send + Sync + 'static {
    /// What is known of a pool.
    fn look<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Known, Error>>;

    /// Registers a pool, or brings its record up to date.
    fn register<'a>(&'a self, pool: &'a Pool, space: Space) -> BoxFuture<'a, Result<(), Error>>;

    /// Asks for a pool to be emptied: it takes no new replicas, and those on it are moved elsewhere.
    fn evict<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), Error>>;

    /// Waits until something about a pool may have changed.
    fn changed<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, ()>;

    /// Removes the record of a pool; refuses while replicas are there, naming them, unless the disk
    /// is lost.
    fn remove<'a>(&'a self, pool: &'a Pool, lost: bool) -> BoxFuture<'a, Result<(), Error>>;
}
