//! The controllers of volumes: each reads objects, applies a pure decision, and writes the difference.
//!
//! There is one controller for each kind, and one that schedules. All of them read the same reflectors
//! ([`Views`]) and write through [`Resources`], under the fence of the election if there is one. They
//! do not poll: a controller runs when an object it depends on changed, or when a known deadline (a
//! grace period, a reservation) passes. Enter at [`Volumes::start`].

mod attachment;
mod class;
mod pool;
mod replica;
mod scheduling;
mod volume;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_controller::election;
use mainstay_controller::events::{self, Recorder};
use mainstay_controller::reflector::Reflector;
use mainstay_controller::runtime::{self, Controller, Handle};
use mainstay_store::builtin::Node;
use mainstay_store::resources::{Identities, RandomIdentities, Resources};

use crate::api::{
    LVMVolumeGroup, ReplicatedStorageClass, ReplicatedStoragePool, ReplicatedVolume,
    ReplicatedVolumeAttachment, ReplicatedVolumeReplica,
};
use crate::extender::{Client, Extender};
use crate::reserve::{self, ReservationStore};
use crate::satisfy::is_misplaced;

/// The number of workers of the controllers other than volumes and scheduling, which go first under
/// load.
const FEW_WORKERS: usize = 2;

/// The largest number of events that wait to be written: every placed replica records one.
const EVENTS: usize = 10_000;

const BY_VOLUME: &str = "volume";
const BY_POOL: &str = "pool";
const BY_CLASS: &str = "class";
const BY_GROUP: &str = "group";
const MISPLACED: &str = "misplaced";
const CONFIGURED: &str = "configured";
const DEGRADED: &str = "degraded";

/// Reflectors of everything the controllers read.
#[derive(Clone, Debug)]
pub struct Views {
    /// Classes, by pool.
    pub classes: Reflector<ReplicatedStorageClass>,
    /// Pools, by group.
    pub pools: Reflector<ReplicatedStoragePool>,
    /// Volume groups.
    pub groups: Reflector<LVMVolumeGroup>,
    /// Nodes.
    pub nodes: Reflector<Node>,
    /// Volumes, by pool, by class, and by the generation of their configuration.
    pub volumes: Reflector<ReplicatedVolume>,
    /// Replicas, by volume.
    pub replicas: Reflector<ReplicatedVolumeReplica>,
    /// Attachments, by volume.
    pub attachments: Reflector<ReplicatedVolumeAttachment>,
}

impl Views {
    fn start(resources: &Resources) -> Self {
        Self {
            classes: Reflector::of(resources)
                .index(BY_POOL, |class: &ReplicatedStorageClass| {
                    [crate::configure::pool_name(class)]
                })
                .start(),
            pools: Reflector::of(resources)
                .index(BY_GROUP, |pool: &ReplicatedStoragePool| {
                    let groups = pool.spec.lvm_volume_groups.iter();
                    groups.map(|group| group.name.clone()).collect::<Vec<_>>()
                })
                .start(),
            groups: Reflector::of(resources).start(),
            nodes: Reflector::of(resources).start(),
            volumes: Reflector::of(resources)
                .index(BY_POOL, |volume: &ReplicatedVolume| {
                    let configuration = volume.status.configuration.as_ref();
                    configuration.map(|configuration| configuration.storage_pool_name.clone())
                })
                .index(BY_CLASS, |volume: &ReplicatedVolume| {
                    [volume.spec.replicated_storage_class_name.clone()]
                })
                .index(CONFIGURED, volume::configured)
                .index(DEGRADED, volume::degraded)
                .start(),
            replicas: Reflector::of(resources)
                .index(BY_VOLUME, |replica: &ReplicatedVolumeReplica| {
                    [replica.spec.replicated_volume_name.clone()]
                })
                .index(MISPLACED, |replica: &ReplicatedVolumeReplica| {
                    is_misplaced(replica).then_some("yes")
                })
                .start(),
            attachments: Reflector::of(resources)
                .index(BY_VOLUME, |attachment: &ReplicatedVolumeAttachment| {
                    [attachment.spec.replicated_volume_name.clone()]
                })
                .start(),
        }
    }

    fn volume(&self, name: &str) -> Option<Arc<ReplicatedVolume>> {
        self.volumes.find(None, name)
    }

    fn pool(&self, name: &str) -> Option<Arc<ReplicatedStoragePool>> {
        if name.is_empty() { None } else { self.pools.find(None, name) }
    }

    fn class(&self, name: &str) -> Option<Arc<ReplicatedStorageClass>> {
        self.classes.find(None, name)
    }

    /// The replicas of a volume, by id.
    fn replicas_of(&self, volume: &str) -> Vec<Arc<ReplicatedVolumeReplica>> {
        let mut replicas = self.replicas.by_index(BY_VOLUME, volume);
        replicas.sort_by_key(|replica| replica.id());
        replicas
    }

    fn attachments_of(&self, volume: &str) -> Vec<Arc<ReplicatedVolumeAttachment>> {
        self.attachments.by_index(BY_VOLUME, volume)
    }

    /// The pool of the volume a replica belongs to.
    fn pool_of(&self, replica: &ReplicatedVolumeReplica) -> Option<Arc<ReplicatedStoragePool>> {
        let volume = self.volume(&replica.spec.replicated_volume_name)?;
        self.pool(&volume.status.configuration.as_ref()?.storage_pool_name)
    }

    async fn shutdown(&self) {
        self.classes.shutdown().await;
        self.pools.shutdown().await;
        self.groups.shutdown().await;
        self.nodes.shutdown().await;
        self.volumes.shutdown().await;
        self.replicas.shutdown().await;
        self.attachments.shutdown().await;
    }
}

/// The state shared by all reconcilers.
#[derive(Clone, Debug)]
struct Shared {
    views: Views,
    extender: Extender,
    recorder: Recorder,
    waiting: Arc<scheduling::WaitingVolumes>,
}

/// Options of the controllers.
#[derive(Debug)]
pub struct Options {
    /// The identity of this server, under which it stores reservations.
    pub identity: String,
    /// An external extender, in place of the ledger.
    pub extender: Option<Client>,
    /// The number of volumes that are processed at once.
    pub workers: usize,
}

impl Options {
    /// With the ledger of this process, and 32 volumes at once, which share commits of the store.
    #[must_use]
    pub fn new(identity: &str) -> Self {
        Self { identity: identity.to_owned(), extender: None, workers: 32 }
    }
}

impl Options {
    /// The same with an identity that is unique to this run of the server `name`.
    #[must_use]
    pub fn of_run(name: &str) -> Self {
        Self::new(&format!("{name}-{}", RandomIdentities.uid()))
    }
}

/// The running controllers of volumes.
#[derive(Debug)]
pub struct Volumes {
    views: Views,
    reserve: Arc<ReservationStore>,
    recorder: Recorder,
    handles: Vec<Handle<String>>,
}

impl Volumes {
    /// Starts every controller. Must be called within a tokio runtime. With an election they run
    /// only while this process leads, and write under its fence. The future is boxed so that the
    /// controllers are compiled in this crate.
    ///
    /// # Errors
    /// If the stored reservations cannot be read.
    pub fn start<'a>(
        resources: &'a Resources,
        options: Options,
        election: Option<&'a election::Handle>,
    ) -> BoxFuture<'a, Result<Self, reserve::Error>> {
        Self::start_all(resources, options, election).boxed()
    }

    async fn start_all(
        resources: &Resources,
        options: Options,
        election: Option<&election::Handle>,
    ) -> Result<Self, reserve::Error> {
        let views = Views::start(resources);
        let reserve = ReservationStore::new(resources, options.identity.clone());
        reserve.load().await?;
        reserve.follow(&views.groups, &views.volumes, &views.replicas);
        let event_options =
            events::Options { waiting: EVENTS, ..events::Options::new("mainstay-volumes") };
        let recorder = Recorder::run(event_options, resources);
        let extender = match options.extender {
            None => Extender::Ledger(reserve.clone()),
            Some(client) => Extender::Client(Arc::new(client)),
        };
        let shared = Shared {
            views: views.clone(),
            extender,
            recorder: recorder.clone(),
            waiting: Arc::default(),
        };
        let prepare = |name: &str, workers| {
            let mut settings = runtime::Options::new(name);
            settings.workers = workers;
            let controller = Controller::new(settings, resources);
            match election {
                Some(election) => controller.led_by(election),
                None => controller,
            }
        };
        let handles = vec![
            class::start(prepare("storageclass", FEW_WORKERS), &shared),
            pool::start(prepare("storagepool", FEW_WORKERS), &shared),
            volume::start(prepare("volume", options.workers), &shared),
            scheduling::start(prepare("scheduling", options.workers), &shared),
            replica::start(prepare("replica", FEW_WORKERS), &shared),
            attachment::start(prepare("attachment", FEW_WORKERS), &shared),
        ];
        Ok(Self { views, reserve, recorder, handles })
    }

    /// The ledger.
    #[must_use]
    pub fn reserve(&self) -> &Arc<ReservationStore> {
        &self.reserve
    }

    /// The reflectors.
    #[must_use]
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Waits until running reconcilers have finished and all tasks have ended. Calling it again is
    /// harmless.
    pub async fn shutdown(&self) {
        for handle in &self.handles {
            handle.shutdown().await;
        }
        self.recorder.shutdown().await;
        self.views.shutdown().await;
    }
}
