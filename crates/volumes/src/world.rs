//! The objects that placement depends on, as plain data, from manifests or from a server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_store::builtin::Node;
use mainstay_store::registry::Typed;
use serde_json::Value;

use crate::api::{
    LVMVolumeGroup, ReplicatedStorageClass, ReplicatedStoragePool, ReplicatedVolume,
    ReplicatedVolumeAttachment, ReplicatedVolumeReplica,
};
use crate::eligible::eligible_nodes;
use crate::ledger::{CapacityLedger, HeldReservation};
use crate::{configure, reserve};

/// Why manifests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not valid YAML or JSON.
    #[error("{0}")]
    Syntax(String),
    /// An object does not match its kind.
    #[error("{kind} {name:?}: {source}")]
    Object {
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// The reason.
        source: serde_json::Error,
    },
}

/// The kinds that placement depends on.
pub const KINDS: [&str; 7] = [
    ReplicatedStorageClass::KIND,
    ReplicatedStoragePool::KIND,
    LVMVolumeGroup::KIND,
    ReplicatedVolume::KIND,
    ReplicatedVolumeReplica::KIND,
    ReplicatedVolumeAttachment::KIND,
    "Node",
];

/// Objects by name.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Classes.
    pub classes: BTreeMap<String, ReplicatedStorageClass>,
    /// Pools.
    pub pools: BTreeMap<String, ReplicatedStoragePool>,
    /// Volume groups.
    pub groups: BTreeMap<String, Arc<LVMVolumeGroup>>,
    /// Nodes.
    pub nodes: BTreeMap<String, Node>,
    /// Volumes.
    pub volumes: BTreeMap<String, ReplicatedVolume>,
    /// Replicas.
    pub replicas: BTreeMap<String, Arc<ReplicatedVolumeReplica>>,
    /// Attachments.
    pub attachments: BTreeMap<String, ReplicatedVolumeAttachment>,
    /// Reservations of a server's ledger whose replicas are not placed yet.
    pub reservations: Vec<HeldReservation>,
}

/// Parses YAML or JSON documents; lists are flattened.
///
/// # Errors
/// [`Error::Syntax`].
pub fn documents(text: &str) -> Result<Vec<Value>, Error> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| Error::Syntax(error.to_string()))?;
    let mut objects = Vec::new();
    for mut document in documents {
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => objects.extend(items),
            _ if document.is_null() => {}
            _ => objects.push(document),
        }
    }
    Ok(objects)
}

impl World {
    /// Reads objects; other kinds are ignored, a later object replaces an earlier one.
    ///
    /// # Errors
    /// [`Error::Object`].
    pub fn read(objects: impl IntoIterator<Item = Value>) -> Result<Self, Error> {
        let mut world = Self::default();
        for object in objects {
            world.take(&object)?;
        }
        Ok(world)
    }

    fn take(&mut self, object: &Value) -> Result<(), Error> {
        fn typed<T: Typed>(object: &Value) -> Result<(String, T), Error> {
            let typed = T::deserialize(object).map_err(|source| Error::Object {
                kind: T::KIND.to_owned(),
                name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                source,
            })?;
            Ok((typed.metadata().name.clone(), typed))
        }
        match object["kind"].as_str().unwrap_or_default() {
            ReplicatedStorageClass::KIND => self.classes.extend([typed(object)?]),
            ReplicatedStoragePool::KIND => self.pools.extend([typed(object)?]),
            LVMVolumeGroup::KIND => {
                let (name, group) = typed(object)?;
                self.groups.insert(name, Arc::new(group));
            }
            ReplicatedVolume::KIND => self.volumes.extend([typed(object)?]),
            ReplicatedVolumeReplica::KIND => {
                let (name, replica) = typed(object)?;
                self.replicas.insert(name, Arc::new(replica));
            }
            ReplicatedVolumeAttachment::KIND => self.attachments.extend([typed(object)?]),
            "Node" => self.nodes.extend([typed(object)?]),
            _ => {}
        }
        Ok(())
    }

    /// Adds the objects and fields that controllers would write: pools of classes, and eligible nodes of
    /// pools that never had any.
    pub fn complete(&mut self, now: Timestamp) {
        for class in self.classes.values() {
            let name = configure::pool_name(class);
            if let Some(spec) = configure::own_pool(class) {
                self.pools.entry(name.clone()).or_insert_with(|| {
                    let mut pool = ReplicatedStoragePool { spec, ..Default::default() };
                    pool.metadata.name = name;
                    pool
                });
            }
        }
        for pool in self.pools.values_mut() {
            let status = &mut pool.status;
            if status.eligible_nodes_revision == 0 && status.eligible_nodes.is_empty() {
                let found = eligible_nodes(&pool.spec, self.nodes.values(), &self.groups, now);
                status.eligible_nodes = found.map(|found| found.nodes).unwrap_or_default();
            }
        }
    }

    /// The replicas of a volume, by id.
    #[must_use]
    pub fn replicas_of(&self, volume: &str) -> Vec<Arc<ReplicatedVolumeReplica>> {
        let mut replicas: Vec<_> = self
            .replicas
            .values()
            .filter(|replica| replica.spec.replicated_volume_name == volume)
            .cloned()
            .collect();
        replicas.sort_by_key(|replica| replica.id());
        replicas
    }

    /// The nodes of a volume's attachments.
    #[must_use]
    pub fn wanted_nodes(&self, volume: &ReplicatedVolume) -> BTreeSet<String> {
        let of_volume = self
            .attachments
            .values()
            .filter(|it| it.spec.replicated_volume_name == volume.metadata.name);
        crate::attach::wanted_nodes(&volume.status.desired_attach_to, of_volume)
    }

    /// The names of all volumes, including those of which only replicas exist.
    #[must_use]
    pub fn volume_names(&self) -> BTreeSet<String> {
        let orphans = self.replicas.values().map(|it| it.spec.replicated_volume_name.clone());
        self.volumes.keys().cloned().chain(orphans).collect()
    }

    /// A ledger with all groups, volumes, replicas and reservations.
    #[must_use]
    pub fn ledger(&self) -> CapacityLedger {
        let mut ledger = CapacityLedger::default();
        for (name, group) in &self.groups {
            ledger.set_group(name, Some(group));
        }
        for (name, volume) in &self.volumes {
            ledger.set_volume(name, Some(reserve::size(volume)));
        }
        for held in &self.reservations {
            ledger.hold_for(held);
        }
        for (name, replica) in &self.replicas {
            ledger.set_replica(name, reserve::placed(replica));
        }
        ledger
    }
}
