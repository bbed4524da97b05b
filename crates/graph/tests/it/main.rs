//! Black-box tests of the engine.

#![expect(clippy::unwrap_used, reason = "in a test, what must not fail may panic")]

mod browser;
mod damage;
mod faults;
mod histories;
mod journal;
mod library;
mod log;
mod past;
mod picture;
mod properties;
mod proto;
mod remote;
mod rings;
mod rows;
mod scenarios;
mod south;
mod transactions;
mod unseen;
