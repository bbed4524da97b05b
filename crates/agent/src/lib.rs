//! The agent: manages the disks and the instances of one node.
//!
//! It connects to its servers and needs no port of its own. It joins with a token and gets a
//! certificate for its own node's objects ([`join`]), maintains the Node object and its heartbeat Lease
//! ([`node`]), registers provisioned disks as LVMVolumeGroups ([`pools`]), manages disks
//! ([`mainstay_disks`]), and runs instances ([`instances`]) on command of the servers ([`link`]).
//!
//! While no server answers it starts no new operation, finishes the running ones, and reports them when
//! a server answers again. State that must survive a restart is in the state folder. Enter at
//! [`Agent::start`].

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

use mainstay_client::{Address, AddressError, Client};
use mainstay_clock::{Backoff, Clock};
use mainstay_disks::memory::Memory;
use mainstay_disks::metrics::Metrics;
use mainstay_disks::{Disks, Parts, Rate};
use mainstay_host::Host;
use mainstay_host::linux::{self, LinuxHost};
use mainstay_store::kubernetes::KubernetesStore;
use mainstay_store::objects::Objects;
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources};
use tokio_util::sync::CancellationToken;

use crate::instances::Runtime;

/// The field manager of everything the agent writes.
pub const MANAGER: &str = "mainstay-agent";

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server address is invalid. Correct it.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Joining failed. The cause tells whether a retry helps.
    #[error(transparent)]
    Join(#[from] join::Error),
    /// The state folder cannot be read or written.
    #[error("the state folder {folder} cannot be used")]
    State {
        /// Which.
        folder: String,
        /// Why.
        source: std::io::Error,
    },
    /// The kernel's events cannot be received.
    #[error("listening for kernel events failed")]
    Machine(#[source] std::io::Error),
    /// The kinds contradict each other: a programming error.
    #[error(transparent)]
    Kinds(#[from] mainstay_store::registry::Error),
    /// The disks cannot be managed.
    #[error(transparent)]
    Disks(#[from] mainstay_disks::controller::Error),
    /// The Node object cannot be written.
    #[error("writing the Node object failed")]
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
    /// The folder of the state that survives restarts.
    pub state_dir: PathBuf,
    /// Where filesystems are mounted.
    pub mount_root: PathBuf,
    /// Only disks that one of these patterns matches.
    pub devices: Vec<String>,
    /// Loop devices that `devices` matches count as disks.
    pub allow_loop: bool,
    /// How many operations on disks run at once.
    pub slots: NonZeroUsize,
    /// How many operations on disks may start within an interval.
    pub rate: Option<Rate>,
    /// Where the kernel's trees are.
    pub roots: linux::Roots,
    /// How often the heartbeat Lease is renewed.
    pub heartbeat: Duration,
    /// The address at which this node's instances are reached, if it cannot be guessed.
    pub address: Option<String>,
    /// Thousandths of a processor that instances may have; all there are if not given.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory that instances may have; all there is if not given.
    pub memory_bytes: Option<u64>,
    /// The disk configuration where the cluster's ConfigMap has no value.
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
    /// Joins, writes the Node object, and begins to manage disks and instances. Waits for a server
    /// without a limit.
    ///
    /// # Errors
    /// [`Error`], for failures that waiting does not fix.
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
        tasks.spawn(node::renew_lease(
            resources.clone(),
            options.clone(),
            host.clone(),
            stop.clone(),
        ));
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

    /// The metrics of disks.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Finishes running operations within a grace period, and ends.
    pub async fn shutdown(self) {
        let Self { disks, instances, store, stop, mut tasks, .. } = self;
        disks.shutdown().await;
        stop.cancel();
        instances.shutdown().await;
        while tasks.join_next().await.is_some() {}
        store.close().await;
    }
}

/// How long to wait before a server is contacted again.
pub(crate) const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
