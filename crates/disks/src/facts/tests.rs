use mainstay_host::{Contents, Signature};
use serde_json::json;

use super::*;

fn device(spec: serde_json::Value, status: serde_json::Value) -> BlockDevice {
    let mut whole = json!({"nodeName": "n", "devPath": "/dev/a"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({"spec": whole, "status": status})).unwrap()
}

fn holding(class: Class, name: &str, uuid: &str) -> Disk {
    let (name, uuid) = (name.to_owned(), uuid.to_owned());
    let found = Signature { class, name, uuid, label: String::new(), offset: 0 };
    let contents = Contents { signatures: vec![found], ..Contents::default() };
    Disk { number: "7:1".to_owned(), contents, ..Disk::default() }
}

fn line(number: &str, point: &str) -> MountLine {
    MountLine {
        number: number.to_owned(),
        point: point.to_owned(),
        source: "/dev/x".to_owned(),
        filesystem: "ext4".to_owned(),
        read_only: false,
    }
}

#[test]
fn the_recorded_uuid_is_a_part_of_the_identity_of_a_pool() {
    let made = device(json!({}), json!({"formatted": {"uuid": "u"}}));
    let never = device(json!({}), json!({}));
    let blank = Disk::default();
    let mut silent = Disk::default();
    silent.contents.unreadable = Some("I/O error".to_owned());
    let ours = holding(Class::Filesystem, "ext4", "u");
    let other = holding(Class::Filesystem, "ext4", "v");
    let table = holding(Class::PartitionTable, "gpt", "p");
    let cases = [
        (&made, &ours, false, None),
        (&made, &ours, true, Some(Fault::ReadOnly)),
        (&made, &other, false, Some(Fault::FilesystemChanged)),
        (&made, &table, false, Some(Fault::FilesystemChanged)),
        (&made, &blank, false, Some(Fault::FilesystemMissing)),
        (&made, &silent, false, None),
        (&never, &other, false, None),
        (&never, &blank, false, None),
    ];
    for (device, disk, read_only, expected) in cases {
        assert_eq!(fault(device, disk, read_only), expected, "{:?}", disk.contents);
    }
}

#[test]
fn a_format_is_asked_for_once() {
    let done = |request: &str| json!({"formatted": {"uuid": "u", "request": request}});
    let force = json!({"fileSystem": {"forceFormatted": true}});
    let anew = json!({"fileSystem": {"forceFormatted": true, "formatRequest": "2"}});
    let cases = [
        (json!({}), json!({}), false),
        (force.clone(), json!({}), true),
        (force.clone(), done(""), false),
        (anew.clone(), done(""), true),
        (anew, done("2"), false),
        (force, json!({"formatted": {"uuid": "u", "adopted": true}}), true),
    ];
    for (spec, status, expected) in cases {
        assert_eq!(requests(&device(spec.clone(), status.clone())), expected, "{spec} {status}");
    }
}

#[test]
fn only_a_change_by_a_person_retries_after_a_failure() {
    let corrupted = json!({"fileSystem": {"corrupted": true}});
    let failed =
        |failure: serde_json::Value| json!({"failure": failure, "deviceStatus": corrupted});
    let cases = [
        (json!({}), json!({}), Retrigger::None),
        (json!({}), failed(json!({"reason": "x"})), Retrigger::None),
        (json!({"retry": "1"}), failed(json!({"reason": "x"})), Retrigger::Retry),
        (json!({"retry": "1"}), failed(json!({"reason": "x", "retry": "1"})), Retrigger::None),
        (json!({"tags": ["a"]}), failed(json!({"reason": "x"})), Retrigger::None),
        (
            json!({"fileSystem": {"repaired": true}}),
            failed(json!({"reason": "x"})),
            Retrigger::Repaired,
        ),
        (
            json!({"fileSystem": {"repaired": true}}),
            failed(json!({"reason": "x", "repaired": true})),
            Retrigger::None,
        ),
        (
            json!({"fileSystem": {"forceFormatted": true}}),
            failed(json!({"reason": "x"})),
            Retrigger::Force,
        ),
        (
            json!({"fileSystem": {"forceFormatted": true}}),
            failed(json!({"reason": "x", "forceFormatted": true})),
            Retrigger::None,
        ),
        (
            json!({"fileSystem": {"forceFormatted": true, "formatRequest": "2"}}),
            failed(json!({"reason": "x", "forceFormatted": true})),
            Retrigger::Force,
        ),
        (
            json!({"fileSystem": {"forceFormatted": true}}),
            json!({"failure": {"reason": "x"}}),
            Retrigger::None,
        ),
    ];
    for (spec, status, expected) in cases {
        assert_eq!(retrigger(&device(spec.clone(), status.clone())), expected, "{spec} {status}");
    }
}

#[test]
fn contents_are_compared_with_the_record() {
    let recorded = |uuid: &str| json!({"formatted": {"uuid": uuid}});
    let lvm = json!({"provisioner": {"lvm": {"vgName": "a"}}});
    let fs = |name: &str| holding(Class::Filesystem, name, "u");
    let cases = [
        (json!({}), json!({}), Disk::default(), Content::Blank),
        (json!({}), json!({}), fs("ext4"), Content::Adoptable),
        (json!({}), recorded("u"), fs("xfs"), Content::Ours),
        (json!({}), recorded("v"), fs("ext4"), Content::Foreign),
        (json!({}), recorded("u"), fs("btrfs"), Content::Other),
        (json!({}), json!({}), holding(Class::PartitionTable, "gpt", ""), Content::Partitioned),
        (json!({}), json!({}), holding(Class::Luks, "crypto_LUKS", ""), Content::Other),
        (lvm.clone(), json!({}), Disk::default(), Content::Blank),
        (lvm.clone(), recorded(""), Disk::default(), Content::Ours),
        (lvm.clone(), recorded("u"), Disk::default(), Content::Blank),
        (lvm.clone(), recorded("u"), holding(Class::Lvm, "LVM2_member", "u"), Content::Ours),
        (lvm.clone(), recorded("v"), holding(Class::Lvm, "LVM2_member", "u"), Content::Other),
        (lvm, json!({}), fs("ext4"), Content::Other),
    ];
    for (spec, status, disk, expected) in cases {
        let device = device(spec.clone(), status.clone());
        assert_eq!(content(&device, &disk), expected, "{spec} {status} {disk:?}");
    }
}

#[test]
fn mounts_are_classified() {
    let disk = holding(Class::Filesystem, "ext4", "u");
    let cases: [(&[MountLine], Mount); 6] = [
        (&[], Mount::Nowhere),
        (&[line("7:1", "/p")], Mount::Right),
        (&[line("7:1", "/q")], Mount::Elsewhere),
        (&[line("7:2", "/p")], Mount::WrongSource),
        (&[line("7:1", "/p"), line("7:2", "/p")], Mount::Stacked),
        (&[line("7:1", "/p"), line("7:1", "/q")], Mount::Right),
    ];
    for (mounts, expected) in cases {
        assert_eq!(mount(Some(&disk), "/p", mounts), expected, "{mounts:?}");
    }
    assert_eq!(mount(None, "/p", &[line("7:2", "/p")]), Mount::WrongSource);
}
