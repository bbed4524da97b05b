//! The settings of an engine.

use std::fmt;
use std::sync::Arc;

use crate::history::Limits;
use crate::journal::Journal;
use crate::time::{Clock, SystemClock};

/// The settings of an engine.
///
/// ```
/// use mainstay_graph::{Limits, Options};
///
/// let options = Options::default().parallel(8).history(Limits::off()).verify(true);
/// assert_eq!(options.parallel, 8);
/// assert_eq!(options.queue, 200);
/// ```
#[non_exhaustive]
pub struct Options {
    /// The clock; the machine's by default.
    pub clock: Arc<dyn Clock>,
    /// The most requests that wait; more are refused. 200 by default.
    pub queue: usize,
    /// The most operations that run at once; 1 by default.
    pub parallel: usize,
    /// How much history is kept.
    pub history: Limits,
    /// Whether every transaction is followed by a retrieval that checks its result.
    pub verify: bool,
    /// The journal that survives a restart; none by default.
    pub journal: Option<Box<dyn Journal>>,
    /// Whether an engine with a journal that is not empty begins with a resync.
    pub resync_on_start: bool,
    /// The stream for the transaction log; none by default.
    pub log: Option<Box<dyn std::io::Write + Send>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: SystemClock::new(),
            queue: 200,
            parallel: 1,
            history: Limits::default(),
            verify: false,
            journal: None,
            resync_on_start: true,
            log: None,
        }
    }
}

impl Options {
    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how many requests may wait.
    #[must_use]
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how many operations may run at once.
    #[must_use]
    pub fn parallel(mut self, parallel: usize) -> Self {
        self.parallel = parallel;
        self
    }

    /// Sets how much history is kept.
    #[must_use]
    pub fn history(mut self, history: Limits) -> Self {
        self.history = history;
        self
    }

    /// Sets whether the result of every transaction is checked by a retrieval.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the journal.
    #[must_use]
    pub fn journal(mut self, journal: impl Journal + 'static) -> Self {
        self.journal = Some(Box::new(journal));
        self
    }

    /// Sets whether an engine with a journal that is not empty begins with a resync.
    #[must_use]
    pub fn resync_on_start(mut self, resync: bool) -> Self {
        self.resync_on_start = resync;
        self
    }

    /// Sets the stream for the transaction log.
    #[must_use]
    pub fn log(mut self, log: impl std::io::Write + Send + 'static) -> Self {
        self.log = Some(Box::new(log));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queue", &self.queue)
            .field("parallel", &self.parallel)
            .field("history", &self.history)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}
