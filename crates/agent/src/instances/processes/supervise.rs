//! Supervises a process from its start to its end: readiness, the order to stop and its grace, the
//! end, and the cleanup. The same for processes of an earlier agent.

use std::fs;
use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_clock::Backoff;
use mainstay_sessions::protocol::InstancePhase;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::cgroups::Group;
use super::state::{self, Alive, Saved};
use super::{ENDED, Order, ProcessRecord, Shared, lock, service, short_hash, spawn};
use crate::instances::ledger::Record;
use crate::instances::{Error, Id, Start, reason};

/// How long to wait before readiness is checked again.
const CHECKS: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));
/// How often and how long to check that the last process of a group is gone.
const LEAVING: (usize, Duration) = (200, Duration::from_millis(10));

/// The sign of readiness that is waited for.
async fn on<T>(maybe: &mut Option<BoxFuture<'static, T>>) -> T {
    match maybe {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Supervises one process until it or the agent ends.
pub(super) async fn supervise(shared: Arc<Shared>, id: Id, pidfd: OwnedFd) {
    let (mut orders, group, pid, phase, start, ports) = {
        let ledger = shared.ledger();
        let Ok(Record { state, own, .. }) = ledger.get(&id) else { return };
        let ports = own.alive.ports.clone();
        let orders = own.order.subscribe();
        (orders, own.group.clone(), own.alive.pid, state.phase(), own.start.clone(), ports)
    };
    #[expect(deprecated, reason = "the other way is unsafe, and an OwnedFd is what it must be")]
    let watched = AsyncFd::with_interest(pidfd, Interest::READABLE);
    let process = match watched {
        Ok(process) => process,
        Err(error) => {
            tracing::error!(instance = %id, %error, "supervising an instance failed");
            return;
        }
    };
    // An order from before an agent's restart counts too.
    orders.mark_changed();
    let creating = phase == InstancePhase::Creating;
    let mut readying = creating.then(|| ready(shared.clone(), start, ports).boxed());
    let (mut deadline, mut killed) = (None, false);
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            _ = process.readable() => break,
            changed = orders.changed() => {
                let order = orders.borrow_and_update().clone();
                if let (Ok(()), Some(order)) = (changed, order) {
                    terminate(&group, pid, process.get_ref());
                    readying = None;
                    deadline = Some(shared.clock.sleep(order.grace));
                }
            }
            in_time = on(&mut readying) => {
                readying = None;
                shared.ready(&id, in_time);
            }
            () = on(&mut deadline) => {
                deadline = None;
                killed = true;
                group.kill(pid);
            }
        }
    }
    let order = orders.borrow().clone();
    finish(&shared, &id, process.get_ref(), order, killed).await;
}

/// Asks a process and all it started to end.
fn terminate(group: &Group, pid: Pid, pidfd: &OwnedFd) {
    // A frozen process does not handle signals.
    let _ = group.thaw(pid);
    if kill_process_group(pid, Signal::TERM).is_err() {
        // It has no group of its own yet: then it has started nothing either.
        let _ = pidfd_send_signal(pidfd, Signal::TERM);
    }
}

/// The reason and message of an end.
fn judge(
    status: Option<&WaitIdStatus>,
    order: Option<&Order>,
    killed: bool,
    out_of_memory: bool,
) -> (&'static str, String) {
    let how = match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown exit code".to_owned(),
        },
        None => "an unknown exit code, since the agent was restarted".to_owned(),
    };
    match order {
        Some(order) if killed => {
            let seconds = order.grace.as_secs_f32();
            let message = &order.message;
            let why = if order.why == reason::STOPPED { reason::KILLED } else { order.why };
            (why, format!("{message}, did not end within {seconds} s, and was killed"))
        }
        Some(order) => (order.why, format!("{}, and ended with {how}", order.message)),
        None if out_of_memory => {
            (reason::OUT_OF_MEMORY, format!("it needed more memory than its limit: {how}"))
        }
        None if status.is_some_and(|status| status.terminating_signal().is_some()) => {
            (reason::SIGNALLED, format!("it was ended by a signal of another process: {how}"))
        }
        None => (reason::EXITED, format!("it ended by itself with {how}")),
    }
}

/// The end of an instance.
async fn finish(
    shared: &Arc<Shared>,
    id: &Id,
    pidfd: &OwnedFd,
    order: Option<Order>,
    killed: bool,
) {
    let (group, pid, file) = {
        let ledger = shared.ledger();
        let Ok(Record { own, .. }) = ledger.get(id) else { return };
        (own.group.clone(), own.alive.pid, own.file.clone())
    };
    // Its children do not outlive it. The unreaped process keeps its number reserved until then.
    group.kill(pid);
    // The exit status of an earlier agent's child cannot be read.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), options).ok().flatten();
    let out_of_memory = group.out_of_memory();
    let (why, message) = judge(status.as_ref(), order.as_ref(), killed, out_of_memory);
    tracing::info!(instance = %id, reason = why, detail = message, "instance ended");
    leave(&group, id, shared).await;
    // Recorded before it is reported: the server may start another instance of that name at once.
    let _one = lock(&file);
    shared.clean(id);
    let ended = shared.ledger().ended(id, why, message);
    if let Some(record) = ended {
        record.own.gone.cancel();
    }
}

/// Removes a group once the last of it is gone.
async fn leave(group: &Group, id: &Id, shared: &Shared) {
    for _ in 0..LEAVING.0 {
        if group.remove().is_ok() {
            return;
        }
        shared.clock.sleep(LEAVING.1).await;
    }
    tracing::warn!(instance = %id, "processes of a terminated instance are still running");
}

/// Ends a process that is not to be an instance after all.
pub(super) fn abandon(pid: Pid, group: &Group) {
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    group.kill(pid);
    if let Ok(pidfd) = pidfd {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    }
    let _ = group.remove();
}

/// Where readiness is to be seen.
enum Sign {
    Port(u16),
    File(PathBuf),
}

fn sign(start: &Start, ports: &[u16], folder: &std::path::Path) -> Result<Option<Sign>, Error> {
    let container = &start.process.process;
    let Some(readiness) = &container.readiness else { return Ok(None) };
    if let Some(wanted) = &readiness.port {
        let number = wanted.parse::<u16>().ok();
        let named = container.ports.iter().position(|port| {
            port.name == *wanted
                || (number.is_some() && port.container_port == number.map(i32::from))
        });
        let chosen = named.and_then(|at| ports.get(at).copied()).or(number);
        let why = || Error::Invalid(format!("readiness: there is no port {wanted}"));
        // Before ports are chosen, a name only must be one of them.
        let early = named.map(|_| 0);
        return chosen.or(early).map(|port| Some(Sign::Port(port))).ok_or_else(why);
    }
    let own = || folder.join("work");
    let working = container.working_dir.as_ref().map_or_else(own, PathBuf::from);
    Ok(readiness.file.as_ref().map(|file| Sign::File(working.join(file))))
}

/// Refuses a template whose instances never could be ready.
pub(super) fn readiness_is_possible(start: &Start) -> Result<(), Error> {
    sign(start, &[], std::path::Path::new("")).map(|_| ())
}

/// Whether an instance is ready in time.
async fn ready(shared: Arc<Shared>, start: Arc<Start>, ports: Vec<u16>) -> bool {
    let Ok(Some(sign)) = sign(&start, &ports, &shared.folder(&start.id)) else { return true };
    let seconds = start.process.process.readiness.as_ref().map_or(30, |r| r.timeout_seconds);
    let seconds = u64::try_from(seconds).unwrap_or(0).max(1);
    let looking = async {
        let mut checks = CHECKS.retries();
        loop {
            let there = match &sign {
                Sign::Port(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.is_ok(),
                Sign::File(file) => file.exists(),
            };
            if there {
                return;
            }
            shared.clock.sleep(checks.failed()).await;
        }
    };
    tokio::select! {
        () = looking => true,
        () = shared.clock.sleep(Duration::from_secs(seconds)) => false,
    }
}

impl Shared {
    /// A process is ready, or was not in time.
    fn ready(&self, id: &Id, in_time: bool) {
        if !in_time {
            let own = self.ledger().get(id).map(|record| record.own.start.process.grace_seconds);
            let grace = Duration::from_secs(own.unwrap_or(0).into());
            let message = "it was not ready in time".to_owned();
            // Not found means that it is over already.
            let _ = self.order(id, Order { grace, why: reason::NOT_READY, message });
            return;
        }
        let mut ledger = self.ledger();
        let Ok(record) = ledger.get(id) else { return };
        let Alive { pid, standby, .. } = record.own.alive;
        let mut to = InstancePhase::Running;
        if standby && record.session.is_none() {
            match record.own.group.freeze(pid) {
                Ok(()) => to = InstancePhase::Standby,
                Err(error) => tracing::warn!(instance = %id, %error, "freezing an instance failed"),
            }
        }
        let _ = ledger.step(id, &[InstancePhase::Creating], to);
        drop(ledger);
        self.present(id);
        self.keep(id);
    }

    /// Removes what an ended instance leaves, but for its log.
    fn clean(&self, id: &Id) {
        let folder = self.folder(id);
        Saved::forget(&folder);
        let _ = fs::remove_dir_all(folder.join("work"));
        let _ = fs::remove_dir_all(folder.join("config"));
        let sockets = self.options.folder.join("sockets");
        let _ = fs::remove_file(service::place(&sockets, id));
        if let Ok(record) = self.ledger().get(id) {
            let mut ports = lock(&self.ports);
            record.own.alive.ports.iter().for_each(|port| ports.free(*port));
        }
        self.sweep();
    }

    /// Removes the logs of those that ended longest ago.
    fn sweep(&self) {
        let mut ended: Vec<_> = self
            .folders()
            .into_iter()
            .filter(|folder| !folder.join("state.json").exists())
            .filter_map(|folder| Some((fs::metadata(&folder).ok()?.modified().ok()?, folder)))
            .collect();
        ended.sort();
        let many = ended.len().saturating_sub(ENDED);
        for (_, folder) in ended.into_iter().take(many) {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// The folders of instances.
    fn folders(&self) -> Vec<PathBuf> {
        let inside = |folder: PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|place| place.is_dir())
        };
        inside(self.options.folder.join("instances")).flat_map(inside).collect()
    }

    /// Adopts the instances of an earlier agent.
    pub(super) fn adopt_all(self: &Arc<Self>) -> io::Result<()> {
        for folder in self.folders() {
            match Saved::read(&folder) {
                Ok(Some(saved)) if self.folder(&saved.start().id) == folder => {
                    self.adopt(&saved)?
                }
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => {
                    let folder_name = folder.display();
                    tracing::warn!(
                        folder = %folder_name,
                        "invalid state file; terminating the processes of its instance"
                    );
                    let names: Vec<_> =
                        folder.iter().rev().take(2).map(|name| name.to_string_lossy()).collect();
                    if let [name, namespace] = names.as_slice() {
                        let id = Id::new(namespace, name);
                        let group = self.cgroups.group(&short_hash(&id.to_string()));
                        group.end_members();
                        let _ = group.remove();
                    }
                    Saved::forget(&folder);
                }
            }
        }
        Ok(())
    }

    fn adopt(self: &Arc<Self>, saved: &Saved) -> io::Result<()> {
        let start = Arc::new(saved.start());
        let id = start.id.clone();
        let Some(pid) = Pid::from_raw(saved.pid) else { return Ok(()) };
        let group = self.cgroups.group(&short_hash(&id.to_string()));
        let same_boot = saved.boot == self.boot;
        // Compared after the pidfd is open, so that the number cannot be reused in between.
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).ok();
        let lives = same_boot && state::started(pid) == Some(saved.started);
        let alive = Alive {
            pid,
            started: saved.started,
            ports: saved.ports.clone(),
            standby: saved.standby,
            seen: saved.seen,
        };
        let own = ProcessRecord::new(start.clone(), alive, group.clone(), &*self.clock);
        let (state, session) = (saved.state(), saved.session().map(Box::new));
        let phase = state.phase();
        self.ledger().add(Record { state, session, own });
        let Some(pidfd) = pidfd.filter(|_| lives) else {
            if same_boot {
                group.end_members();
            }
            let _ = group.remove();
            self.clean(&id);
            let message = match same_boot {
                true => "it ended while the agent was away",
                false => "the machine was restarted",
            };
            self.ledger().ended(&id, reason::LOST, message.to_owned());
            return Ok(());
        };
        for port in &saved.ports {
            lock(&self.ports).mark(*port);
        }
        let listener = if start.process.using_node_session_service {
            let socket = service::place(&self.options.folder.join("sockets"), &id);
            let user = spawn::user(&start.process.process).ok().flatten();
            Some(service::bind(&socket, user)?)
        } else {
            None
        };
        if phase == InstancePhase::Terminating {
            let grace = Duration::from_secs(start.process.grace_seconds.into());
            let message = "it was asked to stop".to_owned();
            self.order_again(&id, Order { grace, why: reason::STOPPED, message });
        }
        self.look_after(&id, pidfd, listener);
        self.present(&id);
        self.close_in_time(&id);
        self.show(&id);
        Ok(())
    }

    /// An order that was given before the agent was restarted.
    fn order_again(&self, id: &Id, order: Order) {
        if let Ok(record) = self.ledger().get(id) {
            record.own.order.send_replace(Some(order));
        }
    }
}
