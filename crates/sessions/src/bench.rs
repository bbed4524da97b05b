//! Measures the pure decisions of the engine: the placement of instances in batches.
//!
//! Sessions that are opened and closed over HTTPS are measured by the binary, which starts the
//! server and the nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_placement::machines::{Amount, Machines, Needs};
use mainstay_terminal::report::Row;

/// Places batches of 1,000 instances on 5,000 machines; `elapsed` is a monotonic clock.
#[must_use]
pub fn placement(elapsed: &dyn Fn() -> Duration) -> Row {
    const MACHINES: usize = 5_000;
    const BATCH: usize = 1_000;
    const BATCHES: usize = 500;
    let mut machines = Machines::default();
    for number in 0..MACHINES {
        let name = Arc::from(format!("node-{number}"));
        let has = Amount { cpu: 12_000, memory: 64 << 30 };
        machines.join(&name, has, BTreeMap::new());
        machines.set_schedulable(&name, true);
    }
    let needs = Needs { amount: Amount { cpu: 100, memory: 256 << 20 }, ..Needs::default() };
    let start = elapsed();
    let placed: usize = (0..BATCHES).map(|_| machines.place(&needs, BATCH).len()).sum();
    let seconds = elapsed().saturating_sub(start).as_secs_f64();
    Row::new("instances placed in batches", "pure", MACHINES).rate(placed, seconds, "instances/s")
}
