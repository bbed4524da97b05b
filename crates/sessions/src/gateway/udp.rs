//! UDP ports: a flow for every client address, with a socket of its own to the instance, so that
//! the instance's answers reach the right client.
//!
//! A packet that cannot be sent at once is dropped, as networks do; no packet is queued.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::net::SendFlags;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ConnectionPermit, CurrentDestination, Destination, Port, Protocol, Shared};

/// The largest UDP packet, in bytes.
const MAX_PACKET: usize = 65_536;

thread_local! {
    /// One buffer per thread: it is never held across an await.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_PACKET]);
}

/// An open UDP port.
#[derive(Debug)]
pub(super) struct UdpPort {
    pub(super) current: CurrentDestination,
    socket: Arc<UdpSocket>,
    flows: Mutex<HashMap<SocketAddr, Arc<Flow>>>,
    stop: CancellationToken,
    /// The tasks that hold the socket.
    holders: TaskTracker,
}

impl UdpPort {
    fn flows(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Flow>>> {
        self.flows.lock()
    }
}

/// The packets of one client.
#[derive(Debug)]
struct Flow {
    socket: UdpSocket,
    /// The time of the last packet in either direction, in microseconds of the monotonic clock.
    last: AtomicU64,
    evicted: CancellationToken,
    destination: Arc<Destination>,
}

/// Binds the port and starts to receive packets.
pub(super) fn listen(
    shared: &Arc<Shared>,
    port: u16,
    destination: Arc<Destination>,
) -> io::Result<Arc<UdpPort>> {
    let socket = bound(SocketAddr::new(shared.options.address, port))?;
    Ok(receive_on(shared, Arc::new(socket), destination))
}

/// Opens a port again while it drains: its flows end, its socket stays.
pub(super) fn take_over(
    shared: &Arc<Shared>,
    old: &UdpPort,
    port: u16,
    destination: Arc<Destination>,
) -> Arc<UdpPort> {
    tracing::debug!(port, "UDP port is opened again while it drains; its flows end");
    old.stop.cancel();
    old.current.get().end();
    receive_on(shared, old.socket.clone(), destination)
}

fn receive_on(
    shared: &Arc<Shared>,
    socket: Arc<UdpSocket>,
    destination: Arc<Destination>,
) -> Arc<UdpPort> {
    let listening = Arc::new(UdpPort {
        current: CurrentDestination::new(destination),
        socket,
        flows: Mutex::default(),
        stop: shared.stop.child_token(),
        holders: TaskTracker::new(),
    });
    let receiving = receive(shared.clone(), listening.clone());
    let receiving = listening.holders.track_future(receiving);
    shared.tasks.spawn_on(receiving, &shared.runtime);
    listening.holders.close();
    listening
}

/// Accepts no new flow, and ends the existing ones within the drain time. The port stays bound until
/// no task holds its socket any more, so that opening it again never meets a socket that is about
/// to be closed.
pub(super) fn close(shared: &Arc<Shared>, open: &Arc<UdpPort>, port: u16, drain: Duration) {
    let (shared, open) = (shared.clone(), open.clone());
    let destination = open.current.get();
    destination.closed.cancel();
    let runtime = shared.runtime.clone();
    let tasks = shared.tasks.clone();
    let closing = async move {
        tokio::select! {
            () = destination.drain(drain, &*shared.clock) => {}
            () = shared.stop.cancelled() => destination.end(),
        }
        open.stop.cancel();
        open.holders.wait().await;
        let mut ports = shared.ports();
        let key = (port, Protocol::Udp);
        if matches!(ports.get(&key), Some(Port::Udp(now)) if Arc::ptr_eq(now, &open)) {
            ports.remove(&key);
            shared.metrics.ports.set(i64::try_from(ports.len()).unwrap_or(i64::MAX));
        }
        drop(open);
    };
    tasks.spawn_on(closing, &runtime);
}

fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

fn now(shared: &Shared) -> u64 {
    u64::try_from(shared.clock.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Receives packets from clients while the port is open.
async fn receive(shared: Arc<Shared>, port: Arc<UdpPort>) {
    loop {
        let readable = tokio::select! {
            biased;
            () = port.stop.cancelled() => return,
            readable = port.socket.readable() => readable,
        };
        if let Err(error) = readable {
            tracing::warn!(%error, "UDP port of the gateway cannot be read");
            return;
        }
        BUFFER.with_borrow_mut(|buffer| {
            match port.socket.try_recv_from(buffer) {
                Ok((bytes, client)) => {
                    shared.metrics.packets_in.inc();
                    let packet = buffer.get(..bytes).unwrap_or_default();
                    let passed = flow_of(&shared, &port, client)
                        .is_some_and(|flow| sent(&flow.socket, packet));
                    if !passed {
                        shared.metrics.packets_dropped.inc();
                    }
                }
                // No packet, or an error about one client: the port itself is fine.
                Err(error) => tracing::trace!(%error, "no packet from a client"),
            }
        });
        tokio::task::coop::consume_budget().await;
    }
}

/// Sends to an instance at once or not at all. Does not use tokio's `try_send`, which treats a new
/// socket as not writable until its first readiness event.
fn sent(socket: &UdpSocket, packet: &[u8]) -> bool {
    rustix::net::send(socket, packet, SendFlags::DONTWAIT).is_ok()
}

/// The flow of a client; starts one if there is none and the limits allow it.
fn flow_of(shared: &Arc<Shared>, port: &Arc<UdpPort>, client: SocketAddr) -> Option<Arc<Flow>> {
    let destination = port.current.get();
    let mut flows = port.flows();
    if let Some(flow) = flows.get(&client)
        && !flow.destination.cut.is_cancelled()
        && !flow.evicted.is_cancelled()
    {
        flow.last.store(now(shared), Ordering::Relaxed);
        return Some(flow.clone());
    }
    if destination.closed.is_cancelled() {
        return None;
    }
    let limit = shared.options.flows_per_port.max(1);
    if flows.len() >= limit && !flows.contains_key(&client) {
        let silent = flows.iter().min_by_key(|(_, flow)| flow.last.load(Ordering::Relaxed));
        if let Some(oldest) = silent.map(|(client, _)| *client)
            && let Some(flow) = flows.remove(&oldest)
        {
            flow.evicted.cancel();
            shared.metrics.evicted.inc();
        }
    }
    // The replaced flow ends a little later, so twice as many may exist for a moment.
    let permit = shared.admit(&destination, limit.saturating_mul(2))?;
    let socket = match towards(destination.target) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(session = destination.session.0, %error, "UDP flow of the gateway could not be started");
            return None;
        }
    };
    let last = AtomicU64::new(now(shared));
    let flow = Arc::new(Flow { socket, last, evicted: CancellationToken::new(), destination });
    flows.insert(client, flow.clone());
    let serving = serve(permit, port.clone(), flow.clone(), client);
    shared.tasks.spawn(port.holders.track_future(flow.destination.tasks.track_future(serving)));
    Some(flow)
}

/// A socket connected to an instance.
fn towards(target: SocketAddr) -> io::Result<UdpSocket> {
    let any = if target.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Sends the instance's packets to one client, until the flow is idle for too long.
async fn serve(permit: ConnectionPermit, port: Arc<UdpPort>, flow: Arc<Flow>, client: SocketAddr) {
    let (shared, destination) = (&permit.shared, &permit.destination);
    shared.metrics.flows.inc();
    shared.metrics.clients.inc();
    let id = shared.joined(destination, client).await;
    tokio::select! {
        biased;
        () = destination.cut.cancelled() => {}
        () = flow.evicted.cancelled() => {}
        () = shared.stop.cancelled() => {}
        () = idle(shared, &flow) => {}
        () = answer(shared, &port.socket, &flow, client) => {}
    }
    {
        let mut flows = port.flows();
        if flows.get(&client).is_some_and(|now| Arc::ptr_eq(now, &flow)) {
            flows.remove(&client);
        }
    }
    shared.metrics.clients.dec();
    shared.left(destination, id, client).await;
}

/// Returns when there was no packet in either direction for the idle time.
async fn idle(shared: &Shared, flow: &Flow) {
    let limit = shared.options.flow_idle;
    loop {
        let last = Duration::from_micros(flow.last.load(Ordering::Relaxed));
        let since = shared.clock.elapsed().saturating_sub(last);
        match limit.checked_sub(since) {
            // Times are rounded to microseconds, so a remainder below one counts as zero.
            Some(rest) if rest > Duration::from_micros(1) => shared.clock.sleep(rest).await,
            _ => return,
        }
    }
}

async fn answer(shared: &Shared, socket: &UdpSocket, flow: &Flow, client: SocketAddr) {
    loop {
        if flow.socket.readable().await.is_err() {
            return;
        }
        BUFFER.with_borrow_mut(|buffer| match flow.socket.try_recv(buffer) {
            Ok(bytes) => {
                flow.last.store(now(shared), Ordering::Relaxed);
                match socket.try_send_to(buffer.get(..bytes).unwrap_or_default(), client) {
                    Ok(_) => shared.metrics.packets_out.inc(),
                    Err(_) => shared.metrics.packets_dropped.inc(),
                };
            }
            // No packet, or the instance does not listen yet: the client may retry.
            Err(error) => tracing::trace!(%error, "no packet from an instance"),
        });
        tokio::task::coop::consume_budget().await;
    }
}
