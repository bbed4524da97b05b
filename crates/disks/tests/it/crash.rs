//! kill -9 in the middle of every operation, and a second start.
//!
//! The agent is this same program in a process of its own, on objects in a file, so that it can be
//! killed for good while its children live on.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mainstay_disks::Disks;
use mainstay_disks::api::BlockDevice;
use mainstay_store::Location;
use mainstay_store::resources::WriteOptions;

use crate::rig::{FREEZING, configure, options, parts, resources, wait};
use crate::yard::{Valve, Yard, possible, real, run};

/// Where the child finds its yard; set for the child only.
const FOLDER: &str = "MAINSTAY_TEST_AGENT_FOLDER";
const DEVICES: &str = "MAINSTAY_TEST_AGENT_DEVICES";

/// The agent itself; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let devices: Vec<String> =
        std::env::var(DEVICES).unwrap().split(',').map(str::to_owned).collect();
    let yard = Yard::of(&PathBuf::from(folder));
    let (resources, _store) = resources(&place(&yard)).await;
    let parts = parts(&yard, &resources, &devices);
    let disks = Disks::start(options(&yard, &devices), parts).await.unwrap();
    std::future::pending::<()>().await;
    disks.shutdown().await;
}

/// A yard with one blank disk.
fn one_disk() -> (Yard, [String; 1]) {
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    (yard, [device])
}

struct Agent(Child);

impl Agent {
    fn start(yard: &Yard, devices: &[String]) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::agent_process", "--exact", "--nocapture"])
            .env(FOLDER, &yard.root)
            .env(DEVICES, devices.join(","))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// kill -9: its children live on.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn place(yard: &Yard) -> Location {
    Location::Sqlite(yard.path("objects.db"))
}

/// Asks for every device by a rule, so that the test need not write while the agent runs.
async fn ask(yard: &Yard, devices: &[String], provisioner: &str) {
    let (resources, store) = resources(&place(yard)).await;
    let list = devices.join(", ");
    configure(&resources, &format!("[{{hostname: '*', devices: [{list}]{provisioner}}}]")).await;
    store.close().await;
}

/// Asks for a disk, and kills the agent while its mkfs waits.
async fn killed_in_mkfs(yard: &Yard, devices: &[String]) -> Valve {
    let valve = yard.slow("mkfs.ext4");
    ask(yard, devices, "").await;
    let mut agent = Agent::start(yard, devices);
    valve.begun().await;
    agent.kill();
    valve
}

/// Runs an agent in this process on the objects of the dead one until a disk has settled.
async fn finish(yard: &Yard, devices: &[String; 1], phase: &str) -> BlockDevice {
    let (resources, store) = resources(&place(yard)).await;
    let parts = parts(yard, &resources, devices);
    let disks = Disks::start(options(yard, devices), parts).await.unwrap();
    let object = wait(&resources, &devices[0], phase, |object| {
        object.status.provision_phase == phase && object.status.operation.is_none()
    })
    .await;
    disks.shutdown().await;
    store.close().await;
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_its_mkfs_it_formats_once_more_and_mounts() {
    if !possible() {
        return;
    }
    let (yard, devices) = one_disk();
    let valve = killed_in_mkfs(&yard, &devices).await;
    valve.kill();
    yard.unprogram("mkfs.ext4");
    let object = finish(&yard, &devices, "Provisioned").await;
    assert_eq!(yard.mount_table().len(), 1, "{object:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mkfs_that_outlives_its_agent_is_waited_for_and_its_work_accepted() {
    if !possible() {
        return;
    }
    let (yard, devices) = one_disk();
    let valve = killed_in_mkfs(&yard, &devices).await;
    let (resources, store) = resources(&place(&yard)).await;
    let parts = parts(&yard, &resources, &devices);
    let disks = Disks::start(options(&yard, &devices), parts).await.unwrap();
    assert_eq!(valve.runs(), 1, "no second one beside the first");
    valve.go().await;
    let wanted = |object: &BlockDevice| object.status.provision_phase == "Provisioned";
    let object = wait(&resources, &devices[0], "Provisioned", wanted).await;
    assert_eq!(valve.runs(), 1, "what the first one made was accepted: {object:?}");
    assert_eq!(yard.mount_table().len(), 1);
    disks.shutdown().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_a_mount_it_mounts_no_second_time() {
    if !possible() {
        return;
    }
    let (yard, devices) = one_disk();
    // Mounts at once, says so, and then waits for ever.
    let (begun, never, pid) = (yard.text("begun"), yard.text("never"), yard.text("pid"));
    run("mkfifo", &[&begun, &never]);
    let script = format!(
        "{} \"$@\" || exit $?\necho $$ > {pid}\necho done > {begun}\nread word < {never}",
        real("mount")
    );
    yard.program("mount", &script);
    ask(&yard, &devices, "").await;
    let mut agent = Agent::start(&yard, &devices);
    let mounted = tokio::task::spawn_blocking(move || std::fs::read_to_string(begun).unwrap());
    mounted.await.unwrap();
    agent.kill();
    run("sh", &["-c", &format!("kill -9 $(cat {pid})")]);
    yard.unprogram("mount");
    finish(&yard, &devices, "Provisioned").await;
    assert_eq!(yard.mount_table().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_other_lock_phases_it_goes_on() {
    if !possible() {
        return;
    }
    let _thawed = FREEZING.read().await;
    let group = format!("mainstaytestk{}", std::process::id());
    let lvm = format!(", provisioner: {{lvm: {{vgName: {group}}}}}");
    for (program, provisioner, back, end) in [
        ("umount", "", true, "Formatted"),
        ("pvcreate", lvm.as_str(), false, "Provisioned"),
        ("vgremove", lvm.as_str(), true, "Unprovisioned"),
    ] {
        let (yard, devices) = one_disk();
        ask(&yard, &devices, provisioner).await;
        if back {
            let object = finish(&yard, &devices, "Provisioned").await;
            let (resources, store) = resources(&place(&yard)).await;
            let (name, options) = (object.metadata.name, WriteOptions::default());
            let give_back = |object: &mut BlockDevice| object.spec.provision = false;
            resources.modify_as(None, &name, None, &options, give_back).await.unwrap();
            store.close().await;
        }
        let valve = yard.slow(program);
        let mut agent = Agent::start(&yard, &devices);
        valve.begun().await;
        agent.kill();
        valve.go().await;
        yard.unprogram(program);
        let object = finish(&yard, &devices, end).await;
        assert!(object.status.failure.is_none(), "{program}: {object:?}");
    }
}
