//! Instances as real processes that outlive the agent.
//!
//! An instance has a folder of its own: its state file ([`state`]), its log
//! ([`logs`]), its settings, and the folder it works in. It has a session and, where the machine has
//! them, control groups of its own ([`cgroups`]), and it is watched by its pidfd, so that its end is
//! noticed without polling, whether this agent started it or an earlier one ([`supervise`]).
//!
//! Always true: no program runs that is not recorded ([`spawn`]); a process is taken for
//! an instance only if its number, its start time and the machine's boot match its state file;
//! a command whose state cannot be written is refused as a whole, and running instances keep running.

mod cgroups;
mod logs;
mod ports;
mod service;
mod sessions;
mod spawn;
mod start;
mod state;
mod supervise;

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_clock::Clock;
use mainstay_sessions::protocol::{CloseSession, InstancePhase, OpenSession, ReadLog, Report};
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ledger::{Done, Ledger};
use super::outbox::Outbox;
use super::{Error, Events, Id, Log, Runtime, Start, reason};
use crate::private;
use cgroups::{Cgroups, Group};
use ports::Ports;
use service::Service;
use state::{Alive, Saved};

/// How many pings an instance may miss.
const MISSED: u32 = 3;
/// How many ended instances keep their log.
const ENDED: usize = 32;
/// How often the size of logs is checked.
const LOGS: Duration = Duration::from_secs(1);

/// How processes are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where instances are kept. If instances run as other users, these must be able to pass it.
    pub folder: PathBuf,
    /// The node's address, as others reach it.
    pub address: String,
    /// Where ports are chosen from.
    pub ports: RangeInclusive<u16>,
    /// Whether control groups are used where the machine has them.
    pub cgroups: bool,
    /// How often an instance that uses the session service must send a ping.
    pub ping: Duration,
}

impl Options {
    /// As usual, with instances kept in `folder`.
    #[must_use]
    pub fn new(folder: PathBuf, address: &str) -> Self {
        Self {
            folder,
            address: address.to_owned(),
            ports: 20_000..=29_999,
            cgroups: true,
            ping: Duration::from_mins(1),
        }
    }
}

/// The runtime of real processes. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Processes {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    clock: Arc<dyn Clock>,
    boot: String,
    cgroups: Cgroups,
    unlimited: AtomicBool,
    ledger: Mutex<Ledger<ProcessRecord>>,
    outbox: Outbox,
    ports: Mutex<Ports>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The part of an instance's record that only this runtime has.
#[derive(Debug)]
struct ProcessRecord {
    start: Arc<Start>,
    alive: Alive,
    group: Group,
    /// Held while the instance's file is written.
    file: Arc<Mutex<()>>,
    order: watch::Sender<Option<Order>>,
    service: Option<Arc<Service>>,
    gone: CancellationToken,
}

impl ProcessRecord {
    fn new(start: Arc<Start>, alive: Alive, group: Group, clock: &dyn Clock) -> Self {
        let uses = start.process.using_node_session_service;
        let service = uses.then(|| Service::new(alive.seen, clock.elapsed()));
        Self {
            start,
            alive,
            group,
            file: Arc::default(),
            order: watch::Sender::new(None),
            service,
            gone: CancellationToken::new(),
        }
    }
}

/// The order to end an instance.
#[derive(Clone, Debug)]
struct Order {
    grace: Duration,
    why: &'static str,
    message: String,
}

/// A short hash of a name.
fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    hex::encode(&digest[..8])
}

/// Whether a name can be that of a folder.
fn plain(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.chars().all(fits)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Processes {
    /// Adopts the instances whose state files are in the folder: living ones are supervised as
    /// before, those that died meanwhile are reported as terminated.
    ///
    /// # Errors
    /// The folder cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(options: Options, clock: Arc<dyn Clock>) -> io::Result<(Self, Events)> {
        private::passed_folder(&options.folder.join("instances"))?;
        private::passed_folder(&options.folder.join("sockets"))?;
        let place = fs::canonicalize(&options.folder)?;
        let name = format!("mainstay-{}", short_hash(&place.display().to_string()));
        let cgroups = if options.cgroups { Cgroups::find(&name) } else { Cgroups::default() };
        let (outbox, events) = Outbox::new();
        let shared = Arc::new(Shared {
            boot: state::boot_id()?,
            ports: Mutex::new(Ports::new(&options.ports)),
            options: Options { folder: place, ..options },
            clock,
            cgroups,
            unlimited: AtomicBool::new(false),
            ledger: Mutex::new(Ledger::new(outbox.clone())),
            outbox,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        shared.adopt_all()?;
        shared.tasks.spawn(keep_logs_small(shared.clone()));
        Ok((Self { shared }, events))
    }

    /// Which of `cpu` and `memory` this machine cannot limit.
    #[must_use]
    pub fn cannot_limit(&self) -> Vec<&'static str> {
        self.shared.cgroups.missing()
    }
}

async fn keep_logs_small(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.clock.sleep(LOGS) => {}
            () = shared.stop.cancelled() => return,
        }
        let ids = shared.ledger().ids();
        let folders: Vec<_> = ids.iter().map(|id| shared.folder(id)).collect();
        let looked = tokio::task::spawn_blocking(move || {
            for folder in folders {
                if let Err(error) = logs::rotate(&folder) {
                    tracing::warn!(folder = %folder.display(), %error, "truncating the log of an instance failed");
                }
            }
        });
        // It fails only after a panic, which is logged where it happened.
        let _ = looked.await;
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger<ProcessRecord>> {
        lock(&self.ledger)
    }

    fn folder(&self, id: &Id) -> PathBuf {
        self.options.folder.join("instances").join(&id.namespace).join(&id.name)
    }

    /// Writes the state file of an instance, unless the instance has ended.
    fn save(&self, id: &Id) -> io::Result<()> {
        let Ok(file) = self.ledger().get(id).map(|record| record.own.file.clone()) else {
            return Ok(());
        };
        let _one = lock(&file);
        let saved = {
            let ledger = self.ledger();
            let Ok(record) = ledger.get(id) else { return Ok(()) };
            let ProcessRecord { start, alive, .. } = &record.own;
            Saved::of(&self.boot, start, alive, &record.state, record.session.as_deref())
        };
        saved.write(&self.folder(id))
    }

    /// The same, but ignores failures: the next change writes it again.
    fn keep(&self, id: &Id) {
        if let Err(error) = self.save(id) {
            tracing::warn!(instance = %id, %error, "writing the state file of an instance failed");
        }
    }

    /// Orders an instance to end.
    fn order(&self, id: &Id, order: Order) -> Result<(), Error> {
        use InstancePhase::{Activating, Creating, Evacuating, Running, Standby, Terminating};
        let from = [Creating, Standby, Activating, Running, Evacuating];
        let mut ledger = self.ledger();
        let new = ledger.step(id, &from, Terminating)?;
        ledger.get(id)?.own.order.send_if_modified(|now| {
            let sooner = now.as_ref().is_none_or(|now| order.grace < now.grace);
            if sooner {
                let why =
                    now.take().map_or(order.clone(), |now| Order { grace: order.grace, ..now });
                *now = Some(why);
            }
            sooner
        });
        drop(ledger);
        if new == Done::New {
            self.keep(id);
        }
        Ok(())
    }

    fn freeze(&self, id: &Id) -> Result<(), Error> {
        let mut ledger = self.ledger();
        let record = ledger.idle(id)?;
        if record.state.phase() == InstancePhase::Running {
            let (group, pid) = (&record.own.group, record.own.alive.pid);
            let failed = |error| Error::Failed(format!("instance {id} cannot be frozen: {error}"));
            group.freeze(pid).map_err(failed)?;
        }
        ledger.get_mut(id)?.own.alive.standby = true;
        ledger.step(id, &[InstancePhase::Running], InstancePhase::Standby)?;
        drop(ledger);
        self.keep(id);
        Ok(())
    }

    /// Thaws an instance; the caller writes the state file.
    fn thawed(&self, id: &Id) -> Result<(), Error> {
        let mut ledger = self.ledger();
        let record = ledger.alive(id)?;
        if record.state.phase() == InstancePhase::Standby {
            let (group, pid) = (&record.own.group, record.own.alive.pid);
            let failed = |error| Error::Failed(format!("instance {id} cannot be thawed: {error}"));
            group.thaw(pid).map_err(failed)?;
        }
        ledger.get_mut(id)?.own.alive.standby = false;
        ledger.step(id, &[InstancePhase::Standby], InstancePhase::Running)?;
        Ok(())
    }

    /// An instance's log, of one that is there or that ended not long ago.
    fn log(&self, read: &ReadLog) -> Result<Log, Error> {
        let id = Id::new(&read.namespace, &read.instance);
        let gone = self.ledger().get(&id).map(|record| record.own.gone.clone());
        let missing = match &gone {
            Err(missing) => missing.clone(),
            Ok(_) => Error::Failed(format!("the log of instance {id} cannot be read")),
        };
        if !plain(&id.namespace) || !plain(&id.name) {
            return Err(missing);
        }
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        let follow = gone.ok().filter(|_| read.follow);
        let follow = follow.map(|gone| logs::Follow { gone, stop, tasks });
        let log = logs::read(&self.folder(&id), read.tail, follow, self.clock.clone());
        log.map_err(|_| missing)
    }
}

impl Runtime for Processes {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<(), Error>> {
        let shared = self.shared.clone();
        async move {
            if shared.stop.is_cancelled() {
                return Err(Error::Failed("the agent is shutting down".to_owned()));
            }
            if shared.ledger().known(&start)? == Done::Again {
                return Ok(());
            }
            // It uses the disk and forks: run it on a blocking thread.
            let begun = tokio::task::spawn_blocking(move || shared.begin(start)).await;
            begun.unwrap_or_else(|error| Err(Error::Failed(error.to_string())))
        }
        .boxed()
    }

    fn stop(&self, id: Id, grace: Option<Duration>) -> BoxFuture<'_, Result<(), Error>> {
        let stop = || {
            let own = u64::from(self.shared.ledger().get(&id)?.own.start.process.grace_seconds);
            let grace = grace.unwrap_or(Duration::from_secs(own));
            let message = "it was asked to stop".to_owned();
            self.shared.order(&id, Order { grace, why: reason::STOPPED, message })
        };
        std::future::ready(stop()).boxed()
    }

    fn freeze(&self, id: Id) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.shared.freeze(&id)).boxed()
    }

    fn thaw(&self, id: Id) -> BoxFuture<'_, Result<(), Error>> {
        let thawed = self.shared.thawed(&id);
        self.shared.keep(&id);
        std::future::ready(thawed).boxed()
    }

    fn open(&self, open: OpenSession) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.shared.open_session(open)).boxed()
    }

    fn close(&self, close: CloseSession) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.shared.close_session(&close)).boxed()
    }

    fn read_log(&self, read: ReadLog) -> BoxFuture<'_, Result<Log, Error>> {
        std::future::ready(self.shared.log(&read)).boxed()
    }

    fn report(&self) -> Report {
        self.shared.ledger().report()
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        async {
            self.shared.stop.cancel();
            self.shared.tasks.close();
            self.shared.tasks.wait().await;
            self.shared.outbox.end();
            self.shared.cgroups.remove();
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
