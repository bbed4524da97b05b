//! Time and randomness of the engine, provided by its caller.

use std::sync::Arc;

use mainstay_clock::{Clock, SystemClock};

use crate::api::Micros;

/// A clock and a source of randomness. Clones share the clock.
#[derive(Clone, Debug)]
pub struct Environment(Arc<dyn Clock>);

impl Environment {
    /// The time of `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(clock)
    }

    /// The time of the machine.
    #[must_use]
    pub fn system() -> Self {
        Self(SystemClock::new())
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.0.now().as_microsecond()
    }

    /// An unpredictable number.
    #[must_use]
    pub fn seed(&self) -> u64 {
        rand::random()
    }
}
