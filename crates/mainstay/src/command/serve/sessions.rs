//! How sessions are put into a server.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use mainstay_server::{Options, Role, Running, User};
use mainstay_sessions::api::{ApplicationSession, Instance};
use mainstay_sessions::controller::{
    self, Desk, GatewayOptions, Inbox, Metrics, STREAMS, Sessions,
};
use mainstay_sessions::engine::Settings;
use mainstay_store::object::Resource;
use mainstay_store::registry::Typed;
use mainstay_store::resources::{Identities, RandomIdentities};

use crate::error::Error;

/// The gateway's ports when nobody says otherwise.
pub(super) const PORTS: (u16, u16) = (30000, 32767);

/// What was said about the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(super) address: Option<IpAddr>,
    pub(super) advertise: Option<String>,
    pub(super) ports: Option<(u16, u16)>,
}

/// What `--gateway-ports` means.
pub(super) fn ports(text: Option<&str>) -> Result<Option<(u16, u16)>, Error> {
    let Some(text) = text else { return Ok(Some(PORTS)) };
    if text == "none" {
        return Ok(None);
    }
    let range = text.split_once('-').and_then(|(first, last)| {
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first > 0 && first <= last).then_some((first, last))
    });
    range.map(Some).ok_or_else(|| {
        Error::usage(format!("--gateway-ports {text:?}: give a range as 30000-32767, or none"))
    })
}

/// Whether a user of the server may register an agent of this name.
fn speaks_for(extensions: &http::Extensions, node: &str) -> bool {
    let user = extensions.get::<Arc<User>>();
    user.is_some_and(|user| user.role == Some(Role::Admin) || user.speaks_for(node))
}

/// Adds sessions to what a server will serve.
pub(super) fn mount(options: &mut Options) -> (Desk, Inbox) {
    let metrics = Metrics::default();
    metrics.register(&mut options.metrics);
    let (desk, inbox) = controller::desk(metrics);
    let (sessions, instances) = desk.keepers();
    let collection = |group: &str, plural: &str| Resource::new(group, plural);
    options
        .keepers
        .insert(collection(ApplicationSession::GROUP, ApplicationSession::PLURAL), sessions);
    options.keepers.insert(collection(Instance::GROUP, Instance::PLURAL), instances);
    let routes = options.routes.take().unwrap_or_default();
    options.routes =
        Some(routes.merge(controller::router(desk.clone(), speaks_for, super::audit::stream)));
    options.streams.push(STREAMS);
    (desk, inbox)
}

/// How patient the engine is: agents say often enough that they are there.
pub(super) fn settings(node_timeout: Option<Duration>) -> Settings {
    let usual = Settings::default();
    let node_stale = node_timeout.unwrap_or(usual.node_stale);
    Settings { node_stale, heartbeat: usual.heartbeat.min(node_stale / 4), ..usual }
}

/// The address others reach this machine at, as far as it can tell.
fn own_address() -> IpAddr {
    let found = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // Nothing is sent: connecting only chooses the way there.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    found().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Runs sessions beside a server.
pub(super) async fn start(
    running: &Running,
    gate: &Gate,
    settings: Settings,
    desk: &Desk,
    inbox: Inbox,
) -> Result<Sessions, Error> {
    let listen = gate.address.unwrap_or(running.local_addr().ip());
    let shown = if listen.is_unspecified() { own_address() } else { listen };
    let advertise = gate.advertise.clone().unwrap_or_else(|| shown.to_string());
    let gateway = gate.ports.map(|ports| GatewayOptions { listen, advertise, ports });
    let resources = running.resources();
    let instances = Resource::new(Instance::GROUP, Instance::PLURAL);
    let seed = RandomIdentities.uid();
    let seed = u64::from_str_radix(&seed.replace('-', "")[..15], 16).unwrap_or_default();
    let options = controller::Options {
        settings,
        gateway,
        seed,
        // Each start of the store's memory has its own epoch, counted durably.
        epoch: resources.objects().revision(&instances).0 >> 40,
        leadership: running.election().map(|election| election.leadership()),
    };
    let started = Sessions::start(resources, options, desk, inbox).await;
    started.map_err(|error| Error::negative(error.to_string()))
}
