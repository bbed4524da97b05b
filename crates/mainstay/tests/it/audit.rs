//! The audit log of the whole program: the dialects beside objects leave their lines too.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{TestServer, folder, text_of};
use crate::sessions::{TestAgent, until};

fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Sends a request without TLS, and gives the status of the answer once it has come whole.
fn send(server: &TestServer, request: &str, headers: &[String], body: &Value) -> u16 {
    let address = server.address();
    let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn every_dialect_leaves_a_line_for_changes_and_denials() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &["--plain-http"]);
    let kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    let made = server.mainstay(&["token", "create", "--role", "viewer", "--name", "eve"]);
    let viewer = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    assert!(made.status.success(), "{}", text_of(&made));
    let bearer = |token: &str| vec![format!("Authorization: Bearer {token}")];
    let (admin, eve, stranger) = (bearer(token), bearer(&viewer), bearer("hidden-token"));
    let wrong = vec![
        "X-Rucio-Account: root".to_owned(),
        "X-Rucio-Username: mallory".to_owned(),
        "X-Rucio-Password: hidden-password".to_owned(),
    ];
    let rucio = |line: Value| {
        let mut line = line;
        line["surface"] = json!("rucio");
        Some(line)
    };
    let empty = json!({});
    let cases = [
        (
            "POST /rucio/rses/SITE-A",
            &admin,
            &empty,
            rucio(
                json!({"user": "admin", "role": "admin", "account": "root", "verb": "create", "resource": "rucio/rses", "name": "SITE-A", "outcome": "allowed", "code": 201}),
            ),
        ),
        (
            "POST /rucio/rses/SITE-A",
            &admin,
            &empty,
            rucio(json!({"outcome": "failed", "code": 409})),
        ),
        (
            "PUT /rucio/rses/SITE-A",
            &eve,
            &empty,
            rucio(
                json!({"user": "eve", "role": "viewer", "verb": "update", "outcome": "denied", "code": 403}),
            ),
        ),
        (
            "DELETE /rucio/nowhere/x",
            &admin,
            &empty,
            rucio(json!({"verb": "delete", "outcome": "failed", "resource": "rucio/nowhere"})),
        ),
        ("POST /rucio/replicas/list", &admin, &json!({"dids": []}), None),
        ("GET /rucio/rses", &admin, &Value::Null, None),
        (
            "GET /rucio/auth/userpass",
            &wrong,
            &Value::Null,
            rucio(
                json!({"user": "anonymous", "claimedUser": "unknown, 7 characters", "outcome": "denied", "code": 401}),
            ),
        ),
        (
            "GET /rucio/rses",
            &vec![],
            &Value::Null,
            rucio(json!({"user": "anonymous", "outcome": "denied", "code": 400})),
        ),
        (
            "POST /v1/lvg/narrow-reservation",
            &eve,
            &empty,
            Some(json!({"surface": "extender", "user": "eve", "outcome": "denied", "code": 403})),
        ),
        (
            "POST /v1/lvg/narrow-reservation",
            &admin,
            &empty,
            Some(json!({"surface": "extender", "user": "admin", "verb": "create"})),
        ),
        ("GET /v1/lvg/reservations", &eve, &Value::Null, None),
        (
            "POST /scheduler/filter",
            &stranger,
            &empty,
            Some(json!({"surface": "scheduler", "user": "anonymous", "outcome": "denied"})),
        ),
        (
            "GET /mainstay/v1/namespaces/default/instances/x/log",
            &stranger,
            &Value::Null,
            Some(json!({"surface": "logs", "user": "anonymous", "outcome": "denied", "code": 401})),
        ),
        (
            "POST /mainstay.agents.v1.Agents/Connect",
            &stranger,
            &Value::Null,
            Some(
                json!({"surface": "agents", "user": "anonymous", "outcome": "denied", "code": 401}),
            ),
        ),
        ("GET /mainstay/v1/sessions/pools", &admin, &Value::Null, None),
    ];
    let mut seen = lines(folder.path()).len();
    for (request, headers, body, expected) in cases {
        let code = send(&server, request, headers, body);
        let all = lines(folder.path());
        let new = &all[seen..];
        seen = all.len();
        let Some(expected) = expected else {
            assert_eq!(new, [] as [Value; 0], "{request}: {code}");
            continue;
        };
        assert_eq!(new.len(), 1, "{request}: {code} {new:?}");
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&new[0][name], value, "{request}: {code} {name} in {}", new[0]);
        }
        assert!(!new[0].to_string().contains("hidden"), "{}", new[0]);
    }
}

#[test]
fn the_stream_of_an_agent_leaves_a_line_that_names_its_node() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &["--gateway-ports", "none"]);
    let _agent = TestAgent::simulated(&server, 1, &[]);
    let line = until("a line about the stream", || {
        lines(folder.path()).into_iter().find(|line| line["surface"] == "agents")
    });
    let node = line["name"].as_str().unwrap_or_default();
    assert!(node.starts_with("sim"), "{line}");
    assert_eq!((&line["outcome"], &line["resource"]), (&json!("allowed"), &json!("agentstreams")));
    assert_eq!(line["role"], "node", "{line}");
}
