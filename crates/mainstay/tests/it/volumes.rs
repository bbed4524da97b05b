//! Volumes as an operator sees them: stock kubectl's tables, and the program's own answers to
//! why, what if, and how much is left.

use std::process::Stdio;

use serde_json::Value;

use crate::golden;
use crate::process::{MAINSTAY, TestServer, cannot_test, folder, text_of};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/volumes");
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests");

struct Session {
    server: TestServer,
    transcript: String,
}

impl Session {
    /// Three nodes with a group each, a pool, a class.
    fn start() -> Self {
        let server = TestServer::start();
        let this = Self { server, transcript: String::new() };
        this.quiet(MAINSTAY, "apply -f cluster.yaml --status");
        this.quiet(MAINSTAY, "wait rsc/replicated --for=condition=Ready --timeout=20s");
        this
    }

    fn quiet(&self, program: &str, line: &str) -> String {
        let output = self
            .server
            .client(program)
            .args(line.split(' '))
            .current_dir(EXAMPLES)
            .stdin(Stdio::null())
            .output();
        text_of(&output.expect("the client runs"))
    }

    /// Runs one command and writes it down.
    fn run(&mut self, line: &str) -> String {
        let (name, rest) = line.split_once(' ').unwrap();
        let program = if name == "mainstay" { MAINSTAY } else { name };
        let text = self.quiet(program, rest);
        self.transcript.push_str(&format!("$ {line}\n{text}\n"));
        text
    }

    fn json(&self, line: &str) -> Value {
        let output = self.server.client(MAINSTAY).args(line.split(' ')).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text_of(&output)))
    }

    /// Waits until the volume and its replicas have settled.
    fn placed(&self, volume: &str, replicas: u8) {
        let ready = format!("wait rv/{volume} --for=condition=Scheduled --timeout=20s");
        self.quiet(MAINSTAY, &ready);
        for id in 0..replicas {
            let settled = "--for=jsonpath={.status.phase}=Scheduled --timeout=20s";
            self.quiet(MAINSTAY, &format!("wait rvr/{volume}-{id} {settled}"));
        }
    }
}

#[test]
fn tables_explanations_and_capacity_match_the_recording() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        return cannot_test("volumes with kubectl: there is none");
    }
    let mut session = Session::start();
    session.quiet(MAINSTAY, "apply -f volume.yaml");
    session.placed("data", 3);
    session.run("kubectl get rv,rvr,rsp,lvg");
    session.quiet(
        MAINSTAY,
        "wait rsc/replicated --for=jsonpath={.status.volumes.aligned}=1 --timeout=20s",
    );
    session.run("kubectl get rsc");
    session.run("kubectl get rv,rvr,rsc,lvg -o wide");
    session.run("mainstay explain placement rv/data");
    session.run("mainstay explain placement rv/data --replica 1 -o json");

    let large = format!("apply -f {MANIFESTS}/large-volume.yaml");
    session.quiet(MAINSTAY, &large);
    session.quiet(MAINSTAY, "wait rv/large --for=condition=Scheduled=false --timeout=20s");
    let told = "wait rv/large --for=jsonpath={.status.conditions[0].reason}=WaitingForPlacement";
    session.quiet(MAINSTAY, told);
    // The TieBreaker finds a place; what the others say of it is settled then.
    let settled = "--for=jsonpath={.status.phase}=Scheduled --timeout=20s";
    session.quiet(MAINSTAY, &format!("wait rvr/large-2 {settled}"));
    session.run("mainstay explain placement rv/large --replica 0");
    session.run("mainstay explain placement rv/absent");
    session.run("mainstay explain placement rv/data --replica 7");
    session.run("mainstay capacity");
    session.run("mainstay capacity --size 10Gi");
    session.run("mainstay capacity --size 10Gi -o json");
    session.run(&format!("mainstay plan -f {MANIFESTS}/small-volume.yaml --live"));
    session.transcript = session.transcript.replace(MANIFESTS, "manifests");
    golden::compare("volumes-session.txt", &session.transcript);
}

#[test]
fn placements_and_failures_are_events() {
    let session = Session::start();
    session.quiet(MAINSTAY, "apply -f volume.yaml");
    session.placed("data", 3);
    session.quiet(MAINSTAY, &format!("apply -f {MANIFESTS}/large-volume.yaml"));
    let events = || {
        let list = session.json("get events -o json");
        let items = list["items"].as_array().unwrap().clone();
        let mut lines: Vec<String> = items
            .iter()
            .map(|event| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let about = &event["involvedObject"];
                let parts = [&event["type"], &event["reason"], &about["kind"], &about["name"]];
                let parts: Vec<String> = parts.into_iter().map(text).collect();
                format!("{}: {}", parts.join(" "), text(&event["message"]))
            })
            .collect();
        lines.sort();
        lines
    };
    let full = "3 candidates (node×LVG) from 3 eligible nodes; 3 excluded: scoring (no capacity)";
    let kind = "ReplicatedVolumeReplica";
    let expected = [
        format!("Normal Scheduled {kind} data-0: placed on node-a in vg-a"),
        format!("Normal Scheduled {kind} data-1: placed on node-b in vg-b"),
        format!("Normal Scheduled {kind} data-2: placed on node-c"),
        format!("Normal Scheduled {kind} large-2: placed on node-a"),
        format!("Warning SchedulingFailed {kind} large-0: {full}"),
        format!("Warning SchedulingFailed {kind} large-1: {full}"),
    ];
    // Events are written behind: they come, but not at once.
    let mut found = events();
    for _ in 0..500 {
        if expected.iter().all(|line| found.contains(line)) {
            return;
        }
        found = events();
    }
    panic!("expected {expected:#?}, found {found:#?}");
}

#[test]
fn the_extender_requires_permission_to_reserve() {
    let session = Session::start();
    let there = folder();
    let body = there.path().join("body.json");
    let ask = |size: u64, lvgs: &str| {
        std::fs::write(
            &body,
            format!(
                r#"{{"reservationID":"ns/pvc","reservationTTL":"1m0s","size":{size},"lvgs":{lvgs}}}"#
            ),
        )
        .unwrap();
        let line = format!("create --raw /v1/lvg/filter-and-score -f {}", body.display());
        session.quiet("kubectl", &line)
    };
    let gib = 1_u64 << 30;
    let scored = ask(60 * gib, r#"[{"name":"vg-a"},{"name":"vg-b"},{"name":"gone"}]"#);
    let scored: Value = serde_json::from_str(&scored).unwrap_or_else(|_| panic!("{scored}"));
    let names: Vec<&Value> =
        scored["lvgs"].as_array().unwrap().iter().map(|lvg| &lvg["name"]).collect();
    assert_eq!(names, ["vg-a", "vg-b"]);
    std::fs::write(
        &body,
        r#"{"reservationID":"ns/pvc","reservationTTL":"1m0s","lvg":{"name":"vg-a"}}"#,
    )
    .unwrap();
    let narrow = format!("create --raw /v1/lvg/narrow-reservation -f {}", body.display());
    assert_eq!(session.quiet("kubectl", &narrow).trim(), "{}");

    // Reservations of others count, and are shown: in the explanation and in the free space.
    let held = session.quiet("kubectl", "get --raw /v1/lvg/reservations");
    let held: Value = serde_json::from_str(&held).unwrap();
    assert_eq!(held["reservations"][0]["lvg"]["name"], "vg-a");
    assert_eq!(held["reservations"][0]["bytes"], 60 * gib);
    let found = session.json("capacity -o json");
    assert_eq!(found["nodes"][0]["available"], 40 * gib);
    session.quiet(MAINSTAY, &format!("apply -f {MANIFESTS}/small-volume.yaml"));
    session.placed("small", 1);
    let explained = session.json("explain placement rv/small -o json");
    let rows = explained["replicas"][0]["candidates"].as_array().unwrap();
    let row = rows.iter().find(|row| row["node"] == "node-a").unwrap();
    assert_eq!(row["excludedBy"], "scoring (no capacity)", "{row}");

    let token = session.quiet(MAINSTAY, "token create --role viewer");
    let viewer = format!("{narrow} --token {}", token.lines().next().unwrap());
    let refused = session.quiet("kubectl", &viewer);
    assert!(refused.to_lowercase().contains("forbidden") || refused.contains("403"), "{refused}");
}
