//! Loop devices that clean up after themselves, and an agent's disks on top of them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_disks::api::BlockDevice;
use mainstay_disks::host::linux::{self, LinuxHost};
use mainstay_disks::memory::Memory;
use mainstay_disks::metrics::Metrics;
use mainstay_disks::sim::MemoryBackend;
use mainstay_disks::{Disks, Options, Parts};
use mainstay_store::builtin::{ConfigMap, Namespace};
use mainstay_store::clock::SystemClock;
use mainstay_store::objects::{At, Objects};
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources, WriteOptions};
use mainstay_store::{Location, Settings};

/// LVM looks at every disk, also at one that another test has frozen: one or the other.
pub(crate) static FREEZING: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether this machine can run these tests; fails where they must run.
pub(crate) fn possible() -> bool {
    let tools = ["losetup", "mkfs.ext4", "mkfs.xfs", "pvcreate", "wipefs", "blkid", "partx"];
    let missing: Vec<_> = tools.iter().filter(|tool| find(tool).is_none()).collect();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    if root && missing.is_empty() {
        return true;
    }
    let why = format!("root: {root}, missing: {missing:?}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must run the tests of disks: {why}");
    eprintln!("!!! NOT TESTED on real loop devices: {why} !!!");
    false
}

fn find(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Where the real program of a name is.
pub(crate) fn real(name: &str) -> String {
    find(name).unwrap().display().to_string()
}

pub(crate) fn attempt(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LVM_SUPPRESS_FD_WARNINGS", "1");
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let said = attempt(program, arguments);
    let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{program} {arguments:?}: {complaint}");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// A folder with loop devices; everything goes with it.
pub(crate) struct Yard {
    folder: Option<tempfile::TempDir>,
    pub(crate) root: PathBuf,
    loops: Mutex<Vec<String>>,
    mounts: Mutex<Vec<PathBuf>>,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mainstay-disks-").tempdir().unwrap();
        for inside in ["mnt", "state", "bin"] {
            std::fs::create_dir(folder.path().join(inside)).unwrap();
        }
        let root = folder.path().to_owned();
        Self { folder: Some(folder), root, loops: Mutex::default(), mounts: Mutex::default() }
    }

    /// The yard of another process, which looks after it.
    pub(crate) fn of(root: &Path) -> Self {
        Self {
            folder: None,
            root: root.to_owned(),
            loops: Mutex::default(),
            mounts: Mutex::default(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A sparse file of so many MiB.
    pub(crate) fn image(&self, name: &str, mib: u64) -> PathBuf {
        let file = self.path(name);
        File::create(&file).unwrap().set_len(mib << 20).unwrap();
        file
    }

    /// A loop device on a file.
    pub(crate) fn attach(&self, image: &Path, more: &[&str]) -> String {
        let image = image.display().to_string();
        let device = run("losetup", &[&["--find", "--show"][..], more, &[image.as_str()]].concat());
        self.loops.lock().unwrap().push(device.clone());
        device
    }

    pub(crate) fn detach(&self, device: &str) {
        run("losetup", &["--detach", device]);
        self.loops.lock().unwrap().retain(|known| known != device);
    }

    /// A blank disk of so many MiB.
    pub(crate) fn disk(&self, name: &str, mib: u64) -> String {
        self.attach(&self.image(name, mib), &[])
    }

    /// Mounts something that must go in the end.
    pub(crate) fn mount(&self, arguments: &[&str], name: &str) -> PathBuf {
        let point = self.path(name);
        std::fs::create_dir(&point).unwrap();
        let place = point.display().to_string();
        run("mount", &[arguments, &[place.as_str()]].concat());
        self.mounts.lock().unwrap().push(point.clone());
        point
    }

    /// A program that is found before the real one of that name.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn unprogram(&self, name: &str) {
        std::fs::remove_file(self.path("bin").join(name)).unwrap();
    }

    /// A program that says when it begins, and goes on when it is told to.
    pub(crate) fn slow(&self, name: &str) -> Valve {
        let [begun, go, pid, log] =
            ["begun", "go", "pid", "log"].map(|part| self.text(&format!("{name}.{part}")));
        run("mkfifo", &[&begun, &go]);
        let real = real(name);
        let script = format!(
            "echo run >> {log}\necho $$ > {pid}\necho begun > {begun}\nread word < {go}\nexec {real} \"$@\""
        );
        self.program(name, &script);
        Valve { begun, go, pid, log }
    }

    /// What is mounted under the yard's mount root.
    pub(crate) fn mount_table(&self) -> Vec<String> {
        let root = self.text("mnt");
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = text.lines().filter_map(|line| line.split(' ').nth(4).map(str::to_owned));
        points.filter(|point| point.starts_with(&root)).collect()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if self.folder.is_none() {
            return;
        }
        let noted = std::mem::take(&mut *self.mounts.lock().unwrap());
        for point in &noted {
            let _ = attempt("fsfreeze", &["--unfreeze", &point.display().to_string()]);
        }
        for point in self.mount_table() {
            let _ = attempt("umount", &[&point]);
        }
        for device in self.loops.lock().unwrap().iter().rev() {
            let groups = attempt("pvs", &["--noheadings", "-o", "vg_name", device]);
            let group = String::from_utf8_lossy(&groups.stdout).trim().to_owned();
            if group.starts_with("mainstaytest") {
                let _ = attempt("vgremove", &["--force", &group]);
            }
            for point in &noted {
                let _ = attempt("umount", &[&point.display().to_string()]);
            }
            let _ = attempt("partx", &["--delete", device]);
            let _ = attempt("losetup", &["--detach", device]);
        }
        for point in noted {
            let _ = attempt("umount", &[&point.display().to_string()]);
        }
    }
}

/// Holds a slowed program back.
pub(crate) struct Valve {
    begun: String,
    go: String,
    pid: String,
    log: String,
}

impl Valve {
    /// Waits until the program has begun.
    pub(crate) async fn begun(&self) {
        let pipe = self.begun.clone();
        let wait = tokio::task::spawn_blocking(move || {
            let mut word = String::new();
            File::open(pipe).unwrap().read_to_string(&mut word).unwrap();
        });
        tokio::time::timeout(PATIENCE, wait).await.expect("the program never began").unwrap();
    }

    /// Lets it go on.
    pub(crate) async fn go(&self) {
        let pipe = self.go.clone();
        let write = tokio::task::spawn_blocking(move || {
            File::create(pipe).unwrap().write_all(b"go\n").unwrap();
        });
        tokio::time::timeout(PATIENCE, write).await.expect("nobody waited").unwrap();
    }

    /// Ends it with kill -9.
    pub(crate) fn kill(&self) {
        let pid = std::fs::read_to_string(&self.pid).unwrap();
        run("sh", &["-c", &format!("kill -9 {}", pid.trim())]);
    }

    /// How often it was run.
    pub(crate) fn runs(&self) -> usize {
        std::fs::read_to_string(&self.log).map(|text| text.lines().count()).unwrap_or(0)
    }
}

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
