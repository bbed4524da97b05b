//! The audit log: which requests leave a line, what is in it, and when it is written.

use std::path::Path;

use http::Request;
use http_body_util::Full;
use mainstay_server::AuditNote;
use mainstay_server::audit::{Destination, Policy, Settings};
use mainstay_store::clock::SystemClock;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::client::{Client, Host};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A dialect with users of its own, and one without.
fn routes() -> axum::Router {
    let own = |note: axum::Extension<AuditNote>, headers: http::HeaderMap| async move {
        note.object("books", "one");
        match headers.get("x-account") {
            Some(account) => {
                note.account(account.to_str().unwrap());
                http::StatusCode::CREATED
            }
            None => {
                note.claimed("mallory");
                http::StatusCode::UNAUTHORIZED
            }
        }
    };
    let things = |_: bytes::Bytes| async { http::StatusCode::CREATED };
    let search = |note: axum::Extension<AuditNote>| async move { note.changes(false) };
    // As tonic refuses a call: 200, and the status among the headers.
    let connect = |note: axum::Extension<AuditNote>| async move {
        note.object("agentstreams", "n2");
        [("grpc-status", "7")]
    };
    axum::Router::new()
        .route("/mainstay.agents.v1.Agents/Connect", axum::routing::post(connect))
        .route("/own/books", axum::routing::any(own))
        .route("/other/things", axum::routing::any(things))
        .route("/other/search", axum::routing::post(search))
        .route("/other/wait", axum::routing::post(std::future::pending::<()>))
        .route("/rucio/rules", axum::routing::post(things))
        .route("/rucio/replicas/list", axum::routing::post(search))
        .route("/rucio/accounts/{name}", axum::routing::post(std::future::pending::<()>))
        .route("/rucio/rses/{name}", axum::routing::post(fails))
        .route("/v1/lvg/narrow-reservation", axum::routing::post(things))
        .route("/scheduler/filter", axum::routing::post(things))
}

async fn fails() -> http::StatusCode {
    panic!("the handler fails")
}

async fn start(change: impl FnOnce(&mut Settings)) -> Host {
    Host::start_with(SystemClock::new(), |options| {
        options.routes = Some(routes());
        options.own_users = vec!["/own"];
        change(&mut options.audit);
    })
    .await
}

async fn send(
    client: &mut Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> http::HeaderMap {
    let mut request = client.request(method, path).header("user-agent", "test/1");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("content-type", "application/json");
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request: Request<Full<bytes::Bytes>> = request.body(Full::new(text.into())).unwrap();
    client.send(request).await.headers
}

#[tokio::test]
async fn every_change_and_every_denial_leaves_one_line_before_its_answer() {
    let host = start(|_| {}).await;
    let viewer = host.token(json!({"role": "viewer", "name": "eve"})).await;
    let (mut admin, mut eve) = (host.client().await, host.client_with(Some(viewer)).await);
    let mut stranger = host.client_with(Some("wrong".to_owned())).await;
    admin.post(MAPS, &map("there")).await.ok();
    let mut seen = lines(host.dir.path()).len();
    let there = format!("{MAPS}/there");
    let other = json!({"metadata": {"name": "other"}});
    let who = json!({"spec": {}});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    // The user, the request with its headers and body, and the line it leaves, if any.
    let (a, e, s) = ("admin", "eve", "anonymous");
    let none: &[(&str, &str)] = &[];
    let as_eve: &[(&str, &str)] = &[("impersonate-user", "eve")];
    let as_admin: &[(&str, &str)] = &[("impersonate-user", "admin")];
    let as_account: &[(&str, &str)] = &[("x-account", "carol")];
    let nothing = Value::Null;
    let dry = json!({"dryRun": ["All"]});
    #[rustfmt::skip]
    let cases = [
        (a, "GET", there.clone(), none, &nothing, None),
        (a, "GET", format!("{MAPS}/missing"), none, &nothing, None),
        (a, "POST", MAPS.into(), none, &other, Some(json!({"verb": "create", "resource": "configmaps", "namespace": "default", "name": "other", "outcome": "allowed", "code": 201, "role": "admin", "surface": "objects"}))),
        (a, "POST", MAPS.into(), none, &other, Some(json!({"verb": "create", "outcome": "failed", "code": 409, "reason": "AlreadyExists"}))),
        (a, "POST", MAPS.into(), none, &nothing, Some(json!({"outcome": "failed", "code": 400}))),
        (a, "POST", format!("{MAPS}?dryRun=All"), none, &json!({"metadata": {"name": "dry"}}), Some(json!({"dryRun": true, "code": 201}))),
        (a, "DELETE", there.clone(), none, &dry, Some(json!({"verb": "delete", "dryRun": true, "code": 200}))),
        (a, "DELETE", MAPS.into(), none, &dry, Some(json!({"verb": "deletecollection", "dryRun": true}))),
        (a, "PUT", there.clone(), none, &json!({"metadata": {"name": "there"}, "data": 5}), Some(json!({"verb": "update", "outcome": "failed"}))),
        (a, "POST", "/apis/nowhere/v1/things".into(), none, &other, Some(json!({"verb": "create", "code": 404, "outcome": "failed", "resource": "things.nowhere"}))),
        (a, "POST", reviews.into(), none, &who, None),
        (a, "PATCH", there.clone(), as_eve, &other, Some(json!({"impersonatedUser": "eve", "code": 403, "outcome": "denied"}))),
        (a, "GET", there.clone(), as_eve, &nothing, None),
        (a, "GET", "/mainstay/v1/tokens".into(), none, &nothing, None),
        (a, "POST", "/mainstay/v1/tokens".into(), none, &json!({"role": "wizard"}), Some(json!({"surface": "tokens", "resource": "tokens", "outcome": "failed"}))),
        (a, "DELETE", "/mainstay/v1/tokens/nope".into(), none, &nothing, Some(json!({"surface": "tokens", "name": "nope", "outcome": "failed", "code": 404}))),
        (a, "POST", "/mainstay/v1/join".into(), none, &json!({"csr": ""}), Some(json!({"surface": "join", "outcome": "denied"}))),
        (a, "GET", "/mainstay/v1/backup".into(), none, &nothing, Some(json!({"surface": "store", "name": "backup", "outcome": "allowed"}))),
        (a, "POST", "/mainstay/v1/store/compact".into(), none, &nothing, Some(json!({"surface": "store", "name": "compact", "outcome": "allowed"}))),
        (a, "POST", "/other/things".into(), none, &nothing, Some(json!({"surface": "other", "code": 201, "requestURI": "/other/things"}))),
        (a, "GET", "/other/things".into(), none, &nothing, None),
        (a, "POST", "/other/search".into(), none, &nothing, None),
        (a, "POST", "/mainstay.agents.v1.Agents/Connect".into(), none, &nothing, Some(json!({"surface": "agents", "resource": "agentstreams", "name": "n2", "code": 403, "outcome": "denied"}))),
        (e, "GET", there.clone(), none, &nothing, None),
        (e, "DELETE", there.clone(), none, &nothing, Some(json!({"verb": "delete", "name": "there", "outcome": "denied", "code": 403, "reason": "Forbidden", "role": "viewer"}))),
        (e, "GET", "/mainstay/v1/tokens".into(), none, &nothing, Some(json!({"verb": "get", "outcome": "denied", "surface": "tokens"}))),
        (e, "GET", "/mainstay/v1/backup".into(), none, &nothing, Some(json!({"outcome": "denied", "surface": "store"}))),
        (e, "GET", there.clone(), as_admin, &nothing, Some(json!({"impersonatedUser": "admin", "outcome": "denied", "code": 403, "namespace": "default", "name": "there"}))),
        (s, "GET", format!("{there}?password=hidden"), none, &nothing, Some(json!({"code": 401, "outcome": "denied", "requestURI": format!("{there}?password=REDACTED"), "resource": "configmaps", "name": "there"}))),
        (e, "DELETE", "/healthz".into(), none, &nothing, Some(json!({"code": 405, "outcome": "failed", "verb": "delete"}))),
        (e, "DELETE", format!("{there}?pass%77ord=hidden"), none, &nothing, Some(json!({"code": 403, "requestURI": format!("{there}?pass%77ord=REDACTED")}))),
        (s, "POST", "/mainstay/v1/join".into(), none, &nothing, Some(json!({"code": 401, "surface": "join"}))),
        (s, "POST", "/own/books".into(), none, &nothing, Some(json!({"code": 401, "surface": "other", "claimedUser": "mallory", "resource": "books"}))),
        ("carol", "POST", "/own/books".into(), as_account, &nothing, Some(json!({"code": 201, "account": "carol", "outcome": "allowed", "resource": "books", "name": "one"}))),
    ];
    for (user, method, path, headers, body, expected) in cases {
        let client = match user {
            "admin" => &mut admin,
            "eve" => &mut eve,
            _ => &mut stranger,
        };
        let answer = send(client, method, &path, headers, body).await;
        let all = lines(host.dir.path());
        let new = &all[seen..];
        seen = all.len();
        let Some(expected) = expected else {
            assert_eq!(new, [] as [Value; 0], "{user} {method} {path}");
            continue;
        };
        assert_eq!(new.len(), 1, "{user} {method} {path}: {new:?}");
        let line = &new[0];
        assert_eq!(line["user"], user, "{line}");
        assert_eq!(line["userAgent"], "test/1", "{line}");
        assert_eq!(answer["audit-id"].to_str().unwrap(), line["auditID"], "{line}");
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&line[name], value, "{user} {method} {path}: {name} in {line}");
        }
        assert!(!line.to_string().contains("hidden"), "{line}");
    }
    host.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_answer_leaves_a_line() {
    let host = start(|_| {}).await;
    let mut gone = host.connect(None).await;
    let head = format!(
        "POST /other/wait HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        host.token
    );
    gone.write_all(head.as_bytes()).await.unwrap();
    let mut admin = host.client().await;
    // The request is under way, with the one that asks.
    loop {
        let metrics = admin.get("/metrics").await;
        let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
        if metrics.contains("mainstay_http_requests_in_flight 2") {
            break;
        }
    }
    gone.shutdown().await.unwrap();
    drop(gone);
    let line = loop {
        admin.get(MAPS).await.ok();
        if let Some(line) = lines(host.dir.path()).pop() {
            break line;
        }
    };
    assert_eq!((&line["code"], &line["outcome"]), (&json!(499), &json!("unknown")), "{line}");
    assert_eq!(line["requestURI"], "/other/wait");
    host.stop().await;
}

#[tokio::test]
async fn with_both_stages_a_change_has_a_line_before_it_is_made() {
    let host = start(|settings| {
        settings.policy = serde_json::from_value::<Policy>(json!({
            "received": true,
            "rules": [{"kinds": ["configmaps"], "changes": true, "level": "Metadata", "received": false}],
        }))
        .unwrap();
    })
    .await;
    let mut waiting = host.connect(None).await;
    let head = format!(
        "POST /other/wait HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        host.token
    );
    waiting.write_all(head.as_bytes()).await.unwrap();
    let mut admin = host.client().await;
    let first = loop {
        admin.get(MAPS).await.ok();
        if let Some(line) = lines(host.dir.path()).pop() {
            break line;
        }
    };
    assert_eq!((&first["stage"], &first["user"]), (&json!("RequestReceived"), &json!("admin")));
    assert_eq!((&first["code"], &first["outcome"]), (&Value::Null, &Value::Null), "{first}");
    assert_eq!(first["requestURI"], "/other/wait");
    drop(waiting);
    let last = loop {
        admin.get(MAPS).await.ok();
        let mut all = lines(host.dir.path());
        if all.len() > 1 {
            break all.remove(1);
        }
    };
    assert_eq!((&last["stage"], &last["code"]), (&json!("ResponseComplete"), &json!(499)));
    assert_eq!(last["auditID"], first["auditID"]);
    admin.post(MAPS, &map("a")).await.ok();
    let all = lines(host.dir.path());
    assert_eq!(all.len(), 3, "a rule may do without: {all:?}");
    assert_eq!(all[2]["stage"], Value::Null);
    host.stop().await;
}

/// A request by hand, on a connection of its own: a client library insists on an answer.
async fn send_head(host: &Host, method: &str, path: &str) -> impl AsyncWriteExt + Unpin + use<> {
    let mut connection = host.connect(None).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        host.token
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// Waits until the log has so many lines.
async fn until_lines(host: &Host, count: usize) -> Vec<Value> {
    let mut admin = host.client().await;
    loop {
        let all = lines(host.dir.path());
        if all.len() >= count {
            return all;
        }
        // A round trip gives the writer time; reads leave no line.
        admin.get(MAPS).await.ok();
    }
}

#[tokio::test]
async fn every_first_line_has_a_second_one_on_every_surface() {
    // Rules by kind have to match the first line as well as the second.
    let kinds = [
        "configmaps",
        "tokens",
        "nodecertificates",
        "authorities",
        "store",
        "rucio/*",
        "agentstreams",
        "reservations",
        "scheduler",
    ];
    let host = start(|settings| {
        settings.policy = serde_json::from_value::<Policy>(json!({
            "rules": [{"kinds": kinds, "changes": true, "level": "Metadata", "received": true}],
        }))
        .unwrap();
    })
    .await;
    let mut admin = host.client().await;
    let map = map("a");
    let viewer = json!({"role": "viewer", "name": "eve"});
    let empty = json!({});
    let mut seen = 0;
    for (method, path, body, resource, code) in [
        ("POST", MAPS, &map, "configmaps", 201),
        ("POST", MAPS, &map, "configmaps", 409),
        ("POST", "/mainstay/v1/tokens", &viewer, "tokens", 201),
        ("DELETE", "/mainstay/v1/tokens/nope", &empty, "tokens", 404),
        ("POST", "/mainstay/v1/join", &empty, "nodecertificates", 403),
        ("POST", "/mainstay/v1/nodes/n1/revoke", &empty, "nodecertificates", 200),
        ("POST", "/mainstay/v1/authority/nowhere", &empty, "authorities", 404),
        ("POST", "/mainstay/v1/store/compact", &empty, "store", 200),
        ("GET", "/mainstay/v1/backup", &empty, "store", 200),
        ("POST", "/rucio/rules", &empty, "rucio/rules", 201),
        ("POST", "/mainstay.agents.v1.Agents/Connect", &empty, "agentstreams", 403),
        ("POST", "/v1/lvg/narrow-reservation", &empty, "reservations", 201),
        ("POST", "/scheduler/filter", &empty, "scheduler", 201),
    ] {
        send(&mut admin, method, path, &[], body).await;
        let all = lines(host.dir.path());
        let [first, second] = &all[seen..] else { panic!("{method} {path}: {:?}", &all[seen..]) };
        seen = all.len();
        assert_eq!(first["stage"], "RequestReceived", "{path}: {first}");
        assert_eq!((&second["stage"], &second["code"]), (&json!("ResponseComplete"), &json!(code)));
        assert_eq!((&first["resource"], &second["resource"]), (&json!(resource), &json!(resource)));
        assert_eq!(first["auditID"], second["auditID"], "{path}");
    }
    // A question changes nothing and leaves no line, though it is asked by POST.
    send(&mut admin, "POST", "/rucio/replicas/list", &[], &empty).await;
    assert_eq!(lines(host.dir.path()).len(), seen, "a question");
    // A client that goes away, and a handler that panics.
    let gone = send_head(&host, "POST", "/rucio/accounts/eve").await;
    until_lines(&host, seen + 1).await;
    drop(gone);
    let all = until_lines(&host, seen + 2).await;
    let _failed = send_head(&host, "POST", "/rucio/rses/SITE").await;
    let all = [&all[..], &until_lines(&host, seen + 4).await[seen + 2..]].concat();
    for (line, stage, code, resource) in [
        (&all[seen], "RequestReceived", Value::Null, "rucio/accounts"),
        (&all[seen + 1], "ResponseComplete", json!(499), "rucio/accounts"),
        (&all[seen + 2], "RequestReceived", Value::Null, "rucio/rses"),
        (&all[seen + 3], "ResponseComplete", json!(500), "rucio/rses"),
    ] {
        assert_eq!(
            (&line["stage"], &line["code"], &line["resource"]),
            (&json!(stage), &code, &json!(resource)),
            "{line}"
        );
    }
    host.stop().await;
}

#[tokio::test]
async fn denials_of_unknown_users_are_counted_and_not_written_one_by_one() {
    let host = start(|_| {}).await;
    let mut stranger = host.client_with(Some("wrong".to_owned())).await;
    for number in 0..50 {
        stranger.get(&format!("{MAPS}/{number}")).await.refused(401, "Unauthorized");
    }
    let mut admin = host.client().await;
    admin.post(MAPS, &map("a")).await.ok();
    let metrics = admin.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    assert!(metrics.contains("mainstay_audit_folded_total 49"), "{metrics}");
    let dir = host.stop().await;
    let all = lines(dir.path());
    let denials: Vec<_> = all.iter().filter(|line| line["code"] == 401).collect();
    assert_eq!(denials.len(), 2, "{all:?}");
    assert_eq!((&denials[1]["folded"], &denials[1]["user"]), (&json!(49), &json!("anonymous")));
    assert_eq!(denials[1]["surface"], "objects");
}

#[tokio::test]
async fn a_policy_decides_what_is_written_and_secrets_are_not() {
    let host = start(|settings| {
        settings.policy = serde_json::from_value::<Policy>(json!({"rules": [
            {"kinds": ["configmaps"], "verbs": ["create", "patch"], "level": "Request"},
            {"kinds": ["configmaps"], "verbs": ["delete"], "level": "None"},
            {"verbs": ["list"], "users": ["adm*"], "level": "Metadata"},
            {"surfaces": ["tokens", "other"], "level": "Request"},
        ]}))
        .unwrap();
    })
    .await;
    let mut admin = host.client().await;
    let sent = json!({"metadata": {"name": "a"}, "data": {"a": "1", "password": "hidden"}});
    admin.post(MAPS, &sent).await.ok();
    admin.merge(&format!("{MAPS}/a"), &json!({"data": {"b": "2"}})).await.ok();
    admin.get(MAPS).await.ok();
    admin.get(&format!("{MAPS}/a")).await.ok();
    admin.delete(&format!("{MAPS}/a")).await.ok();
    admin.post("/mainstay/v1/tokens", &json!({"role": "viewer", "name": "eve"})).await.ok();
    admin.post("/other/things", &json!({"token": "hidden", "x": 1})).await;
    let dir = host.stop().await;
    let all = lines(dir.path());
    let brief: Vec<_> =
        all.iter().map(|line| (line["verb"].as_str().unwrap(), &line["request"])).collect();
    let shown = json!({"metadata": {"name": "a"}, "data": {"a": "1", "password": "REDACTED"}});
    assert_eq!(
        brief,
        [
            ("create", &shown),
            ("patch", &json!({"data": {"b": "2"}})),
            ("list", &Value::Null),
            ("create", &json!({"role": "viewer", "name": "eve"})),
            ("create", &json!({"token": "REDACTED", "x": 1})),
        ]
    );
    assert!(!json!(all).to_string().contains("hidden"));
}

#[tokio::test]
async fn lines_go_to_every_sink_and_a_given_identity_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("log");
    let bound = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let file = folder.path().join("elsewhere.log");
    let sinks = [format!("file:{}", file.display()), format!("syslog:unix://{}", socket.display())];
    let host = start(|settings| {
        settings.sinks = sinks.iter().map(|sink| sink.parse::<Destination>().unwrap()).collect();
    })
    .await;
    let mut admin = host.client().await;
    let given: &[(&str, &str)] = &[("audit-id", "my-own-1")];
    let answer = send(&mut admin, "POST", MAPS, given, &map("a")).await;
    assert_eq!(answer["audit-id"], "my-own-1");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"auditID\":\"my-own-1\""), "{text}");
    let mut message = [0; 4096];
    let length = bound.recv(&mut message).unwrap();
    let message = String::from_utf8_lossy(&message[..length]).into_owned();
    assert!(message.starts_with("<109>1 ") && message.ends_with(text.trim_end()), "{message}");
    assert!(!host.dir.path().join("audit.log").exists());
    let forged: &[(&str, &str)] = &[("audit-id", "a\"b c")];
    let answer = send(&mut admin, "POST", MAPS, forged, &map("b")).await;
    assert_eq!(answer["audit-id"].len(), 36, "one that is none is replaced");
    host.stop().await;
}

#[tokio::test]
async fn with_on_failure_refuse_changes_are_refused_while_a_sink_fails() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("log");
    let host = start(|settings| {
        settings.policy =
            serde_json::from_value::<Policy>(json!({"on-failure": "refuse"})).unwrap();
        settings.sinks = vec![format!("syslog:unix://{}", socket.display()).parse().unwrap()];
    })
    .await;
    let mut admin = host.client().await;
    admin.post(MAPS, &map("a")).await.ok();
    let refused = admin.post(MAPS, &map("b")).await;
    let why = refused.refused(503, "ServiceUnavailable");
    assert!(why.contains("audit"), "{why}");
    admin.get(&format!("{MAPS}/a")).await.ok();
    let metrics = admin.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    assert!(metrics.contains("mainstay_audit_failing 1"), "{metrics}");
    // Both lines come when the sink does, and then changes are taken again.
    let bound = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let mut message = [0; 4096];
        for name in ["\"name\":\"a\"", "\"code\":503"] {
            let length = bound.recv(&mut message).unwrap();
            let message = String::from_utf8_lossy(&message[..length]).into_owned();
            assert!(message.contains(name), "{message}");
        }
        bound
    });
    let _bound = received.await.unwrap();
    loop {
        let answer = admin.post(MAPS, &map("c")).await;
        if answer.code != 503 {
            answer.ok();
            break;
        }
        tokio::task::yield_now().await;
    }
    host.stop().await;
}
