//! The one task that owns the engine.
//!
//! It takes requests, messages of agents, changes in the store, events of the gateway and the
//! passing of time one after another, gives each to the engine, and carries out the effects that
//! the engine answers with. No other task touches the engine, so it needs no lock.

mod changes;
mod effects;
mod nodes;
mod requests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::election::Leadership;
use mainstay_controller::events::Recorder;
use mainstay_store::object::Revision;
use mainstay_store::resources::Resources;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::Reflectors;
use super::handle::{Handle, Input};
use super::publish::Publisher;
use super::writer::{PersistedPorts, WriteQueue};
use crate::api::InstancePool;
use crate::engine::{Engine, Key, Moment, Ticket};
use crate::gateway::{ClientEvent, Gateway};
use crate::secrets::SecretValues;
#[cfg(test)]
pub(super) use changes::nodes_with_replica;
pub(super) use changes::{Changes, Subscriptions, reflect_replicas};
use nodes::{LOG_REQUESTS, NodeStream};
use requests::PendingRequest;

/// The largest number of inputs processed between two looks at the time.
const BATCH: usize = 512;

/// The shortest time between two publications of changed sessions.
const GATHER: Duration = Duration::from_millis(50);

/// The same for instances: they change twice with every session.
const GATHER_INSTANCES: Duration = Duration::from_millis(200);

/// The interval at which gauges are updated.
const COUNT: Duration = Duration::from_secs(5);

/// The engine and its surroundings.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) engine: Engine,
    pub(super) resources: Resources,
    pub(super) handle: Handle,
    pub(super) inbox: mpsc::Receiver<Input>,
    pub(super) changes: Arc<Changes>,
    pub(super) clients: Option<mpsc::Receiver<ClientEvent>>,
    pub(super) gateway: Option<Gateway>,
    pub(super) advertise: String,
    pub(super) epoch: u64,
    pub(super) leadership: Option<watch::Receiver<Leadership>>,
    pub(super) writes: WriteQueue,
    pub(super) recorder: Recorder,
    pub(super) reflectors: Reflectors,
}

/// The task's state.
#[derive(Debug)]
pub(super) struct Actor {
    parts: Parts,
    publisher: Publisher,
    streams: HashMap<Key, NodeStream>,
    requests: HashMap<Ticket, PendingRequest>,
    /// The resource version of the last change by a user, of sessions that a user changed.
    edited: HashMap<Key, Revision>,
    /// Applications whose status changed.
    applications: HashSet<Key>,
    /// The values of Secrets that instances of an application start with.
    secrets: HashMap<Key, SecretValues>,
    /// Whether this server is the primary, which writes to the store.
    leads: bool,
    tickets: Ticket,
    connections: u64,
    log_requests: u64,
    ports_changed: bool,
    first_port: Option<u16>,
}

impl Actor {
    pub(super) fn new(parts: Parts) -> Self {
        let objects = parts.resources.objects().clone();
        let publisher = Publisher::new(objects, parts.advertise.clone());
        Self {
            parts,
            publisher,
            streams: HashMap::new(),
            requests: HashMap::new(),
            edited: HashMap::new(),
            applications: HashSet::new(),
            secrets: HashMap::new(),
            leads: true,
            tickets: 0,
            connections: 0,
            log_requests: LOG_REQUESTS,
            ports_changed: false,
            first_port: None,
        }
    }

    fn now(&self) -> Moment {
        let clock = self.parts.resources.clock();
        Moment { elapsed: clock.elapsed(), wall: clock.now() }
    }

    /// Runs until `stop` is cancelled, then publishes the last changes.
    pub(super) async fn run(
        mut self,
        persisted: PersistedPorts,
        _subscriptions: Subscriptions,
        stop: CancellationToken,
    ) {
        self.first_port = self.parts.engine.endpoints().map(|ports| ports.first());
        let leadership = self.parts.leadership.clone();
        self.follow_leadership(&leadership).await;
        self.process_changes().await;
        let now = self.now();
        self.parts.engine.recall_ports(&persisted.blocks, &persisted.mapping, now);
        self.perform(now).await;
        let mut batch = Vec::with_capacity(BATCH);
        let mut clients = self.parts.clients.take();
        let mut leadership = self.parts.leadership.take();
        let clock = self.parts.resources.clock().clone();
        let (mut published, mut published_instances) = (clock.elapsed(), clock.elapsed());
        let mut counted = Duration::ZERO;
        loop {
            let now = clock.elapsed();
            let (sessions, instances) = self.publisher.has_changes();
            let news = sessions || self.ports_changed || !self.applications.is_empty();
            let due = [
                self.parts.engine.next_tick(),
                news.then(|| (published + GATHER).max(now)),
                instances.then(|| (published_instances + GATHER_INSTANCES).max(now)),
                Some(counted + COUNT),
            ];
            let due = due.into_iter().flatten().min().unwrap_or(now + COUNT);
            let changes = Arc::clone(&self.parts.changes);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                count = self.parts.inbox.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        break;
                    }
                }
                Some(event) = next(&mut clients) => self.client(event).await,
                () = changed(&mut leadership) => self.follow_leadership(&leadership).await,
                () = changes.bell.notified() => self.process_changes().await,
                () = clock.sleep(due.saturating_sub(now)) => {}
            }
            for input in batch.drain(..) {
                self.process(input).await;
            }
            let now = self.now();
            if self.parts.engine.next_tick().is_some_and(|due| due <= now.elapsed) {
                self.parts.engine.tick(now);
                self.perform(now).await;
            }
            if now.elapsed >= published + GATHER {
                published = now.elapsed;
                self.publisher.publish_sessions(&self.parts.engine).await;
                self.write_ports(None);
                self.write_statuses();
                self.parts.handle.forget(now.elapsed);
            }
            if now.elapsed >= published_instances + GATHER_INSTANCES {
                published_instances = now.elapsed;
                self.publisher.publish_instances(&self.parts.engine).await;
            }
            if now.elapsed >= counted + COUNT {
                counted = now.elapsed;
                self.count();
            }
        }
        self.publisher.publish_sessions(&self.parts.engine).await;
        self.publisher.publish_instances(&self.parts.engine).await;
        self.write_ports(None);
        self.write_statuses();
    }

    /// Makes the engine primary while this server holds the leadership.
    async fn follow_leadership(&mut self, leadership: &Option<watch::Receiver<Leadership>>) {
        let leads =
            leadership.as_ref().is_none_or(|leadership| leadership.borrow().fence().is_some());
        let now = self.now();
        self.leads = leads;
        self.parts.engine.set_primary(leads, now);
        self.perform(now).await;
    }

    async fn client(&mut self, event: ClientEvent) {
        let now = self.now();
        let session: Key = event.session.0.into();
        let id = format!("{} {}", event.peer, event.id);
        self.parts.engine.client(&session, id, event.joined, now);
        self.perform(now).await;
    }

    /// Processes one input.
    async fn process(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Open { key, object, answer } => self.open(&key, object, answer, now),
            Input::Update { key, before, object, answer } => {
                self.update(&key, before, object, answer, now).await;
            }
            Input::DeleteInstance { key } => {
                self.parts.engine.delete_instance(&key.path().into(), now);
            }
            Input::Connect { node, outgoing, answer } => {
                let taken = self.parts.engine.connect(&node, now);
                if taken {
                    self.connections += 1;
                    let connection = self.connections;
                    let log_readers = HashMap::new();
                    let stream = NodeStream { connection, outgoing, log_readers };
                    self.streams.insert(node, stream);
                }
                // A caller that no longer waits closes its stream next.
                let _ = answer.send(taken.then_some(self.connections));
            }
            Input::Received { node, connection, message } => {
                if self.streams.get(&node).is_some_and(|stream| stream.connection == connection) {
                    self.parts.handle.metrics.received.inc();
                    self.receive(&node, message, now);
                }
            }
            Input::Closed { node, connection } => {
                if self.streams.get(&node).is_some_and(|stream| stream.connection == connection) {
                    self.streams.remove(&node);
                    self.parts.engine.disconnect(&node, now);
                }
            }
            Input::Reserved(block) => self.parts.engine.reserved(block, now),
            // A caller that no longer waits needs no answer.
            Input::Top(answer) => drop(answer.send(self.parts.engine.applications())),
            Input::Explain(name, answer) => drop(answer.send(self.parts.engine.explain(&name))),
            Input::ReadLog { instance, tail, follow, chunks } => {
                self.read_log(&instance, tail, follow, chunks);
            }
        }
        self.perform(now).await;
    }

    /// Updates the gauges.
    fn count(&mut self) {
        let metrics = &self.parts.handle.metrics;
        let (sessions, _, _) = self.parts.engine.sizes();
        metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        metrics.nodes.set(i64::try_from(self.streams.len()).unwrap_or(i64::MAX));
        let mut pools: HashMap<InstancePool, i64> = HashMap::new();
        for application in self.parts.engine.applications() {
            for pool in application.pools {
                *pools.entry(pool.pool).or_default() += pool.instances;
            }
        }
        for (pool, instances) in pools {
            metrics.in_pool(pool.as_str(), instances);
        }
    }
}

async fn next(clients: &mut Option<mpsc::Receiver<ClientEvent>>) -> Option<ClientEvent> {
    match clients {
        Some(clients) => clients.recv().await,
        None => std::future::pending().await,
    }
}

async fn changed(leadership: &mut Option<watch::Receiver<Leadership>>) {
    let ended = match leadership {
        Some(leadership) => leadership.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending().await
    }
}
