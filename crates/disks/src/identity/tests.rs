use mainstay_host::{Class, Contents, Signature};
use proptest::prelude::*;

use super::*;

fn disk(path: &str, wwn: &str, serial: &str) -> Disk {
    Disk {
        name: path.trim_start_matches("/dev/").to_owned(),
        path: path.to_owned(),
        wwn: wwn.to_owned(),
        serial: serial.to_owned(),
        bus_path: format!("pci-{path}"),
        ..Disk::default()
    }
}

fn formatted(mut disk: Disk, uuid: &str) -> Disk {
    disk.contents = Contents {
        signatures: vec![Signature {
            class: Class::Filesystem,
            name: "ext4".to_owned(),
            uuid: uuid.to_owned(),
            label: String::new(),
            offset: 1080,
        }],
        ..Contents::default()
    };
    disk
}

fn object(name: &str, disk: &Disk) -> Known {
    Known {
        name: name.to_owned(),
        active: true,
        path: disk.path.clone(),
        phase: Some(Phase::Provisioned),
        identity: of(disk),
    }
}

fn refresh(name: &str, disk: usize) -> Step {
    Step::Refresh { name: name.to_owned(), disk, duplicates: Vec::new() }
}

#[test]
fn hollow_names_are_no_identity() {
    for (text, expected) in [
        ("", ""),
        ("unknown", ""),
        ("Unknown", ""),
        ("0x0000000000000000", ""),
        ("00000000-0000-0000-0000-000000000000", ""),
        ("0x5000c500", "0x5000c500"),
        (" S1 ", "S1"),
    ] {
        assert_eq!(real(text), expected);
    }
}

#[test]
fn three_disks_without_a_world_wide_name_are_three() {
    let disks = ["", "unknown", "0x0000000000000000"]
        .iter()
        .enumerate()
        .map(|(n, wwn)| disk(&format!("/dev/sd{n}"), wwn, ""))
        .collect::<Vec<_>>();
    let steps = reconcile(&[], &disks);
    assert_eq!(steps.len(), 3);
    for (n, step) in steps.iter().enumerate() {
        assert_eq!(*step, Step::Create { disk: n, duplicates: Vec::new() });
    }
}

#[test]
fn a_world_wide_name_that_comes_twice_is_one_object_and_a_report() {
    let disks = [disk("/dev/sda", "w1", "s1"), disk("/dev/sdb", "w1", "s1")];
    let duplicates = vec!["/dev/sdb".to_owned()];
    assert_eq!(reconcile(&[], &disks), [Step::Create { disk: 0, duplicates: duplicates.clone() }]);
    let known = [object("a", &disks[0])];
    let expected = Step::Refresh { name: "a".to_owned(), disk: 0, duplicates };
    assert_eq!(reconcile(&known, &disks), [expected]);
}

#[test]
fn a_clone_is_distinguished_from_the_original_by_its_hardware() {
    let original = formatted(disk("/dev/sda", "w1", "s1"), "u1");
    let clone = formatted(disk("/dev/sdb", "w2", "s2"), "u1");
    let known = [object("a", &original)];
    let steps = reconcile(&known, &[clone, original]);
    let expected =
        Step::Refresh { name: "a".to_owned(), disk: 1, duplicates: vec!["/dev/sdb".to_owned()] };
    assert_eq!(steps, [expected], "the clone gets no object of its own");
}

#[test]
fn two_disks_that_swap_paths_keep_their_objects() {
    let a = formatted(disk("/dev/sda", "w1", "s1"), "u1");
    let b = formatted(disk("/dev/sdb", "w2", "s2"), "u2");
    let mut known = vec![object("a", &a), object("b", &b)];
    let mut swapped = [b, a];
    swapped[0].path = "/dev/sda".to_owned();
    swapped[1].path = "/dev/sdb".to_owned();
    let moved = |name: &str| Step::Deactivate { name: name.to_owned(), moved: true };
    assert_eq!(reconcile(&known, &swapped), [moved("a"), moved("b")]);
    known.iter_mut().for_each(|known| known.active = false);
    assert_eq!(reconcile(&known, &swapped), [refresh("a", 1), refresh("b", 0)]);
}

#[test]
fn a_uuid_wins_over_a_world_wide_name_that_changed() {
    let before = formatted(disk("/dev/nvme0n1", "eui.1", ""), "u1");
    let after = formatted(disk("/dev/nvme0n1", "nvme.1", ""), "u1");
    assert_eq!(reconcile(&[object("a", &before)], &[after]), [refresh("a", 0)]);
}

#[test]
fn a_disk_that_is_gone_takes_only_an_unused_object_with_it() {
    let gone = disk("/dev/sda", "w1", "s1");
    for (phase, expected) in [
        (Phase::Unprovisioned, Step::Delete { name: "a".to_owned() }),
        (Phase::Provisioned, Step::Deactivate { name: "a".to_owned(), moved: false }),
        (Phase::Failed, Step::Deactivate { name: "a".to_owned(), moved: false }),
        (Phase::Formatting, Step::Deactivate { name: "a".to_owned(), moved: false }),
    ] {
        let known = Known { phase: Some(phase), ..object("a", &gone) };
        assert_eq!(reconcile::<Disk>(&[known], &[]), [expected]);
    }
}

#[test]
fn a_disk_that_comes_back_elsewhere_is_taken_up() {
    let before = formatted(disk("/dev/sda", "w1", "s1"), "u1");
    let known = Known { active: false, ..object("a", &before) };
    let mut back = before.clone();
    back.path = "/dev/sdq".to_owned();
    assert_eq!(reconcile(&[known], &[back]), [refresh("a", 0)]);
}

#[test]
fn an_object_that_was_never_described_is_matched_by_its_path() {
    let there = disk("/dev/sda", "w1", "s1");
    let new = Known {
        active: false,
        phase: Some(Phase::Unprovisioned),
        identity: Identity::default(),
        ..object("a", &there)
    };
    assert_eq!(reconcile(&[new], &[there]), [refresh("a", 0)]);
}

#[test]
fn the_first_aspect_both_have_decides() {
    let with = |uuid: &str, wwn: &str, serial: &str| Identity {
        uuid: uuid.to_owned(),
        wwn: wwn.to_owned(),
        serial: serial.to_owned(),
        ..Identity::default()
    };
    assert!(same(&with("u", "w1", ""), &with("u", "w2", "")));
    assert!(!same(&with("u", "w", "s"), &with("v", "w", "s")));
    assert!(same(&with("", "w", "s"), &with("v", "w", "t")));
    assert!(!same(&with("", "", ""), &with("", "", "")));
    assert!(same(&with("", "", "s"), &with("u", "w", "s")));
}

/// Few values, so that many are shared.
fn identities() -> impl Strategy<Value = Identity> {
    let few = || prop::sample::select(vec!["", "a", "b"]);
    (few(), few(), few()).prop_map(|(uuid, wwn, serial)| Identity {
        uuid: uuid.to_owned(),
        wwn: wwn.to_owned(),
        serial: serial.to_owned(),
        ..Identity::default()
    })
}

fn worlds() -> impl Strategy<Value = (Vec<Known>, Vec<Disk>)> {
    let phases = || prop::sample::select(vec![Phase::Unprovisioned, Phase::Provisioned]);
    let objects = prop::collection::vec((identities(), 0..6_usize, any::<bool>(), phases()), 0..5);
    let disks = prop::collection::vec((identities(), any::<bool>()), 0..6);
    (objects, disks).prop_map(|(objects, disks)| {
        let known = objects.into_iter().enumerate().map(|(n, (identity, path, active, phase))| {
            let path = format!("/dev/d{path}");
            Known { name: format!("o{n}"), active, path, phase: Some(phase), identity }
        });
        let disks = disks.into_iter().enumerate().map(|(n, (identity, bus))| {
            let mut made = disk(&format!("/dev/d{n}"), &identity.wwn, &identity.serial);
            made.bus_path = if bus { "one".to_owned() } else { String::new() };
            if identity.uuid.is_empty() { made } else { formatted(made, &identity.uuid) }
        });
        (known.collect(), disks.collect())
    })
}

/// The steps, by the names of disks instead of their positions.
fn named(steps: Vec<Step>, disks: &[Disk]) -> Vec<String> {
    let name = |disk: usize| disks[disk].name.clone();
    let step = |step: Step| match step {
        Step::Create { disk, duplicates } => format!("create {} {duplicates:?}", name(disk)),
        Step::Refresh { name: object, disk, duplicates } => {
            format!("refresh {object} {} {duplicates:?}", name(disk))
        }
        other => format!("{other:?}"),
    };
    steps.into_iter().map(step).collect()
}

proptest! {
    /// Only the disks and objects linked with a disk need be matched when it changes.
    #[test]
    fn matching_linked_disks_gives_the_same_result_as_matching_all(
        (known, disks) in worlds(), touched in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!disks.is_empty());
        let of = |disk: &Disk| links(&of(disk), &disk.path);
        let reached = reachable(of(touched.get(&disks)), |link| {
            let bears = |links: &Vec<String>| links.iter().any(|other| other == link);
            let all = disks.iter().map(of).chain(known.iter().map(Known::links));
            all.filter(bears).flatten().collect()
        });
        let concerned = |links: Vec<String>| links.iter().any(|link| reached.contains(link));
        let some: Vec<Known> = known.iter().filter(|it| concerned(it.links())).cloned().collect();
        let few: Vec<Disk> = disks.iter().filter(|disk| concerned(of(disk))).cloned().collect();
        let all = named(reconcile(&known, &disks), &disks);
        let part = named(reconcile(&some, &few), &few);
        let expected: Vec<_> = all.iter().filter(|step| {
            let about = |name: &str| step.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
            some.iter().any(|it| about(&it.name)) || few.iter().any(|disk| step.starts_with(&format!("create {} ", disk.name)))
        }).cloned().collect();
        prop_assert_eq!(part, expected);
    }
}
