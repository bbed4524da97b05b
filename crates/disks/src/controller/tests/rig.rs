//! A machine, a store and a clock, and the questions tests ask of them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::ManualClock;
use mainstay_host::sim::SimHost;
use mainstay_store::builtin::{ConfigMap, Namespace};
use mainstay_store::cache::Retention;
use mainstay_store::memory::MemoryStore;
use mainstay_store::objects::{Error, Write};
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{CountingIdentities, DeleteOptions, Resources, WriteOptions};

use super::faulty::Faulty;
pub(super) use super::yielding::{settle, until};
use crate::api::BlockDevice;
use crate::backend::MemoryBackend;
use crate::controller::{Disks, Options, Parts};
use crate::memory::Memory;
use crate::metrics::Metrics;

/// One node and all around it.
pub(super) struct Rig {
    pub(super) clock: Arc<ManualClock>,
    pub(super) store: Arc<Faulty>,
    pub(super) resources: Resources,
    pub(super) host: SimHost,
    pub(super) backend: Arc<MemoryBackend>,
    memory: Arc<Memory>,
    identities: Arc<CountingIdentities>,
    pub(super) options: Options,
    pub(super) disks: Option<Disks>,
}

impl Rig {
    /// A node whose agent has not started.
    pub(super) async fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_second(1_767_225_600).unwrap());
        let memory = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
        let store = Faulty::new(Arc::new(memory));
        let registry = Registry::new(builtin().into_iter().chain(crate::kinds())).unwrap();
        let identities = Arc::new(CountingIdentities::default());
        let resources =
            Resources::new(store.clone(), Arc::new(registry), clock.clone(), identities.clone());
        for name in ["default", "mainstay-system"] {
            let mut namespace = Namespace::default();
            namespace.metadata.name = name.to_owned();
            resources.create_as(&namespace, &WriteOptions::default()).await.unwrap();
        }
        Self {
            host: SimHost::new(clock.clone()),
            backend: Arc::default(),
            memory: Arc::new(Memory::fleeting()),
            options: Options::new("n1", "/mnt"),
            clock,
            store,
            resources,
            identities,
            disks: None,
        }
    }

    /// A node with these blank disks, whose agent runs.
    pub(super) async fn with(names: &[&str]) -> Self {
        let mut rig = Self::new().await;
        for name in names {
            rig.host.attach(SimHost::disk(name, 10 << 30));
        }
        rig.start().await;
        rig
    }

    pub(super) fn parts(&self) -> Parts {
        Parts {
            resources: self.resources.clone(),
            identities: self.identities.clone(),
            host: Arc::new(self.host.clone()),
            backend: self.backend.clone(),
            memory: self.memory.clone(),
            metrics: Arc::new(Metrics::default()),
        }
    }

    pub(super) async fn start(&mut self) {
        let disks = Disks::start(self.options.clone(), self.parts()).await.unwrap();
        self.disks = Some(disks);
        settle().await;
    }

    /// Ends the agent in the middle of whatever it does, as kill -9 would.
    pub(super) async fn crash(&mut self) {
        if let Some(disks) = self.disks.take() {
            disks.crash().await;
        }
        settle().await;
    }

    pub(super) async fn all(&self) -> Vec<BlockDevice> {
        self.resources.list_as::<BlockDevice>(None).await.unwrap()
    }

    /// The object of the disk at `/dev/NAME`.
    pub(super) async fn device(&self, name: &str) -> BlockDevice {
        let path = format!("/dev/{name}");
        let all = self.all().await;
        let at = |device: &&BlockDevice| {
            let status = &device.status.device_status.dev_path;
            *status == path || (status.is_empty() && device.spec.dev_path == path)
        };
        all.iter().find(at).unwrap_or_else(|| panic!("no object for {path}: {all:#?}")).clone()
    }

    pub(super) async fn phase(&self, name: &str) -> String {
        self.device(name).await.status.provision_phase
    }

    /// Waits until the disk at `/dev/NAME` is in a phase.
    pub(super) async fn wait(&self, name: &str, phase: &str) {
        for _ in 0..2_000 {
            let now = self.phase(name).await;
            if now == phase {
                settle().await;
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{name} never became {phase}: {:#?}", self.device(name).await.status);
    }

    /// Changes the spec of a disk's object, as a person would.
    pub(super) async fn edit(&self, name: &str, mut edit: impl FnMut(&mut BlockDevice) + Send) {
        let object = self.device(name).await.metadata.name;
        let options = WriteOptions::default();
        let edited = self.resources.modify_as(None, &object, None, &options, |device| edit(device));
        edited.await.unwrap();
        settle().await;
    }

    /// Asks for a disk to be formatted and provisioned.
    pub(super) async fn want(&self, name: &str) {
        self.edit(name, |device| {
            device.spec.provision = true;
            device.spec.file_system.force_formatted = true;
        })
        .await;
    }

    pub(super) async fn delete(&self, name: &str) {
        let object = self.device(name).await.metadata.name;
        let (delete, write) = (DeleteOptions::default(), WriteOptions::default());
        self.resources.delete_as::<BlockDevice>(None, &object, &delete, &write).await.unwrap();
        settle().await;
    }

    pub(super) async fn configure(&self, data: &[(&str, &str)]) {
        let mut map = ConfigMap::default();
        map.metadata.name = "disks".to_owned();
        map.metadata.namespace = Some("mainstay-system".to_owned());
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        map.data = data.iter().map(own).collect();
        let options = WriteOptions::default();
        match self.resources.create_as(&map, &options).await {
            Err(error) if error.is_already_exists() => {
                self.resources.replace_as(&map, &options).await.unwrap();
            }
            created => drop(created.unwrap()),
        }
        settle().await;
    }

    /// Makes every write of a BlockDevice fail.
    pub(super) fn refuse_writes(&self, error: fn() -> Error) {
        self.store.set(move |write: &Write| {
            write.key.resource().as_str().starts_with("blockdevices").then(error)
        });
    }

    pub(super) async fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        settle().await;
    }
}
