use mainstay_store::clock::SystemClock;

use super::*;

const SEED: &str = "0a1b2c3d-4e5f-4a6b-8c7d-0123456789ab";

fn entry(name: &str) -> Entry {
    let alike = Alike { remote: Some([127, 0, 0, 1].into()), surface: Surface::Objects, code: 201 };
    Entry {
        user: "ada".into(),
        role: "editor",
        verb: "create",
        resource: "configmaps".to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uri: Some(Uri::from_static("/api/v1/namespaces/default/configmaps?token=x")),
        latency_ms: Some(Duration::from_micros(1500)),
        user_agent: Some(HeaderValue::from_static("curl/8")),
        folded: 0,
        ..Entry::of_folded(&Folded { alike, count: 1 }, "2026-11-16T00:00:00Z".parse().unwrap())
    }
}

fn start(settings: Settings, file: PathBuf) -> (Audit, Writing, Meters) {
    let meters = Meters::default();
    let clock = SystemClock::new();
    let condition = Condition::of(&settings.policy);
    let around = Around { file, seed: SEED.to_owned(), meters: meters.clone(), condition, clock };
    let (audit, writing) = Audit::start(settings, around).unwrap();
    (audit, writing, meters)
}

#[tokio::test]
async fn every_entry_is_a_line_and_is_written_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let (audit, writing, _) = start(Settings::default(), path.clone());
    audit.record(entry("a\"b"), false);
    audit.record(entry("c"), false);
    drop(audit);
    writing.ended().await;
    let text = std::fs::read_to_string(path).unwrap();
    let first = r#"{"time":"2026-11-16T00:00:00Z","user":"ada","role":"editor","surface":"objects","verb":"create","resource":"configmaps","namespace":"default","name":"a\"b","requestURI":"/api/v1/namespaces/default/configmaps?token=REDACTED","outcome":"allowed","code":201,"latencyMs":1.5,"remote":"127.0.0.1","userAgent":"curl/8"}"#;
    assert_eq!(text.lines().next(), Some(first));
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn no_field_of_a_line_shows_a_secret() {
    const FORMS: [&str; 6] = [
        "mst_hunter2aaaaaaaaaabbbbbbbbbb",
        "password=hunter2",
        "{\"password\":\"hunter2\"}",
        "q=Authorization: Basic hunter2",
        "https://bob:hunter2@host/",
        "pass%2577ord%253Dhunter2",
    ];
    for form in FORMS {
        let header = || HeaderValue::from_static(form);
        let uri = format!("/a/{0}?x={0}", form.replace(['"', ' ', '{', '}'], "%20"));
        // Every field is named here, so that none is forgotten.
        let entry = Entry {
            time: "2026-11-16T00:00:00Z".parse().unwrap(),
            audit_id: header(),
            stage: form,
            user: form.into(),
            impersonated_user: Some(form.into()),
            role: form,
            account: form.to_owned(),
            claimed_user: form.to_owned(),
            surface: Surface::Rucio,
            verb: form,
            resource: form.to_owned(),
            subresource: form.to_owned(),
            namespace: form.to_owned(),
            name: form.to_owned(),
            uri: Some(uri.parse().unwrap()),
            dry_run: true,
            outcome: Some(Outcome::Denied),
            code: Some(403),
            reason: form,
            latency_ms: Some(Duration::ZERO),
            remote: Some([127, 0, 0, 1].into()),
            user_agent: Some(header()),
            folded: 1,
            body: Some(serde_json::json!({"a": form, form: ["b"]}).to_string().into()),
            request: None,
            request_omitted: Some(form.to_owned()),
        };
        let line = String::from_utf8(entry.into_line(1 << 20).unwrap().text).unwrap();
        assert!(!line.contains("hunter2"), "{form}: {line}");
        assert!(line.matches("REDACTED").count() >= 18, "every text is shown: {line}");
    }
}

#[tokio::test]
async fn an_answer_waits_until_its_line_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let policy = Policy { durable: true, ..Policy::default() };
    let (audit, writing, _) = start(Settings { policy, sinks: Vec::new() }, path.clone());
    for number in 1..=20 {
        let receiver = audit.record(entry("x"), true).unwrap();
        audit.written(receiver).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), number);
    }
    drop(audit);
    writing.ended().await;
}

#[tokio::test]
async fn on_failure_refuse_refuses_changes_while_a_sink_fails() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let sinks = vec![Destination::Syslog(Syslog::Unix(socket.clone()))];
    let policy = Policy { on_failure: OnFailure::Refuse, ..Policy::default() };
    let (audit, writing, meters) =
        start(Settings { policy, sinks: sinks.clone() }, dir.path().join("unused"));
    assert!(audit.refusal(&Method::POST, "/api/v1/nodes").is_none());
    let receiver = audit.record(entry("a"), true).unwrap();
    audit.written(receiver).await;
    assert!(meters.failing.get() == 1 && meters.lost.get() == 0);
    assert!(audit.shared.condition.check().await.is_err());
    assert!(audit.refusal(&Method::GET, "/api/v1/nodes").is_none(), "reads go on");
    let refusal = audit.refusal(&Method::POST, "/api/v1/nodes").unwrap();
    assert_eq!(refusal.reason, Reason::ServiceUnavailable);

    // The line is written as soon as the sink is there, and changes go on.
    let bound = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let mut text = [0; 4096];
        let length = bound.recv(&mut text).unwrap();
        (bound, String::from_utf8_lossy(&text[..length]).into_owned())
    });
    let (_bound, line) = received.await.unwrap();
    assert!(line.contains("\"name\":\"a\""), "{line}");
    let receiver = audit.record(entry("b"), true).unwrap();
    audit.written(receiver).await;
    assert!(meters.failing.get() == 0 && audit.refusal(&Method::POST, "/api/v1/nodes").is_none());
    assert_eq!(audit.shared.condition.check().await, Ok(()));
    drop(audit);
    writing.ended().await;

    // Usually they go on all the while.
    let missing = vec![Destination::Syslog(Syslog::Unix(dir.path().join("missing")))];
    let settings = Settings { policy: Policy::default(), sinks: missing };
    let (audit, writing, meters) = start(settings, dir.path().join("unused"));
    let receiver = audit.record(entry("a"), true).unwrap();
    audit.written(receiver).await;
    assert!(meters.failing.get() == 1 && audit.refusal(&Method::POST, "/api/v1/nodes").is_none());
    assert_eq!(audit.shared.condition.check().await, Ok(()), "the server is ready all the same");
    drop(audit);
    writing.ended().await;
}

#[test]
fn requests_are_told_apart_by_what_they_do_and_not_by_their_method_alone() {
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (method, path, told) in [
        (Method::GET, "/api/v1/nodes", false),
        (Method::POST, "/api/v1/nodes", true),
        (Method::DELETE, "/api/v1/nodes/n1", true),
        (Method::GET, "/mainstay/v1/backup", true),
        (Method::GET, "/mainstay/v1/store/stats", false),
        (Method::GET, "/rucio/auth/userpass", true),
        (Method::HEAD, "/rucio/auth/userpass", true),
        (Method::GET, "/rucio//auth/user%70ass/", true),
        (Method::GET, "/rucio/auth/validate", false),
        (Method::POST, review, false),
        (Method::DELETE, review, true),
        (Method::POST, "/rucio/rules/", true),
        (Method::POST, "/rucio/replicas/list", false),
        (Method::POST, "/rucio/dids/bulkmeta", false),
        (Method::DELETE, "/rucio/replicas/list", true),
        (Method::POST, "/rucioo/replicas/list", true),
    ] {
        assert_eq!(observe::must_be_told(&method, path), told, "{method} {path}");
    }
}

#[test]
fn every_path_belongs_to_a_part_of_the_api() {
    for (path, surface) in [
        ("/api/v1/namespaces", Surface::Objects),
        ("/apis/apps.mainstay.dev/v1/applications", Surface::Objects),
        ("/apis", Surface::Objects),
        ("/mainstay/v1/tokens", Surface::Tokens),
        ("/mainstay/v1/tokens/abc", Surface::Tokens),
        ("/mainstay/v1/join", Surface::Join),
        ("/mainstay/v1/ca", Surface::Join),
        ("/mainstay/v1/authority/rotate", Surface::Join),
        ("/mainstay/v1/nodes/n1/revoke", Surface::Join),
        ("/mainstay/v1/backup", Surface::Store),
        ("/mainstay/v1/store/compact", Surface::Store),
        ("/mainstay/v1/store/rekey", Surface::Store),
        ("/mainstay/v1/namespaces/default/instances/i/log", Surface::Logs),
        ("/mainstay/v1/namespaces/default/applications/a/placement", Surface::Other),
        ("/rucio/rules/", Surface::Rucio),
        ("/rucio", Surface::Rucio),
        ("/rucioo", Surface::Other),
        ("/mainstay.agents.v1.Agents/Connect", Surface::Agents),
        ("/v1/lvg/filter-and-score", Surface::Extender),
        ("/scheduler/filter", Surface::Scheduler),
        ("/metrics", Surface::Other),
    ] {
        assert_eq!(Surface::of(path), surface, "{path}");
    }
}
