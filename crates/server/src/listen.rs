//! The listener: from a socket to requests.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Connections, Driven, Place, Pulse, Wire, drive};
use crate::identity::{Claims, User};
use crate::options::Limits;
use crate::reply::{Body, Reply};
use crate::service::App;
use crate::tls;

const BACKLOG: u32 = 4096;
/// File descriptors kept free for the store and everything else.
const RESERVED_FILES: u64 = 256;
/// How long to wait when the machine has no more sockets.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Binds the listening socket.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Lets this process open as many files as it may, and says how many connections that leaves.
pub(crate) fn allowed_connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let room = current.map_or(usize::MAX, |files| {
        usize::try_from(files.saturating_sub(RESERVED_FILES).max(16)).unwrap_or(usize::MAX)
    });
    wanted.min(room)
}

/// Who is at the other end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certified: Option<Arc<User>>,
    pub(crate) pulse: Arc<Pulse>,
}

/// Accepts connections and serves them.
pub(crate) struct Listener {
    pub(crate) tcp: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) app: Arc<App>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) tasks: TaskTracker,
    pub(crate) limits: Limits,
}

impl Listener {
    /// Accepts until told to stop. What was accepted lives on in the tasks.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(self.limits.connections.min(Semaphore::MAX_PERMITS)));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.connections.close_idlest();
                    tokio::time::sleep(EXHAUSTED).await;
                    continue;
                }
            };
            let permit = match room.clone().try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    self.connections.close_idlest();
                    tokio::select! {
                        () = stop.cancelled() => return,
                        permit = room.clone().acquire_owned() => match permit {
                            Ok(permit) => permit,
                            Err(_) => return,
                        },
                    }
                }
            };
            let place = self.connections.enter();
            let (tls, app, tasks) = (self.tls.clone(), self.app.clone(), self.tasks.clone());
            let head = self.limits.head;
            self.tasks.spawn(async move {
                serve(stream, address, tls, app, tasks, place, head).await;
                drop(permit);
            });
        }
    }
}

async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    app: Arc<App>,
    tasks: TaskTracker,
    place: Place,
    head: usize,
) {
    let pulse = place.pulse.clone();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection went away");
        return;
    }
    let Some(tls) = tls else {
        pulse.shaken(false);
        let peer = Peer { address, certified: None, pulse: pulse.clone() };
        return serve_http1(Wire::new(stream, pulse), app, peer, head).await;
    };
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        _ = pulse.ordered() => return,
    };
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
    };
    let session = stream.get_ref().1;
    let certified = session.peer_certificates().and_then(|chain| tls::subject(chain.first()?)).map(
        |(name, groups)| {
            let claims = Claims { groups, ..Claims::default() };
            Arc::new(User::of_groups(&name, claims))
        },
    );
    let multiplexed = session.alpn_protocol() == Some(b"h2");
    pulse.shaken(multiplexed);
    let peer = Peer { address, certified, pulse: pulse.clone() };
    let wire = Wire::new(stream, pulse);
    if multiplexed {
        Box::pin(serve_http2(wire, app, peer, head, tasks)).await;
    } else {
        Box::pin(serve_http1(wire, app, peer, head)).await;
    }
}

#[derive(Debug)]
struct Answering {
    app: Arc<App>,
    peer: Arc<Peer>,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (app, peer) = (self.app.clone(), self.peer.clone());
        Box::pin(async move { Ok(app.answer(&peer, request).await) })
    }
}

async fn serve_http1<S>(wire: Wire<S>, app: Arc<App>, peer: Peer, head: usize)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pulse = peer.pulse.clone();
    let service = Answering { app, peer: Arc::new(peer) };
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(head.max(8192))
        .serve_connection(TokioIo::new(wire), service);
    drive(connection, &pulse).await;
}

async fn serve_http2<S>(wire: Wire<S>, app: Arc<App>, peer: Peer, head: usize, tasks: TaskTracker)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pulse = peer.pulse.clone();
    let service = Answering { app, peer: Arc::new(peer) };
    let head = u32::try_from(head).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(Tracked(tasks))
        .max_header_list_size(head)
        .max_concurrent_streams(1000)
        .serve_connection(TokioIo::new(wire), service);
    drive(connection, &pulse).await;
}

/// Runs what a connection needs done beside itself where the server waits for it.
#[derive(Clone, Debug)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.0.spawn(future));
    }
}

impl<I, S> Driven for http1::Connection<I, S>
where
    S: Service<Request<Incoming>, Response = Reply, Error = Infallible>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> Driven for http2::Connection<I, S, Tracked>
where
    S: Service<Request<Incoming>, Response = Reply, Error = Infallible>,
    S::Future: Send + 'static,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    Body: Send,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
