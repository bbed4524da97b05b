//! Pools that cannot be used any more: they take no replicas at once, and there is a way out.

use mainstay_host::sim::Fate;
use mainstay_host::{Class, Space};

use super::rig::Rig;
use crate::api::BlockDevice;

async fn provisioned() -> (Rig, String) {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    // Until then the disk counts as the last operation left it.
    rig.advance(1).await;
    let name = rig.device("sda").await.metadata.name;
    (rig, name)
}

/// Why the pool takes no replicas, in one word.
fn unready(rig: &Rig, name: &str) -> Option<String> {
    rig.backend.registered()[name].0.unready.clone().map(|why| why.reason)
}

fn condition(device: &BlockDevice, kind: &str) -> bool {
    mainstay_controller::conditions::is_true(&device.status.conditions, kind, None)
}

#[tokio::test]
async fn a_disk_reformatted_by_others_is_not_taken_for_the_same_pool() {
    let (rig, name) = provisioned().await;
    let uuid = rig.device("sda").await.recorded_uuid().to_owned();
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "another");
    rig.host.edit_mounts(Vec::clear);
    rig.wait("sda", "Failed").await;
    let device = rig.device("sda").await;
    let failure = device.status.failure.clone().unwrap();
    assert_eq!(failure.reason, "FilesystemChanged");
    let said = &failure.message;
    assert!(
        said.contains("another") && said.contains(&uuid) && said.contains("spec.retry"),
        "{said}"
    );
    assert!(!condition(&device, "Provisioned"), "the conditions agree with the phase");
    assert_eq!(unready(&rig, &name).as_deref(), Some("FilesystemChanged"));
    assert_eq!(rig.host.count("mount sda"), 1, "the other filesystem is not mounted");
    rig.edit("sda", |device| device.spec.retry = "1".to_owned()).await;
    rig.wait("sda", "Failed").await;
    assert_eq!(rig.device("sda").await.recorded_uuid(), uuid, "nor adopted");
    rig.host.write_signature("sda", Class::Filesystem, "ext4", &uuid);
    rig.edit("sda", |device| device.spec.retry = "2".to_owned()).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(unready(&rig, &name), None);
    assert!(condition(&rig.device("sda").await, "Provisioned"));
}

#[tokio::test]
async fn a_filesystem_replaced_while_it_is_mounted_fails_the_pool() {
    let (rig, name) = provisioned().await;
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "another");
    rig.wait("sda", "Failed").await;
    assert_eq!(unready(&rig, &name).as_deref(), Some("FilesystemChanged"));
}

#[tokio::test]
async fn a_pool_without_superblock_is_given_up_in_a_documented_way() {
    let (rig, name) = provisioned().await;
    rig.backend.set_replicas(&name, &["rv-1-0"]);
    rig.host.edit("sda", |disk| disk.contents.signatures.clear());
    rig.advance(5).await;
    rig.wait("sda", "Failed").await;
    assert_eq!(unready(&rig, &name).as_deref(), Some("FilesystemMissing"));
    rig.edit("sda", |device| {
        device.spec.provision = false;
        device.spec.retry = "1".to_owned();
    })
    .await;
    rig.wait("sda", "Unprovisioning").await;
    assert!(rig.backend.is_closed(&name), "it waits for the replica");
    rig.backend.set_replicas(&name, &[]);
    rig.wait("sda", "Unprovisioned").await;
    assert!(rig.backend.registered().is_empty() && rig.host.mount_table().is_empty());
}

#[tokio::test]
async fn a_pool_that_cannot_be_mounted_takes_no_replicas_and_can_be_given_up() {
    let (rig, name) = provisioned().await;
    rig.host.fate("sda", "mount", Fate::Fails("no such device".to_owned()));
    rig.host.edit_mounts(Vec::clear);
    rig.wait("sda", "Failed").await;
    assert_eq!(unready(&rig, &name).as_deref(), Some("MountFailed"));
    let device = rig.device("sda").await;
    assert!(!condition(&device, "Provisioned") && !condition(&device, "Mounted"));
    rig.edit("sda", |device| {
        device.spec.provision = false;
        device.spec.retry = "1".to_owned();
    })
    .await;
    rig.wait("sda", "Formatted").await;
    assert!(rig.backend.registered().is_empty(), "no record is left over");
}

#[tokio::test]
async fn free_space_and_read_errors_are_reported_within_seconds() {
    let (rig, name) = provisioned().await;
    rig.advance(5).await;
    let space = Space { size: 10 << 30, free: 3 << 30, extent: 4 << 20, read_only: false };
    rig.host.set_space("sda", Ok(space));
    rig.advance(5).await;
    assert_eq!(rig.backend.space(&name), Some(space));
    rig.host.set_space("sda", Err("Input/output error".to_owned()));
    rig.advance(5).await;
    assert_eq!(unready(&rig, &name).as_deref(), Some("DiskUnreadable"));
    rig.host.set_space("sda", Ok(space));
    rig.advance(5).await;
    assert_eq!(unready(&rig, &name), None, "it answers again");
    rig.host.set_space("sda", Ok(Space { read_only: true, ..space }));
    rig.advance(5).await;
    rig.wait("sda", "Failed").await;
    assert_eq!(unready(&rig, &name).as_deref(), Some("ReadOnly"));
    rig.host.set_space("sda", Ok(space));
    rig.edit("sda", |device| device.spec.retry = "1".to_owned()).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(unready(&rig, &name), None);
}
