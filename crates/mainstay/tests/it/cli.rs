//! The program's own client commands: a session as a transcript, and what needs two at once.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::golden;
use crate::process::{MAINSTAY, TestServer, text_of};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests");

fn run(server: &TestServer, arguments: &[&str]) -> String {
    let output = server
        .client(MAINSTAY)
        .args(arguments)
        .current_dir(MANIFESTS)
        .stdin(Stdio::null())
        .output();
    text_of(&output.unwrap())
}

#[test]
fn a_session_reads_well() {
    let server = TestServer::start();
    let mut transcript = String::new();
    for line in [
        "get ns",
        "get nodes",
        "apply -f config.yaml --dry-run=server",
        "apply -f config.yaml --dry-run=luck",
        "get cm",
        "apply -f config.yaml -f node.yaml -f typo.yaml",
        "apply -f config.yaml",
        "apply -f node.yaml --status",
        "apply -f node.yaml --status",
        "get cm",
        "get cm,nodes -o wide",
        "get cm/settings node/worker-1 -o name",
        "get cm -A -l app=db --show-labels",
        "get cm --field-selector metadata.name=settings --no-headers",
        "get cm settings -o yaml",
        "get cm settings -o json",
        "get cm absent",
        "get cm absent --ignore-not-found",
        "get confgimaps",
        "describe node worker-1",
        "wait node/worker-1 --for=condition=Ready --timeout=20s",
        "wait node/worker-1 --for=condition=Ready=False --timeout=50ms",
        "wait ns/default --for=jsonpath={.status.phase}=Active --timeout=20s",
        "delete cm settings --dry-run",
        "delete cm settings absent",
        "delete -f config.yaml --ignore-not-found",
        "delete cm",
        "delete cm --all",
        "get cm",
        "version -o yaml --client",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let text = run(&server, &arguments);
        transcript.push_str(&format!("$ mainstay {line}\n{text}\n"));
    }
    golden::compare("mainstay-session.txt", &transcript);
}

#[test]
fn stdin_is_a_manifest_too() {
    let server = TestServer::start();
    let mut child = server
        .client(MAINSTAY)
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let manifest = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: piped}\n---\n{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"other\"}}\n";
    child.stdin.take().unwrap().write_all(manifest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text_of(&output), "configmap/piped created\nconfigmap/other created\n");
}

#[test]
fn waiting_ends_with_the_event() {
    let server = TestServer::start();
    let mut waiting = server
        .client(MAINSTAY)
        .args(["wait", "cm/settings", "--for=create", "--timeout=60s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(run(&server, &["apply", "-f", "config.yaml"]).contains("created"));
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn wait_checks_every_object_even_after_the_timeout() {
    let server = TestServer::start();
    run(&server, &["apply", "-f", "config.yaml"]);
    // The first has no colour, the second has.
    let goal = "--for=jsonpath={.data.colour}";
    let said = text_of(&server.mainstay(&["wait", "cm", "--all", goal, "--timeout=50ms"]));
    assert!(said.contains("settings condition met"), "{said}");
    assert!(said.contains("timed out waiting for configmap/database"), "{said}");
    assert!(said.contains("[exit code 1]"), "{said}");
}

#[test]
fn a_watch_lists_the_changed_fields() {
    let server = TestServer::start();
    run(&server, &["apply", "-f", "config.yaml"]);
    let mut watching = server
        .client(MAINSTAY)
        .args(["watch", "cm,nodes", "-l", "app=web"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "ADDED    configmap/settings -n default");
    let folder = crate::process::folder();
    let file = folder.path().join("c.yaml");
    let text = std::fs::read_to_string(format!("{MANIFESTS}/config.yaml")).unwrap();
    std::fs::write(&file, text.replace("blue", "green")).unwrap();
    run(&server, &["apply", "-f", &file.display().to_string()]);
    let line = next();
    assert!(
        line.starts_with("MODIFIED configmap/settings -n default")
            && line.contains("data.colour: blue → green"),
        "{line}"
    );
    run(&server, &["delete", "cm", "settings"]);
    assert_eq!(next(), "DELETED  configmap/settings -n default");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn tokens_have_roles_and_can_be_revoked() {
    let server = TestServer::start();
    let token =
        run(&server, &["token", "create", "--role", "viewer", "--ttl", "1h", "--name", "auditor"]);
    let token = token.trim();
    let with = |arguments: &[&str]| {
        let mut all = vec!["--token", token];
        all.splice(0..0, arguments.iter().copied());
        run(&server, &all)
    };
    assert_eq!(with(&["get", "ns", "default", "-o", "name"]), "namespace/default\n");
    let refused = with(&["apply", "-f", "config.yaml"]);
    assert!(refused.contains("Forbidden") && refused.contains("auditor"), "{refused}");
    let list: serde_json::Value =
        serde_json::from_str(&run(&server, &["token", "list", "-o", "json"])).unwrap();
    let found =
        list["items"].as_array().unwrap().iter().find(|found| found["name"] == "auditor").unwrap();
    assert!(!list.to_string().contains(token), "a token is never shown again");
    let id = found["id"].as_str().unwrap();
    let confused = run(&server, &["token", "revoke", id, token]);
    assert!(confused.contains("takes the id of a token") && confused.contains("[exit code 2]"));
    assert!(!confused.contains(token), "a token is never shown: {confused}");
    assert_eq!(with(&["get", "ns", "default", "-o", "name"]), "namespace/default\n");
    let revoked = run(&server, &["token", "revoke", id]);
    assert!(revoked.contains("revoked"), "{revoked}");
    let refused = with(&["get", "ns"]);
    assert!(refused.contains("Unauthorized"), "{refused}");
    let node = run(&server, &["token", "create", "--role", "node"]);
    assert!(node.contains("--node"), "{node}");
}

/// Answers requests one after the other, each on a connection of its own that is closed then.
fn answering(answers: Vec<String>) -> (String, std::thread::JoinHandle<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, server)
}

#[test]
fn a_log_that_breaks_off_is_an_error_that_tells_why() {
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nbegun\n\r\n";
    let refusal = |code: u16, reason: &str, message: &str| {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
        });
        let body = body.to_string();
        format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (next, why) in [
        (None, "the node disconnected, or the output was read too slowly"),
        (
            Some(refusal(401, "Unauthorized", "Unauthorized")),
            "the token was revoked or has expired",
        ),
        (
            Some(refusal(404, "NotFound", "the node n1 is not connected")),
            "the node n1 is not connected",
        ),
    ] {
        let (url, server) = answering([begun.to_owned()].into_iter().chain(next).collect());
        let output = std::process::Command::new(crate::process::MAINSTAY)
            .args(["logs", "-f", "game-1", "--server", &url])
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        server.join().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "begun\n");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("the log of instance game-1 is incomplete"), "{told}");
        assert!(told.contains(why), "{told}");
        assert_eq!(output.status.code(), Some(1));
    }
}
