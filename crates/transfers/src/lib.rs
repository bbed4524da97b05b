//! Transfers: moves files between storage elements and verifies that they arrived.
//!
//! A [`worker`] takes jobs with a lease from a [`worker::Queue`]: a catalog in the same process, or
//! a server over HTTP ([`remote_queue`]). Which requests go first is decided by shares of activities,
//! priorities and limits, and the source by distance and load ([`choose`], pure). It moves each
//! file ([`copy`]) through the protocols of the two storage elements ([`store`]) to a temporary
//! name, reads back what arrived, compares checksums and only then gives the file its name. A worker
//! that dies loses its leases; the next worker finds what is there already.
//!
//! This crate knows no SQL, so that a process without a catalog can move files.

pub mod allowed;
pub mod choose;
pub mod copy;
pub mod credential;
pub mod did;
pub mod folder;
mod lease;
mod listed;
pub mod protocol;
mod remote;
pub mod remote_queue;
mod send;
pub mod store;
mod walk;
pub mod worker;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::did::Did;
use crate::protocol::Protocol;

/// The fault a worker found with a source replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Its file has another size or checksum.
    Wrong,
    /// Its file is not there.
    Missing,
}

/// One end of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The RSE.
    pub rse: String,
    /// How it is reached.
    pub protocol: Arc<Protocol>,
    /// Where the file is below the protocol's prefix.
    pub path: String,
}

/// A file to move, as a worker is given it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The request.
    pub request: i64,
    /// Which attempt at the request this is: what is reported on an earlier one counts for nothing.
    pub attempt: i64,
    /// The file.
    pub did: Did,
    /// Its size.
    pub bytes: i64,
    /// Its Adler-32 checksum, if known.
    pub adler32: Option<String>,
    /// Its MD5 checksum, if known.
    pub md5: Option<String>,
    /// Where it is.
    pub source: End,
    /// Where it goes.
    pub destination: End,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The request.
    pub request: i64,
    /// The attempt.
    pub attempt: i64,
    /// The file.
    pub did: Did,
    /// The RSE it was for.
    pub rse: String,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// It was only given up, and waits for others.
    #[serde(default)]
    pub given_up: bool,
    /// What was wrong at the source, if that is why it failed.
    #[serde(default)]
    pub source_fault: Option<Fault>,
}

impl Outcome {
    /// What became of this job.
    #[must_use]
    pub fn of(job: &Job, error: Option<String>) -> Self {
        Self {
            request: job.request,
            attempt: job.attempt,
            did: job.did.clone(),
            rse: job.destination.rse.clone(),
            error,
            given_up: false,
            source_fault: None,
        }
    }

    /// The same, by how moving it ended.
    #[must_use]
    pub fn after(job: &Job, done: &Result<(), copy::Error>) -> Self {
        let Err(error) = done else { return Self::of(job, None) };
        let given_up = matches!(error, copy::Error::Cancelled);
        let source_fault = match error {
            copy::Error::Differs { fault, .. } => Some(*fault),
            _ => None,
        };
        Self { given_up, source_fault, ..Self::of(job, Some(error.to_string())) }
    }
}

/// What a worker still has: the request, the attempt, and the bytes moved so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The request.
    pub request: i64,
    /// The attempt.
    pub attempt: i64,
    /// Bytes moved so far.
    pub moved: i64,
}
