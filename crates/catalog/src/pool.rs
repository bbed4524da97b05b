//! A bounded pool of connections.

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

/// Connections that are idle, and how many there are in all.
pub(super) struct Pool<T> {
    state: Mutex<(Vec<T>, usize)>,
    freed: Condvar,
    most: usize,
}

/// A connection of a pool, returned to it when dropped.
pub(super) struct Lent<'a, T> {
    pool: &'a Pool<T>,
    /// The connection; set it to `None` to close it instead of returning it.
    pub(super) value: Option<T>,
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.value.take() {
            Some(value) => state.0.push(value),
            None => state.1 -= 1,
        }
        self.pool.freed.notify_one();
    }
}

impl<T> Pool<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { state: Mutex::new((Vec::new(), 0)), freed: Condvar::new(), most }
    }

    /// An idle connection, a new one, or the next that is given back.
    pub(super) fn lend(&self, make: impl FnOnce() -> Result<T>) -> Result<Lent<'_, T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(value) = state.0.pop() {
                return Ok(Lent { pool: self, value: Some(value) });
            }
            if state.1 < self.most {
                state.1 += 1;
                break;
            }
            self.freed.wait(&mut state);
        }
        drop(state);
        let mut lent = Lent { pool: self, value: None };
        lent.value = Some(make()?);
        Ok(lent)
    }
}
