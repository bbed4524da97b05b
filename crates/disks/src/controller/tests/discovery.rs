//! Which object is which disk, as disks come, go, move and are copied.

use mainstay_host::Class;
use mainstay_host::sim::SimHost;
use mainstay_store::builtin::Event;

use super::rig::{Rig, settle};
use crate::api::State;

#[tokio::test]
async fn disks_without_a_serial_number_are_distinguished() {
    let mut rig = Rig::new().await;
    for (name, wwn) in [("sda", ""), ("sdb", "unknown"), ("sdc", "0x0000000000000000")] {
        let mut disk = SimHost::disk(name, 10 << 30);
        disk.wwn = wwn.to_owned();
        disk.serial = String::new();
        rig.host.attach(disk);
    }
    rig.start().await;
    assert_eq!(rig.all().await.len(), 3);
}

#[tokio::test]
async fn a_disk_seen_twice_is_one_object_and_no_operation_runs_on_it() {
    let mut rig = Rig::new().await;
    for name in ["sda", "sdb"] {
        let mut disk = SimHost::disk(name, 10 << 30);
        disk.wwn = "0x5000c500".to_owned();
        rig.host.attach(disk);
    }
    rig.start().await;
    let all = rig.all().await;
    assert_eq!(all.len(), 1);
    let duplicate = mainstay_controller::conditions::get(&all[0].status.conditions, "Duplicate");
    assert!(duplicate.unwrap().message.contains("/dev/sdb"));
    rig.want("sda").await;
    rig.wait("sda", "Failed").await;
    assert!(rig.host.log().is_empty());
}

#[tokio::test]
async fn two_disks_that_swap_paths_over_a_reboot_keep_their_data() {
    let mut rig = Rig::with(&["sda", "sdb"]).await;
    for name in ["sda", "sdb"] {
        rig.want(name).await;
        rig.wait(name, "Provisioned").await;
    }
    let (a, b) = (rig.device("sda").await.metadata.name, rig.device("sdb").await.metadata.name);
    let uuid = |name: &str| rig.host.get(name).unwrap().contents.only().unwrap().uuid.clone();
    let (first, second) = (uuid("sda"), uuid("sdb"));
    rig.crash().await;
    let (mut old_a, mut old_b) = (rig.host.detach("sda").unwrap(), rig.host.detach("sdb").unwrap());
    for (disk, name) in [(&mut old_a, "sdb"), (&mut old_b, "sda")] {
        disk.name = name.to_owned();
        disk.path = format!("/dev/{name}");
    }
    rig.host.attach(old_a);
    rig.host.attach(old_b);
    rig.host.reboot();
    rig.start().await;
    rig.wait("sda", "Provisioned").await;
    rig.wait("sdb", "Provisioned").await;
    let (at_a, at_b) = (rig.device("sda").await, rig.device("sdb").await);
    assert_eq!(
        (at_a.metadata.name.as_str(), at_b.metadata.name.as_str()),
        (b.as_str(), a.as_str())
    );
    assert_eq!((at_a.recorded_uuid(), at_b.recorded_uuid()), (second.as_str(), first.as_str()));
    for device in [at_a, at_b] {
        let point = format!("/mnt/{}", device.metadata.name);
        let line = rig.host.mount_table().into_iter().find(|line| line.point == point).unwrap();
        assert_eq!(line.source, device.status.device_status.dev_path);
    }
    assert_eq!(rig.host.log().iter().filter(|line| line.starts_with("mkfs")).count(), 2);
}

#[tokio::test]
async fn a_provisioned_disk_that_is_pulled_is_kept_and_taken_up_again() {
    let rig = Rig::with(&["sda", "sdb"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let name = rig.device("sda").await.metadata.name;
    let mut pulled = rig.host.detach("sda").unwrap();
    rig.host.detach("sdb");
    settle().await;
    let all = rig.all().await;
    assert_eq!(all.len(), 1, "the unused one goes");
    assert_eq!(all[0].status.state, State::Inactive);
    assert_eq!(all[0].status.provision_phase, "Provisioned");
    assert!(rig.backend.registered()[&name].0.unready.is_some(), "and takes no replicas");
    rig.host.edit_mounts(Vec::clear);
    pulled.name = "sdx".to_owned();
    pulled.path = "/dev/sdx".to_owned();
    rig.host.attach(pulled);
    settle().await;
    rig.wait("sdx", "Provisioned").await;
    let back = rig.device("sdx").await;
    assert_eq!((back.metadata.name.as_str(), back.status.state), (name.as_str(), State::Active));
    assert_eq!(rig.host.count("mkfs sda") + rig.host.count("mkfs sdx"), 1);
    assert!(rig.backend.registered()[&name].0.unready.is_none());
}

#[tokio::test]
async fn a_lost_disk_can_be_taken_out_of_use() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let name = rig.device("sda").await.metadata.name;
    rig.backend.set_replicas(&name, &["rv-1-0"]);
    rig.host.detach("sda");
    settle().await;
    rig.edit("sda", |device| device.spec.provision = false).await;
    for _ in 0..5 {
        rig.advance(61).await;
    }
    assert!(rig.backend.registered().is_empty());
    assert!(rig.all().await.is_empty(), "nothing of it is left");
    assert!(rig.host.mount_table().is_empty());
}

#[tokio::test]
async fn auto_provisioning_takes_blank_disks_and_no_others() {
    let rig = Rig::with(&["sda", "sdb", "sdc", "vda"]).await;
    rig.host.write_signature("sdb", Class::Filesystem, "ext4", "u");
    rig.configure(&[
        ("autoprovision.yaml", "[{hostname: '*', devices: ['/dev/sd*'], tags: [auto]}]"),
        ("filters.yaml", "[{hostname: n1, excludeDevices: [/dev/sdc]}]"),
    ])
    .await;
    rig.wait("sda", "Provisioned").await;
    let device = rig.device("sda").await;
    assert_eq!(device.spec.tags, ["auto"]);
    assert_eq!(rig.phase("sdb").await, "Unprovisioned");
    assert_eq!(rig.phase("vda").await, "Unprovisioned");
    let paths: Vec<_> = rig.all().await.into_iter().map(|device| device.spec.dev_path).collect();
    assert!(!paths.contains(&"/dev/sdc".to_owned()), "exclusion wins: {paths:?}");
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Formatted").await;
    settle().await;
    assert_eq!(rig.phase("sda").await, "Formatted", "what a person gave back is not taken again");
}

#[tokio::test]
async fn an_invalid_value_of_the_configmap_is_reported_and_the_previous_one_stays_in_force() {
    let rig = Rig::with(&["sda"]).await;
    let valid = "[{hostname: n1, excludeDevices: [/dev/sdc]}]";
    rig.configure(&[("filters.yaml", valid)]).await;
    rig.configure(&[("filters.yaml", "[{hostname: n1, excludeDevice: [/dev/sda]}]")]).await;
    rig.host.attach(SimHost::disk("sdc", 10 << 30));
    rig.advance(60).await;
    let paths: Vec<_> = rig.all().await.into_iter().map(|device| device.spec.dev_path).collect();
    assert_eq!(paths, ["/dev/sda"], "the valid filter still excludes sdc");
    let events: Vec<Event> = rig.resources.list_as(Some("default")).await.unwrap();
    let invalid =
        events.iter().filter(|event| event.reason.as_deref() == Some("InvalidDiskConfiguration"));
    let messages: Vec<_> = invalid.filter_map(|event| event.message.as_deref()).collect();
    let [message] = messages.as_slice() else { panic!("one Event is expected: {events:#?}") };
    for part in ["mainstay-system/disks", "filters.yaml is invalid", "excludeDevice"] {
        assert!(message.contains(part), "{message}");
    }
    rig.configure(&[("filters.yaml", "[]")]).await;
    assert_eq!(rig.all().await.len(), 2, "a corrected value is applied");
}

#[tokio::test]
async fn auto_provisioning_waits_for_an_upgrade_and_people_do_not() {
    let rig = Rig::with(&["sda", "sdb"]).await;
    let rule = "[{hostname: '*', devices: ['*']}]";
    rig.configure(&[("autoprovision.yaml", rule), ("upgrade-running", "true")]).await;
    assert_eq!(rig.phase("sda").await, "Unprovisioned");
    rig.want("sdb").await;
    rig.wait("sdb", "Provisioned").await;
    rig.configure(&[("autoprovision.yaml", rule)]).await;
    rig.wait("sda", "Provisioned").await;
}

#[tokio::test]
async fn an_event_about_one_disk_reads_that_disk_and_no_other() {
    let names: Vec<String> = (0..50).map(|n| format!("sd{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rig = Rig::with(&names).await;
    let before = rig.host.reads();
    for _ in 0..3 {
        rig.host.poke("sd7");
    }
    settle().await;
    let after = rig.host.reads();
    assert_eq!(after.1, before.1, "nothing is listed");
    assert_eq!(after.0 - before.0, 1, "three events at once are one look");
    let versions = |all: Vec<crate::api::BlockDevice>| -> Vec<_> {
        all.into_iter().map(|device| device.metadata.resource_version).collect()
    };
    let old = versions(rig.all().await);
    rig.host.edit("sd7", |disk| disk.numa = Some(3));
    settle().await;
    let reads = rig.host.reads().0 - after.0;
    assert!(reads <= 4, "a real change reads that disk alone: {reads}");
    let new = versions(rig.all().await);
    assert_eq!(old.iter().zip(&new).filter(|(a, b)| a != b).count(), 1, "and writes one object");
}

#[tokio::test]
async fn a_mount_that_is_lost_is_made_again() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    rig.host.edit_mounts(Vec::clear);
    settle().await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mount sda"), 2);
    let name = rig.device("sda").await.metadata.name;
    rig.backend.forget(&name);
    rig.host.poke("sda");
    rig.host.edit("sda", |disk| disk.numa = Some(1));
    settle().await;
    rig.wait("sda", "Provisioned").await;
    assert!(rig.backend.registered().contains_key(&name));
    assert_eq!(rig.host.count("mkfs sda"), 1);
}

#[tokio::test]
async fn a_multipath_map_takes_the_place_of_its_members() {
    let mut rig = Rig::new().await;
    let path = |name: &str| {
        let mut disk = SimHost::disk(name, 10 << 30);
        disk.wwn = "0x5000c500".to_owned();
        disk.serial = "s1".to_owned();
        disk
    };
    rig.host.attach(path("sda"));
    rig.host.attach(path("sdb"));
    rig.start().await;
    assert_eq!(rig.all().await.len(), 1, "two paths, one object");
    // The machine no longer lists what has become a member.
    rig.host.detach("sda");
    rig.host.detach("sdb");
    let mut map = path("dm-0");
    map.path = "/dev/mapper/mpatha".to_owned();
    map.multipath = true;
    rig.host.attach(map);
    settle().await;
    let all = rig.all().await;
    let paths: Vec<_> = all.iter().map(|it| it.status.device_status.dev_path.as_str()).collect();
    assert_eq!(paths, ["/dev/mapper/mpatha"], "only the map is listed");
    let duplicate = mainstay_controller::conditions::get(&all[0].status.conditions, "Duplicate");
    assert!(duplicate.is_none(), "it is one disk now");
}
