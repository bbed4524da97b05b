//! Tests of local folders as storage.

use serde_json::{Value, json};

use super::*;

fn at(root: &Path) -> Folder {
    let Value::Object(body) = json!({"prefix": root.display().to_string()}) else { unreachable!() };
    Folder::open(&Protocol::read("file", &body).unwrap(), &Allowed::anywhere()).unwrap()
}

fn plan(tag: &str) -> Plan {
    Plan { tag: tag.to_owned(), bytes: 5, new: false }
}

#[test]
fn a_file_gets_its_name_only_when_complete_and_no_drafts_are_left() {
    let root = tempfile::tempdir().unwrap();
    let folder = at(root.path());
    let mut draft = folder.write("a/b/f", &plan("7-1")).unwrap();
    draft.add(b"half").unwrap();
    assert!(matches!(folder.read("a/b/f"), Err(Error::Missing(_))));
    drop(draft);
    assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 0);
    // A killed worker leaves its draft; the next one removes it and no other file.
    std::mem::forget(folder.write("a/b/f", &plan("7-2")).unwrap());
    std::fs::write(root.path().join("a/b/.f.notes.part"), "mine").unwrap();
    let mut draft = folder.write("a/b/f", &plan("7-3")).unwrap();
    draft.add(b"whole").unwrap();
    draft.keep().unwrap();
    assert_eq!(folder.read("a/b/f").unwrap().1, 5);
    assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 2);
    folder.sync().unwrap();
    let new = Plan { new: true, ..plan("8-1") };
    let taken = folder.write("a/b/f", &new).unwrap().keep();
    assert!(matches!(taken, Err(Error::There(_))));
    assert_eq!(std::fs::read(root.path().join("a/b/f")).unwrap(), b"whole");
    folder.remove("a/b/f").unwrap();
    folder.remove("a/b/f").unwrap();
    assert!(folder.read("a/b/f").is_err());
}

#[test]
fn paths_and_links_that_lead_outside_are_refused() {
    let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(other.path().join("secret"), "x").unwrap();
    std::os::unix::fs::symlink(other.path(), root.path().join("out")).unwrap();
    std::os::unix::fs::symlink("..", root.path().join("up")).unwrap();
    let folder = at(root.path());
    for path in ["../secret", "a/../../secret", "/etc/passwd", "", "out/secret", "out/a/b", "up/x"]
    {
        assert!(matches!(folder.read(path), Err(Error::Leaves(_))), "{path}");
        assert!(
            matches!(folder.write(path, &plan("1-1")).map(drop), Err(Error::Leaves(_))),
            "{path}"
        );
        assert!(matches!(folder.remove(path), Err(Error::Leaves(_))), "{path}");
    }
    let secret = other.path().join("secret");
    std::os::unix::fs::symlink(&secret, root.path().join("leaf")).unwrap();
    assert!(matches!(folder.read("leaf").map(drop), Err(Error::Leaves(_))));
    // The link itself can be overwritten or removed.
    let mut draft = folder.write("leaf", &plan("1-1")).unwrap();
    draft.add(b"mine").unwrap();
    draft.keep().unwrap();
    assert_eq!(folder.read("leaf").unwrap().1, 4);
    assert_eq!(std::fs::read(&secret).unwrap(), b"x");
    assert!(!other.path().join("a").exists());
}

#[test]
fn links_within_the_folder_are_followed() {
    let root = tempfile::tempdir().unwrap();
    let folder = at(root.path());
    std::fs::create_dir_all(root.path().join("disk/a")).unwrap();
    std::os::unix::fs::symlink("disk", root.path().join("near")).unwrap();
    std::os::unix::fs::symlink(root.path().join("disk"), root.path().join("whole")).unwrap();
    for (at, link) in ["near", "whole"].into_iter().enumerate() {
        let path = format!("{link}/new{at}/f");
        let mut draft = folder.write(&path, &plan("1-1")).unwrap();
        draft.add(b"there").unwrap();
        draft.keep().unwrap();
        assert_eq!(folder.read(&path).unwrap().1, 5, "{path}");
        assert!(root.path().join(format!("disk/new{at}/f")).exists());
        folder.remove(&path).unwrap();
        assert!(matches!(folder.read(&path).map(drop), Err(Error::Missing(_))));
    }
    // Reading a named pipe does not block.
    let pipe = root.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(matches!(folder.read("pipe").map(drop), Err(Error::NoFile(_))));
    assert!(matches!(folder.read("disk").map(drop), Err(Error::NoFile(_))));
}

#[test]
fn a_missing_folder_is_not_created_and_is_not_treated_as_empty() {
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("disk");
    let folder = at(&root);
    for made in [false, true] {
        if made {
            std::fs::create_dir(&root).unwrap();
        }
        let found = [
            folder.read("s/f").map(drop),
            folder.write("s/f", &plan("1-1")).map(drop),
            folder.remove("s/f"),
        ];
        match made {
            false => {
                for one in found {
                    assert!(matches!(&one, Err(Error::NoFolder(_))), "{one:?}");
                }
                assert!(!root.exists());
            }
            true => {
                assert!(matches!(found[0], Err(Error::Missing(_))));
                assert!(found[1].is_ok() && found[2].is_ok());
            }
        }
    }
}

#[test]
fn files_with_the_longest_names_can_be_written_and_their_drafts_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let folder = at(root.path());
    let last = "9223372036854775807-9223372036854775807";
    for name in ["n".repeat(250), "ü".repeat(125)] {
        let other = format!("{}x", &name[..name.floor_char_boundary(248)]);
        std::mem::forget(folder.write(&other, &plan(last)).unwrap());
        std::mem::forget(folder.write(&name, &plan(last)).unwrap());
        let mut draft = folder.write(&name, &plan("7-2")).unwrap();
        draft.add(b"there").unwrap();
        draft.keep().unwrap();
        assert_eq!(folder.read(&name).unwrap().1, 5);
        let left = std::fs::read_dir(root.path()).unwrap().count();
        assert_eq!(left, 2, "the file, and the draft of the other file");
        folder.remove(&name).unwrap();
        folder.remove(&other).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn folders_reached_through_a_link_below_a_storage_root_are_refused() {
    let above = tempfile::tempdir().unwrap();
    let above = above.path().canonicalize().unwrap();
    let (storage, private) = (above.join("storage"), above.join("private"));
    std::fs::create_dir_all(storage.join("site")).unwrap();
    std::fs::create_dir_all(private.join("deep")).unwrap();
    std::fs::write(private.join("deep/secret"), "x").unwrap();
    std::os::unix::fs::symlink(&private, storage.join("out")).unwrap();
    std::os::unix::fs::symlink("site", storage.join("near")).unwrap();
    let allowed = Allowed::new(std::slice::from_ref(&storage), &[], &[]).unwrap();
    let at = |path: PathBuf| {
        let Value::Object(body) = json!({"prefix": path.display().to_string()}) else {
            unreachable!()
        };
        Folder::open(&Protocol::read("file", &body).unwrap(), &allowed)
    };
    assert!(at(private.join("deep")).is_err());
    assert!(at(above).is_err());
    for linked in ["out", "out/deep", "near", "out/new", "near/new"] {
        let folder = at(storage.join(linked)).unwrap();
        let tried = [
            folder.read("secret").map(drop),
            folder.write("secret", &plan("1-1")).map(drop),
            folder.remove("secret"),
            folder.look(&["secret"]).map(drop),
            folder.list(&mut |_| ControlFlow::Continue(())),
            folder.links(1).map(drop),
            folder.sync(),
        ];
        for one in tried {
            assert!(matches!(one, Err(Error::Linked(_))), "{linked}: {one:?}");
        }
        assert!(matches!(folder.make(), Err(Error::Linked(_))), "{linked}");
    }
    assert!(!private.join("new").exists() && private.join("deep/secret").exists());
    let folder = at(storage.join("a/b")).unwrap();
    assert!(matches!(folder.read("f").map(drop), Err(Error::NoFolder(_))));
    folder.make().unwrap();
    folder.write("s/f", &plan("1-1")).unwrap().keep().unwrap();
    assert!(storage.join("a/b/s/f").exists());
    folder.sync().unwrap();
}

/// The fallback for kernels without `openat2`.
#[test]
fn stepping_down_follows_no_link() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("a/b")).unwrap();
    std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
    let opened = rustix::fs::open(root.path(), TRAVERSE, Mode::empty()).unwrap();
    assert!(!step_down(&opened, "a/b", false).unwrap().1);
    assert!(step_down(&opened, "a/b/c/d", true).unwrap().1);
    assert!(matches!(step_down(&opened, "a/x", false), Err(Errno::NOENT)));
    for path in ["link", "link/b", "..", "a/../a"] {
        assert!(step_down(&opened, path, true).is_err(), "{path}");
    }
}
