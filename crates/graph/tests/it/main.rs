//! Black-box tests of the engine.

mod faults;
mod journal;
mod properties;
mod remote;
mod rows;
mod scenarios;
mod south;
mod transactions;
