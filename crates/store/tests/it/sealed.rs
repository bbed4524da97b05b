//! Encryption at rest: nothing readable on disk, no start without the key, keys that change.

use std::path::Path;
use std::sync::Arc;

use mainstay_store::clock::SystemClock;
use mainstay_store::location::Error;
use mainstay_store::object::Revision;
use mainstay_store::objects::{self, Change, Objects, Write};
use mainstay_store::seal::{KeyState, MasterKeys, Sealer};
use mainstay_store::snapshot::{EncryptionState, Stats};
use mainstay_store::sqlite::repair::{examine, inspect, repair};
use mainstay_store::value::Codec;
use mainstay_store::{Location, Settings};

use crate::{block_on, create, delete, key, update};

const SECRET: &str = "plaintext-that-must-not-be-found";

fn lines() -> [String; 2] {
    ["old", "new"].map(|name| MasterKeys::new_line(name).unwrap())
}

fn settings(lines: &[&String]) -> Settings {
    let lines: Vec<&str> = lines.iter().map(|line| line.as_str()).collect();
    let keys = (!lines.is_empty()).then(|| MasterKeys::parse(&lines.join("\n")).unwrap());
    Settings { codec: Codec::sealing(Sealer::new(keys)), ..Settings::default() }
}

async fn open(folder: &Path, settings: &Settings) -> Result<Arc<dyn Objects>, Error> {
    let location = Location::Sqlite(folder.join("objects.db"));
    mainstay_store::open(&location, settings, SystemClock::new()).await
}

/// Writes, changes and deletes objects that hold the secret.
async fn fill(store: &dyn Objects) -> Revision {
    for n in 0..700 {
        store
            .write(create(&key("apples", "a", &format!("n{n}")), format!("{SECRET} {n}")))
            .await
            .unwrap();
    }
    let (kept, gone) = (key("apples", "a", "kept"), key("apples", "a", "gone"));
    let at = store.write(create(&kept, SECRET)).await.unwrap().revision();
    store.write(update(&kept, at, SECRET)).await.unwrap();
    let at = store.write(create(&gone, SECRET)).await.unwrap().revision();
    store.write(delete(&gone, at)).await.unwrap().revision()
}

/// The files that hold the secret.
fn found_in(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found
}

fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let read =
        |path: std::path::PathBuf| (path.display().to_string(), std::fs::read(&path).unwrap());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "db")).map(read).collect();
    files.sort();
    files
}

fn block_on_here<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).unwrap_or_else(|| panic!("it is there at once"))
}

fn encrypted_with(store: &dyn Objects) -> Option<String> {
    Stats::of(&block_on_here(store.snapshot()).unwrap(), &store.medium()).encrypted_with
}

async fn whole(store: &dyn Objects) {
    let snapshot = store.snapshot().await.unwrap();
    let apples =
        snapshot.collections.iter().find(|(resource, _)| resource.as_str() == "apples").unwrap();
    assert_eq!(apples.1.len(), 701);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

#[test]
fn an_encrypted_store_shows_no_plaintext_and_opens_with_its_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = lines();
    block_on(async {
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        fill(&*store).await;
        assert_eq!(found_in(folder.path()), Vec::<String>::new(), "while it is open");
        assert_eq!(encrypted_with(&*store).as_deref(), Some("old"));
        store.close().await;
        assert_eq!(found_in(folder.path()), Vec::<String>::new());
        let before = contents(folder.path());
        let impostor = new.replace("new:", "old:");
        for (keys, expected) in [
            (vec![], "--store-key"),
            (vec![&new], "the key file does not have"),
            (vec![&impostor], "is another one"),
        ] {
            let refused = open(folder.path(), &settings(&keys)).await.unwrap_err().to_string();
            assert!(refused.contains(expected) && refused.contains("\"old\""), "{refused}");
            assert_eq!(contents(folder.path()), before, "a refused start writes nothing");
        }
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        whole(&*store).await;
        store.close().await;
    });
}

#[test]
fn an_unencrypted_store_is_encrypted_and_decrypted_again() {
    let folder = tempfile::tempdir().unwrap();
    let [old, _] = lines();
    block_on(async {
        let store = open(folder.path(), &settings(&[])).await.unwrap();
        fill(&*store).await;
        assert_eq!(encrypted_with(&*store), None);
        store.close().await;
        assert!(!found_in(folder.path()).is_empty());
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        assert_eq!(
            found_in(folder.path()),
            Vec::<String>::new(),
            "neither in free pages nor in the log"
        );
        whole(&*store).await;
        store.close().await;
        let decrypt = Settings { decrypt: true, ..settings(&[&old]) };
        let store = open(folder.path(), &decrypt).await.unwrap();
        assert_eq!(encrypted_with(&*store), None);
        store.close().await;
        let store = open(folder.path(), &settings(&[])).await.unwrap();
        whole(&*store).await;
        store.close().await;
    });
}

#[test]
fn the_data_key_of_a_served_database_changes_while_it_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let [old, _] = lines();
    block_on(async {
        let store = open(folder.path(), &settings(&[])).await.unwrap();
        assert!(matches!(store.rekey().await, Err(objects::Error::Refused { .. })));
        store.close().await;
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        fill(&*store).await;
        let id = store.rekey().await.unwrap();
        let counter = key("apples", "a", "kept");
        let mut at = store.get(&counter).await.unwrap().unwrap().revision();
        let encryption = |store: &dyn Objects| {
            Stats::of(&block_on_here(store.snapshot()).unwrap(), &store.medium()).encryption
        };
        while encryption(&*store).unwrap().state != EncryptionState::Complete {
            at = store.write(update(&counter, at, SECRET)).await.unwrap().revision();
        }
        assert_eq!(encryption(&*store).unwrap().data_key, id);
        whole(&*store).await;
        store.close().await;
        assert_eq!(found_in(folder.path()), Vec::<String>::new());
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        whole(&*store).await;
        // A change that is cut short by closing the store is finished by the next start.
        let id = store.rekey().await.unwrap();
        store.close().await;
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        let found = encryption(&*store).unwrap();
        assert_eq!((found.state, found.data_key), (EncryptionState::Complete, id));
        whole(&*store).await;
        store.close().await;
    });
}

#[test]
fn values_under_other_data_keys_survive_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let [old, _] = lines();
    block_on(async {
        let keys = settings(&[&old]);
        let store = open(folder.path(), &keys).await.unwrap();
        fill(&*store).await;
        let other = keys.codec.sealer().new_data_key(KeyState::Retired).unwrap().unwrap();
        let change = Change::Create(other.body());
        store.write(Write { key: other.key(), change, fence: None }).await.unwrap();
        store.close().await;
        let path = folder.path().join("objects.db");
        let database = rusqlite::Connection::open(&path).unwrap();
        let damage = "UPDATE objects SET body = CAST(replace(CAST(body AS TEXT), 'Retired', 'Retined') AS BLOB) \
                      WHERE path = ?";
        assert_eq!(database.execute(damage, [other.id()]).unwrap(), 1);
        drop(database);
        let refused = open(folder.path(), &settings(&[&old])).await.unwrap_err().to_string();
        assert!(refused.contains("is damaged") && refused.contains(&other.id()), "{refused}");
        let codec = settings(&[&old]).codec;
        let examined = examine(&path, &codec).unwrap();
        let apples = examined.readable.collections.iter().find(|(it, _)| it.as_str() == "apples");
        assert_eq!(apples.unwrap().1.len(), 701, "{:?}", examined.findings);
        let found = inspect(&path, &codec).unwrap();
        assert!(found.lines.iter().any(|line| line.contains(&other.id())), "{:?}", found.lines);
        repair(&path, &settings(&[&old]).codec, &found.name).unwrap();
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        whole(&*store).await;
        store.close().await;
    });
}

#[test]
fn a_new_key_above_the_old_one_takes_over_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = lines();
    block_on(async {
        let store = open(folder.path(), &settings(&[&old])).await.unwrap();
        fill(&*store).await;
        store.close().await;
        let store = open(folder.path(), &settings(&[&new, &old])).await.unwrap();
        assert_eq!(encrypted_with(&*store).as_deref(), Some("new"));
        whole(&*store).await;
        store.close().await;
        let store = open(folder.path(), &settings(&[&new])).await.unwrap();
        whole(&*store).await;
        store.close().await;
        assert!(open(folder.path(), &settings(&[&old])).await.is_err());
    });
}
