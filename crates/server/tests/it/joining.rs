//! Nodes join, are revoked, and get to know another authority; tokens end.

use std::time::Duration;

use http_body_util::BodyExt;
use mainstay_store::Location;
use mainstay_store::clock::SystemClock;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::client::{Client, Host, JOIN, MAPS, request, tls_with};

const NODES: &str = "/api/v1/nodes";

async fn join(host: &Host, token: &str, body: Value) -> crate::client::Answer {
    host.client_with(Some(token.to_owned())).await.post(JOIN, &body).await
}

/// Lists its own Node: what a node may always read, whether there is a Node or not.
fn own(node: &str) -> String {
    format!("{NODES}?fieldSelector=metadata.name%3D{node}")
}

/// Waits until the connection of a node is closed by the server.
async fn closed(mut client: Client, node: &str) {
    while client.get_if_open(&own(node)).await.is_some_and(|answer| answer.code == 200) {}
}

#[tokio::test]
async fn a_join_token_joins_once_and_is_good_for_nothing_else() {
    let host = Host::start().await;
    let token = host.token(json!({"role": "node", "node": "n1"})).await;
    let mut client = host.client_with(Some(token.clone())).await;
    for path in [MAPS, NODES, "/apis", "/metrics", "/mainstay/v1/tokens"] {
        let message = client.get(path).await;
        assert!(message.refused(403, "Forbidden").contains("can only join"), "{path}");
    }
    let told = client.get(JOIN).await.ok();
    assert_eq!(told["node"], "n1");
    // Two at once: one gets in.
    let (one, two) = (request(), request());
    let (first, second) = tokio::join!(
        join(&host, &token, json!({"csr": one.0})),
        join(&host, &token, json!({"csr": two.0})),
    );
    let mut codes = [first.code, second.code];
    codes.sort();
    assert_eq!(codes, [201, 403], "{first:?} {second:?}");
    // The one that got in may ask again, should its answer have been lost; the other not.
    for (csr, code) in [(&one.0, first.code), (&two.0, second.code)] {
        let again = join(&host, &token, json!({"csr": csr})).await;
        assert_eq!(again.code, code, "{again:?}");
    }
    host.stop().await;
}

#[tokio::test]
async fn a_token_with_a_prefix_lets_as_many_nodes_in_as_it_says() {
    let host = Host::start().await;
    let wish = json!({"role": "node", "nodePrefix": "sim.", "uses": 2});
    let token = host.token(wish).await;
    for (node, code) in
        [("sim.0", 201), ("other", 403), ("sim.", 403), ("sim.1", 201), ("sim.2", 403)]
    {
        let joined = join(&host, &token, json!({"csr": request().0, "node": node})).await;
        assert_eq!(joined.code, code, "{node} {joined:?}");
    }
    let wish = json!({"role": "node", "nodePrefix": "many.", "uses": "unlimited"});
    let token = host.token(wish).await;
    for number in 0..5 {
        let node = format!("many.{number}");
        join(&host, &token, json!({"csr": request().0, "node": node})).await.ok();
    }
    host.stop().await;
}

#[tokio::test]
async fn a_nodes_zone_is_fixed_when_it_joins_first() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let zone_of = async |admin: &mut Client, node: &str| {
        let node = admin.get(&format!("{NODES}/{node}")).await.ok();
        node["metadata"]["labels"]["topology.kubernetes.io/zone"].clone()
    };
    // The token, the request of the agent, and the answer, one after the other.
    type Text = Option<&'static str>;
    let cases: [(&str, Text, Text, Result<&str, &str>); 7] = [
        ("n1", Some("a"), Some("b"), Err("the token is for zone a")),
        ("n1", Some("a"), None, Ok("a")),
        ("n1", None, Some("b"), Err("is in zone a")),
        ("n1", Some("b"), None, Err("is in zone a")),
        ("n1", None, Some("a"), Ok("a")),
        ("n2", None, Some("c"), Ok("c")),
        ("n2", None, None, Ok("c")),
    ];
    for (node, token, asked, expected) in cases {
        let mut wish = json!({"role": "node", "node": node});
        if let Some(zone) = token {
            wish["zone"] = zone.into();
        }
        let token = host.token(wish).await;
        let body = json!({"csr": request().0, "zone": asked, "register": true});
        let joined = join(&host, &token, body.clone()).await;
        match expected {
            Ok(zone) => {
                assert_eq!(joined.ok()["zone"], zone);
                assert_eq!(zone_of(&mut admin, node).await, zone);
            }
            Err(part) => {
                let message = joined.refused(422, "Invalid").to_owned();
                assert!(message.contains(part), "{message}");
                // A refusal uses nothing up.
                let again = join(&host, &token, body).await;
                assert_eq!(again.refused(422, "Invalid"), message);
            }
        }
    }
    host.stop().await;
}

#[tokio::test]
async fn deleting_a_node_revokes_its_certificates_and_tokens_and_cuts_its_connections() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let token = host.token(json!({"role": "node", "node": "n1", "uses": 3})).await;
    let (csr, key) = request();
    let body = json!({"csr": csr, "register": true});
    let granted = join(&host, &token, body).await.ok();
    let certificate = granted["certificate"].as_str().unwrap();
    let mut node = host.certified_client(certificate, &key).await;
    assert_eq!(node.get(&own("n1")).await.code, 200);
    let renewed = node.post(JOIN, &json!({"csr": request().0})).await;
    assert_eq!(renewed.code, 201, "{renewed:?}");
    let other = host.joined("n2").await;
    let watch = format!("{}&watch=true", own("n1"));
    let mut events = host.certified_client(certificate, &key).await.watch(&watch).await;

    admin.delete(&format!("{NODES}/n1")).await.ok();
    assert!(!host.lets_in(host.tls(Some((certificate, &key)), &[b"http/1.1"])).await);
    assert!(!host.lets_in(host.tls(Some((certificate, &key)), &[b"h2"])).await);
    closed(node, "n1").await;
    // Its watch ends; the Node and its deletion may still be shown.
    while events.next_if_open().await.is_some() {}
    let refused = join(&host, &token, json!({"csr": csr})).await;
    refused.refused(401, "Unauthorized");
    let mut other = other;
    assert_eq!(other.get(&own("n2")).await.code, 200, "others go on");

    // It may come back with a new token, and then only with what it is given then.
    let mut again = host.joined("n1").await;
    assert_eq!(again.get(&own("n1")).await.code, 200);
    assert!(!host.lets_in(host.tls(Some((certificate, &key)), &[b"http/1.1"])).await);
    host.stop().await;
}

/// Joins again and again with the same token and key until a join is refused; says what it was given.
async fn insists(host: &Host, token: &str, csr: &str) -> Vec<String> {
    let mut given = Vec::new();
    loop {
        let joined = join(host, token, json!({"csr": csr, "register": true})).await;
        match joined.code {
            201 => given.push(joined.body["certificate"].as_str().unwrap().to_owned()),
            // The Node went between two steps of a join.
            404 | 409 => {}
            _ => return given,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_keeps_joining_while_it_is_deleted_is_out_all_the_same() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let prefix = host.token(json!({"role": "node", "nodePrefix": "n", "uses": "unlimited"})).await;
    for round in 0..5 {
        let name = format!("n{round}");
        let (path, token) =
            (format!("{NODES}/{name}"), host.token(json!({"role": "node", "node": name})).await);
        let (csr, key) = request();
        join(&host, &token, json!({"csr": csr, "register": true})).await.ok();
        let joins = futures_util::future::join_all((0..6).map(|_| insists(&host, &token, &csr)));
        let (given, deleted) = tokio::join!(joins, admin.delete(&path));
        deleted.ok();
        for certificate in given.iter().flatten() {
            let shown = host.tls(Some((certificate, &key)), &[b"http/1.1"]);
            assert!(!host.lets_in(shown).await, "round {round}");
        }
        let body = json!({"csr": csr, "node": name, "register": true});
        join(&host, &token, body.clone()).await.refused(401, "Unauthorized");
        join(&host, &prefix, body.clone()).await.refused(403, "Forbidden");
        admin.get(&path).await.refused(404, "NotFound");
        // A token that is made now lets it in.
        let token = host.token(json!({"role": "node", "node": name})).await;
        let granted = join(&host, &token, body).await.ok();
        let certificate = granted["certificate"].as_str().unwrap();
        assert!(host.lets_in(host.tls(Some((certificate, &key)), &[b"http/1.1"])).await);
    }
    host.stop().await;
}

#[tokio::test]
async fn a_node_is_out_as_soon_as_its_deletion_is_accepted() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    for (name, path, held) in [
        ("n1", format!("{NODES}/n1"), true),
        ("n2", format!("{NODES}?labelSelector=kubernetes.io/hostname%3Dn2"), true),
        ("n3", format!("{NODES}?labelSelector=kubernetes.io/hostname%3Dn3"), false),
    ] {
        let wish = json!({"role": "node", "node": name, "uses": "unlimited"});
        let token = host.token(wish.clone()).await;
        let (csr, key) = request();
        let body = json!({"csr": csr, "register": true});
        let granted = join(&host, &token, body.clone()).await.ok();
        let certificate = granted["certificate"].as_str().unwrap();
        let one = format!("{NODES}/{name}");
        if held {
            let mut node = admin.get(&one).await.ok();
            node["metadata"]["finalizers"] = json!(["example.com/hold"]);
            admin.put(&one, &node).await.ok();
        }
        // A deletion that is refused or only tried takes nothing.
        let wrong =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "x"}});
        let request = admin.request("DELETE", &one).header("content-type", "application/json");
        let request = request.body(wrong.to_string().into()).unwrap();
        admin.send(request).await.refused(409, "Conflict");
        admin.delete(&format!("{one}?dryRun=All")).await.ok();
        let lets_in =
            async || host.lets_in(host.tls(Some((certificate, &key)), &[b"http/1.1"])).await;
        assert!(lets_in().await, "{name}");

        admin.delete(&path).await.ok();
        assert!(!lets_in().await, "{name}");
        join(&host, &token, body.clone()).await.refused(401, "Unauthorized");
        let there = admin.get(&one).await;
        assert_eq!(there.code, if held { 200 } else { 404 }, "{name}");
        if held {
            // A Node that is on its way out takes nobody in, whatever the token.
            let token = host.token(wish).await;
            let message = join(&host, &token, body).await;
            assert!(message.refused(409, "Conflict").contains("is being deleted"));
        }
    }
    host.stop().await;
}

#[tokio::test]
async fn a_revoked_node_stays_revoked_after_a_restart_and_its_object_stays() {
    let sqlite = |options: &mut mainstay_server::Options| {
        options.store = Location::Sqlite(options.data_dir.join("objects.db"));
    };
    let host = Host::start_with(SystemClock::new(), sqlite).await;
    let mut admin = host.client().await;
    admin.post(NODES, &json!({"metadata": {"name": "n1"}})).await.ok();
    let (certificate, key) = host.join("n1").await;
    let prefix = host.token(json!({"role": "node", "nodePrefix": "n", "uses": "unlimited"})).await;
    let pair = Some((certificate.as_str(), key.as_str()));
    assert!(host.lets_in(host.tls(pair, &[b"http/1.1"])).await);
    let path = "/mainstay/v1/nodes/n1/revoke";
    let viewer = host.token(json!({"role": "viewer"})).await;
    let mut viewer = host.client_with(Some(viewer)).await;
    viewer.post(path, &json!({})).await.refused(403, "Forbidden");
    admin.post(path, &json!({})).await.ok();
    assert!(!host.lets_in(host.tls(pair, &[b"http/1.1"])).await);
    // The Node says so at once, and not only when its heartbeat is too old.
    let node = admin.get(&format!("{NODES}/n1")).await.ok();
    let conditions = node["status"]["conditions"].as_array().unwrap();
    for (condition, kind) in conditions.iter().zip(["Ready", "AgentReady"]) {
        assert_eq!((&condition["type"], &condition["status"]), (&json!(kind), &json!("Unknown")));
        assert_eq!(condition["reason"], "CertificateRevoked", "{condition}");
    }
    assert_eq!(conditions.len(), 2);
    // Nor does a token bring it back that is older than that.
    let refused = join(&host, &prefix, json!({"csr": request().0, "node": "n1"})).await;
    assert!(refused.refused(403, "Forbidden").contains("revoked after this token"));
    join(&host, &prefix, json!({"csr": request().0, "node": "n2"})).await.ok();
    let dir = host.stop().await;
    let host = Host::start_in(dir, SystemClock::new(), sqlite).await;
    assert!(!host.lets_in(host.tls(pair, &[b"http/1.1"])).await);
    host.stop().await;
}

#[tokio::test]
async fn certificates_of_older_versions_count_until_their_node_is_revoked() {
    let host = Host::start().await;
    let objects = host.running.resources().objects().clone();
    let now = host.running.resources().clock().now();
    let authority = mainstay_server::tls::Authority::load_or_create(&*objects, now).await.unwrap();
    let hour = Duration::from_secs(3600);
    let pair = authority.client("system:node:old", "system:nodes", hour, now).unwrap();
    let shown = Some((pair.certificate.as_str(), pair.key.as_str()));
    assert!(host.lets_in(host.tls(shown, &[b"http/1.1"])).await);
    let mut admin = host.client().await;
    admin.post("/mainstay/v1/nodes/old/revoke", &json!({})).await.ok();
    assert!(!host.lets_in(host.tls(shown, &[b"http/1.1"])).await);
    host.stop().await;
}

#[tokio::test]
async fn a_watch_ends_with_the_token_that_opened_it() {
    let (host, clock) = Host::start_manual(|_| {}).await;
    let mut admin = host.client().await;
    let path = format!("{MAPS}?watch=true");
    let open = async |wish: Value| {
        let token = host.token(wish).await;
        host.client_with(Some(token)).await.watch(&path).await
    };
    let mut revoked = open(json!({"role": "viewer", "name": "ada"})).await;
    let mut expired = open(json!({"role": "viewer", "ttlSeconds": 30})).await;
    let mut kept = open(json!({"role": "viewer"})).await;
    let list = admin.get("/mainstay/v1/tokens").await.ok();
    let ada = list["items"].as_array().unwrap().iter().find(|item| item["name"] == "ada").unwrap();
    let id = ada["id"].as_str().unwrap();
    admin.delete(&format!("/mainstay/v1/tokens/{id}")).await.ok();
    clock.advance(Duration::from_secs(30));
    for (events, why) in [(&mut revoked, "revoked"), (&mut expired, "expired")] {
        let last = events.next().await.unwrap();
        assert_eq!(
            (&last["type"], &last["object"]["code"]),
            (&json!("ERROR"), &json!(401)),
            "{why}"
        );
        assert_eq!(last["object"]["reason"], "Unauthorized");
        assert!(events.next().await.is_none(), "{why}");
    }
    admin.post(MAPS, &crate::client::map("m")).await.ok();
    assert_eq!(kept.brief().await, "ADDED m");
    host.stop().await;
}

#[tokio::test]
async fn an_authority_is_exchanged_while_everybody_goes_on() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let file = || std::fs::read_to_string(host.dir.path().join("ca.crt")).unwrap();
    let old = file();
    let (certificate, key) = host.join("n1").await;
    let mut node = host.certified_client(&certificate, &key).await;
    let plain: &[&[u8]] = &[b"http/1.1"];
    let path = "/mainstay/v1/authority";
    let before = admin.get(path).await.ok();
    assert_eq!(before["previous"], Value::Null);

    let rotated = admin.post(&format!("{path}/rotate"), &json!({})).await.ok();
    assert_eq!(rotated["previous"], before["current"]);
    assert_eq!(rotated["nodesOfPrevious"], json!(["n1"]));
    let both = file();
    let all: Vec<_> = CertificateDer::pem_slice_iter(both.as_bytes()).map(Result::unwrap).collect();
    assert_eq!(all.len(), 2);
    let new = both.strip_suffix(old.as_str()).unwrap().to_owned();
    assert_eq!(host.client_with(None).await.get("/mainstay/v1/ca").await.bytes, both);
    // Clients that know one of the two, or both.
    for trusted in [&old, &new, &both] {
        assert!(host.lets_in(tls_with(trusted, None, plain)).await);
    }
    // The node goes on with what it has, on old connections and new ones, and renews.
    assert_eq!(node.get(&own("n1")).await.code, 200);
    let shown = Some((certificate.as_str(), key.as_str()));
    assert!(host.lets_in(tls_with(&old, shown, plain)).await);
    let early = admin.post(&format!("{path}/finish"), &json!({})).await;
    assert!(early.refused(409, "Conflict").contains("n1"));
    let (csr, fresh_key) = request();
    let renewed = node.post(JOIN, &json!({"csr": csr})).await.ok();
    assert_eq!(renewed["authorities"], both);
    let fresh = renewed["certificate"].as_str().unwrap().to_owned();

    let finished = admin.post(&format!("{path}/finish"), &json!({})).await.ok();
    assert_eq!((&finished["previous"], &finished["current"]), (&Value::Null, &rotated["current"]));
    assert_eq!(file(), new);
    assert!(!host.lets_in(tls_with(&old, None, plain)).await, "the old authority is gone");
    assert!(host.lets_in(tls_with(&new, None, plain)).await);
    assert!(!host.lets_in(tls_with(&new, shown, plain)).await);
    let shown = Some((fresh.as_str(), fresh_key.as_str()));
    assert!(host.lets_in(tls_with(&new, shown, plain)).await);
    closed(node, "n1").await;
    // The administrator's file was written anew and its token is the same.
    let kubeconfig = std::fs::read_to_string(host.running.kubeconfig()).unwrap();
    assert!(kubeconfig.contains(&host.token));
    assert_eq!(host.client().await.get(MAPS).await.code, 200);
    host.stop().await;
}

#[tokio::test]
async fn a_forced_finish_lists_the_nodes_that_must_join_again_and_no_others() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    host.join("n1").await;
    // The heartbeat of a node that was removed, and of one whose agent has no record.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    for name in ["removed", "old"] {
        let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
        admin.post(leases, &lease).await.ok();
    }
    admin.post(NODES, &json!({"metadata": {"name": "old"}})).await.ok();
    let path = "/mainstay/v1/authority";
    let rotated = admin.post(&format!("{path}/rotate"), &json!({})).await.ok();
    assert_eq!(rotated["nodesOfPrevious"], json!(["n1", "old"]));
    let finished = admin.post(&format!("{path}/finish?force=true"), &json!({})).await.ok();
    assert_eq!(finished["previous"], Value::Null);
    assert_eq!(finished["nodesOfPrevious"], json!(["n1", "old"]));
    assert_eq!(admin.get(path).await.ok()["nodesOfPrevious"], json!([]));
    host.stop().await;
}

#[tokio::test]
async fn certificates_are_made_out_to_the_names_that_were_given() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.tls_names = vec!["api.example.com".to_owned(), "192.0.2.9".to_owned()];
    })
    .await;
    for name in ["api.example.com", "192.0.2.9", "localhost"] {
        let config = host.tls(None, &[b"http/1.1"]);
        let tcp = tokio::net::TcpStream::connect(host.running.local_addr()).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from(name).unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        connector.connect(name, tcp).await.unwrap();
    }
    host.stop().await;
}

impl Client {
    /// Asks, unless the server closed the connection.
    async fn get_if_open(&mut self, path: &str) -> Option<crate::client::Answer> {
        let request = self.request("GET", path).body(Default::default()).unwrap();
        self.try_send(request).await
    }
}

impl crate::client::Lines {
    /// The next frame, unless the server closed the connection.
    async fn next_if_open(&mut self) -> Option<()> {
        self.frames().frame().await?.ok().map(drop)
    }
}
