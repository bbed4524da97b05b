//! The shell: it reads, lets the pure parts decide, writes, and runs operations.
//!
//! Four pieces around one [`Shell`]: the scan ([`scan`]) keeps [`World`] (which disk is which
//! object's) current and makes objects; the reconciler ([`reconcile`]) takes one object at a time,
//! asks the table, and writes the answer by compare-and-swap; the job queue runs what a lock phase
//! stands for ([`job`] takes the disk and the object, [`resume`] takes up what another process
//! began, [`work`] and [`pool`] do it, [`outcome`] writes how it ended); and quarantine keeps the
//! lease of what could not be ended.
//!
//! What always holds: a lock phase is written before its operation is queued, and only the writer
//! that won queues it; the end of an operation counts only while its token stands; every write that
//! loses a race is dropped, for the winner's change brings the object back.
//!
//! Enter at [`Disks::start`].

mod end;
mod job;
mod outcome;
mod pool;
mod reconcile;
mod resume;
mod scan;
mod work;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_controller::events::{self, Recorder, Severity};
use mainstay_controller::jobs::{self, JobQueue};
use mainstay_controller::rate::{Flow, Rate};
use mainstay_controller::{Clock, Reflector, runtime, write};
use mainstay_store::builtin::ConfigMap;
use mainstay_store::object::Revision;
use mainstay_store::resources::{Identities, Resources, WriteOptions};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::world::World;
use crate::api::{BlockDevice, Makes};
use crate::backend::{Backend, Pool};
use crate::config::{self, Config};
use crate::host::{Disk, Host, Place};
use crate::lease::Leases;
use crate::memory::Memory;
use crate::metrics::Metrics;

/// The field manager of everything this crate writes.
const MANAGER: &str = "mainstay-agent";
/// The name of the index of objects by what links them with disks.
const BY_LINK: &str = "link";

/// How long what was seen at the end of an operation is believed.
const FRESH: Duration = Duration::from_millis(500);

/// Why disks cannot be looked after.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What uses disks cannot be reached. Retried.
    #[error(transparent)]
    Backend(#[from] crate::backend::Error),
    /// The machine did not answer. Retried.
    #[error("{0}")]
    Host(String),
    /// The store did not do as asked. Retried.
    #[error(transparent)]
    Store(#[from] mainstay_store::resources::Error),
    /// What is wanted cannot be remembered. Retried.
    #[error("what is wanted of the disk cannot be remembered")]
    Memory(#[source] std::io::Error),
    /// The store has closed.
    #[error("the objects cannot be followed")]
    Reflector(#[from] mainstay_controller::reflector::Error),
}

impl From<crate::host::Trouble> for Error {
    fn from(trouble: crate::host::Trouble) -> Self {
        Self::Host(trouble.message().to_owned())
    }
}

/// How disks are looked after.
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
    /// How many operations may start within a stretch of time.
    pub rate: Option<Rate>,
    /// How often everything is looked at though nothing was heard.
    pub safety_scan: Duration,
    /// How often the space of a pool is looked at.
    pub refresh: Duration,
    /// What counts where the ConfigMap says nothing.
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

/// What disks are looked after with.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The objects.
    pub resources: Resources,
    /// Where identities come from.
    pub identities: Arc<dyn Identities>,
    /// The machine.
    pub host: Arc<dyn Host>,
    /// What uses disks.
    pub backend: Arc<dyn Backend>,
    /// What is remembered.
    pub memory: Arc<Memory>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What all pieces share.
#[derive(Debug)]
struct Shell {
    options: Options,
    parts: Parts,
    objects: Reflector<BlockDevice>,
    recorder: Recorder,
    leases: Leases,
    world: Mutex<World>,
    /// The tokens of operations this process wrote, and when they were queued.
    mine: Mutex<BTreeMap<String, Duration>>,
    /// Disks as they were at the end of an operation a moment ago, by object.
    fresh: Mutex<BTreeMap<String, (Duration, Disk)>>,
    /// Objects whose operation is queued or running.
    busy: Mutex<BTreeSet<String>>,
    /// The versions this process wrote that its copy of the objects may not show yet.
    ahead: Mutex<BTreeMap<String, Revision>>,
    jobs: std::sync::OnceLock<jobs::Handle<String>>,
    reconciler: std::sync::OnceLock<runtime::Handle<String>>,
    /// Rings when objects and disks must be matched anew.
    rematch: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Shell {
    fn clock(&self) -> &Arc<dyn Clock> {
        self.parts.resources.clock()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mine(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what was seen of a disk at the end of an operation, for the look that follows.
    fn saw(&self, name: &str, disk: Disk) {
        let now = self.clock().elapsed();
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.retain(|_, (at, _)| now.saturating_sub(*at) < FRESH);
        fresh.insert(name.to_owned(), (now, disk));
    }

    /// What was seen of a disk a moment ago. Says so once, and not for long: whatever acts on a
    /// disk looks at it again, under its lease.
    fn seen_just_now(&self, name: &str) -> Option<Disk> {
        let now = self.clock().elapsed();
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, disk) = fresh.remove(name)?;
        (now.saturating_sub(at) < FRESH).then_some(disk)
    }

    /// Notes what this process wrote.
    fn wrote(&self, device: &BlockDevice) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.insert(device.metadata.name.clone(), write::revision(device));
    }

    /// Whether a copy of an object is older than what this process wrote. Says so once: a store
    /// that was put back to an older state shall not be waited for.
    fn is_stale(&self, copy: &BlockDevice) -> bool {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let written = ahead.remove(&copy.metadata.name);
        written.is_some_and(|written| write::revision(copy) < written)
    }

    /// Where an object's filesystem is mounted.
    fn point(&self, name: &str) -> String {
        format!("{}/{name}", self.options.mount_root)
    }

    /// An object's disk as what uses disks knows it.
    fn pool(&self, device: &BlockDevice, unready: Option<String>) -> Pool {
        let name = &device.metadata.name;
        let place = match device.makes() {
            Makes::Filesystem(_) => Place::Filesystem { point: self.point(name) },
            Makes::Lvm(lvm) => Place::Group { name: lvm.vg_name },
        };
        Pool {
            device: name.clone(),
            node: self.options.node.clone(),
            place,
            tags: device.spec.tags.clone(),
            unready,
        }
    }

    /// Has an object looked at.
    fn wake(&self, name: &str) {
        if let Some(reconciler) = self.reconciler.get() {
            reconciler.add(name.to_owned());
        }
    }

    /// Has the operation of an object's lock phase run. Calling it again changes nothing.
    fn enqueue(&self, name: &str) {
        self.busy().insert(name.to_owned());
        if let Some(jobs) = self.jobs.get() {
            jobs.add(name.to_owned());
        }
    }

    fn tell(&self, device: &BlockDevice, severity: Severity, reason: &str, message: &str) {
        self.recorder.event(&events::reference(device), severity, reason, message);
    }

    fn write_options() -> WriteOptions {
        write::options(MANAGER)
    }
}

/// The disks of a node, looked after.
#[derive(Debug)]
pub struct Disks {
    shell: Arc<Shell>,
    config: Reflector<ConfigMap>,
    subscriptions: Vec<mainstay_controller::reflector::Subscription>,
    scanner: tokio::task::JoinHandle<()>,
}

impl Disks {
    /// Reads what is there, takes up what was interrupted, and begins to look after the disks of a
    /// node. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the store closes before it was read once.
    pub async fn start(options: Options, parts: Parts) -> Result<Self, Error> {
        let resources = &parts.resources;
        let objects: Reflector<BlockDevice> = Reflector::of(resources)
            .field("spec.nodeName", &options.node)
            .index(BY_LINK, |device: &BlockDevice| scan::known(device).links())
            .start();
        let config: Reflector<ConfigMap> = Reflector::of(resources)
            .namespace(config::NAMESPACE)
            .field("metadata.name", config::NAME)
            .start();
        let recording = events::Options {
            instance: options.node.clone(),
            remembered: 1_024,
            // What happened is told without haste, as kubelet does it: the disks come first.
            waiting: 8_192,
            at_once: 2,
            pace: Some(Flow { interval: Duration::from_millis(20), burst: 10 }),
            ..events::Options::new("mainstay-agent")
        };
        let recorder = Recorder::run(recording, resources);
        let shell = Arc::new(Shell {
            options,
            parts: parts.clone(),
            objects: objects.clone(),
            recorder,
            leases: Leases::default(),
            world: Mutex::default(),
            mine: Mutex::default(),
            fresh: Mutex::default(),
            busy: Mutex::default(),
            ahead: Mutex::default(),
            jobs: std::sync::OnceLock::new(),
            reconciler: std::sync::OnceLock::new(),
            rematch: Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        objects.wait_until_synced().await?;
        config.wait_until_synced().await?;
        shell.configure(&config);
        shell.first_scan().await;
        let queue = jobs::Options {
            rate: shell.options.rate,
            meter: parts.metrics.clone(),
            ..jobs::Options::new("disks", shell.options.slots)
        };
        let worker = shell.clone();
        let jobs = JobQueue::run(queue, shell.clock().clone(), move |slot| {
            let shell = worker.clone();
            async move { shell.run_job(slot).await }
        });
        // The slots are empty: this is the only place that fills them.
        let _ = shell.jobs.set(jobs);
        shell.take_up();
        let reconciler = shell.clone();
        // Most of a look is waiting, for a disk or for the server; each that waits for the server has
        // a connection of its own.
        let workers = runtime::Options { workers: 8, ..runtime::Options::new("disks") };
        let handle = runtime::Controller::new(workers, resources)
            .watch(&objects, |device: &BlockDevice| [device.metadata.name.clone()])
            .run(move |_, name| {
                let shell = reconciler.clone();
                async move { shell.reconcile(&name).await }
            });
        let _ = shell.reconciler.set(handle);
        let subscriptions = shell.listen(&objects, &config);
        let scanner = tokio::spawn(shell.clone().scan_for_ever());
        Ok(Self { shell, config, subscriptions, scanner })
    }

    /// How many operations wait and run.
    #[must_use]
    pub fn depth(&self) -> mainstay_controller::meter::Depth {
        self.shell.jobs.get().map(jobs::Handle::depth).unwrap_or_default()
    }

    /// Ends at once, as kill -9 would: nothing is finished, nothing is written.
    #[cfg(test)]
    async fn crash(self) {
        self.scanner.abort();
        self.shell.stop.cancel();
        if let Some(jobs) = self.shell.jobs.get() {
            jobs.shutdown(Duration::ZERO).await;
        }
        if let Some(reconciler) = self.shell.reconciler.get() {
            reconciler.shutdown().await;
        }
    }

    /// Begins no more, lets running operations finish within the grace, and waits until every task
    /// has ended. What was interrupted is taken up by the next start.
    pub async fn shutdown(self) {
        let Self { shell, config, subscriptions, scanner } = self;
        drop(subscriptions);
        shell.stop.cancel();
        if let Some(reconciler) = shell.reconciler.get() {
            reconciler.shutdown().await;
        }
        if let Some(jobs) = shell.jobs.get() {
            jobs.shutdown(shell.options.grace).await;
        }
        // A scanner that panicked has nothing left to end.
        let _ = scanner.await;
        shell.tasks.close();
        shell.tasks.wait().await;
        shell.recorder.shutdown().await;
        config.shutdown().await;
        shell.objects.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
