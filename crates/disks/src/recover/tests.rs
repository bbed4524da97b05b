use mainstay_host::{Class, Contents, Signature};

use super::*;
use crate::api::DeviceRef;

fn disk() -> Disk {
    Disk {
        path: "/dev/sda".to_owned(),
        number: "8:0".to_owned(),
        diskseq: 7,
        size: 1 << 30,
        serial: "s1".to_owned(),
        ..Disk::default()
    }
}

fn with(name: &str, uuid: &str) -> Disk {
    let (name, uuid) = (name.to_owned(), uuid.to_owned());
    let found =
        Signature { class: Class::Filesystem, name, uuid, label: String::new(), offset: 1080 };
    Disk { contents: Contents { signatures: vec![found], ..Contents::default() }, ..disk() }
}

fn token() -> OperationStatus {
    OperationStatus {
        id: "op".to_owned(),
        kind: "Format".to_owned(),
        device: DeviceRef {
            number: "8:0".to_owned(),
            diskseq: 7,
            path: "/dev/sda".to_owned(),
            size_bytes: 1 << 30,
            identity: crate::identity::of(&disk()),
        },
        boot_id: "boot".to_owned(),
        attempt: 1,
        target_fs_uuid: "target".to_owned(),
        acknowledged: vec!["swap:x".to_owned()],
        ..OperationStatus::default()
    }
}

/// The outcome, in one word.
fn word(action: &Action) -> &str {
    match action {
        Action::Accept => "accept",
        Action::Run => "run",
        Action::Wait => "wait",
        Action::Fail { reason, .. } => reason,
    }
}

#[test]
fn an_interrupted_format_is_run_again_only_on_the_same_disk() {
    let rebooted = OperationStatus { boot_id: "before".to_owned(), ..token() };
    let tired = OperationStatus { attempt: ATTEMPTS, ..token() };
    let moved = |disk: Disk| Disk { number: "8:16".to_owned(), diskseq: 3, ..disk };
    let cases: Vec<(&str, OperationStatus, Option<Disk>, bool, &str)> = vec![
        ("absent", token(), None, false, "DeviceGone"),
        ("same", token(), Some(disk()), false, "run"),
        ("busy", token(), Some(disk()), true, "wait"),
        ("done", token(), Some(with("ext4", "target")), false, "accept"),
        ("acknowledged remains", token(), Some(with("swap", "x")), false, "run"),
        ("another of that name", token(), Some(with("swap", "y")), false, "ForeignSignature"),
        ("foreign appeared", token(), Some(with("ext4", "other")), false, "ForeignSignature"),
        ("attached anew", token(), Some(Disk { diskseq: 8, ..disk() }), false, "IdentityChanged"),
        ("resized", token(), Some(Disk { size: 2 << 30, ..disk() }), false, "IdentityChanged"),
        ("rebooted, moved", rebooted.clone(), Some(moved(disk())), false, "run"),
        ("rebooted, done", rebooted.clone(), Some(moved(with("ext4", "target"))), false, "accept"),
        (
            "rebooted, another",
            rebooted,
            Some(Disk { serial: "s2".to_owned(), ..disk() }),
            false,
            "IdentityChanged",
        ),
        ("crash loop", tired, Some(disk()), false, "CrashLoop"),
    ];
    for (name, token, disk, busy, expected) in cases {
        let seen = Interrupted {
            phase: Phase::Formatting,
            token: Some(&token),
            boot_id: "boot",
            disk: disk.as_ref(),
            busy,
            mount: Mount::Nowhere,
            record: Record::Missing,
        };
        assert_eq!(word(&recover(&seen)), expected, "{name}");
    }
}

#[test]
fn other_operations_are_accepted_where_they_were_done() {
    use Phase::{Mounting, Provisioning, Unmounting, Unprovisioning};
    let cases = [
        (Mounting, Mount::Right, Record::Missing, "accept"),
        (Mounting, Mount::Nowhere, Record::Missing, "run"),
        (Unmounting, Mount::Nowhere, Record::Missing, "accept"),
        (Unmounting, Mount::Right, Record::Missing, "run"),
        (Provisioning, Mount::Right, Record::Equal, "accept"),
        (Provisioning, Mount::Right, Record::Missing, "run"),
        (Unprovisioning, Mount::Right, Record::Equal, "run"),
        (Unprovisioning, Mount::Right, Record::Missing, "run"),
    ];
    let (disk, token) = (disk(), token());
    for (phase, mount, record, expected) in cases {
        let seen = Interrupted {
            phase,
            token: Some(&token),
            boot_id: "boot",
            disk: Some(&disk),
            busy: false,
            mount,
            record,
        };
        assert_eq!(word(&recover(&seen)), expected, "{phase} {mount:?} {record:?}");
    }
}

#[test]
fn a_lock_without_a_token_is_not_guessed_at() {
    let seen = Interrupted {
        phase: Phase::Formatting,
        token: None,
        boot_id: "boot",
        disk: None,
        busy: false,
        mount: Mount::Nowhere,
        record: Record::Missing,
    };
    assert_eq!(word(&recover(&seen)), "NoToken");
}
