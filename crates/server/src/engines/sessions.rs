//! Sessions beside a server: their keepers and routes, and the gateway.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use mainstay_sessions::api::{ApplicationSession, Instance};
use mainstay_sessions::controller::{
    self, GatewayOptions, Handle, Inbox, Metrics, STREAMS, Sessions,
};
use mainstay_sessions::engine::Timeouts;
use mainstay_store::object::Resource;
use mainstay_store::registry::Typed;
use mainstay_store::resources::{Identities, RandomIdentities};

use super::{Error, audit, merge};
use crate::authorize::dialects;
use crate::identity::User;
use crate::options::Options;
use crate::server::Running;

/// How sessions are run.
#[derive(Clone, Debug, Default)]
pub struct SessionsOptions {
    /// The gateway through which sessions are reached.
    pub gateway: Gateway,
    /// How long a node may be silent until it is lost; the engine's own default if nothing is given.
    pub node_timeout: Option<Duration>,
}

/// The gateway through which sessions are reached.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where it listens; where the server does if nothing is given.
    pub address: Option<IpAddr>,
    /// The address that sessions show, if it is another.
    pub advertise: Option<String>,
    /// The first and the last port; none for no gateway.
    pub ports: Option<(u16, u16)>,
}

impl Gateway {
    /// The usual ports.
    pub const PORTS: (u16, u16) = (30000, 32767);
}

impl Default for Gateway {
    fn default() -> Self {
        Self { address: None, advertise: None, ports: Some(Self::PORTS) }
    }
}

/// Whether a user of the server may register an agent of this name.
fn speaks_for(extensions: &http::Extensions, node: &str) -> bool {
    let user = extensions.get::<Arc<User>>().map(|user| &**user);
    dialects::may_register(user, node)
}

/// Adds sessions to what a server will serve.
pub(super) fn mount(options: &mut Options) -> (Handle, Inbox) {
    let metrics = Metrics::default();
    metrics.register(&mut options.metrics);
    let (handle, inbox) = controller::handle(metrics);
    let (sessions, instances) = handle.keepers();
    let collection = |group: &str, plural: &str| Resource::new(group, plural);
    options
        .keepers
        .insert(collection(ApplicationSession::GROUP, ApplicationSession::PLURAL), sessions);
    options.keepers.insert(collection(Instance::GROUP, Instance::PLURAL), instances);
    merge(options, controller::router(handle.clone(), speaks_for, audit::stream));
    options.streams.push(STREAMS);
    (handle, inbox)
}

/// The engine's timeouts: agents send at least four heartbeats within the node timeout.
fn timeouts(node_timeout: Option<Duration>) -> Timeouts {
    let usual = Timeouts::default();
    let node_stale = node_timeout.unwrap_or(usual.node_stale);
    Timeouts { node_stale, heartbeat: usual.heartbeat.min(node_stale / 4), ..usual }
}

/// The address others reach this machine at, as far as it can tell.
fn own_address() -> IpAddr {
    let found = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // No packet is sent: connecting a datagram socket only chooses a route.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    found().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Runs sessions beside a server.
pub(super) async fn start(
    running: &Running,
    given: &SessionsOptions,
    handle: &Handle,
    inbox: Inbox,
) -> Result<Sessions, Error> {
    let (gate, timeouts) = (&given.gateway, timeouts(given.node_timeout));
    let listen = gate.address.unwrap_or(running.local_addr().ip());
    let shown = if listen.is_unspecified() { own_address() } else { listen };
    let advertise = gate.advertise.clone().unwrap_or_else(|| shown.to_string());
    let gateway = gate.ports.map(|ports| GatewayOptions { listen, advertise, ports });
    let resources = running.resources();
    let instances = Resource::new(Instance::GROUP, Instance::PLURAL);
    let seed = RandomIdentities.uid();
    let seed = u64::from_str_radix(&seed.replace('-', "")[..15], 16).unwrap_or_default();
    let options = controller::Options {
        timeouts,
        gateway,
        seed,
        // Each start of the store's memory has its own epoch, counted durably.
        epoch: resources.objects().revision(&instances).0 >> 40,
        leadership: running.election().map(|election| election.leadership()),
    };
    let started = Sessions::start(resources, options, handle, inbox).await;
    started.map_err(Error::engine)
}
