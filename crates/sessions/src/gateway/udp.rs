//! UDP ports: a flow for every client address, with a socket of its own to the instance, so that
//! the instance's answers find their way back.
//!
//! A packet that cannot be passed on at once is dropped, as networks do; nothing is queued here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::SendFlags;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Admitted, Aim, Aimed, Port, Protocol, Shared};

/// The largest packet there is.
const LARGEST: usize = 65_536;

thread_local! {
    /// One for a thread: it is only used between two waits.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGEST]);
}

/// An open port.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) aimed: Aimed,
    socket: Arc<UdpSocket>,
    flows: Mutex<HashMap<SocketAddr, Arc<Flow>>>,
    stop: CancellationToken,
    /// Whoever holds the socket.
    holders: TaskTracker,
}

impl Listening {
    fn flows(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Flow>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client.
#[derive(Debug)]
struct Flow {
    socket: UdpSocket,
    /// The last packet either way, by the clock's elapsed time in microseconds.
    last: AtomicU64,
    evicted: CancellationToken,
    aim: Arc<Aim>,
}

/// Binds the port and begins to receive.
pub(super) fn listen(shared: &Arc<Shared>, port: u16, aim: Arc<Aim>) -> io::Result<Arc<Listening>> {
    let socket = bound(SocketAddr::new(shared.options.address, port))?;
    Ok(receive_on(shared, Arc::new(socket), aim))
}

/// Opens a port again that still drains: its flows end, its socket stays.
pub(super) fn take_over(
    shared: &Arc<Shared>,
    old: &Listening,
    port: u16,
    aim: Arc<Aim>,
) -> Arc<Listening> {
    tracing::debug!(port, "a port is opened again before it has drained");
    old.stop.cancel();
    old.aimed.get().end();
    receive_on(shared, old.socket.clone(), aim)
}

fn receive_on(shared: &Arc<Shared>, socket: Arc<UdpSocket>, aim: Arc<Aim>) -> Arc<Listening> {
    let listening = Arc::new(Listening {
        aimed: Aimed::new(aim),
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

/// Begins no new flow, and ends those that are there within the drain time. The port stays with
/// the gateway until then; only here it is given up, when no task holds its socket any more, so
/// that opening it again never meets a socket that is about to go.
pub(super) fn close(shared: &Arc<Shared>, open: &Arc<Listening>, port: u16, drain: Duration) {
    let (shared, open) = (shared.clone(), open.clone());
    let aim = open.aimed.get();
    aim.closed.cancel();
    let runtime = shared.runtime.clone();
    let tasks = shared.tasks.clone();
    let closing = async move {
        tokio::select! {
            () = aim.drain(drain, &*shared.clock) => {}
            () = shared.stop.cancelled() => aim.end(),
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

/// Takes packets from clients for as long as the port is open.
async fn receive(shared: Arc<Shared>, port: Arc<Listening>) {
    loop {
        let readable = tokio::select! {
            biased;
            () = port.stop.cancelled() => return,
            readable = port.socket.readable() => readable,
        };
        if let Err(error) = readable {
            tracing::warn!(%error, "a UDP port cannot be read");
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
                // Nothing there, or a client that is gone: neither is about the port.
                Err(error) => tracing::trace!(%error, "no packet"),
            }
        });
        tokio::task::coop::consume_budget().await;
    }
}

/// Sends to an instance at once or not at all. Not by the runtime's `try_send`, which takes a new
/// socket for one that cannot be written to until it has heard otherwise.
fn sent(socket: &UdpSocket, packet: &[u8]) -> bool {
    rustix::net::send(socket, packet, SendFlags::DONTWAIT).is_ok()
}

/// The flow of a client, begun if need be and possible.
fn flow_of(shared: &Arc<Shared>, port: &Arc<Listening>, client: SocketAddr) -> Option<Arc<Flow>> {
    let aim = port.aimed.get();
    let mut flows = port.flows();
    if let Some(flow) = flows.get(&client)
        && !flow.aim.cut.is_cancelled()
        && !flow.evicted.is_cancelled()
    {
        flow.last.store(now(shared), Ordering::Relaxed);
        return Some(flow.clone());
    }
    if aim.closed.is_cancelled() {
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
    // The flow that made room ends in its own time, so twice as many may be there for a moment.
    let admitted = shared.admit(&aim, limit.saturating_mul(2))?;
    let socket = match towards(aim.target) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(session = aim.session.0, %error, "a UDP flow cannot begin");
            return None;
        }
    };
    let last = AtomicU64::new(now(shared));
    let flow = Arc::new(Flow { socket, last, evicted: CancellationToken::new(), aim });
    flows.insert(client, flow.clone());
    let serving = serve(admitted, port.clone(), flow.clone(), client);
    shared.tasks.spawn(port.holders.track_future(flow.aim.tasks.track_future(serving)));
    Some(flow)
}

/// A socket to an instance.
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

/// Takes the instance's packets back to one client, until the flow is silent for too long.
async fn serve(admitted: Admitted, port: Arc<Listening>, flow: Arc<Flow>, client: SocketAddr) {
    let (shared, aim) = (&admitted.shared, &admitted.aim);
    shared.metrics.flows.inc();
    shared.metrics.clients.inc();
    let id = shared.joined(aim, client).await;
    tokio::select! {
        biased;
        () = aim.cut.cancelled() => {}
        () = flow.evicted.cancelled() => {}
        () = shared.stop.cancelled() => {}
        () = silence(shared, &flow) => {}
        () = answer(shared, &port.socket, &flow, client) => {}
    }
    {
        let mut flows = port.flows();
        if flows.get(&client).is_some_and(|now| Arc::ptr_eq(now, &flow)) {
            flows.remove(&client);
        }
    }
    shared.metrics.clients.dec();
    shared.left(aim, id, client).await;
}

/// Ends when nothing has come either way for the idle time.
async fn silence(shared: &Shared, flow: &Flow) {
    let limit = shared.options.flow_idle;
    loop {
        let last = Duration::from_micros(flow.last.load(Ordering::Relaxed));
        let since = shared.clock.elapsed().saturating_sub(last);
        match limit.checked_sub(since) {
            // The last packet is kept in whole microseconds: a hair less than one is none.
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
            // Nothing there, or nobody listens at the instance yet: the client may try again.
            Err(error) => tracing::trace!(%error, "no packet"),
        });
        tokio::task::coop::consume_budget().await;
    }
}
