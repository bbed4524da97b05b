//! The ordinary paths, there and back.

use std::time::Duration;

use mainstay_host::sim::Fate;
use mainstay_host::{Class, MountLine};

use super::rig::{Rig, settle};

#[tokio::test]
async fn a_blank_disk_walks_to_provisioned_and_back() {
    let rig = Rig::with(&["sda"]).await;
    assert_eq!(rig.phase("sda").await, "Unprovisioned");
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let device = rig.device("sda").await;
    let point = format!("/mnt/{}", device.metadata.name);
    assert_eq!(rig.host.mount_table()[0].point, point);
    assert_eq!(device.status.device_status.file_system.mount_point, point);
    assert_eq!(rig.backend.registered().len(), 1);
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
    assert_eq!(rig.host.audit_lines().len(), 1, "one line before the one destructive act");
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Formatted").await;
    assert!(rig.backend.registered().is_empty());
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda", "umount sda"]);
    rig.edit("sda", |device| device.spec.provision = true).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 1, "the request was answered once");
}

#[tokio::test]
async fn a_disk_becomes_a_volume_group_and_is_given_back() {
    let rig = Rig::with(&["sda"]).await;
    let lvm = serde_json::from_value(serde_json::json!({"lvm": {"vgName": "vg1"}})).unwrap();
    rig.edit("sda", |device| {
        device.spec.provisioner = Some(Clone::clone(&lvm));
        device.spec.provision = true;
        device.spec.file_system.force_formatted = true;
    })
    .await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["vgcreate sda"]);
    assert_eq!(rig.device("sda").await.recorded_uuid(), "pv-vg1");
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Unprovisioned").await;
    assert_eq!(rig.host.log(), ["vgcreate sda", "vgremove sda"]);
    settle().await;
    assert_eq!(rig.phase("sda").await, "Unprovisioned", "it is not taken again");
}

#[tokio::test]
async fn a_volume_group_is_refused_whose_name_another_group_of_the_machine_has() {
    let mut rig = Rig::new().await;
    rig.options.devices = vec!["/dev/sda".to_owned()];
    for name in ["sda", "sdb"] {
        rig.host.attach(mainstay_host::sim::SimHost::disk(name, 10 << 30));
    }
    rig.host.write_signature("sdb", mainstay_host::Class::Lvm, "LVM2_member", "pv-root");
    rig.start().await;
    let lvm = serde_json::from_value(serde_json::json!({"lvm": {"vgName": "root"}})).unwrap();
    rig.edit("sda", |device| device.spec.provisioner = Some(Clone::clone(&lvm))).await;
    rig.want("sda").await;
    rig.wait("sda", "Failed").await;
    let failure = rig.device("sda").await.status.failure.unwrap();
    let said = &failure.message;
    assert_eq!(failure.reason, "Refused");
    assert!(said.contains("volume group root (UUID vg-sdb, on /dev/sdb)"), "{said}");
    assert!(rig.host.log().is_empty(), "nothing was written");
}

#[tokio::test]
async fn unprovisioning_waits_for_replicas_without_a_slot() {
    let mut rig = Rig::new().await;
    rig.options.slots = std::num::NonZeroUsize::MIN;
    for name in ["sda", "sdb"] {
        rig.host.attach(mainstay_host::sim::SimHost::disk(name, 10 << 30));
    }
    rig.start().await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let name = rig.device("sda").await.metadata.name;
    rig.backend.set_replicas(&name, &["rv-1-0", "rv-2-0"]);
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Unprovisioning").await;
    assert!(rig.backend.is_closed(&name));
    let condition = |device: &crate::api::BlockDevice| {
        let list = &device.status.conditions;
        mainstay_controller::conditions::get(list, "Provisioned").unwrap().clone()
    };
    let said = condition(&rig.device("sda").await);
    assert_eq!(said.reason, "Evicting");
    assert!(said.message.ends_with("rv-1-0, rv-2-0"), "they are named: {}", said.message);
    rig.want("sdb").await;
    rig.wait("sdb", "Provisioned").await;
    rig.edit("sda", |device| device.spec.provision = true).await;
    assert_eq!(rig.phase("sda").await, "Unprovisioning", "it completes first");
    rig.backend.set_replicas(&name, &[]);
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 1);
}

#[tokio::test]
async fn a_failed_operation_is_retried_only_on_request() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Fails("no space left".to_owned()));
    rig.want("sda").await;
    rig.wait("sda", "Failed").await;
    for _ in 0..5 {
        rig.host.poke("sda");
        rig.advance(3_600).await;
    }
    assert_eq!((rig.phase("sda").await.as_str(), rig.host.count("mkfs sda")), ("Failed", 1));
    let failure = rig.device("sda").await.status.failure.unwrap();
    assert!(failure.message.contains("no space left") && failure.message.contains("spec.retry"));
    rig.host.fate("sda", "mkfs", Fate::Takes(Duration::ZERO));
    rig.edit("sda", |device| device.spec.tags = vec!["a".to_owned()]).await;
    assert_eq!(rig.phase("sda").await, "Failed", "an edit of something else is no reason");
    rig.edit("sda", |device| device.spec.retry = "1".to_owned()).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 2);
    assert!(rig.device("sda").await.status.failure.is_none());
}

#[tokio::test]
async fn a_damaged_filesystem_is_repaired_or_formatted_on_request() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    rig.host.fate("sda", "mount", Fate::BadSuperblock);
    rig.host.edit_mounts(Vec::clear);
    rig.wait("sda", "Failed").await;
    let status = rig.device("sda").await.status;
    assert!(status.device_status.file_system.corrupted);
    assert_eq!(status.failure.unwrap().reason, "Corrupted");
    rig.host.fate("sda", "mount", Fate::Takes(Duration::ZERO));
    rig.edit("sda", |device| device.spec.file_system.repaired = true).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 1);
    rig.host.fate("sda", "mount", Fate::BadSuperblock);
    rig.host.edit_mounts(Vec::clear);
    rig.wait("sda", "Failed").await;
    rig.host.fate("sda", "mount", Fate::Takes(Duration::ZERO));
    rig.edit("sda", |device| {
        device.spec.file_system.format_request = "again".to_owned();
        let uuid = device.recorded_uuid();
        device.spec.acknowledge_data_loss = vec![format!("ext4:{uuid}")];
    })
    .await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 2);
}

#[tokio::test]
async fn a_filesystem_is_declared_repaired_as_often_as_needed() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    rig.host.fate("sda", "mount", Fate::BadSuperblock);
    rig.host.edit_mounts(Vec::clear);
    rig.wait("sda", "Failed").await;
    for tries in 3..6 {
        rig.edit("sda", |device| device.spec.file_system.repaired = true).await;
        rig.wait("sda", "Failed").await;
        assert_eq!(rig.host.count("mount sda"), tries, "each word leads to one more mount");
        assert!(!rig.device("sda").await.spec.file_system.repaired, "it was used up");
    }
    rig.host.fate("sda", "mount", Fate::Takes(Duration::ZERO));
    rig.edit("sda", |device| device.spec.file_system.repaired = true).await;
    rig.wait("sda", "Provisioned").await;
    assert!(!rig.device("sda").await.spec.file_system.repaired);
}

#[tokio::test]
async fn a_mount_of_another_program_is_left_alone_until_it_is_adopted() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "u1");
    let number = rig.host.get("sda").unwrap().number;
    rig.host.edit_mounts(|mounts| {
        mounts.push(MountLine {
            number,
            point: "/home".to_owned(),
            source: "/dev/sda".to_owned(),
            filesystem: "ext4".to_owned(),
            read_only: false,
        });
    });
    rig.edit("sda", |device| device.spec.provision = true).await;
    let device = rig.device("sda").await;
    assert_eq!(device.status.provision_phase, "Unprovisioned");
    let refused = mainstay_controller::conditions::get(&device.status.conditions, "Refused");
    let refused = refused.unwrap();
    assert_eq!(refused.reason, "MountedElsewhere");
    assert!(
        refused.message.contains("/home") && refused.message.contains("--adopt"),
        "{refused:?}"
    );
    rig.edit("sda", |device| device.spec.file_system.adopt = "ext4:u2".to_owned()).await;
    assert_eq!(rig.phase("sda").await, "Unprovisioned", "another filesystem was meant");
    assert!(rig.host.log().is_empty());
    rig.edit("sda", |device| device.spec.file_system.adopt = "ext4:u1".to_owned()).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["umount sda", "mount sda"]);
    assert!(rig.device("sda").await.spec.file_system.adopt.is_empty(), "it was used up");
}

#[tokio::test]
async fn tags_follow_without_a_change_of_phase() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    rig.edit("sda", |device| device.spec.tags = vec!["fast".to_owned()]).await;
    let pools = rig.backend.registered();
    assert_eq!(pools.values().next().unwrap().0.tags, ["fast"]);
    assert_eq!(rig.device("sda").await.status.tags, ["fast"]);
    assert_eq!(rig.phase("sda").await, "Provisioned");
}

#[tokio::test]
async fn the_node_of_the_backend_may_come_later() {
    let rig = Rig::with(&["sda"]).await;
    rig.backend.set_node(false);
    rig.want("sda").await;
    rig.wait("sda", "Mounted").await;
    rig.backend.set_node(true);
    rig.advance(10).await;
    rig.wait("sda", "Provisioned").await;
}
