//! The connection to a server: one gRPC stream on which a node reports its state and receives commands.
//!
//! A stream begins with Register; the server answers with its configuration, the node sends Ready with
//! its whole state, and from then on every change, each with its own revision. A stream that breaks is
//! opened again, to the next server if there are several, with back-off. Changes made meanwhile are in
//! the next report.
//!
//! Always true: commands are executed in the order they came; a command that fails is answered with the
//! reason; a command with an older epoch than the newest one received is refused.

mod dial;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt;
use mainstay_client::Access;
use mainstay_clock::{Clock, Retries};
use mainstay_sessions::protocol::{
    AgentsClient, CommandFailed, Failure, FromNode, Health, Heartbeat, LogChunk, MAX_MESSAGE_BYTES,
    Name, ReadLog, Register, SessionPhase, ToNode, from_node, to_node,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::RETRY;
use crate::instances::{Error, Event, Events, Revision, Runtime, Start};

/// How many messages may wait until the server reads them.
const UNREAD: usize = 256;

/// How long a server has to answer a registration.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where revisions come from.
#[derive(Debug)]
pub enum Revisions {
    /// A file: they go on after a restart.
    Durable(Revision),
    /// Memory, for a simulated node.
    InMemory(u64),
}

impl Revisions {
    fn newest(&self) -> u64 {
        match self {
            Self::Durable(revision) => revision.newest(),
            Self::InMemory(newest) => *newest,
        }
    }

    fn next(&mut self) -> io::Result<u64> {
        match self {
            Self::Durable(revision) => revision.give(),
            Self::InMemory(newest) => {
                *newest += 1;
                Ok(*newest)
            }
        }
    }
}

/// How a node registers.
#[derive(Clone, Debug, Default)]
pub struct Registration {
    /// The node.
    pub node: String,
    /// Changes at every boot of the machine.
    pub boot_id: String,
    /// Thousandths of a processor that instances may have.
    pub cpu_milli: u64,
    /// Bytes that instances may have.
    pub memory_bytes: u64,
    /// Its labels.
    pub labels: HashMap<String, String>,
    /// The address at which its instances are reached.
    pub address: String,
}

/// Returns the current credentials: a certificate may be renewed.
pub type Credentials = Arc<dyn Fn() -> Access + Send + Sync>;

/// The connection of one node.
pub struct Link {
    /// The servers, the preferred one first.
    pub servers: Vec<String>,
    /// The credentials.
    pub credentials: Credentials,
    /// How the node registers.
    pub registration: Registration,
    /// The runtime that executes commands.
    pub runtime: Arc<dyn Runtime>,
    /// The events of the runtime.
    pub events: Events,
    /// The numbers of changes.
    pub revisions: Revisions,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("registration", &self.registration).finish_non_exhaustive()
    }
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Server(Status),
    #[error(
        "this node's credential was revoked or has expired; join again: stop the agent and run it with a new token, as `mainstay token create --role node` prints it"
    )]
    Revoked,
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the server closed the stream")]
    HungUp,
    #[error("writing the revision failed: {0}")]
    Revision(io::Error),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        let refused = status.code() == tonic::Code::Unauthenticated || dial::is_revoked(&status);
        if refused { Self::Revoked } else { Self::Server(status) }
    }
}

/// An open stream.
struct Conversation {
    outgoing: mpsc::Sender<FromNode>,
    /// The newest epoch received.
    epoch: u64,
}

impl Link {
    /// Stays connected until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut retries = RETRY.retries();
        let mut next = 0;
        let mut epoch = 0;
        loop {
            let server = self.servers[next % self.servers.len()].clone();
            let talked =
                stop.run_until_cancelled(self.connect(&server, &mut epoch, &mut retries)).await;
            let Some(ended) = talked else { return };
            let node = &self.registration.node;
            next += 1;
            let wait = retries.failed_with(fraction(node, next));
            tracing::warn!(node, server, reason = %ended, ?wait, "connection to the server lost; retrying");
            if stop.run_until_cancelled(self.clock.sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    async fn connect(&mut self, server: &str, epoch: &mut u64, retries: &mut Retries) -> Ended {
        let revoked = Arc::new(AtomicBool::new(false));
        match self.converse(server, epoch, retries, &revoked).await {
            _ if revoked.load(Relaxed) => Ended::Revoked,
            Ok(()) => Ended::HungUp,
            Err(ended) => ended,
        }
    }

    /// One stream, from Register to its end.
    async fn converse(
        &mut self,
        server: &str,
        epoch: &mut u64,
        retries: &mut Retries,
        revoked: &Arc<AtomicBool>,
    ) -> Result<(), Ended> {
        let access = (self.credentials)();
        let channel = dial::dial(server, access, revoked).await?;
        let (outgoing, sent) = mpsc::channel(UNREAD);
        let own = &self.registration;
        let register = Register {
            node: own.node.clone(),
            boot_id: own.boot_id.clone(),
            cpu_milli: own.cpu_milli,
            memory_bytes: own.memory_bytes,
            labels: own.labels.clone(),
            address: own.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut talk = Conversation { outgoing, epoch: *epoch };
        talk.send(self.revisions.newest(), from_node::Body::Register(register)).await?;
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        let answered = tokio::time::timeout(PATIENCE, async {
            let mut client = AgentsClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES);
            let mut incoming = client.connect(sent).await?.into_inner();
            let first = incoming.message().await?;
            Ok::<_, Status>((incoming, first))
        });
        let late = |_| Ended::Unreachable(format!("no answer within {PATIENCE:?}"));
        let (mut incoming, first) = answered.await.map_err(late)??;
        let Some(ToNode { body: Some(to_node::Body::Configuration(settings)), .. }) = first else {
            return Err(Ended::HungUp);
        };
        let report = self.runtime.report();
        talk.send(self.revisions.newest(), from_node::Body::Ready(report)).await?;
        retries.reset();
        let beat = Duration::from_millis(settings.heartbeat_millis.max(100).into());
        let health = Duration::from_millis(settings.health_millis.max(1000).into());
        let clock = self.clock.clone();
        let start = clock.elapsed();
        // Thousands of nodes that joined together do not send their heartbeats together.
        let spread = fraction(&self.registration.node, 0);
        let mut next_beat = start + beat.mul_f64(spread);
        let mut next_health = start + health.mul_f64(spread);
        loop {
            let due = next_beat.min(next_health).saturating_sub(clock.elapsed());
            tokio::select! {
                message = incoming.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    self.execute(&mut talk, message).await?;
                    *epoch = talk.epoch;
                }
                event = self.events.next() => {
                    let Some(event) = event else { return Ok(()) };
                    let revision = self.revisions.next().map_err(Ended::Revision)?;
                    let body = match event {
                        Event::Instance(state) => from_node::Body::Instance(state),
                        Event::Session(state) => from_node::Body::Session(state),
                    };
                    talk.send(revision, body).await?;
                }
                () = clock.sleep(due) => {
                    let now = clock.elapsed();
                    if now >= next_beat {
                        next_beat = now + beat;
                        let heartbeat = from_node::Body::Heartbeat(Heartbeat {});
                        talk.send(self.revisions.newest(), heartbeat).await?;
                    }
                    if now >= next_health {
                        next_health = now + health;
                        talk.send(self.revisions.newest(), self.health()).await?;
                    }
                }
            }
        }
    }

    /// The instances and sessions that are healthy.
    fn health(&self) -> from_node::Body {
        let report = self.runtime.report();
        let instances = report.instances.into_iter();
        let sessions =
            report.sessions.into_iter().filter(|session| session.phase() == SessionPhase::Open);
        from_node::Body::Health(Health {
            instances: instances
                .map(|one| Name { namespace: one.namespace, name: one.name })
                .collect(),
            sessions: sessions
                .map(|one| Name { namespace: one.namespace, name: one.name })
                .collect(),
        })
    }

    /// Executes a command of the server.
    async fn execute(&mut self, talk: &mut Conversation, message: ToNode) -> Result<(), Ended> {
        let ToNode { epoch, request, body } = message;
        if epoch < talk.epoch {
            let why = format!("epoch {epoch} is over; the newest is {}", talk.epoch);
            return talk.fail(request, Failure::StaleEpoch, why).await;
        }
        talk.epoch = epoch;
        let runtime = &self.runtime;
        let done = match body {
            None | Some(to_node::Body::Configuration(_)) => Ok(()),
            Some(to_node::Body::FullSync(_)) => {
                let state = from_node::Body::State(runtime.report());
                return talk.send(self.revisions.newest(), state).await;
            }
            Some(to_node::Body::Create(create)) => match Start::try_from(create) {
                Ok(start) => runtime.start(start).await,
                Err(error) => Err(error),
            },
            Some(to_node::Body::Terminate(name)) => {
                let stopped = runtime.stop(name.clone().into(), None).await;
                if let Err(Error::NotFound { .. }) = stopped {
                    return self.report_terminated(talk, name).await;
                }
                stopped
            }
            Some(to_node::Body::Hibernate(name)) => runtime.freeze(name.into()).await,
            Some(to_node::Body::Activate(name)) => runtime.thaw(name.into()).await,
            Some(to_node::Body::Open(open)) => runtime.open(open).await,
            Some(to_node::Body::Close(close)) => {
                let closed = runtime.close(close.clone()).await;
                if let Err(Error::NotFound { .. }) = closed {
                    return self.report_closed(talk, close).await;
                }
                closed
            }
            Some(to_node::Body::ReadLog(read)) => self.read_log(talk, request, read).await,
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => talk.fail(request, error.failure(), error.to_string()).await,
        }
    }

    /// Reports an unknown instance that was to be terminated as terminated.
    async fn report_terminated(
        &mut self,
        talk: &mut Conversation,
        name: Name,
    ) -> Result<(), Ended> {
        let gone = mainstay_sessions::protocol::InstanceState {
            namespace: name.namespace,
            name: name.name,
            phase: mainstay_sessions::protocol::InstancePhase::Terminated.into(),
            ..Default::default()
        };
        let revision = self.revisions.next().map_err(Ended::Revision)?;
        talk.send(revision, from_node::Body::Instance(gone)).await
    }

    /// Reports an unknown session that was to be closed as closed.
    async fn report_closed(
        &mut self,
        talk: &mut Conversation,
        close: mainstay_sessions::protocol::CloseSession,
    ) -> Result<(), Ended> {
        let closed = mainstay_sessions::protocol::SessionState {
            namespace: close.namespace,
            name: close.name,
            instance: close.instance,
            phase: SessionPhase::Closed.into(),
            ..Default::default()
        };
        let revision = self.revisions.next().map_err(Ended::Revision)?;
        talk.send(revision, from_node::Body::Session(closed)).await
    }

    async fn read_log(
        &self,
        talk: &Conversation,
        request: u64,
        read: ReadLog,
    ) -> Result<(), Error> {
        let mut pieces = self.runtime.read_log(read).await?;
        let outgoing = talk.outgoing.clone();
        let revision = self.revisions.newest();
        tokio::spawn(async move {
            let piece = |data, last| FromNode {
                revision,
                body: Some(from_node::Body::Log(LogChunk { request, data, last })),
            };
            while let Some(read) = pieces.next().await {
                let message = match read {
                    Ok(data) => piece(data, false),
                    Err(error) => {
                        let message = error.to_string();
                        let failure = Failure::Failed.into();
                        let failed = CommandFailed { request, failure, message };
                        let failed = from_node::Body::Failed(failed);
                        // A stream that has ended needs no error.
                        let _ = outgoing.send(FromNode { revision, body: Some(failed) }).await;
                        return;
                    }
                };
                if outgoing.send(message).await.is_err() {
                    return;
                }
            }
            // A stream that has ended needs no last piece.
            let _ = outgoing.send(piece(Vec::new(), true)).await;
        });
        Ok(())
    }
}

impl Conversation {
    async fn send(&self, revision: u64, body: from_node::Body) -> Result<(), Ended> {
        let message = FromNode { revision, body: Some(body) };
        self.outgoing.send(message).await.map_err(|_| Ended::HungUp)
    }

    async fn fail(&self, request: u64, failure: Failure, message: String) -> Result<(), Ended> {
        let failed = CommandFailed { request, failure: failure.into(), message };
        let message = FromNode { revision: 0, body: Some(from_node::Body::Failed(failed)) };
        self.outgoing.send(message).await.map_err(|_| Ended::HungUp)
    }
}

/// A number between 0 and 1 that differs from node to node, to spread their requests over time.
fn fraction(node: &str, salt: usize) -> f64 {
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ salt as u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}
