//! How a server is to be: where it listens, what it keeps, how much it puts up with.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_store::backup::PartSource;
use mainstay_store::clock::Clock;
use mainstay_store::keeper::Keeper;
use mainstay_store::object::Resource;
use mainstay_store::registry::Registry;
use mainstay_store::{Location, Settings};

use crate::readiness::Check;

/// Everything a server needs to know before it starts.
#[derive(Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the server keeps its files; made if it is not there.
    pub data_dir: PathBuf,
    /// Where objects are kept.
    pub store: Location,
    /// How the store is to behave.
    pub settings: Settings,
    /// Whether the store is meant as it is found, though the data folder remembers another.
    pub new_cluster: bool,
    /// Every kind that is served.
    pub registry: Arc<Registry>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Serve without TLS. Only on a loopback address.
    pub plain_http: bool,
    /// Further names and addresses that the server's certificate is made out to.
    pub tls_names: Vec<String>,
    /// How much the server puts up with.
    pub limits: Limits,
    /// Further dialects: asked for every path the server does not know itself, by users that are
    /// known. The [`crate::User`] is among the request's extensions. A path that they do not know either
    /// is answered with a `Status`.
    pub routes: Option<axum::Router>,
    /// Where those further dialects begin that know users of their own, such as `/rucio`: there a
    /// request is handed over also when this server does not know who asks, without a
    /// [`crate::User`].
    pub own_users: Vec<&'static str>,
    /// Those who keep the objects of a kind themselves, by collection.
    pub keepers: HashMap<Resource, Arc<dyn Keeper>>,
    /// Paths of further dialects that begin with one of these are streams that stay open: they count
    /// as watches, not as requests.
    pub streams: Vec<&'static str>,
    /// Which requests leave a line in the audit log, and where it is.
    pub audit: crate::audit::Settings,
    /// Counters of others, shown under `/metrics` with the server's own.
    pub metrics: prometheus_client::registry::Registry,
    /// Data besides the objects that belongs into a backup.
    pub parts: Vec<Arc<dyn PartSource>>,
    /// Parts of others that must work for the server to be ready, besides its store; by the name
    /// that `/readyz` shows.
    pub checks: Vec<(&'static str, Arc<dyn Check>)>,
    /// Whether engines are started beside the server: it is not ready before
    /// [`crate::Running::set_ready`] is called.
    pub engines_follow: bool,
}

impl Options {
    /// The usual: SQLite in `data_dir`, TLS.
    #[must_use]
    pub fn new(
        listen: SocketAddr,
        data_dir: PathBuf,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            listen,
            store: Location::Sqlite(data_dir.join("objects.db")),
            data_dir,
            settings: Settings::default(),
            new_cluster: false,
            registry,
            clock,
            plain_http: false,
            tls_names: Vec::new(),
            limits: Limits::default(),
            routes: None,
            own_users: Vec::new(),
            keepers: HashMap::new(),
            streams: Vec::new(),
            audit: crate::audit::Settings::default(),
            metrics: prometheus_client::registry::Registry::default(),
            parts: Vec::new(),
            checks: Vec::new(),
            engines_follow: false,
        }
    }
}

/// How much a server puts up with.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections open at once. Beyond, the longest idle one makes room.
    pub connections: usize,
    /// Connections from one address at once, besides its share of all.
    pub connections_per_address: Option<usize>,
    /// Requests of known users under way at once, watches not counted. Beyond, the answer is 429.
    pub in_flight: usize,
    /// Requests of unknown users under way at once. Beyond, the answer is 429.
    pub strangers: usize,
    /// Watches open at once. Beyond, the answer is 429.
    pub watches: usize,
    /// Bodies of requests that are received at once. Beyond, the answer is 429.
    pub bodies: usize,
    /// The largest body of a request, in bytes.
    pub body: usize,
    /// Bodies of known users in memory at once, in bytes.
    pub body_memory: usize,
    /// Bodies of unknown users in memory at once, in bytes.
    pub stranger_body_memory: usize,
    /// Answers to known users that were made and not yet taken, in bytes. Beyond, the answer is 429.
    pub answer_memory: usize,
    /// How long a body may take to arrive in any case.
    pub body_grace: Duration,
    /// Bytes a second of a body that must arrive beyond. Slower ones are answered 408.
    pub body_rate: u32,
    /// The largest head of a request, in bytes.
    pub head: usize,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long the head of a request may take to arrive.
    pub head_time: Duration,
    /// How long a request may take, watches excepted.
    pub request: Duration,
    /// How long a connection may be idle.
    pub idle: Duration,
    /// How long a client may refuse to take what is sent to it.
    pub stall: Duration,
    /// How long an ending server waits for requests under way.
    pub shutdown: Duration,
    /// How long a watch lasts if the client does not say; up to twice that.
    pub watch: Duration,
    /// How often a watch that asked for them gets bookmarks.
    pub bookmark: Duration,
    /// How long an Event is kept.
    pub event_age: Duration,
    /// How many Events are kept.
    pub events: usize,
    /// How long the certificate of a node is good; its agent renews it before.
    pub node_certificate: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connections: 16_384,
            connections_per_address: None,
            in_flight: 1_024,
            strangers: 512,
            watches: 16_384,
            bodies: 1_024,
            body: 3 << 20,
            body_memory: 256 << 20,
            stranger_body_memory: 32 << 20,
            answer_memory: 256 << 20,
            body_grace: seconds(10),
            body_rate: 64 << 10,
            head: 64 << 10,
            handshake: seconds(10),
            head_time: seconds(15),
            request: seconds(60),
            idle: seconds(300),
            stall: seconds(30),
            shutdown: seconds(10),
            watch: seconds(1800),
            bookmark: seconds(60),
            event_age: seconds(3600),
            events: 20_000,
            node_certificate: seconds(30 * 24 * 3600),
        }
    }
}
