//! Durations in flags, as `mainstay-clock` reads and writes them.

pub(crate) use mainstay_clock::duration::{format, parse};
