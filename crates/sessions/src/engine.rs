//! The engine decides which instance takes which session, and which commands each node gets.
//!
//! It is a pure state machine. Events come in as calls ([`Engine::open`], [`Engine::receive`],
//! [`Engine::tick`] …) with the moment they happened; actions come out as [`Effect`]s, in order. It
//! reads no clock, writes no file and opens no socket, so the same calls always give the same
//! effects, and a test can simulate a whole cluster.
//!
//! * Reports of [`nodes`](self) carry revisions: one more than the last is applied, the same or a
//!   lower one is ignored, a gap makes the engine request a full report.
//! * Every instance is in exactly one pool of its application ([`pool`]).
//! * A session has at most one instance and an instance at most one session ([`sessions`](self)).
//! * [`crate::scale`] decides how many instances there are, [`mainstay_placement::machines`] where
//!   they run ([`instances`](self)).
//!
//! Invariants: the amount reserved on a node is the sum of the requests of its instances; a port is
//! mapped exactly while its session is open; there are never more instances than the maximum, unless
//! agents report instances that were not asked for.

mod applications;
mod instances;
mod nodes;
mod pool;
mod sessions;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::Backoff;
use mainstay_controller::liveness::Monitor;
use mainstay_placement::machines::{Amount, Machines};

use crate::api::{
    ApplicationSpec, InstancePool, Protocol, SessionSpec, SessionState, SessionStatus,
};
use crate::endpoints::Endpoints;
use crate::protocol::{Endpoint, InstancePhase, to_node};

use pool::Pools;
pub use view::{ApplicationView, PoolSize};

/// `namespace/name`, or the name of a node.
pub type Key = Arc<str>;

/// The key of a name in a namespace.
#[must_use]
pub fn key(namespace: &str, name: &str) -> Key {
    format!("{namespace}/{name}").into()
}

/// The namespace and the name of a key.
#[must_use]
pub fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Intervals and timeouts of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The interval of agents' heartbeats.
    pub heartbeat: Duration,
    /// A node without a heartbeat for this long is lost.
    pub node_stale: Duration,
    /// The interval of agents' health reports about instances and sessions.
    pub health: Duration,
    /// An instance or session without a health report for this long is terminated or closed.
    pub health_stale: Duration,
    /// An instance that is not ready after this long is replaced.
    pub pending: Duration,
    /// The command to terminate an instance is repeated after this long.
    pub deleting: Duration,
    /// The command to close a session is repeated this long after its grace period.
    pub closing: Duration,
    /// How long a closed session stays readable.
    pub closed: Duration,
    /// How long nodes may take to report after a start of the server.
    pub settle: Duration,
    /// The pause between two scaling steps of an application.
    pub step: Duration,
    /// How long no instance of an application is created after instances failed to start.
    pub start_backoff: Backoff,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            heartbeat: seconds(5),
            node_stale: seconds(20),
            health: seconds(60),
            health_stale: seconds(240),
            pending: seconds(30),
            deleting: seconds(30),
            closing: seconds(60),
            closed: seconds(60),
            settle: seconds(30),
            step: Duration::from_millis(200),
            start_backoff: Backoff::new(seconds(1), seconds(60)),
        }
    }
}

/// A moment, by the monotonic clock and by the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Time since a fixed moment; never goes back.
    pub elapsed: Duration,
    /// Date and time of day.
    pub wall: Timestamp,
}

/// The number of a request that waits for its answer.
pub type Ticket = u64;

/// Why a session was not opened. The engine has forgotten the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A session of that name exists. Do not retry.
    #[error("the session exists already")]
    AlreadyExists,
    /// The application does not exist. Do not retry.
    #[error("application \"{0}\" does not exist in this namespace")]
    NoApplication(String),
    /// The application is being deleted. Do not retry.
    #[error("the application \"{0}\" is being deleted")]
    ApplicationDeleted(String),
    /// No instance is ready. Retry a little later.
    #[error("system busy, retry later: {0}")]
    Busy(String),
    /// No instance was ready in time.
    #[error("{0}")]
    Timeout(String),
    /// It was closed before it was open.
    #[error("the session was closed before it was open: {0}")]
    Closed(String),
}

/// An action that the caller carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message to a node.
    Send {
        /// The node.
        node: Key,
        /// The number of the command; 0 if the message is not a command.
        request: u64,
        /// The message.
        body: to_node::Body,
    },
    /// Close the stream of a node.
    Disconnect {
        /// The node.
        node: Key,
    },
    /// Answer a request to open a session.
    Answer {
        /// The request.
        ticket: Ticket,
        /// The name of the open session, or why it was not opened.
        answer: Result<Key, Refusal>,
    },
    /// The status of a session changed.
    Session(Key),
    /// A session is closed and forgotten; with its last status.
    SessionGone(Key, Box<SessionStatus>),
    /// The status of an instance changed.
    Instance(Key),
    /// An instance is gone.
    InstanceGone(Key),
    /// The status of an application changed.
    Application(Key),
    /// The last instance of a deleted application is gone.
    ApplicationGone(Key),
    /// The readiness of a node changed.
    Node(Key),
    /// Forward a port of the gateway. Report the result with [`Engine::mapped`].
    Map {
        /// The session.
        session: Key,
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// The address to forward to.
        address: String,
        /// The port at that address.
        to: u16,
    },
    /// Stop forwarding a port of the gateway.
    Unmap {
        /// The session.
        session: Key,
        /// The port.
        port: u16,
        /// TCP or UDP.
        protocol: Protocol,
        /// How long open connections may continue.
        drain: Duration,
    },
    /// Reserve a block of ports durably. Report the end of it with [`Engine::reserved`].
    Reserve(usize),
    /// Attach a volume to a node, or detach it.
    Attach {
        /// The volume.
        volume: String,
        /// The node.
        node: Key,
        /// Attach if true, else detach.
        attached: bool,
    },
    /// Record an event about an object.
    Event(EngineEvent),
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// The object.
    pub subject: Subject,
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason, as one CamelCase word.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

/// The object of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A session.
    Session(Key),
    /// An instance.
    Instance(Key),
    /// An application.
    Application(Key),
    /// A node.
    Node(Key),
}

/// An application as the engine knows it.
#[derive(Debug)]
pub(crate) struct Application {
    pub(crate) spec: Arc<ApplicationSpec>,
    pub(crate) generation: i64,
    pub(crate) process: Arc<[u8]>,
    pub(crate) template: Arc<str>,
    pub(crate) amount: Amount,
    pub(crate) deleting: bool,
    pub(crate) pools: Pools,
    /// Instances without a node.
    pub(crate) unplaced: VecDeque<Key>,
    /// Sessions without an instance, in the order they will get one.
    pub(crate) waiting: BTreeMap<i64, Key>,
    /// When each refused request stops to count as demand.
    pub(crate) refused: VecDeque<Duration>,
    pub(crate) sessions: HashSet<Key>,
    /// The number of pending instances that will be frozen.
    pub(crate) freezing: i64,
    /// The number of instances in a row that failed before they were ready.
    pub(crate) failures: u32,
    /// No instance is created before this time.
    pub(crate) held: Duration,
    pub(crate) message: String,
    pub(crate) desired: i64,
    pub(crate) history: VecDeque<crate::api::application::DeploymentHistory>,
}

/// An instance as the engine knows it.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) application: Key,
    pub(crate) node: Option<Key>,
    pub(crate) pool: InstancePool,
    /// Its position in its pool.
    pub(crate) place: u64,
    pub(crate) template: Arc<str>,
    pub(crate) amount: Amount,
    pub(crate) phase: InstancePhase,
    pub(crate) session: Option<Key>,
    /// The number of the command that creates or thaws it.
    pub(crate) command: u64,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Its node has reported it.
    pub(crate) acknowledged: bool,
    /// It will be frozen when it is ready.
    pub(crate) standby: bool,
    pub(crate) created: Timestamp,
    pub(crate) ready: Option<Timestamp>,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// A session as the engine knows it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) application: Key,
    pub(crate) spec: Arc<SessionSpec>,
    pub(crate) state: SessionState,
    pub(crate) instance: Option<Key>,
    pub(crate) ticket: Option<Ticket>,
    /// Its position among the waiting sessions.
    pub(crate) order: Option<i64>,
    /// The number of the command that opens it.
    pub(crate) command: u64,
    /// How many ports were in use by another program.
    pub(crate) refused_ports: u32,
    pub(crate) deadline: Duration,
    /// When it got its instance.
    pub(crate) assigned: Option<Duration>,
    pub(crate) port: Option<(u16, Protocol)>,
    pub(crate) mapped: bool,
    /// Connected clients: since when, and whether the instance reported them (else the gateway did).
    pub(crate) clients: BTreeMap<String, (Timestamp, bool)>,
    pub(crate) available: Option<Timestamp>,
    pub(crate) closed: Option<Timestamp>,
    /// A user deleted its object.
    pub(crate) deleted: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The object as its user wrote it; its node stores a copy.
    pub(crate) object: Arc<[u8]>,
}

/// A node as the engine knows it.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) connected: bool,
    pub(crate) registered: bool,
    pub(crate) ready: bool,
    pub(crate) cordoned: bool,
    pub(crate) revision: u64,
    /// A full report was requested and has not arrived yet.
    pub(crate) syncing: bool,
    pub(crate) address: String,
    /// The labels of its Node object, if it exists: they replace those it registered with.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) registered_labels: BTreeMap<String, String>,
    pub(crate) instances: HashSet<Key>,
}

/// A check at a given time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The deadline to open a session.
    Open(Key),
    /// The time to repeat the command to close a session.
    Close(Key),
    /// The end of the time that a closed session is readable.
    Forget(Key),
    /// The next scaling step of an application.
    Scale(Key),
    /// The end of the time for nodes to report; unclaimed ports of an earlier run become free.
    Settle,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    timeouts: Timeouts,
    /// Whether it sends commands; otherwise it only follows the reports.
    primary: bool,
    seed: u64,
    named: u64,
    requests: u64,
    places: u64,
    applications: HashMap<Key, Application>,
    instances: HashMap<Key, Instance>,
    sessions: HashMap<Key, Session>,
    nodes: HashMap<Key, Node>,
    machines: Machines,
    /// The nodes with a replica of each volume.
    replicas: HashMap<String, HashSet<Key>>,
    /// The number of instances that use a volume on a node.
    volume_uses: HashMap<(String, Key), usize>,
    endpoints: Option<Endpoints>,
    reserving: bool,
    node_monitor: Monitor<Key>,
    instance_monitor: Monitor<Key>,
    session_monitor: Monitor<Key>,
    /// Instances that were sent to a node, oldest first.
    pending: VecDeque<(Duration, Key)>,
    /// Instances that are terminating, by the time of the last command, oldest first.
    deleting: VecDeque<(Duration, Key)>,
    due: BTreeSet<(Duration, Due)>,
    /// Commands whose failure has consequences, by number.
    commands: HashMap<u64, (Command, Key)>,
    /// Applications to process before the call ends.
    touched: BTreeSet<Key>,
    /// Applications with instances without a node.
    starved: BTreeSet<Key>,
    /// Missing prerequisites of applications, such as a Secret: no instance starts meanwhile.
    missing: HashMap<Key, String>,
    /// Capacity became free.
    freed: bool,
    effects: Vec<Effect>,
}

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Create,
    Open,
    Activate,
}

impl Engine {
    /// An empty engine. `seed` is for the names of instances; `ports` are the first and the last port
    /// of the gateway, if there is one.
    #[must_use]
    pub fn new(timeouts: Timeouts, seed: u64, ports: Option<(u16, u16)>) -> Self {
        Self {
            timeouts,
            primary: true,
            seed,
            named: 0,
            requests: 0,
            places: 0,
            applications: HashMap::new(),
            instances: HashMap::new(),
            sessions: HashMap::new(),
            nodes: HashMap::new(),
            machines: Machines::default(),
            replicas: HashMap::new(),
            volume_uses: HashMap::new(),
            endpoints: ports.map(|(first, last)| Endpoints::new(first, last)),
            reserving: false,
            node_monitor: Monitor::default(),
            instance_monitor: Monitor::default(),
            session_monitor: Monitor::default(),
            pending: VecDeque::new(),
            deleting: VecDeque::new(),
            due: BTreeSet::new(),
            commands: HashMap::new(),
            touched: BTreeSet::new(),
            starved: BTreeSet::new(),
            missing: HashMap::new(),
            freed: false,
            effects: Vec::new(),
        }
    }

    /// Makes this engine primary or not. An engine that is not primary creates no instances and sends
    /// no commands.
    pub fn set_primary(&mut self, primary: bool, now: Moment) {
        if primary != self.primary {
            self.primary = primary;
            self.touched.extend(self.applications.keys().cloned());
            self.settle(now);
        }
    }

    /// Takes the effects since the last call, in order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Processes every deadline that has passed. Calling it again at the same moment does nothing.
    pub fn tick(&mut self, now: Moment) {
        for node in self.node_monitor.stale(now.elapsed, self.timeouts.node_stale) {
            self.lose_node(&node, now);
        }
        for instance in self.instance_monitor.stale(now.elapsed, self.timeouts.health_stale) {
            self.expire_instance(&instance, now);
        }
        for session in self.session_monitor.stale(now.elapsed, self.timeouts.health_stale) {
            self.expire_session(&session, now);
        }
        self.replace_stuck(now);
        self.repeat_terminate(now);
        while let Some((_, due)) = self.due.first().filter(|(at, _)| *at <= now.elapsed).cloned() {
            self.due.pop_first();
            match due {
                Due::Open(session) => self.check_open(&session, now),
                Due::Close(session) => self.repeat_close(&session, now),
                Due::Forget(session) => self.forget_session(&session),
                Due::Scale(application) => {
                    self.touched.insert(application);
                }
                Due::Settle => {
                    self.settle_ports();
                }
            }
        }
        self.settle(now);
    }

    /// The next time at which [`Engine::tick`] has something to do.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        let Timeouts { node_stale, health_stale, pending, deleting, .. } = self.timeouts;
        // An entry is stale strictly after its timeout, so a tick at exactly that time is too early.
        let after = |at: Duration| at + Duration::from_millis(1);
        [
            self.node_monitor.next_stale(node_stale).map(after),
            self.instance_monitor.next_stale(health_stale).map(after),
            self.session_monitor.next_stale(health_stale).map(after),
            self.pending.front().map(|(at, _)| after(*at + pending)),
            self.deleting.front().map(|(at, _)| after(*at + deleting)),
            self.due.first().map(|(at, _)| *at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Completes a call: places instances without a node if capacity became free, assigns ready
    /// instances to waiting sessions, and scales the applications that the call touched.
    fn settle(&mut self, now: Moment) {
        if std::mem::take(&mut self.freed) {
            self.place_waiting(now);
        }
        for application in std::mem::take(&mut self.touched) {
            self.assign_waiting(&application, now);
            self.scale(&application, now);
            self.effects.push(Effect::Application(application));
        }
        // One scaling step per call: changes by the step itself are processed at the next tick.
        self.touched.clear();
        // A server without applications needs no ports.
        if !self.reserving
            && !self.applications.is_empty()
            && let Some(block) = self.endpoints.as_ref().and_then(Endpoints::wanted)
        {
            self.reserving = true;
            self.effects.push(Effect::Reserve(block));
        }
    }

    fn send(&mut self, node: &Key, body: to_node::Body) -> u64 {
        if !self.primary {
            return 0;
        }
        self.requests += 1;
        let request = self.requests;
        self.effects.push(Effect::Send { node: node.clone(), request, body });
        request
    }

    fn event(&mut self, subject: Subject, warning: bool, reason: &'static str, message: String) {
        self.effects.push(Effect::Event(EngineEvent { subject, warning, reason, message }));
    }
}

#[cfg(test)]
mod tests;
