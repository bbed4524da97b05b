//! Runs the engine: requests, messages and changes go in, its effects are carried out.
//!
//! A [`Handle`] accepts requests: it keeps sessions and instances for the API
//! ([`mainstay_store::keeper::Keeper`]) and accepts the streams of agents
//! ([`crate::protocol::Agents`]). One task ([`actor`](self)) owns the engine and carries out its
//! effects: it sends messages to nodes, opens and closes ports of the gateway, and publishes
//! sessions and instances in the store's memory. Whatever must survive a restart (statuses of
//! applications, blocks of ports, attachments) is written by another task ([`writer`](self)), so
//! that no request waits for a disk.
//!
//! Invariants: a session that was answered as open is readable as open; a node that does not
//! read its stream is disconnected and delays no other node.

mod actor;
mod handle;
mod keeper;
mod metrics;
mod publish;
mod rest;
mod streams;
mod writer;

use std::net::IpAddr;
use std::sync::Arc;

use mainstay_controller::election::Leadership;
use mainstay_controller::events::{self, Recorder};
use mainstay_controller::reflector::Reflector;
use mainstay_store::builtin::{Node, Secret};
use mainstay_store::resources::{Error, Resources};
use mainstay_volumes::api::ReplicatedVolumeReplica;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use handle::Handle;
pub use metrics::Metrics;
pub use streams::{RecordNode, STREAMS, SpeaksFor, router};

use crate::api::Application;
use crate::engine::{Engine, Timeouts};
use crate::gateway::Gateway;
use actor::{Actor, Changes, reflect_replicas};
use handle::Input;
use writer::{PersistedPorts, Writer};

/// The largest number of inputs that may wait for the actor.
const MAX_INPUTS: usize = 16_384;

/// The field manager and event source of everything written here.
pub const COMPONENT: &str = "sessions";

/// How to run sessions.
#[derive(Clone, Debug)]
pub struct Options {
    /// Intervals and timeouts of the engine.
    pub timeouts: Timeouts,
    /// The gateway; without one, a session's endpoint is its instance's own address.
    pub gateway: Option<GatewayOptions>,
    /// The seed of the random part of instance names.
    pub seed: u64,
    /// The epoch of this server: agents refuse commands of an older one.
    pub epoch: u64,
    /// The leadership among several servers; without an election, this server leads.
    pub leadership: Option<watch::Receiver<Leadership>>,
}

/// The gateway's addresses and ports.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The address it listens on.
    pub listen: IpAddr,
    /// The address in sessions' status.
    pub advertise: String,
    /// The first and the last port.
    pub ports: (u16, u16),
}

/// The inputs that the actor has not processed yet.
#[derive(Debug)]
pub struct Inbox {
    receiver: mpsc::Receiver<Input>,
}

/// A handle, and the inbox that it fills.
#[must_use]
pub fn handle(metrics: Metrics) -> (Handle, Inbox) {
    let (sender, receiver) = mpsc::channel(MAX_INPUTS);
    (Handle::new(sender, metrics), Inbox { receiver })
}

/// The running tasks. They stop with [`Sessions::shutdown`].
#[derive(Debug)]
pub struct Sessions {
    stop: CancellationToken,
    actor: tokio::task::JoinHandle<()>,
    writer: tokio::task::JoinHandle<()>,
    gateway: Option<Gateway>,
    recorder: Recorder,
    reflectors: Reflectors,
}

/// The collections that the actor follows.
#[derive(Clone, Debug)]
struct Reflectors {
    applications: Reflector<Application>,
    nodes: Reflector<Node>,
    replicas: Reflector<ReplicatedVolumeReplica>,
    secrets: Reflector<Secret>,
}

impl Sessions {
    /// Reads the store, then starts to process the inbox.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn start(
        resources: &Resources,
        options: Options,
        handle: &Handle,
        inbox: Inbox,
    ) -> Result<Self, Error> {
        let stop = CancellationToken::new();
        let changes = Arc::new(Changes::default());
        let applications = Reflector::<Application>::of(resources).start();
        let nodes = Reflector::<Node>::of(resources).start();
        let replicas = reflect_replicas(resources);
        let secrets = Reflector::<Secret>::of(resources).start();
        let gone = |error: mainstay_controller::reflector::Error| Error::internal(error);
        applications.wait_until_synced().await.map_err(gone)?;
        nodes.wait_until_synced().await.map_err(gone)?;
        replicas.wait_until_synced().await.map_err(gone)?;
        secrets.wait_until_synced().await.map_err(gone)?;
        let reflectors = Reflectors { applications, nodes, replicas, secrets };
        let subscriptions = changes.follow_all(&reflectors);
        let ports = options.gateway.as_ref().map(|gateway| gateway.ports);
        let persisted = match ports {
            Some((first, _)) => writer::read_ports(resources, first).await?,
            None => PersistedPorts::default(),
        };
        let (gateway, clients) = match &options.gateway {
            Some(wanted) => {
                let gateway = crate::gateway::Options {
                    address: wanted.listen,
                    ..crate::gateway::Options::default()
                };
                let (gateway, clients) = Gateway::start(gateway, resources.clock().clone());
                (Some(gateway), Some(clients))
            }
            None => (None, None),
        };
        let recorder = Recorder::run(events::Options::new(COMPONENT), resources);
        let (writer, writes) = Writer::new(resources.clone(), handle.clone());
        let engine = Engine::new(options.timeouts, options.seed, ports);
        let actor = Actor::new(actor::Parts {
            engine,
            resources: resources.clone(),
            handle: handle.clone(),
            inbox: inbox.receiver,
            changes,
            clients,
            gateway: gateway.clone(),
            advertise: options.gateway.map(|gateway| gateway.advertise).unwrap_or_default(),
            epoch: options.epoch,
            leadership: options.leadership,
            writes,
            recorder: recorder.clone(),
            reflectors: reflectors.clone(),
        });
        let actor = tokio::spawn(actor.run(persisted, subscriptions, stop.clone()));
        let writer = tokio::spawn(writer.run(stop.clone()));
        Ok(Self { stop, actor, writer, gateway, recorder, reflectors })
    }

    /// Stops in order: closes the streams of agents, finishes queued writes, closes the gateway.
    pub async fn shutdown(self) {
        self.stop.cancel();
        // The runtime has logged the panic of a task that panicked.
        let _ = self.actor.await;
        let _ = self.writer.await;
        if let Some(gateway) = self.gateway {
            gateway.shutdown().await;
        }
        self.recorder.shutdown().await;
        self.reflectors.applications.shutdown().await;
        self.reflectors.nodes.shutdown().await;
        self.reflectors.replicas.shutdown().await;
        self.reflectors.secrets.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
