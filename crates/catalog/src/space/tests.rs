use std::process::Command;

use super::*;
use crate::error::{Error, Result};
use crate::{Catalog, values};

/// A small file system of its own.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "mainstay-test"]);
        mount.arg(folder.path()).status().ok()?.success().then_some(Self(folder))
    }

    /// Takes all the space there is.
    fn fill(&self) -> std::path::PathBuf {
        use std::io::Write;
        let path = self.0.path().join("something-else");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }

    fn open(&self) -> Catalog {
        let path = self.0.path().join("catalog.db");
        Catalog::open_blocking(&path.display().to_string()).unwrap()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

/// Adds a scope with a long name.
fn add(catalog: &Catalog, at: usize) -> Result<()> {
    let name = format!("{at:05}{}", "x".repeat(2000));
    let sql = "INSERT INTO scopes (scope, account, created_at) VALUES (?1, 'root', 0)";
    catalog.write_blocking(move |tx| tx.execute(sql, values![name.as_str()]).map(drop))
}

/// Adds scopes from this number on until one is refused, and returns the number of the refused one.
fn add_until_full(catalog: &Catalog, from: usize) -> usize {
    let refused = (from..from + 20_000).find(|at| match add(catalog, *at) {
        Ok(()) => false,
        Err(Error::Full { place }) => {
            assert!(place.ends_with("catalog.db"), "{place}");
            true
        }
        Err(error) => panic!("{error}"),
    });
    refused.expect("the disk is never full")
}

fn count(catalog: &Catalog) -> usize {
    let sql = "SELECT COUNT(*) FROM scopes";
    let number: Result<i64> = catalog.read_blocking(|tx| tx.number(sql, &[]));
    usize::try_from(number.unwrap()).unwrap()
}

fn remove(catalog: &Catalog, sql: &'static str) -> u64 {
    catalog.write_blocking::<_, Error>(move |tx| tx.execute(sql, &[])).unwrap()
}

fn is_full(ready: &Result<()>) -> bool {
    matches!(ready, Err(Error::Full { .. }))
}

#[tokio::test]
async fn a_catalog_on_a_full_disk_stays_full_takes_deletions_and_recovers() {
    let Some(disk) = SmallDisk::mount(16 << 20) else {
        eprintln!("skipped: a file system cannot be mounted here");
        return;
    };
    let catalog = disk.open();
    let before = 500;
    for at in 0..before {
        add(&catalog, at).unwrap();
    }
    catalog.ready().await.unwrap();
    let filler = disk.fill();
    let refused = add_until_full(&catalog, before);
    // Changes that need no space go on, and change nothing about it: it does not flap.
    let same = "UPDATE versions SET value = value WHERE name = 'rses'";
    for _ in 0..30 {
        assert!(is_full(&catalog.ready().await));
        catalog.write_blocking::<_, Error>(|tx| tx.execute(same, &[])).unwrap();
        assert!(is_full(&add(&catalog, refused)));
    }
    assert_eq!(count(&catalog), refused, "a refused change was made, or an acknowledged one lost");

    // A login adds a token, and a deletion its history.
    let token = "INSERT INTO tokens (token_hash, account, identity, expired_at) \
                 VALUES (?1, 'root', 'root', 0)";
    for at in 0..50 {
        let hash = format!("{at:064}");
        let added =
            catalog.write_blocking::<_, Error>(move |tx| tx.execute(token, values![hash.as_str()]));
        assert_eq!(added.unwrap(), 1);
    }
    assert_eq!(remove(&catalog, "DELETE FROM scopes WHERE scope < '00010'"), 10);

    // A restart on the full disk, which moves the log into the file.
    drop(catalog);
    let catalog = disk.open();
    assert_eq!(count(&catalog), refused - 10);

    // Deleting alone makes space for others.
    remove(&catalog, "DELETE FROM scopes");
    catalog.ready().await.unwrap();
    assert!(add_until_full(&catalog, 0) > 0);
    assert!(is_full(&catalog.ready().await));

    // Free space on the disk ends it without a restart.
    std::fs::remove_file(filler).unwrap();
    catalog.ready().await.unwrap();
    add(&catalog, 90_000).unwrap();
    assert_eq!(catalog.verify().await.unwrap(), [""; 0]);
}

#[test]
fn only_bookkeeping_lets_a_tight_catalog_grow() {
    for (sql, expected) in [
        ("INSERT INTO rules_history (a) VALUES (1)", true),
        ("INSERT INTO tokens(token_hash) VALUES (1)", true),
        ("INSERT INTO w_files (a) VALUES (1)", true),
        ("DELETE FROM rules", true),
        ("UPDATE rules SET state = 'O'", true),
        ("SELECT 1", true),
        ("INSERT INTO rules (a) VALUES (1)", false),
        ("INSERT  INTO\n  dids(a) SELECT 1", false),
    ] {
        assert_eq!(is_bookkeeping(sql), expected, "{sql}");
    }
}
