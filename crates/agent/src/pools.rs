//! Provisioned disks as LVMVolumeGroups: what volumes are placed on.
//!
//! The group of a disk bears the name of its BlockDevice, and says in annotations where its space
//! is. A group that is taken out of use is first emptied: it is closed for new replicas, and those on
//! it are in the wrong place until they are elsewhere. It goes when the last replica has gone.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_controller::{Reflector, write};
use mainstay_disks::backend::{Backend, Error, Known, Pool};
use mainstay_disks::phase::Record;
use mainstay_host::{Place, Space};
use mainstay_store::builtin::Node;
use mainstay_store::meta::{Condition, ConditionStatus, Quantity, Time};
use mainstay_store::resources::{
    DeleteOptions, Error as StoreError, Reason, Resources, Subresource, WriteOptions,
};
use mainstay_volumes::api::{
    EVICT_ANNOTATION, LVMVolumeGroup, Local, ReplicatedVolumeReplica, UNSCHEDULABLE_ANNOTATION,
};
use tokio::sync::watch;

use crate::MANAGER;

/// Says where the space of a group is: a mount point, or `vg:NAME`.
const PATH: &str = "storage.mainstay.dev/path";
/// Says the tags of a group's disk.
const TAGS: &str = "storage.mainstay.dev/tags";
/// The index of replicas by the group they are on.
const BY_GROUP: &str = "group";

/// The pools of a node.
#[derive(Debug)]
pub struct Pools {
    resources: Resources,
    groups: Reflector<LVMVolumeGroup>,
    replicas: Reflector<ReplicatedVolumeReplica>,
    nodes: Reflector<Node>,
    changes: watch::Receiver<u64>,
    _subscription: parking_lot::Mutex<mainstay_controller::reflector::Subscription>,
}

impl Pools {
    /// The pools of one node, kept in `resources`. Follows only objects of that node: the server lets
    /// an agent read no others. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(resources: &Resources, node: &str) -> Self {
        let replicas: Reflector<ReplicatedVolumeReplica> = Reflector::of(resources)
            .field("spec.nodeName", node)
            .index(BY_GROUP, |replica: &ReplicatedVolumeReplica| {
                let group = replica.spec.lvm_volume_group_name.clone();
                Some(group).filter(|group| !group.is_empty())
            })
            .start();
        let (sender, changes) = watch::channel(0);
        let subscription = replicas.subscribe(move |_| {
            sender.send_modify(|count| *count += 1);
        });
        Self {
            resources: resources.clone(),
            groups: Reflector::of(resources).field("spec.local.nodeName", node).start(),
            nodes: Reflector::of(resources).field("metadata.name", node).start(),
            replicas,
            changes,
            _subscription: parking_lot::Mutex::new(subscription),
        }
    }

    async fn synced(&self) -> Result<(), Error> {
        let closed = |_| Error::Unavailable("the store has closed".to_owned());
        self.groups.wait_until_synced().await.map_err(closed)?;
        self.nodes.wait_until_synced().await.map_err(closed)?;
        self.replicas.wait_until_synced().await.map_err(closed)
    }

    /// Makes the group say what the pool is. One that does so already is not written.
    async fn write(&self, pool: &Pool, space: Space) -> Result<(), StoreError> {
        let (name, options) = (&pool.device, write_options());
        let now = Time::new(self.resources.clock().now());
        let mut group = match self.groups.find(None, name) {
            Some(group) => (*group).clone(),
            None => match self.make(pool, space, now).await? {
                Some(group) => group,
                None => return Ok(()),
            },
        };
        if !is_described(&group, pool) {
            let describe = |group: &mut LVMVolumeGroup| describe(group, pool);
            group = self.resources.modify_as(None, name, None, &options, describe).await?.0;
        }
        self.measured(group, pool, space).await
    }

    /// Writes the space and the readiness of a pool into its group. One that has them is not written.
    async fn measured(
        &self,
        mut group: LVMVolumeGroup,
        pool: &Pool,
        space: Space,
    ) -> Result<(), StoreError> {
        let (name, options) = (&pool.device, write_options());
        let now = Time::new(self.resources.clock().now());
        let mut next = group.clone();
        measure(&mut next, pool, space, now);
        if next.status != group.status {
            // A group that is gone meanwhile is an error: the next attempt makes it anew.
            let (status, measure) = (Some(Subresource::Status), |group: &mut LVMVolumeGroup| {
                measure(group, pool, space, now);
            });
            group = self.resources.modify_as(None, name, status, &options, measure).await?.0;
        }
        // The next read of the copy must see it. A reflector that has stopped shows nothing any more.
        let _ = self.groups.wait_until_at(write::revision(&group)).await;
        Ok(())
    }

    /// Creates the group of a pool, or returns the one that was created meanwhile.
    async fn make(
        &self,
        pool: &Pool,
        space: Space,
        now: Time,
    ) -> Result<Option<LVMVolumeGroup>, StoreError> {
        let mut group = LVMVolumeGroup::default();
        group.metadata.name.clone_from(&pool.device);
        group.spec.local = Local { node_name: pool.node.clone() };
        describe(&mut group, pool);
        measure(&mut group, pool, space, now);
        match self.resources.create_as(&group, &write_options()).await {
            Err(error) if error.is_already_exists() => {
                self.resources.get_as(None, &pool.device).await
            }
            made => made.map(Some),
        }
    }

    fn replicas(&self, pool: &Pool) -> Vec<String> {
        let replicas = self.replicas.by_index(BY_GROUP, &pool.device);
        replicas.iter().map(|replica| replica.metadata.name.clone()).collect()
    }
}

fn write_options() -> WriteOptions {
    write::options(MANAGER)
}

fn path(pool: &Pool) -> String {
    match &pool.place {
        Place::Filesystem { point } => point.clone(),
        Place::Group { name } => format!("vg:{name}"),
    }
}

fn tags(pool: &Pool) -> String {
    pool.tags.join(",")
}

fn describe(group: &mut LVMVolumeGroup, pool: &Pool) {
    let annotations = &mut group.metadata.annotations;
    annotations.insert(PATH.to_owned(), path(pool));
    annotations.insert(TAGS.to_owned(), tags(pool));
    if annotations.remove(EVICT_ANNOTATION).is_some() {
        annotations.remove(UNSCHEDULABLE_ANNOTATION);
    }
}

fn says(group: &LVMVolumeGroup, key: &str, value: &str) -> bool {
    group.metadata.annotations.get(key).is_some_and(|text| text == value)
}

fn is_described(group: &LVMVolumeGroup, pool: &Pool) -> bool {
    says(group, PATH, &path(pool))
        && says(group, TAGS, &tags(pool))
        && !group.metadata.annotations.contains_key(EVICT_ANNOTATION)
}

fn measure(group: &mut LVMVolumeGroup, pool: &Pool, space: Space, now: Time) {
    let status = &mut group.status;
    let (truth, reason, message) = match &pool.unready {
        None => (ConditionStatus::True, "Ready", String::new()),
        Some(why) => (ConditionStatus::False, why.reason.as_str(), why.message.clone()),
    };
    let phase = if pool.unready.is_none() { "Ready" } else { "NotReady" };
    phase.clone_into(&mut status.phase);
    if pool.unready.is_none() {
        status.vg_size = Some(Quantity::bytes(space.size));
        status.vg_free = Some(Quantity::bytes(space.free));
        status.extent_size = Some(Quantity::bytes(space.extent));
    }
    let known = status.conditions.iter_mut().find(|condition| condition.kind == "Ready");
    let since = match &known {
        Some(known) if known.status == truth => known.last_transition_time,
        _ => Some(now),
    };
    let condition = Condition {
        last_transition_time: since,
        last_update_time: None,
        message,
        observed_generation: None,
        reason: reason.to_owned(),
        status: truth,
        kind: "Ready".to_owned(),
    };
    match known {
        Some(known) => *known = condition,
        None => status.conditions.push(condition),
    }
}

/// The error of the store as an error of the backend.
fn trouble(error: StoreError) -> Error {
    match error.reason {
        Reason::Conflict => Error::Conflict,
        Reason::Invalid | Reason::Forbidden => Error::Refused(error.message),
        _ => Error::Unavailable(error.message),
    }
}

impl Backend for Pools {
    fn look<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Known, Error>> {
        async move {
            self.synced().await?;
            let group = self.groups.find(None, &pool.device);
            let record = match &group {
                _ if self.nodes.find(None, &pool.node).is_none() => Record::NoNode,
                None => Record::Missing,
                Some(group) if !says(group, PATH, &path(pool)) => Record::OtherPath,
                Some(group) if !says(group, TAGS, &tags(pool)) => Record::OtherTags,
                Some(_) => Record::Equal,
            };
            let closed = group.as_ref().is_some_and(|group| group.is_evicted());
            let ready = group.as_ref().is_some_and(|group| group.is_ready(""));
            Ok(Known { record, closed, ready, replicas: self.replicas(pool) })
        }
        .boxed()
    }

    fn register<'a>(&'a self, pool: &'a Pool, space: Space) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            self.synced().await?;
            if self.nodes.find(None, &pool.node).is_none() {
                return Err(Error::NoNode);
            }
            self.write(pool, space).await.map_err(trouble)
        }
        .boxed()
    }

    fn report_unready<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            self.synced().await?;
            let Some(group) = self.groups.find(None, &pool.device) else { return Ok(()) };
            let written = self.measured((*group).clone(), pool, Space::default()).await;
            match written {
                Err(error) if !error.is_not_found() => Err(trouble(error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn evict<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let asked = self
                .resources
                .modify_as(
                    None,
                    &pool.device,
                    None,
                    &write_options(),
                    |group: &mut LVMVolumeGroup| {
                        for key in [UNSCHEDULABLE_ANNOTATION, EVICT_ANNOTATION] {
                            group.metadata.annotations.entry(key.to_owned()).or_default();
                        }
                    },
                )
                .await;
            match asked {
                Err(error) if !error.is_not_found() => Err(trouble(error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn changed<'a>(&'a self, _pool: &'a Pool) -> BoxFuture<'a, ()> {
        let mut changes = self.changes.clone();
        changes.mark_unchanged();
        async move {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn remove<'a>(&'a self, pool: &'a Pool, lost: bool) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let replicas = self.replicas(pool);
            if !replicas.is_empty() && !lost {
                let names = replicas.join(", ");
                return Err(Error::Refused(format!("replicas are on it: {names}")));
            }
            let (delete, options) = (DeleteOptions::default(), write_options());
            self.resources
                .delete_as::<LVMVolumeGroup>(None, &pool.device, &delete, &options)
                .await
                .map_err(trouble)?;
            Ok(())
        }
        .boxed()
    }
}
