//! The gateway: forwards from an external port to the instance of a session.
//!
//! A port is opened for a session and aimed at an instance. Aimed elsewhere, it stays bound: the
//! connections to the old instance end, new ones go to the new. Closed, it takes nobody new at once,
//! and those who are there may finish within a drain time.
//!
//! TCP goes from socket to socket through a pipe inside the kernel (`splice`), and is copied
//! where the kernel refuses that or all pipes are lent. A pipe is lent only while bytes are under
//! way, so a connection that says nothing costs two sockets and one task. UDP has a flow for every
//! client address, with a socket of its own to the instance.
//!
//! What always holds: no call waits for the network; whoever reads slowly slows only their own
//! connection; every `joined` event is followed by one `left` event of the same session and number,
//! unless the gateway is shut down; connections, flows and pipes are bounded. Enter at
//! [`Gateway::start`].

mod metrics;
mod splice;
mod tcp;
mod udp;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_store::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use metrics::Metrics;

use crate::api::Protocol;
use splice::Pipes;

/// A session: its namespace and name, as `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub String);

/// Somebody connected to a session, or is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEvent {
    /// The session.
    pub session: SessionKey,
    /// Which connection: a number that no other connection of this gateway has.
    pub id: u64,
    /// Where from.
    pub peer: SocketAddr,
    /// Whether it joined; else it left.
    pub joined: bool,
}

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program has it. Another port may do.
    #[error(
        "port {port}/{} is in use by another program on this machine; stop that program or leave \
         the port out of the gateway's range",
        protocol.as_str()
    )]
    PortInUse {
        /// Which.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
    },
    /// The machine does not let this program have it. No use to try again.
    #[error(
        "port {port}/{} may not be opened by this user; give the gateway a range above 1023 or \
         the capability CAP_NET_BIND_SERVICE",
        protocol.as_str()
    )]
    Denied {
        /// Which.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
    },
    /// It is open for another session. Close it first.
    #[error("port {port}/{} is open for session {}", protocol.as_str(), session.0)]
    Taken {
        /// Which.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// Who has it.
        session: SessionKey,
    },
    /// The gateway is shut down.
    #[error("the gateway is shut down")]
    Stopped,
    /// Anything else, such as no file descriptors left. Worth another try.
    #[error("port {port}/{} cannot be opened", protocol.as_str())]
    Bind {
        /// Which.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    fn of(port: u16, protocol: Protocol, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse { port, protocol },
            io::ErrorKind::PermissionDenied => Self::Denied { port, protocol },
            _ => Self::Bind { port, protocol, source },
        }
    }
}

/// How a gateway runs, and how much it takes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address it listens on.
    pub address: IpAddr,
    /// Connections and flows at once, altogether. More are turned away.
    pub connections: usize,
    /// Connections at once to one session. More are turned away.
    pub connections_per_session: usize,
    /// How long an instance has to take a connection.
    pub connect_timeout: Duration,
    /// Flows at once on one UDP port. For one more, the one that was silent longest is dropped.
    pub flows_per_port: usize,
    /// A UDP flow that is silent for so long ends.
    pub flow_idle: Duration,
    /// Pipes at once. Bytes that find none free are copied; with 0 all are.
    pub pipes: usize,
    /// Events that nobody has taken yet; a connection waits for room before it goes on.
    pub events: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            connections: 16_384,
            connections_per_session: 1_024,
            connect_timeout: Duration::from_secs(5),
            flows_per_port: 1_024,
            flow_idle: Duration::from_mins(1),
            pipes: 1_024,
            events: 4_096,
        }
    }
}

/// A running gateway: a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
}

type Ports = HashMap<(u16, Protocol), Port>;

/// What the handles and the tasks of a gateway share.
#[derive(Debug)]
struct Shared {
    options: Options,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    ports: Mutex<Ports>,
    pipes: Pipes,
    metrics: Metrics,
    events: mpsc::Sender<ClientEvent>,
    connections: AtomicUsize,
    clients: AtomicU64,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Shared {
    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection to `aim`, or nothing if there are too many.
    fn admit(self: &Arc<Self>, aim: &Arc<Aim>, limit: usize) -> Option<Admitted> {
        let all = take(&self.connections, self.options.connections);
        if !all || !take(&aim.connections, limit) {
            if all {
                self.connections.fetch_sub(1, Ordering::AcqRel);
            }
            self.metrics.refused.inc();
            return None;
        }
        Some(Admitted { shared: self.clone(), aim: aim.clone() })
    }

    /// Says that a client joined, and gives its number.
    async fn joined(&self, aim: &Aim, peer: SocketAddr) -> u64 {
        let id = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        self.say(aim, id, peer, true).await;
        id
    }

    /// Says that a client left.
    async fn left(&self, aim: &Aim, id: u64, peer: SocketAddr) {
        self.say(aim, id, peer, false).await;
    }

    async fn say(&self, aim: &Aim, id: u64, peer: SocketAddr, joined: bool) {
        let event = ClientEvent { session: aim.session.clone(), id, peer, joined };
        tokio::select! {
            // Nobody listens any more: then nobody misses it.
            _ = self.events.send(event) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// Adds one unless that is more than `limit`.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    let more = |now| (now < limit).then_some(now + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// A connection's place among the bounded number of them; dropped, it is free again.
#[derive(Debug)]
struct Admitted {
    shared: Arc<Shared>,
    aim: Arc<Aim>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::AcqRel);
        self.aim.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where a port leads for a while: until it is aimed elsewhere or closed.
#[derive(Debug)]
struct Aim {
    session: SessionKey,
    target: SocketAddr,
    /// Nobody new is taken.
    closed: CancellationToken,
    /// Whoever is there ends.
    cut: CancellationToken,
    tasks: TaskTracker,
    connections: AtomicUsize,
}

impl Aim {
    fn new(session: SessionKey, target: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            session,
            target,
            closed: CancellationToken::new(),
            cut: CancellationToken::new(),
            tasks: TaskTracker::new(),
            connections: AtomicUsize::new(0),
        })
    }

    /// Takes nobody new, and ends whoever is there.
    fn end(&self) {
        self.closed.cancel();
        self.cut.cancel();
    }

    /// Takes nobody new, gives those who are there `drain` to finish, and has none left after that.
    async fn drain(&self, drain: Duration, clock: &dyn Clock) {
        self.closed.cancel();
        self.tasks.close();
        if !drain.is_zero() {
            tokio::select! {
                () = self.tasks.wait() => {}
                () = clock.sleep(drain) => {}
                () = self.cut.cancelled() => {}
            }
        }
        self.cut.cancel();
        self.tasks.wait().await;
    }
}

/// The aim of an open port; the port's own task looks here for every connection.
#[derive(Debug)]
struct Aimed(Mutex<Arc<Aim>>);

impl Aimed {
    fn new(aim: Arc<Aim>) -> Self {
        Self(Mutex::new(aim))
    }

    fn get(&self) -> Arc<Aim> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, aim: Arc<Aim>) {
        let old =
            std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), aim);
        old.end();
    }
}

#[derive(Debug)]
enum Port {
    Tcp(Arc<tcp::Listening>),
    Udp(Arc<udp::Listening>),
}

impl Port {
    fn aimed(&self) -> &Aimed {
        match self {
            Self::Tcp(port) => &port.aimed,
            Self::Udp(port) => &port.aimed,
        }
    }
}

impl Gateway {
    /// Begins with no port open. The events are for whoever counts the clients of sessions; they
    /// must be taken.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn start(options: Options, clock: Arc<dyn Clock>) -> (Self, mpsc::Receiver<ClientEvent>) {
        let (events, heard) = mpsc::channel(options.events.max(1));
        let metrics = Metrics::default();
        let shared = Arc::new(Shared {
            pipes: Pipes::new(options.pipes),
            options,
            clock,
            runtime: Handle::current(),
            ports: Mutex::default(),
            metrics,
            events,
            connections: AtomicUsize::new(0),
            clients: AtomicU64::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        (Self { shared }, heard)
    }

    /// Forwards from `port` to `target` for `session`. Called again with the same, it changes
    /// nothing; with another target, connections to the old one end and new ones go to the new,
    /// while the port stays bound. Never waits.
    ///
    /// # Errors
    /// [`Error`]: another program or another session has the port, or it may not be had.
    pub fn open(
        &self,
        port: u16,
        protocol: Protocol,
        session: SessionKey,
        target: SocketAddr,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let _runtime = shared.runtime.enter();
        let mut ports = shared.ports();
        // Asked under the lock, so that nothing is opened behind the back of a shutdown.
        if shared.stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        let wrong = |source| Error::of(port, protocol, source);
        match ports.entry((port, protocol)) {
            Slot::Occupied(mut slot) => {
                let now = slot.get().aimed().get();
                if let Port::Udp(old) = slot.get()
                    && now.closed.is_cancelled()
                {
                    let again = udp::take_over(shared, old, port, Aim::new(session, target));
                    slot.insert(Port::Udp(again));
                } else if now.session != session {
                    return Err(Error::Taken { port, protocol, session: now.session.clone() });
                } else if now.target != target {
                    slot.get().aimed().set(Aim::new(session, target));
                    shared.metrics.retargeted.inc();
                }
            }
            Slot::Vacant(slot) => {
                let aim = Aim::new(session, target);
                let opened = match protocol {
                    Protocol::Tcp => tcp::listen(shared, port, aim).map(Port::Tcp),
                    Protocol::Udp => udp::listen(shared, port, aim).map(Port::Udp),
                };
                slot.insert(opened.map_err(wrong)?);
            }
        }
        shared.metrics.ports.set(i64::try_from(ports.len()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Takes nobody new on `port`, at once, and cuts those who are there when `drain` is over. The
    /// port can be opened again at once; what still drains goes on beside it (UDP flows end then:
    /// they need the port). Closing what is not open does nothing. Never waits.
    pub fn close(&self, port: u16, protocol: Protocol, drain: Duration) {
        let shared = &self.shared;
        let _runtime = shared.runtime.enter();
        let mut ports = shared.ports();
        match ports.get(&(port, protocol)) {
            Some(Port::Tcp(_)) => {
                if let Some(Port::Tcp(open)) = ports.remove(&(port, protocol)) {
                    tcp::close(shared, &open, drain);
                }
            }
            Some(Port::Udp(open)) if !open.aimed.get().closed.is_cancelled() => {
                udp::close(shared, open, port, drain);
            }
            Some(Port::Udp(_)) | None => {}
        }
        shared.metrics.ports.set(i64::try_from(ports.len()).unwrap_or(i64::MAX));
    }

    /// What was counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Closes all ports, cuts all connections, and waits until none is left. Nothing can be opened
    /// afterwards. Doing it twice is fine.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        let ports = {
            let mut ports = shared.ports();
            shared.stop.cancel();
            std::mem::take(&mut *ports)
        };
        for port in ports.values() {
            port.aimed().get().end();
        }
        drop(ports);
        shared.tasks.close();
        shared.tasks.wait().await;
        shared.metrics.ports.set(0);
    }
}

#[cfg(test)]
mod tests;
