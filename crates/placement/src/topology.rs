//! Decides which zones a replica may go to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How replicas of a volume relate to zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Topology {
    /// All replicas in one zone.
    Zonal,
    /// Replicas evenly spread over the zones.
    TransZonal,
    /// Zones do not matter.
    #[default]
    Ignored,
}

/// The replicas of a volume that a zone holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Diskful replicas.
    pub diskful: usize,
    /// TieBreaker replicas.
    pub tie_breakers: usize,
}

impl Load {
    /// Both together.
    #[must_use]
    pub fn total(self) -> usize {
        self.diskful + self.tie_breakers
    }
}

/// The zones with the most Diskful replicas: a volume stays in its zone. All of them if they are
/// equal. `true` means preferred.
#[must_use]
pub fn zonal_majority(loads: &[Load]) -> Vec<bool> {
    let most = loads.iter().map(|load| load.diskful).max().unwrap_or_default();
    loads.iter().map(|load| load.diskful == most).collect()
}

/// The zones with the fewest Diskful replicas among those that count.
#[must_use]
pub fn trans_zonal_diskful(loads: &[Load], counts: impl Fn(usize) -> bool) -> Vec<bool> {
    least(loads, counts, |load| (load.diskful, 0))
}

/// The zones with the fewest replicas; among them those with the fewest TieBreakers.
#[must_use]
pub fn trans_zonal_tie_breaker(loads: &[Load], counts: impl Fn(usize) -> bool) -> Vec<bool> {
    least(loads, counts, |load| (load.total(), load.tie_breakers))
}

fn least(
    loads: &[Load],
    counts: impl Fn(usize) -> bool,
    rank: impl Fn(&Load) -> (usize, usize),
) -> Vec<bool> {
    let counted = || loads.iter().enumerate().filter(|(zone, _)| counts(*zone));
    let least = counted().map(|(_, load)| rank(load)).min();
    (0..loads.len()).map(|zone| counts(zone) && Some(rank(&loads[zone])) == least).collect()
}

/// The zones that tie for the most Diskful replicas: a Zonal volume that is split between zones. Empty
/// for a volume in one zone, and for a new one.
#[must_use]
pub fn torn(loads: &[Load]) -> Vec<usize> {
    let most = loads.iter().map(|load| load.diskful).max().unwrap_or_default();
    let tied: Vec<usize> = loads
        .iter()
        .enumerate()
        .filter(|(_, load)| most > 0 && load.diskful == most)
        .map(|(zone, _)| zone)
        .collect();
    if tied.len() > 1 { tied } else { Vec::new() }
}
