//! Measures the speed of placement: one decision, its explanation, and whole volumes.
//!
//! Time is an argument: the caller provides the clock.

use std::time::Duration;

use crate::batch::Batch;
use crate::eligible::{EligibleGroup, EligibleNode, EligibleNodes, Slot};
use crate::pass::{Extender, Narrowing, Pass, ReplicaDecision};
use crate::pipeline::Candidate;
use crate::topology::Topology;
use crate::volume::{Replica, ReplicaType, Volume};

/// One measurement.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the case.
    pub case: &'static str,
    /// The number of candidates.
    pub size: usize,
    /// The rate per second.
    pub rate: f64,
    /// The unit of the rate.
    pub unit: &'static str,
    /// The median of one, in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of one, in milliseconds.
    pub p99_ms: f64,
}

fn world(nodes: usize, groups: usize) -> EligibleNodes {
    EligibleNodes::new((0..nodes).map(|node| {
        EligibleNode {
            node_name: format!("node-{node:05}"),
            zone_name: format!("zone-{}", node % 3),
            unschedulable: false,
            node_ready: true,
            agent_ready: true,
            lvm_volume_groups: (0..groups)
                .map(|group| EligibleGroup {
                    name: format!("vg-{node:05}-{group}"),
                    ready: true,
                    ..EligibleGroup::default()
                })
                .collect(),
        }
    }))
}

fn volume(topology: Topology) -> Volume {
    let replica = |id| Replica {
        id,
        kind: ReplicaType::Diskful,
        node_name: String::new(),
        lvg: String::new(),
        thin_pool: String::new(),
        deleting: false,
    };
    Volume {
        topology,
        required_diskful: 3,
        replicas: (0..3).map(replica).collect(),
        ..Volume::default()
    }
}

/// Free space by group number: a minimal ledger.
struct Spaces(Vec<i64>);

impl Spaces {
    fn score(&self, group: usize) -> i64 {
        self.0[group].min(100)
    }
}

impl Extender for Spaces {
    fn filter_and_score(&mut self, _: usize, slots: &[Slot]) -> Option<Vec<i64>> {
        Some(slots.iter().map(|slot| slot.group().map_or(0, |group| self.score(group))).collect())
    }

    fn narrow_reservation(&mut self, narrowing: Narrowing) -> bool {
        if let Some(group) = narrowing.slot.group() {
            self.0[group] -= 1;
        }
        true
    }

    fn release(&mut self, _: Narrowing) {}
}

fn row(case: &'static str, size: usize, unit: &'static str, mut times: Vec<Duration>) -> Row {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64();
    let total: Duration = times.iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "a count of measurements")]
    let rate = times.len() as f64 / total.as_secs_f64();
    Row { case, size, rate, unit, p50_ms: at(50) * 1e3, p99_ms: at(99) * 1e3 }
}

fn timed(elapsed: &dyn Fn() -> Duration, count: usize, mut work: impl FnMut()) -> Vec<Duration> {
    (0..count)
        .map(|_| {
            let begun = elapsed();
            work();
            elapsed().saturating_sub(begun)
        })
        .collect()
}

/// Runs all measurements.
pub fn run(elapsed: &dyn Fn() -> Duration) -> Vec<Row> {
    let mut rows = Vec::new();
    for (nodes, groups) in [(100, 5), (1000, 5), (5000, 5)] {
        let eligible = world(nodes, groups);
        let size = nodes * groups;
        let volume = volume(Topology::TransZonal);
        let pass = Pass::new(&eligible, &volume);
        let score = |group: usize| i64::try_from(group % 97 + 1).ok();
        let decide = timed(elapsed, 400, || {
            std::hint::black_box(pass.decide(0, &score));
        });
        rows.push(row("decision", size, "decisions/s", decide));
        let explain = timed(elapsed, 400, || {
            std::hint::black_box(pass.explain(0, &score));
        });
        rows.push(row("explained decision", size, "decisions/s", explain));
    }
    for nodes in [1000, 5000] {
        let eligible = world(nodes, 1);
        for (case, topology) in
            [("3-replica volumes", Topology::Ignored), ("TransZonal volumes", Topology::TransZonal)]
        {
            let volume = volume(topology);
            let mut spaces = Spaces(vec![1000; nodes]);
            let times = timed(elapsed, 1000, || {
                let decisions = Pass::new(&eligible, &volume).run(&mut spaces);
                let placed = |(_, decision): &(usize, ReplicaDecision)| {
                    matches!(decision, ReplicaDecision::Placed(_))
                };
                assert!(decisions.iter().all(placed), "all replicas fit");
            });
            rows.push(row(case, nodes, "volumes/s", times));
        }
        let mut batch = Batch::new(vec![Some(1000); nodes]);
        let slots = eligible.lvgs();
        let times = timed(elapsed, 10_000, || {
            let mut taken: Vec<usize> = Vec::with_capacity(3);
            for _ in 0..3 {
                let free = |place: usize| taken.iter().all(|node| *node != slots[place].node());
                let Some(place) = batch.best(free) else { return };
                taken.push(slots[place].node());
                batch.rescore(place, batch.score(place).map(|score| score - 1));
            }
        });
        rows.push(row("3-replica volumes, batch", nodes, "volumes/s", times));
    }
    rows
}
