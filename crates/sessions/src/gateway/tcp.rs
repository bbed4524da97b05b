//! TCP ports: accept, connect to the instance, forward both ways.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{ConnectionPermit, CurrentDestination, Destination, Shared, splice};

/// The largest number of connections that wait to be accepted.
const BACKLOG: u32 = 1_024;
/// The idle time before the first TCP keep-alive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
/// The interval and number of further keep-alive probes.
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(10), 6);
/// The pause after an accept failed because the system has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// An open TCP port.
#[derive(Debug)]
pub(super) struct TcpPort {
    pub(super) current: CurrentDestination,
    listener: TcpListener,
    stop: CancellationToken,
}

/// Binds the port and starts to accept connections.
pub(super) fn listen(
    shared: &Arc<Shared>,
    port: u16,
    destination: Arc<Destination>,
) -> io::Result<Arc<TcpPort>> {
    let address = SocketAddr::new(shared.options.address, port);
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let stop = shared.stop.child_token();
    let listening =
        Arc::new(TcpPort { current: CurrentDestination::new(destination), listener, stop });
    shared.tasks.spawn_on(accept(shared.clone(), listening.clone()), &shared.runtime);
    Ok(listening)
}

/// Stops accepting, and ends existing connections within the drain time.
pub(super) fn close(shared: &Arc<Shared>, port: &Arc<TcpPort>, drain: Duration) {
    // The accepting task may hold the socket for a moment longer; shutting it down frees the port
    // at once.
    if let Err(error) = rustix::net::shutdown(&port.listener, Shutdown::Both) {
        tracing::debug!(%error, "shutdown of a listening socket failed; it is closed instead");
    }
    port.stop.cancel();
    let destination = port.current.get();
    destination.closed.cancel();
    if drain.is_zero() {
        destination.cut.cancel();
        return;
    }
    let (clock, stop) = (shared.clock.clone(), shared.stop.clone());
    shared.tasks.spawn_on(
        async move {
            tokio::select! {
                () = destination.drain(drain, &*clock) => {}
                () = stop.cancelled() => destination.end(),
            }
        },
        &shared.runtime,
    );
}

async fn accept(shared: Arc<Shared>, port: Arc<TcpPort>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = port.stop.cancelled() => return,
            accepted = port.listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                let destination = port.current.get();
                let limit = shared.options.connections_per_session;
                if destination.closed.is_cancelled() {
                    drop(client);
                } else if let Some(permit) = shared.admit(&destination, limit) {
                    let serving = serve(permit, client, peer);
                    let serving = destination.tasks.track_future(serving);
                    shared.tasks.spawn(serving);
                }
            }
            Err(_) if port.stop.is_cancelled() => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "gateway connection could not be accepted; retrying");
                shared.clock.sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one connection until it ends.
async fn serve(permit: ConnectionPermit, client: TcpStream, peer: SocketAddr) {
    let (shared, destination) = (&permit.shared, &permit.destination);
    let connecting = async {
        tokio::select! {
            connected = TcpStream::connect(destination.target) => connected,
            () = shared.clock.sleep(shared.options.connect_timeout) => {
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    };
    let connected = tokio::select! {
        biased;
        () = destination.cut.cancelled() => return,
        () = shared.stop.cancelled() => return,
        connected = connecting => connected,
    };
    let instance = match connected {
        Ok(instance) => instance,
        Err(error) => {
            shared.metrics.unreachable.inc();
            tracing::debug!(session = destination.session.0, target = %destination.target, %error, "gateway could not connect to the instance");
            return;
        }
    };
    if let Err(error) = tuned(&client).and_then(|()| tuned(&instance)) {
        tracing::debug!(session = destination.session.0, %error, "gateway connection ended before it was set up");
        return;
    }
    shared.metrics.connections.inc();
    shared.metrics.clients.inc();
    let id = shared.joined(destination, peer).await;
    let both = async {
        tokio::try_join!(
            splice::forward(&client, &instance, &shared.pipes, &shared.metrics),
            splice::forward(&instance, &client, &shared.pipes, &shared.metrics),
        )
    };
    let ended = tokio::select! {
        biased;
        () = destination.cut.cancelled() => Ok(()),
        () = shared.stop.cancelled() => Ok(()),
        ended = both => ended.map(|_| ()),
    };
    if let Err(error) = ended {
        tracing::debug!(session = destination.session.0, %peer, %error, "gateway connection failed");
    }
    drop((client, instance));
    shared.metrics.clients.dec();
    shared.left(destination, id, peer).await;
}

/// Disables Nagle's algorithm and enables keep-alive probes.
fn tuned(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)?;
    Ok(())
}
