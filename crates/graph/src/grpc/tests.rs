//! The encoding of every message is compared with bytes recorded from the first release.

use std::collections::HashMap;

use prost::Message;

use super::*;

fn map(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

fn status_of(key: &str, derived: Vec<ValueStatus>) -> ValueStatus {
    ValueStatus {
        key: key.into(),
        state: "RETRYING".into(),
        last_operation: "UPDATE".into(),
        error: "timeout".into(),
        details: vec!["a".into(), "b".into()],
        cycle: vec!["x".into(), "y".into()],
        uncertain: true,
        labels: map("owner", "net"),
        derived,
    }
}

/// One of each message, with every field set.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let request = TransactionRequest {
        set: map("interface/eth0", r#"{"mtu":1500}"#),
        delete: vec!["route/1".into(), "route/2".into()],
        resync: Resync::Downstream.into(),
        on_failure: OnFailure::BestEffort.into(),
        retry: Some(Retry { period_ms: 250, max: 3, backoff: true }),
        description: "test".into(),
        wait_ms: 5_000,
        // Fields that came later are not encoded while they are unset.
        ..TransactionRequest::default()
    };
    let operation = Operation {
        operation: "CREATE".into(),
        key: "interface/eth0".into(),
        previous_state: "NONEXISTENT".into(),
        new_state: "CONFIGURED".into(),
        error: "none".into(),
        line: "1. CREATE interface/eth0".into(),
    };
    let error = KeyError { key: "k".into(), operation: "DELETE".into(), error: "busy".into() };
    let commit = CommitReply {
        seq: 300,
        planned: vec![operation.clone()],
        executed: vec![operation.clone(), operation.clone()],
        errors: vec![error],
        reverted: true,
    };
    let status = status_of("base", vec![status_of("derived", Vec::new())]);
    vec![
        ("TransactionRequest", request.encode_to_vec()),
        ("CommitReply", commit.encode_to_vec()),
        ("PlanReply", PlanReply { operations: vec![operation] }.encode_to_vec()),
        (
            "StatusRequest",
            StatusRequest { key: "k".into(), key_prefix: "interface/".into() }.encode_to_vec(),
        ),
        ("StatusReply", StatusReply { values: vec![status.clone()] }.encode_to_vec()),
        ("WatchReply", WatchReply { status: Some(status), missed: 7 }.encode_to_vec()),
    ]
}

#[test]
fn messages_are_encoded_as_in_the_first_release() {
    let text: String = messages()
        .into_iter()
        .map(|(name, bytes)| format!("{name} {}\n", hex::encode(bytes)))
        .collect();
    assert_eq!(text, include_str!("tests/messages.hex"));
}
