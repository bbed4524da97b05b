//! Instances: the processes that run on this node for applications, and their sessions.
//!
//! A [`Runtime`] does what a server commands: start, stop, freeze, thaw, open, close. A command that
//! is accepted is answered at once; its result comes as an [`Event`], and [`Runtime::report`] returns
//! the whole state. [`Processes`] runs real processes that outlive the agent, [`Simulated`]
//! simulates them with set delays, for thousands of nodes in one program.
//!
//! Always true, for every runtime: an instance has at most one session; a command given twice
//! is executed once and reported again; an event is the newest state of its instance or session, so that a
//! slow reader misses steps but never the outcome, and no writer waits for a reader; a
//! session is reported closed before its instance is reported terminated.

mod ledger;
mod outbox;
mod processes;
mod revision;
mod simulated;

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mainstay_sessions::protocol::{
    CloseSession, CreateInstance, Failure, InstanceState, Name, OpenSession, ReadLog, Report,
    SessionState, Template,
};
use mainstay_sessions::secrets::SecretValues;

pub use outbox::Events;
pub use processes::{Options, Processes};
pub use revision::Revision;
pub use simulated::{Delays, Simulated};

/// Why a session or an instance is over, in a word: the `reason` of its last event.
pub mod reason {
    /// The session was closed in order; its instance may have another.
    pub const CLEAN: &str = "Closed";
    /// The instance did not close the session in time. It must not have another.
    pub const GRACE_EXCEEDED: &str = "GraceExceeded";
    /// The session's instance ended.
    pub const INSTANCE_ENDED: &str = "InstanceEnded";
    /// The instance missed its pings.
    pub const NO_HEARTBEAT: &str = "NoHeartbeat";
    /// The instance was stopped on command.
    pub const STOPPED: &str = "Stopped";
    /// The instance did not stop within its grace period and was killed.
    pub const KILLED: &str = "Killed";
    /// The process ended by itself.
    pub const EXITED: &str = "Exited";
    /// The process was ended by a signal that the agent did not send.
    pub const SIGNALLED: &str = "Signalled";
    /// The kernel killed the process because memory ran out.
    pub const OUT_OF_MEMORY: &str = "OutOfMemory";
    /// The process was not ready in time.
    pub const NOT_READY: &str = "NotReady";
    /// The state file of the session could not be written.
    pub const NOT_WRITTEN: &str = "NotWritten";
    /// The process ended while the agent was away, or the machine was restarted.
    pub const LOST: &str = "Lost";
}

/// Why a command cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such instance or session here.
    #[error("there is no {kind} {namespace}/{name} on this node")]
    NotFound {
        /// `instance` or `session`.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// It conflicts with an existing instance or session.
    #[error("{0}")]
    Conflict(String),
    /// The node lacks a resource: disk space, a port. Retry elsewhere or later.
    #[error("{0}")]
    Exhausted(String),
    /// It is invalid. Do not retry.
    #[error("{0}")]
    Invalid(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The code that the server receives.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::NotFound { .. } => Failure::NotFound,
            Self::Conflict(_) => Failure::Conflict,
            Self::Exhausted(_) => Failure::Exhausted,
            Self::Invalid(_) => Failure::Invalid,
            Self::Failed(_) => Failure::Failed,
        }
    }
}

/// An instance or a session: namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl Id {
    /// The one of that name.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl From<Name> for Id {
    fn from(name: Name) -> Self {
        Self { namespace: name.namespace, name: name.name }
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An instance to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Which.
    pub id: Id,
    /// Its application.
    pub application: String,
    /// The hash of what to run.
    pub template: String,
    /// The program to run.
    pub process: Template,
    /// Its reservation: thousandths of a processor.
    pub cpu_milli: u64,
    /// Its reservation: bytes of memory.
    pub memory_bytes: u64,
    /// To be frozen as soon as it is ready.
    pub standby: bool,
    /// Environment variables that come from Secrets. They are kept in no file.
    pub secrets: SecretValues,
}

impl TryFrom<CreateInstance> for Start {
    type Error = Error;

    fn try_from(create: CreateInstance) -> Result<Self, Error> {
        let id = Id { namespace: create.namespace, name: create.name };
        let process = serde_json::from_slice(&create.process);
        let process = process.map_err(|error| {
            Error::Invalid(format!("the template of instance {id} cannot be read: {error}"))
        })?;
        Ok(Self {
            id,
            application: create.application,
            template: create.template,
            process,
            cpu_milli: create.cpu_milli,
            memory_bytes: create.memory_bytes,
            standby: create.standby,
            secrets: create.secrets.into_iter().collect(),
        })
    }
}

/// A change: the newest state of an instance or of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An instance changed. Terminated is its last event.
    Instance(InstanceState),
    /// A session changed, without its object, which only a report carries. Closed is its last
    /// event.
    Session(SessionState),
}

/// An instance's output, piece by piece, until its end or until the reader drops it.
pub type Log = BoxStream<'static, std::io::Result<Vec<u8>>>;

/// Starts, stops and supervises instances. Commands for one instance must be given one after
/// the other; those for different instances need not wait for each other.
pub trait Runtime: Send + Sync + Debug {
    /// Starts an instance: Creating, then Running with endpoints or Standby; or Terminated if it
    /// fails. A second call with the same template starts no second instance.
    ///
    /// # Errors
    /// `Conflict`: there is one of that name from another template. `Exhausted`: no disk, no port.
    /// `Invalid`: this can run nowhere. No files are left behind then.
    fn start(&self, start: Start) -> BoxFuture<'_, Result<(), Error>>;

    /// Stops an instance: Terminating, then Terminated. `grace` is how long it has to end by
    /// itself; if not given, as long as its template says. A shorter grace later counts.
    ///
    /// # Errors
    /// `NotFound`.
    fn stop(&self, id: Id, grace: Option<Duration>) -> BoxFuture<'_, Result<(), Error>>;

    /// Freezes a running instance without a session: Standby. An instance that is not yet ready is frozen as
    /// soon as it is.
    ///
    /// # Errors
    /// `NotFound`; `Conflict`: it has a session or is ending; `Failed`.
    fn freeze(&self, id: Id) -> BoxFuture<'_, Result<(), Error>>;

    /// Thaws an instance: Running.
    ///
    /// # Errors
    /// `NotFound`; `Conflict`: it is ending; `Failed`.
    fn thaw(&self, id: Id) -> BoxFuture<'_, Result<(), Error>>;

    /// Opens a session on an instance: Initializing, then Open. A frozen instance is thawed first;
    /// one that is not ready yet has the session as soon as it is.
    ///
    /// # Errors
    /// `NotFound`; `Conflict`: the instance has another session or is ending; `Exhausted`: its
    /// state file cannot be written.
    fn open(&self, open: OpenSession) -> BoxFuture<'_, Result<(), Error>>;

    /// Closes the session of an instance: Closing, then Closed, in order or by force when the grace
    /// is over; the reason says which ([`reason`]).
    ///
    /// # Errors
    /// `NotFound`.
    fn close(&self, close: CloseSession) -> BoxFuture<'_, Result<(), Error>>;

    /// An instance's output, also for a while after it ended.
    ///
    /// # Errors
    /// `NotFound`.
    fn read_log(&self, read: ReadLog) -> BoxFuture<'_, Result<Log, Error>>;

    /// Everything: living instances and their sessions with their objects, and whatever ended and
    /// was not yet taken from the events.
    fn report(&self) -> Report;

    /// Stops supervising instances and waits until that is done. Real instances keep running, and
    /// the next runtime on the same folder adopts them.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}
