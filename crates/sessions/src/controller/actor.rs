//! The one task that owns the engine.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstay_controller::election::Leadership;
use mainstay_controller::events::{Recorder, Severity};
use mainstay_controller::reflector::{Reflector, Subscription};
use mainstay_store::builtin::{Node, ObjectReference};
use mainstay_store::keeper::Prepared;
use mainstay_store::meta::ObjectMeta;
use mainstay_store::object::{self, Record, Revision};
use mainstay_store::registry::Typed;
use mainstay_store::resources::Resources;
use mainstay_store::status::{Error, Reason};
use mainstay_volumes::api::ReplicatedVolumeReplica;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Followed;
use super::desk::{Desk, Input};
use super::publish::Publisher;
use super::scribe::{Orders, Ports};
use crate::api::{
    Application, ApplicationSession, ApplicationSpec, Instance, InstancePool, SessionSpec,
};
use crate::engine::{About, Effect, Engine, Key, Moment, Note, Refusal, Ticket, key, parts};
use crate::gateway::{ClientEvent, Gateway, SessionKey};
use crate::protocol::{LogChunk, ReadLog, ToNode, from_node, to_node};
use crate::secrets::{SecretValues, needed, resolve};

/// How many inputs are taken together.
const BATCH: usize = 512;

/// How long changed sessions wait for others to be shown with them.
const GATHER: Duration = Duration::from_millis(50);

/// The same for instances: they change twice with every session.
const GATHER_INSTANCES: Duration = Duration::from_millis(200);

/// How often counts are taken.
const COUNT: Duration = Duration::from_secs(5);

/// Objects that changed and were not looked at yet.
#[derive(Debug, Default)]
pub(super) struct Changes {
    changed: Mutex<Changed>,
    bell: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) applications: BTreeSet<object::Key>,
    pub(super) nodes: BTreeSet<object::Key>,
    pub(super) secrets: BTreeSet<object::Key>,
    volumes: BTreeSet<String>,
}

impl Changes {
    fn note(&self, note: impl FnOnce(&mut Changed)) {
        note(&mut self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_one();
    }

    pub(super) fn follow<T: Typed>(
        self: &Arc<Self>,
        reflector: &Reflector<T>,
        set: fn(&mut Changed) -> &mut BTreeSet<object::Key>,
    ) -> Subscription {
        let changes = Arc::clone(self);
        reflector.subscribe(move |change| {
            changes.note(|changed| {
                set(changed).insert(change.key.clone());
            });
        })
    }

    pub(super) fn follow_replicas(
        self: &Arc<Self>,
        reflector: &Reflector<ReplicatedVolumeReplica>,
    ) -> Subscription {
        let changes = Arc::clone(self);
        reflector.subscribe(move |change| {
            let both = change.old.iter().chain(&change.new);
            let volumes = both.map(|replica| replica.spec.replicated_volume_name.clone());
            changes.note(|changed| changed.volumes.extend(volumes));
        })
    }
}

/// What keeps the actor informed.
pub(super) type Watching = (Subscription, Subscription, Subscription, Subscription);

/// Everything the actor works with.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) engine: Engine,
    pub(super) resources: Resources,
    pub(super) desk: Desk,
    pub(super) inbox: mpsc::Receiver<Input>,
    pub(super) changes: Arc<Changes>,
    pub(super) clients: Option<mpsc::Receiver<ClientEvent>>,
    pub(super) gateway: Option<Gateway>,
    pub(super) advertise: String,
    pub(super) epoch: u64,
    pub(super) leadership: Option<watch::Receiver<Leadership>>,
    pub(super) orders: Orders,
    pub(super) recorder: Recorder,
    pub(super) followed: Followed,
}

/// Somebody who waits for a session to open.
#[derive(Debug)]
struct Waiter {
    answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    since: Duration,
}

/// A stream to a node.
#[derive(Debug)]
struct Line {
    connection: u64,
    said: mpsc::Sender<ToNode>,
    /// Who reads which instance's output, by command.
    readers: HashMap<u64, mpsc::Sender<Result<LogChunk, String>>>,
}

/// The actor.
#[derive(Debug)]
pub(super) struct Actor {
    parts: Parts,
    publisher: Publisher,
    lines: HashMap<Key, Line>,
    waiters: HashMap<Ticket, (Key, Waiter)>,
    /// Sessions that users changed, and the version that made of them.
    edited: HashMap<Key, Revision>,
    /// Applications whose status changed.
    applications: HashSet<Key>,
    /// Values of Secrets that instances of applications start with.
    secrets: HashMap<Key, SecretValues>,
    /// Whether this server is in command, and writes what must survive.
    leads: bool,
    tickets: Ticket,
    connections: u64,
    log_requests: u64,
    ports_changed: bool,
    first_port: Option<u16>,
}

/// Commands that read logs are counted from here, far from the engine's.
const LOG_REQUESTS: u64 = 1 << 62;

impl Actor {
    pub(super) fn new(parts: Parts) -> Self {
        let objects = parts.resources.objects().clone();
        let publisher = Publisher::new(objects, parts.advertise.clone());
        Self {
            parts,
            publisher,
            lines: HashMap::new(),
            waiters: HashMap::new(),
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

    /// Takes what comes until told to stop.
    pub(super) async fn run(
        mut self,
        recalled: Ports,
        _watching: Watching,
        stop: CancellationToken,
    ) {
        self.first_port = self.parts.engine.endpoints().map(|ports| ports.first());
        let leadership = self.parts.leadership.clone();
        self.take_command(&leadership).await;
        self.look_at_changes().await;
        let now = self.now();
        self.parts.engine.recall_ports(&recalled.blocks, &recalled.mapping, now);
        self.perform(now).await;
        let mut batch = Vec::with_capacity(BATCH);
        let mut clients = self.parts.clients.take();
        let mut leadership = self.parts.leadership.take();
        let clock = self.parts.resources.clock().clone();
        let (mut shown, mut shown_instances) = (clock.elapsed(), clock.elapsed());
        let mut counted = Duration::ZERO;
        loop {
            let now = clock.elapsed();
            let (sessions, instances) = self.publisher.has_news();
            let news = sessions || self.ports_changed || !self.applications.is_empty();
            let due = [
                self.parts.engine.next_tick(),
                news.then(|| (shown + GATHER).max(now)),
                instances.then(|| (shown_instances + GATHER_INSTANCES).max(now)),
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
                () = changed(&mut leadership) => self.take_command(&leadership).await,
                () = changes.bell.notified() => self.look_at_changes().await,
                () = clock.sleep(due.saturating_sub(now)) => {}
            }
            for input in batch.drain(..) {
                self.take(input).await;
            }
            let now = self.now();
            if self.parts.engine.next_tick().is_some_and(|due| due <= now.elapsed) {
                self.parts.engine.tick(now);
                self.perform(now).await;
            }
            if now.elapsed >= shown + GATHER {
                shown = now.elapsed;
                self.publisher.publish_sessions(&self.parts.engine).await;
                self.write_ports(None);
                self.write_statuses();
                self.parts.desk.forget(now.elapsed);
            }
            if now.elapsed >= shown_instances + GATHER_INSTANCES {
                shown_instances = now.elapsed;
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

    /// Commands if this server is in office.
    async fn take_command(&mut self, leadership: &Option<watch::Receiver<Leadership>>) {
        let leads =
            leadership.as_ref().is_none_or(|leadership| leadership.borrow().fence().is_some());
        let now = self.now();
        self.leads = leads;
        self.parts.engine.set_primary(leads, now);
        self.perform(now).await;
    }

    /// Applications, nodes and volumes that changed.
    async fn look_at_changes(&mut self) {
        let changed = {
            let changed = &self.parts.changes.changed;
            std::mem::take(&mut *changed.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let now = self.now();
        for volume in changed.volumes {
            let replicas = self.parts.followed.replicas.list();
            let nodes: HashSet<Key> = replicas
                .iter()
                .filter(|replica| replica.spec.replicated_volume_name == volume)
                .filter(|replica| !replica.spec.node_name.is_empty())
                .map(|replica| replica.spec.node_name.as_str().into())
                .collect();
            self.parts.engine.replicas(&volume, nodes);
        }
        for node in changed.nodes {
            let known: Option<Arc<Node>> = self.parts.followed.nodes.get(&node);
            let cordoned =
                known.as_ref().is_some_and(|known| known.spec.unschedulable == Some(true));
            let labels = known.map(|known| known.metadata.labels.clone());
            let name: Key = node.name().into();
            self.parts.engine.label(&name, labels, now);
            self.parts.engine.cordon(&name, cordoned, now);
        }
        let users = self.users_of(&changed.secrets);
        for application in changed.applications.into_iter().chain(users) {
            let name = key(application.namespace().unwrap_or_default(), application.name());
            match self.parts.followed.applications.get(&application) {
                Some(known) if known.metadata.deletion_timestamp.is_none() => {
                    let generation = known.metadata.generation.unwrap_or(0);
                    let spec = Arc::new(known.spec.clone());
                    let missing = self.look_up_secrets(&name, &spec);
                    if missing.is_some() {
                        self.parts.engine.lacks(&name, missing.clone(), now);
                    }
                    self.parts.engine.application(&name, spec, generation, now);
                    self.parts.engine.lacks(&name, missing, now);
                }
                _ => {
                    self.secrets.remove(&name);
                    self.parts.engine.lacks(&name, None, now);
                    self.parts.engine.delete_application(&name, now);
                }
            }
        }
        self.perform(now).await;
    }

    /// Applications whose instances need one of these Secrets.
    fn users_of(&self, secrets: &BTreeSet<object::Key>) -> Vec<object::Key> {
        if secrets.is_empty() {
            return Vec::new();
        }
        let uses = |application: &Arc<Application>| {
            let namespace = application.metadata.namespace.as_deref();
            let needed = needed(&application.spec);
            secrets
                .iter()
                .any(|secret| secret.namespace() == namespace && needed.contains(secret.name()))
        };
        let all = self.parts.followed.applications.list();
        let key = |application: &Arc<Application>| {
            let resource = object::Resource::new(Application::GROUP, Application::PLURAL);
            let ObjectMeta { namespace, name, .. } = &application.metadata;
            object::Key::new(&resource, namespace.as_deref(), name)
        };
        all.iter().filter(|one| uses(one)).map(key).collect()
    }

    /// Keeps the values that an application's instances start with, and says what is missing.
    fn look_up_secrets(&mut self, application: &Key, spec: &ApplicationSpec) -> Option<String> {
        let (namespace, _) = parts(application);
        let secrets = &self.parts.followed.secrets;
        let found = resolve(spec, |name| secrets.find(Some(namespace), name));
        match found {
            Ok(values) => {
                self.secrets.insert(application.clone(), values);
                None
            }
            Err(missing) => {
                self.secrets.remove(application);
                Some(missing)
            }
        }
    }

    async fn client(&mut self, event: ClientEvent) {
        let now = self.now();
        let session: Key = event.session.0.into();
        let id = format!("{} {}", event.peer, event.id);
        self.parts.engine.client(&session, id, event.joined, now);
        self.perform(now).await;
    }

    /// One thing that came in.
    async fn take(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Open { key, object, answer } => self.open(&key, object, answer, now),
            Input::Update { key, before, object, answer } => {
                self.update(&key, before, object, answer, now).await;
            }
            Input::DeleteInstance { key } => {
                self.parts.engine.delete_instance(&key.path().into(), now);
            }
            Input::Connect { node, said, answer } => {
                let taken = self.parts.engine.connect(&node, now);
                if taken {
                    self.connections += 1;
                    let line = Line { connection: self.connections, said, readers: HashMap::new() };
                    self.lines.insert(node, line);
                }
                // Who no longer waits hangs up next.
                let _ = answer.send(taken.then_some(self.connections));
            }
            Input::Heard { node, connection, message } => {
                if self.lines.get(&node).is_some_and(|line| line.connection == connection) {
                    self.parts.desk.metrics.heard.inc();
                    self.hear(&node, message, now);
                }
            }
            Input::HungUp { node, connection } => {
                if self.lines.get(&node).is_some_and(|line| line.connection == connection) {
                    self.lines.remove(&node);
                    self.parts.engine.disconnect(&node, now);
                }
            }
            Input::Reserved(block) => self.parts.engine.reserved(block, now),
            // Whoever asked and left needs no answer.
            Input::Top(answer) => drop(answer.send(self.parts.engine.applications())),
            Input::Explain(name, answer) => drop(answer.send(self.parts.engine.explain(&name))),
            Input::ReadLog { instance, tail, follow, pieces } => {
                self.read_log(&instance, tail, follow, pieces);
            }
        }
        self.perform(now).await;
    }

    fn hear(&mut self, node: &Key, message: crate::protocol::FromNode, now: Moment) {
        let Some(line) = self.lines.get_mut(node) else { return };
        match &message.body {
            Some(from_node::Body::Log(chunk)) => {
                let (request, last) = (chunk.request, chunk.last);
                if let Some(reader) = line.readers.get(&request) {
                    // Who reads too slowly, or not at all, has seen enough.
                    let stays = reader.try_send(Ok(chunk.clone())).is_ok();
                    if last || !stays {
                        line.readers.remove(&request);
                    }
                }
            }
            Some(from_node::Body::Failed(failed)) if failed.request >= LOG_REQUESTS => {
                if let Some(reader) = line.readers.remove(&failed.request) {
                    let _ = reader.try_send(Err(failed.message.clone()));
                }
            }
            _ => self.parts.engine.hear(node, message, now),
        }
    }

    fn read_log(
        &mut self,
        instance: &Key,
        tail: u64,
        follow: bool,
        pieces: mpsc::Sender<Result<LogChunk, String>>,
    ) {
        let view = self.parts.engine.instance_view(instance);
        let node: Option<Key> = view
            .map(|(spec, ..)| spec.node_name.as_str().into())
            .filter(|node: &Key| !node.is_empty());
        let line = node.as_ref().and_then(|node| self.lines.get_mut(node));
        let Some(line) = line else {
            let why = match node {
                Some(node) => format!("the node {node} is not connected"),
                None => format!("there is no instance {instance} on any node"),
            };
            let _ = pieces.try_send(Err(why));
            return;
        };
        self.log_requests += 1;
        let (namespace, name) = parts(instance);
        let body = to_node::Body::ReadLog(ReadLog {
            namespace: namespace.to_owned(),
            instance: name.to_owned(),
            tail,
            follow,
        });
        let message =
            ToNode { epoch: self.parts.epoch, request: self.log_requests, body: Some(body) };
        if line.said.try_send(message).is_ok() {
            line.readers.insert(self.log_requests, pieces);
        }
    }

    fn open(
        &mut self,
        key: &object::Key,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
        now: Moment,
    ) {
        let spec = object.get("spec").map(SessionSpec::deserialize);
        let Some(Ok(spec)) = spec else {
            // The rules of the kind let nothing else through.
            let _ = answer.send(Err(Error::bad_request("spec: it is no session's")));
            return;
        };
        self.tickets += 1;
        let name: Key = key.path().into();
        let waiter = Waiter { answer, since: now.elapsed };
        self.waiters.insert(self.tickets, (name.clone(), waiter));
        let told: Arc<[u8]> = match self.parts.engine.session_object(&name) {
            Some(known) => known.into(),
            None => self.publisher.know(&name, object).into(),
        };
        self.parts.engine.open(&name, Arc::new(spec), told, self.tickets, now);
    }

    /// A session's user changed its labels, or deletes it.
    async fn update(
        &mut self,
        key: &object::Key,
        before: Option<Revision>,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
        now: Moment,
    ) {
        let name: Key = key.path().into();
        if self.parts.engine.session_object(&name).is_none() {
            let message =
                format!("applicationsessions.apps.mainstay.dev \"{}\" not found", key.name());
            let _ = answer.send(Err(Error::new(Reason::NotFound, message)));
            return;
        }
        let deleted = object
            .get("metadata")
            .and_then(|metadata| metadata.get("deletionTimestamp"))
            .is_some_and(|time| *time != Value::Null);
        // What the session does meanwhile contradicts nobody; what another user did
        // does, except where it ends.
        let edited = self.edited.get(&name);
        if let (Some(before), Some(edited)) = (before, edited)
            && before < *edited
            && !deleted
        {
            let _ = answer.send(Err(self.stale(key.name())));
            return;
        }
        self.publisher.know(&name, object);
        if deleted {
            self.parts.engine.close(&name, now);
        }
        self.perform(now).await;
        let record = match self.publisher.show(&self.parts.engine, &name).await {
            Some(record) => Some(record),
            // It had no instance to wait for and is gone already.
            None => self.parts.desk.recall(key),
        };
        if let Some(record) = record.as_ref().filter(|_| !deleted) {
            self.edited.insert(name, record.revision());
        }
        let gone = || Error::new(Reason::NotFound, format!("\"{}\" is gone", key.name()));
        let _ = answer.send(record.ok_or_else(gone));
    }

    /// What somebody hears whose change was made of an older session.
    fn stale(&self, name: &str) -> Error {
        match self.parts.resources.kind_of::<ApplicationSession>() {
            Ok(kind) => Error::stale(kind, name),
            Err(error) => error,
        }
    }

    /// Does what the engine wants done.
    async fn perform(&mut self, now: Moment) {
        loop {
            let effects = self.parts.engine.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.perform_one(effect, now).await;
            }
        }
    }

    async fn perform_one(&mut self, effect: Effect, now: Moment) {
        match effect {
            Effect::Send { node, request, body } => self.say(&node, request, body, now),
            Effect::Disconnect { node } => {
                self.parts.desk.metrics.nodes_lost.inc();
                self.lines.remove(&node);
            }
            Effect::Answer { ticket, answer } => self.answer(ticket, answer, now).await,
            Effect::Session(name) => self.publisher.session_changed(name),
            Effect::SessionGone(name, last) => {
                self.edited.remove(&name);
                if let Some(record) = self.publisher.hide(&name, &last).await {
                    let until = now.elapsed + self.parts.engine.settings().closed;
                    self.parts.desk.bury(record, until);
                }
            }
            Effect::Instance(name) => self.publisher.instance_changed(name),
            Effect::InstanceGone(name) => self.publisher.instance_gone(name),
            Effect::Application(name) => {
                self.applications.insert(name);
            }
            Effect::ApplicationGone(_) if !self.leads => {}
            Effect::ApplicationGone(name) => {
                self.parts.orders.leave(|wanted| {
                    wanted.statuses.remove(&name);
                    wanted.gone.push(name);
                });
            }
            Effect::Node(name) => {
                let ready = self.parts.engine.is_ready(&name);
                self.parts.orders.leave(|wanted| {
                    wanted.nodes.insert(name, ready);
                });
            }
            Effect::Map { session, port, protocol, address, to } => {
                self.ports_changed = true;
                let opened = match (&self.parts.gateway, address.parse()) {
                    (Some(gateway), Ok(address)) => {
                        let target = SocketAddr::new(address, to);
                        let name = SessionKey(session.to_string());
                        let opened = gateway.open(port, protocol, name, target);
                        opened.map_err(|error| error.to_string())
                    }
                    (Some(_), Err(_)) => Err(format!("{address:?} is no address")),
                    (None, _) => Ok(()),
                };
                self.parts.engine.mapped(&session, opened, now);
            }
            Effect::Unmap { port, protocol, drain, .. } => {
                self.ports_changed = true;
                if let Some(gateway) = &self.parts.gateway {
                    gateway.close(port, protocol, drain);
                }
            }
            Effect::Reserve(block) => self.write_ports(Some(block)),
            Effect::Attach { volume, node, wanted } => {
                self.parts.orders.leave(|orders| {
                    orders.attachments.insert((volume, node), wanted);
                });
            }
            Effect::Note(note) => self.note(&note),
        }
    }

    fn say(&mut self, node: &Key, request: u64, mut body: to_node::Body, now: Moment) {
        let Some(line) = self.lines.get(node) else { return };
        if let to_node::Body::Create(create) = &mut body {
            let application = key(&create.namespace, &create.application);
            create.secrets =
                self.secrets.get(&application).map(SecretValues::to_map).unwrap_or_default();
        }
        let message = ToNode { epoch: self.parts.epoch, request, body: Some(body) };
        self.parts.desk.metrics.said.inc();
        if line.said.try_send(message).is_err() {
            tracing::warn!(%node, "does not read what it is told: hung up");
            self.parts.desk.metrics.hung_up.inc();
            self.lines.remove(node);
            self.parts.engine.disconnect(node, now);
        }
    }

    async fn answer(&mut self, ticket: Ticket, answer: Result<Key, Refusal>, now: Moment) {
        let Some((name, waiter)) = self.waiters.remove(&ticket) else { return };
        let metrics = &self.parts.desk.metrics;
        let took = now.elapsed.saturating_sub(waiter.since).as_secs_f64();
        let answer = match answer {
            Ok(name) => {
                metrics.answered("opened");
                metrics.took("total", took);
                if let Some(assigned) = self.parts.engine.assigned(&name) {
                    let waited = assigned.saturating_sub(waiter.since);
                    metrics.took("waiting", waited.as_secs_f64());
                    metrics.took("node", now.elapsed.saturating_sub(assigned).as_secs_f64());
                }
                let record = self.publisher.show(&self.parts.engine, &name).await;
                record.ok_or_else(|| Error::internal("the session could not be shown"))
            }
            Err(refusal) => {
                metrics.answered(outcome(&refusal));
                if self.parts.engine.session_object(&name).is_none() {
                    self.publisher.forget(&name);
                }
                Err(error(&name, &refusal))
            }
        };
        // Who no longer waits finds the session by its name.
        let _ = waiter.answer.send(answer);
    }

    /// Lets the statuses of changed applications be written.
    fn write_statuses(&mut self) {
        let changed = std::mem::take(&mut self.applications);
        for name in changed.into_iter().filter(|_| self.leads) {
            if let Some(status) = self.parts.engine.application_status(&name) {
                self.parts.orders.leave(|wanted| {
                    wanted.statuses.insert(name, status);
                });
            }
        }
    }

    /// Lets the ports be written down, with one more block if it is given.
    fn write_ports(&mut self, reserve: Option<usize>) {
        if !std::mem::take(&mut self.ports_changed) && reserve.is_none() {
            return;
        }
        let (Some(endpoints), Some(first)) = (self.parts.engine.endpoints(), self.first_port)
        else {
            return;
        };
        let mapping = endpoints.iter().map(|(session, port)| (session.to_string(), port)).collect();
        let ports = Ports { blocks: endpoints.blocks(), mapping };
        self.parts.orders.leave(|wanted| {
            wanted.ports = Some((first, ports));
            wanted.reserve = reserve.or(wanted.reserve);
        });
    }

    fn note(&self, note: &Note) {
        // What happens thousands of times a second and is as it should be is not written down.
        if !note.warning && matches!(note.about, About::Instance(_)) {
            return;
        }
        let (api, kind, name) = match &note.about {
            About::Session(name) => (api::<ApplicationSession>(), ApplicationSession::KIND, name),
            About::Instance(name) => (api::<Instance>(), Instance::KIND, name),
            About::Application(name) => (api::<Application>(), Application::KIND, name),
            About::Node(name) => ("v1".to_owned(), Node::KIND, name),
        };
        let (namespace, own) = parts(name);
        // Clients that describe an object look for its events by its identity.
        let followed = &self.parts.followed;
        let uid = match &note.about {
            About::Session(name) => self.publisher.session_uid(name),
            About::Instance(name) => self.publisher.instance_uid(name),
            About::Application(_) => {
                let found = followed.applications.find(Some(namespace), own);
                found.map(|application| application.metadata.uid.clone())
            }
            About::Node(name) => {
                followed.nodes.find(None, name).map(|node| node.metadata.uid.clone())
            }
        };
        let about = ObjectReference {
            uid,
            api_version: Some(api),
            kind: Some(kind.to_owned()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            name: Some(own.to_owned()),
            ..ObjectReference::default()
        };
        let severity = if note.warning { Severity::Warning } else { Severity::Normal };
        self.parts.recorder.event(&about, severity, note.reason, &note.message);
    }

    /// Takes counts.
    fn count(&mut self) {
        let metrics = &self.parts.desk.metrics;
        let (sessions, _, _) = self.parts.engine.sizes();
        metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        metrics.nodes.set(i64::try_from(self.lines.len()).unwrap_or(i64::MAX));
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

fn api<T: Typed>() -> String {
    format!("{}/{}", T::GROUP, T::VERSION)
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

fn outcome(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Busy(_) => "busy",
        Refusal::Timeout(_) => "timeout",
        Refusal::Closed(_) => "closed",
        Refusal::AlreadyExists | Refusal::NoApplication(_) | Refusal::ApplicationDeleted(_) => {
            "refused"
        }
    }
}

/// A refusal as the API words it.
fn error(session: &Key, refusal: &Refusal) -> Error {
    let name = parts(session).1;
    let about = format!("applicationsessions.apps.mainstay.dev \"{name}\"");
    let (reason, message, retry_after) = match refusal {
        Refusal::AlreadyExists => (Reason::AlreadyExists, format!("{about} already exists"), None),
        Refusal::NoApplication(application) => (
            Reason::NotFound,
            format!("applications.apps.mainstay.dev \"{application}\" not found"),
            None,
        ),
        Refusal::ApplicationDeleted(_) => {
            (Reason::Conflict, format!("{about} cannot be opened: {refusal}"), None)
        }
        Refusal::Busy(_) => {
            (Reason::SystemBusy, format!("{about} is not open: {refusal}"), Some(1))
        }
        Refusal::Timeout(_) => {
            (Reason::Timeout, format!("{about} is not open: {refusal}"), Some(1))
        }
        Refusal::Closed(_) => (Reason::Conflict, format!("{about}: {refusal}"), None),
    };
    let mut error = Error::new(reason, message);
    name.clone_into(&mut error.details.name);
    "apps.mainstay.dev".clone_into(&mut error.details.group);
    "applicationsessions".clone_into(&mut error.details.kind);
    error.retry_after = retry_after;
    error
}
