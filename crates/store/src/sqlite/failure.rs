//! Whether the last commit failed: written by the committer, read by readiness checks.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::objects::Error;

/// Why the last commit failed, until one works again.
#[derive(Debug, Default)]
pub(super) struct Failure {
    failing: AtomicBool,
    reason: Mutex<String>,
}

impl Failure {
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Notes how a commit went.
    pub(super) fn note(&self, outcome: &rusqlite::Result<()>) {
        match outcome {
            Ok(()) if !self.is_failing() => {}
            Ok(()) => {
                self.failing.store(false, Ordering::Release);
                tracing::info!("commits to the database work again");
            }
            Err(error) => {
                let mut reason = self.reason.lock();
                *reason = error.to_string();
                self.failing.store(true, Ordering::Release);
            }
        }
    }

    /// The error of the last commit, if it failed.
    pub(super) fn as_result(&self) -> Result<(), Error> {
        if !self.is_failing() {
            return Ok(());
        }
        let reason = self.reason.lock();
        Err(Error::Unavailable { reason: format!("the last commit failed: {reason}") })
    }
}
