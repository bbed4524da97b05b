//! A simulated cluster around the engine: nodes that carry out commands, and a manual clock.

mod cases;
mod laws;
mod more;

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::api::application::{Container, Port, ScalingPolicy, Threshold};
use crate::api::{OnNodeLoss, OpenMode};
use crate::protocol::{
    Client, CommandFailed, FromNode, Health, Heartbeat, InstanceState, Name, Register, Report,
    SessionPhase, SessionState as SessionReport, from_node,
};

/// One node: its instances and sessions, and the commands it has not carried out yet.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) revision: u64,
    pub(super) cpu: u64,
    pub(super) memory: u64,
    pub(super) connected: bool,
    pub(super) instances: BTreeMap<Key, InstanceState>,
    pub(super) sessions: BTreeMap<Key, SessionReport>,
    pub(super) inbox: VecDeque<(u64, to_node::Body)>,
    /// Every command it ever received.
    pub(super) commands: Vec<to_node::Body>,
    /// Carries out no command by itself.
    pub(super) lazy: bool,
}

/// An engine and its nodes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) now: Moment,
    pub(super) hosts: BTreeMap<Key, Host>,
    pub(super) answers: BTreeMap<Ticket, Result<Key, Refusal>>,
    pub(super) mapped: BTreeMap<u16, Key>,
    pub(super) gone: Vec<String>,
    pub(super) attached: BTreeMap<(String, Key), bool>,
    tickets: Ticket,
}

impl World {
    pub(super) fn new(ports: Option<(u16, u16)>) -> Self {
        let mut world = Self {
            engine: Engine::new(Timeouts::default(), 7, ports),
            now: Moment::default(),
            hosts: BTreeMap::new(),
            answers: BTreeMap::new(),
            mapped: BTreeMap::new(),
            gone: Vec::new(),
            attached: BTreeMap::new(),
            tickets: 0,
        };
        world.engine.recall_ports(&[], &BTreeMap::new(), world.now);
        world.act();
        world
    }

    /// A node with processors and memory joins and is ready.
    pub(super) fn join(&mut self, name: &str, cpu: u64, memory: u64) {
        let host = Host { revision: 1, cpu, memory, ..Host::default() };
        self.hosts.insert(name.into(), host);
        self.reconnect(name);
    }

    pub(super) fn reconnect(&mut self, name: &str) {
        let name: Key = name.into();
        assert!(self.engine.connect(&name, self.now), "{name} is connected already");
        let Some(host) = self.hosts.get_mut(&name) else { return };
        host.connected = true;
        host.inbox.clear();
        let register = Register {
            node: name.to_string(),
            cpu_milli: host.cpu,
            memory_bytes: host.memory,
            address: "10.0.0.1".to_owned(),
            ..Register::default()
        };
        self.say(&name, from_node::Body::Register(register), false);
        let report = self.report(&name);
        self.say(&name, from_node::Body::Ready(report), false);
    }

    pub(super) fn disconnect(&mut self, name: &str) {
        let name: Key = name.into();
        if let Some(host) = self.hosts.get_mut(&name) {
            host.connected = false;
        }
        self.engine.disconnect(&name, self.now);
        self.act();
    }

    pub(super) fn report(&self, name: &Key) -> Report {
        let host = &self.hosts[name];
        Report {
            instances: host.instances.values().cloned().collect(),
            sessions: host.sessions.values().cloned().collect(),
        }
    }

    /// A health report with everything on a node.
    fn health(&self, name: &Key) -> from_node::Body {
        let name_of = |key: &Key| {
            let (namespace, name) = parts(key);
            Name { namespace: namespace.to_owned(), name: name.to_owned() }
        };
        let host = &self.hosts[name];
        from_node::Body::Health(Health {
            instances: host.instances.keys().map(name_of).collect(),
            sessions: host.sessions.keys().map(name_of).collect(),
        })
    }

    /// Sends a message of a node; `change` raises its revision.
    pub(super) fn say(&mut self, name: &Key, body: from_node::Body, change: bool) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.revision += u64::from(change);
        let message = FromNode { revision: host.revision, body: Some(body) };
        if host.connected {
            self.engine.receive(name, message, self.now);
            self.act();
        }
    }

    /// Carries out the engine's effects.
    pub(super) fn act(&mut self) {
        loop {
            let effects = self.engine.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.perform(effect);
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send { node, request, body } => {
                let host = self.hosts.get_mut(&node).expect("known");
                assert!(host.connected, "message to {node}, which is not connected: {body:?}");
                host.commands.push(body.clone());
                host.inbox.push_back((request, body));
            }
            Effect::Disconnect { node } => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.connected = false;
                }
            }
            Effect::Answer { ticket, answer } => {
                assert!(self.answers.insert(ticket, answer).is_none(), "answered twice");
            }
            Effect::Map { session, port, .. } => {
                let before = self.mapped.insert(port, session.clone());
                assert!(before.is_none_or(|before| before == session), "{port} mapped twice");
                self.engine.mapped(&session, Ok(()), self.now);
            }
            Effect::Unmap { port, session, .. } => {
                assert_eq!(self.mapped.remove(&port), Some(session));
            }
            Effect::Reserve(block) => self.engine.reserved(Some(block), self.now),
            Effect::SessionGone(name, _) => self.gone.push(format!("session {name}")),
            Effect::InstanceGone(name) => self.gone.push(format!("instance {name}")),
            Effect::ApplicationGone(name) => self.gone.push(format!("application {name}")),
            Effect::Attach { volume, node, attached } => {
                self.attached.insert((volume, node), attached);
            }
            Effect::Session(_)
            | Effect::Instance(_)
            | Effect::Application(_)
            | Effect::Node(_)
            | Effect::Event(_) => {}
        }
    }

    /// Lets nodes carry out their commands until none is left.
    pub(super) fn run(&mut self) {
        loop {
            let next =
                self.hosts.iter_mut().filter(|(_, host)| host.connected && !host.lazy).find_map(
                    |(name, host)| host.inbox.pop_front().map(|command| (name.clone(), command)),
                );
            let Some((name, (request, body))) = next else { return };
            self.obey(&name, request, body);
        }
    }

    /// Lets one node carry out one command.
    pub(super) fn obey(&mut self, node: &Key, request: u64, body: to_node::Body) {
        let host = self.hosts.get_mut(node).expect("known");
        match body {
            to_node::Body::Create(create) => {
                let state = InstanceState {
                    namespace: create.namespace.clone(),
                    name: create.name.clone(),
                    application: create.application,
                    template: create.template,
                    phase: match create.standby {
                        true => InstancePhase::Standby,
                        false => InstancePhase::Running,
                    } as i32,
                    cpu_milli: create.cpu_milli,
                    memory_bytes: create.memory_bytes,
                    endpoints: vec![Endpoint {
                        address: "10.0.0.1".to_owned(),
                        port: 20000,
                        ..Endpoint::default()
                    }],
                    ..InstanceState::default()
                };
                host.instances.insert(key(&create.namespace, &create.name), state.clone());
                self.say(node, from_node::Body::Instance(state), true);
            }
            to_node::Body::Terminate(name) => {
                let name = key(&name.namespace, &name.name);
                host.sessions
                    .retain(|_, session| key(&session.namespace, &session.instance) != name);
                if let Some(mut state) = host.instances.remove(&name) {
                    state.phase = InstancePhase::Terminated as i32;
                    self.say(node, from_node::Body::Instance(state), true);
                }
            }
            to_node::Body::Hibernate(name) => self.turn(node, &name, InstancePhase::Standby),
            to_node::Body::Activate(name) => self.turn(node, &name, InstancePhase::Running),
            to_node::Body::Open(open) => {
                let instance = key(&open.namespace, &open.instance);
                if !host.instances.contains_key(&instance) {
                    let failed = CommandFailed { request, ..CommandFailed::default() };
                    self.say(node, from_node::Body::Failed(failed), false);
                    return;
                }
                let state = SessionReport {
                    namespace: open.namespace.clone(),
                    name: open.name.clone(),
                    instance: open.instance,
                    phase: SessionPhase::Open as i32,
                    external_port: open.external_port,
                    object: open.object,
                    ..SessionReport::default()
                };
                host.sessions.insert(key(&open.namespace, &open.name), state.clone());
                self.say(node, from_node::Body::Session(state), true);
            }
            to_node::Body::Close(close) => {
                let name = key(&close.namespace, &close.name);
                let state = host.sessions.remove(&name).unwrap_or(SessionReport {
                    namespace: close.namespace,
                    name: close.name,
                    instance: close.instance,
                    ..SessionReport::default()
                });
                let state = SessionReport { phase: SessionPhase::Closed as i32, ..state };
                self.say(node, from_node::Body::Session(state), true);
            }
            to_node::Body::FullSync(_) => {
                let report = self.report(node);
                self.say(node, from_node::Body::State(report), false);
            }
            to_node::Body::Configuration(_) | to_node::Body::ReadLog(_) => {}
        }
    }

    /// Freezes or thaws an instance and reports it.
    fn turn(&mut self, node: &Key, name: &Name, phase: InstancePhase) {
        let host = self.hosts.get_mut(node).expect("known");
        if let Some(state) = host.instances.get_mut(&key(&name.namespace, &name.name)) {
            state.phase = phase as i32;
            let state = state.clone();
            self.say(node, from_node::Body::Instance(state), true);
        }
    }

    /// Lets time pass, in steps, with heartbeats of the connected nodes.
    pub(super) fn pass(&mut self, seconds: f64) {
        self.pass_without(seconds, &[]);
    }

    pub(super) fn pass_without(&mut self, seconds: f64, silent: &[&str]) {
        let end = self.now.elapsed + Duration::from_secs_f64(seconds);
        while self.now.elapsed < end {
            let step = Duration::from_millis(500).min(end - self.now.elapsed);
            self.now.elapsed += step;
            self.now.wall += step;
            let names: Vec<Key> = self.hosts.keys().cloned().collect();
            for name in names.iter().filter(|name| !silent.contains(&&***name)) {
                self.say(name, from_node::Body::Heartbeat(Heartbeat {}), false);
                if self.now.elapsed.as_millis().is_multiple_of(60_000) {
                    let health = self.health(name);
                    self.say(name, health, false);
                }
            }
            self.engine.tick(self.now);
            self.act();
        }
    }

    pub(super) fn apply(&mut self, name: &str, spec: ApplicationSpec) {
        self.engine.application(&name.into(), Arc::new(spec), 1, self.now);
        self.act();
    }

    pub(super) fn open(&mut self, name: &str, spec: SessionSpec) -> Ticket {
        self.tickets += 1;
        let (_, own) = parts(name);
        let object = serde_json::json!({"metadata": {"name": own}, "spec": &spec});
        let object: Arc<[u8]> = object.to_string().into_bytes().into();
        self.engine.open(&name.into(), Arc::new(spec), object, self.tickets, self.now);
        self.act();
        self.tickets
    }

    pub(super) fn close(&mut self, name: &str) {
        self.engine.close(&name.into(), self.now);
        self.act();
    }

    pub(super) fn state(&self, name: &str) -> Option<SessionState> {
        self.engine.sessions.get(name).map(|session| session.state)
    }

    pub(super) fn pool(&self, application: &str, pool: InstancePool) -> Vec<Key> {
        let known = self.engine.applications.get(application);
        known.map(|known| known.pools.of(pool).values().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn instance_of(&self, session: &str) -> Option<Key> {
        self.engine.sessions.get(session).and_then(|session| session.instance.clone())
    }

    /// Makes a node report a phase of an instance.
    pub(super) fn instance_is(&mut self, node: &str, instance: &Key, phase: InstancePhase) {
        let node: Key = node.into();
        let host = self.hosts.get_mut(&node).expect("known");
        let mut state = host.instances.get(instance).cloned().expect("there");
        state.phase = phase as i32;
        if phase == InstancePhase::Terminated {
            host.instances.remove(instance);
            let gone =
                |report: &SessionReport| key(&report.namespace, &report.instance) == *instance;
            host.sessions.retain(|_, report| !gone(report));
        } else {
            host.instances.insert(instance.clone(), state.clone());
        }
        self.say(&node, from_node::Body::Instance(state), true);
    }

    /// Makes a node report a phase of a session.
    pub(super) fn session_is(
        &mut self,
        node: &str,
        session: &str,
        phase: SessionPhase,
        clients: &[&str],
    ) {
        let node: Key = node.into();
        let host = self.hosts.get_mut(&node).expect("known");
        let report = host.sessions.get_mut(session).expect("there");
        report.phase = phase as i32;
        report.clients =
            clients.iter().map(|id| Client { id: (*id).to_owned(), joined_micros: 1 }).collect();
        let report = report.clone();
        self.say(&node, from_node::Body::Session(report), true);
    }
}

pub(super) fn process(cpu: i64, memory: i64) -> Container {
    let mut process = Container {
        command: vec!["game".to_owned()],
        ports: vec![Port::default()],
        ..Container::default()
    };
    if cpu > 0 {
        let amount = mainstay_store::meta::Quantity::milli(cpu);
        process.resources.requests.insert("cpu".to_owned(), amount);
    }
    if memory > 0 {
        let amount = mainstay_store::meta::Quantity::bytes(u64::try_from(memory).unwrap());
        process.resources.requests.insert("memory".to_owned(), amount);
    }
    process
}

pub(super) fn spec(bounds: (i32, i32), low: i32, high: i32, burst: i32) -> ApplicationSpec {
    ApplicationSpec {
        process: process(0, 0),
        reuse_instances: true,
        scaling_policy: ScalingPolicy {
            minimum_instance: bounds.0,
            maximum_instance: bounds.1,
            burst,
            idle_session_num_threshold: Some(Threshold { high, low }),
            ..ScalingPolicy::default()
        },
        ..ApplicationSpec::default()
    }
}

pub(super) fn session(application: &str) -> SessionSpec {
    SessionSpec {
        application_name: application.to_owned(),
        close_grace_period_seconds: 60,
        open_timeout_seconds: 10,
        ..SessionSpec::default()
    }
}

pub(super) fn waiting(application: &str) -> SessionSpec {
    SessionSpec { open_mode: OpenMode::Wait, ..session(application) }
}

pub(super) fn closing(application: &str) -> SessionSpec {
    SessionSpec { on_node_loss: OnNodeLoss::Close, ..session(application) }
}

#[test]
fn an_agent_cannot_choose_its_zone() {
    let zone = "topology.kubernetes.io/zone";
    let labels = |value: &str| [(zone.to_owned(), value.to_owned())];
    let mut world = World::new(None);
    let mut wanted = spec((1, 1), 0, 1, 1);
    wanted.node_selector.extend(labels("a"));
    world.apply("default/game", wanted);
    let node: Key = "n1".into();
    world.engine.label(&node, Some(labels("b").into()), world.now);
    world.hosts.insert(node.clone(), Host { revision: 1, cpu: 1, memory: 1, ..Host::default() });
    assert!(world.engine.connect(&node, world.now));
    world.hosts.get_mut(&node).unwrap().connected = true;
    let register =
        Register { node: "n1".to_owned(), labels: labels("a").into(), ..Register::default() };
    world.say(&node, from_node::Body::Register(register), false);
    world.say(&node, from_node::Body::Ready(Report::default()), false);
    let why = |world: &World| world.engine.explain(&"default/game".into())[0].because.clone();
    assert!(why(&world).contains("labels"), "{}", why(&world));
    // An operator can change it.
    world.engine.label(&node, Some(labels("a").into()), world.now);
    assert!(!why(&world).contains("labels"), "{}", why(&world));
    // Without a Node object the registered labels count.
    world.engine.label(&node, None, world.now);
    assert!(!why(&world).contains("labels"), "{}", why(&world));
}
