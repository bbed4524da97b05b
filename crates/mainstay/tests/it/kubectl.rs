//! A session with the stock kubectl, as a transcript.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::golden;
use crate::process::{TestServer, cannot_test, text_of};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests");

/// The minor version of the kubectl on this machine.
pub(crate) fn kubectl_minor() -> Option<u32> {
    let output =
        Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version["clientVersion"]["minor"].as_str()?;
    minor.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse().ok()
}

/// Commands and what they printed, one after another.
pub(crate) struct Session<'a> {
    server: &'a TestServer,
    transcript: String,
}

impl<'a> Session<'a> {
    pub(crate) fn new(server: &'a TestServer) -> Self {
        Self { server, transcript: String::new() }
    }

    /// Runs one command, split at spaces (`'…'` keeps spaces), and writes it down.
    fn run(&mut self, line: &str) -> String {
        let text = self.quiet(line);
        self.transcript.push_str(&format!("$ kubectl {line}\n{text}\n"));
        text
    }

    /// Runs one command without writing it down.
    pub(crate) fn quiet(&self, line: &str) -> String {
        let output = self.command(line).stdin(Stdio::null()).output().expect("kubectl runs");
        text_of(&output)
    }

    /// One command, not yet run.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = self.server.client("kubectl");
        command.args(words(line)).current_dir(MANIFESTS);
        command
    }
}

fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match (letter, words.last_mut()) {
            ('\'', _) => quoted = !quoted,
            (' ', _) if !quoted => words.push(String::new()),
            (letter, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    words
}

#[test]
fn the_stock_client_works_unchanged() {
    let Some(minor) = kubectl_minor() else {
        return cannot_test("a session with kubectl: there is none");
    };
    let server = TestServer::start();
    let mut session = Session::new(&server);
    session.run("api-resources --no-headers=true -o name");
    session.run("get namespaces");
    for line in
        ["apply -f config.yaml", "apply -f config.yaml", "apply -f node.yaml", "apply -f typo.yaml"]
    {
        let text = session.run(line);
        assert!(!line.contains("typo") || text.contains("unknown field \"dta\""), "{text}");
    }
    session.run("get configmaps -l app=web");
    session.run("get configmaps -l 'app in (web,db),tier!=back'");
    session.run("get configmaps --field-selector metadata.name=settings");
    session.run("get cm settings -o yaml");
    session.run("get cm settings -o json");
    session.run("get cm settings -o name");
    session.run("get cm settings -o 'jsonpath={.data.colour}'");
    session.run("get cm -A -o wide");
    session.run("get nodes -o wide");
    session.run("patch cm settings --type=merge -p '{\"data\":{\"colour\":\"green\"}}'");
    session.run("patch cm settings --type=json -p '[{\"op\":\"add\",\"path\":\"/data/size\",\"value\":\"large\"}]'");
    session.run("patch cm settings --type=json -p '[{\"op\":\"test\",\"path\":\"/data/size\",\"value\":\"small\"}]'");
    session.run("label cm settings tier=front");
    session.run("annotate cm settings note='by hand'");
    session.run("get cm settings --show-labels");
    for _ in 0..2 {
        session.run("create -f made.json");
    }
    session.run("create configmap literal --from-literal=a=1");
    session.run("create namespace elsewhere");
    session.run("get cm missing");
    session.run("get pods");
    session.run("wait node/worker-1 --for=condition=Ready --timeout=20s");
    session.run("delete cm made");
    session.run("delete cm -l app=db");
    session.run("get cm");
    // Older clients print the same facts in other words, and managed fields along with them.
    if minor >= 27 {
        golden::compare("kubectl-session.txt", &session.transcript);
    } else {
        golden::compare_outcomes("kubectl-session.txt", &session.transcript);
    }
}

#[test]
fn explain_shows_the_whole_schema() {
    if kubectl_minor().is_none() {
        return cannot_test("kubectl explain: there is no kubectl");
    }
    let server = TestServer::start();
    let session = Session::new(&server);
    let text = session.quiet("explain node.spec --recursive");
    for expected in ["KIND:", "Node", "VERSION:", "v1", "taints", "effect", "unschedulable"] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
    let text = session.quiet("explain configmap.data");
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.windows(2).any(|pair| pair == ["FIELD:", "data"]), "{text}");
    let text = session.quiet("explain node.spec.nonsense");
    assert!(text.contains("does not exist"), "{text}");
}

#[test]
fn describe_shows_events() {
    if kubectl_minor().is_none() {
        return cannot_test("kubectl describe: there is no kubectl");
    }
    let server = TestServer::start();
    let session = Session::new(&server);
    session.quiet("apply -f config.yaml");
    let uid = session.quiet("get cm settings -o 'jsonpath={.metadata.uid}'");
    let event = format!(
        r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"settings.1","namespace":"default"}},
            "involvedObject":{{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"settings","uid":"{uid}"}},
            "type":"Normal","reason":"Painted","message":"it is blue now","source":{{"component":"painter"}},
            "count":1,"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z"}}"#
    );
    let file = crate::process::folder();
    let path = file.path().join("event.json");
    std::fs::write(&path, event).unwrap();
    let text = session.quiet(&format!("create -f {}", path.display()));
    assert!(text.contains("event/settings.1 created"), "{text}");
    for text in [
        session.quiet("describe cm settings"),
        text_of(&server.mainstay(&["describe", "cm", "settings"])),
        session.quiet("get events"),
    ] {
        for expected in ["Painted", "it is blue now"] {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
    }
}

#[test]
fn a_watch_shows_every_change() {
    if kubectl_minor().is_none() {
        return cannot_test("kubectl get -w: there is no kubectl");
    }
    let server = TestServer::start();
    let session = Session::new(&server);
    session.quiet("apply -f config.yaml");
    let mut watching = server
        .client("kubectl")
        .args([
            "get",
            "cm",
            "settings",
            "-w",
            "--no-headers",
            "-o",
            "jsonpath={.data.colour}{\"\\n\"}",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    let mut lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("one more line").expect("text");
    assert_eq!(next(), "blue");
    for colour in ["green", "red", "white"] {
        let patch =
            format!("patch cm settings --type=merge -p '{{\"data\":{{\"colour\":\"{colour}\"}}}}'");
        session.quiet(&patch);
        assert_eq!(next(), colour);
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn a_finalizer_holds_a_deleted_object() {
    if kubectl_minor().is_none() {
        return cannot_test("kubectl delete with a finalizer: there is no kubectl");
    }
    let server = TestServer::start();
    let session = Session::new(&server);
    session.quiet("apply -f config.yaml");
    session.quiet("patch cm settings --type=merge -p '{\"metadata\":{\"finalizers\":[\"example.com/hold\"]}}'");
    let mut deleting = server
        .client("kubectl")
        .args(["delete", "cm", "settings"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    let mut line = String::new();
    BufReader::new(deleting.stdout.take().expect("a pipe")).read_line(&mut line).unwrap();
    assert!(line.contains("deleted"), "{line}");
    let held = session.quiet(
        "get cm settings -o 'jsonpath={.metadata.finalizers[0]} {.metadata.deletionTimestamp}'",
    );
    assert!(held.starts_with("example.com/hold 20"), "{held}");
    assert!(deleting.try_wait().unwrap().is_none(), "it must wait for the finalizer");
    session.quiet("patch cm settings --type=json -p '[{\"op\":\"remove\",\"path\":\"/metadata/finalizers\"}]'");
    assert!(deleting.wait().unwrap().success());
    assert!(session.quiet("get cm settings").contains("NotFound"));
}
