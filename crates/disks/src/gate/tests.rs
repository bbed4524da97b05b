use mainstay_host::Signature;

use super::*;

/// A scene in which everything is as it should be.
pub(crate) fn fine() -> Scene {
    Scene {
        resolved: Resolved::Single,
        excluded: None,
        on_this_node: true,
        inspection: Inspection::default(),
        acknowledged: Vec::new(),
        auto: false,
        read_only: false,
        size: 10 << 30,
        minimum: MINIMUM,
        sector: 512,
        commands: vec![["/sbin/mkfs.ext4", "-U", "u", "/dev/a"].map(str::to_owned).to_vec()],
        target_uuid: "u".to_owned(),
        uuid_taken: None,
        group_taken: None,
        point_taken: None,
        pool: None,
    }
}

/// The same, but for what the host found.
fn found(inspection: Inspection) -> Scene {
    Scene { inspection, ..fine() }
}

/// The same, but for the signatures on the disk.
fn with(contents: Contents) -> Scene {
    found(Inspection { contents, ..Inspection::default() })
}

fn signature(class: Class, name: &str) -> Signature {
    let (uuid, label) = (String::new(), String::new());
    Signature { class, name: name.to_owned(), uuid, label, offset: 0 }
}

fn holding(names: &[(Class, &str)]) -> Contents {
    let signatures = names.iter().map(|(class, name)| signature(*class, name)).collect();
    Contents { signatures, ..Contents::default() }
}

fn text(words: &str) -> Option<String> {
    Some(words.to_owned())
}

#[test]
fn a_fine_disk_passes_every_rule() {
    let verdict = judge(&fine());
    assert_eq!(verdict.findings.len(), 13);
    assert!(verdict.passes(), "{verdict}");
    assert_eq!(verdict.reasons(), "");
}

#[test]
fn every_rule_refuses_alone_with_its_reason() {
    let gpt = || holding(&[(Class::PartitionTable, "gpt")]);
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let cases: Vec<(u8, Scene, &str)> = vec![
        (1, Scene { resolved: Resolved::Not, ..fine() }, "tells this disk apart"),
        (
            1,
            Scene { resolved: Resolved::Duplicate(words(&["/dev/a", "/dev/b"])), ..fine() },
            "/dev/a and /dev/b",
        ),
        (1, Scene { excluded: text("filter x"), ..fine() }, "filter x"),
        (1, Scene { on_this_node: false, ..fine() }, "another node"),
        (1, found(Inspection { system: text("/boot"), ..Inspection::default() }), "/boot"),
        (
            2,
            found(Inspection { mounts: words(&["/mnt of process 7"]), ..Inspection::default() }),
            "/mnt of process 7",
        ),
        (
            3,
            found(Inspection {
                exclusive: text("Device or resource busy"),
                ..Inspection::default()
            }),
            "busy",
        ),
        (3, found(Inspection { holders: words(&["dm-0"]), ..Inspection::default() }), "dm-0"),
        (3, found(Inspection { loops: words(&["loop7"]), ..Inspection::default() }), "loop7"),
        (3, found(Inspection { multipath_member: true, ..Inspection::default() }), "map"),
        (4, with(gpt()), "[gpt]"),
        (4, Scene { acknowledged: words(&["ext4"]), ..with(gpt()) }, "acknowledged ext4"),
        (4, Scene { acknowledged: words(&["gpt", "ext4"]), ..with(gpt()) }, "exactly"),
        (4, Scene { acknowledged: words(&["gpt"]), auto: true, ..with(gpt()) }, "blank disks only"),
        (4, with(Contents { ambiguous: true, ..Contents::default() }), "ambiguous"),
        (4, with(Contents { unreadable: text("EIO"), ..Contents::default() }), "EIO"),
        (5, Scene { read_only: true, ..fine() }, "read-only"),
        (5, Scene { size: 1 << 20, ..fine() }, "1Mi is too small"),
        (5, Scene { sector: 520, ..fine() }, "520"),
        (
            6,
            found(Inspection { lock: text("locked by another"), ..Inspection::default() }),
            "locked by another",
        ),
        (
            7,
            found(Inspection { changed: text("disk sequence 3, not 2"), ..Inspection::default() }),
            "sequence",
        ),
        (8, Scene { commands: vec![words(&["mkfs.ext4", "-F", "/dev/a"])], ..fine() }, "forced"),
        (8, Scene { commands: vec![words(&["wipefs", "-f", "/dev/a"])], ..fine() }, "forced"),
        (8, Scene { commands: vec![words(&["mkfs.xfs", "-F", "/dev/a"])], ..fine() }, "forced"),
        (9, Scene { target_uuid: String::new(), ..fine() }, "no UUID"),
        (9, Scene { uuid_taken: text("/dev/b"), ..fine() }, "/dev/b"),
        (10, Scene { point_taken: text("/dev/c"), ..fine() }, "/dev/c"),
        (11, found(Inspection { silent: text("blkid"), ..Inspection::default() }), "blkid"),
        (13, Scene { pool: text("a pool is registered on it"), ..fine() }, "unprovision it first"),
        (12, found(Inspection { audit: text("disk full"), ..Inspection::default() }), "disk full"),
    ];
    for (rule, scene, part) in cases {
        let verdict = judge(&scene);
        let refused: Vec<_> = verdict.findings.iter().filter(|f| f.refusal.is_some()).collect();
        assert_eq!(refused.len(), 1, "{scene:?}");
        assert_eq!(refused[0].rule, rule, "{scene:?}");
        assert!(verdict.reasons().contains(part), "{:?} lacks {part}", verdict.reasons());
    }
}

#[test]
fn a_registered_pool_or_a_replica_counts_as_use() {
    use crate::phase::Record;
    let known = |record, replicas: &[&str]| {
        let replicas = replicas.iter().map(|name| (*name).to_owned()).collect();
        pool_in_use(&Known { record, closed: false, ready: true, replicas })
    };
    assert_eq!(known(Record::Missing, &[]), None);
    assert_eq!(known(Record::NoNode, &[]), None);
    assert!(known(Record::Equal, &[]).unwrap().contains("registered"));
    assert!(known(Record::OtherPath, &[]).is_some() && known(Record::OtherTags, &[]).is_some());
    assert!(known(Record::Missing, &["rv-1"]).unwrap().contains("rv-1"));
    let many = ["a", "b", "c", "d", "e", "f", "g"];
    assert!(known(Record::NoNode, &many).unwrap().ends_with("e and 2 more"));
}

#[test]
fn exactly_the_acknowledged_signatures_pass() {
    let contents = holding(&[(Class::PartitionTable, "gpt"), (Class::Filesystem, "ext4")]);
    let acknowledged = vec!["ext4".to_owned(), "gpt".to_owned(), "gpt".to_owned()];
    assert!(judge(&Scene { acknowledged, ..with(contents) }).passes());
}

#[test]
fn a_signature_with_a_uuid_is_acknowledged_by_that_uuid_only() {
    let mut contents = holding(&[(Class::Filesystem, "ext4")]);
    "u1".clone_into(&mut contents.signatures[0].uuid);
    for (acknowledged, passes) in [("ext4", false), ("ext4:u2", false), ("ext4:u1", true)] {
        let acknowledged = vec![acknowledged.to_owned()];
        let verdict = judge(&Scene { acknowledged, ..with(contents.clone()) });
        assert_eq!(verdict.passes(), passes, "{verdict}");
    }
    let refusal = judge(&with(contents)).reasons();
    assert!(refusal.contains("--erase ext4,") && refusal.contains("[ext4:u1]"), "{refusal}");
}

#[test]
fn auto_provisioning_takes_blank_disks_only() {
    assert!(judge(&Scene { auto: true, ..fine() }).passes());
    let classes =
        [Class::Filesystem, Class::Luks, Class::Lvm, Class::Raid, Class::Swap, Class::Other];
    for class in classes {
        let contents = holding(&[(class, "x")]);
        let acknowledged = vec!["x".to_owned()];
        let scene = Scene { acknowledged, auto: true, ..with(contents) };
        assert!(!judge(&scene).passes(), "{class:?}");
    }
}

#[test]
fn a_volume_group_gets_a_name_that_no_other_group_of_the_machine_has() {
    let group = |name: &str, path: &str| Group {
        name: name.to_owned(),
        uuid: "u-1".to_owned(),
        path: path.to_owned(),
    };
    let all = [group("root", "/dev/sda2"), group("vg1", "/dev/sdb")];
    let why = name_in_use("root", "/dev/sdc", &all).unwrap();
    assert!(why.contains("root") && why.contains("u-1") && why.contains("/dev/sda2"), "{why}");
    assert_eq!(name_in_use("vg2", "/dev/sdc", &all), None);
    assert_eq!(name_in_use("vg1", "/dev/sdb", &all), None, "rule 4 asks for its acknowledgement");
    let verdict = judge(&Scene { group_taken: Some(why), ..fine() });
    assert!(verdict.reasons().starts_with("rule 9: volume group root"), "{verdict}");
}
