//! Black-box tests of the real program, with real clients.
//!
//! Each test starts a server of its own, on a free port, in a temporary folder. Output that a person
//! should look at is kept in `tests/golden/`; `MAINSTAY_GOLDEN=rewrite` writes those files anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod access;
mod apply;
mod apply_defaults;
mod audit;
mod backups;
mod bench;
mod catalog;
mod cli;
mod confined;
mod crash;
mod disks;
mod disks_agent;
#[expect(dead_code, reason = "the tests of volumes ask more of it")]
#[path = "../../../volumes/tests/it/fake.rs"]
mod fake;
mod full_disk;
mod golden;
mod graph;
mod joining;
mod kube_rs;
mod kubectl;
mod kubectl_whole;
mod lifecycle;
mod operators;
mod process;
mod python;
#[path = "../../../volumes/tests/it/recorded.rs"]
mod recorded;
mod recorded_volumes;
mod rules;
mod secrets;
#[expect(dead_code, reason = "the tests of rules ask more of it")]
#[path = "../../../rucio/tests/it/services.rs"]
mod services;
mod sessions;
mod store;
mod transfers;
mod volumes;
#[expect(dead_code, reason = "the tests of disks ask more of it")]
#[path = "../../../disks/tests/it/yard.rs"]
mod yard;
