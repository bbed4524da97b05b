//! TCP ports: accept, connect to the instance, forward both ways.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{Admitted, Aim, Aimed, Shared, splice};

/// Connections that wait to be accepted, at most.
const BACKLOG: u32 = 1_024;
/// A peer that is silent for so long is asked whether it is still there …
const SILENT: Duration = Duration::from_mins(1);
/// … and again after so long, this often.
const ASKED_AGAIN: (Duration, u32) = (Duration::from_secs(10), 6);
/// The pause when the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// An open port.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) aimed: Aimed,
    listener: TcpListener,
    stop: CancellationToken,
}

/// Binds the port and begins to accept.
pub(super) fn listen(shared: &Arc<Shared>, port: u16, aim: Arc<Aim>) -> io::Result<Arc<Listening>> {
    let address = SocketAddr::new(shared.options.address, port);
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let stop = shared.stop.child_token();
    let listening = Arc::new(Listening { aimed: Aimed::new(aim), listener, stop });
    shared.tasks.spawn_on(accept(shared.clone(), listening.clone()), &shared.runtime);
    Ok(listening)
}

/// Takes nobody new, and ends those who are there within the drain time.
pub(super) fn close(shared: &Arc<Shared>, port: &Arc<Listening>, drain: Duration) {
    // The task that accepts may still hold the socket for a moment; shut down, it does not hold the
    // port any more.
    if let Err(error) = rustix::net::shutdown(&port.listener, Shutdown::Both) {
        tracing::debug!(%error, "a listening socket was not shut down; closing it will do");
    }
    port.stop.cancel();
    let aim = port.aimed.get();
    aim.closed.cancel();
    if drain.is_zero() {
        aim.cut.cancel();
        return;
    }
    let (clock, stop) = (shared.clock.clone(), shared.stop.clone());
    shared.tasks.spawn_on(
        async move {
            tokio::select! {
                () = aim.drain(drain, &*clock) => {}
                () = stop.cancelled() => aim.end(),
            }
        },
        &shared.runtime,
    );
}

async fn accept(shared: Arc<Shared>, port: Arc<Listening>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = port.stop.cancelled() => return,
            accepted = port.listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                let aim = port.aimed.get();
                let limit = shared.options.connections_per_session;
                if aim.closed.is_cancelled() {
                    drop(client);
                } else if let Some(admitted) = shared.admit(&aim, limit) {
                    let serving = serve(admitted, client, peer);
                    let serving = aim.tasks.track_future(serving);
                    shared.tasks.spawn(serving);
                }
            }
            Err(_) if port.stop.is_cancelled() => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted; trying again");
                shared.clock.sleep(PAUSE).await;
            }
        }
    }
}

/// One connection, from its admission to its end.
async fn serve(admitted: Admitted, client: TcpStream, peer: SocketAddr) {
    let (shared, aim) = (&admitted.shared, &admitted.aim);
    let connecting = async {
        tokio::select! {
            connected = TcpStream::connect(aim.target) => connected,
            () = shared.clock.sleep(shared.options.connect_timeout) => {
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    };
    let connected = tokio::select! {
        biased;
        () = aim.cut.cancelled() => return,
        () = shared.stop.cancelled() => return,
        connected = connecting => connected,
    };
    let instance = match connected {
        Ok(instance) => instance,
        Err(error) => {
            shared.metrics.unreachable.inc();
            tracing::debug!(session = aim.session.0, target = %aim.target, %error, "no instance");
            return;
        }
    };
    if let Err(error) = tuned(&client).and_then(|()| tuned(&instance)) {
        tracing::debug!(session = aim.session.0, %error, "a connection ended before it began");
        return;
    }
    shared.metrics.connections.inc();
    shared.metrics.clients.inc();
    let id = shared.joined(aim, peer).await;
    let both = async {
        tokio::try_join!(
            splice::forward(&client, &instance, &shared.pipes, &shared.metrics),
            splice::forward(&instance, &client, &shared.pipes, &shared.metrics),
        )
    };
    let ended = tokio::select! {
        biased;
        () = aim.cut.cancelled() => Ok(()),
        () = shared.stop.cancelled() => Ok(()),
        ended = both => ended.map(|_| ()),
    };
    if let Err(error) = ended {
        tracing::debug!(session = aim.session.0, %peer, %error, "a connection broke");
    }
    drop((client, instance));
    shared.metrics.clients.dec();
    shared.left(aim, id, peer).await;
}

/// Small pieces go out at once, and a peer that vanished is noticed.
fn tuned(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENT)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_AGAIN.0)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_AGAIN.1)?;
    Ok(())
}
