//! How much may be under way at once; beyond, the answer is "later".

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mainstay_store::status::{Error, Reason};

/// Lets so many in and no more.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: Arc<AtomicUsize>,
    most: usize,
}

/// Somebody inside, until dropped.
#[derive(Debug)]
pub(crate) struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Gate {
    pub(crate) fn new(most: usize) -> Self {
        Self { inside: Arc::default(), most }
    }

    /// How many are inside.
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Relaxed)
    }

    /// Goes in, or is told to come back later.
    pub(crate) fn enter(&self) -> Result<Inside, Error> {
        let guard = Inside(self.inside.clone());
        if self.inside.fetch_add(1, Relaxed) < self.most {
            return Ok(guard);
        }
        drop(guard);
        let message = "The server is too busy to take more requests; please try again later";
        let mut error = Error::new(Reason::TooManyRequests, message);
        error.retry_after = Some(1);
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_and_no_more() {
        let gate = Gate::new(2);
        let first = gate.enter().unwrap();
        let _second = gate.enter().unwrap();
        let refused = gate.enter().unwrap_err();
        assert_eq!((refused.reason, refused.retry_after), (Reason::TooManyRequests, Some(1)));
        drop(first);
        assert_eq!(gate.inside(), 1);
        assert!(gate.enter().is_ok());
    }
}
