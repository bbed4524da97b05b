//! The runtime of every reconciler: watch → keyed queue → reconcile.

pub mod election;
pub mod jobs;
pub mod meter;
pub mod queue;
pub mod rate;
pub mod reflector;
pub mod runtime;

#[cfg(test)]
mod testing;

pub use mainstay_store::clock::{Clock, ManualClock, SystemClock};
