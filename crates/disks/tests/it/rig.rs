//! An agent's disks on the loop devices of a yard.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_clock::SystemClock;
use mainstay_disks::api::BlockDevice;
use mainstay_disks::backend::MemoryBackend;
use mainstay_disks::memory::Memory;
use mainstay_disks::metrics::Metrics;
use mainstay_disks::{Disks, Options, Parts};
use mainstay_host::linux::{self, LinuxHost};
use mainstay_store::builtin::{ConfigMap, Namespace};
use mainstay_store::objects::{At, Objects};
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources, WriteOptions};
use mainstay_store::{Location, Settings};

use crate::yard::{PATIENCE, Yard};

/// LVM looks at every disk, also at one that another test has frozen: one or the other.
pub(crate) static FREEZING: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Objects in a store.
pub(crate) async fn resources(location: &Location) -> (Resources, Arc<dyn Objects>) {
    let clock = SystemClock::new();
    let store = mainstay_store::open(location, &Settings::default(), clock.clone()).await.unwrap();
    let registry = Registry::new(builtin().into_iter().chain(mainstay_disks::kinds())).unwrap();
    let identities = Arc::new(RandomIdentities);
    let resources = Resources::new(store.clone(), Arc::new(registry), clock, identities);
    for name in ["default", "mainstay-system"] {
        let mut namespace = Namespace::default();
        namespace.metadata.name = name.to_owned();
        match resources.create_as(&namespace, &WriteOptions::default()).await {
            Err(error) if !error.is_already_exists() => panic!("{error}"),
            _ => {}
        }
    }
    (resources, store)
}

/// How the disks of a yard are looked after.
pub(crate) fn options(yard: &Yard, devices: &[String]) -> Options {
    let mut options = Options::new("n1", &yard.text("mnt"));
    options.grace = Duration::from_secs(2);
    options.devices = devices.to_vec();
    options
}

/// The parts of an agent on the devices of a yard.
pub(crate) fn parts(yard: &Yard, resources: &Resources, devices: &[String]) -> Parts {
    let mut path = yard.path("bin").into_os_string();
    path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
    let host = LinuxHost::new(linux::Options {
        state_dir: yard.path("state"),
        loops: devices.to_vec(),
        path: Some(path),
        ..linux::Options::default()
    });
    Parts {
        resources: resources.clone(),
        identities: Arc::new(RandomIdentities),
        host: Arc::new(host.unwrap()),
        backend: Arc::new(MemoryBackend::default()),
        memory: Arc::new(Memory::open(&yard.path("state/wanted.json")).unwrap()),
        metrics: Arc::new(Metrics::default()),
    }
}

/// A yard and an agent in this process.
pub(crate) struct Rig {
    pub(crate) yard: Yard,
    pub(crate) resources: Resources,
    pub(crate) devices: Vec<String>,
    pub(crate) parts: Option<Parts>,
    pub(crate) options: Options,
    pub(crate) disks: Option<Disks>,
}

impl Rig {
    pub(crate) async fn new(yard: Yard, devices: &[String]) -> Self {
        let (resources, _) = resources(&Location::Memory).await;
        let options = options(&yard, devices);
        Self { resources, devices: devices.to_vec(), parts: None, options, disks: None, yard }
    }

    pub(crate) async fn start(&mut self) {
        let fresh = parts(&self.yard, &self.resources, &self.devices);
        let parts = match self.parts.take() {
            Some(known) => Parts { host: fresh.host, ..known },
            None => fresh,
        };
        self.disks = Some(Disks::start(self.options.clone(), parts.clone()).await.unwrap());
        self.parts = Some(parts);
    }

    pub(crate) async fn stop(&mut self) {
        if let Some(disks) = self.disks.take() {
            disks.shutdown().await;
        }
    }

    pub(crate) async fn device(&self, path: &str) -> BlockDevice {
        self.wait(path, "known", |_| true).await
    }

    pub(crate) async fn wait(
        &self,
        path: &str,
        what: &str,
        wanted: impl Fn(&BlockDevice) -> bool,
    ) -> BlockDevice {
        wait(&self.resources, path, what, wanted).await
    }

    pub(crate) async fn phase(&self, path: &str, phase: &str) -> BlockDevice {
        self.wait(path, phase, |device| device.status.provision_phase == phase).await
    }

    pub(crate) async fn edit(&self, path: &str, edit: impl FnMut(&mut BlockDevice) + Send) {
        let name = self.device(path).await.metadata.name;
        let options = WriteOptions::default();
        self.resources.modify_as(None, &name, None, &options, edit).await.unwrap();
    }

    /// Asks for a disk to be formatted and provisioned.
    pub(crate) async fn want(&self, path: &str) {
        self.edit(path, |device| {
            device.spec.provision = true;
            device.spec.file_system.force_formatted = true;
        })
        .await;
    }
}

/// Waits until the object of a path is as it should be.
pub(crate) async fn wait(
    resources: &Resources,
    path: &str,
    what: &str,
    wanted: impl Fn(&BlockDevice) -> bool,
) -> BlockDevice {
    let kind = resources.kind_of::<BlockDevice>().unwrap().clone();
    let last = Mutex::new(None);
    let looking = async {
        loop {
            let all = resources.list(&kind, At::Latest).await.unwrap();
            for record in all.range(None, None) {
                let device: BlockDevice = mainstay_store::resources::decode(record).unwrap();
                let status = &device.status.device_status.dev_path;
                if status == path || (status.is_empty() && device.spec.dev_path == path) {
                    if wanted(&device) {
                        return device;
                    }
                    *last.lock().unwrap() = Some(device);
                }
            }
            let mut watch = resources.watch(&kind, None, None, all.revision()).await.unwrap();
            watch.next().await.unwrap();
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(device) => device,
        Err(_) => panic!("{path}: never {what}: {:#?}", last.lock().unwrap()),
    }
}

/// Writes the rules of auto-provisioning.
pub(crate) async fn configure(resources: &Resources, rules: &str) {
    let mut map = ConfigMap::default();
    map.metadata.name = "disks".to_owned();
    map.metadata.namespace = Some("mainstay-system".to_owned());
    map.data = [("autoprovision.yaml".to_owned(), rules.to_owned())].into();
    resources.create_as(&map, &WriteOptions::default()).await.unwrap();
}
