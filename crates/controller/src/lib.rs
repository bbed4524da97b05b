//! The runtime of every reconciler: watch → keyed queue → reconcile.

pub mod meter;
pub mod queue;
pub mod rate;

pub use mainstay_store::clock::{Clock, ManualClock, SystemClock};
