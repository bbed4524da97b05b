//! Whether the last commit failed, for the committer, which finds out, and for those who ask.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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
                tracing::info!("commits work again");
            }
            Err(error) => {
                let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
                *reason = error.to_string();
                self.failing.store(true, Ordering::Release);
            }
        }
    }

    /// What is wrong, if anything.
    pub(super) fn told(&self) -> Result<(), Error> {
        if !self.is_failing() {
            return Ok(());
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Err(Error::Unavailable { reason: format!("the last commit failed: {reason}") })
    }
}
