//! The clock of `mainstay-clock`, under the name that users of this crate know.

pub use mainstay_clock::{Clock, ManualClock, SystemClock};
