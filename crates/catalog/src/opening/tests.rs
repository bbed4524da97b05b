use super::*;

const COUNT: &str = "INSERT INTO versions (name, value) VALUES (?1, 1)";

fn write(catalog: &Catalog, name: &str) {
    let wrote: Result<()> = catalog.write_blocking(|tx| tx.execute(COUNT, values![name]).map(drop));
    wrote.unwrap();
}

fn last_commit(catalog: &Catalog) -> i64 {
    let sql = "SELECT value FROM versions WHERE name = 'commits'";
    catalog.read_blocking::<_, Error>(|tx| tx.number(sql, &[])).unwrap()
}

fn open(path: &Path) -> Result<Catalog> {
    Catalog::open_blocking(&path.display().to_string())
}

/// The files of a catalog with twenty commits in its write-ahead log, as `kill -9` leaves them.
fn killed(folder: &Path) -> PathBuf {
    let live = folder.join("live.db");
    let catalog = open(&live).unwrap();
    for at in 0..20 {
        write(&catalog, &format!("row {at}"));
    }
    let path = folder.join("catalog.db");
    for end in ["", "-wal", ".acknowledged"] {
        std::fs::copy(beside(&live, end), beside(&path, end)).unwrap();
    }
    path
}

/// A name, and a function that damages the files.
type Harm<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn bytes(path: &Path) -> [Vec<u8>; 3] {
    ["", "-wal", ".acknowledged"].map(|end| std::fs::read(beside(path, end)).unwrap_or_default())
}

#[test]
fn a_catalog_that_lost_acknowledged_commits_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path());
    let [database, wal, counter] = bytes(&path);
    let harms: [Harm<'_>; 4] = [
        ("cut", Box::new(|| std::fs::write(beside(&path, "-wal"), &wal[..wal.len() / 2]).unwrap())),
        ("gone", Box::new(|| std::fs::remove_file(beside(&path, "-wal")).unwrap())),
        (
            "flipped",
            Box::new(|| {
                let mut wal = wal.clone();
                let at = wal.len() / 2;
                wal[at] ^= 1;
                std::fs::write(beside(&path, "-wal"), wal).unwrap();
            }),
        ),
        (
            "counter",
            Box::new(|| std::fs::write(beside(&path, ".acknowledged"), "nonsense").unwrap()),
        ),
    ];
    for (name, harm) in &harms {
        harm();
        let before = bytes(&path);
        let refused = open(&path).unwrap_err();
        let message = refused.to_string();
        assert!(
            matches!(refused, Error::EndsEarly { .. } | Error::Counter { .. }),
            "{name}: {message}"
        );
        assert!(message.contains("mainstay restore"), "{name}: {message}");
        assert_eq!(verify_file(&path).unwrap(), [message], "{name}");
        let address = path.display().to_string();
        assert!(peek(&address).is_err(), "{name}");
        let losses = inspect(&path).unwrap();
        assert_eq!(losses.lines.len(), 1, "{name}");
        assert!(accept(&path, "another").is_err(), "{name}");
        assert!(bytes(&path) == before, "{name}: a file was changed");
        let copies = accept(&path, &losses.word).unwrap();
        assert!(copies.iter().all(|copy| copy.exists()) && copies.len() >= 2, "{copies:?}");
        assert!(accept(&path, &losses.word).is_err(), "{name}: once");
        assert_eq!(inspect(&path).unwrap(), Losses::default());
        let catalog = open(&path).unwrap();
        write(&catalog, "later");
        assert!(*name == "counter" || last_commit(&catalog) > 20, "{name}");
        drop(catalog);
        for (end, content) in ["", "-wal", ".acknowledged"].iter().zip([&database, &wal, &counter])
        {
            std::fs::write(beside(&path, end), content).unwrap();
        }
        drop(std::fs::remove_file(beside(&path, "-shm")));
    }
    let catalog = open(&path).unwrap();
    assert_eq!(last_commit(&catalog), 20, "an undamaged catalog has all commits");
}

#[test]
fn a_missing_empty_or_foreign_file_is_refused_and_no_file_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path());
    for end in ["", "-wal"] {
        std::fs::remove_file(beside(&path, end)).unwrap();
    }
    let address = path.display().to_string();
    assert!(matches!(open(&path), Err(Error::Lost { acknowledged: 20, .. })));
    assert!(!peek(&address).unwrap().there);
    assert!(!path.exists());
    std::fs::write(&path, "").unwrap();
    assert!(matches!(open(&path), Err(Error::Lost { .. })));
    assert_eq!(bytes(&path)[0], b"");
    std::fs::write(&path, "no database, but long enough to be taken for one".repeat(100)).unwrap();
    assert!(matches!(open(&path), Err(Error::Damaged { .. })));
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a INTEGER)").unwrap();
    let before = bytes(&path);
    assert!(matches!(open(&path), Err(Error::NotACatalog(_))));
    assert!(bytes(&path) == before);
    std::fs::remove_file(&path).unwrap();
    let catalog = Catalog::open_as(&address, true).unwrap();
    write(&catalog, "new");
    assert_eq!(last_commit(&catalog), 1);
    drop(catalog);
    assert_eq!(counter::read(&path).unwrap(), Reading::Acknowledged(1));
    open(&path).unwrap();
}

#[test]
fn only_transactions_that_change_something_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.db");
    let catalog = open(&path).unwrap();
    let run = |work: &dyn Fn(&mut crate::Tx<'_>) -> Result<()>| {
        catalog.write_blocking(work).unwrap();
        last_commit(&catalog)
    };
    assert_eq!(run(&|_| Ok(())), 0);
    assert_eq!(run(&|tx| tx.number("SELECT COUNT(*) FROM dids", &[]).map(drop)), 0);
    assert_eq!(run(&|tx| tx.execute("DELETE FROM dids", &[]).map(drop)), 0);
    assert_eq!(run(&|tx| tx.execute("INSERT INTO w_ids (id) VALUES (1)", &[]).map(drop)), 0);
    assert_eq!(run(&|tx| tx.execute(COUNT, values!["one"]).map(drop)), 1);
    let returning = format!("{COUNT} RETURNING value");
    assert_eq!(run(&|tx| tx.query(&returning, values!["two"]).map(drop)), 2);
    assert_eq!(counter::read(&path).unwrap(), Reading::Acknowledged(2));
}

/// Overwrites the root page of a table with zeros.
fn harm(path: &Path, table: &str) {
    use std::os::unix::fs::FileExt;
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: i64 = connection.query_row(sql, [table], |row| row.get(0)).unwrap();
    drop(connection);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0; 4096], (page - 1).cast_unsigned() * 4096).unwrap();
}

#[tokio::test]
async fn damage_found_at_run_time_is_reported_and_stops_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.db");
    let catalog = open(&path).unwrap();
    write(&catalog, "one");
    assert_eq!(catalog.verify().await.unwrap(), Vec::<String>::new());
    catalog.ready().await.unwrap();
    drop(catalog);
    assert_eq!(verify_file(&path).unwrap(), Vec::<String>::new());
    let catalog = open(&path).unwrap();
    harm(&path, "dids");
    assert!(!catalog.verify().await.unwrap().is_empty());
    let read =
        catalog.read_blocking::<_, Error>(|tx| tx.query("SELECT meta FROM dids", &[])).unwrap_err();
    let message = read.to_string();
    assert!(message.contains("catalog.db is damaged") && message.contains("restore"), "{message}");
    assert!(matches!(catalog.ready().await, Err(Error::Damaged { .. })));
    let refused = catalog.write_blocking::<_, Error>(|tx| tx.execute(COUNT, values!["two"]));
    assert!(matches!(refused, Err(Error::Damaged { .. })));
    let elsewhere = "SELECT COUNT(*) FROM accounts";
    assert_eq!(catalog.read_blocking::<_, Error>(|tx| tx.number(elsewhere, &[])).unwrap(), 0);
    drop(catalog);
    assert!(matches!(open(&path), Err(Error::Damaged { .. })));
    assert!(!verify_file(&path).unwrap().is_empty());
}
