//! The same conflicts on every store: of two writers of one version, one wins.

use mainstay_disks::api::BlockDevice;
use mainstay_store::Location;
use mainstay_store::resources::{Resources, Subresource, WriteOptions};

use crate::rig::resources;

async fn conflicts(resources: &Resources) {
    let (name, options) = ("d1", WriteOptions::default());
    let mut device = BlockDevice::default();
    device.metadata.name = name.to_owned();
    device.spec.node_name = "n1".to_owned();
    device.spec.dev_path = "/dev/sda".to_owned();
    let first = resources.create_as(&device, &options).await.unwrap();
    // Both computed a lock from the same version.
    let lock = |phase: &str| {
        let mut locked = first.clone();
        locked.status.provision_phase = phase.to_owned();
        locked
    };
    let (one, two) = (lock("Formatting"), lock("Mounting"));
    let (one, two) = tokio::join!(
        resources.replace_status_as(&one, &options),
        resources.replace_status_as(&two, &options),
    );
    let lost = match (one, two) {
        (Ok(_), Err(lost)) | (Err(lost), Ok(_)) => lost,
        both => panic!("exactly one must win: {both:?}"),
    };
    assert!(lost.is_conflict(), "{lost}");
    // An edit of the spec in between does not lose the outcome.
    let tag = |device: &mut BlockDevice| device.spec.tags = vec!["a".to_owned()];
    let done = |device: &mut BlockDevice| device.status.provision_phase = "Formatted".to_owned();
    let (tagged, ended) = tokio::join!(
        resources.modify_as(None, name, None, &options, tag),
        resources.modify_as(None, name, Some(Subresource::Status), &options, done),
    );
    tagged.unwrap();
    ended.unwrap();
    let last = resources.get_as::<BlockDevice>(None, name).await.unwrap().unwrap();
    assert_eq!(last.spec.tags, ["a"]);
    assert_eq!(last.status.provision_phase, "Formatted");
}

#[tokio::test]
async fn conflicts_in_memory_and_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    for location in [Location::Memory, Location::Sqlite(folder.path().join("objects.db"))] {
        let (resources, store) = resources(&location).await;
        conflicts(&resources).await;
        store.close().await;
    }
}

#[tokio::test]
async fn conflicts_on_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    let (resources, store) = resources(&etcd.url.parse().unwrap()).await;
    conflicts(&resources).await;
    store.close().await;
}

/// A private etcd on free ports.
struct Etcd {
    child: std::process::Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Etcd {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let free = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let (client, peer) = (free(), free());
        let (at, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let child = std::process::Command::new("etcd")
            .args(["--data-dir", &folder.path().display().to_string()])
            .args(["--listen-client-urls", &at, "--advertise-client-urls", &at])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must test etcd: {error}");
                eprintln!("!!! NOT TESTED on etcd: {error} !!!");
                return None;
            }
        };
        let url = format!("etcd://127.0.0.1:{client}");
        let etcd = Self { child, url, _folder: folder };
        let health = ["--dial-timeout=30s", "--command-timeout=30s", "endpoint", "health"];
        let ready = std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &at])
            .args(health)
            .output();
        assert!(ready.is_ok_and(|said| said.status.success()), "etcd does not answer");
        Some(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
