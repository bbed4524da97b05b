//! The agent: the node side of Mainstay. It finds the disks of its node and looks after them.
//!
//! It dials out to its servers and needs no port of its own. It joins with a token, is given a
//! certificate that lets it write its own node's objects and no others ([`join`]), keeps a Node
//! object and a heartbeat ([`node`]), registers provisioned disks as LVMVolumeGroups ([`pools`]),
//! drives the phases of its disks ([`mainstay_disks`]), and runs instances ([`instances`]) as servers
//! command on its line to them ([`link`]).
//!
//! While no server answers it begins nothing new, finishes what it has begun, and reports it when
//! one answers again. What must survive a restart is in its state folder. Enter at [`Agent::start`].

pub mod instances;
pub mod join;
pub mod link;
pub mod node;
pub mod pools;
mod private;
mod sessions;
pub mod simulation;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_disks::host::Host;
use mainstay_disks::host::linux::{self, LinuxHost};
use mainstay_disks::memory::Memory;
use mainstay_disks::metrics::Metrics;
use mainstay_disks::{Disks, Parts, Rate};
use mainstay_store::clock::Clock;
use mainstay_store::kubernetes::{Address, AddressError, Client, KubernetesStore};
use mainstay_store::objects::Objects;
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources};
use tokio_util::sync::CancellationToken;

use crate::instances::Runtime;

/// Who writes, as `metadata.managedFields` has it.
pub const MANAGER: &str = "mainstay-agent";

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address is none. Give another.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It could not join. The cause says whether to try again.
    #[error(transparent)]
    Join(#[from] join::Error),
    /// The state folder cannot be used.
    #[error("the state folder {folder} cannot be used")]
    State {
        /// Which.
        folder: String,
        /// Why.
        source: std::io::Error,
    },
    /// The machine's events cannot be heard.
    #[error("this machine cannot be watched")]
    Machine(#[source] std::io::Error),
    /// The kinds contradict each other: a mistake in the program.
    #[error(transparent)]
    Kinds(#[from] mainstay_store::registry::Error),
    /// Disks cannot be looked after.
    #[error(transparent)]
    Disks(#[from] mainstay_disks::controller::Error),
    /// The node's object cannot be written.
    #[error("the node cannot be reported")]
    Node(#[source] mainstay_store::resources::Error),
}

/// How an agent runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its servers, the preferred one first.
    pub servers: Vec<String>,
    /// The token to join with; not needed once there is a certificate.
    pub token: Option<String>,
    /// The certificate authority of the servers, as PEM.
    pub ca: Option<String>,
    /// The node's name.
    pub node: String,
    /// The zone it is in.
    pub zone: Option<String>,
    /// Where what must survive is kept.
    pub state_dir: PathBuf,
    /// Where filesystems are mounted.
    pub mount_root: PathBuf,
    /// Only disks that one of these patterns matches.
    pub devices: Vec<String>,
    /// Loop devices that `devices` matches count as disks.
    pub allow_loop: bool,
    /// How many operations on disks run at once.
    pub slots: NonZeroUsize,
    /// How many operations on disks may start within a stretch of time.
    pub rate: Option<Rate>,
    /// Where the kernel's trees are.
    pub roots: linux::Roots,
    /// How often the heart beats.
    pub heartbeat: Duration,
    /// The address at which this node's instances are reached, if it cannot be guessed.
    pub address: Option<String>,
    /// Thousandths of a processor that instances may have; all there are if not given.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory that instances may have; all there is if not given.
    pub memory_bytes: Option<u64>,
    /// What counts where the cluster's configuration says nothing.
    pub defaults: mainstay_disks::config::Config,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    disks: Disks,
    instances: Arc<dyn Runtime>,
    store: Arc<dyn Objects>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

impl Agent {
    /// Joins, reports its node, and begins to look after its disks and instances. Waits for a server for as long
    /// as it takes.
    ///
    /// # Errors
    /// [`Error`]: what waiting does not mend.
    pub async fn start(mut options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let folder = &options.state_dir.clone();
        let state = |source| Error::State { folder: folder.display().to_string(), source };
        private::tighten(folder).map_err(state)?;
        let servers: Result<Vec<_>, _> =
            options.servers.iter().map(|s| Address::parse(s)).collect();
        let client = Arc::new(Client::new(servers?, join::access(&options)?));
        join::join(&client, &options, &*clock).await?;
        let kinds =
            builtin().into_iter().chain(mainstay_volumes::kinds()).chain(mainstay_disks::kinds());
        let registry = Arc::new(Registry::new(kinds)?);
        let store = KubernetesStore::new(client.clone(), registry.clone(), clock.clone(), MANAGER);
        let store: Arc<dyn Objects> = Arc::new(store);
        let identities = Arc::new(RandomIdentities);
        let resources = Resources::new(store.clone(), registry, clock.clone(), identities.clone());
        let host = LinuxHost::new(linux::Options {
            roots: options.roots.clone(),
            state_dir: folder.join("disks"),
            loops: if options.allow_loop { options.devices.clone() } else { Vec::new() },
            path: None,
        });
        let host: Arc<dyn Host> = Arc::new(host.map_err(Error::Machine)?);
        options.zone = node::report(&resources, &options, &*host).await.map_err(Error::Node)?;
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(node::beat(resources.clone(), options.clone(), host.clone(), stop.clone()));
        let instances =
            sessions::start(&options, &client, &host.boot_id(), &clock, &stop, &mut tasks)
                .map_err(state)?;
        tasks.spawn(join::keep_fresh(client, options.clone(), clock, stop.clone()));
        let metrics = Arc::new(Metrics::default());
        let memory = Memory::open(&folder.join("wanted.json")).map_err(state)?;
        let mut settings =
            mainstay_disks::Options::new(&options.node, &options.mount_root.display().to_string());
        settings.devices.clone_from(&options.devices);
        settings.slots = options.slots;
        settings.rate = options.rate;
        settings.defaults = options.defaults.clone();
        let parts = Parts {
            backend: Arc::new(pools::Pools::new(&resources, &options.node)),
            resources,
            identities,
            host,
            memory: Arc::new(memory),
            metrics: metrics.clone(),
        };
        let disks = Disks::start(settings, parts).await?;
        Ok(Self { disks, instances, store, metrics, stop, tasks })
    }

    /// What was counted, as Prometheus reads it.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Finishes what is under way within a while, and ends.
    pub async fn shutdown(self) {
        let Self { disks, instances, store, stop, mut tasks, .. } = self;
        disks.shutdown().await;
        stop.cancel();
        instances.shutdown().await;
        while tasks.join_next().await.is_some() {}
        store.close().await;
    }
}

/// How long one waits before a server is asked again, at first and at most.
pub(crate) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(10));
