//! The wire format of `proto/agents.proto`, compared with bytes recorded from released versions.

use std::collections::HashMap;
use std::fmt::Debug;

use prost::Message;

use super::*;

/// One message of every type, each field set to a value of its own.
fn from_nodes() -> Vec<FromNode> {
    let instance = InstanceState {
        namespace: "games".into(),
        name: "chess-1".into(),
        application: "chess".into(),
        template: "0a1b2c3d4e".into(),
        phase: InstancePhase::Running.into(),
        cpu_milli: 250,
        memory_bytes: 64 << 20,
        endpoints: vec![Endpoint {
            name: "play".into(),
            udp: true,
            address: "10.0.0.7".into(),
            port: 40_001,
        }],
        reason: "Started".into(),
        message: "ready".into(),
    };
    let session = SessionState {
        namespace: "games".into(),
        name: "match-9".into(),
        application: "chess".into(),
        instance: "chess-1".into(),
        phase: SessionPhase::NoHeartbeat.into(),
        clients: vec![Client { id: "ann".into(), joined_micros: 1_700_000_000_000_000 }],
        external_port: 30_007,
        reason: "Silent".into(),
        message: "no heartbeat".into(),
        object: b"{}".to_vec(),
    };
    let name = |name: &str| Name { namespace: "games".into(), name: name.into() };
    let bodies = [
        from_node::Body::Register(Register {
            node: "n1".into(),
            boot_id: "b-1".into(),
            cpu_milli: 8_000,
            memory_bytes: 16 << 30,
            labels: HashMap::from([("zone".into(), "a".into())]),
            address: "10.0.0.7".into(),
            version: "0.1.0".into(),
        }),
        from_node::Body::Ready(Report {
            instances: vec![instance.clone()],
            sessions: vec![session.clone()],
        }),
        from_node::Body::State(Report::default()),
        from_node::Body::Instance(instance),
        from_node::Body::Session(session),
        from_node::Body::Heartbeat(Heartbeat {}),
        from_node::Body::Health(Health {
            instances: vec![name("chess-1")],
            sessions: vec![name("match-9")],
        }),
        from_node::Body::Failed(CommandFailed {
            request: 300,
            failure: Failure::StaleEpoch.into(),
            message: "too old".into(),
        }),
        from_node::Body::Log(LogChunk { request: 301, data: vec![0, 255], last: true }),
    ];
    let numbered = bodies.into_iter().zip(1_u64..);
    numbered.map(|(body, revision)| FromNode { revision, body: Some(body) }).collect()
}

fn to_nodes() -> Vec<ToNode> {
    let name = |name: &str| Name { namespace: "games".into(), name: name.into() };
    let bodies = [
        to_node::Body::Configuration(Configuration {
            cluster_domain: "cluster.local".into(),
            heartbeat_millis: 1_000,
            health_millis: 10_000,
        }),
        to_node::Body::FullSync(FullSync {}),
        to_node::Body::Create(CreateInstance {
            namespace: "games".into(),
            name: "chess-2".into(),
            application: "chess".into(),
            template: "0a1b2c3d4e".into(),
            cpu_milli: 250,
            memory_bytes: 64 << 20,
            process: b"{\"process\":{}}".to_vec(),
            standby: true,
            secrets: HashMap::from([("KEY".into(), b"value".to_vec())]),
        }),
        to_node::Body::Terminate(name("chess-2")),
        to_node::Body::Hibernate(name("chess-3")),
        to_node::Body::Activate(name("chess-4")),
        to_node::Body::Open(OpenSession {
            namespace: "games".into(),
            name: "match-9".into(),
            instance: "chess-1".into(),
            session_data: "board".into(),
            external_port: 30_007,
            object: b"{}".to_vec(),
        }),
        to_node::Body::Close(CloseSession {
            namespace: "games".into(),
            name: "match-9".into(),
            instance: "chess-1".into(),
            grace_seconds: 60,
        }),
        to_node::Body::ReadLog(ReadLog {
            namespace: "games".into(),
            instance: "chess-1".into(),
            tail: 100,
            follow: true,
        }),
    ];
    let numbered = bodies.into_iter().zip(1_u64..);
    numbered.map(|(body, request)| ToNode { epoch: 7, request, body: Some(body) }).collect()
}

/// Fails unless each message encodes to its recorded line, and the line decodes to the message.
fn assert_recorded<M: Message + Default + PartialEq + Debug>(messages: &[M], recorded: &str) {
    let encoded: Vec<String> =
        messages.iter().map(|message| hex::encode(message.encode_to_vec())).collect();
    let recorded: Vec<&str> = recorded.lines().collect();
    assert_eq!(encoded, recorded, "encoding");
    for (message, line) in messages.iter().zip(recorded) {
        assert_eq!(&M::decode(&*hex::decode(line).unwrap()).unwrap(), message, "decoding {line}");
    }
}

#[test]
fn messages_encode_to_the_bytes_of_released_versions() {
    assert_recorded(&from_nodes(), include_str!("tests/from_node.hex"));
    assert_recorded(&to_nodes(), include_str!("tests/to_node.hex"));
}

#[test]
fn debug_output_of_create_instance_contains_no_secret_values() {
    let create = to_nodes().into_iter().find_map(|message| match message.body {
        Some(to_node::Body::Create(create)) => Some(create),
        _ => None,
    });
    let printed = format!("{create:?}");
    assert!(printed.contains("KEY") && !printed.contains("value"), "{printed}");
    assert!(!printed.contains(&format!("{:?}", b"value")), "{printed}");
}

#[test]
fn different_templates_have_different_hashes() {
    let mut one = Template::default();
    let other = one.hash();
    assert_eq!(other, Template::default().hash());
    one.process.command = vec!["sleep".to_owned()];
    assert_ne!(one.hash(), other);
    assert_eq!(one.hash().len(), 10);
    let back: Template = serde_json::from_slice(&one.to_json()).unwrap();
    assert_eq!(back, one);
}
