//! Volumes: adopts the class's configuration, creates and deletes replicas, follows attachments, and
//! deletes volumes in order.

mod turns;

use std::sync::Arc;

use futures_util::future::try_join_all;
use jiff::Timestamp;
use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_controller::write;
use mainstay_placement::ReplicaType;
use mainstay_store::meta::{ObjectMeta, OwnerReference};
use mainstay_store::object::Revision;
use mainstay_store::registry::Typed;
use mainstay_store::resources::{DeleteOptions, Error, encode};

pub(super) use turns::{configured, degraded};

use super::{BY_CLASS, BY_VOLUME, Shared};
use crate::api::{
    Configuration, FINALIZER, GROUP, ReplicatedStorageClass, ReplicatedVolume,
    ReplicatedVolumeReplica, ReplicatedVolumeReplicaSpec, VERSION, replica_name,
};
use crate::configure::{self, ReplicaNumbers};
use crate::form::{self, NewReplica, Progress};
use crate::satisfy::is_misplaced;
use crate::schedule::SCHEDULED;
use crate::{attach, conditions};

const MANAGER: &str = "mainstay-volume";

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let by_class = views.volumes.clone();
    let (followed, repaired) = (views.clone(), views.clone());
    let this = shared.clone();
    controller
        .watch(&views.volumes, |volume| [volume.metadata.name.clone()])
        .watch_if(&views.volumes, turns::has_followed, move |volume| {
            turns::next_to_follow(&followed, volume)
        })
        .watch_if(&views.replicas, replica_matters, |replica| {
            [replica.spec.replicated_volume_name.clone()]
        })
        .watch_if(&views.replicas, turns::is_repaired, move |replica| {
            turns::next_to_repair(&repaired, replica)
        })
        .watch_if(
            &views.classes,
            |old, new| {
                let seen = |class: &ReplicatedStorageClass| {
                    (class.spec.clone(), class.status.configuration_generation)
                };
                old.map(seen) != new.map(seen)
            },
            move |class| {
                let volumes = by_class.by_index(BY_CLASS, &class.metadata.name);
                volumes.iter().map(|volume| volume.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch(&views.attachments, |it| [it.spec.replicated_volume_name.clone()])
        .run(move |context, name| reconcile(this.clone(), context, name))
}

/// Whether a change of a replica concerns its volume.
fn replica_matters(
    old: Option<&ReplicatedVolumeReplica>,
    new: Option<&ReplicatedVolumeReplica>,
) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return true };
    let scheduled = |replica: &ReplicatedVolumeReplica| {
        conditions::find(&replica.status.conditions, SCHEDULED).cloned()
    };
    old.metadata.generation != new.metadata.generation
        || old.deleting() != new.deleting()
        || is_misplaced(old) != is_misplaced(new)
        || scheduled(old) != scheduled(new)
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, Error> {
    let Some(volume) = shared.views.volume(&name) else { return Ok(Outcome::Done) };
    let replicas = shared.views.replicas_of(&name);
    if volume.metadata.deletion_timestamp.is_some() {
        return delete(&shared, &context, &volume, &replicas).await;
    }
    let class = shared.views.class(&volume.spec.replicated_storage_class_name);
    let adopted = adopt(&shared, &volume, class.as_deref());
    let configuration = adopted.configuration.clone();
    let wanted = configuration.as_ref().map(|it| configure::wanted(it.guarantees()));
    let mut progress = form::progress(&volume, wanted, &adopted.waiting_for, &replicas);
    let attachments = shared.views.attachments_of(&name);
    let most = volume.spec.max_attachments.map_or(attach::MOST, usize::from);
    let before = &volume.status.desired_attach_to;
    let desired = attach::desired_attach_to(before, attachments.iter().map(Arc::as_ref), most);
    if wanted.is_none() && progress.message.is_empty() {
        progress.message.clone_from(&adopted.waiting_for);
    }
    // Replicas are created for a configuration, so the configuration is written first.
    let written = write_status(&context, &volume, &adopted, &progress, &desired).await?;
    if let (Some(configuration), Some(wanted), Some(class)) =
        (&configuration, wanted, class.as_deref())
    {
        if let Some(written) = written {
            // A stopped reflector means that the process is shutting down.
            let _ = shared.views.volumes.wait_until_at(written).await;
        }
        let repair = turns::repairs(&shared.views, class, &name);
        let changed = shape(&shared, &context, &volume, &replicas, (wanted, repair)).await?;
        if !changed {
            access(&context, &volume, configuration, &desired, &replicas).await?;
        }
    }
    Ok(Outcome::Done)
}

/// The configuration that a volume takes from its class.
struct AdoptedConfiguration {
    configuration: Option<Configuration>,
    generation: Option<i64>,
    observed: Option<i64>,
    waiting_for: String,
}

/// A new volume takes its class's configuration; an existing one follows a change of it if the class
/// has a rolling strategy, a few volumes at a time.
fn adopt(
    shared: &Shared,
    volume: &ReplicatedVolume,
    class: Option<&ReplicatedStorageClass>,
) -> AdoptedConfiguration {
    let status = &volume.status;
    let keep = |waiting_for: String| AdoptedConfiguration {
        configuration: status.configuration.clone(),
        generation: status.configuration_generation,
        observed: status.configuration_observed_generation,
        waiting_for,
    };
    let name = &volume.spec.replicated_storage_class_name;
    let Some(class) = class else {
        return keep(format!("ReplicatedStorageClass {name} not found"));
    };
    let Some(configuration) = &class.status.configuration else {
        return keep(format!("ReplicatedStorageClass {name} has no configuration yet"));
    };
    let observed = class.status.configuration_generation;
    let current = status.configuration_generation == observed;
    if status.configuration.is_some() && !current && !turns::follows(&shared.views, volume, class) {
        return AdoptedConfiguration { observed, ..keep(String::new()) };
    }
    let waiting_for = String::new();
    let configuration = Some(configuration.clone());
    AdoptedConfiguration { configuration, generation: observed, observed, waiting_for }
}

/// Creates and deletes replicas. Returns whether there was anything to do.
async fn shape(
    shared: &Shared,
    context: &Context,
    volume: &ReplicatedVolume,
    replicas: &[Arc<ReplicatedVolumeReplica>],
    (wanted, repair): (ReplicaNumbers, bool),
) -> Result<bool, Error> {
    let name = &volume.metadata.name;
    let changes = form::changes(name, wanted, replicas, repair);
    let created = changes
        .create
        .iter()
        .map(|NewReplica { name, kind }| create(context, volume, name, *kind, ""));
    let newest = try_join_all(created).await?.into_iter().flatten().max();
    for replica in &changes.delete {
        remove(context, replica).await?;
    }
    if let Some(newest) = newest {
        // The next run must see these, or it would create more. A stopped reflector means that the
        // process is shutting down.
        let _ = shared.views.replicas.wait_until_at(newest).await;
    }
    Ok(!changes.create.is_empty() || !changes.delete.is_empty())
}

/// Creates Access replicas on nodes that need one, and deletes those that are not needed.
async fn access(
    context: &Context,
    volume: &ReplicatedVolume,
    configuration: &Configuration,
    desired: &[String],
    replicas: &[Arc<ReplicatedVolumeReplica>],
) -> Result<(), Error> {
    let changes = attach::access_replicas(configuration.volume_access, desired, replicas);
    let mut used: mainstay_placement::IdSet = replicas.iter().map(|replica| replica.id()).collect();
    for node in &changes.create {
        let Some(id) = used.lowest_free() else { break };
        used.insert(id);
        let name = replica_name(&volume.metadata.name, id);
        create(context, volume, &name, ReplicaType::Access, node).await?;
    }
    for replica in &changes.delete {
        remove(context, replica).await?;
    }
    Ok(())
}

async fn create(
    context: &Context,
    volume: &ReplicatedVolume,
    name: &str,
    kind: ReplicaType,
    node: &str,
) -> Result<Option<Revision>, Error> {
    let owner = OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: ReplicatedVolume::KIND.to_owned(),
        name: volume.metadata.name.clone(),
        uid: volume.metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let replica = ReplicatedVolumeReplica {
        metadata: ObjectMeta {
            name: name.to_owned(),
            owner_references: vec![owner],
            ..ObjectMeta::default()
        },
        spec: ReplicatedVolumeReplicaSpec {
            replicated_volume_name: volume.metadata.name.clone(),
            kind,
            node_name: node.to_owned(),
            lvm_volume_group_name: String::new(),
            lvm_volume_group_thin_pool_name: String::new(),
        },
        status: Default::default(),
    };
    let resources = &context.resources;
    let kind = resources.kind_of::<ReplicatedVolumeReplica>()?;
    let object = encode(kind, &replica)?;
    match resources.create(kind, None, object, &write::options(MANAGER)).await {
        Ok(created) => Ok(Some(created.record.revision())),
        Err(error) if error.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn remove(context: &Context, replica: &str) -> Result<(), Error> {
    let options = write::options(MANAGER);
    let delete = DeleteOptions::default();
    let resources = &context.resources;
    resources.delete_as::<ReplicatedVolumeReplica>(None, replica, &delete, &options).await?;
    Ok(())
}

/// Deletes replicas in order; when none is left, removes the volume's finalizer.
async fn delete(
    shared: &Shared,
    context: &Context,
    volume: &ReplicatedVolume,
    replicas: &[Arc<ReplicatedVolumeReplica>],
) -> Result<Outcome, Error> {
    let name = &volume.metadata.name;
    let progress = form::progress(volume, None, "", replicas);
    let adopted = AdoptedConfiguration {
        configuration: volume.status.configuration.clone(),
        generation: volume.status.configuration_generation,
        observed: volume.status.configuration_observed_generation,
        waiting_for: String::new(),
    };
    let attached = &volume.status.actually_attached_to;
    if !attached.is_empty() {
        let message = format!("still used by {}", attached.join(", "));
        let progress = Progress { message, ..progress };
        write_status(context, volume, &adopted, &progress, &[]).await?;
        return Ok(Outcome::Done);
    }
    for replica in form::deletions(replicas) {
        remove(context, &replica).await?;
    }
    if replicas.is_empty() && !any_replica(context, name).await? {
        let resources = &context.resources;
        write::remove_finalizer::<ReplicatedVolume>(resources, None, name, MANAGER, FINALIZER)
            .await?;
        return Ok(Outcome::Done);
    }
    let left = shared.views.replicas.by_index(BY_VOLUME, name);
    let progress = form::progress(volume, None, "", &left);
    write_status(context, volume, &adopted, &progress, &[]).await?;
    Ok(Outcome::Done)
}

/// Whether the store itself still has a replica of a volume.
async fn any_replica(context: &Context, volume: &str) -> Result<bool, Error> {
    let kind = context.resources.kind_of::<ReplicatedVolumeReplica>()?;
    let all = context.resources.list(kind, mainstay_store::objects::At::Latest).await?;
    Ok((0..32).any(|id| all.get(&kind.key(None, &replica_name(volume, id))).is_some()))
}

/// Writes the status of a volume, if it changed. Returns the revision of the write.
async fn write_status(
    context: &Context,
    volume: &ReplicatedVolume,
    adopted: &AdoptedConfiguration,
    progress: &Progress,
    desired: &[String],
) -> Result<Option<Revision>, Error> {
    let now = context.resources.clock().now();
    let update = StatusUpdate { seen: volume, adopted, progress, desired, now };
    let mut next = volume.clone();
    update.settle(&mut next);
    if next.status == volume.status {
        return Ok(None);
    }
    let settle = |volume: &mut ReplicatedVolume| update.settle(volume);
    let name = &volume.metadata.name;
    let written = write::set_status(&context.resources, None, name, MANAGER, settle).await?;
    Ok(written.as_ref().map(write::revision))
}

/// A change of a volume's status, computed from the volume as it was read.
struct StatusUpdate<'a> {
    seen: &'a ReplicatedVolume,
    adopted: &'a AdoptedConfiguration,
    progress: &'a Progress,
    desired: &'a [String],
    now: Timestamp,
}

impl StatusUpdate<'_> {
    /// Applies the change. Fields that this run did not change stay as they are now: another writer may
    /// have changed them since the volume was read.
    fn settle(&self, volume: &mut ReplicatedVolume) {
        let Self { seen, adopted, progress, desired, now } = self;
        let generation = volume.metadata.generation;
        let (status, before) = (&mut volume.status, &seen.status);
        if adopted.configuration != before.configuration
            || adopted.generation != before.configuration_generation
            || adopted.observed != before.configuration_observed_generation
        {
            status.configuration.clone_from(&adopted.configuration);
            status.configuration_generation = adopted.generation;
            status.configuration_observed_generation = adopted.observed;
        }
        if **desired != *before.desired_attach_to {
            status.desired_attach_to = desired.to_vec();
        }
        if progress.passing {
            return;
        }
        status.phase = Some(progress.phase);
        status.message.clone_from(&progress.message);
        status.replicas.clone_from(&progress.replicas);
        conditions::set(&mut status.conditions, &progress.statement, generation, *now);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_written_by_others_meanwhile_are_kept() {
        let volume = |status: serde_json::Value| -> ReplicatedVolume {
            let spec = json!({"size": "1Gi", "replicatedStorageClassName": "none"});
            let object = json!({"metadata": {"name": "v"}, "spec": spec, "status": status});
            serde_json::from_value(object).unwrap()
        };
        let seen = volume(json!({}));
        let by_now = json!({
            "configuration": {"topology": "Zonal", "failuresToTolerate": 1,
                "guaranteedMinimumDataRedundancy": 1, "volumeAccess": "Any",
                "storagePoolName": "pool"},
            "configurationGeneration": 1,
            "desiredAttachTo": ["node-a"],
        });
        let adopted = AdoptedConfiguration {
            configuration: None,
            generation: None,
            observed: None,
            waiting_for: "a class".to_owned(),
        };
        let none: &[Arc<ReplicatedVolumeReplica>] = &[];
        let progress = form::progress(&seen, None, &adopted.waiting_for, none);
        let now = Timestamp::UNIX_EPOCH;
        let update =
            StatusUpdate { seen: &seen, adopted: &adopted, progress: &progress, desired: &[], now };
        let mut volume = volume(by_now);
        let before = volume.status.clone();
        update.settle(&mut volume);
        let after = &volume.status;
        assert_eq!(after.configuration, before.configuration);
        assert_eq!(after.configuration_generation, before.configuration_generation);
        assert_eq!(after.desired_attach_to, before.desired_attach_to);
        assert_eq!(after.phase, Some(progress.phase));
    }
}
