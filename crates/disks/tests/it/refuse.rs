//! Disks that must not be written stay the same, byte for byte.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use mainstay_disks::api::BlockDevice;

use crate::rig::{FREEZING, Rig, configure};
use crate::yard::{Yard, attempt, possible, real, run};

fn bytes_at(image: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

/// A partition table of one partition.
fn table(image: &Path, start: u32, sectors: u32) {
    let mut entry = [0; 66];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    entry[64..].copy_from_slice(b"\x55\xaa");
    bytes_at(image, 446, &entry);
}

/// Acknowledges the loss of everything that the status of a disk shows.
fn acknowledge(object: &mut BlockDevice) {
    let shown = object.status.signatures.iter();
    let entries = shown.map(|found| mainstay_disks::gate::entry(&found.name, &found.uuid));
    object.spec.acknowledge_data_loss = entries.collect();
}

fn refusal(object: &BlockDevice) -> String {
    object.status.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default()
}

type Make = fn(&str, &Path);

/// Every kind of signature, and how it gets onto a disk.
const KINDS: [(&str, u64, Make); 9] = [
    ("ext4", 32, |device, _| drop(run("mkfs.ext4", &["-q", device]))),
    ("xfs", 320, |device, _| drop(run("mkfs.xfs", &["-q", device]))),
    ("swap", 32, |device, _| drop(run("mkswap", &[device]))),
    ("crypto_LUKS", 32, |_, image| {
        let mut header = vec![0; 592];
        header[..6].copy_from_slice(b"LUKS\xba\xbe");
        header[7] = 1;
        header[168..204].copy_from_slice(b"11111111-2222-3333-4444-555555555555");
        bytes_at(image, 0, &header);
    }),
    ("LVM2_member", 32, |device, _| drop(run("pvcreate", &["-y", device]))),
    ("linux_raid_member", 32, |_, image| bytes_at(image, 4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0")),
    ("gpt", 32, |_, image| bytes_at(image, 512, b"EFI PART\0\0\x01\0\x5c\0\0\0")),
    ("gpt", 32, |_, image| bytes_at(image, (32 << 20) - 512, b"EFI PART\0\0\x01\0\x5c\0\0\0")),
    ("dos", 32, |_, image| table(image, 1, 64)),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_signature_is_refused_and_no_byte_changes() {
    if !possible() {
        return;
    }
    let _thawed = FREEZING.read().await;
    let yard = Yard::new();
    let mut disks = Vec::new();
    for (index, (name, mib, make)) in KINDS.iter().enumerate() {
        let image = yard.image(&format!("i{index}"), *mib);
        let device = yard.attach(&image, &[]);
        make(&device, &image);
        run("blockdev", &["--flushbufs", &device]);
        disks.push((*name, device, image));
    }
    let blank = yard.disk("blank", 32);
    let mut devices: Vec<_> = disks.iter().map(|(_, device, _)| device.clone()).collect();
    devices.push(blank.clone());
    let before: Vec<_> = disks.iter().map(|(_, _, image)| std::fs::read(image).unwrap()).collect();
    let mut rig = Rig::new(yard, &devices).await;
    configure(&rig.resources, "[{hostname: '*', devices: ['/dev/loop*']}]").await;
    rig.start().await;
    rig.phase(&blank, "Provisioned").await;
    for (name, device, _) in &disks {
        let object = rig.phase(device, "Unprovisioned").await;
        assert!(!object.spec.provision, "{name}: auto-provisioning takes blank disks only");
        rig.want(device).await;
        let failed = rig.phase(device, "Failed").await;
        assert!(refusal(&failed).contains(name), "{name}: {}", refusal(&failed));
    }
    rig.stop().await;
    for ((name, device, image), before) in disks.iter().zip(before) {
        run("blockdev", &["--flushbufs", device]);
        assert!(std::fs::read(image).unwrap() == before, "{name} was changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_in_use_is_refused_however_it_is_hidden() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    run("mkfs.ext4", &["-q", &device]);
    let place = yard.text("elsewhere");
    std::fs::create_dir(&place).unwrap();
    // Mounted where this process cannot see it.
    let mut hidden = std::process::Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            &format!("mount {device} {place} && echo there && read word"),
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 6];
    std::io::Read::read_exact(hidden.stdout.as_mut().unwrap(), &mut said).unwrap();
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.phase(&device, "Unprovisioned").await;
    rig.edit(&device, |object| {
        object.spec.file_system.force_formatted = true;
        acknowledge(object);
    })
    .await;
    let failed = rig.phase(&device, "Failed").await;
    assert!(refusal(&failed).contains("rule 2"), "{}", refusal(&failed));
    drop(hidden.stdin.take());
    hidden.wait().unwrap();
    // Unmounted lazily while a file is open: no mount table shows it, and it is still busy.
    run("mount", &[&device, &place]);
    let open = std::fs::File::create(Path::new(&place).join("open")).unwrap();
    run("umount", &["--lazy", &place]);
    rig.edit(&device, |object| object.spec.retry = "1".to_owned()).await;
    let again = |object: &BlockDevice| {
        object.status.failure.as_ref().is_some_and(|failure| failure.retry == "1")
    };
    let failed = rig.wait(&device, "refused again", again).await;
    assert!(refusal(&failed).contains("rule 3"), "{}", refusal(&failed));
    drop(open);
    rig.stop().await;
    assert_eq!(run("blkid", &["-p", "-o", "value", "-s", "TYPE", &device]), "ext4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_format_that_fails_is_reported_and_leaves_no_partial_state() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let read_only = yard.attach(&yard.image("ro", 64), &["--read-only"]);
    let small = yard.disk("small", 64);
    let parted = yard.disk("parted", 64);
    table(&yard.path("parted"), 2048, 65536);
    run("partx", &["--add", "--nr", "1:1", &parted]);
    let part = format!("{parted}p1");
    run("mkfs.ext4", &["-q", &part]);
    yard.mount(&[&part], "part");
    let swapped = yard.disk("swapped", 64);
    table(&yard.path("swapped"), 2048, 65536);
    run("partx", &["--add", "--nr", "1:1", &swapped]);
    yard.swap(&format!("{swapped}p1"));
    let devices = [read_only.clone(), small.clone(), parted.clone(), swapped.clone()];
    let mut rig = Rig::new(yard, &devices).await;
    rig.start().await;
    rig.edit(&small, |object| object.spec.file_system.kind = "xfs".to_owned()).await;
    for (device, rule) in
        [(&read_only, "rule 5"), (&small, "rule 5"), (&parted, "rule 2"), (&swapped, "rule 1")]
    {
        rig.phase(device, "Unprovisioned").await;
        rig.edit(device, |object| {
            object.spec.provision = true;
            object.spec.file_system.force_formatted = true;
            acknowledge(object);
        })
        .await;
        let failed = rig.phase(device, "Failed").await;
        assert!(refusal(&failed).contains(rule), "{device}: {}", refusal(&failed));
        assert!(failed.status.operation.is_none());
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_group_is_refused_even_if_not_in_use() {
    if !possible() {
        return;
    }
    let _thawed = FREEZING.read().await;
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    let group = format!("mainstaytestm{}", std::process::id());
    run("pvcreate", &["-y", &device]);
    run("vgcreate", &[&group, &device]);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.phase(&device, "Unprovisioned").await;
    rig.edit(&device, |object| {
        object.spec.file_system.force_formatted = true;
        acknowledge(object);
    })
    .await;
    let failed = rig.phase(&device, "Failed").await;
    assert!(refusal(&failed).contains(&format!("vg:{group}")), "{}", refusal(&failed));
    rig.stop().await;
    assert!(attempt("vgs", &[&group]).status.success(), "the group is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backing_store_that_is_full_is_a_failure_and_no_pool() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    yard.mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], "tmpfs");
    let device = yard.attach(&yard.image("tmpfs/image", 256), &[]);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.want(&device).await;
    let failed = rig.phase(&device, "Failed").await;
    assert!(rig.yard.mount_table().is_empty(), "{failed:?}");
    rig.stop().await;
    rig.yard.detach(&device);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mkfs_that_cannot_be_killed_keeps_its_disk_in_quarantine() {
    if !possible() {
        return;
    }
    let _alone = FREEZING.write().await;
    let yard = Yard::new();
    let outer = yard.disk("outer", 512);
    run("mkfs.ext4", &["-q", &outer]);
    let inner = yard.mount(&[&outer], "inner").display().to_string();
    let device = yard.attach(&yard.image("inner/image", 256), &[]);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.options.longest = Some(Duration::from_secs(2));
    // The filesystem under the image freezes at the moment mkfs begins.
    let (mkfs, freeze) = (real("mkfs.ext4"), real("fsfreeze"));
    let log = rig.yard.text("mkfs.log");
    let count = format!("echo run >> {log}");
    let script = format!("{count}\n{freeze} --freeze {inner}\nexec {mkfs} \"$@\"");
    rig.yard.program("mkfs.ext4", &script);
    rig.start().await;
    rig.want(&device).await;
    let failed = rig.phase(&device, "Failed").await;
    assert_eq!(failed.status.failure.as_ref().unwrap().reason, "OperationTimeout");
    assert!(failed.status.operation.as_ref().is_some_and(|token| token.lease_held), "{failed:?}");
    rig.yard.program("mkfs.ext4", &format!("{count}\nexec {mkfs} \"$@\""));
    rig.edit(&device, |object| object.spec.retry = "1".to_owned()).await;
    assert_eq!(rig.device(&device).await.status.provision_phase, "Failed");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1, "no second mkfs");
    run("fsfreeze", &["--unfreeze", &inner]);
    rig.wait(&device, "out of quarantine", |object| {
        object.status.operation.as_ref().is_none_or(|token| !token.lease_held)
    })
    .await;
    rig.stop().await;
    for point in rig.yard.mount_table() {
        run("umount", &[&point]);
    }
    rig.yard.detach(&device);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_format_needs_an_acknowledgement_of_its_own() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    run("mkfs.ext4", &["-q", &device]);
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.phase(&device, "Unprovisioned").await;
    rig.edit(&device, |object| {
        object.spec.provision = true;
        object.spec.file_system.force_formatted = true;
        acknowledge(object);
    })
    .await;
    let object = rig.phase(&device, "Provisioned").await;
    assert!(object.spec.acknowledge_data_loss.is_empty(), "the format used it up");
    let file = rig.yard.path("mnt").join(&object.metadata.name).join("hello");
    std::fs::write(&file, "there").unwrap();
    rig.edit(&device, |object| object.spec.provision = false).await;
    rig.phase(&device, "Formatted").await;
    rig.edit(&device, |object| object.spec.file_system.format_request = "2".to_owned()).await;
    rig.wait(&device, "refused", |object| {
        object.status.conditions.iter().any(|condition| condition.kind == "Refused")
    })
    .await;
    rig.edit(&device, |object| object.spec.provision = true).await;
    rig.phase(&device, "Provisioned").await;
    assert_eq!(std::fs::read_to_string(file).unwrap(), "there", "the data is still there");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_of_another_program_stays_until_its_filesystem_is_adopted_by_name() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let device = yard.disk("a", 64);
    run("mkfs.ext4", &["-q", &device]);
    let elsewhere = yard.mount(&[&device], "elsewhere");
    std::fs::write(elsewhere.join("hello"), "there").unwrap();
    let mut rig = Rig::new(yard, std::slice::from_ref(&device)).await;
    rig.start().await;
    rig.edit(&device, |object| object.spec.provision = true).await;
    let refused = rig.wait(&device, "refused", |object| {
        object.status.conditions.iter().any(|condition| condition.reason == "MountedElsewhere")
    });
    let object = refused.await;
    assert!(elsewhere.join("hello").exists(), "it is still mounted there");
    let found = &object.status.signatures[0];
    let entry = mainstay_disks::gate::entry(&found.name, &found.uuid);
    rig.edit(&device, |object| object.spec.file_system.adopt.clone_from(&entry)).await;
    let object = rig.phase(&device, "Provisioned").await;
    let file = rig.yard.path("mnt").join(&object.metadata.name).join("hello");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "there", "the data is kept");
    assert!(!elsewhere.join("hello").exists());
    assert!(object.spec.file_system.adopt.is_empty(), "the name counted once");
    rig.stop().await;
}
