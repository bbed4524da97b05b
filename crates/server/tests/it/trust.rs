//! Authentication and authorization over real connections.

use mainstay_server::tls::Authority;
use mainstay_store::Location;
use mainstay_store::clock::SystemClock;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::client::{Client, Host, MAPS, map, one};

#[tokio::test]
async fn strangers_see_health_and_nothing_else() {
    let host = Host::start().await;
    for token in [None, Some("mst_forged".to_owned()), Some(String::new())] {
        let mut stranger = host.client_with(token).await;
        for path in ["/healthz", "/livez", "/readyz", "/version", "/readyz?verbose"] {
            assert_eq!(stranger.get(path).await.code, 200, "{path}");
        }
        for path in ["/api", "/apis", MAPS, "/metrics", "/openapi/v3", "/mainstay/v1/tokens", "/x"]
        {
            let refused = stranger.get(path).await;
            assert_eq!(refused.refused(401, "Unauthorized"), "Unauthorized", "{path}");
        }
    }
    let mut client = host.client().await;
    assert_eq!(client.get("/readyz").await.bytes, "ok");
    let verbose = client.get("/readyz?verbose").await;
    assert!(verbose.bytes.starts_with(b"[+]ping ok\n"), "{:?}", verbose.bytes);
    host.stop().await;
}

#[tokio::test]
async fn each_role_has_the_rights_of_its_table() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    admin.post(MAPS, &map("there")).await.ok();
    for name in ["n1", "n2"] {
        admin.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await.ok();
    }
    let event = |about: &str, by: &str| {
        json!({
            "metadata": {"generateName": "e-", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": about}, "reportingInstance": by, "reportingComponent": "mainstay-agent",
            "reason": "x", "message": "y", "type": "Normal",
        })
    };
    let status = |name: &str| {
        json!({
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "z"}},
            "spec": {"unschedulable": true}, "status": {"capacity": {"cpu": "3"}},
        })
    };
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": "n1"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let events = "/api/v1/namespaces/default/events";
    let viewer = json!({"role": "viewer"});
    let editor = json!({"role": "editor", "ttlSeconds": 3600});
    let node = json!({"role": "node", "node": "n1"});
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    let (one_status, two_status) = (status("n1"), status("n2"));
    let system = "/api/v1/namespaces/mainstay-system/configmaps";
    let (space, disks) = (json!({"metadata": {"name": "space"}}), map("disks"));
    let none = Value::Null;
    let cases: Vec<(&Value, &str, String, &Value, u16)> = vec![
        (&viewer, "GET", one("there"), &none, 200),
        (&viewer, "GET", MAPS.into(), &none, 200),
        (&viewer, "GET", "/metrics".into(), &none, 200),
        (&viewer, "DELETE", one("there"), &none, 403),
        (&viewer, "DELETE", MAPS.into(), &none, 403),
        (&viewer, "PATCH", one("there"), &note, 403),
        (&viewer, "GET", "/mainstay/v1/tokens".into(), &none, 403),
        (&editor, "PATCH", one("there"), &note, 200),
        (&editor, "GET", "/mainstay/v1/tokens".into(), &none, 403),
        (&editor, "POST", "/mainstay/v1/tokens".into(), &viewer, 403),
        (&editor, "PATCH", "/api/v1/nodes/n1".into(), &note, 403),
        (&editor, "PATCH", "/api/v1/namespaces/default".into(), &note, 403),
        (&editor, "POST", "/api/v1/namespaces".into(), &space, 403),
        (&editor, "POST", system.into(), &disks, 403),
        (&editor, "GET", system.into(), &none, 200),
        (&editor, "DELETE", system.into(), &none, 403),
        (&node, "GET", one("there"), &none, 403),
        (&node, "GET", MAPS.into(), &none, 403),
        (&node, "GET", system.into(), &none, 403),
        (&node, "GET", format!("{system}/disks"), &none, 404),
        (&node, "GET", format!("{system}?fieldSelector=metadata.name%3Ddisks"), &none, 200),
        (&node, "POST", system.into(), &disks, 403),
        (&node, "GET", "/api/v1/nodes".into(), &none, 403),
        (&node, "GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1".into(), &none, 200),
        (&node, "GET", "/api/v1/nodes/n1".into(), &none, 200),
        (&node, "GET", "/api/v1/nodes/n2".into(), &none, 403),
        (&node, "GET", "/metrics".into(), &none, 403),
        (&node, "PATCH", one("there"), &note, 403),
        (&node, "DELETE", one("there"), &none, 403),
        (&node, "DELETE", MAPS.into(), &none, 403),
        (&node, "PATCH", "/api/v1/nodes/n1".into(), &note, 403),
        (&node, "PUT", "/api/v1/nodes/n1".into(), &one_status, 403),
        (&node, "PUT", "/api/v1/nodes/n1/status".into(), &one_status, 200),
        (&node, "PATCH", "/api/v1/nodes/n2".into(), &note, 403),
        (&node, "PUT", "/api/v1/nodes/n2/status".into(), &two_status, 403),
        (&node, "DELETE", "/api/v1/nodes/n1".into(), &none, 403),
        (&node, "DELETE", "/api/v1/nodes/n2".into(), &none, 403),
        (&node, "PATCH", "/api/v1/namespaces/default".into(), &note, 403),
        (&node, "GET", "/mainstay/v1/tokens".into(), &none, 403),
    ];
    for (wish, method, path, body, code) in cases {
        let mut client = match wish["role"].as_str() {
            Some("node") => host.joined("n1").await,
            _ => host.client_with(Some(host.token(wish.clone()).await)).await,
        };
        let kind =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = client.call(method, &path, kind, body).await;
        assert_eq!(answer.code, code, "{wish} {method} {path}: {answer:?}");
        if code == 403 {
            answer.refused(403, "Forbidden");
        }
    }
    let mut client = host.joined("n1").await;
    let creations = [
        (leases, lease("n1"), 201),
        (leases, lease("n2"), 403),
        (elsewhere, lease("n1"), 403),
        (events, event("n1", "n1"), 201),
        (events, event("n2", "n1"), 403),
        (events, event("n1", "n2"), 403),
        ("/api/v1/nodes", json!({"metadata": {"name": "n3"}}), 403),
        (MAPS, map("mine"), 403),
    ];
    for (path, body, code) in creations {
        let answer = client.post(path, &body).await;
        assert_eq!(answer.code, code, "{path} {body}: {answer:?}");
    }
    let message = client.delete("/api/v1/nodes/n2").await;
    let expected = "nodes \"n2\" is forbidden: User \"system:node:n1\" cannot delete resource \"nodes\" in API group \"\" at the cluster scope";
    assert_eq!(message.refused(403, "Forbidden"), expected);
    let reported = admin.get("/api/v1/nodes/n1").await.ok();
    assert_eq!(reported["status"]["capacity"]["cpu"], "3");
    assert_eq!(
        (&reported["spec"]["unschedulable"], &reported["metadata"]["labels"]),
        (&none, &none)
    );
    // A node makes its own Node, and says nothing in it that is for operators to say.
    let mut client = host.joined("n5").await;
    let zone = json!({"topology.kubernetes.io/zone": "a"});
    let made = [
        (json!({"metadata": {"name": "n5"}, "spec": {"unschedulable": false}}), 403),
        (json!({"metadata": {"name": "n5", "labels": {"disktype": "ssd"}}}), 403),
        (json!({"metadata": {"name": "n5", "labels": zone}}), 403),
        (json!({"metadata": {"name": "n5"}}), 201),
    ];
    for (body, code) in made {
        let answer = client.post("/api/v1/nodes", &body).await;
        assert_eq!(answer.code, code, "{body}: {answer:?}");
    }
    host.stop().await;
}

#[tokio::test]
async fn tokens_are_listed_revoked_and_never_shown_again() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let token = host.token(json!({"role": "viewer", "name": "ada"})).await;
    let list = admin.get("/mainstay/v1/tokens").await;
    assert!(!String::from_utf8_lossy(&list.bytes).contains(&token));
    let items = list.body["items"].as_array().unwrap().clone();
    let ada = items.iter().find(|item| item["name"] == "ada").unwrap();
    let id = ada["id"].as_str().unwrap();
    let mut client = host.client_with(Some(token)).await;
    assert_eq!(client.get(MAPS).await.code, 200);
    admin.delete(&format!("/mainstay/v1/tokens/{id}")).await.ok();
    client.get(MAPS).await.refused(401, "Unauthorized");
    admin.delete(&format!("/mainstay/v1/tokens/{id}")).await.refused(404, "NotFound");
    for (wish, code) in [
        (json!({"role": "node"}), 422),
        (json!({"role": "editor", "name": ""}), 422),
        (json!({"role": "viewer", "name": "a\u{7}"}), 422),
        (json!({"role": "node", "node": "a", "uses": "many"}), 400),
        (json!({"role": "admin", "node": "x"}), 422),
        (json!({"role": "king"}), 400),
        (json!({"role": "viewer", "x": 1}), 400),
    ] {
        assert_eq!(admin.post("/mainstay/v1/tokens", &wish).await.code, code, "{wish}");
    }
    admin.put("/mainstay/v1/tokens", &json!({})).await.refused(405, "MethodNotAllowed");
    let leaked = admin.get("/apis/internal.mainstay.dev/v1/tokens").await;
    leaked.refused(404, "NotFound");
    host.stop().await;
}

#[tokio::test]
async fn certificates_of_our_authority_open_doors_and_others_do_not() {
    let host = Host::start_with(SystemClock::new(), |_| {}).await;
    let objects = host.running.resources().objects().clone();
    let now = host.running.resources().clock().now();
    let authority = Authority::load_or_create(&*objects, now).await.unwrap();
    let hour = Duration::from_secs(3600);
    for (user, group, read, write) in
        [("ada", "admin", 200, 201), ("victor", "viewer", 200, 403), ("eve", "strangers", 403, 403)]
    {
        let pair = authority.client(user, group, hour, now).unwrap();
        let mut client = host.certified_client(&pair.certificate, &pair.key).await;
        assert_eq!(client.get(MAPS).await.code, read, "{user}");
        assert_eq!(client.post(MAPS, &map(user)).await.code, write, "{user}");
    }
    let stranger = tempfile::tempdir().unwrap();
    let other = Host::start_in(stranger, SystemClock::new(), |_| {}).await;
    let foreign = Authority::load_or_create(&**other.running.resources().objects(), now);
    let pair = foreign.await.unwrap().client("ada", "admin", hour, now).unwrap();
    let config = host.tls(Some((&pair.certificate, &pair.key)), &[b"http/1.1"]);
    let tcp = tokio::net::TcpStream::connect(host.running.local_addr()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    // With TLS 1.3 the client learns of the refusal when it first reads.
    if let Ok(mut stream) = connector.connect(name, tcp).await {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(stream.read_u8().await.is_err());
    }
    other.stop().await;
    host.stop().await;
}

#[tokio::test]
async fn trust_survives_a_restart_and_files_are_private() {
    let sqlite = |options: &mut mainstay_server::Options| {
        options.store = Location::Sqlite(options.data_dir.join("objects.db"));
    };
    let host = Host::start_with(SystemClock::new(), sqlite).await;
    let (token, viewer) = (host.token.clone(), host.token(json!({"role": "viewer"})).await);
    let authority = std::fs::read_to_string(host.dir.path().join("ca.crt")).unwrap();
    let mode = |name: &str| {
        let path = host.dir.path().join(name);
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("kubeconfig"), mode("audit.log")), (0o600, 0o600));
    let dir = host.stop().await;
    let host = Host::start_in(dir, SystemClock::new(), sqlite).await;
    assert_eq!(host.token, token, "the kubeconfig still works, so it was kept");
    assert_eq!(std::fs::read_to_string(host.dir.path().join("ca.crt")).unwrap(), authority);
    assert_eq!(host.client_with(Some(viewer)).await.get(MAPS).await.code, 200);
    let dir = host.stop().await;

    std::fs::remove_file(dir.path().join("kubeconfig")).unwrap();
    let host = Host::start_in(dir, SystemClock::new(), sqlite).await;
    assert_ne!(host.token, token);
    assert_eq!(host.client().await.get(MAPS).await.code, 200);
    host.stop().await;
}

#[tokio::test]
async fn plain_http_is_for_loopback_only() {
    let dir = tempfile::tempdir().unwrap();
    let listen = "0.0.0.0:0".parse().unwrap();
    let registry = crate::client::registry();
    let mut options =
        mainstay_server::Options::new(listen, dir.path().to_owned(), registry, SystemClock::new());
    options.plain_http = true;
    let refused = mainstay_server::Server::start(options).await.unwrap_err();
    assert!(refused.to_string().contains("loopback"), "{refused}");

    let host = Host::start_with(SystemClock::new(), |options| options.plain_http = true).await;
    let tcp = tokio::net::TcpStream::connect(host.running.local_addr()).await.unwrap();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut read, mut write) = tcp.into_split();
    let request = format!(
        "GET {MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        host.token
    );
    write.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    read.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    host.stop().await;
}

#[tokio::test]
async fn admins_and_servers_act_for_others_and_the_log_names_both() {
    let host = Host::start_with(SystemClock::new(), |_| {}).await;
    host.token(json!({"role": "viewer", "name": "victor"})).await;
    let objects = host.running.resources().objects().clone();
    let now = host.running.resources().clock().now();
    let authority = Authority::load_or_create(&*objects, now).await.unwrap();
    let hour = Duration::from_secs(3600);
    let pair = authority.client("s1", mainstay_server::SERVERS, hour, now).unwrap();
    let mut server = host.certified_client(&pair.certificate, &pair.key).await;
    let mut admin = host.client().await;
    let editor = host.token(json!({"role": "editor", "name": "edda"})).await;
    let mut editor = host.client_with(Some(editor)).await;
    // The user, the user it acts as, and the answer to a write.
    let editor_named =
        |name: &'static str| [("impersonate-user", name), ("impersonate-group", "editor")];
    let viewer_named =
        |name: &'static str| [("impersonate-user", name), ("impersonate-group", "viewer")];
    let user = |name: &'static str| [("impersonate-user", name)];
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, Headers<'_>, u16); 9] = [
        ("admin", &editor_named("a"), 201),
        ("admin", &viewer_named("b"), 403),
        ("admin", &user("victor"), 403),
        ("admin", &user("edda"), 201),
        ("admin", &user("nobody"), 403),
        ("admin", &[("impersonate-group", "editor")], 400),
        ("server", &editor_named("c"), 201),
        ("server", &viewer_named("d"), 403),
        ("editor", &viewer_named("e"), 403),
    ];
    for (at, (who, given, code)) in cases.into_iter().enumerate() {
        let client = match who {
            "admin" => &mut admin,
            "server" => &mut server,
            _ => &mut editor,
        };
        let answer = acting(client, given, MAPS, &map(&format!("m{at}"))).await;
        assert_eq!(answer.code, code, "{who} {given:?}: {answer:?}");
    }
    let given = [
        ("impersonate-user", "ada"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "viewer"),
        ("impersonate-extra-why", "curious"),
    ];
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = acting(&mut admin, &given, who, &json!({})).await.ok();
    let expected = json!({"username": "ada", "uid": "7", "extra": {"why": ["curious"]},
        "groups": ["viewer", "system:authenticated"]});
    assert_eq!(who["status"]["userInfo"], expected);
    let may = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = json!({"spec": {"resourceAttributes": {"verb": "create", "resource": "nodes"}}});
    assert_eq!(acting(&mut admin, &given, may, &question).await.ok()["status"]["allowed"], false);
    let refused = acting(&mut editor, &given, may, &question).await;
    let expected = "users \"ada\" is forbidden: User \"edda\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
    assert_eq!(refused.refused(403, "Forbidden"), expected);

    let dir = host.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let said = |user: &str, other: &str, code: u16| {
        let named = format!("\"user\":\"{user}\",\"impersonatedUser\":\"{other}\"");
        log.lines().any(|line| line.contains(&named) && line.contains(&format!("\"code\":{code}")))
    };
    for (user, other, code) in
        [("admin", "a", 201), ("admin", "b", 403), ("s1", "c", 201), ("edda", "e", 403)]
    {
        assert!(said(user, other, code), "{user} as {other}: {code}\n{log}");
    }
}

async fn acting(
    client: &mut Client,
    given: &[(&str, &str)],
    path: &str,
    body: &Value,
) -> crate::client::Answer {
    let mut request = client.request("POST", path).header("content-type", "application/json");
    for (name, value) in given {
        request = request.header(*name, *value);
    }
    client.send(request.body(body.to_string().into()).unwrap()).await
}
