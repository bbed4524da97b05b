use super::*;
use crate::host::Signature;

/// A scene in which everything is as it should be.
pub(crate) fn fine() -> Scene {
    Scene {
        resolved: Resolved::Single,
        excluded: None,
        on_this_node: true,
        system: None,
        mounts: Vec::new(),
        exclusive: None,
        holders: Vec::new(),
        loops: Vec::new(),
        multipath_member: false,
        contents: Contents::default(),
        acknowledged: Vec::new(),
        auto: false,
        read_only: false,
        size: 10 << 30,
        minimum: MINIMUM,
        sector: 512,
        lock: None,
        changed: None,
        commands: vec![["/sbin/mkfs.ext4", "-U", "u", "/dev/a"].map(str::to_owned).to_vec()],
        target_uuid: "u".to_owned(),
        uuid_taken: None,
        point_taken: None,
        silent: None,
        audit: None,
    }
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
fn a_fine_disk_passes_all_twelve() {
    let verdict = judge(&fine());
    assert_eq!(verdict.findings.len(), 12);
    assert!(verdict.passes(), "{verdict}");
    assert_eq!(verdict.reasons(), "");
}

#[test]
fn every_rule_refuses_alone_and_says_why() {
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
        (1, Scene { system: text("/boot"), ..fine() }, "/boot"),
        (2, Scene { mounts: words(&["/mnt of process 7"]), ..fine() }, "/mnt of process 7"),
        (3, Scene { exclusive: text("Device or resource busy"), ..fine() }, "busy"),
        (3, Scene { holders: words(&["dm-0"]), ..fine() }, "dm-0"),
        (3, Scene { loops: words(&["loop7"]), ..fine() }, "loop7"),
        (3, Scene { multipath_member: true, ..fine() }, "map"),
        (4, Scene { contents: gpt(), ..fine() }, "[gpt]"),
        (
            4,
            Scene { contents: gpt(), acknowledged: words(&["ext4"]), ..fine() },
            "acknowledged ext4",
        ),
        (4, Scene { contents: gpt(), acknowledged: words(&["gpt", "ext4"]), ..fine() }, "exactly"),
        (
            4,
            Scene { contents: gpt(), acknowledged: words(&["gpt"]), auto: true, ..fine() },
            "blank disks only",
        ),
        (
            4,
            Scene { contents: Contents { ambiguous: true, ..Contents::default() }, ..fine() },
            "ambiguous",
        ),
        (
            4,
            Scene {
                contents: Contents { unreadable: text("EIO"), ..Contents::default() },
                ..fine()
            },
            "EIO",
        ),
        (5, Scene { read_only: true, ..fine() }, "read-only"),
        (5, Scene { size: 1 << 20, ..fine() }, "1Mi is too small"),
        (5, Scene { sector: 520, ..fine() }, "520"),
        (6, Scene { lock: text("locked by another"), ..fine() }, "locked by another"),
        (7, Scene { changed: text("disk sequence 3, not 2"), ..fine() }, "sequence"),
        (8, Scene { commands: vec![words(&["mkfs.ext4", "-F", "/dev/a"])], ..fine() }, "forced"),
        (8, Scene { commands: vec![words(&["wipefs", "-f", "/dev/a"])], ..fine() }, "forced"),
        (8, Scene { commands: vec![words(&["mkfs.xfs", "-F", "/dev/a"])], ..fine() }, "forced"),
        (9, Scene { target_uuid: String::new(), ..fine() }, "no UUID"),
        (9, Scene { uuid_taken: text("/dev/b"), ..fine() }, "/dev/b"),
        (10, Scene { point_taken: text("/dev/c"), ..fine() }, "/dev/c"),
        (11, Scene { silent: text("blkid"), ..fine() }, "blkid"),
        (12, Scene { audit: text("disk full"), ..fine() }, "disk full"),
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
fn exactly_the_acknowledged_signatures_pass() {
    let contents = holding(&[(Class::PartitionTable, "gpt"), (Class::Filesystem, "ext4")]);
    let acknowledged = vec!["ext4".to_owned(), "gpt".to_owned(), "gpt".to_owned()];
    assert!(judge(&Scene { contents, acknowledged, ..fine() }).passes());
}

#[test]
fn auto_provisioning_takes_nothing_but_blank_disks() {
    assert!(judge(&Scene { auto: true, ..fine() }).passes());
    let classes =
        [Class::Filesystem, Class::Luks, Class::Lvm, Class::Raid, Class::Swap, Class::Other];
    for class in classes {
        let contents = holding(&[(class, "x")]);
        let acknowledged = vec!["x".to_owned()];
        let scene = Scene { contents, acknowledged, auto: true, ..fine() };
        assert!(!judge(&scene).passes(), "{class:?}");
    }
}
