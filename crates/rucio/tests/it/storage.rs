//! Tests of the storage check on both databases: it finds differences in both directions and reports no
//! transfer that is under way.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_rules::api::{Grouping, Micros, NewFile, NewRule, SECOND};
use mainstay_rules::audit::decide::Patience;
use mainstay_rules::audit::{Finding, Step, Wanted, audit, within};
use mainstay_rules::rse::RseSettings;
use mainstay_rules::{Environment, replica};
use serde_json::json;

use crate::disks::Disks;
use crate::world::World;

/// Longer than the grace period of unknown files, shorter than that of possible uploads.
pub(crate) const LATER: Micros = 3_600 * SECOND;

pub(crate) const DAYS_LATER: Micros = 3 * 86_400 * SECOND;

pub(crate) fn wanted(disks: &Disks, after: Micros) -> Wanted {
    Wanted {
        rses: disks.world.write(|tx| within(tx, None)),
        checksums: false,
        now: Environment::system().now() + after,
        patience: Patience::default(),
    }
}

/// The findings and notes of a check while `meanwhile` runs.
pub(crate) fn found_while(
    disks: &Disks,
    wanted: &Wanted,
    mut meanwhile: impl FnMut(&Step),
) -> (Vec<Finding>, Vec<String>) {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    let mut follow = |step: Step| {
        meanwhile(&step);
        match step {
            Step::Found(finding) => found.push(finding),
            Step::Note(text) => notes.push(text),
            _ => {}
        }
        ControlFlow::Continue(())
    };
    audit(&disks.world.catalog, &disks.access(), wanted, &mut follow).unwrap();
    (found, notes)
}

/// `KIND RSE name-or-path` of every finding.
pub(crate) fn shown(found: &[Finding]) -> BTreeSet<String> {
    let place = |one: &Finding| match (&one.did, &one.path) {
        (Some(did), _) => did.name.clone(),
        (None, path) => path.clone().unwrap_or_default(),
    };
    found.iter().map(|one| format!("{} {} {}", one.kind.name(), one.rse, place(one))).collect()
}

pub(crate) fn found_by(disks: &Disks, wanted: &Wanted) -> BTreeSet<String> {
    shown(&found_while(disks, wanted, |_| {}).0)
}

fn found(disks: &Disks) -> BTreeSet<String> {
    found_by(disks, &wanted(disks, LATER))
}

/// Asserts that a check with checksums, after all grace periods, finds nothing.
#[track_caller]
fn clean(disks: &Disks) {
    let wanted = Wanted { checksums: true, ..wanted(disks, DAYS_LATER) };
    let (found, _) = found_while(disks, &wanted, |_| {});
    assert_eq!(found, [], "on {}", disks.world.catalog.backend());
}

#[track_caller]
fn same(found: &BTreeSet<String>, meant: &[&str]) {
    let meant: BTreeSet<String> = meant.iter().map(|text| (*text).to_owned()).collect();
    assert_eq!(*found, meant);
}

pub(crate) fn put(place: &Path, content: &[u8]) {
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(place, content).unwrap();
}

fn hashed(name: &str) -> String {
    mainstay_transfers::protocol::hashed_path(&World::did(name))
}

#[test]
fn copies_and_removals_leave_no_findings() {
    for disks in Disks::each() {
        let world = &disks.world;
        let names = ["f", "a/b.c/d..e", "/first", "//more/x", "n-.7-1.part"];
        for name in names {
            disks.file(name, "A", name.as_bytes(), Some(name.as_bytes()));
        }
        clean(&disks);
        let rules: Vec<String> = names
            .iter()
            .map(|name| {
                world.add(&NewRule { purge_replicas: true, ..World::new_rule(name, 2, "B|C") })
            })
            .collect();
        // Under way: one file is half written, another is written and not reported.
        let jobs = disks.take("w", 10);
        disks.copy(&jobs[0]).unwrap();
        let half = disks.place(&jobs[1].destination.rse, &jobs[1].did.name);
        let name = half.file_name().unwrap().to_str().unwrap().to_owned();
        put(&half.with_file_name(format!(".{name}.{}-1.part", jobs[1].request)), b"x");
        clean(&disks);
        for job in &jobs {
            disks.copy(job).unwrap();
            disks.tell("w", job, None);
        }
        clean(&disks);
        disks.check();
        rules.iter().for_each(|rule| world.delete(rule));
        clean(&disks);
        disks.reap();
        clean(&disks);
        disks.check();
    }
}

#[test]
fn missing_truncated_wrong_and_orphaned_files_are_found() {
    for disks in Disks::each() {
        let world = &disks.world;
        for name in ["right", "gone", "cut", "false", "a/b.c", "folder", "resting", "unsummed"] {
            disks.file(name, "A", b"content", Some(b"content"));
        }
        disks.file("right", "B", b"content", Some(b"content"));
        let at = |name: &str| disks.place("A", name);
        for name in ["gone", "a/b.c", "folder", "resting"] {
            std::fs::remove_file(at(name)).unwrap();
        }
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("cut"), b"con").unwrap();
        std::fs::write(at("false"), b"CONTENT").unwrap();
        std::fs::write(at("unsummed"), b"CONTENT").unwrap();
        world.change("UPDATE dids SET adler32 = NULL, md5 = NULL WHERE name = 'unsummed'");
        // Replicas in other states than available are not reported.
        world.change("UPDATE replicas SET state = 'T' WHERE did_id = (SELECT id FROM dids WHERE name = 'resting')");
        for (name, state) in [("leaving", "B"), ("unfetched", "U"), ("coming", "C")] {
            disks.file(name, "A", b"content", None);
            world.change(&format!("UPDATE replicas SET state = '{state}' WHERE did_id = (SELECT id FROM dids WHERE name = '{name}')"));
        }
        for (name, state) in [("left", "B"), ("there", "U"), ("half", "C")] {
            disks.file(name, "B", b"content", Some(b"con"));
            world.change(&format!("UPDATE replicas SET state = '{state}' WHERE did_id = (SELECT id FROM dids WHERE name = '{name}')"));
        }
        // B has no replicas of the files on A, and vice versa.
        put(&disks.place("B", "cut"), b"con");
        put(&disks.folder("A").join("lost"), b"123");
        put(&disks.folder("A").join("s/00/00/x"), b"");
        let nobodys = format!("ORPHAN B {}", hashed("cut"));
        let mut meant = vec![
            "MISSING A gone",
            "MISSING A a/b.c",
            "MISSING A folder",
            "MISSING A resting",
            "DIFFERS A cut",
            "ORPHAN A lost",
            "ORPHAN A s/00/00/x",
            &nobodys,
        ];
        same(&found(&disks), &meant);
        meant.push("DIFFERS A false");
        let closely = Wanted { checksums: true, ..wanted(&disks, LATER) };
        same(&found_by(&disks, &closely), &meant);
        // An expression restricts the check to some RSEs.
        let rses = world.write(|tx| within(tx, Some("B")));
        same(&found_by(&disks, &Wanted { rses, ..closely.clone() }), &[&*nobodys]);
        // Each finding explains itself in one sentence.
        let (all, _) = found_while(&disks, &closely, |_| {});
        for (path, sentence) in [
            (hashed("gone"), "s:gone on A: "),
            (hashed("cut"), "s:cut on A: size is 3 bytes, expected 7"),
            (hashed("false"), "s:false on A: adler32 checksum is "),
            (hashed("folder"), " is not a file"),
            ("lost".to_owned(), "lost on A: no replica has this path (3 bytes, changed "),
        ] {
            let one = all.iter().find(|one| one.rse == "A" && one.path.as_ref() == Some(&path));
            let what = &one.unwrap().what;
            assert!(what.contains(sentence), "{what}");
        }
    }
}

#[test]
fn recent_files_and_live_drafts_are_not_reported() {
    for disks in Disks::each() {
        let world = &disks.world;
        for name in ["live", "given", "done"] {
            disks.file(name, "A", b"content", Some(b"content"));
            world.rule(name, 1, "B", Grouping::None);
        }
        let jobs = disks.take("w", 10);
        let job = |name: &str| jobs.iter().find(|job| job.did.name == name).unwrap();
        disks.copy(job("done")).unwrap();
        disks.tell("w", job("done"), None);
        let rows = world.write(|tx| {
            Ok(tx.query(
                "SELECT r.uuid FROM rules r JOIN dids d ON d.id = r.did_id WHERE d.name = 'given'",
                &[],
            )?)
        });
        world.delete(rows[0].text(0).unwrap());
        assert_eq!(world.sql("SELECT COUNT(*) FROM given_up"), 1);
        let draft = |name: &str, tag: &str| {
            let place = disks.place("B", name);
            let name = place.file_name().unwrap().to_str().unwrap().to_owned();
            let draft = place.with_file_name(format!(".{name}.{tag}.part"));
            put(&draft, b"ha");
            draft.strip_prefix(disks.folder("B")).unwrap().to_str().unwrap().to_owned()
        };
        for name in ["live", "given"] {
            draft(name, &format!("{}-1", job(name).request));
        }
        // A draft of a worker that was killed before another found the file complete.
        let left = draft("done", &format!("{}-1", job("done").request));
        let unknown = draft("nobody", "77-1");
        let upload = draft("nobody", "0-4711-1");
        let by_rucio = format!("{}.rucio.upload", hashed("nobody"));
        put(&disks.folder("B").join(&by_rucio), b"ha");
        put(&disks.folder("B").join("new"), b"ha");
        let orphan = |path: &str| format!("ORPHAN B {path}");
        let (left, unknown) = (orphan(&left), orphan(&unknown));
        let (upload, by_rucio) = (orphan(&upload), orphan(&by_rucio));
        same(&found_by(&disks, &wanted(&disks, 0)), &[]);
        same(&found_by(&disks, &wanted(&disks, 60 * SECOND)), &[]);
        let old = [left.as_str(), &unknown, "ORPHAN B new"];
        same(&found_by(&disks, &wanted(&disks, 180 * SECOND)), &old);
        same(&found_by(&disks, &wanted(&disks, LATER)), &old);
        let older = [left.as_str(), &unknown, &upload, &by_rucio, "ORPHAN B new"];
        same(&found_by(&disks, &wanted(&disks, DAYS_LATER)), &older);
    }
}

#[test]
fn a_missing_folder_is_one_finding_and_its_files_are_not_reported() {
    for disks in Disks::each() {
        for name in ["f", "g"] {
            disks.file(name, "A", b"content", Some(b"content"));
            disks.file(name, "B", b"content", None);
        }
        disks.world.rse("SILENT");
        disks.world.rse("STRANGE");
        disks.protocol("STRANGE", "root", json!({"prefix": "/x"}), &disks.folder("C"));
        std::fs::rename(disks.folder("A"), disks.folder("A").with_file_name("away")).unwrap();
        let (found, notes) = found_while(&disks, &wanted(&disks, LATER), |_| {});
        same(&shown(&found), &["UNREAD A ", "MISSING B f", "MISSING B g"]);
        let unread = found.iter().find(|one| one.rse == "A").unwrap();
        assert!(unread.what.contains("is not there: make it, or mount"), "{}", unread.what);
        let meant = ["SILENT", "STRANGE"]
            .map(|rse| format!("{rse} is skipped: no worker supports its protocols"));
        assert_eq!(notes, meant);
        // The same holds if the folder disappears during the check.
        std::fs::rename(disks.folder("A").with_file_name("away"), disks.folder("A")).unwrap();
        std::fs::remove_file(disks.place("A", "f")).unwrap();
        let (found, _) = found_while(&disks, &wanted(&disks, LATER), |step| {
            if *step == Step::Replicas(4) {
                let place = disks.folder("A");
                drop(std::fs::rename(&place, place.with_file_name("away")));
            }
        });
        same(&shown(&found), &["UNREAD A ", "MISSING B f", "MISSING B g"]);
    }
}

#[test]
fn registered_paths_are_checked_on_nondeterministic_rses() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.rse_with("FREE", &RseSettings { deterministic: false, ..RseSettings::default() });
        disks.folder_protocol("FREE");
        let now = world.now();
        let file = |name: &str, path: Option<&str>| NewFile {
            did: World::did(name),
            bytes: 3,
            adler32: None,
            md5: None,
            path: path.map(str::to_owned),
            state: None,
        };
        let files = [
            file("f", Some("deep/in the/folder~1/f.x")),
            file("g", Some("g")),
            file("nowhere", None),
        ];
        world.write(|tx| replica::add_replicas(tx, "FREE", &files, "root", now));
        // A registered path also counts on a deterministic RSE.
        let said = [file("said", Some("odd/place"))];
        world.write(|tx| replica::add_replicas(tx, "A", &said, "root", now));
        put(&disks.folder("FREE").join("deep/in the/folder~1/f.x"), b"abc");
        put(&disks.folder("A").join("odd/place"), b"abc");
        put(&disks.folder("A").join(hashed("said")), b"abc");
        // A file at the computed path instead is an orphan.
        put(&disks.folder("FREE").join(hashed("g")), b"abc");
        let orphans =
            [format!("ORPHAN FREE {}", hashed("g")), format!("ORPHAN A {}", hashed("said"))];
        let meant = ["MISSING FREE g", "MISSING FREE nowhere", &orphans[0], &orphans[1]];
        same(&found(&disks), &meant);
    }
}

#[test]
fn links_stay_inside_the_folder_and_shared_folders_cause_no_orphans() {
    for disks in Disks::each() {
        let world = &disks.world;
        let elsewhere = tempfile::tempdir().unwrap();
        put(&elsewhere.path().join("x/secret"), b"abc");
        disks.file("f", "A", b"content", Some(b"content"));
        symlink(elsewhere.path(), disks.folder("A").join("out")).unwrap();
        symlink("..", disks.folder("A").join("up")).unwrap();
        clean(&disks);
        // A scope folder that is a link to another place within the folder is followed.
        std::fs::create_dir(disks.folder("A").join("disk")).unwrap();
        std::fs::rename(disks.folder("A").join("s"), disks.folder("A").join("disk/s")).unwrap();
        symlink("disk/s", disks.folder("A").join("s")).unwrap();
        clean(&disks);
        put(&disks.folder("A").join("disk/s/lost"), b"abc");
        same(&found(&disks), &["ORPHAN A disk/s/lost"]);
        std::fs::remove_file(disks.folder("A").join("disk/s/lost")).unwrap();
        // A file behind a link out of the folder is missing.
        disks.file("away", "B", b"content", None);
        let away = elsewhere.path().join("away");
        put(&away, b"content");
        let place = disks.place("B", "away");
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(&away, &place).unwrap();
        same(&found(&disks), &["MISSING B away"]);
        std::fs::remove_file(&place).unwrap();
        put(&place, b"content");
        // Identical and nested folders: files of one RSE are no orphans of the other.
        for (rse, below) in [("SAME", ""), ("INNER", "inner/deep")] {
            world.rse(rse);
            let folder = disks.folder("C").join(below);
            let body = json!({"prefix": folder.display().to_string()});
            disks.protocol(rse, "file", body, &folder);
        }
        for (name, rse) in [("c", "C"), ("same", "SAME"), ("inner", "INNER")] {
            disks.file(name, rse, b"content", Some(b"content"));
        }
        clean(&disks);
        put(&disks.folder("INNER").join("lost"), b"abc");
        let meant =
            ["ORPHAN C inner/deep/lost", "ORPHAN SAME inner/deep/lost", "ORPHAN INNER lost"];
        same(&found(&disks), &meant);
    }
}

#[test]
fn changes_between_the_two_passes_are_not_reported() {
    for disks in Disks::each() {
        let world = &disks.world;
        let doom = |name: &str| {
            let now = world.now();
            world.write(|tx| replica::set_tombstone(tx, &World::did(name), "A", now));
        };
        let file = |name: &str| disks.file(name, "A", b"content", Some(b"content"));
        let wanted = Wanted { checksums: true, ..wanted(&disks, LATER) };
        // Removed after it was read from the catalog, or after it was listed.
        for at in [Step::Replicas(1), Step::Files(1)] {
            file("f");
            doom("f");
            let mut reaped = false;
            let (found, _) = found_while(&disks, &wanted, |step| {
                if *step == at && !reaped {
                    disks.reap();
                    reaped = true;
                }
            });
            assert!(reaped && !disks.place("A", "f").exists(), "{at:?}");
            assert_eq!(found, [], "{at:?}");
        }
        // Missing in the first pass, and in another state before the second.
        file("g");
        std::fs::remove_file(disks.place("A", "g")).unwrap();
        let (found, _) = found_while(&disks, &wanted, |step| {
            if *step == Step::Again(1) {
                world.change("UPDATE replicas SET state = 'B', updated_at = updated_at + 1");
            }
        });
        assert_eq!(found, []);
        // Missing in the first pass, and back before the second.
        world.change("UPDATE replicas SET state = 'A', updated_at = updated_at + 1");
        let (found, _) = found_while(&disks, &wanted, |step| {
            if *step == Step::Again(1) {
                put(&disks.place("A", "g"), b"content");
            }
        });
        assert_eq!(found, []);
        clean(&disks);
        // An unregistered file that is registered or removed before the second pass.
        for registered in [true, false] {
            let place = disks.place("A", "late");
            put(&place, b"content");
            let (found, _) = found_while(&disks, &wanted, |step| {
                if *step == Step::Again(1) {
                    match registered {
                        true => disks.file("late", "A", b"content", None),
                        false => std::fs::remove_file(&place).unwrap(),
                    }
                }
            });
            assert_eq!(found, [], "{registered}");
            world.change(
                "DELETE FROM replicas WHERE did_id = (SELECT id FROM dids WHERE name = 'late')",
            );
        }
        // The check stops when the caller breaks off.
        std::fs::remove_file(disks.place("A", "g")).unwrap();
        put(&disks.folder("A").join("lost"), b"");
        let mut steps = 0;
        let mut follow = |_| {
            steps += 1;
            ControlFlow::Break(())
        };
        audit(&world.catalog, &disks.access(), &wanted, &mut follow).unwrap();
        assert!(steps <= 3, "one for each folder: {steps}");
    }
}

#[test]
fn thousands_of_files_need_few_queries() {
    for disks in Disks::each() {
        let world = &disks.world;
        let names: Vec<String> = (0..2_300).map(|at| format!("f{at}")).collect();
        world.files(&names, 0, "A");
        world.files(&names[..1_100], 0, "B");
        for (at, name) in names.iter().enumerate() {
            put(&disks.place("A", name), b"");
            if at < 1_100 {
                put(&disks.place("B", name), b"");
            }
        }
        std::fs::remove_file(disks.place("A", "f2299")).unwrap();
        std::fs::remove_file(disks.place("B", "f0")).unwrap();
        for at in 0..1_200 {
            put(&disks.folder("C").join(format!("d{}/lost{at}", at % 7)), b"");
        }
        let before = world.catalog.statements();
        let found = found(&disks);
        assert!(found.contains("MISSING A f2299") && found.contains("MISSING B f0"));
        assert_eq!(found.len(), 1_202);
        let asked = world.catalog.statements() - before;
        assert!(asked < 60, "{asked} questions");
    }
}

#[test]
fn a_check_during_constant_copies_and_removals_finds_nothing() {
    for disks in Disks::each() {
        let world = &disks.world;
        let names: Vec<String> = (0..15).map(|at| format!("f{at}")).collect();
        for name in &names {
            disks.file(name, "A", name.as_bytes(), Some(name.as_bytes()));
        }
        // Without grace periods, only the catalog protects files under way.
        let wanted = Wanted { checksums: true, ..wanted(&disks, DAYS_LATER) };
        let (catalog, access) = (world.catalog.clone(), disks.access());
        let over = AtomicBool::new(false);
        let (looks, found) = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let (mut looks, mut found) = (0, Vec::new());
                while !over.load(Ordering::Acquire) {
                    let mut follow = |step: Step| {
                        if let Step::Found(finding) = step {
                            found.push(finding);
                        }
                        ControlFlow::Continue(())
                    };
                    audit(&catalog, &access, &wanted, &mut follow).unwrap();
                    looks += 1;
                }
                (looks, found)
            });
            for _ in 0..12 {
                let add = |name: &String| {
                    world.add(&NewRule { purge_replicas: true, ..World::new_rule(name, 2, "B|C") })
                };
                let rules: Vec<String> = names.iter().map(add).collect();
                assert_eq!(disks.work("w"), 2 * names.len());
                rules.iter().for_each(|rule| world.delete(rule));
                disks.reap();
            }
            over.store(true, Ordering::Release);
            looking.join().unwrap()
        });
        assert!(looks > 1, "{looks}");
        assert_eq!(found, [], "on {}", world.catalog.backend());
        clean(&disks);
        disks.check();
    }
}
