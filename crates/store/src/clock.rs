//! The clock of `mainstay-clock`, re-exported for users of this crate.

pub use mainstay_clock::{Clock, ManualClock, SystemClock};
