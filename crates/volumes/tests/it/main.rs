//! Volumes seen from outside: real controllers on a real store, a real extender over HTTP, and
//! the plan over manifests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod cluster;
mod extender;
mod lifecycle;
mod plan;
mod race;
