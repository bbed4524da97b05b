//! Manages the disks of a node: finds them, decides about them, and runs operations on them.
//!
//! | part | owns | does |
//! |---|---|---|
//! | `scan` | – | finds disks, matches them with objects, creates and deletes objects |
//! | `reconcile` | – | decides about one object at a time by the phase table, and writes the decision |
//! | `rehearse` | – | answers dry runs with the decisions of `reconcile` |
//! | `worker` | quarantined operations | runs the operation that a lock phase stands for |
//! | `machine` | – | the options, and the interfaces to host, backend, memory and events |
//! | `devices` | the copy of the objects | reads and writes BlockDevices |
//! | `inventory` | the result of the last scan | which disk belongs to which object |
//! | `configuration` | the valid configuration | applies the ConfigMap |
//! | `operations` | tokens, leases, the job queue | which operations are queued or running |
//! | `observe` | – | reads everything a decision depends on |
//! | `watch` | – | reads the pools every few seconds, and queues those that changed |
//! | `signals` | – | how the parts wake each other |
//!
//! Always true: a lock phase is written before its operation is queued, and only the writer that won
//! queues it; the result of an operation is written only while its token is in the object; a write that
//! loses a race is dropped, because the change that won queues the object again.
//!
//! Enter at [`Disks::start`].

mod configuration;
mod devices;
mod end;
mod inventory;
mod job;
mod machine;
mod observe;
mod operations;
mod outcome;
mod pool;
mod reconcile;
mod rehearse;
mod resume;
mod scan;
mod signals;
mod watch;
mod work;
mod worker;
mod world;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::events::{self, Recorder};
use mainstay_controller::jobs::{self, JobQueue};
use mainstay_controller::meter::Depth;
use mainstay_controller::rate::{Flow, Rate};
use mainstay_controller::reflector::Subscription;
use mainstay_controller::{Reflector, runtime};
use mainstay_host::Host;
use mainstay_store::builtin::ConfigMap;
use mainstay_store::resources::{Identities, Resources};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::configuration::Configuration;
use self::devices::Devices;
use self::inventory::Inventory;
use self::machine::Machine;
use self::observe::Observer;
use self::operations::Operations;
use self::reconcile::Reconciler;
use self::scan::Scanner;
use self::signals::Signals;
use self::watch::PoolWatch;
use self::worker::Worker;
use crate::api::BlockDevice;
use crate::backend::Backend;
use crate::config::{self, Config};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::phase::Phase;

/// Why the disks of a node cannot be managed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend cannot be reached. Retried.
    #[error(transparent)]
    Backend(#[from] crate::backend::Error),
    /// The host did not answer. Retried.
    #[error("{0}")]
    Host(String),
    /// A read or write of the store failed. Retried.
    #[error(transparent)]
    Store(#[from] mainstay_store::resources::Error),
    /// The wanted state cannot be written to the state folder. Retried.
    #[error("writing the wanted state of the disk to the state folder failed")]
    Memory(#[source] std::io::Error),
    /// The store has closed.
    #[error("BlockDevices cannot be watched")]
    Reflector(#[from] mainstay_controller::reflector::Error),
}

impl From<mainstay_host::Trouble> for Error {
    fn from(trouble: mainstay_host::Trouble) -> Self {
        Self::Host(trouble.message().to_owned())
    }
}

/// How disks are managed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node.
    pub node: String,
    /// Where filesystems are mounted: `ROOT/NAME`.
    pub mount_root: String,
    /// Only disks whose path one of these patterns matches; all if there is none.
    pub devices: Vec<String>,
    /// How many operations run at once.
    pub slots: NonZeroUsize,
    /// How many operations may start within an interval.
    pub rate: Option<Rate>,
    /// How often everything is scanned without an event.
    pub safety_scan: Duration,
    /// How often the record of a pool is written anew if it differs at all.
    pub refresh: Duration,
    /// How often pools are read, to report what changed noticeably.
    pub watch: Duration,
    /// The configuration where the ConfigMap has no value.
    pub defaults: Config,
    /// How long running operations may take to finish at shutdown.
    pub grace: Duration,
    /// No operation takes longer than this, whatever its own limit.
    pub longest: Option<Duration>,
}

impl Options {
    /// Five operations at once, no limit on the rate of starts, a safety scan every ten minutes.
    #[must_use]
    pub fn new(node: &str, mount_root: &str) -> Self {
        Self {
            node: node.to_owned(),
            mount_root: mount_root.trim_end_matches('/').to_owned(),
            devices: Vec::new(),
            slots: NonZeroUsize::new(5).unwrap_or(NonZeroUsize::MIN),
            rate: None,
            safety_scan: Duration::from_secs(600),
            refresh: Duration::from_secs(300),
            watch: Duration::from_secs(5),
            defaults: Config::default(),
            grace: Duration::from_secs(10),
            longest: None,
        }
    }

    /// How long an operation may take.
    fn limit(&self, operation: crate::phase::Operation, size: u64) -> Duration {
        let own = crate::report::limit(operation, size).unwrap_or(Duration::MAX);
        self.longest.map_or(own, |longest| own.min(longest))
    }
}

/// The interfaces that [`Disks`] uses.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The objects.
    pub resources: Resources,
    /// Where identities come from.
    pub identities: Arc<dyn Identities>,
    /// The host.
    pub host: Arc<dyn Host>,
    /// The user of provisioned disks.
    pub backend: Arc<dyn Backend>,
    /// The wanted state, kept durably.
    pub memory: Arc<Memory>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The running controller of a node's disks.
#[derive(Debug)]
pub struct Disks {
    machine: Arc<Machine>,
    devices: Arc<Devices>,
    operations: Arc<Operations>,
    signals: Arc<Signals>,
    config: Reflector<ConfigMap>,
    subscriptions: Vec<Subscription>,
    scanner: tokio::task::JoinHandle<()>,
    watch: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    quarantined: TaskTracker,
}

impl Disks {
    /// Reads the objects and the disks, resumes interrupted operations, and begins to manage the disks
    /// of a node. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the store closes before it was read once.
    pub async fn start(options: Options, parts: Parts) -> Result<Self, Error> {
        let resources = parts.resources.clone();
        let devices = Arc::new(Devices::follow(&resources, &options.node));
        let config: Reflector<ConfigMap> = Reflector::of(&resources)
            .namespace(config::NAMESPACE)
            .field("metadata.name", config::NAME)
            .start();
        let recorder = Recorder::run(recording(&options.node), &resources);
        let machine = Arc::new(Machine::new(options, parts, recorder));
        let options = &machine.options;
        let observer = Arc::new(Observer {
            machine: machine.clone(),
            inventory: Arc::new(Inventory::new(machine.clock.clone())),
            configuration: Arc::new(Configuration::new(&options.node, &options.defaults)),
            operations: Arc::default(),
        });
        let operations = observer.operations.clone();
        let signals = Arc::new(Signals::default());
        devices.copy().wait_until_synced().await?;
        config.wait_until_synced().await?;
        let map = config.find(Some(config::NAMESPACE), config::NAME);
        observer.configuration.apply(map.as_deref(), &machine.recorder);
        let scanner = Scanner {
            machine: machine.clone(),
            devices: devices.clone(),
            observer: observer.clone(),
            signals: signals.clone(),
        };
        scanner.first_scan().await;
        let (stop, quarantined) = (CancellationToken::new(), TaskTracker::new());
        let worker = Worker {
            machine: machine.clone(),
            devices: devices.clone(),
            observer: observer.clone(),
            operations: operations.clone(),
            signals: signals.clone(),
            stop: stop.clone(),
            tasks: quarantined.clone(),
        };
        start_jobs(Arc::new(worker));
        let reconciler = Reconciler {
            machine: machine.clone(),
            devices: devices.clone(),
            observer: observer.clone(),
            operations: operations.clone(),
            signals: signals.clone(),
        };
        start_reconciler(Arc::new(reconciler), &resources);
        let subscriptions = vec![
            apply_changes(&config, &observer, &devices, &signals),
            rematch_deleted(&devices, &signals),
        ];
        let scanner = tokio::spawn(scanner.run(stop.clone()));
        let watch = PoolWatch { devices: devices.clone(), observer, signals: signals.clone() };
        let watch = tokio::spawn(watch.run(stop.clone()));
        Ok(Self {
            machine,
            devices,
            operations,
            signals,
            config,
            subscriptions,
            scanner,
            watch,
            stop,
            quarantined,
        })
    }

    /// How many operations wait and run.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.operations.depth()
    }

    /// Ends at once, as kill -9 would: running operations are not finished, and no result is written.
    #[cfg(test)]
    async fn crash(self) {
        self.scanner.abort();
        self.watch.abort();
        self.stop.cancel();
        self.operations.shutdown(Duration::ZERO).await;
        self.signals.shutdown().await;
    }

    /// Starts no more operations, lets running ones finish within the grace, and waits until every task
    /// has ended. The next start resumes interrupted operations.
    pub async fn shutdown(self) {
        drop(self.subscriptions);
        self.stop.cancel();
        self.signals.shutdown().await;
        self.operations.shutdown(self.machine.options.grace).await;
        // A task that panicked has ended as well.
        let _ = self.scanner.await;
        let _ = self.watch.await;
        self.quarantined.close();
        self.quarantined.wait().await;
        self.machine.recorder.shutdown().await;
        self.config.shutdown().await;
        self.devices.copy().shutdown().await;
    }
}

/// How Events are written: slowly, as kubelet does, so that writes of BlockDevices come first.
fn recording(node: &str) -> events::Options {
    events::Options {
        instance: node.to_owned(),
        remembered: 1_024,
        waiting: 8_192,
        at_once: 2,
        pace: Some(Flow { interval: Duration::from_millis(20), burst: 10 }),
        ..events::Options::new("mainstay-agent")
    }
}

/// Starts the job queue, and queues interrupted operations.
fn start_jobs(worker: Arc<Worker>) {
    let Machine { options, clock, metrics, .. } = &*worker.machine;
    let queue = jobs::Options {
        rate: options.rate,
        meter: metrics.clone(),
        ..jobs::Options::new("disks", options.slots)
    };
    let (operations, devices) = (worker.operations.clone(), worker.devices.clone());
    let jobs = JobQueue::run(queue, clock.clone(), move |slot| {
        let worker = worker.clone();
        async move { worker.run_job(slot).await }
    });
    operations.run_in(jobs);
    for device in devices.list() {
        if device.phase().is_some_and(Phase::is_lock) {
            operations.enqueue(&device.metadata.name);
        }
    }
}

/// Starts the reconciler.
fn start_reconciler(reconciler: Arc<Reconciler>, resources: &Resources) {
    let signals = reconciler.signals.clone();
    // A reconciliation mostly waits, for a disk or for the server.
    let options = runtime::Options { workers: 8, ..runtime::Options::new("disks") };
    let handle = runtime::Controller::new(options, resources)
        .watch(reconciler.devices.copy(), |device: &BlockDevice| [device.metadata.name.clone()])
        .run(move |_, name: String| {
            let reconciler = reconciler.clone();
            async move { reconciler.reconcile(&name).await }
        });
    signals.run_by(handle);
}

/// Applies every change of the ConfigMap.
fn apply_changes(
    config: &Reflector<ConfigMap>,
    observer: &Arc<Observer>,
    devices: &Arc<Devices>,
    signals: &Arc<Signals>,
) -> Subscription {
    let (observer, devices, signals) = (observer.clone(), devices.clone(), signals.clone());
    // The first call repeats the state that was applied at the start.
    let seen = parking_lot::Mutex::new(config.find(Some(config::NAMESPACE), config::NAME));
    config.subscribe(move |change| {
        let previous = std::mem::replace(&mut *seen.lock(), change.new.clone());
        if previous == change.new {
            return;
        }
        let recorder = &observer.machine.recorder;
        if observer.configuration.apply(change.new.as_deref(), recorder) {
            devices.list().iter().for_each(|device| signals.reconcile(&device.metadata.name));
        }
        signals.rematch();
    })
}

/// Matches disks and objects again whenever an object is deleted.
fn rematch_deleted(devices: &Devices, signals: &Arc<Signals>) -> Subscription {
    let signals = signals.clone();
    devices.copy().subscribe(move |change| {
        if change.new.is_none() {
            signals.rematch();
        }
    })
}

#[cfg(test)]
mod tests;
