//! The server as its clients see it: over real sockets and real TLS, on every store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod applied;
mod client;
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;
mod hostile;
mod lifecycle;
mod lists;
mod objects;
mod operators;
mod refusals;
mod several;
mod trust;
mod watches;
