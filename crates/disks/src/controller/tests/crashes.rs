//! Killed in every lock phase, and started again.

use std::time::Duration;

use mainstay_host::Class;
use mainstay_host::sim::Fate;
use mainstay_store::resources::{Subresource, WriteOptions};

use super::rig::{Rig, settle};
use crate::api::{BlockDevice, OperationStatus};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_lock_that_was_written_and_not_queued_is_taken_up() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.crash().await;
    // The write of the lock is the last thing the agent did.
    let disk = rig.host.get("sda").unwrap();
    let name = rig.device("sda").await.metadata.name;
    let options = WriteOptions::default();
    rig.edit("sda", |device| {
        device.spec.provision = true;
        device.spec.file_system.force_formatted = true;
    })
    .await;
    rig.resources
        .modify_as(None, &name, Some(Subresource::Status), &options, |device: &mut BlockDevice| {
            device.status.provision_phase = "Formatting".to_owned();
            device.status.operation = Some(OperationStatus {
                id: "lost".to_owned(),
                kind: "Format".to_owned(),
                device: crate::report::bind(&disk),
                boot_id: "boot-1".to_owned(),
                attempt: 1,
                target_fs_uuid: "target".to_owned(),
                ..OperationStatus::default()
            });
        })
        .await
        .unwrap();
    rig.start().await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
    assert_eq!(rig.device("sda").await.recorded_uuid(), "target");
}

#[tokio::test]
async fn a_kill_in_each_lock_phase_is_survived_with_everything_done_once() {
    for (act, phase, fs) in [
        ("mkfs", "Formatting", true),
        ("mount", "Mounting", true),
        ("umount", "Unmounting", true),
        ("vgcreate", "Provisioning", false),
        ("vgremove", "Unprovisioning", false),
    ] {
        let mut rig = Rig::with(&["sda"]).await;
        let lvm = serde_json::from_value(serde_json::json!({"lvm": {"vgName": "vg1"}})).unwrap();
        if !fs {
            rig.edit("sda", |device| device.spec.provisioner = Some(Clone::clone(&lvm))).await;
        }
        rig.host.fate("sda", act, Fate::Takes(MINUTE));
        rig.want("sda").await;
        let back = matches!(phase, "Unmounting" | "Unprovisioning");
        if back {
            rig.wait("sda", "Provisioned").await;
            rig.edit("sda", |device| device.spec.provision = false).await;
        }
        rig.wait("sda", phase).await;
        rig.crash().await;
        rig.host.fate("sda", act, Fate::Takes(Duration::ZERO));
        rig.start().await;
        let end = match (back, fs) {
            (false, _) => "Provisioned",
            (true, true) => "Formatted",
            (true, false) => "Unprovisioned",
        };
        rig.wait("sda", end).await;
        assert_eq!(rig.host.count(&format!("{act} sda")), 2, "{phase}: begun twice");
        assert!(rig.host.mount_table().len() <= 1, "{phase}");
        let failed = rig.device("sda").await.status.failure;
        assert!(failed.is_none(), "{phase}: {failed:?}");
    }
}

#[tokio::test]
async fn a_finished_operation_whose_result_was_lost_does_not_run_again() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    let target = rig.device("sda").await.status.operation.unwrap().target_fs_uuid;
    rig.crash().await;
    // The child outlived the agent and finished.
    rig.host.write_signature("sda", Class::Filesystem, "ext4", &target);
    rig.start().await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 1, "the finished format was accepted");
}

#[tokio::test]
async fn a_record_written_before_the_crash_is_written_once() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    rig.crash().await;
    let name = rig.device("sda").await.metadata.name;
    let options = WriteOptions::default();
    rig.resources
        .modify_as(None, &name, Some(Subresource::Status), &options, |device: &mut BlockDevice| {
            device.status.provision_phase = "Provisioning".to_owned();
            device.status.operation = Some(OperationStatus {
                id: "lost".to_owned(),
                kind: "Register".to_owned(),
                attempt: 1,
                boot_id: "boot-1".to_owned(),
                ..OperationStatus::default()
            });
        })
        .await
        .unwrap();
    rig.start().await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.backend.registered()[&name].1, 1);
}

#[tokio::test]
async fn an_old_mkfs_that_still_runs_is_waited_for() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.crash().await;
    rig.host.set_busy("sda", true);
    rig.host.fate("sda", "mkfs", Fate::Takes(Duration::ZERO));
    rig.start().await;
    for _ in 0..5 {
        rig.advance(1).await;
    }
    assert_eq!(rig.host.count("mkfs sda"), 1, "no second one beside the first");
    rig.host.set_busy("sda", false);
    rig.advance(2).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 2);
}

#[tokio::test]
async fn a_disk_that_took_the_place_of_another_is_never_formatted() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.crash().await;
    let mut other = rig.host.detach("sda").unwrap();
    other.serial = "another".to_owned();
    rig.host.attach(other);
    rig.start().await;
    settle().await;
    let all = rig.all().await;
    let failed = all.iter().find(|device| device.status.failure.is_some()).unwrap();
    assert_eq!(failed.status.failure.as_ref().unwrap().reason, "DeviceGone");
    assert_eq!(rig.host.count("mkfs sda"), 1, "only the one that was begun before");
}

#[tokio::test]
async fn an_agent_that_crashes_every_time_gives_up_at_last() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    for _ in 0..3 {
        rig.wait("sda", "Formatting").await;
        settle().await;
        rig.crash().await;
        rig.start().await;
    }
    rig.wait("sda", "Failed").await;
    assert_eq!(rig.device("sda").await.status.failure.unwrap().reason, "CrashLoop");
    assert_eq!(rig.host.count("mkfs sda"), 3);
}

#[tokio::test]
async fn a_reboot_mounts_again_without_formatting() {
    let mut rig = Rig::with(&["sda", "sdb"]).await;
    for name in ["sda", "sdb"] {
        rig.want(name).await;
        rig.wait(name, "Provisioned").await;
    }
    rig.crash().await;
    rig.host.reboot();
    rig.start().await;
    for name in ["sda", "sdb"] {
        rig.wait(name, "Provisioned").await;
        assert_eq!(rig.host.count(&format!("mkfs {name}")), 1);
        assert_eq!(rig.host.count(&format!("mount {name}")), 2);
    }
}

/// A provisioned disk with a replica on it.
async fn occupied() -> (Rig, String) {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let name = rig.device("sda").await.metadata.name;
    rig.backend.set_replicas(&name, &["rv-1-0"]);
    (rig, name)
}

#[tokio::test]
async fn restarts_during_an_eviction_never_unmount_under_a_replica() {
    let (mut rig, name) = occupied().await;
    rig.edit("sda", |device| device.spec.provision = false).await;
    for _ in 0..5 {
        rig.wait("sda", "Unprovisioning").await;
        rig.crash().await;
        rig.start().await;
    }
    rig.wait("sda", "Unprovisioning").await;
    assert_eq!(rig.host.count("umount sda"), 0);
    rig.backend.set_replicas(&name, &[]);
    rig.wait("sda", "Formatted").await;
    assert_eq!(rig.host.count("umount sda"), 1);
}

#[tokio::test]
async fn a_failed_disk_with_a_replica_goes_on_with_its_eviction() {
    let (mut rig, name) = occupied().await;
    rig.crash().await;
    let options = WriteOptions::default();
    rig.resources
        .modify_as(None, &name, Some(Subresource::Status), &options, |device: &mut BlockDevice| {
            device.status.provision_phase = "Failed".to_owned();
            device.status.failure = serde_json::from_value(serde_json::json!({
                "reason": "CrashLoop", "fromPhase": "Unprovisioning"}))
            .unwrap();
        })
        .await
        .unwrap();
    rig.edit("sda", |device| {
        device.spec.provision = false;
        device.spec.retry = "1".to_owned();
    })
    .await;
    rig.start().await;
    rig.wait("sda", "Unprovisioning").await;
    assert_eq!(rig.host.count("umount sda"), 0);
    rig.backend.set_replicas(&name, &[]);
    rig.wait("sda", "Formatted").await;
}

#[tokio::test]
async fn an_interrupted_unmount_is_refused_while_a_replica_is_there() {
    let (mut rig, name) = occupied().await;
    rig.crash().await;
    let disk = rig.host.get("sda").unwrap();
    let options = WriteOptions::default();
    let point = format!("/mnt/{name}");
    rig.resources
        .modify_as(None, &name, Some(Subresource::Status), &options, |device: &mut BlockDevice| {
            device.status.provision_phase = "Unmounting".to_owned();
            device.status.operation = Some(OperationStatus {
                id: "lost".to_owned(),
                kind: "Unmount".to_owned(),
                device: crate::report::bind(&disk),
                boot_id: "boot-1".to_owned(),
                attempt: 1,
                mount_point: point.clone(),
                ..OperationStatus::default()
            });
        })
        .await
        .unwrap();
    rig.start().await;
    rig.wait("sda", "Failed").await;
    let failure = rig.device("sda").await.status.failure.unwrap();
    assert_eq!(failure.reason, "InUse");
    assert!(failure.message.contains("rv-1-0"), "{}", failure.message);
    assert_eq!(rig.host.count("umount sda"), 0);
}

#[tokio::test]
async fn an_eviction_waits_for_replicas_also_when_the_node_object_is_gone() {
    let (rig, name) = occupied().await;
    rig.backend.set_node(false);
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Unprovisioning").await;
    assert_eq!(rig.host.count("umount sda"), 0);
    rig.backend.set_replicas(&name, &[]);
    rig.wait("sda", "Formatted").await;
}
