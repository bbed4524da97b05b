//! Copies files between storage elements and verifies that they arrived.
//!
//! A [`worker`] takes jobs with a lease from a [`worker::Queue`]: a catalog in the same process, or
//! a server over HTTP ([`remote_queue`]). Which requests go first is decided by shares of
//! activities, priorities and limits, and the source by distance and load ([`choose`], pure). It
//! moves each file ([`copy`]) through the protocols of the two storage elements ([`store`]) to a
//! temporary name, reads the copy back, compares checksums and only then renames it. A worker that
//! dies loses its leases; the next worker finds copies that are complete already.
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
    /// Its file does not exist.
    Missing,
}

/// One end of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The RSE.
    pub rse: String,
    /// The protocol to access it.
    pub protocol: Arc<Protocol>,
    /// The path of the file below the protocol's prefix.
    pub path: String,
}

/// A file to copy, as a worker receives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The request.
    pub request: i64,
    /// The number of this attempt at the request; reports about earlier attempts are ignored.
    pub attempt: i64,
    /// The file.
    pub did: Did,
    /// Its size.
    pub bytes: i64,
    /// Its Adler-32 checksum, if known.
    pub adler32: Option<String>,
    /// Its MD5 checksum, if known.
    pub md5: Option<String>,
    /// Where to copy it from.
    pub source: End,
    /// Where to copy it to.
    pub destination: End,
}

/// The result of a job.
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
    /// The reason of the failure, if it failed.
    pub error: Option<String>,
    /// The worker gave the job back; it waits for another worker.
    #[serde(default)]
    pub given_up: bool,
    /// The fault of the source, if that is why it failed.
    #[serde(default)]
    pub source_fault: Option<Fault>,
}

impl Outcome {
    /// The outcome of a job that succeeded, or failed with `error`.
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

    /// The outcome of a job whose copy ended with `done`.
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

/// A job that a worker has in progress, reported when its lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// The request.
    pub request: i64,
    /// The attempt.
    pub attempt: i64,
    /// Bytes copied so far.
    pub moved: i64,
}
