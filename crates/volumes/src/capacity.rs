//! Computes the space left: the largest volume of each class, the number of volumes of a size, and free
//! space by zone and node.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_clock::bytes;
use mainstay_placement::{Pass, ReplicaDecision};
use mainstay_store::meta::Quantity;
use serde::Serialize;

use crate::api::{ReplicatedStorageClass, ReplicatedVolume, ReplicatedVolumeReplica};
use crate::candidates::{Candidates, FromLedger};
use crate::ledger::{CapacityLedger, Claim, PlacedReplica, Target};
use crate::plan::formed;
use crate::text::Table;
use crate::world::World;
use crate::{configure, schedule};

/// The largest number of volumes that is counted.
pub const MOST: usize = 10_000;

/// The space left.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// The space left in each class.
    pub classes: Vec<ClassCapacity>,
    /// The free space of each zone.
    pub zones: Vec<Free>,
    /// The free space of each node.
    pub nodes: Vec<Free>,
}

/// The space left in a class.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassCapacity {
    /// The class.
    pub class: String,
    /// The largest volume that can be placed completely now, in bytes.
    pub largest: u64,
    /// The size that was counted, in bytes.
    pub size: Option<u64>,
    /// The number of volumes of that size that can be placed one after another.
    pub count: Option<usize>,
    /// Counting stopped at the limit; there may be room for more.
    pub at_least: bool,
}

/// Space in a zone or on a node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Free {
    /// The zone or node.
    pub name: String,
    /// The total size.
    pub total: u64,
    /// The bytes that can still be promised.
    pub available: u64,
}

/// Computes the space left.
#[must_use]
pub fn capacity(
    mut world: World,
    class: Option<&str>,
    size: Option<u64>,
    now: Timestamp,
) -> Capacity {
    world.complete(now);
    let ledger = world.ledger();
    let mut found = Capacity::default();
    let classes = world.classes.values();
    for class in classes.filter(|it| class.is_none_or(|name| it.metadata.name == name)) {
        found.classes.push(class_capacity(&world, class, &ledger, size, now));
    }
    let mut zones: BTreeMap<String, Free> = BTreeMap::new();
    let mut nodes: BTreeMap<String, Free> = BTreeMap::new();
    for (name, group) in &world.groups {
        let node = &group.spec.local.node_name;
        let labels = world.nodes.get(node).map(|node| &node.metadata.labels);
        let zone = labels.and_then(|labels| labels.get(crate::api::ZONE_LABEL));
        let zone = zone.cloned().unwrap_or_default();
        let Some(balance) = ledger.balance(&Target::new(name, ""), &no_claim(), now) else {
            continue;
        };
        for (map, name) in [(&mut zones, &zone), (&mut nodes, node)] {
            let free = map.entry(name.clone()).or_default();
            free.name.clone_from(name);
            free.total += balance.total;
            free.available += balance.available;
        }
    }
    found.zones = zones.into_values().collect();
    found.nodes = nodes.into_values().collect();
    found
}

fn no_claim() -> Claim {
    Claim { holder: String::new(), volume: String::new(), size: 0, replicated: false }
}

fn class_capacity(
    world: &World,
    class: &ReplicatedStorageClass,
    ledger: &CapacityLedger,
    size: Option<u64>,
    now: Timestamp,
) -> ClassCapacity {
    let trial = Trial::new(world, class);
    let fits = |size: u64| trial.place(&mut ledger.clone(), "capacity-trial", size, now);
    let most = ledger
        .targets()
        .filter_map(|target| ledger.balance(target, &no_claim(), now))
        .map(|balance| balance.available)
        .max()
        .unwrap_or_default();
    // Sizes are tried in steps of one extent.
    let extent = crate::ledger::DEFAULT_EXTENT;
    let (mut fitting, mut too_large) = (0, most / extent + 1);
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        if fits(middle * extent) { fitting = middle } else { too_large = middle }
    }
    let count = size.map(|size| {
        let mut ledger = ledger.clone();
        let place =
            |index: &usize| trial.place(&mut ledger, &format!("capacity-trial-{index}"), size, now);
        (0..MOST).take_while(place).count()
    });
    ClassCapacity {
        class: class.metadata.name.clone(),
        largest: fitting * extent,
        size,
        count,
        at_least: count == Some(MOST),
    }
}

/// Trial placement of volumes of a class.
struct Trial<'w> {
    world: &'w World,
    class: &'w ReplicatedStorageClass,
    candidates: Option<Candidates>,
}

impl<'w> Trial<'w> {
    fn new(world: &'w World, class: &'w ReplicatedStorageClass) -> Self {
        let pool = world.pools.get(&configure::pool_name(class));
        let nodes = pool.map(|pool| pool.status.eligible_nodes.iter().cloned());
        Self { world, class, candidates: nodes.map(Candidates::new) }
    }

    /// Places one more volume in the ledger. `false` if not all replicas can be placed.
    fn place(&self, ledger: &mut CapacityLedger, name: &str, size: u64, now: Timestamp) -> bool {
        let configuration = configure::configuration(self.class);
        let pool = self.world.pools.get(&configuration.storage_pool_name);
        let (Some(candidates), Some(pool)) = (&self.candidates, pool) else { return false };
        let mut volume = ReplicatedVolume::default();
        name.clone_into(&mut volume.metadata.name);
        volume.spec.size = Quantity::bytes(size);
        volume.spec.replicated_storage_class_name.clone_from(&self.class.metadata.name);
        volume.status.configuration = Some(configuration.clone());
        let replicas = self.replicas(&volume);
        let seen = schedule::volume(
            &configuration,
            pool,
            replicas.iter().map(Arc::as_ref),
            Default::default(),
        );
        let claims: Vec<Claim> =
            replicas.iter().map(|it| schedule::claim(&volume, &it.metadata.name)).collect();
        ledger.set_volume(name, Some(crate::reserve::size(&volume)));
        let mut answers = FromLedger { ledger, candidates, claims: &claims, now };
        let decisions = Pass::new(&candidates.eligible, &seen).run(&mut answers);
        decisions.into_iter().all(|(index, decision)| {
            let ReplicaDecision::Placed(entry) = decision else { return false };
            if let Some(target) = candidates.target(entry.candidate) {
                let (volume, target) = (name.to_owned(), target.clone());
                let placed = PlacedReplica { volume, target, reported: false };
                ledger.set_replica(&replicas[index].metadata.name, Some(placed));
            }
            true
        })
    }

    fn replicas(&self, volume: &ReplicatedVolume) -> Vec<Arc<ReplicatedVolumeReplica>> {
        let name = &volume.metadata.name;
        let world = World {
            classes: [(self.class.metadata.name.clone(), self.class.clone())].into(),
            volumes: [(name.clone(), volume.clone())].into(),
            ..World::default()
        };
        formed(&world, name).1
    }
}

impl Capacity {
    /// The space left as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut classes = Table::new(&["CLASS", "LARGEST VOLUME", "SIZE", "FITS"]);
        for class in &self.classes {
            let size = class.size.map(bytes::format).unwrap_or_default();
            let more = if class.at_least { "+" } else { "" };
            let count = class.count.map(|count| format!("{count}{more}")).unwrap_or_default();
            classes.row([class.class.as_str(), &bytes::format(class.largest), &size, &count]);
        }
        let mut out = classes.to_string();
        for (title, rows) in [("ZONE", &self.zones), ("NODE", &self.nodes)] {
            let mut table = Table::new(&[title, "TOTAL", "AVAILABLE"]);
            for row in rows {
                table.row([
                    row.name.as_str(),
                    &bytes::format(row.total),
                    &bytes::format(row.available),
                ]);
            }
            out += &format!("\n{table}");
        }
        out
    }
}
