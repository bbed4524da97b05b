//! The line to a server: one stream on which a node says what it has and hears what to do.
//!
//! A conversation begins with Register; the server answers with how to behave, the node says that it
//! is ready and everything it has, and from then on every change, each with its own revision. A
//! line that breaks is dialled again, at the next server if there is one, ever later while nobody
//! answers. What happened meanwhile is in the next report.
//!
//! What always holds: commands are done in the order they came; one that cannot be done is answered
//! with the reason; nobody is obeyed whose epoch is older than the newest heard.

mod dial;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use mainstay_sessions::protocol::{
    AgentsClient, CommandFailed, Failure, FromNode, Health, Heartbeat, LogChunk, MAX_MESSAGE_BYTES,
    Name, ReadLog, Register, SessionPhase, ToNode, from_node, to_node,
};
use mainstay_store::clock::Clock;
use mainstay_store::kubernetes::Access;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::PAUSES;
use crate::instances::{Error, Event, Events, Revision, Runtime, Start};

/// How much may be said that the server has not read yet.
const UNREAD: usize = 256;

/// How long a server has to answer a registration.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where revisions come from.
#[derive(Debug)]
pub enum Revisions {
    /// A file, for a node that shall be known again.
    Kept(Revision),
    /// Memory, for one that only pretends.
    Counted(u64),
}

impl Revisions {
    fn newest(&self) -> u64 {
        match self {
            Self::Kept(revision) => revision.newest(),
            Self::Counted(newest) => *newest,
        }
    }

    fn next(&mut self) -> io::Result<u64> {
        match self {
            Self::Kept(revision) => revision.give(),
            Self::Counted(newest) => {
                *newest += 1;
                Ok(*newest)
            }
        }
    }
}

/// Who speaks.
#[derive(Clone, Debug, Default)]
pub struct Speaker {
    /// The node.
    pub node: String,
    /// Changes at every boot of the machine.
    pub boot_id: String,
    /// Thousandths of a processor that instances may have.
    pub cpu_milli: u64,
    /// Bytes that instances may have.
    pub memory_bytes: u64,
    /// What selectors find it by.
    pub labels: HashMap<String, String>,
    /// Where its instances are reached.
    pub address: String,
}

/// Says who we are at the moment: a certificate may be renewed.
pub type Credentials = Arc<dyn Fn() -> Access + Send + Sync>;

/// Everything a line needs.
pub struct Link {
    /// The servers, the preferred one first.
    pub servers: Vec<String>,
    /// Who we are to them.
    pub credentials: Credentials,
    /// Who speaks.
    pub speaker: Speaker,
    /// What does as it is told.
    pub runtime: Arc<dyn Runtime>,
    /// What happens there.
    pub events: Events,
    /// The numbers of changes.
    pub revisions: Revisions,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("speaker", &self.speaker).finish_non_exhaustive()
    }
}

/// Why a conversation ended.
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
    #[error("the server hung up")]
    HungUp,
    #[error("a change cannot be written down: {0}")]
    NotKept(io::Error),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        let refused = status.code() == tonic::Code::Unauthenticated || dial::is_revoked(&status);
        if refused { Self::Revoked } else { Self::Server(status) }
    }
}

/// What both sides have said so far.
struct Conversation {
    say: mpsc::Sender<FromNode>,
    /// The newest epoch heard.
    epoch: u64,
}

impl Link {
    /// Keeps the line up until told to stop.
    pub async fn keep(mut self, stop: CancellationToken) {
        let mut pause = PAUSES.0;
        let mut next = 0;
        let mut epoch = 0;
        loop {
            let server = self.servers[next % self.servers.len()].clone();
            let talked = stop.run_until_cancelled(self.talk(&server, &mut epoch, &mut pause)).await;
            let Some(ended) = talked else { return };
            let node = &self.speaker.node;
            tracing::warn!(%node, %server, reason = %ended, ?pause, "the line to the server broke");
            next += 1;
            let spread = pause.mul_f64(0.75 + 0.5 * fraction(&self.speaker.node, next));
            if stop.run_until_cancelled(self.clock.sleep(spread)).await.is_none() {
                return;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn talk(&mut self, server: &str, epoch: &mut u64, pause: &mut Duration) -> Ended {
        match self.converse(server, epoch, pause).await {
            Ok(()) => Ended::HungUp,
            Err(ended) => ended,
        }
    }

    async fn converse(
        &mut self,
        server: &str,
        epoch: &mut u64,
        pause: &mut Duration,
    ) -> Result<(), Ended> {
        let access = (self.credentials)();
        let channel = dial::dial(server, access).await?;
        let (say, said) = mpsc::channel(UNREAD);
        let speaker = &self.speaker;
        let register = Register {
            node: speaker.node.clone(),
            boot_id: speaker.boot_id.clone(),
            cpu_milli: speaker.cpu_milli,
            memory_bytes: speaker.memory_bytes,
            labels: speaker.labels.clone(),
            address: speaker.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut talk = Conversation { say, epoch: *epoch };
        talk.say(self.revisions.newest(), from_node::Body::Register(register)).await?;
        let said = tokio_stream::wrappers::ReceiverStream::new(said);
        let answered = tokio::time::timeout(PATIENCE, async {
            let mut client = AgentsClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES);
            let mut heard = client.connect(said).await?.into_inner();
            let first = heard.message().await?;
            Ok::<_, Status>((heard, first))
        });
        let late = |_| Ended::Unreachable(format!("no answer within {PATIENCE:?}"));
        let (mut heard, first) = answered.await.map_err(late)??;
        let Some(ToNode { body: Some(to_node::Body::Configuration(settings)), .. }) = first else {
            return Err(Ended::HungUp);
        };
        let report = self.runtime.report();
        talk.say(self.revisions.newest(), from_node::Body::Ready(report)).await?;
        *pause = PAUSES.0;
        let beat = Duration::from_millis(settings.heartbeat_millis.max(100).into());
        let health = Duration::from_millis(settings.health_millis.max(1000).into());
        let clock = self.clock.clone();
        let start = clock.elapsed();
        // Thousands of nodes that joined together do not speak together.
        let spread = fraction(&self.speaker.node, 0);
        let mut next_beat = start + beat.mul_f64(spread);
        let mut next_health = start + health.mul_f64(spread);
        loop {
            let due = next_beat.min(next_health).saturating_sub(clock.elapsed());
            tokio::select! {
                message = heard.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    self.obey(&mut talk, message).await?;
                    *epoch = talk.epoch;
                }
                event = self.events.next() => {
                    let Some(event) = event else { return Ok(()) };
                    let revision = self.revisions.next().map_err(Ended::NotKept)?;
                    let body = match event {
                        Event::Instance(state) => from_node::Body::Instance(state),
                        Event::Session(state) => from_node::Body::Session(state),
                    };
                    talk.say(revision, body).await?;
                }
                () = clock.sleep(due) => {
                    let now = clock.elapsed();
                    if now >= next_beat {
                        next_beat = now + beat;
                        let heartbeat = from_node::Body::Heartbeat(Heartbeat {});
                        talk.say(self.revisions.newest(), heartbeat).await?;
                    }
                    if now >= next_health {
                        next_health = now + health;
                        talk.say(self.revisions.newest(), self.health()).await?;
                    }
                }
            }
        }
    }

    /// Who is well.
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

    /// Does what the server says.
    async fn obey(&mut self, talk: &mut Conversation, message: ToNode) -> Result<(), Ended> {
        let ToNode { epoch, request, body } = message;
        if epoch < talk.epoch {
            let why = format!("epoch {epoch} is over: {} has begun", talk.epoch);
            return talk.fail(request, Failure::StaleEpoch, why).await;
        }
        talk.epoch = epoch;
        let runtime = &self.runtime;
        let done = match body {
            None | Some(to_node::Body::Configuration(_)) => Ok(()),
            Some(to_node::Body::FullSync(_)) => {
                let state = from_node::Body::State(runtime.report());
                return talk.say(self.revisions.newest(), state).await;
            }
            Some(to_node::Body::Create(create)) => match Start::try_from(create) {
                Ok(start) => runtime.start(start).await,
                Err(error) => Err(error),
            },
            Some(to_node::Body::Terminate(name)) => {
                let stopped = runtime.stop(name.clone().into(), None).await;
                if let Err(Error::NotFound { .. }) = stopped {
                    return self.say_gone(talk, name).await;
                }
                stopped
            }
            Some(to_node::Body::Hibernate(name)) => runtime.freeze(name.into()).await,
            Some(to_node::Body::Activate(name)) => runtime.thaw(name.into()).await,
            Some(to_node::Body::Open(open)) => runtime.open(open).await,
            Some(to_node::Body::Close(close)) => {
                let closed = runtime.close(close.clone()).await;
                if let Err(Error::NotFound { .. }) = closed {
                    return self.say_closed(talk, close).await;
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

    /// An instance that shall end is not there: that is all the server wants to hear.
    async fn say_gone(&mut self, talk: &mut Conversation, name: Name) -> Result<(), Ended> {
        let gone = mainstay_sessions::protocol::InstanceState {
            namespace: name.namespace,
            name: name.name,
            phase: mainstay_sessions::protocol::InstancePhase::Terminated.into(),
            ..Default::default()
        };
        let revision = self.revisions.next().map_err(Ended::NotKept)?;
        talk.say(revision, from_node::Body::Instance(gone)).await
    }

    /// A session that shall close is not there.
    async fn say_closed(
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
        let revision = self.revisions.next().map_err(Ended::NotKept)?;
        talk.say(revision, from_node::Body::Session(closed)).await
    }

    async fn read_log(
        &self,
        talk: &Conversation,
        request: u64,
        read: ReadLog,
    ) -> Result<(), Error> {
        let mut pieces = self.runtime.read_log(read).await?;
        let say = talk.say.clone();
        let revision = self.revisions.newest();
        tokio::spawn(async move {
            let piece = |data, last| FromNode {
                revision,
                body: Some(from_node::Body::Log(LogChunk { request, data, last })),
            };
            while let Some(Ok(data)) = pieces.next().await {
                if say.send(piece(data, false)).await.is_err() {
                    return;
                }
            }
            // Nobody left to tell is fine.
            let _ = say.send(piece(Vec::new(), true)).await;
        });
        Ok(())
    }
}

impl Conversation {
    async fn say(&self, revision: u64, body: from_node::Body) -> Result<(), Ended> {
        let message = FromNode { revision, body: Some(body) };
        self.say.send(message).await.map_err(|_| Ended::HungUp)
    }

    async fn fail(&self, request: u64, failure: Failure, message: String) -> Result<(), Ended> {
        let failed = CommandFailed { request, failure: failure.into(), message };
        let message = FromNode { revision: 0, body: Some(from_node::Body::Failed(failed)) };
        self.say.send(message).await.map_err(|_| Ended::HungUp)
    }
}

/// A number between 0 and 1 that differs from node to node: spreads what would happen all at once.
fn fraction(node: &str, salt: usize) -> f64 {
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ salt as u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}
