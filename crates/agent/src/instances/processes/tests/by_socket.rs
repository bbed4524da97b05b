//! The session service, by hand over its socket and by the example of its manual.

use tokio::net::UnixStream;

use super::*;

/// Asks the service; gives the status and the body.
async fn ask(node: &Node, name: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let place = service::place(&node.shared.options.folder.join("sockets"), &id(name));
    let mut stream = UnixStream::connect(place).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn serviced(name: &str, text: &str) -> Start {
    let mut start = script(name, text);
    start.process.using_node_session_service = true;
    start
}

#[tokio::test]
async fn a_session_opens_and_closes_when_its_instance_reports_it() {
    let mut node = Node::new();
    node.start(serviced("a", "sleep 1000")).await.unwrap();
    node.until("a", InstancePhase::Running).await;
    let (_, body) = ask(&node, "a", "GET", "/v1/session", "").await;
    assert_eq!(body, r#"{"number":0,"state":"none"}"#);
    for path in ["/v1/session/open", "/v1/session/closed"] {
        assert_eq!(ask(&node, "a", "POST", path, "").await.0, 409, "there is no session");
    }
    node.open(open("s", "a")).await.unwrap();
    node.session("s", SessionPhase::Initializing).await;
    let (_, body) = ask(&node, "a", "GET", "/v1/session?after=0", "").await;
    assert_eq!(body, r#"{"number":1,"state":"open","session":"s","data":"data of s"}"#);
    assert_eq!(ask(&node, "a", "POST", "/v1/session/open", "").await.0, 204);
    node.session("s", SessionPhase::Open).await;
    assert_eq!(ask(&node, "a", "POST", "/v1/session/open", "").await.0, 204, "twice is fine");

    assert_eq!(ask(&node, "a", "PUT", "/v1/clients", r#"["x","y","x"]"#).await.0, 204);
    let first = node.report().sessions[0].clients.clone();
    assert_eq!(first.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(ask(&node, "a", "PUT", "/v1/clients", r#"["y","z"]"#).await.0, 204);
    let second = node.report().sessions[0].clients.clone();
    assert_eq!(second[0], first[1], "who stays keeps the time of joining");
    assert_eq!(ask(&node, "a", "PUT", "/v1/clients", "{}").await.0, 400);
    assert_eq!(ask(&node, "a", "POST", "/v1/health", "").await.0, 204);
    assert_eq!(ask(&node, "a", "POST", "/v1/session", "").await.0, 405);
    assert_eq!(ask(&node, "a", "GET", "/v2", "").await.0, 404);
    assert_eq!(ask(&node, "a", "GET", "/v1/session?after=x", "").await.0, 400);

    node.close(close("s", "a", 600)).await.unwrap();
    let (_, body) = ask(&node, "a", "GET", "/v1/session?after=1", "").await;
    assert!(
        body.contains(r#""state":"closing""#) && body.contains(r#""graceSeconds":600"#),
        "{body}"
    );
    assert_eq!(ask(&node, "a", "POST", "/v1/session/closed", "").await.0, 204);
    assert_eq!(node.session("s", SessionPhase::Closed).await.reason, reason::CLEAN);

    // The second time it says nothing.
    node.open(open("t", "a")).await.unwrap();
    node.close(close("t", "a", 0)).await.unwrap();
    assert_eq!(node.session("t", SessionPhase::Closed).await.reason, reason::GRACE_EXCEEDED);
}

#[tokio::test]
async fn a_silent_instance_is_reported() {
    let mut node = Node::with(|options| options.ping = Duration::from_millis(20));
    node.start(serviced("a", "sleep 1000")).await.unwrap();
    node.until("a", InstancePhase::Running).await;
    node.open(open("s", "a")).await.unwrap();
    let state = node.session("s", SessionPhase::NoHeartbeat).await;
    assert_eq!(state.message, "the instance missed more than 3 pings");
    node.close(close("s", "a", 0)).await.unwrap();
    node.session("s", SessionPhase::Closed).await;
}

#[tokio::test]
async fn the_example_of_the_manual_works_and_survives_the_agent() {
    let manual = include_str!("../../../../../../docs/sessions-service.md");
    let code = manual.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("instance.py");
    fs::write(&place, code).unwrap();
    let options = Options::new(folder.path().join("state"), "127.0.0.1");
    let mut node = Node::on(options.clone());
    let text = format!("exec python3 {}", place.display());
    node.start(serviced("game", &text)).await.unwrap();
    node.open(open("s", "game")).await.unwrap();
    node.session("s", SessionPhase::Open).await;
    eventually("a client", || node.report().sessions[0].clients.len() == 1).await;

    node.shutdown().await;
    node.keep();
    let mut node = Node::on(options);
    assert_eq!(node.report().sessions[0].clients[0].id, "alice");
    node.close(close("s", "game", 600)).await.unwrap();
    assert_eq!(node.session("s", SessionPhase::Closed).await.reason, reason::CLEAN);
    node.open(open("t", "game")).await.unwrap();
    node.session("t", SessionPhase::Open).await;
}
