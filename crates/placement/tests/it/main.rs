//! The pipeline as a whole: the recorded cases, the cases that must be better than recorded, and
//! laws over generated worlds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod better;
mod cases;
mod laws;
mod units;
mod world;
