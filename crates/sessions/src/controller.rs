//! The shell around the engine: the world comes in, what the engine wants done goes out.
//!
//! A [`Desk`] takes what is asked for: it keeps sessions and instances for the API
//! ([`mainstay_store::keeper::Keeper`]) and takes the streams of agents
//! ([`crate::protocol::Agents`]). One task ([`actor`](self)) owns the engine and does as it says:
//! speaks to nodes, moves ports of the gateway, and publishes sessions and instances in the store's
//! memory. What must survive (statuses of applications, blocks of ports, attachments) is written by
//! another ([`scribe`](self)), so that no request waits for a disk.
//!
//! What always holds: whoever was told that a session is open reads it as open; a node that does not
//! read what it is told is hung up on and holds up nobody.

mod actor;
mod desk;
mod metrics;
mod publish;
mod rest;
mod scribe;

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

pub use desk::{Desk, Noted, STREAMS, SpeaksFor, router};
pub use metrics::Metrics;

use crate::api::Application;
use crate::engine::{Engine, Settings};
use crate::gateway::Gateway;
use actor::{Actor, Changes};
use desk::Input;
use scribe::Scribe;

/// How many requests, messages and events may wait for the engine.
const WAITING: usize = 16_384;

/// The name under which sessions act.
pub const COMPONENT: &str = "sessions";

/// How sessions are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How patient the engine is.
    pub settings: Settings,
    /// The gateway; without one, sessions are reached where their instances are.
    pub gateway: Option<GatewayOptions>,
    /// Where the names of instances come from.
    pub seed: u64,
    /// Which server this is, in time: commands of an older one are refused by agents.
    pub epoch: u64,
    /// Who is in command among several servers; without an election, this one.
    pub leadership: Option<watch::Receiver<Leadership>>,
}

/// Where the gateway listens, and how it is told to the world.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The address it listens on.
    pub listen: IpAddr,
    /// The address that sessions show.
    pub advertise: String,
    /// The first and the last port.
    pub ports: (u16, u16),
}

/// What the engine has not heard yet.
#[derive(Debug)]
pub struct Inbox {
    receiver: mpsc::Receiver<Input>,
}

/// A desk, and what is put on it.
#[must_use]
pub fn desk(metrics: Metrics) -> (Desk, Inbox) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Desk::new(sender, metrics), Inbox { receiver })
}

/// Running sessions.
#[derive(Debug)]
pub struct Sessions {
    stop: CancellationToken,
    actor: tokio::task::JoinHandle<()>,
    scribe: tokio::task::JoinHandle<()>,
    gateway: Option<Gateway>,
    recorder: Recorder,
    followed: Followed,
}

#[derive(Debug)]
struct Followed {
    applications: Reflector<Application>,
    nodes: Reflector<Node>,
    replicas: Reflector<ReplicatedVolumeReplica>,
    secrets: Reflector<Secret>,
}

impl Sessions {
    /// Reads what there is, and begins to take what was put on the desk.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn start(
        resources: &Resources,
        options: Options,
        desk: &Desk,
        inbox: Inbox,
    ) -> Result<Self, Error> {
        let stop = CancellationToken::new();
        let changes = Arc::new(Changes::default());
        let applications = Reflector::<Application>::of(resources).start();
        let nodes = Reflector::<Node>::of(resources).start();
        let replicas = Reflector::<ReplicatedVolumeReplica>::of(resources).start();
        let secrets = Reflector::<Secret>::of(resources).start();
        let gone = |error: mainstay_controller::reflector::Error| Error::internal(error);
        applications.wait_until_synced().await.map_err(gone)?;
        nodes.wait_until_synced().await.map_err(gone)?;
        replicas.wait_until_synced().await.map_err(gone)?;
        secrets.wait_until_synced().await.map_err(gone)?;
        let watching = (
            changes.follow(&applications, |changes| &mut changes.applications),
            changes.follow(&nodes, |changes| &mut changes.nodes),
            changes.follow_replicas(&replicas),
            changes.follow(&secrets, |changes| &mut changes.secrets),
        );
        let ports = options.gateway.as_ref().map(|gateway| gateway.ports);
        let recalled = match ports {
            Some((first, _)) => scribe::recall(resources, first).await?,
            None => scribe::Ports::default(),
        };
        let (gateway, clients) = match &options.gateway {
            Some(wish) => {
                let gateway = crate::gateway::Options {
                    address: wish.listen,
                    ..crate::gateway::Options::default()
                };
                let (gateway, clients) = Gateway::start(gateway, resources.clock().clone());
                (Some(gateway), Some(clients))
            }
            None => (None, None),
        };
        let recorder = Recorder::run(events::Options::new(COMPONENT), resources);
        let (scribe, orders) = Scribe::new(resources.clone(), desk.clone());
        let engine = Engine::new(options.settings, options.seed, ports);
        let followed = Followed { applications, nodes, replicas, secrets };
        let actor = Actor::new(actor::Parts {
            engine,
            resources: resources.clone(),
            desk: desk.clone(),
            inbox: inbox.receiver,
            changes,
            clients,
            gateway: gateway.clone(),
            advertise: options.gateway.map(|gateway| gateway.advertise).unwrap_or_default(),
            epoch: options.epoch,
            leadership: options.leadership,
            orders,
            recorder: recorder.clone(),
            followed: followed.clone(),
        });
        let actor = tokio::spawn(actor.run(recalled, watching, stop.clone()));
        let scribe = tokio::spawn(scribe.run(stop.clone()));
        Ok(Self { stop, actor, scribe, gateway, recorder, followed })
    }

    /// Ends in order: agents are hung up on, the gateway closes, what waits is written.
    pub async fn shutdown(self) {
        self.stop.cancel();
        // A task that panicked has said so itself.
        let _ = self.actor.await;
        let _ = self.scribe.await;
        if let Some(gateway) = self.gateway {
            gateway.shutdown().await;
        }
        self.recorder.shutdown().await;
        self.followed.applications.shutdown().await;
        self.followed.nodes.shutdown().await;
        self.followed.replicas.shutdown().await;
        self.followed.secrets.shutdown().await;
    }
}

impl Clone for Followed {
    fn clone(&self) -> Self {
        Self {
            applications: self.applications.clone(),
            nodes: self.nodes.clone(),
            replicas: self.replicas.clone(),
            secrets: self.secrets.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
