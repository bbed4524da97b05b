//! The shell on a store in memory, with nodes that are only channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_store::builtin::{Event, Namespace};
use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::Resource;
use mainstay_store::registry::{Registry, Typed, builtin};
use mainstay_store::resources::{RandomIdentities, Reason, Resources, WriteOptions};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::desk::Input;
use super::*;
use crate::api::{ApplicationSession, Instance};
use crate::engine::{Key, key};
use crate::protocol::{
    FromNode, InstancePhase, InstanceState, Register, Report, SessionPhase, SessionState, ToNode,
    from_node, to_node,
};

struct House {
    resources: Resources,
    desk: Desk,
    sessions: Sessions,
}

impl House {
    async fn build() -> Self {
        let clock = SystemClock::new();
        let store = Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone()));
        let kinds = builtin().into_iter().chain(mainstay_volumes::kinds()).chain(crate::kinds());
        let registry = Arc::new(Registry::new(kinds).unwrap());
        let (desk, inbox) = super::desk(Metrics::default());
        let (sessions, instances) = desk.keepers();
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
            settings: Settings::default(),
            gateway: None,
            seed: 1,
            epoch: 1,
            leadership: None,
        };
        let sessions = Sessions::start(&resources, options, &desk, inbox).await.unwrap();
        Self { resources, desk, sessions }
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

    /// A node joins whose stream holds so many messages.
    async fn join(&self, name: &str, room: usize) -> (Line, u64) {
        let (said, heard) = mpsc::channel(room);
        let (answer, taken) = oneshot::channel();
        let node: Key = name.into();
        self.desk.put(Input::Connect { node: node.clone(), said, answer }).await;
        let connection = taken.await.unwrap().expect("taken");
        let line = Line { node, connection, desk: self.desk.clone(), heard, revision: 1 };
        let register = Register { node: name.to_owned(), cpu_milli: 1, ..Register::default() };
        line.say(1, from_node::Body::Register(register)).await;
        line.say(1, from_node::Body::Ready(Report::default())).await;
        (line, connection)
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFn(&Resources) -> Option<T>) -> T {
        for _ in 0..3_000 {
            if let Some(seen) = look(&self.resources).await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never happened: {what}");
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
struct Line {
    node: Key,
    connection: u64,
    desk: Desk,
    heard: mpsc::Receiver<ToNode>,
    revision: u64,
}

impl Line {
    async fn say(&self, revision: u64, body: from_node::Body) {
        let message = FromNode { revision, body: Some(body) };
        let (node, connection) = (self.node.clone(), self.connection);
        self.desk.put(Input::Heard { node, connection, message }).await;
    }

    /// Does as it is told for as long as it is spoken to.
    async fn obey(mut self) {
        while let Some(told) = self.heard.recv().await {
            self.revision += 1;
            let body = match told.body {
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
            self.say(self.revision, body).await;
        }
    }
}

#[tokio::test]
async fn a_node_that_does_not_read_is_hung_up_on_and_holds_up_nobody() {
    let house = House::build().await;
    let (mut deaf, _) = house.join("deaf", 8).await;
    let (well, _) = house.join("well", 4_096).await;
    tokio::spawn(well.obey());
    house.application(50).await;
    house.idle(50).await;
    let mut read = 0;
    while deaf.heard.recv().await.is_some() {
        read += 1;
    }
    assert_eq!(read, 8, "what it could have read, then the end");
    let instances = house.resources.list_as::<Instance>(Some("t")).await.unwrap();
    assert!(instances.iter().all(|instance| instance.spec.node_name == "well"));
    house.sessions.shutdown().await;
}

#[tokio::test]
async fn a_session_is_answered_when_it_is_open_and_an_instance_is_nobodys_to_make() {
    let house = House::build().await;
    let (well, _) = house.join("well", 4_096).await;
    tokio::spawn(well.obey());
    house.application(1).await;
    house.idle(1).await;
    let session = |name: &str| json!({"metadata": {"name": name, "namespace": "t"}, "spec": {"applicationName": "game"}});
    let opened: ApplicationSession = house.create(session("s1")).await.unwrap();
    assert_eq!(opened.status.session_status, crate::api::SessionState::Available);
    assert_eq!(opened.status.node_name, "well");
    let busy = house.create::<ApplicationSession>(session("s2")).await.unwrap_err();
    assert_eq!((busy.reason, busy.retry_after), (Reason::SystemBusy, Some(1)));
    let twice = house.create::<ApplicationSession>(session("s1")).await.unwrap_err();
    assert_eq!(twice.reason, Reason::AlreadyExists);
    // Whoever describes the application finds why by its identity.
    let game = house.resources.get_as::<Application>(Some("t"), "game").await.unwrap().unwrap();
    house
        .until("an event that says so", async |resources: &Resources| {
            let events = resources.list_as::<Event>(Some("t")).await.unwrap();
            events.into_iter().find(|event| {
                event.reason.as_deref() == Some("SystemBusy")
                    && event.involved_object.uid.as_ref() == Some(&game.metadata.uid)
            })
        })
        .await;
    let made = house
        .create::<Instance>(json!({"metadata": {"name": "mine", "namespace": "t"}}))
        .await
        .unwrap_err();
    assert_eq!(made.reason, Reason::MethodNotAllowed);
    let kind = house.resources.registry().of::<Instance>().unwrap();
    let serde_json::Value::Object(mine) = json!({"metadata": {"name": "mine"}}) else {
        unreachable!()
    };
    let dry = mainstay_store::resources::WriteOptions { dry_run: true, ..Default::default() };
    let tried = house.resources.create(kind, Some("t"), mine, &dry).await.unwrap_err();
    assert_eq!(tried.message, made.message, "a dry run answers as the real request");
    let explained = house.desk.explain(key("t", "game")).await;
    assert_eq!(explained.len(), 1);
    assert_eq!(house.desk.top().await.len(), 1);
    house.sessions.shutdown().await;
}

#[tokio::test]
async fn two_who_change_a_session_at_once_are_told_of_each_other() {
    let house = House::build().await;
    let (well, _) = house.join("well", 4_096).await;
    tokio::spawn(well.obey());
    house.application(1).await;
    house.idle(1).await;
    let session =
        json!({"metadata": {"name": "s", "namespace": "t"}, "spec": {"applicationName": "game"}});
    house.create::<ApplicationSession>(session).await.unwrap();
    let kind = house.resources.kind_of::<ApplicationSession>().unwrap().clone();
    let place = kind.key(Some("t"), "s");
    let seen = house.resources.get(&kind, &place).await.unwrap();
    let labelled = |label: &str| {
        let mut object = seen.object();
        object["metadata"]["labels"] = json!({ label: "1" });
        object
    };
    let (keeper, _) = house.desk.keepers();
    // Both saw the same session.
    keeper.update(place.clone(), seen.clone(), labelled("first")).await.unwrap();
    let late = keeper.update(place.clone(), seen.clone(), labelled("second")).await.unwrap_err();
    assert_eq!(late.reason, Reason::Conflict, "{late}");
    // Who does not insist on a version looks again, and both changes stand.
    let add = |session: &mut ApplicationSession| {
        session.metadata.labels.insert("second".to_owned(), "1".to_owned());
    };
    let options = WriteOptions::default();
    let (now, _) = house.resources.modify_as(Some("t"), "s", None, &options, add).await.unwrap();
    let labels: Vec<_> = now.metadata.labels.keys().cloned().collect();
    assert_eq!(labels, ["first", "second"]);
    // Whoever ends it ends it, whatever was said meanwhile.
    let mut ended = seen.object();
    ended["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    keeper.update(place, seen, ended).await.unwrap();
    house.sessions.shutdown().await;
}

#[tokio::test]
async fn ports_outlive_the_process() {
    let house = House::build().await;
    let (scribe, orders) = scribe::Scribe::new(house.resources.clone(), house.desk.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn(scribe.run(stop.clone()));
    let mapping = std::collections::BTreeMap::from([("t/s1".to_owned(), 30_001)]);
    let ports = scribe::Ports { blocks: vec![0], mapping: mapping.clone() };
    orders.leave(|wanted| {
        wanted.ports = Some((30_000, ports));
        wanted.reserve = Some(1);
    });
    stop.cancel();
    running.await.unwrap();
    let recalled = scribe::recall(&house.resources, 30_000).await.unwrap();
    assert_eq!((recalled.blocks, recalled.mapping), (vec![0, 1], mapping));
    let elsewhere = scribe::recall(&house.resources, 40_000).await.unwrap();
    assert!(elsewhere.blocks.is_empty(), "another range has other blocks");
    house.sessions.shutdown().await;
}

/// Waits until a node is told to start an instance, and gives the values it starts with.
async fn started(line: &mut Line) -> std::collections::HashMap<String, Vec<u8>> {
    loop {
        let told = tokio::time::timeout(Duration::from_secs(30), line.heard.recv());
        let told = told.await.expect("something is told").expect("a line");
        if let Some(to_node::Body::Create(create)) = told.body {
            assert!(!format!("{create:?}").contains("hush"), "values are not printed");
            return create.secrets;
        }
    }
}

#[tokio::test]
async fn instances_wait_for_their_secrets_and_start_with_their_values() {
    let house = House::build().await;
    let (mut line, _) = house.join("n1", 1_000).await;
    let _: Application = house
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
    let instance = house
        .until("the instance says what is missing", async |resources: &Resources| {
            let found = resources.list_as::<Instance>(Some("t")).await.unwrap();
            let waits = |one: &Instance| one.status.message.contains("secret \"db\" not found");
            found.into_iter().find(waits)
        })
        .await;
    assert_eq!(instance.status.reason, "SecretMissing");
    assert!(instance.spec.node_name.is_empty());
    let _: Secret = house
        .create(json!({
            "metadata": {"name": "db", "namespace": "t"}, "stringData": {"word": "hush"},
        }))
        .await
        .unwrap();
    let values = started(&mut line).await;
    assert_eq!(values, [("WORD".to_owned(), b"hush".to_vec())].into());
    house.sessions.shutdown().await;
}
