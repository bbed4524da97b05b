//! The engine: which instance takes which session, and what has to be said to whom.
//!
//! It is a pure state machine. What happens in the world comes in as calls ([`Engine::open`],
//! [`Engine::hear`], [`Engine::tick`] …) with the moment it happened; what is to be done comes out
//! as [`Effect`]s, in order. It reads no clock, keeps no file and knows no socket, so the same calls
//! always give the same effects, and a test can play a whole cluster.
//!
//! * [`nodes`](self) are heard through revisions: one more than the last is applied, the same or a
//!   lower one is not, a gap asks for everything.
//! * Every instance is in exactly one pool of its application ([`pool`]).
//! * A session has at most one instance and an instance at most one session ([`sessions`](self)).
//! * Instances are made and ended by [`crate::scale`], and placed by
//!   [`mainstay_placement::machines`] ([`instances`](self)).
//!
//! What always holds: on each node, reserved is the sum of what the instances there asked for; a
//! port is mapped exactly while its session is open; there are never more instances than the
//! maximum, unless agents report more than were asked for.

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
use mainstay_controller::liveness::Monitor;
use mainstay_placement::machines::{Amount, Machines};

use crate::api::{
    ApplicationSpec, InstancePool, Protocol, SessionSpec, SessionState, SessionStatus,
};
use crate::endpoints::Endpoints;
use crate::protocol::{Endpoint, InstancePhase, to_node};

use pool::Pools;
pub use view::{ApplicationView, Pool};

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

/// How patient the engine is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How often an agent says that it is there.
    pub heartbeat: Duration,
    /// A node that was not heard for so long is lost.
    pub node_stale: Duration,
    /// How often an agent says which instances and sessions are well.
    pub health: Duration,
    /// An instance or a session that was not heard of for so long is given up.
    pub health_stale: Duration,
    /// An instance that is on its way for so long is replaced.
    pub pending: Duration,
    /// An instance that is ending for so long is told again.
    pub deleting: Duration,
    /// A session that is closing for so long beyond its grace is told again.
    pub closing: Duration,
    /// How long a closed session can be read.
    pub closed: Duration,
    /// How long after a start every node has had time to report.
    pub settle: Duration,
    /// How soon a step that was cut to a burst is followed by the next.
    pub step: Duration,
    /// How long nothing is made after instances failed, at first and at most.
    pub back_off: (Duration, Duration),
}

impl Default for Settings {
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
            back_off: (seconds(1), seconds(60)),
        }
    }
}

/// A moment: by the monotonic clock, and by the calendar.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Since some fixed moment; never goes back.
    pub elapsed: Duration,
    /// The time of day.
    pub wall: Timestamp,
}

/// Names a request that waits for its answer.
pub type Ticket = u64;

/// Why a session was not opened. Nothing was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is one of that name. Do not retry.
    #[error("the session exists already")]
    AlreadyExists,
    /// There is no such application. Do not retry.
    #[error("there is no application \"{0}\" in this namespace")]
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

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say something to a node.
    Send {
        /// The node.
        node: Key,
        /// The number of the command; 0 for what is no command.
        request: u64,
        /// What to say.
        body: to_node::Body,
    },
    /// Hang up on a node.
    Disconnect {
        /// The node.
        node: Key,
    },
    /// Answer a request to open a session.
    Answer {
        /// The request.
        ticket: Ticket,
        /// The session is open, or why not.
        answer: Result<Key, Refusal>,
    },
    /// Something about a session changed.
    Session(Key),
    /// A session is over and forgotten; this is what it last was.
    SessionGone(Key, Box<SessionStatus>),
    /// Something about an instance changed.
    Instance(Key),
    /// An instance is gone.
    InstanceGone(Key),
    /// Something about an application changed.
    Application(Key),
    /// Nothing is left of a deleted application.
    ApplicationGone(Key),
    /// Whether a node is well changed.
    Node(Key),
    /// Forward from a port of the gateway. Say how it went with [`Engine::mapped`].
    Map {
        /// The session.
        session: Key,
        /// The port.
        port: u16,
        /// How it is spoken to.
        protocol: Protocol,
        /// Where to.
        address: String,
        /// The port there.
        to: u16,
    },
    /// Forward no longer.
    Unmap {
        /// The session.
        session: Key,
        /// The port.
        port: u16,
        /// How it is spoken to.
        protocol: Protocol,
        /// How long connections may go on.
        drain: Duration,
    },
    /// Reserve a block of ports durably. Say when it is done with [`Engine::reserved`].
    Reserve(usize),
    /// A volume is wanted on a node, or no longer.
    Attach {
        /// The volume.
        volume: String,
        /// The node.
        node: Key,
        /// Whether it is wanted.
        wanted: bool,
    },
    /// Something people should know.
    Note(Note),
}

/// Something people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it is about.
    pub about: About,
    /// Whether something went wrong.
    pub warning: bool,
    /// What happened, in a word.
    pub reason: &'static str,
    /// What happened, for people.
    pub message: String,
}

/// What a note is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
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
    /// Instances that found no node.
    pub(crate) unplaced: VecDeque<Key>,
    /// Sessions without an instance, first come first.
    pub(crate) waiting: BTreeMap<i64, Key>,
    /// Until when refused requests count as demand.
    pub(crate) refused: VecDeque<Duration>,
    pub(crate) sessions: HashSet<Key>,
    /// How many of those pending are to be frozen.
    pub(crate) freezing: i64,
    /// How many instances in a row failed before they were ready.
    pub(crate) failures: u32,
    /// Until when nothing is made.
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
    /// Its place in its pool.
    pub(crate) place: u64,
    pub(crate) template: Arc<str>,
    pub(crate) amount: Amount,
    pub(crate) phase: InstancePhase,
    pub(crate) session: Option<Key>,
    /// The number of the command that made or thawed it.
    pub(crate) command: u64,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Its node has spoken of it.
    pub(crate) acknowledged: bool,
    /// It is to be frozen when it is ready.
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
    /// Its place among those that wait.
    pub(crate) order: Option<i64>,
    /// The number of the command that opens it.
    pub(crate) command: u64,
    /// How often its port was somebody else's.
    pub(crate) refused_ports: u32,
    pub(crate) deadline: Duration,
    /// When it got its instance.
    pub(crate) assigned: Option<Duration>,
    pub(crate) port: Option<(u16, Protocol)>,
    pub(crate) mapped: bool,
    /// Who is connected, since when, and whether the instance said so (else the gateway did).
    pub(crate) clients: BTreeMap<String, (Timestamp, bool)>,
    pub(crate) available: Option<Timestamp>,
    pub(crate) closed: Option<Timestamp>,
    /// Somebody wants its object to go.
    pub(crate) deleted: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The object as it was told, for the node to keep.
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
    /// Everything was asked for and has not come yet.
    pub(crate) syncing: bool,
    pub(crate) address: String,
    /// The labels of its Node object, if there is one: they win over those it registered with.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) registered_labels: BTreeMap<String, String>,
    pub(crate) instances: HashSet<Key>,
}

/// Something that has to be looked at when its time has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A session that is not open yet.
    Open(Key),
    /// A session that is closing.
    Close(Key),
    /// A closed session.
    Forget(Key),
    /// An application.
    Scale(Key),
    /// Ports of an earlier run.
    Settle,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    /// Whether it commands; one that does not only keeps track of what it hears.
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
    /// Nodes that have a replica of a volume.
    replicas: HashMap<String, HashSet<Key>>,
    /// How many instances use a volume on a node.
    volume_uses: HashMap<(String, Key), usize>,
    endpoints: Option<Endpoints>,
    reserving: bool,
    node_monitor: Monitor<Key>,
    instance_monitor: Monitor<Key>,
    session_monitor: Monitor<Key>,
    /// Instances that were sent to a node, oldest first.
    pending: VecDeque<(Duration, Key)>,
    /// Instances that were told to end, oldest first.
    deleting: VecDeque<(Duration, Key)>,
    due: BTreeSet<(Duration, Due)>,
    /// Commands whose failure matters, by number.
    commands: HashMap<u64, (Command, Key)>,
    /// Applications to look at before the call ends.
    touched: BTreeSet<Key>,
    /// Applications with instances that found no node.
    starved: BTreeSet<Key>,
    /// What instances of applications need and is not there: none is started meanwhile.
    lacking: HashMap<Key, String>,
    /// Something became free.
    freed: bool,
    effects: Vec<Effect>,
}

/// What a command was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Create,
    Open,
    Activate,
}

impl Engine {
    /// An engine that knows nobody yet. `seed` makes the names of its instances; `ports` are the
    /// first and the last port of the gateway, if there is one.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, ports: Option<(u16, u16)>) -> Self {
        Self {
            settings,
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
            lacking: HashMap::new(),
            freed: false,
            effects: Vec::new(),
        }
    }

    /// Takes command, or leaves it to another server: then nothing is made and nobody is spoken to.
    pub fn set_primary(&mut self, primary: bool, now: Moment) {
        if primary != self.primary {
            self.primary = primary;
            self.touched.extend(self.applications.keys().cloned());
            self.settle(now);
        }
    }

    /// What is to be done, in order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Looks at everything whose time has come. Calling it again at the same moment does nothing.
    pub fn tick(&mut self, now: Moment) {
        for node in self.node_monitor.stale(now.elapsed, self.settings.node_stale) {
            self.lose_node(&node, now);
        }
        for instance in self.instance_monitor.stale(now.elapsed, self.settings.health_stale) {
            self.give_up_instance(&instance, now);
        }
        for session in self.session_monitor.stale(now.elapsed, self.settings.health_stale) {
            self.give_up_session(&session, now);
        }
        self.replace_stuck(now);
        self.end_again(now);
        while let Some((_, due)) = self.due.first().filter(|(at, _)| *at <= now.elapsed).cloned() {
            self.due.pop_first();
            match due {
                Due::Open(session) => self.check_open(&session, now),
                Due::Close(session) => self.close_again(&session, now),
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

    /// When [`Engine::tick`] has something to do, if nothing happens before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        let Settings { node_stale, health_stale, pending, deleting, .. } = self.settings;
        // Staleness is strictly later than its time, so a tick at exactly that time is too early.
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

    /// Follows up what changed for applications while a call was under way: what found no node is
    /// tried again when something became free, waiting sessions take ready instances, policies make
    /// and end instances.
    fn settle(&mut self, now: Moment) {
        if std::mem::take(&mut self.freed) {
            self.place_waiting(now);
        }
        for application in std::mem::take(&mut self.touched) {
            self.assign_waiting(&application, now);
            self.scale(&application, now);
            self.effects.push(Effect::Application(application));
        }
        // A step of scaling is one step: what it moved itself is looked at when its time comes.
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

    fn note(&mut self, about: About, warning: bool, reason: &'static str, message: String) {
        self.effects.push(Effect::Note(Note { about, warning, reason, message }));
    }
}

#[cfg(test)]
mod tests;
