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
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificates::Session;
use crate::connection::{Connections, Driven, Place, Pulse, Wire, drive};
use crate::fairness::Met;
use crate::gate::{Gate, Pool, Visitor, arriving};
use crate::identity::User;
use crate::options::Limits;
use crate::reply::{Body, Reply};
use crate::service::App;
use crate::tls::Presented;

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

/// The client of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certified: Option<Arc<User>>,
    /// The certificate of a node, which may be revoked while the connection is open.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) visitor: Visitor,
}

/// Accepts connections and serves them.
pub(crate) struct Listener {
    pub(crate) tcp: TcpListener,
    pub(crate) room: Arc<Room>,
}

/// Where connections are served.
pub(crate) struct Room {
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) app: Arc<App>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) tasks: TaskTracker,
    pub(crate) limits: Limits,
}

impl Listener {
    /// Accepts connections until told to stop. Accepted ones live on in the tasks.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    self.room.connections.close_idlest(None);
                    tokio::time::sleep(EXHAUSTED).await;
                    continue;
                }
            };
            match Visitor::new(&self.room.gate, address.ip()) {
                Ok(visitor) => self.room.enter(stream, address, visitor),
                Err(met) => self.room.wait(stream, address, met, stop.clone()),
            }
        }
    }
}

impl Room {
    fn enter(self: &Arc<Self>, stream: TcpStream, address: SocketAddr, visitor: Visitor) {
        let place = self.connections.enter(address.ip());
        let room = self.clone();
        self.tasks.spawn(async move { room.serve(stream, address, visitor, place).await });
    }

    /// Lets a connection wait until another one has gone, which is told to if it is idle. Others
    /// are accepted meanwhile. Where too many wait already, this one is closed.
    fn wait(
        self: &Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        met: Met,
        stop: CancellationToken,
    ) {
        let ip = address.ip();
        let Ok(waiting) = arriving(&self.gate, ip).enter_with(Pool::Arrivals, 1) else {
            tracing::debug!(%address, "closing a connection: too many from its address");
            return;
        };
        let own = met == Met::Share;
        self.connections.close_idlest(own.then_some(ip));
        let patience = self.app.clock.sleep(self.limits.handshake);
        let (gate, room) = (self.gate.clone(), self.clone());
        let arrived = async move {
            loop {
                let mut departed = std::pin::pin!(gate.departed());
                departed.as_mut().enable();
                match Visitor::new(&gate, ip) {
                    Ok(visitor) => return visitor,
                    Err(_) => departed.await,
                }
            }
        };
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = patience => tracing::debug!(%address, "closing a connection: no place became free"),
                visitor = arrived => room.enter(stream, address, visitor),
            }
            drop(waiting);
        });
    }

    async fn serve(&self, stream: TcpStream, address: SocketAddr, visitor: Visitor, place: Place) {
        let (pulse, app, head) = (place.pulse.clone(), self.app.clone(), self.limits.head);
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "the client closed a connection before it was set up");
            return;
        }
        let Some(tls) = &self.tls else {
            pulse.shaken(false);
            let peer =
                Peer { address, certified: None, session: None, pulse: pulse.clone(), visitor };
            return serve_http1(Wire::new(stream, pulse, false), app, peer, head).await;
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
        // A resumed session shows a certificate that was verified when it began: look again.
        let shown = session
            .peer_certificates()
            .and_then(|chain| Presented::read(chain.first()?))
            .filter(|shown| app.authority.current().trusts(&shown.issuer));
        let multiplexed = session.alpn_protocol() == Some(b"h2");
        pulse.shaken(multiplexed);
        let session = shown.as_ref().and_then(|shown| app.session(shown, &pulse));
        let certified = shown.map(|shown| Arc::new(shown.user));
        let peer = Peer { address, certified, session, pulse: pulse.clone(), visitor };
        let wire = Wire::new(stream, pulse, multiplexed);
        if multiplexed {
            Box::pin(serve_http2(wire, app, peer, head, self.tasks.clone())).await;
        } else {
            Box::pin(serve_http1(wire, app, peer, head)).await;
        }
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
        .max_header_size(head)
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
    // Heads up to twice the limit are read, so that they are refused with an answer.
    let head = u32::try_from(head.saturating_mul(2)).unwrap_or(u32::MAX);
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
