//! The gateway forwards from an external port to the instance of a session.
//!
//! A port is opened for a session and forwards to its instance. When the instance changes, the port
//! stays bound: connections to the old instance end, new ones go to the new instance. A closed port
//! accepts no connections; existing ones may finish within a drain time.
//!
//! TCP data moves from socket to socket through a pipe inside the kernel (`splice`). It is copied if
//! the kernel does not support that for a socket or all pipes are in use. A connection borrows a
//! pipe only while it has data, so an idle connection costs two sockets and one task. UDP has a flow
//! for every client address, with a socket of its own to the instance.
//!
//! Invariants: no call waits for the network; a slow reader slows only its own connection; every
//! `joined` event is followed by one `left` event of the same session and number, unless the gateway
//! is shut down; the numbers of connections, flows and pipes are bounded. Enter at
//! [`Gateway::start`].

mod metrics;
mod splice;
mod tcp;
mod udp;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mainstay_clock::Clock;
use parking_lot::{Mutex, MutexGuard};
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

/// A client connected to a session, or disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEvent {
    /// The session.
    pub session: SessionKey,
    /// The number of the connection, unique in this gateway.
    pub id: u64,
    /// The client's address.
    pub peer: SocketAddr,
    /// Whether it joined; else it left.
    pub joined: bool,
}

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program uses the port. Try another port.
    #[error(
        "port {port}/{} is in use by another program on this machine; stop that program or leave \
         the port out of the gateway's range",
        protocol.as_str()
    )]
    PortInUse {
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
    },
    /// The operating system denies the port. Do not retry.
    #[error(
        "port {port}/{} may not be opened by this user; give the gateway a range above 1023 or \
         the capability CAP_NET_BIND_SERVICE",
        protocol.as_str()
    )]
    Denied {
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
    },
    /// The port is open for another session. Close it first.
    #[error("port {port}/{} is open for session {}", protocol.as_str(), session.0)]
    Taken {
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// The session that has the port.
        session: SessionKey,
    },
    /// The gateway is shut down.
    #[error("the gateway is shut down")]
    Stopped,
    /// Any other error, such as no file descriptors left. Retry later.
    #[error("port {port}/{} cannot be opened", protocol.as_str())]
    Bind {
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// The error of the operating system.
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

/// Address and limits of a gateway.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address it listens on.
    pub address: IpAddr,
    /// The largest number of connections and flows in total. More are refused.
    pub connections: usize,
    /// The largest number of connections to one session. More are refused.
    pub connections_per_session: usize,
    /// How long connecting to an instance may take.
    pub connect_timeout: Duration,
    /// The largest number of flows on one UDP port. One more replaces the flow idle for longest.
    pub flows_per_port: usize,
    /// A UDP flow without packets for this long ends.
    pub flow_idle: Duration,
    /// The largest number of pipes. Data is copied while none is free; with 0 always.
    pub pipes: usize,
    /// The capacity of the event channel; a connection waits for room in it.
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

/// A running gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
}

type Ports = HashMap<(u16, Protocol), Port>;

/// The state shared by handles and tasks.
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
        self.ports.lock()
    }

    /// A permit for one more connection to `destination`; `None` at a limit.
    fn admit(
        self: &Arc<Self>,
        destination: &Arc<Destination>,
        limit: usize,
    ) -> Option<ConnectionPermit> {
        let all = take(&self.connections, self.options.connections);
        if !all || !take(&destination.connections, limit) {
            if all {
                self.connections.fetch_sub(1, Ordering::AcqRel);
            }
            self.metrics.refused.inc();
            return None;
        }
        Some(ConnectionPermit { shared: self.clone(), destination: destination.clone() })
    }

    /// Emits the event that a client joined, and returns its number.
    async fn joined(&self, destination: &Destination, peer: SocketAddr) -> u64 {
        let id = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        self.say(destination, id, peer, true).await;
        id
    }

    /// Emits the event that a client left.
    async fn left(&self, destination: &Destination, id: u64, peer: SocketAddr) {
        self.say(destination, id, peer, false).await;
    }

    async fn say(&self, destination: &Destination, id: u64, peer: SocketAddr, joined: bool) {
        let event = ClientEvent { session: destination.session.clone(), id, peer, joined };
        tokio::select! {
            // The receiver is gone: the event is not needed.
            _ = self.events.send(event) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// Adds one, unless the count is at `limit`.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    let more = |now| (now < limit).then_some(now + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// Counts one connection towards the limits until it is dropped.
#[derive(Debug)]
struct ConnectionPermit {
    shared: Arc<Shared>,
    destination: Arc<Destination>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::AcqRel);
        self.destination.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The session and instance that a port forwards to, until they change or the port is closed.
#[derive(Debug)]
struct Destination {
    session: SessionKey,
    target: SocketAddr,
    /// Cancelled when no new connection is accepted.
    closed: CancellationToken,
    /// Cancelled when existing connections must end.
    cut: CancellationToken,
    tasks: TaskTracker,
    connections: AtomicUsize,
}

impl Destination {
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

    /// Accepts no new connection and ends the existing ones.
    fn end(&self) {
        self.closed.cancel();
        self.cut.cancel();
    }

    /// Accepts no new connection, and ends the existing ones after `drain` at the latest. Returns when
    /// none is left.
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

/// The destination of an open port; the port's task reads it for every connection.
#[derive(Debug)]
struct CurrentDestination(Mutex<Arc<Destination>>);

impl CurrentDestination {
    fn new(destination: Arc<Destination>) -> Self {
        Self(Mutex::new(destination))
    }

    fn get(&self) -> Arc<Destination> {
        self.0.lock().clone()
    }

    fn set(&self, destination: Arc<Destination>) {
        let old = std::mem::replace(&mut *self.0.lock(), destination);
        old.end();
    }
}

#[derive(Debug)]
enum Port {
    Tcp(Arc<tcp::TcpPort>),
    Udp(Arc<udp::UdpPort>),
}

impl Port {
    fn current(&self) -> &CurrentDestination {
        match self {
            Self::Tcp(port) => &port.current,
            Self::Udp(port) => &port.current,
        }
    }
}

impl Gateway {
    /// Starts with no port open. The caller must receive the events; otherwise connections wait.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn start(options: Options, clock: Arc<dyn Clock>) -> (Self, mpsc::Receiver<ClientEvent>) {
        let (events, receiver) = mpsc::channel(options.events.max(1));
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
        (Self { shared }, receiver)
    }

    /// Forwards `port` to `target` for `session`. Calling it again with the same arguments changes
    /// nothing; with another target, connections to the old one end and new ones go to the new one,
    /// while the port stays bound. Never waits.
    ///
    /// # Errors
    /// [`Error`]: the port is used by another program or session, or the system denies it.
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
        // Checked under the lock, so that no port is opened during a shutdown.
        if shared.stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        let wrong = |source| Error::of(port, protocol, source);
        match ports.entry((port, protocol)) {
            Slot::Occupied(mut slot) => {
                let now = slot.get().current().get();
                if let Port::Udp(old) = slot.get()
                    && now.closed.is_cancelled()
                {
                    let again =
                        udp::take_over(shared, old, port, Destination::new(session, target));
                    slot.insert(Port::Udp(again));
                } else if now.session != session {
                    return Err(Error::Taken { port, protocol, session: now.session.clone() });
                } else if now.target != target {
                    slot.get().current().set(Destination::new(session, target));
                    shared.metrics.retargeted.inc();
                }
            }
            Slot::Vacant(slot) => {
                let destination = Destination::new(session, target);
                let opened = match protocol {
                    Protocol::Tcp => tcp::listen(shared, port, destination).map(Port::Tcp),
                    Protocol::Udp => udp::listen(shared, port, destination).map(Port::Udp),
                };
                slot.insert(opened.map_err(wrong)?);
            }
        }
        shared.metrics.ports.set(i64::try_from(ports.len()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Stops accepting connections on `port` at once, and ends the existing ones after `drain`. The
    /// port can be opened again at once; draining TCP connections continue beside it, while UDP flows
    /// end because they need the port. Closing a port that is not open does nothing. Never waits.
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
            Some(Port::Udp(open)) if !open.current.get().closed.is_cancelled() => {
                udp::close(shared, open, port, drain);
            }
            Some(Port::Udp(_)) | None => {}
        }
        shared.metrics.ports.set(i64::try_from(ports.len()).unwrap_or(i64::MAX));
    }

    /// The metrics of this gateway.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Closes all ports, ends all connections, and waits until none is left. Afterwards no port can be
    /// opened. Calling it twice is harmless.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        let ports = {
            let mut ports = shared.ports();
            shared.stop.cancel();
            std::mem::take(&mut *ports)
        };
        for port in ports.values() {
            port.current().get().end();
        }
        drop(ports);
        shared.tasks.close();
        shared.tasks.wait().await;
        shared.metrics.ports.set(0);
    }
}

#[cfg(test)]
mod tests;
