//! The controller on an in-memory store, with nodes that are only channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_clock::SystemClock;
use mainstay_store::builtin::{Event, Namespace};
use mainstay_store::cache::Retention;
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::Resource;
use mainstay_store::registry::{Registry, Typed, builtin};
use mainstay_store::resources::{RandomIdentities, Reason, Resources, WriteOptions};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::actor::nodes_with_replica;
use super::handle::Input;
use super::*;
use crate::api::{ApplicationSession, Instance};
use crate::engine::{Key, key};
use crate::protocol::{
    FromNode, InstancePhase, InstanceState, Register, Report, SessionPhase, SessionState, ToNode,
    from_node, to_node,
};

struct Harness {
    resources: Resources,
    handle: Handle,
    sessions: Sessions,
}

impl Harness {
    async fn build() -> Self {
        let clock = SystemClock::new();
        let store = Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone()));
        let kinds = builtin().into_iter().chain(mainstay_volumes::kinds()).chain(crate::kinds());
        let registry = Arc::new(Registry::new(kinds).unwrap());
        let (handle, inbox) = super::handle(Metrics::default());
        let (sessions, instances) = handle.keepers();
        let resources = Resources::new(store, registry, clock, Arc::new(RandomIdentities)).kept(
            HashMap::from([
                (Resource::new(ApplicationSession::GROUP, ApplicationSession::PLURAL), sessions),
                (Resource::new(Instance::GROUP, Instance::PLURAL), instances),
            ]),
        );
        for name in ["t", "mainstay-system"] {
            let mut space = Namespace::default();
            name.clone_into(&mut space.metadata.name);
            resources.create_as(&space, &WriteOptions::default()).await.unwrap();
        }
        let options = Options {
            timeouts: Timeouts::default(),
            gateway: None,
            seed: 1,
            epoch: 1,
            leadership: None,
        };
        let sessions = Sessions::start(&resources, options, &handle, inbox).await.unwrap();
        Self { resources, handle, sessions }
    }

    async fn create<T: Typed>(&self, object: Value) -> Result<T, Error> {
        let object: T = serde_json::from_value(object).unwrap();
        self.resources.create_as(&object, &WriteOptions::default()).await
    }

    async fn application(&self, minimum: u32) {
        let application: Application = self
            .create(json!({
                "metadata": {"name": "game", "namespace": "t"},
                "spec": {
                    "command": ["game"],
                    "scalingPolicy": {
                        "minimumInstance": minimum, "maximumInstance": 100, "burst": 100,
                        "idleSessionNumThreshold": {"low": 0, "high": minimum},
                    },
                },
            }))
            .await
            .unwrap();
        assert_eq!(application.metadata.finalizers.len(), 1);
    }

    /// Connects a node whose stream holds `room` messages.
    async fn join(&self, name: &str, room: usize) -> (FakeNode, u64) {
        let (outgoing, commands) = mpsc::channel(room);
        let (answer, accepted) = oneshot::channel();
        let node: Key = name.into();
        self.handle.put(Input::Connect { node: node.clone(), outgoing, answer }).await;
        let connection = accepted.await.unwrap().expect("accepted");
        let node_stream =
            FakeNode { node, connection, handle: self.handle.clone(), commands, revision: 1 };
        let register = Register { node: name.to_owned(), cpu_milli: 1, ..Register::default() };
        node_stream.report(1, from_node::Body::Register(register)).await;
        node_stream.report(1, from_node::Body::Ready(Report::default())).await;
        (node_stream, connection)
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFn(&Resources) -> Option<T>) -> T {
        for _ in 0..3_000 {
            if let Some(seen) = look(&self.resources).await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("timed out waiting for {what}");
    }

    async fn idle(&self, count: i32) {
        self.until("idle instances", async |resources: &Resources| {
            let found = resources.get_as::<Application>(Some("t"), "game").await.unwrap()?;
            (found.status.idle_instances == count).then_some(())
        })
        .await;
    }
}

/// The node's end of a stream.
struct FakeNode {
    node: Key,
    connection: u64,
    handle: Handle,
    commands: mpsc::Receiver<ToNode>,
    revision: u64,
}

impl FakeNode {
    async fn report(&self, revision: u64, body: from_node::Body) {
        let message = FromNode { revision, body: Some(body) };
        let (node, connection) = (self.node.clone(), self.connection);
        self.handle.put(Input::Received { node, connection, message }).await;
    }

    /// Carries out commands until the stream ends.
    async fn obey(mut self) {
        while let Some(command) = self.commands.recv().await {
            self.revision += 1;
            let body = match command.body {
                Some(to_node::Body::Create(create)) => from_node::Body::Instance(InstanceState {
                    namespace: create.namespace,
                    name: create.name,
                    application: create.application,
                    template: create.template,
                    phase: InstancePhase::Running.into(),
                    ..InstanceState::default()
                }),
                Some(to_node::Body::Open(open)) => from_node::Body::Session(SessionState {
                    namespace: open.namespace,
                    name: open.name,
                    instance: open.instance,
                    phase: SessionPhase::Open.into(),
                    ..SessionState::default()
                }),
                _ => {
                    self.revision -= 1;
                    continue;
                }
            };
            self.report(self.revision, body).await;
        }
    }
}

#[tokio::test]
async fn a_node_that_does_not_read_is_disconnected_and_delays_no_other() {
    let harness = Harness::build().await;
    let (mut stalled, _) = harness.join("stalled", 8).await;
    let (healthy, _) = harness.join("healthy", 4_096).await;
    tokio::spawn(healthy.obey());
    harness.application(50).await;
    harness.idle(50).await;
    let mut read = 0;
    while stalled.commands.recv().await.is_some() {
        read += 1;
    }
    assert_eq!(read, 8, "the capacity of its stream, then the end");
    let instances = harness.resources.list_as::<Instance>(Some("t")).await.unwrap();
    assert!(instances.iter().all(|instance| instance.spec.node_name == "healthy"));
    harness.sessions.shutdown().await;
}

#[tokio::test]
async fn a_request_is_answered_when_its_session_is_open_and_users_cannot_create_instances() {
    let harness = Harness::build().await;
    let (healthy, _) = harness.join("healthy", 4_096).await;
    tokio::spawn(healthy.obey());
    harness.application(1).await;
    harness.idle(1).await;
    let session = |name: &str| json!({"metadata": {"name": name, "namespace": "t"}, "spec": {"applicationName": "game"}});
    let opened: ApplicationSession = harness.create(session("s1")).await.unwrap();
    assert_eq!(opened.status.session_status, crate::api::SessionState::Available);
    assert_eq!(opened.status.node_name, "healthy");
    let busy = harness.create::<ApplicationSession>(session("s2")).await.unwrap_err();
    assert_eq!((busy.reason, busy.retry_after), (Reason::SystemBusy, Some(1)));
    let twice = harness.create::<ApplicationSession>(session("s1")).await.unwrap_err();
    assert_eq!(twice.reason, Reason::AlreadyExists);
    // `kubectl describe` finds the event by the application's uid.
    let game = harness.resources.get_as::<Application>(Some("t"), "game").await.unwrap().unwrap();
    harness
        .until("a SystemBusy event", async |resources: &Resources| {
            let events = resources.list_as::<Event>(Some("t")).await.unwrap();
            events.into_iter().find(|event| {
                event.reason.as_deref() == Some("SystemBusy")
                    && event.involved_object.uid.as_ref() == Some(&game.metadata.uid)
            })
        })
        .await;
    let made = harness
        .create::<Instance>(json!({"metadata": {"name": "mine", "namespace": "t"}}))
        .await
        .unwrap_err();
    assert_eq!(made.reason, Reason::MethodNotAllowed);
    let kind = harness.resources.registry().of::<Instance>().unwrap();
    let serde_json::Value::Object(mine) = json!({"metadata": {"name": "mine"}}) else {
        unreachable!()
    };
    let dry = mainstay_store::resources::WriteOptions { dry_run: true, ..Default::default() };
    let tried = harness.resources.create(kind, Some("t"), mine, &dry).await.unwrap_err();
    assert_eq!(tried.message, made.message, "a dry run answers as the real request");
    let explained = harness.handle.explain(key("t", "game")).await;
    assert_eq!(explained.len(), 1);
    assert_eq!(harness.handle.top().await.len(), 1);
    harness.sessions.shutdown().await;
}

#[tokio::test]
async fn a_change_based_on_an_older_session_conflicts_and_a_deletion_does_not() {
    let harness = Harness::build().await;
    let (healthy, _) = harness.join("healthy", 4_096).await;
    tokio::spawn(healthy.obey());
    harness.application(1).await;
    harness.idle(1).await;
    let session =
        json!({"metadata": {"name": "s", "namespace": "t"}, "spec": {"applicationName": "game"}});
    harness.create::<ApplicationSession>(session).await.unwrap();
    let kind = harness.resources.kind_of::<ApplicationSession>().unwrap().clone();
    let place = kind.key(Some("t"), "s");
    let seen = harness.resources.get(&kind, &place).await.unwrap();
    let labelled = |label: &str| {
        let mut object = seen.object();
        object["metadata"]["labels"] = json!({ label: "1" });
        object
    };
    let (keeper, _) = harness.handle.keepers();
    // Both changes are based on the same version.
    keeper.update(place.clone(), seen.clone(), labelled("first")).await.unwrap();
    let late = keeper.update(place.clone(), seen.clone(), labelled("second")).await.unwrap_err();
    assert_eq!(late.reason, Reason::Conflict, "{late}");
    // A change that reads the session again keeps the other change.
    let add = |session: &mut ApplicationSession| {
        session.metadata.labels.insert("second".to_owned(), "1".to_owned());
    };
    let options = WriteOptions::default();
    let (now, _) = harness.resources.modify_as(Some("t"), "s", None, &options, add).await.unwrap();
    let labels: Vec<_> = now.metadata.labels.keys().cloned().collect();
    assert_eq!(labels, ["first", "second"]);
    // A deletion applies to any version.
    let mut ended = seen.object();
    ended["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    keeper.update(place, seen, ended).await.unwrap();
    harness.sessions.shutdown().await;
}

#[tokio::test]
async fn ports_survive_a_restart() {
    let harness = Harness::build().await;
    let (writer, writes) = Writer::new(harness.resources.clone(), harness.handle.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn(writer.run(stop.clone()));
    let mapping = std::collections::BTreeMap::from([("t/s1".to_owned(), 30_001)]);
    let ports = PersistedPorts { blocks: vec![0], mapping: mapping.clone() };
    writes.add(|pending| {
        pending.ports = Some((30_000, ports));
        pending.reserve = Some(1);
    });
    stop.cancel();
    running.await.unwrap();
    let stored = writer::read_ports(&harness.resources, 30_000).await.unwrap();
    assert_eq!((stored.blocks, stored.mapping), (vec![0, 1], mapping));
    let elsewhere = writer::read_ports(&harness.resources, 40_000).await.unwrap();
    assert!(elsewhere.blocks.is_empty(), "another range has other blocks");
    harness.sessions.shutdown().await;
}

/// Waits for the command to start an instance, and returns the secret values in it.
async fn started(node_stream: &mut FakeNode) -> std::collections::HashMap<String, Vec<u8>> {
    loop {
        let command = tokio::time::timeout(Duration::from_secs(30), node_stream.commands.recv());
        let command = command.await.expect("a command in time").expect("an open stream");
        if let Some(to_node::Body::Create(create)) = command.body {
            assert!(!format!("{create:?}").contains("hush"), "values are not printed");
            return create.secrets;
        }
    }
}

#[tokio::test]
async fn instances_wait_for_their_secrets_and_start_with_their_values() {
    let harness = Harness::build().await;
    let (mut node_stream, _) = harness.join("n1", 1_000).await;
    let _: Application = harness
        .create(json!({
            "metadata": {"name": "game", "namespace": "t"},
            "spec": {
                "command": ["game"],
                "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "word"}}}],
                "scalingPolicy": {
                    "minimumInstance": 1, "maximumInstance": 1,
                    "idleSessionNumThreshold": {"low": 0, "high": 1},
                },
            },
        }))
        .await
        .unwrap();
    let instance = harness
        .until("the message that names the missing Secret", async |resources: &Resources| {
            let found = resources.list_as::<Instance>(Some("t")).await.unwrap();
            let waits = |one: &Instance| one.status.message.contains("secret \"db\" not found");
            found.into_iter().find(waits)
        })
        .await;
    assert_eq!(instance.status.reason, "SecretMissing");
    assert!(instance.spec.node_name.is_empty());
    let _: Secret = harness
        .create(json!({
            "metadata": {"name": "db", "namespace": "t"}, "stringData": {"word": "hush"},
        }))
        .await
        .unwrap();
    let values = started(&mut node_stream).await;
    assert_eq!(values, [("WORD".to_owned(), b"hush".to_vec())].into());
    harness.sessions.shutdown().await;
}

#[tokio::test]
async fn the_nodes_of_a_volume_are_found_by_index_and_follow_its_replicas() {
    let harness = Harness::build().await;
    let replicas = &harness.sessions.reflectors.replicas;
    for (name, volume, node) in [("v1-0", "v1", "n1"), ("v1-1", "v1", "n2"), ("v2-0", "v2", "n3")] {
        let _: ReplicatedVolumeReplica = harness
            .create(json!({
                "metadata": {"name": name},
                "spec": {"replicatedVolumeName": volume, "nodeName": node, "type": "Diskful"},
            }))
            .await
            .unwrap();
    }
    harness
        .until("three replicas", async |_: &Resources| (replicas.len() == 3).then_some(()))
        .await;
    let nodes = |volume: &str| {
        let nodes = nodes_with_replica(replicas, volume);
        nodes.iter().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(nodes("v1"), ["n1", "n2"].map(String::from).into());
    assert_eq!(nodes("v2"), ["n3"].map(String::from).into());
    assert!(nodes("v3").is_empty());
    harness.sessions.shutdown().await;
}
