//! A small cluster in one process.

use std::sync::Arc;
use std::time::Duration;

use mainstay_clock::{Clock, SystemClock};
use mainstay_store::builtin;
use mainstay_store::cache::Retention;
use mainstay_store::memory::MemoryStore;
use mainstay_store::objects::Objects;
use mainstay_store::registry::Registry;
use mainstay_store::resources::{
    DeleteOptions, RandomIdentities, Resources, Subresource, WriteOptions,
};
use mainstay_volumes::api::{ReplicatedVolume, ReplicatedVolumeReplica};
use mainstay_volumes::controller::{Options, Volumes};
use mainstay_volumes::extender::Client;
use serde_json::{Map, Value, json};

use crate::fake::Fake;
use crate::recorded::{GROUP, node};

pub(crate) fn store(clock: Arc<dyn Clock>) -> Arc<dyn Objects> {
    Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, clock))
}

pub(crate) fn resources(objects: Arc<dyn Objects>, clock: Arc<dyn Clock>) -> Resources {
    let kinds = builtin::kinds().into_iter().chain(mainstay_volumes::kinds());
    let registry = Arc::new(Registry::new(kinds).unwrap());
    Resources::new(objects, registry, clock, Arc::new(RandomIdentities))
}

/// A store, and the controllers over it.
pub(crate) struct Cluster {
    pub(crate) resources: Resources,
    pub(crate) volumes: Volumes,
}

impl Cluster {
    pub(crate) async fn new(extender: Option<&Fake>) -> Self {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let resources = resources(store(clock.clone()), clock);
        Self::over(resources, "server-a", extender).await
    }

    pub(crate) async fn over(resources: Resources, name: &str, extender: Option<&Fake>) -> Self {
        Self::start(resources, name, extender.map(Fake::url)).await
    }

    /// Starts with an external extender at this address.
    pub(crate) async fn asking(url: &str) -> Self {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let resources = resources(store(clock.clone()), clock);
        Self::start(resources, "server-a", Some(url.to_owned())).await
    }

    async fn start(resources: Resources, name: &str, extender: Option<String>) -> Self {
        let clock = resources.clock().clone();
        let mut options = Options::new(name);
        options.extender = extender.map(|url| Client::new(&url, None, clock).unwrap());
        let volumes = Volumes::start(&resources, options, None).await.unwrap();
        Self::with(resources, volumes).await
    }

    pub(crate) async fn with(resources: Resources, volumes: Volumes) -> Self {
        let cluster = Self { resources, volumes };
        let default =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        cluster.apply(default).await;
        cluster
    }

    /// Creates an object, its status too.
    pub(crate) async fn apply(&self, object: Value) {
        let Value::Object(object) = object else { panic!("not an object") };
        let text = |name: &str| object[name].as_str().unwrap().to_owned();
        let registry = self.resources.registry().clone();
        let kind = registry.by_kind(&text("apiVersion"), &text("kind")).unwrap().clone();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let options = WriteOptions::default();
        let status = object.get("status").cloned();
        match self.resources.create(&kind, None, object, &options).await {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => {}
            Err(error) => panic!("{error}"),
        }
        if let Some(status) = status {
            let edit = |old: &Map<String, Value>| {
                let mut new = old.clone();
                new.insert("status".to_owned(), status.clone());
                Ok(new)
            };
            let key = kind.key(None, &name);
            let part = Some(Subresource::Status);
            self.resources.modify(&kind, &key, part, &options, edit).await.unwrap();
        }
    }

    pub(crate) async fn node(&self, name: &str, zone: &str, ready: bool) {
        self.apply(node(name, zone, ready, true, false)).await;
    }

    pub(crate) async fn group(&self, name: &str, node: &str, size: &str) {
        self.apply(group(name, node, size)).await;
    }

    pub(crate) async fn replica(&self, name: &str) -> Option<ReplicatedVolumeReplica> {
        self.resources.get_as(None, name).await.unwrap()
    }

    pub(crate) async fn volume(&self, name: &str) -> Option<ReplicatedVolume> {
        self.resources.get_as(None, name).await.unwrap()
    }

    pub(crate) async fn replicas(&self, volume: &str) -> Vec<ReplicatedVolumeReplica> {
        let all: Vec<ReplicatedVolumeReplica> = self.resources.list_as(None).await.unwrap();
        all.into_iter().filter(|it| it.spec.replicated_volume_name == volume).collect()
    }

    pub(crate) async fn delete<T: mainstay_store::registry::Typed>(&self, name: &str) {
        let options = WriteOptions::default();
        let delete = DeleteOptions::default();
        self.resources.delete_as::<T>(None, name, &delete, &options).await.unwrap();
    }

    /// Waits until a condition holds, checking after every change.
    pub(crate) async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) {
        let objects = self.resources.objects().clone();
        let kind = self.resources.kind_of::<ReplicatedVolumeReplica>().unwrap().clone();
        let patience = Duration::from_secs(20);
        let waited = tokio::time::timeout(patience, async {
            while !holds().await {
                let before = objects.revision(kind.resource());
                while objects.revision(kind.resource()) == before && !holds().await {
                    tokio::task::yield_now().await;
                }
            }
        });
        assert!(waited.await.is_ok(), "timed out waiting for: {what}");
    }
}

pub(crate) fn group(name: &str, node: &str, size: &str) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "LVMVolumeGroup", "metadata": {"name": name},
        "spec": {"local": {"nodeName": node}},
        "status": {"phase": "Ready", "vgSize": size, "vgFree": size},
    })
}

pub(crate) fn class(name: &str, replication: &str, pool: &str) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "ReplicatedStorageClass", "metadata": {"name": name},
        "spec": {"storagePoolName": pool, "replication": replication},
    })
}

pub(crate) fn pool(name: &str, groups: &[&str]) -> Value {
    let groups: Vec<Value> = groups.iter().map(|group| json!({"name": group})).collect();
    json!({
        "apiVersion": GROUP, "kind": "ReplicatedStoragePool", "metadata": {"name": name},
        "spec": {"type": "LVM", "lvmVolumeGroups": groups},
    })
}

pub(crate) fn volume(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "ReplicatedVolume", "metadata": {"name": name},
        "spec": {"size": size, "replicatedStorageClassName": class},
    })
}
