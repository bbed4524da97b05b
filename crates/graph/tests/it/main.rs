//! Black-box tests of the engine.

mod scenarios;
