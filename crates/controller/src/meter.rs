//! The hooks through which controllers report metrics; they do nothing unless implemented.
//!
//! The runtime depends on no metrics library. A server implements [`Meter`] once and hands it to
//! every controller; each call carries the name of the queue or controller it is about. Hooks are
//! called with no lock held and must not block.

use std::fmt::Debug;
use std::time::Duration;

/// How many keys a queue knows, by what they are waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting for a worker.
    pub ready: usize,
    /// Waiting for their time to come.
    pub delayed: usize,
    /// With a worker.
    pub running: usize,
}

/// How one reconciliation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Done.
    Done,
    /// It asked to be called again later.
    Later,
    /// It asked to be called again with back-off.
    Retry,
    /// It failed.
    Failed,
    /// It panicked.
    Panicked,
}

impl Ending {
    /// A word for a metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Later => "later",
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
        }
    }
}

/// Hooks for counters, gauges and histograms.
pub trait Meter: Debug + Send + Sync {
    /// A queue's size after it changed.
    fn depth(&self, _queue: &str, _depth: Depth) {}

    /// How long a key had been due when a worker took it.
    fn waited(&self, _queue: &str, _wait: Duration) {}

    /// A key will be tried again after this delay because it failed.
    fn retried(&self, _queue: &str, _delay: Duration) {}

    /// One reconciliation ended after running this long.
    fn reconciled(&self, _controller: &str, _ending: Ending, _took: Duration) {}

    /// A reflector listed its collection again because the history it needed was gone.
    fn relisted(&self, _collection: &str) {}

    /// An event was not written: the recorder was full, or its object had too many.
    fn event_dropped(&self, _recorder: &str) {}

    /// This process began (or ceased) to lead.
    fn leading(&self, _election: &str, _leading: bool) {}
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMeter;

impl Meter for NoMeter {}
