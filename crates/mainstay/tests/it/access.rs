//! The permissions of the real program: every kind, verb, subresource and role beside the
//! table in `docs/access.md`, and the power of a stolen credential of a node.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use http::Method;
use mainstay_agent::join::token_access;
use mainstay_client::{Access, Address, Client};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::process::{MAINSTAY, TestServer, folder};

const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const STORAGE: &str = "/apis/storage.mainstay.dev/v1";
const APPLICATIONS: &str = "/apis/apps.mainstay.dev/v1/namespaces/default/applications";

fn token(server: &TestServer, role: &[&str]) -> String {
    let made = server.mainstay(&[&["token", "create", "--role"], role].concat());
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

fn authority(server: &TestServer) -> String {
    std::fs::read_to_string(server.kubeconfig().with_file_name("ca.crt")).unwrap()
}

/// The agent of node n1.
fn agent(server: &TestServer, token: &str) -> Command {
    let mut agent = Command::new(MAINSTAY);
    agent
        .args(["agent", "--server", &server.address(), "--token", token, "--node-name", "n1"])
        .arg("--ca-cert")
        .arg(server.kubeconfig().with_file_name("ca.crt"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    agent
}

/// Somebody who asks.
struct Caller {
    client: Client,
}

impl Caller {
    /// Somebody with a token.
    fn new(server: &TestServer, role: &str) -> Self {
        let authority = authority(server);
        Self::with(server, token_access(Some(&authority), token(server, &[role])).unwrap())
    }

    /// The bearer of the certificate of node n1.
    fn node(server: &TestServer) -> Self {
        let state = folder();
        let mut agent = agent(server, &token(server, &["node", "--node", "n1"]))
            .args(["--devices", "/dev/loop999999", "--state-dir"])
            .arg(state.path())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("mainstay agent is ready")));
        agent.kill().unwrap();
        agent.wait().unwrap();
        let identity = std::fs::read(state.path().join("identity.json")).unwrap();
        let identity: Value = serde_json::from_slice(&identity).unwrap();
        let pem = |part: &str| identity[part].as_str().unwrap().as_bytes().to_vec();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority(server).as_bytes()).unwrap()).unwrap();
        let chain =
            CertificateDer::pem_slice_iter(&pem("certificate")).map(Result::unwrap).collect();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&pem("key")).unwrap())
            .unwrap();
        Self::with(server, Access { tls: Some(Arc::new(config)), token: None })
    }

    fn with(server: &TestServer, access: Access) -> Self {
        Self { client: Client::new(vec![Address::parse(&server.address()).unwrap()], access) }
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let method: Method = method.parse().unwrap();
        let body = body.map(|body| body.to_string().into_bytes());
        let answer = self.client.call(method, path, body).await.unwrap();
        (answer.code.as_u16(), serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    async fn post(&self, path: &str, body: Value) -> u16 {
        self.call("POST", path, Some(&body)).await.0
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, None).await
    }

    /// Asks whether it may, as `kubectl auth can-i` does.
    async fn may(&self, attributes: Value) -> bool {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review = json!({"spec": {"resourceAttributes": attributes}});
        let (code, answer) = self.call("POST", path, Some(&review)).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"]["allowed"].as_bool().unwrap()
    }
}

/// A kind or subresource as discovery has it.
#[derive(Debug)]
struct Served {
    group: String,
    version: String,
    plural: String,
    part: String,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    fn path(&self, namespace: &str) -> String {
        let root = match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match self.namespaced {
            true => format!("{root}/namespaces/{namespace}/{}", self.plural),
            false => format!("{root}/{}", self.plural),
        }
    }

    /// The method and path of a verb. It changes no object, for any user.
    fn request(&self, verb: &str) -> (&'static str, String) {
        let all = self.path("default");
        let part = if self.part.is_empty() { String::new() } else { format!("/{}", self.part) };
        let one = format!("{all}/n1{part}");
        match verb {
            "get" => ("GET", one),
            "list" => ("GET", all),
            "watch" => ("GET", format!("{all}?watch=true")),
            "create" => ("POST", format!("{all}?dryRun=All")),
            "update" => ("PUT", format!("{one}?dryRun=All")),
            "patch" => ("PATCH", format!("{one}?dryRun=All")),
            "delete" => ("DELETE", format!("{one}?dryRun=All")),
            _ => ("DELETE", format!("{all}?dryRun=All")),
        }
    }
}

async fn served(admin: &Caller) -> Vec<Served> {
    let mut versions = vec![(String::new(), "v1".to_owned(), "/api/v1".to_owned())];
    for group in admin.get("/apis").await.1["groups"].as_array().unwrap() {
        let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        let (name, number) = version.split_once('/').unwrap();
        versions.push((name.to_owned(), number.to_owned(), format!("/apis/{version}")));
    }
    let mut found = Vec::new();
    for (group, version, path) in versions {
        for resource in admin.get(&path).await.1["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let (plural, part) = name.split_once('/').unwrap_or((name, ""));
            let verbs = resource["verbs"].as_array().unwrap();
            found.push(Served {
                group: group.clone(),
                version: version.clone(),
                plural: plural.to_owned(),
                part: part.to_owned(),
                namespaced: resource["namespaced"] == true,
                verbs: verbs.iter().map(|verb| verb.as_str().unwrap().to_owned()).collect(),
            });
        }
    }
    found
}

/// The table of the docs: for each kind and role the condition of each verb that is granted.
type Table = BTreeMap<(String, String), [BTreeMap<String, String>; 3]>;

fn documented() -> Table {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");
    let text = std::fs::read_to_string(text).unwrap();
    let rows = text.lines().skip_while(|line| !line.contains("kinds: begin"));
    let rows = rows.take_while(|line| !line.contains("kinds: end")).skip(3);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let group = if cells[0] == "core" { "" } else { cells[0] };
        let role = |cell: &str| {
            let grants = cell.split(';').filter(|grant| !grant.contains('–'));
            let verbs = grants.flat_map(|grant| {
                let (verbs, condition) = grant.split_once('(').unwrap_or((grant, ""));
                let condition = condition.trim_end_matches(')').to_owned();
                let verbs = verbs.split_whitespace();
                verbs.map(move |verb| (verb.to_owned(), condition.clone())).collect::<Vec<_>>()
            });
            verbs.collect::<BTreeMap<_, _>>()
        };
        let roles = [role(cells[2]), role(cells[3]), role(cells[4])];
        ((group.to_owned(), cells[1].to_owned()), roles)
    })
    .collect()
}

/// An attempt at one verb, and whether a condition of the docs lets it pass.
fn probes(condition: Option<&str>, verb: &str, served: &Served) -> Vec<(Value, bool)> {
    let with = |more: Value| {
        let mut asked = json!({
            "verb": verb, "group": served.group, "resource": served.plural,
            "subresource": served.part,
        });
        let more = more.as_object().unwrap().clone();
        asked.as_object_mut().unwrap().extend(more);
        asked
    };
    let place = |namespace: &str, name: &str| with(json!({"namespace": namespace, "name": name}));
    let collection = ["list", "watch"].contains(&verb);
    let selecting = |field: &str, value: &str| {
        let field = json!({"rawSelector": format!("{field}={value}")});
        with(json!({"namespace": "default", "fieldSelector": field}))
    };
    let by_field = |field: &str| {
        let mut probes = vec![(place("default", "other"), false), (place("default", "n2"), false)];
        if collection {
            probes.push((selecting(field, "n1"), true));
            probes.push((selecting(field, "n2"), false));
            probes.push((with(json!({"namespace": "default"})), false));
        } else if verb == "create" {
            probes = vec![(with(json!({})), true)];
        } else {
            probes.push((place("", "own"), true));
        }
        probes
    };
    match condition {
        None => vec![
            (place("default", "n1"), false),
            (place("mainstay-system", "disks"), false),
            (place("kube-node-lease", "n1"), false),
            (place("", "own"), false),
            (with(json!({"namespace": "default"})), false),
            (selecting("metadata.name", "n1"), false),
            (selecting("spec.nodeName", "n1"), false),
        ],
        Some("") => vec![(place("default", "x"), true), (place("mainstay-system", "x"), true)],
        Some("not in mainstay-system") => {
            vec![(place("default", "x"), true), (place("mainstay-system", "x"), false)]
        }
        Some("only mainstay-system/disks") => vec![
            (place("mainstay-system", "disks"), true),
            (place("mainstay-system", "rules"), false),
            (place("default", "disks"), false),
            (with(json!({"namespace": "mainstay-system"})), false),
            (with(json!({})), false),
        ],
        Some(own) if own.starts_with("its own Node") => match collection {
            true => by_field("metadata.name"),
            false => vec![(place("", "n1"), true), (place("", "n2"), false)],
        },
        Some("its own Lease in kube-node-lease") => vec![
            (place("kube-node-lease", "n1"), true),
            (place("kube-node-lease", "n2"), false),
            (place("default", "n1"), false),
        ],
        Some("if spec.nodeName is its own name") => by_field("spec.nodeName"),
        Some("if spec.local.nodeName is its own name") => by_field("spec.local.nodeName"),
        Some("in default, reported by itself as mainstay-agent about its own objects") => vec![
            (place("default", "other"), false),
            (place("kube-system", "own"), false),
            (place("default", "own"), true),
        ],
        Some(other) => panic!("the docs have a condition that this test does not know: {other}"),
    }
}

/// Objects of node n1, called `own`, and of node n2, called `other`. The agent of n1 must have ended:
/// it would remove what it does not find.
async fn furnish(admin: &Caller) {
    for (name, node) in [("own", "n1"), ("other", "n2")] {
        let metadata = json!({"name": name});
        let lease = json!({"metadata": {"name": node}, "spec": {"holderIdentity": node}});
        let event = json!({
            "metadata": {"name": name, "namespace": "default"}, "reportingInstance": node, "reportingComponent": "mainstay-agent",
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node},
            "reason": "x", "message": "y", "type": "Normal",
        });
        let device = json!({"metadata": metadata, "spec": {"nodeName": node, "devPath": "/dev/x"}});
        let group = json!({
            "metadata": metadata,
            "spec": {"local": {"nodeName": node}, "actualVGNameOnTheNode": "vg", "type": "Local"},
        });
        let made = [
            ("/api/v1/nodes".to_owned(), json!({"metadata": {"name": node}})),
            ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".to_owned(), lease),
            ("/api/v1/namespaces/default/events".to_owned(), event),
            (format!("{STORAGE}/blockdevices"), device),
            (format!("{STORAGE}/lvmvolumegroups"), group),
        ];
        for (path, body) in made {
            let (code, answer) = admin.call("POST", &path, Some(&body)).await;
            // The Node and the heartbeat of n1 are there since its agent ran.
            assert!(code == 201 || (code == 409 && node == "n1"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn access_of_every_role_matches_the_documented_table() {
    let server = TestServer::start();
    let admin = Caller::new(&server, "admin");
    let roles = [
        ("editor", Caller::new(&server, "editor")),
        ("viewer", Caller::new(&server, "viewer")),
        ("node", Caller::node(&server)),
    ];
    furnish(&admin).await;
    let mut docs = documented();
    for served in served(&admin).await {
        let name = format!("{}/{}", served.plural, served.part);
        let name = name.trim_end_matches('/').to_owned();
        let row = docs.remove(&(served.group.clone(), name.clone()));
        let row = row.unwrap_or_else(|| panic!("docs/access.md has no row for {name}"));
        // Replicas need a volume: only what is refused is tried of them.
        let stored = served.plural != "replicatedvolumereplicas";
        for verb in VERBS.iter().filter(|verb| served.verbs.iter().any(|it| it == *verb)) {
            assert!(admin.may(json!({"verb": verb, "group": served.group, "resource": served.plural, "subresource": served.part})).await);
            for ((role, caller), grants) in roles.iter().zip(&row) {
                let condition = grants.get(*verb).map(String::as_str);
                for (asked, expected) in probes(condition, verb, &served) {
                    if stored || !expected || ["list", "watch"].contains(verb) {
                        let said = caller.may(asked.clone()).await;
                        assert_eq!(said, expected, "{role}: {asked} ({condition:?})");
                    }
                }
                let (method, path) = served.request(verb);
                if condition.is_none() || (condition == Some("") && *verb != "watch") {
                    let body = (method != "GET").then(|| json!({"metadata": {"name": "n1"}}));
                    let body = body.filter(|_| method != "DELETE");
                    let (code, answer) = caller.call(method, &path, body.as_ref()).await;
                    assert_eq!(
                        code == 403,
                        condition.is_none(),
                        "{role} {method} {path}: {answer}"
                    );
                }
            }
        }
    }
    docs.retain(|(_, name), _| name != "pods");
    assert!(docs.is_empty(), "docs/access.md has rows for what is not served: {docs:?}");
}

#[tokio::test]
async fn a_stolen_node_credential_reaches_nothing_beyond_its_node() {
    let server = TestServer::start();
    let admin = Caller::new(&server, "admin");
    let n1 = Caller::node(&server);
    furnish(&admin).await;
    // Fields that a kind does not know count for nothing: they are not stored.
    let own = json!({"nodeName": "n1", "local": {"nodeName": "n1"}});
    let spec = |more: Value| {
        let mut spec = own.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let named = |name: &str, more: Value| json!({"metadata": {"name": name}, "spec": spec(more)});
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let instances = "/apis/apps.mainstay.dev/v1/namespaces/default/instances";
    let attacks = [
        (
            APPLICATIONS.to_owned(),
            named("evil", json!({"command": ["/bin/sh"], "scalingPolicy": {"minimumInstance": 1}})),
        ),
        (instances.to_owned(), named("evil", json!({"applicationName": "evil"}))),
        (maps("default"), named("evil", json!({}))),
        (maps("mainstay-system"), named("disks", json!({}))),
        (format!("{STORAGE}/replicatedstorageclasses"), named("evil", json!({}))),
        (format!("{STORAGE}/replicatedstoragepools"), named("evil", json!({}))),
        (
            format!("{STORAGE}/replicatedvolumes"),
            named("evil", json!({"size": "1Gi", "replicatedStorageClassName": "c"})),
        ),
        (
            format!("{STORAGE}/replicatedvolumereplicas"),
            named("evil-0", json!({"replicatedVolumeName": "evil", "type": "Diskful"})),
        ),
        (
            format!("{STORAGE}/replicatedvolumeattachments"),
            named("evil", json!({"replicatedVolumeName": "evil"})),
        ),
        ("/api/v1/namespaces".to_owned(), named("evil", json!({}))),
        (
            format!("{STORAGE}/blockdevices"),
            json!({"metadata": {"name": "evil"}, "spec": {"nodeName": "n2", "devPath": "/dev/y"}}),
        ),
        (
            format!("{STORAGE}/lvmvolumegroups"),
            json!({"metadata": {"name": "evil"}, "spec": {"local": {"nodeName": "n2"}, "nodeName": "n1"}}),
        ),
    ];
    for (path, body) in attacks {
        for path in [format!("{path}?dryRun=All"), path.clone()] {
            let (code, answer) = n1.call("POST", &path, Some(&body)).await;
            assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{path}: {answer}");
        }
        let name = body["metadata"]["name"].as_str().unwrap();
        let (code, answer) = admin.get(&format!("{path}/{name}")).await;
        assert_eq!(code, 404, "{path}/{name} was stored: {answer}");
    }
    let zone = json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}}});
    for (method, path) in [
        ("PATCH", "/api/v1/nodes/n1".to_owned()),
        ("PUT", "/api/v1/nodes/n1".to_owned()),
        ("PUT", "/api/v1/nodes/n2/status".to_owned()),
        ("GET", format!("{STORAGE}/blockdevices")),
        ("GET", "/api/v1/configmaps".to_owned()),
        ("GET", maps("mainstay-system")),
        ("GET", APPLICATIONS.to_owned()),
        ("GET", "/mainstay/v1/namespaces/default/instances/game-1/log".to_owned()),
        ("GET", "/mainstay/v1/sessions/pools".to_owned()),
        ("GET", "/v1/lvg/reservations".to_owned()),
        ("GET", "/rucio/ping".to_owned()),
        ("GET", "/metrics".to_owned()),
        ("GET", "/mainstay/v1/backup".to_owned()),
    ] {
        let body = ["PUT", "PATCH"].contains(&method).then_some(&zone);
        assert_eq!(n1.call(method, &path, body).await.0, 403, "{method} {path}");
    }
    // An object of another node is answered as one that does not exist.
    for (method, path) in [
        ("PUT", format!("{STORAGE}/blockdevices/NAME")),
        ("PUT", format!("{STORAGE}/blockdevices/NAME/status")),
        ("DELETE", format!("{STORAGE}/blockdevices/NAME")),
        ("DELETE", format!("{STORAGE}/lvmvolumegroups/NAME")),
        ("GET", format!("{STORAGE}/blockdevices/NAME")),
        ("GET", "/api/v1/namespaces/default/events/NAME".to_owned()),
    ] {
        let answers = ["other", "missing"].map(async |name| {
            let body = json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "devPath": "/dev/x"}});
            let body = (method == "PUT").then_some(&body);
            let (code, answer) = n1.call(method, &path.replace("NAME", name), body).await;
            (code, answer.to_string().replace(name, "NAME"))
        });
        let [other, missing] = answers;
        let (other, missing) = (other.await, missing.await);
        assert_eq!((other.0, &other), (404, &missing), "{method} {path}");
    }
    // Own objects cannot be moved to another node either, and a status write changes only the status.
    let devices = format!("{STORAGE}/blockdevices");
    let (_, mut device) = n1.get(&format!("{devices}/own")).await;
    device["spec"]["nodeName"] = json!("n2");
    let moved = n1.call("PUT", &format!("{devices}/own"), Some(&device)).await.0;
    assert!([403, 422].contains(&moved), "{moved}");
    let (_, mut node) = n1.get("/api/v1/nodes/n1").await;
    let labels = node["metadata"]["labels"].clone();
    node["metadata"]["labels"] = zone["metadata"]["labels"].clone();
    node["spec"] = json!({"unschedulable": true});
    node["status"]["capacity"] = json!({"cpu": "3"});
    assert_eq!(n1.call("PUT", "/api/v1/nodes/n1/status", Some(&node)).await.0, 200);
    let (_, node) = admin.get("/api/v1/nodes/n1").await;
    assert_eq!(node["status"]["capacity"]["cpu"], "3");
    assert_eq!(node["metadata"]["labels"], labels);
    assert_eq!(node["spec"]["unschedulable"], Value::Null);
    let event = |kind: &str, version: &str, name: &str| {
        json!({
            "metadata": {"generateName": "e-"}, "reportingInstance": "n1", "reportingComponent": "mainstay-agent",
            "involvedObject": {"apiVersion": version, "kind": kind, "name": name},
            "reason": "x", "message": "y", "type": "Normal",
        })
    };
    let device = |name: &str| event("BlockDevice", "storage.mainstay.dev/v1", name);
    for (body, expected) in [
        (event("Node", "v1", "n1"), 201),
        (event("Node", "v1", "n2"), 403),
        (event("Node", "v1", "n3"), 403),
        (device("own"), 201),
        (device("other"), 403),
        (event("ReplicatedVolume", "storage.mainstay.dev/v1", "v"), 403),
    ] {
        let code = n1.post("/api/v1/namespaces/default/events", body.clone()).await;
        assert_eq!(code, expected, "{body}");
    }
}

#[test]
fn an_agent_registers_only_under_the_name_of_its_credential() {
    let server = TestServer::start();
    let token = token(&server, &["node", "--node", "n1"]);
    // Simulated agents are called n1.0, n1.1 and so on.
    let mut agent = agent(&server, &token).args(["--simulate", "1"]).spawn().unwrap();
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    let refused = lines.find(|line| line.contains("a simulated node cannot join"));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let refused = refused.unwrap();
    assert!(refused.contains("the token is for node n1"), "{refused}");
}
