//! Backups: whole, consistent, the same on every backend, and refused when they are not whole.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use mainstay_store::backup::{
    self, Chunks, Error, Part, PartError, Parts, Reader, Source, check, may_take, restore,
    restore_from, unfinished, verify,
};
use mainstay_store::cache::{Collection, Retention, Watch};
use mainstay_store::clock::SystemClock;
use mainstay_store::lease::{Claim, Lease};
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::{Body, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{self, At, Change, Objects, Scope, Write};
use mainstay_store::snapshot::{Medium, Snapshot};
use mainstay_store::sqlite::SqliteStore;
use mainstay_store::tiered::{Tiered, next_epoch};
use serde_json::{Value, json};

use crate::words::stored;
use crate::{BACKENDS, Backend, Stage, block_on, create, delete, key, update};

/// A backup in a file of its own.
struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn new(text: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("backup"), text).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("backup")
    }
}

async fn taken(store: &dyn Objects) -> Vec<u8> {
    let time = "2026-01-01T00:00:00Z".parse().unwrap();
    Chunks::new(store.snapshot().await.unwrap(), time).collect::<Vec<_>>().concat()
}

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, SystemClock::new()))
}

fn internal(plural: &str, name: &str) -> Key {
    Key::new(&Resource::new("internal.mainstay.dev", plural), None, name)
}

/// Objects of every sort, with some past.
async fn sample(store: &Arc<dyn Objects>) {
    let words = ["plain", "gr\u{fc}n", "\u{1f9ca} \"quoted\" \\ \u{7f}", ",\"object\":{}", "a\nb"];
    for (n, word) in words.iter().enumerate() {
        let key = key("apples", "basket", &format!("a{n}"));
        let at = store.write(create(&key, *word)).await.unwrap().revision();
        if n % 2 == 0 {
            let value = json!({"word": word, "float": 0.1, "big": u64::MAX, "tiny": 5e-324});
            store.write(update(&key, at, value)).await.unwrap();
        }
    }
    let gone = key("apples", "basket", "gone");
    let at = store.write(create(&gone, 1)).await.unwrap().revision();
    store.write(delete(&gone, at)).await.unwrap();
    let cluster = Key::new(&Resource::new("fruit.example.dev", "pears"), None, "p\u{e9}ar");
    store.write(create(&cluster, json!([null, true, {}]))).await.unwrap();
    let named =
        json!({"metadata": {"name": "x", "uid": "u-1", "zone": "", "resourceVersion": "7"}});
    let body = Body::new(named.as_object().unwrap());
    let change = Change::Create(body);
    store.write(Write { key: key("zebras", "z", "x"), change, fence: None }).await.unwrap();
    store.write(create(&internal("tokens", "t"), "hash")).await.unwrap();
    next_epoch(&**store).await.unwrap();
    let ttl = std::time::Duration::from_secs(60);
    let mut lease = Lease::new(store.clone(), "servers", "me", "here", ttl);
    let claim = lease.claim(|| std::time::Duration::ZERO).await.unwrap();
    assert!(matches!(claim, Claim::Held(_)));
}

/// The contents that a backup must have: every key, and every object without its version.
fn contents(snapshot: &Snapshot) -> Vec<(Key, Body)> {
    let trace = |resource: &Resource| {
        ["leases", "fences", "ticks", "servers"]
            .iter()
            .any(|plural| *resource == *internal(plural, "").resource())
    };
    let kept = snapshot.collections.iter().filter(|(resource, _)| !trace(resource));
    let records = kept.flat_map(|(_, collection)| collection.range(None, None));
    records.map(|record| (record.key().clone(), record.body())).collect()
}

#[test]
fn every_backend_restores_backups_of_every_other_byte_for_byte() {
    block_on(async {
        for from in BACKENDS {
            let source = Stage::new(from, Retention::default()).await;
            sample(&source.store).await;
            let file = File::new(&taken(&*source.store).await);
            let expected = contents(&source.store.snapshot().await.unwrap());
            assert_eq!(expected.len(), 9);
            for to in BACKENDS {
                let mut target = Stage::new(to, Retention::default()).await;
                let summary = restore(&file.path(), target.store.clone()).await.unwrap();
                assert_eq!(summary.objects, 9, "{from:?} to {to:?}");
                let check = async |store: &dyn Objects| {
                    let snapshot = store.snapshot().await.unwrap();
                    assert_eq!(contents(&snapshot), expected, "{from:?} to {to:?}");
                    assert!(!unfinished(store).await.unwrap());
                    let body = |text: Vec<u8>| {
                        let mut lines: Vec<_> =
                            text.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
                        lines.remove(0);
                        lines.truncate(9);
                        lines
                    };
                    let (old, new) = (std::fs::read(file.path()).unwrap(), taken(store).await);
                    assert_eq!(body(old), body(new), "{from:?} to {to:?}");
                };
                check(&*target.store).await;
                if target.survives() {
                    target.reopen().await;
                    check(&*target.store).await;
                }
                target.store.close().await;
            }
            source.store.close().await;
        }
    });
}

#[test]
fn versions_from_before_a_restore_are_recognised_as_gone() {
    block_on(async {
        let source = Stage::new(Backend::Sqlite, Retention::default()).await;
        sample(&source.store).await;
        let file = File::new(&taken(&*source.store).await);
        let before = source.store.revision(&Resource::new("", "apples"));
        let mut target = Stage::new(Backend::Sqlite, Retention::default()).await;
        restore(&file.path(), target.store.clone()).await.unwrap();
        for reopened in [false, true] {
            let scope = Scope::all(&Resource::new("", "apples"));
            let watch = target.store.watch(scope.clone(), before).await;
            assert!(matches!(watch, Err(objects::Error::Expired { .. })), "{watch:?} {reopened}");
            let later = Revision(before.0 + 1000);
            let watch = target.store.watch(scope, later).await;
            assert!(matches!(watch, Err(objects::Error::Expired { .. })), "{watch:?} {reopened}");
            let at = target.store.snapshot().await.unwrap().revision;
            assert!(at > before);
            target.reopen().await;
        }
    });
}

#[test]
fn memory_beside_a_durable_store_is_left_out() {
    block_on(async {
        let (durable, apples) = (memory(), Resource::new("", "apples"));
        let beside = MemoryStore::new(1, Retention::default(), 1 << 20, SystemClock::new());
        let tiered = Tiered::new(durable, beside, [apples]);
        tiered.write(create(&key("apples", "a", "x"), 1)).await.unwrap();
        tiered.write(create(&key("pears", "a", "x"), 1)).await.unwrap();
        let snapshot = tiered.snapshot().await.unwrap();
        assert_eq!(contents(&snapshot).len(), 1);
    });
}

/// Two counters are raised in turn while backups are taken: none shows them more than one apart.
#[test]
fn a_backup_is_one_moment_however_much_is_written() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for backend in BACKENDS {
            let stage = Stage::new(backend, Retention::default()).await;
            let stop = Arc::new(AtomicBool::new(false));
            let counters = [key("apples", "a", "one"), key("zebras", "z", "two")];
            let mut at = Vec::new();
            for counter in &counters {
                at.push(stage.store.write(create(counter, 0)).await.unwrap().revision());
            }
            let (store, stopped, counted) = (stage.store.clone(), stop.clone(), counters.clone());
            let writing = tokio::spawn(async move {
                let mut n = 0;
                while !stopped.load(Ordering::Relaxed) {
                    n += 1;
                    for (counter, at) in counted.iter().zip(&mut at) {
                        *at = store.write(update(counter, *at, n)).await.unwrap().revision();
                    }
                }
                n
            });
            let mut seen = Vec::new();
            while seen.len() < 40 || seen.last() == seen.first() {
                let text = taken(&*stage.store).await;
                let mut reader = Reader::new(&text[..]).unwrap();
                let mut values = Vec::new();
                while let Some(entry) = reader.next_entry().unwrap() {
                    if counters.contains(&entry.key) {
                        let object: Value = serde_json::from_slice(entry.body.json()).unwrap();
                        values.push(stored(&object).as_i64().unwrap());
                    }
                }
                let [one, two] = values[..] else { panic!("{values:?}") };
                assert!(one == two || one == two + 1, "{backend:?}: {one} and {two}");
                seen.push(one);
                tokio::task::yield_now().await;
            }
            stop.store(true, Ordering::Relaxed);
            assert!(writing.await.unwrap() > 0);
            assert!(seen.is_sorted(), "{seen:?}");
            stage.store.close().await;
        }
    });
}

async fn small() -> Vec<u8> {
    let store = memory();
    store.write(create(&key("apples", "a", "x"), "gr\u{fc}n")).await.unwrap();
    store.write(create(&internal("tokens", "t"), json!({"hash": "00ff"}))).await.unwrap();
    taken(&*store).await
}

/// The same with two parts, one of them empty.
async fn with_parts() -> Vec<u8> {
    let store = memory();
    store.write(create(&key("apples", "a", "x"), "gr\u{fc}n")).await.unwrap();
    let time = "2026-01-01T00:00:00Z".parse().unwrap();
    let chunks = Chunks::new(store.snapshot().await.unwrap(), time);
    let part = |name, pieces: &[&'static str]| {
        let pieces: Vec<_> = pieces.iter().map(|text| Ok(text.as_bytes().into())).collect();
        Part { name, about: json!({"schema": 8}), lines: stream::iter(pieces).boxed() }
    };
    let parts = vec![part("catalog", &["{\"table\":1}\n[1]\n", "[2]\n"]), part("empty", &[])];
    let pieces: Vec<_> = backup::stream(chunks, parts).try_collect().await.unwrap();
    pieces.concat()
}

/// Notes what it is given.
#[derive(Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn note(&self, what: String) -> Result<(), PartError> {
        self.0.lock().unwrap().push(what);
        Ok(())
    }
}

impl Parts for Noting {
    fn prepare(&mut self, _restore: &str) -> Result<(), PartError> {
        self.note("prepare".to_owned())
    }

    fn begin(&mut self, name: &str, about: &Value) -> Result<(), PartError> {
        self.note(format!("{name} {about}"))
    }

    fn line(&mut self, line: &[u8]) -> Result<(), PartError> {
        self.note(String::from_utf8_lossy(line).into_owned())
    }

    fn end(&mut self) -> Result<(), PartError> {
        self.note("end".to_owned())
    }

    fn finish(&mut self) -> Result<(), PartError> {
        self.note("finish".to_owned())
    }
}

#[test]
fn parts_come_back_in_order_and_are_put_to_use_last() {
    block_on(async {
        let file = File::new(&with_parts().await);
        let source = Source::file(&file.path());
        let summary = check(&source, &mut Noting::default()).unwrap();
        let counted: Vec<_> = summary.parts.iter().map(|part| (&*part.name, part.lines)).collect();
        assert_eq!((summary.objects, counted), (1, vec![("catalog", 3), ("empty", 0)]));
        let (store, noting) = (memory(), Noting::default());
        let noted = noting.0.clone();
        restore_from(source, &summary, store.clone(), Box::new(noting)).await.unwrap();
        let expected = [
            "prepare",
            "catalog {\"schema\":8}",
            "{\"table\":1}",
            "[1]",
            "[2]",
            "end",
            "empty {\"schema\":8}",
            "end",
            "finish",
        ];
        assert_eq!(*noted.lock().unwrap(), expected);
        assert!(!unfinished(&*store).await.unwrap());
        let refused = restore(&file.path(), memory()).await.unwrap_err();
        assert!(matches!(refused, Error::NewerPart { .. }), "{refused}");
    });
}

/// Fails when it is asked to, and notes the names of restores.
struct Failing(&'static str, Arc<Mutex<BTreeSet<String>>>);

impl Failing {
    fn at(&self, place: &str) -> Result<(), PartError> {
        if self.0 == place { Err(PartError::Failed("no".to_owned())) } else { Ok(()) }
    }
}

impl Parts for Failing {
    fn prepare(&mut self, restore: &str) -> Result<(), PartError> {
        self.1.lock().unwrap().insert(restore.to_owned());
        self.at("prepare")
    }

    fn begin(&mut self, _name: &str, _about: &Value) -> Result<(), PartError> {
        self.at("begin")
    }

    fn line(&mut self, _line: &[u8]) -> Result<(), PartError> {
        self.at("line")
    }

    fn end(&mut self) -> Result<(), PartError> {
        self.at("end")
    }

    fn finish(&mut self) -> Result<(), PartError> {
        self.at("finish")
    }
}

#[test]
fn a_backup_whose_part_could_not_be_read_ends_with_the_reason() {
    let time = "2026-01-01T00:00:00Z".parse().unwrap();
    let text = block_on(async {
        let chunks = Chunks::new(memory().snapshot().await.unwrap(), time);
        let lines = [Ok(b"[1]\n"[..].into()), Err("page 7 is \"damaged\"".to_owned())];
        let lines = stream::iter(lines).boxed();
        let parts = ["catalog", "other"].into_iter().zip([lines, stream::empty().boxed()]);
        let parts = parts.map(|(name, lines)| Part { name, about: json!({}), lines }).collect();
        let pieces: Vec<_> = backup::stream(chunks, parts).try_collect().await.unwrap();
        pieces.concat()
    });
    let refused = Reader::new(&text[..]).and_then(Reader::finish).unwrap_err();
    assert!(
        matches!(&refused, Error::Incomplete(why) if why == "page 7 is \"damaged\""),
        "{refused}"
    );
    assert!(text.ends_with(b"\"}\n"), "nothing follows the reason");
}

#[test]
fn a_part_that_fails_leaves_the_store_marked_as_unfinished() {
    block_on(async {
        let file = File::new(&with_parts().await);
        let source = Source::file(&file.path());
        let summary = check(&source, &mut Noting::default()).unwrap();
        let (store, names) = (memory(), Arc::default());
        for place in ["prepare", "begin", "line", "end", "finish"] {
            let parts = Box::new(Failing(place, Arc::clone(&names)));
            let failed = restore_from(source.clone(), &summary, store.clone(), parts).await;
            assert!(matches!(failed, Err(Error::Part(_))), "{place}: {failed:?}");
            assert!(unfinished(&*store).await.unwrap(), "{place}");
            let name = may_take(&*store).await.unwrap().unwrap();
            assert_eq!(*names.lock().unwrap(), BTreeSet::from([name]), "{place}");
        }
        let parts = Box::new(Noting::default());
        restore_from(source, &summary, store.clone(), parts).await.unwrap();
        assert!(!unfinished(&*store).await.unwrap());
    });
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused() {
    for whole in [block_on(small()), block_on(with_parts())] {
        every_change_is_refused(&whole);
    }
}

fn every_change_is_refused(whole: &[u8]) {
    assert!(Reader::new(whole).unwrap().finish().is_ok());
    let read = |text: &[u8]| Reader::new(text).and_then(Reader::finish);
    for end in 0..whole.len() {
        let refused = read(&whole[..end]).unwrap_err();
        let fits = matches!(refused, Error::CutShort { .. }) || end == 0;
        assert!(fits, "cut at {end}: {refused}");
    }
    for at in 0..whole.len() {
        for flip in [0x01, 0x04, 0x20, 0x80, 0xff] {
            let mut text = whole.to_vec();
            text[at] ^= flip;
            assert!(read(&text).is_err(), "byte {at} flipped by {flip:#x} went unnoticed");
        }
        let mut text = whole.to_vec();
        text.remove(at);
        assert!(read(&text).is_err(), "byte {at} removed went unnoticed");
        let mut text = whole.to_vec();
        text.insert(at, b' ');
        assert!(read(&text).is_err(), "a byte more at {at} went unnoticed");
    }
    let twice = [whole, whole].concat();
    assert!(matches!(read(&twice), Err(Error::Damaged { .. })));
}

/// Puts a right checksum under lines that are wrong.
fn sealed(lines: &[&str]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let sum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    let count = lines.len() - 1;
    format!("{text}{{\"objects\":{count},\"sha256\":\"{sum}\"}}\n").into_bytes()
}

const HEAD: &str = r#"{"mainstay":"backup","format":1,"revision":7,"time":"2026-01-01T00:00:00Z","version":"0.1.0"}"#;

#[test]
fn invalid_files_are_refused_with_the_reason_and_leave_no_trace() {
    const OBJECT: &str = r#"{"resource":"apples","path":"a/x","hole":32,"object":{"metadata":{"resourceVersion":""}}}"#;
    assert_eq!(Reader::new(&sealed(&[HEAD, OBJECT])[..]).unwrap().finish().unwrap().objects, 1);
    let newer = HEAD.replace("\"format\":1", "\"format\":3");
    let old = HEAD.replace("\"format\":1", "\"format\":-1");
    let beyond = HEAD.replace("0.1.0\"", "0.1.0\",\"more\":1");
    assert!(Reader::new(&sealed(&[&beyond])[..]).unwrap().finish().is_ok(), "a head may say more");
    let swapped = [HEAD, &OBJECT.replace("a/x", "a/y"), OBJECT];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "not a backup"),
        (b"hello\n".to_vec(), "not a backup"),
        (vec![0; 100_000], "not a backup"),
        (b"{\"mainstay\":\"backup\"".repeat(100_000), "cut short"),
        (sealed(&[&newer]), "format 3, but this version reads up to 2"),
        (sealed(&[&old]), "not a backup"),
        (sealed(&[HEAD, OBJECT, OBJECT]), "line 3: an object out of order"),
        (sealed(&swapped), "line 3: an object out of order"),
        (sealed(&[HEAD, &OBJECT.replace("32", "31")]), "line 2: no object"),
        (sealed(&[HEAD, &OBJECT.replace("32", "99999999999")]), "line 2: no object"),
        (sealed(&[HEAD, &OBJECT.replace("apples", "a/b")]), "line 2: no object"),
        (sealed(&[HEAD, &OBJECT.replace("a/x", "")]), "line 2: no object"),
        (sealed(&[HEAD, &OBJECT.replace("}}}", "}]}")]), "line 2: no object"),
        (sealed(&[HEAD, "{}"]), "line 2: no object"),
        (sealed(&[HEAD, ""]), "line 2: no object"),
    ];
    block_on(async {
        for (text, expected) in cases {
            let store = memory();
            let refused = restore(&File::new(&text).path(), store.clone()).await.unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused} instead of {expected}");
            let snapshot = store.snapshot().await.unwrap();
            assert_eq!((snapshot.len(), snapshot.revision), (0, Revision(0)), "{expected}");
        }
        let missing = restore(Path::new("/nowhere/at/all"), memory()).await;
        assert!(matches!(missing, Err(Error::Io(_))));
    });
}

#[test]
fn a_store_that_is_not_empty_is_not_changed() {
    block_on(async {
        let file = File::new(&small().await);
        for backend in BACKENDS {
            let stage = Stage::new(backend, Retention::default()).await;
            let mine = key("pears", "a", "mine");
            let at = stage.store.write(create(&mine, 1)).await.unwrap().revision();
            let refused = restore(&file.path(), stage.store.clone()).await.unwrap_err();
            assert!(matches!(refused, Error::NotEmpty { objects: 1, .. }), "{refused}");
            assert!(refused.to_string().contains("\"a/mine\""), "{refused}");
            assert!(!unfinished(&*stage.store).await.unwrap());
            stage.store.write(delete(&mine, at)).await.unwrap();
            next_epoch(&*stage.store).await.unwrap();
            restore(&file.path(), stage.store.clone()).await.unwrap();
            let again = restore(&file.path(), stage.store.clone()).await.unwrap_err();
            assert!(matches!(again, Error::NotEmpty { objects: 2, .. }), "{again}");
            stage.store.close().await;
        }
    });
}

/// A store that takes so many writes and then no more.
#[derive(Debug)]
struct Tiring {
    store: Arc<dyn Objects>,
    left: AtomicUsize,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Fail,
    /// Does the write, says that it does not know, and takes one more.
    DoAndDoubt,
    SayAndHang,
}

fn tiring(store: Arc<dyn Objects>, left: usize, then: Then) -> Arc<dyn Objects> {
    Arc::new(Tiring { store, left: left.into(), then })
}

impl Objects for Tiring {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, objects::Error>> {
        async move {
            let less = |left: usize| left.checked_sub(1);
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return self.store.write(write).await;
            }
            match self.then {
                Then::DoAndDoubt => {
                    self.left.fetch_add(1, Ordering::Relaxed);
                    self.store.write(write).await?;
                    Err(objects::Error::Unavailable { reason: "lost".to_owned() })
                }
                Then::Fail => Err(objects::Error::Unavailable { reason: "tired".to_owned() }),
                Then::SayAndHang => {
                    println!("\nhanging");
                    std::future::pending().await
                }
            }
        }
        .boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, objects::Error>> {
        self.store.get(key)
    }

    fn collection(
        &self,
        resource: &Resource,
        at: At,
    ) -> BoxFuture<'_, Result<Collection, objects::Error>> {
        self.store.collection(resource, at)
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, objects::Error>> {
        self.store.watch(scope, from)
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.store.revision(resource)
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), objects::Error>> {
        self.store.compact(through)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, objects::Error>> {
        self.store.snapshot()
    }

    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), objects::Error>> {
        self.store.advance(to)
    }

    fn medium(&self) -> Medium {
        self.store.medium()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, objects::Error>> {
        self.store.verify()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

async fn many(count: usize) -> File {
    let store = memory();
    for n in 0..count {
        store.write(create(&key("apples", "a", &format!("n{n:06}")), n)).await.unwrap();
    }
    File::new(&taken(&*store).await)
}

#[test]
fn a_failed_restore_is_recognised_and_the_next_one_starts_over() {
    block_on(async {
        let (file, other) = (many(1200).await, File::new(&small().await));
        for backend in BACKENDS {
            // After the marker; among the objects; all but the removal of the marker.
            for left in [0, 1, 600, 1201] {
                let stage = Stage::new(backend, Retention::default()).await;
                let tiring = tiring(stage.store.clone(), left, Then::Fail);
                let refused = restore(&file.path(), tiring).await.unwrap_err();
                assert!(matches!(refused, Error::Store(_)), "{refused}");
                assert_eq!(unfinished(&*stage.store).await.unwrap(), left > 0, "{left}");
                restore(&other.path(), stage.store.clone()).await.unwrap();
                assert!(!unfinished(&*stage.store).await.unwrap());
                assert_eq!(contents(&stage.store.snapshot().await.unwrap()).len(), 2, "{left}");
                stage.store.close().await;
            }
        }
    });
}

#[test]
fn writes_of_unknown_outcome_are_resolved() {
    block_on(async {
        let file = File::new(&small().await);
        let store = memory();
        // The marker is made without doubt; every write after it is done, doubted and tried again.
        let doubting = tiring(store.clone(), 1, Then::DoAndDoubt);
        restore(&file.path(), doubting).await.unwrap();
        assert_eq!(contents(&store.snapshot().await.unwrap()).len(), 2);
        assert!(!unfinished(&*store).await.unwrap());
    });
}

#[test]
fn an_earlier_attempt_that_still_runs_is_stopped_by_the_next() {
    block_on(async {
        let (file, other) = (many(1200).await, File::new(&small().await));
        for backend in BACKENDS {
            let stage = Stage::new(backend, Retention::default()).await;
            let tiring = tiring(stage.store.clone(), 1, Then::Fail);
            restore(&file.path(), tiring).await.unwrap_err();
            let both = [&file, &other].map(|file| {
                let (path, store) = (file.path(), stage.store.clone());
                async move { restore(&path, store).await }
            });
            let outcomes = futures_util::future::join_all(both).await;
            let won: Vec<_> = outcomes.iter().flatten().collect();
            assert!(won.len() <= 1, "{outcomes:?}");
            if let [summary] = won[..] {
                let kept = contents(&stage.store.snapshot().await.unwrap()).len();
                assert_eq!(kept as u64, summary.objects, "{outcomes:?}");
                assert!(!unfinished(&*stage.store).await.unwrap());
            } else {
                assert!(unfinished(&*stage.store).await.unwrap());
            }
            stage.store.close().await;
        }
    });
}

/// The other process of the test below.
#[test]
#[ignore = "is run in a process of its own, to be killed"]
fn restore_until_killed() {
    let [database, file] = ["RESTORE_DATABASE", "RESTORE_FILE"].map(std::env::var_os);
    let (Some(database), Some(file)) = (database, file) else { return };
    block_on(async {
        let database = Path::new(&database);
        let store = SqliteStore::open(database, Retention::default(), 1 << 20, SystemClock::new());
        let tiring = tiring(Arc::new(store.unwrap()), 1500, Then::SayAndHang);
        restore(Path::new(&file), tiring).await.unwrap();
    });
}

#[test]
fn a_killed_restore_is_recognised_and_the_next_one_starts_over() {
    let file = block_on(many(3000));
    let stage = block_on(Stage::new(Backend::Sqlite, Retention::default()));
    block_on(stage.store.close());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "backup::restore_until_killed"])
        .env("RESTORE_DATABASE", stage.path())
        .env("RESTORE_FILE", file.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "hanging"), "it never got that far");
    child.kill().unwrap();
    child.wait().unwrap();
    block_on(async {
        let store = stage.open().await;
        assert!(unfinished(&*store).await.unwrap());
        restore(&file.path(), store.clone()).await.unwrap();
        assert!(!unfinished(&*store).await.unwrap());
        assert_eq!(contents(&store.snapshot().await.unwrap()).len(), 3000);
        store.close().await;
    });
}

#[test]
fn a_backup_is_made_in_small_pieces() {
    block_on(async {
        let store = memory();
        for n in 0..5000 {
            store
                .write(create(&key("apples", "a", &format!("n{n}")), "x".repeat(200)))
                .await
                .unwrap();
        }
        let pieces =
            Chunks::new(store.snapshot().await.unwrap(), "2026-01-01T00:00:00Z".parse().unwrap());
        let sizes: Vec<_> = pieces.map(|piece| piece.len()).collect();
        assert!(sizes.len() > 10 && sizes.iter().all(|size| *size < 80 << 10), "{sizes:?}");
    });
}

#[test]
fn a_damaged_medium_is_reported() {
    block_on(async {
        for backend in BACKENDS {
            let stage = Stage::new(backend, Retention::default()).await;
            sample(&stage.store).await;
            assert_eq!(stage.store.verify().await.unwrap(), [""; 0], "{backend:?}");
            stage.store.close().await;
        }
        let cluster = crate::cluster::Cluster::start(1);
        let address = cluster.address();
        let store = mainstay_store::etcd::EtcdStore::open(
            &address,
            Retention::default(),
            1 << 20,
            SystemClock::new(),
        );
        let store = store.await.unwrap();
        let junk = format!("{}/objects/apples/a/x", address.prefix);
        assert!(cluster.control(&["put", &junk, "junk"]));
        let complaints = store.verify().await.unwrap();
        assert!(complaints.len() == 1 && complaints[0].contains("apples/a/x"), "{complaints:?}");
        store.close().await;
    });
}

#[test]
fn the_first_line_names_format_version_and_revision() {
    let text = block_on(small());
    let file = File::new(&text);
    let summary = verify(&file.path()).unwrap();
    assert_eq!((summary.objects, summary.head.revision), (2, 2));
    let first = text.split(|byte| *byte == b'\n').next().unwrap();
    let head: Value = serde_json::from_slice(first).unwrap();
    let expected = json!({
        "mainstay": "backup", "format": backup::FORMAT, "revision": 2,
        "time": "2026-01-01T00:00:00Z", "version": env!("CARGO_PKG_VERSION"),
    });
    assert_eq!(head, expected);
}
