//! The ordinary paths on real devices, and the seed's race.

use mainstay_disks::{Disks, Parts};

use crate::rig::{FREEZING, Rig, parts};
use crate::yard::{Yard, attempt, possible, real, run};

const BOTH: [&str; 2] = ["ext4", "xfs"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blank_disk_becomes_a_mounted_pool_and_is_given_back() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let devices: Vec<_> = BOTH.iter().map(|kind| yard.disk(kind, 320)).collect();
    let mut rig = Rig::new(yard, &devices).await;
    rig.start().await;
    for (device, kind) in devices.iter().zip(BOTH) {
        rig.edit(device, |object| object.spec.file_system.kind = kind.to_owned()).await;
        rig.want(device).await;
    }
    for (device, kind) in devices.iter().zip(BOTH) {
        let object = rig.phase(device, "Provisioned").await;
        assert_eq!(object.status.device_status.file_system.kind, kind);
        let point = rig.yard.path("mnt").join(&object.metadata.name);
        std::fs::write(point.join("hello"), "there").unwrap();
        let uuid = run("blkid", &["-p", "-o", "value", "-s", "UUID", device]);
        assert_eq!(uuid, object.recorded_uuid(), "the UUID was chosen beforehand");
    }
    let audit = std::fs::read_to_string(rig.yard.path("state/audit.log")).unwrap();
    assert_eq!(audit.lines().count(), 2, "{audit}");
    for device in &devices {
        rig.edit(device, |object| object.spec.provision = false).await;
        rig.phase(device, "Formatted").await;
    }
    assert!(rig.yard.mount_table().is_empty());
    rig.edit(&devices[0], |object| object.spec.provision = true).await;
    let object = rig.phase(&devices[0], "Provisioned").await;
    let file = rig.yard.path("mnt").join(&object.metadata.name).join("hello");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "there", "the data is still there");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_in_the_middle_of_a_slow_format_lead_to_one_mkfs_and_one_mount() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    let valve = yard.slow("mkfs.ext4");
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    // A second agent, with a machine of its own over the same devices and objects.
    let first = rig.parts.clone().unwrap();
    let other = parts(&rig.yard, &rig.resources, &rig.devices);
    let other = Parts { backend: first.backend.clone(), memory: first.memory.clone(), ..other };
    let second = Disks::start(rig.options.clone(), other).await.unwrap();
    rig.want(&device).await;
    valve.begun().await;
    for n in 0..20 {
        rig.edit(&device, |object| object.spec.tags = vec![format!("t{n}")]).await;
        let now = rig.device(&device).await.status;
        assert_eq!((now.provision_phase.as_str(), now.failure), ("Formatting", None));
    }
    valve.go().await;
    let object = rig.phase(&device, "Provisioned").await;
    assert_eq!((valve.runs(), rig.yard.mount_table().len()), (1, 1));
    assert_eq!(object.status.failure, None);
    assert_eq!(object.spec.tags, ["t19"], "the edits survive the completion");
    second.shutdown().await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_disks_are_formatted_five_at_a_time() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let devices: Vec<_> = (0..20).map(|n| yard.disk(&format!("d{n:02}"), 32)).collect();
    let (log, mkfs) = (yard.text("log"), real("mkfs.ext4"));
    let script = format!("echo + >> {log}\n{mkfs} \"$@\"\nrc=$?\necho - >> {log}\nexit $rc");
    yard.program("mkfs.ext4", &script);
    let mut rig = Rig::new(yard, &devices).await;
    rig.start().await;
    for device in &devices {
        rig.want(device).await;
    }
    for device in &devices {
        rig.phase(device, "Provisioned").await;
    }
    let text = std::fs::read_to_string(log).unwrap();
    let (mut now, mut most) = (0_i32, 0);
    for line in text.lines() {
        now += if line == "+" { 1 } else { -1 };
        most = most.max(now);
    }
    assert_eq!((now, text.lines().count()), (0, 40), "each once");
    assert!(most <= 5, "{most} at once");
    assert_eq!(rig.yard.mount_table().len(), 20);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_becomes_a_volume_group_as_far_as_this_kernel_goes() {
    if !possible() {
        return;
    }
    let _thawed = FREEZING.read().await;
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    let group = format!("mainstaytest{}", std::process::id());
    let lvm = serde_json::json!({"lvm": {"vgName": group}});
    let lvm: mainstay_disks::api::Provisioner = serde_json::from_value(lvm).unwrap();
    rig.edit(&device, |object| object.spec.provisioner = Some(lvm.clone())).await;
    rig.want(&device).await;
    rig.phase(&device, "Provisioned").await;
    assert_eq!(run("vgs", &["--noheadings", "-o", "vg_name", &group]), group);
    rig.edit(&device, |object| object.spec.provision = false).await;
    rig.phase(&device, "Unprovisioned").await;
    assert!(!attempt("vgs", &[&group]).status.success());
    assert_eq!(attempt("blkid", &["-p", &device]).status.code(), Some(2), "blank again");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_group_on_a_disk_that_is_not_managed_is_refused() {
    if !possible() {
        return;
    }
    let _thawed = FREEZING.read().await;
    let yard = Yard::new();
    let (ours, theirs) = (yard.disk("a", 64), yard.disk("b", 64));
    let group = format!("mainstayhost{}", std::process::id());
    run("pvcreate", &["--devices", &theirs, "-q", &theirs]);
    run("vgcreate", &["--devices", &theirs, "-q", &group, &theirs]);
    let mut rig = Rig::new(yard, std::slice::from_ref(&ours)).await;
    rig.start().await;
    let lvm = serde_json::json!({"lvm": {"vgName": group}});
    let lvm: mainstay_disks::api::Provisioner = serde_json::from_value(lvm).unwrap();
    rig.edit(&ours, |object| object.spec.provisioner = Some(lvm.clone())).await;
    rig.want(&ours).await;
    let failed = rig.phase(&ours, "Failed").await;
    let said = failed.status.failure.unwrap().message;
    assert!(said.contains(&group) && said.contains(&theirs), "{said}");
    assert_eq!(attempt("blkid", &["-p", &ours]).status.code(), Some(2), "nothing was written");
    rig.stop().await;
    run("vgremove", &["--devices", &theirs, "-q", &group]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_that_swap_their_paths_keep_their_data_and_mount_points() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let images = [yard.image("a", 64), yard.image("b", 64)];
    let paths: Vec<_> = images.iter().map(|image| yard.attach(image, &[])).collect();
    let mut rig = Rig::new(yard, &paths).await;
    rig.start().await;
    let mut points = Vec::new();
    for (path, image) in paths.iter().zip(["a", "b"]) {
        rig.want(path).await;
        let object = rig.phase(path, "Provisioned").await;
        let point = rig.yard.path("mnt").join(&object.metadata.name);
        std::fs::write(point.join("who"), image).unwrap();
        points.push(point);
    }
    rig.stop().await;
    for point in &points {
        run("umount", &[&point.display().to_string()]);
    }
    // Each image now takes the other's path.
    rig.yard.exchange(&paths, &[&images[1], &images[0]]);
    rig.start().await;
    for (path, index) in paths.iter().zip([1, 0]) {
        let point = points[index].display().to_string();
        rig.wait(path, "mounted where it was", |object| {
            object.status.provision_phase == "Provisioned"
                && object.status.device_status.file_system.mount_point == point
        })
        .await;
        let who = std::fs::read_to_string(points[index].join("who")).unwrap();
        assert_eq!(who, ["a", "b"][index]);
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_superblock_is_reported_and_left_alone_until_requested() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.want(&device).await;
    damage(&mut rig, &device).await;
    let code = attempt("e2fsck", &["-fy", "-b", "8193", "-B", "1024", &device]).status.code();
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    rig.edit(&device, |object| object.spec.file_system.repaired = true).await;
    let repaired = rig.phase(&device, "Provisioned").await;
    damage(&mut rig, &device).await;
    rig.edit(&device, |object| object.spec.file_system.format_request = "again".to_owned()).await;
    let again = rig.phase(&device, "Provisioned").await;
    assert_ne!(again.recorded_uuid(), repaired.recorded_uuid(), "it was formatted anew");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_read_only_or_reformatted_by_others_takes_no_replicas() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.options.watch = std::time::Duration::from_millis(100);
    let backend = std::sync::Arc::new(mainstay_disks::backend::MemoryBackend::default());
    let parts = parts(&rig.yard, &rig.resources, &rig.devices);
    rig.parts = Some(Parts { backend: backend.clone(), ..parts });
    rig.start().await;
    rig.want(&device).await;
    let object = rig.phase(&device, "Provisioned").await;
    let name = object.metadata.name.clone();
    let point = rig.yard.path("mnt").join(&name).display().to_string();
    run("mount", &["-o", "remount,ro", &point]);
    let failed = rig.phase(&device, "Failed").await;
    assert_eq!(failed.status.failure.unwrap().reason, "ReadOnly");
    run("mount", &["-o", "remount,rw", &point]);
    rig.edit(&device, |object| object.spec.retry = "1".to_owned()).await;
    rig.phase(&device, "Provisioned").await;
    rig.stop().await;
    run("umount", &[&point]);
    run("mkfs.ext4", &["-q", "-F", &device]);
    let other = run("blkid", &["-p", "-o", "value", "-s", "UUID", &device]);
    rig.start().await;
    let failed = rig.phase(&device, "Failed").await;
    let failure = failed.status.failure.clone().unwrap();
    assert_eq!(failure.reason, "FilesystemChanged");
    assert!(failure.message.contains(&other), "{}", failure.message);
    assert_eq!(failed.recorded_uuid(), object.recorded_uuid());
    assert!(rig.yard.mount_table().is_empty(), "it is not mounted");
    rig.stop().await;
    let reported = backend.registered()[&name].0.unready.clone().map(|why| why.reason);
    assert_eq!(reported.as_deref(), Some("FilesystemChanged"));
}

/// Destroys the superblock of a provisioned disk while no agent runs, and waits until one says so.
async fn damage(rig: &mut Rig, device: &str) {
    let object = rig.phase(device, "Provisioned").await;
    rig.stop().await;
    let point = rig.yard.path("mnt").join(&object.metadata.name).display().to_string();
    run("umount", &[&point]);
    let disk = format!("of={device}");
    run("dd", &["if=/dev/zero", &disk, "bs=1024", "seek=1", "count=1", "conv=notrunc,fsync"]);
    rig.start().await;
    let failed = rig.phase(device, "Failed").await;
    assert!(failed.status.device_status.file_system.corrupted);
}
