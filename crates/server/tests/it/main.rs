//! The server as its clients see it: over real sockets and real TLS, on every store; and through the
//! client half of its own dialect, a store like any other, which passes the suite that every store
//! must pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod applied;
mod audit;
mod client;
#[expect(dead_code, reason = "the store's tests hurt it in more ways")]
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;
#[path = "../../../store/tests/it/conformance.rs"]
mod conformance;
mod elsewhere;
mod heads;
mod hostile;
mod joining;
mod lifecycle;
mod lists;
#[path = "../../../store/tests/it/model.rs"]
mod model;
mod objects;
mod operators;
mod overload;
mod patience;
mod readiness;
mod refusals;
#[path = "../../../store/tests/it/resumed.rs"]
mod resumed;
mod several;
mod trust;
mod watches;
#[path = "../../../store/tests/it/words.rs"]
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainstay_client::{Access, Address, Client};
use mainstay_server::{Options, Running, Server};
use mainstay_store::builtin::Namespace;
use mainstay_store::cache::Retention;
use mainstay_store::clock::{ManualClock, SystemClock};
use mainstay_store::kubernetes::KubernetesStore;
use mainstay_store::meta::ObjectMeta;
use mainstay_store::object::Resource;
use mainstay_store::objects::{At, Objects};
use mainstay_store::registry::{Kind, Registry, builtin};
use mainstay_store::resources::WriteOptions;
use mainstay_store::schemars::JsonSchema;
use mainstay_store::typed;
use proptest::prelude::*;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use words::{block_on, create, delete, key, object, update, value};

/// A fruit with text in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "mainstay_store::schemars")]
struct Apple {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// Another one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "mainstay_store::schemars")]
struct Pear {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

typed!(Apple, group: "", version: "v1", plural: "apples", namespaced: true);
typed!(Pear, group: "fruit.dev", version: "v1", plural: "pears", namespaced: true);

fn registry() -> Arc<Registry> {
    let fruits = [Kind::of::<Apple>().build(), Kind::of::<Pear>().build()];
    Arc::new(Registry::new(builtin().into_iter().chain(fruits)).unwrap())
}

/// The backend under test.
#[derive(Clone, Copy, Debug)]
struct Backend;

const BACKENDS: [Backend; 1] = [Backend];

/// A server of its own, and a client of it, which can be closed and opened again.
struct Stage {
    retention: Retention,
    clock: Arc<ManualClock>,
    registry: Arc<Registry>,
    running: Running,
    access: Access,
    store: Arc<dyn Objects>,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn new(_: Backend, retention: Retention) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry();
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let data = folder.path().to_owned();
        let mut options = Options::new(anywhere, data, registry.clone(), SystemClock::new());
        options.settings.largest_object = 64 * 1024;
        let running = Server::start(options).await.unwrap();
        for name in ["a", "a-b", "b"] {
            let mut namespace = Namespace::default();
            namespace.metadata.name = name.to_owned();
            let options = WriteOptions::default();
            running.resources().create_as(&namespace, &options).await.unwrap();
        }
        let access = access(&running, None);
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let store = open(&running, &access, &registry, retention, &clock).await;
        Self { retention, clock, registry, running, access, store, _folder: folder }
    }

    /// The server keeps the objects, whatever becomes of its client.
    fn survives(&self) -> bool {
        true
    }

    /// A new client lists; what was before is not known to it.
    fn forgets(&self) -> bool {
        true
    }

    /// A client cannot make the server forget.
    fn compacts(&self) -> bool {
        false
    }

    /// An update that changes nothing keeps the resourceVersion, as in Kubernetes.
    fn ignores_unchanged(&self) -> bool {
        true
    }

    /// The server gives out identities itself.
    fn keeps_metadata(&self) -> bool {
        false
    }

    /// Reading a collection waits for everything this client was told of.
    async fn caught_up(&self) {
        for resource in conformance::both() {
            // A store that is closed catches up with nothing.
            let _ = self.store.collection(&resource, At::Latest).await;
        }
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        let Self { running, access, registry, retention, clock, .. } = self;
        self.store = open(running, access, registry, *retention, clock).await;
    }
}

async fn open(
    running: &Running,
    access: &Access,
    registry: &Arc<Registry>,
    retention: Retention,
    clock: &Arc<ManualClock>,
) -> Arc<dyn Objects> {
    let client =
        Arc::new(Client::new(vec![Address::parse(running.url()).unwrap()], access.clone()));
    let store = KubernetesStore::new(client, registry.clone(), clock.clone(), "conformance");
    let store = store.keeping(retention);
    for resource in conformance::both() {
        store.collection(&resource, At::Latest).await.unwrap();
    }
    Arc::new(store)
}

/// Somebody with this token; without one, who has the kubeconfig that the server wrote.
fn access(running: &Running, token: Option<String>) -> Access {
    let text = std::fs::read_to_string(running.kubeconfig()).unwrap();
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let token = token.unwrap_or_else(|| text(&config["users"][0]["user"]["token"]));
    let authority = text(&config["clusters"][0]["cluster"]["certificate-authority-data"]);
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&STANDARD.decode(authority).unwrap()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Access { tls: Some(Arc::new(config)), token: Some(token) }
}

/// Revisions are compared within one collection.
fn apples() -> Vec<Resource> {
    vec![Resource::new("", "apples")]
}

/// A few histories, or as many as `PROPTEST_CASES` asks for.
fn histories() -> ProptestConfig {
    let default = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig { cases: if asked { default.cases } else { 16 }, ..default }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn our_own_server_behaves_as_the_model(steps in conformance::steps(apples())) {
        block_on(async {
            let stage = Stage::new(Backend, conformance::short()).await;
            conformance::replay(stage, steps, apples()).await;
        });
    }
}
