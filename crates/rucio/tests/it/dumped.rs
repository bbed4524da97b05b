//! Tests that a dump of the catalog is complete, consistent, and the same on both databases.

use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_catalog::dump::{Dump, PendingDump};
use mainstay_catalog::load::{Lines, Loader, State, state};
use mainstay_catalog::{Catalog, Daemon, Error};
use mainstay_rules::api::Grouping;
use mainstay_rules::{account, check};
use serde_json::{Value, json};

use crate::world::{START, World, postgres};

fn hold(catalog: &Catalog) -> PendingDump {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(catalog.hold_for_dump()).unwrap()
}

fn read(dump: Dump) -> (Value, Vec<String>) {
    let Dump { about, mut lines } = dump;
    let mut text = Vec::new();
    while let Some(piece) = lines.blocking_recv() {
        text.extend_from_slice(&piece.unwrap());
    }
    let lines = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    (about, lines)
}

fn dumped(catalog: &Catalog) -> (Value, Vec<String>) {
    read(hold(catalog).release())
}

/// Sorted rows by table, with columns by name. The last row id is compared for requests only: no
/// other ids are known outside the catalog.
fn tables(lines: &[String]) -> Vec<String> {
    let (mut table, mut columns) = (String::new(), Vec::new());
    let mut found = Vec::new();
    for line in lines {
        let line: Value = serde_json::from_str(line).unwrap();
        match line.as_array() {
            None => {
                table = line["table"].as_str().unwrap().to_owned();
                columns = line["columns"].as_array().unwrap().clone();
                if table == "requests" {
                    found.push(format!("{table} {}", line["last"]));
                }
            }
            Some(row) => {
                let mut row: Vec<String> = columns
                    .iter()
                    .zip(row)
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                row.sort();
                found.push(format!("{table} {}", row.join(" ")));
            }
        }
    }
    found.sort();
    found
}

/// Fills a catalog with objects of every kind, with work under way.
fn lived_in(world: &World) {
    world.f4();
    world.dataset("ds", 40, 100, "R1");
    world.dataset("other", 3, 7, "R3");
    world.change("UPDATE accounts SET email = 'gr\u{fc}n \"quoted\" \\ \u{1f9ca}\n[1]' WHERE account = 'alice'");
    let rule = world.rule("ds", 2, "T1", Grouping::None);
    world.rule("ds", 1, "R3", Grouping::All);
    world.judge(Daemon::Evaluator);
    world.detach("ds", &["ds-0"]);
    world.judge(Daemon::Evaluator);
    assert!(world.get(&rule).counts.replicating > 0);
}

fn load(url: &str, about: &Value, lines: &[String]) -> Result<(), Error> {
    let mut loader = Loader::start(url, "one")?;
    loader.begin(about)?;
    lines.iter().try_for_each(|line| loader.take(line.as_bytes()))?;
    loader.end()?;
    loader.finish()
}

/// URLs of new catalogs, one for each database.
fn nowhere(folder: &tempfile::TempDir, name: &str) -> Vec<String> {
    let mut urls = vec![folder.path().join(name).display().to_string()];
    urls.extend(postgres().map(World::nothing_on));
    urls
}

#[test]
fn a_dump_restores_every_row_into_both_databases() {
    let folder = tempfile::tempdir().unwrap();
    for (n, world) in World::each().into_iter().enumerate() {
        lived_in(&world);
        // The newest request is deleted: its id must not be used again.
        world.change("DELETE FROM requests WHERE id = (SELECT MAX(id) FROM requests)");
        let (about, lines) = dumped(&world.catalog);
        assert_eq!(about["oneMoment"], true);
        for url in nowhere(&folder, &format!("catalog-{n}.db")) {
            assert_eq!(state(&url, None).unwrap(), State::Empty);
            load(&url, &about, &lines).unwrap();
            let catalog = Catalog::open_blocking(&url).unwrap();
            let (_, again) = dumped(&catalog);
            assert_eq!(tables(&again), tables(&lines), "{} to {}", world.url, catalog.backend());
            assert!(matches!(state(&url, None).unwrap(), State::Used(_)));
            let highest = |catalog: &Catalog| {
                let sql = "INSERT INTO requests (request_type, did_id, dest_rse_id, state, rule_id, activity, priority,
                    bytes, requested_at, updated_at) VALUES ('T', 0, 0, 'Q', 0, '', 0, 0, 0, 0)";
                catalog.write_blocking(|tx| {
                    tx.execute(sql, &[])?;
                    tx.number("SELECT MAX(id) FROM requests", &[])
                })
            };
            let restored = highest(&catalog).unwrap();
            let last = lines.iter().find(|line| line.contains("\"table\":\"requests\"")).unwrap();
            let last: Value = serde_json::from_str(last).unwrap();
            assert_eq!(restored, last["last"].as_i64().unwrap() + 1, "{url}");
        }
    }
}

#[test]
fn a_restored_catalog_is_consistent_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    for (n, world) in World::each().into_iter().enumerate() {
        lived_in(&world);
        let (about, lines) = dumped(&world.catalog);
        for url in nowhere(&folder, &format!("catalog-{n}.db")) {
            load(&url, &about, &lines).unwrap();
            let catalog = Catalog::open_blocking(&url).unwrap();
            let wrong = catalog.read_blocking(|tx| check::check(tx, 100)).unwrap();
            assert!(wrong.is_empty(), "{wrong:?}");
            let refused = Loader::start(&url, "another").unwrap_err();
            assert!(refused.to_string().contains("not empty"), "{refused}");
            for other in [None, Some("another")] {
                assert!(matches!(state(&url, other).unwrap(), State::Used(_)), "{other:?}");
            }
            assert_eq!(tables(&dumped(&catalog).1), tables(&lines));
        }
    }
}

/// While the snapshot is held, readers see the same state as the dump, whatever is written.
#[test]
fn a_dump_shows_the_state_when_it_was_held() {
    for world in World::each() {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (world, over) = (&world, &over);
                scope.spawn(move || {
                    for n in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("w{writer}n{n}");
                        world.write(|tx| {
                            account::add(tx, &name, "USER", None, START)?;
                            account::add_scope(tx, &name, &name, START)
                        });
                    }
                });
            }
            let mut seen = Vec::new();
            while seen.len() < 8 || seen.first() == seen.last() {
                let held = hold(&world.catalog);
                let count = |tx: &mut mainstay_catalog::Tx<'_>| -> Result<_, Error> {
                    Ok([
                        tx.number("SELECT COUNT(*) FROM accounts", &[])?,
                        tx.number("SELECT COUNT(*) FROM scopes", &[])?,
                    ])
                };
                let outside = world.catalog.read_blocking(count).unwrap();
                let (about, lines) = read(held.release());
                let rows = |table: &str| {
                    let begin = format!("\"table\":\"{table}\"");
                    let at = lines.iter().position(|line| line.contains(&begin)).unwrap() + 1;
                    lines[at..].iter().take_while(|line| line.starts_with('[')).count() as i64
                };
                if about["oneMoment"] == true {
                    assert_eq!([rows("accounts"), rows("scopes")], outside);
                    seen.push(outside);
                }
                assert_eq!(rows("accounts"), rows("scopes") + 2, "one transaction is whole");
            }
            over.store(true, Ordering::Relaxed);
            assert!(seen.is_sorted());
        });
    }
}

#[test]
fn an_abandoned_dump_releases_writers() {
    for world in World::each() {
        drop(hold(&world.catalog));
        drop(hold(&world.catalog).release());
        world.write(|tx| account::add_scope(tx, "after", "root", START));
    }
}

#[test]
fn an_interrupted_restore_is_detected_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::sqlite();
    lived_in(&world);
    let (about, lines) = dumped(&world.catalog);
    for url in nowhere(&folder, "catalog.db") {
        for stop in [0, 1, lines.len() / 2, lines.len()] {
            let mut loader = Loader::start(&url, "one").unwrap();
            if stop > 0 {
                loader.begin(&about).unwrap();
            }
            lines[..stop].iter().for_each(|line| loader.take(line.as_bytes()).unwrap());
            if stop == lines.len() {
                loader.end().unwrap();
            }
            drop(loader);
            let refused = Catalog::open_blocking(&url).unwrap_err();
            assert!(matches!(refused, Error::HalfRestored), "{refused}");
            assert_eq!(state(&url, None).unwrap(), State::Unfinished);
        }
        // The second time the catalog was complete, and the restore as a whole was not.
        for _ in 0..2 {
            load(&url, &about, &lines).unwrap();
            assert_eq!(state(&url, Some("one")).unwrap(), State::Unfinished);
            assert!(matches!(state(&url, Some("two")).unwrap(), State::Used(_)));
            let catalog = Catalog::open_blocking(&url).unwrap();
            assert_eq!(tables(&dumped(&catalog).1), tables(&lines));
        }
    }
}

#[test]
fn invalid_lines_are_refused_with_the_reason() {
    let (about, lines) = dumped(&World::sqlite().catalog);
    let newer = Lines::new(&json!({"schema": 1_000})).unwrap_err();
    assert!(matches!(newer, Error::NewerSchema { .. }), "{newer}");
    for about in [json!({}), json!({"schema": 0}), json!({"schema": "x"}), json!(null)] {
        assert!(matches!(Lines::new(&about), Err(Error::Backup(_))), "{about}");
    }
    let scopes =
        r#"{"table":"scopes","columns":["scope","account"],"types":["text","text"],"last":0}"#;
    let cases: &[(&[&str], &str)] = &[
        (&["[1]"], "a row before any table"),
        (&["nonsense"], "neither a table"),
        (&[r#"{"table":"pg_authid","columns":["a"],"types":["text"],"last":0}"#], "no table"),
        (&[r#"{"table":"scopes","columns":["a; DROP"],"types":["text"],"last":0}"#], "columns"),
        (&[r#"{"table":"scopes","columns":["a"],"types":[],"last":0}"#], "columns"),
        (&[scopes, scopes], "comes twice"),
        (&[scopes, r#"["a"]"#], "does not fit"),
        (&[scopes, r#"["a",1]"#], "does not fit"),
        (&[scopes, r#"["a","#], "no row of table scopes"),
    ];
    for (lines, expected) in cases {
        let mut reader = Lines::new(&about).unwrap();
        let taken = lines.iter().try_for_each(|line| reader.take(line.as_bytes()));
        let refused = taken.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused} instead of {expected}");
    }
    let mut reader = Lines::new(&about).unwrap();
    for line in lines.iter().filter(|line| !line.contains("\"table\":\"locks\"")) {
        reader.take(line.as_bytes()).unwrap();
    }
    assert!(reader.end().unwrap_err().to_string().contains("table locks"));
}
