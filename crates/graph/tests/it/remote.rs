//! The engine over REST and gRPC.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use mainstay_graph::grpc::{self, GraphClient, HealthRequest, StatusRequest, TransactionRequest};
use mainstay_graph::{ManualClock, Options, Transaction, rest};
use serde_json::{Value as Json, json};
use tower::ServiceExt;

use crate::south::{Running, Thing};

async fn running() -> Running {
    let running = Running::start(Options::default());
    let mut base = Thing::new(1);
    base.parts.insert("x".into(), Vec::new());
    let first = Transaction::new()
        .set_typed("thing/a", base)
        .set_typed("thing/b", Thing::needing(2, &["thing/none"]))
        .description("first");
    running.engine.commit(first).await.unwrap();
    running.engine.commit(Transaction::new().set_typed("thing/c", Thing::new(3))).await.unwrap();
    running
}

async fn ask(running: &Running, method: &str, path: &str, body: &str) -> (StatusCode, String) {
    let request =
        Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let answer = rest::router(running.engine.clone()).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(running: &Running, path: &str) -> Json {
    let (status, body) = ask(running, "GET", &format!("/scheduler/{path}"), "").await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    serde_json::from_str(&body).unwrap_or(Json::String(body))
}

#[tokio::test]
async fn rest_serves_every_resource() {
    let running = running().await;
    let length = |json: &Json| json.as_array().map_or(0, Vec::len);
    assert_eq!(length(&get(&running, "txn-history").await), 2);
    assert_eq!(get(&running, "txn-history?seq-num=0").await["description"], "first");
    assert_eq!(length(&get(&running, "txn-history?until=1000").await), 0);
    assert!(
        get(&running, "txn-history?format=text").await.as_str().unwrap().contains("Transaction #1")
    );
    assert_eq!(length(&get(&running, "key-timeline?key=thing/a").await), 1);
    for path in ["graph-snapshot", "graph-snaphost"] {
        assert_eq!(length(&get(&running, path).await), 4);
    }
    assert_eq!(get(&running, "flag-stats?flag=value-state&prefix=thing/a").await["total"], 2);
    assert_eq!(get(&running, "dump").await["Descriptors"], json!(["thing"]));
    assert_eq!(get(&running, "dump").await["Views"], json!(["NB", "SB", "internal"]));
    for view in ["NB", "internal", "cached", "SB"] {
        let expected = if view == "NB" { 3 } else { 2 };
        assert_eq!(
            length(&get(&running, &format!("dump?descriptor=thing&view={view}")).await),
            expected,
            "{view}"
        );
    }
    assert_eq!(length(&get(&running, "dump?key-prefix=thing/").await), 2);
    assert_eq!(length(&get(&running, "status").await), 3);
    assert_eq!(length(&get(&running, "status?descriptor=thing").await), 3);
    assert_eq!(get(&running, "status?key=thing/b").await["details"], json!(["thing/none"]));
    let health = get(&running, "health").await;
    assert_eq!(health, json!({"accepts": true, "journalled": false}));
    let stats = get(&running, "stats").await;
    assert_eq!(stats["values"], 4);
    assert_eq!(stats["descriptors"]["thing"]["CREATE"]["count"], 3);
    assert_eq!(stats["descriptors"]["thing"], stats["operations"]);
    assert!(get(&running, "metrics").await.as_str().unwrap().contains("mainstay_graph_values 4"));
    let dot = get(&running, "graph?format=dot").await;
    assert!(dot.as_str().unwrap().starts_with("digraph"));
    let svg = get(&running, "graph?txn=0").await;
    assert!(svg.as_str().unwrap().starts_with("<svg") && svg.as_str().unwrap().contains("Gold"));
    running.stop().await;
}

#[tokio::test]
async fn rest_refuses_bad_requests_with_a_reason() {
    let running = running().await;
    for (path, status) in [
        ("graph?txn=x", 400),
        ("graph?txn=99", 404),
        ("graph?colour=red", 400),
        ("graph?format=png", 400),
        ("graph?txn=0&txn=1", 400),
        ("graph?txn=%zz", 400),
        ("graph-snapshot?time=noon", 400),
        ("graph-snaphost?time=noon", 400),
        ("graph-snapshot?time=2020-01-01T00:00:00Z", 410),
        ("graph-snaphost?time=2020-01-01T00:00:00Z", 410),
        ("key-timeline?key=thing/a&time=2020-01-01T00:00:00Z", 410),
        ("health?verbose=1", 400),
        ("key-timeline?key=", 400),
        ("key-timeline?key=thing/a&time=99999999999999999999999999999", 400),
        ("status?key=thing/a&descriptor=thing", 400),
        ("stats?verbose=1", 400),
        ("metrics?verbose=1", 400),
        ("txn-history?until=-", 400),
        ("txn-history?format=xml", 400),
        ("txn-history?seq-num=99", 404),
        ("txn-history?since=yesterday", 400),
        ("key-timeline", 400),
        ("flag-stats", 400),
        ("flag-stats?flag=colour", 400),
        ("dump?descriptor=nobody", 404),
        ("dump?key-prefix=/nowhere/", 404),
        ("dump?descriptor=thing&view=upside-down", 400),
        ("dump?descriptor=thing&key-prefix=thing/", 400),
        ("status?descriptor=nobody", 404),
    ] {
        let (found, body) = ask(&running, "GET", &format!("/scheduler/{path}"), "").await;
        assert_eq!(found.as_u16(), status, "{path}: {body}");
        assert!(body.trim().len() > 5, "{path} gives no reason");
    }
    let value = r#"{"thing/z": {"number": 1, "needs": [], "parts": {}}}"#;
    for (path, body, reason) in [
        ("downstream-resync?retry=maybe", "", "1, true, 0 or false"),
        ("downstream-resync?force=1", "", "retry, verbose"),
        ("commit", r#"{"sett": {}}"#, "sett"),
        ("commit", "", "EOF"),
        ("commit", r#"{"delete": [""]}"#, "a key is empty"),
        ("commit", r#"{"resync": "sideways"}"#, "sideways"),
        ("commit", r#"{"resync": "full", "on-failure": "revert"}"#, "cannot be reverted"),
        ("commit", &format!(r#"{{"resync": "downstream", "set": {value}}}"#), "takes no values"),
        ("commit", r#"{"retry": {"period": "soon"}}"#, "like 3s"),
        ("commit", r#"{"retry": {"period": -1}}"#, "like 3s"),
        ("commit", r#"{"retry": {"period": "3s", "period-ms": 3000}}"#, "not both"),
        ("commit", r#"{"retry": {"period": 0, "max": 0}}"#, "retry.period is 0"),
        ("commit", r#"{"retry": {"period-ms": 0}}"#, "retry.period is 0"),
        ("plan", r#"{"retry": {"period": "0s"}}"#, "retry.period is 0"),
        ("commit", r#"{"set": {"thing/a/x": {}}}"#, "thing/a/x is derived from thing/a"),
        ("commit?wait=1", r#"{"delete": ["thing/a/x"]}"#, "change thing/a instead"),
        ("plan", r#"{"delete": ["thing/a/x"]}"#, "thing/a/x is derived from thing/a"),
        ("commit?wait=long", r#"{}"#, "must be a number"),
        ("commit?durable=later", r#"{}"#, "1, true, 0 or false"),
        ("plan", r#"{"set": []}"#, "expected a map"),
        ("plan?wait=1", r#"{}"#, "wait is not an argument"),
    ] {
        let (status, said) = ask(&running, "POST", &format!("/scheduler/{path}"), body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {said}");
        assert!(said.contains(reason), "{path} {body}: {said}");
    }
    assert_eq!(running.engine.history(None, None).len(), 2, "nothing was done");
    running.stop().await;
}

#[tokio::test]
async fn rest_plans_commits_and_resyncs() {
    let running = running().await;
    let change = r#"{"set": {"thing/none": {"number": 7, "needs": [], "parts": {}}}}"#;
    let (status, plan) = ask(&running, "POST", "/scheduler/plan", change).await;
    assert_eq!(status, StatusCode::OK, "{plan}");
    assert_eq!(running.south.values().len(), 3);
    let (status, record) =
        ask(&running, "POST", "/scheduler/commit?wait=5&durable=1", change).await;
    assert_eq!(status, StatusCode::OK, "{record}");
    let record: Json = serde_json::from_str(&record).unwrap();
    assert_eq!(record["executed"], serde_json::from_str::<Json>(&plan).unwrap());
    running.south.with(|south| south.values.remove("thing/c"));
    let (_, record) =
        ask(&running, "POST", "/scheduler/downstream-resync?retry=1&verbose=true", "").await;
    let record: Json = serde_json::from_str(&record).unwrap();
    assert_eq!(record["transaction"]["executed"][0]["key"], "thing/c");
    let retrieved = record["graph"].as_str().unwrap();
    let line = retrieved.lines().find(|line| line.contains("thing/c")).unwrap();
    assert!(line.contains("MISSING"), "the graph is shown as it was retrieved: {line}");
    running.stop().await;
}

#[tokio::test]
async fn rest_tells_everything_about_a_failed_commit() {
    let running = running().await;
    for key in ["thing/y", "thing/z"] {
        running.south.with(|south| south.fail_on.insert(("create", key.into())));
    }
    let value = r#"{"number": 1, "needs": [], "parts": {}}"#;
    let set = format!(r#"{{"thing/x": {value}, "thing/y": {value}, "thing/z": {value}}}"#);
    let body = format!(r#"{{"set": {set}, "on-failure": "best-effort"}}"#);
    let (status, answer) = ask(&running, "POST", "/scheduler/commit", &body).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    let answer: Json = serde_json::from_str(&answer).unwrap();
    let seq = &answer["seq"];
    let expected =
        format!("transaction {seq} failed: CREATE thing/y: refused; CREATE thing/z: refused");
    assert_eq!(answer["error"], expected);
    let keys = |field: &str| -> Vec<Json> {
        answer[field].as_array().unwrap().iter().map(|one| one["key"].clone()).collect()
    };
    assert_eq!(keys("executed"), ["thing/x", "thing/y", "thing/z"]);
    assert_eq!(keys("errors"), ["thing/y", "thing/z"]);
    assert_eq!(keys("status"), ["thing/x", "thing/y", "thing/z"]);
    assert_eq!(answer["status"][0]["state"], "CONFIGURED");
    assert_eq!(answer["status"][1]["state"], "FAILED");

    let body = format!(r#"{{"set": {{"thing/w": {value}, "thing/z": {value}}}}}"#);
    let (status, answer) = ask(&running, "POST", "/scheduler/commit?wait=5", &body).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    let answer: Json = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["reverted"], true);
    assert_eq!(answer["status"][0]["state"], "NONEXISTENT", "{answer}");
    running.stop().await;
}

#[tokio::test]
async fn a_commit_that_waits_in_vain_tells_what_was_done() {
    let running = running().await;
    let body = r#"{"set": {"thing/d": {"number": 1, "needs": ["thing/none"], "parts": {}}}}"#;
    let (status, answer) = ask(&running, "POST", "/scheduler/commit?wait=0", body).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{answer}");
    let answer: Json = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["error"], "thing/d is not configured yet");
    assert_eq!(answer["executed"][0]["new_state"], "PENDING");
    assert_eq!(answer["status"][0]["details"], json!(["thing/none"]));
    running.stop().await;
}

#[tokio::test]
async fn rest_rolls_back_and_sets_labels() {
    let running = running().await;
    let body = r#"{"set": {"thing/d": {"number": 1, "needs": [], "parts": {}}},
        "labels": {"thing/d": {"owner": "net"}}}"#;
    let (status, answer) = ask(&running, "POST", "/scheduler/commit", body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(get(&running, "status?key=thing/d").await["labels"], json!({"owner": "net"}));
    let stray = r#"{"labels": {"thing/d": {}}}"#;
    let (status, answer) = ask(&running, "POST", "/scheduler/commit", stray).await;
    assert_eq!((status, answer.trim()), (StatusCode::BAD_REQUEST, "labels: thing/d is not in set"));

    let (status, answer) = ask(&running, "POST", "/scheduler/roll-back?seq-num=1", "").await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(get(&running, "status?key=thing/d").await["state"], "NONEXISTENT");
    for (path, code) in [("roll-back", 400), ("roll-back?seq-num=99", 404)] {
        let (status, answer) = ask(&running, "POST", &format!("/scheduler/{path}"), "").await;
        assert_eq!(status.as_u16(), code, "{answer}");
    }
    let (status, _) = ask(&running, "GET", "/scheduler/", "").await;
    assert_eq!(status, StatusCode::TEMPORARY_REDIRECT);
    running.stop().await;
}

#[tokio::test]
async fn rest_streams_the_status_and_its_changes() {
    use futures_util::StreamExt;

    let running = running().await;
    let request = Request::get("/scheduler/watch?key-prefix=thing/b").body(Body::empty()).unwrap();
    let answer = rest::router(running.engine.clone()).oneshot(request).await.unwrap();
    let mut pieces = answer.into_body().into_data_stream();
    let mut next = async || {
        let piece = pieces.next().await?.unwrap();
        Some(serde_json::from_slice::<Json>(&piece).unwrap())
    };
    let first = next().await.unwrap();
    assert_eq!((&first["key"], &first["state"]), (&json!("thing/b"), &json!("PENDING")));
    let needed = Transaction::new().set_typed("thing/none", Thing::new(7));
    running.engine.commit(needed).await.unwrap();
    assert_eq!(next().await.unwrap()["state"], "CONFIGURED");
    let (status, _) = ask(&running, "GET", "/scheduler/watch?key=a&key-prefix=b", "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    running.stop().await;
    assert_eq!(next().await, None, "the stream ends with the engine");
}

#[tokio::test]
async fn rest_accepts_every_form_of_a_retry_period() {
    for (sent, milliseconds) in [
        (r#"{"period": "3s"}"#, 3_000),
        (r#"{"period": "250ms", "max": 1}"#, 250),
        (r#"{"period": 2, "backoff": false}"#, 2_000),
        (r#"{"period-ms": 1500}"#, 1_500),
        (r#"{"max": 7}"#, 1_000),
    ] {
        let start: jiff::Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let clock = ManualClock::new(start);
        let running = Running::start(Options::default().clock(clock));
        running.south.with(|south| south.fail_on.insert(("create", "thing/z".into())));
        let body = format!(
            r#"{{"set": {{"thing/z": {{"number": 1, "needs": [], "parts": {{}}}}}},
                "on-failure": "best-effort", "retry": {sent}}}"#
        );
        let (status, said) = ask(&running, "POST", "/scheduler/commit", &body).await;
        assert_eq!(status, StatusCode::CONFLICT, "{sent}: {said}");
        let wait = running.engine.next_retry().unwrap().duration_since(start);
        assert_eq!(wait.as_millis(), milliseconds, "{sent}");
        running.stop().await;
    }
}

#[tokio::test]
async fn grpc_commits_plans_and_watches() {
    let running = running().await;
    let mut client = GraphClient::new(grpc::server(running.engine.clone()));
    let request = StatusRequest { key: "thing/b".into(), ..Default::default() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap().status.unwrap();
    assert_eq!((first.state.as_str(), first.details), ("PENDING", vec!["thing/none".to_owned()]));
    let change = TransactionRequest {
        set: [("thing/none".to_owned(), r#"{"number": 7, "needs": [], "parts": {}}"#.to_owned())]
            .into(),
        ..Default::default()
    };
    let plan = client.plan(change.clone()).await.unwrap().into_inner();
    let reply = client.commit(change).await.unwrap().into_inner();
    assert_eq!(plan.operations, reply.executed);
    assert_eq!(reply.seq, 2);
    assert_eq!(watch.message().await.unwrap().unwrap().status.unwrap().state, "CONFIGURED");
    let health = client.health(HealthRequest {}).await.unwrap().into_inner();
    assert!(health.accepts && health.reason.is_empty());
    let all = client
        .status(StatusRequest { key_prefix: "thing/".into(), ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.values.len(), 4);
    let labelled = TransactionRequest {
        set: [("thing/l".to_owned(), r#"{"number": 8, "needs": [], "parts": {}}"#.to_owned())]
            .into(),
        labels: [(
            "thing/l".to_owned(),
            grpc::Labels { labels: [("a".into(), "b".into())].into() },
        )]
        .into(),
        ..Default::default()
    };
    client.commit(labelled).await.unwrap();
    assert_eq!(running.engine.status("thing/l").labels["a"], "b");
    client.roll_back(grpc::RollBackRequest { seq: Some(2) }).await.unwrap();
    assert_eq!(running.engine.status("thing/l").state.name(), "NONEXISTENT");
    let unknown = client.roll_back(grpc::RollBackRequest { seq: Some(99) }).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    let unnamed = client.roll_back(grpc::RollBackRequest::default()).await.unwrap_err();
    assert_eq!(unnamed.code(), tonic::Code::InvalidArgument, "0 is a transaction");
    for (resync, on_failure, field) in [(9999, 0, "resync"), (0, 9999, "on_failure")] {
        let request = TransactionRequest { resync, on_failure, ..Default::default() };
        let refused = client.commit(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(&format!("{field}: 9999")), "{refused}");
    }
    let bad = TransactionRequest {
        set: [("thing/x".to_owned(), "{".to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(client.commit(bad).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let restless = TransactionRequest { retry: Some(grpc::Retry::default()), ..Default::default() };
    let derived = TransactionRequest { delete: vec!["thing/a/x".into()], ..Default::default() };
    for (request, reason) in
        [(restless, "retry.period is 0"), (derived, "thing/a/x is derived from thing/a")]
    {
        let refused = client.commit(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(reason), "{refused}");
        assert_eq!(client.plan(request).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    running.stop().await;
}

#[tokio::test]
async fn grpc_is_served_over_a_socket() {
    let running = running().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = grpc::router(running.engine.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = GraphClient::new(channel.connect().await.unwrap());
    let all = client.status(StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!(all.values.len(), 3);
    server.abort();
    running.stop().await;
}
