//! Black-box tests of volumes: real controllers on a real store, a real extender over HTTP, and the plan
//! over manifests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod cluster;
#[expect(dead_code, reason = "the store's tests use more of it")]
#[path = "../../../store/tests/it/cluster.rs"]
mod etcd;
mod explain;
mod extender;
mod fake;
mod faults;
#[path = "../../../store/tests/it/faulty.rs"]
mod faulty;
mod fill;
mod heartbeat;
mod lifecycle;
mod plan;
mod race;
mod recorded;
mod rollout;
mod space;
mod wake;
