//! Encryption at rest on a real etcd: no plaintext in it, several servers, keys that change while
//! servers run, and watches that do not notice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_store::clock::SystemClock;
use mainstay_store::etcd::Address;
use mainstay_store::location::Error as OpenError;
use mainstay_store::object::{Key, Record, Revision};
use mainstay_store::objects::{At, Error, Objects, Scope};
use mainstay_store::seal::{MasterKeys, Sealer, data_keys};
use mainstay_store::snapshot::{EncryptionState, Stats};
use mainstay_store::value::Codec;
use mainstay_store::{Location, Settings};

use crate::cluster::Cluster;
use crate::{block_on, create, delete, key, shared_cluster, update, value};

const SECRET: &str = "plaintext-that-must-not-be-found";
/// Longer than any step of these tests takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn line(name: &str) -> String {
    MasterKeys::new_line(name).unwrap()
}

fn settings(lines: &[&str]) -> Settings {
    let keys = (!lines.is_empty()).then(|| MasterKeys::parse(&lines.join("\n")).unwrap());
    Settings { codec: Codec::sealing(Sealer::new(keys)), ..Settings::default() }
}

async fn try_open(address: &Address, settings: &Settings) -> Result<Arc<dyn Objects>, OpenError> {
    mainstay_store::open(&Location::Etcd(address.clone()), settings, SystemClock::new()).await
}

async fn open(address: &Address, lines: &[&str]) -> Arc<dyn Objects> {
    try_open(address, &settings(lines)).await.unwrap()
}

async fn refusal(address: &Address, lines: &[&str]) -> String {
    try_open(address, &settings(lines)).await.unwrap_err().to_string()
}

fn name(n: usize) -> Key {
    key("apples", "a", &format!("n{n}"))
}

/// Writes objects that hold the secret; returns the version of each.
async fn fill(store: &dyn Objects, count: usize) -> BTreeMap<Key, Revision> {
    let write = |n| async move {
        let event = store.write(create(&name(n), format!("{SECRET} {n}"))).await.unwrap();
        (name(n), event.revision())
    };
    futures_util::future::join_all((0..count).map(write)).await.into_iter().collect()
}

/// Every object, with its version.
async fn records(store: &dyn Objects) -> Vec<Arc<Record>> {
    let apples = store.collection(name(0).resource(), At::Latest).await.unwrap();
    apples.range(None, None).cloned().collect()
}

/// The keys in etcd whose values hold the secret.
fn readable(cluster: &Cluster, address: &Address) -> Vec<String> {
    let holds = |value: &[u8]| value.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
    let values = cluster.dump(&format!("{}/", address.prefix));
    values.into_iter().filter(|(_, value)| holds(value)).map(|(key, _)| key).collect()
}

/// The ids of the data keys that objects in etcd are sealed with, and `None` for the clear.
fn sealed_with(cluster: &Cluster, address: &Address) -> Vec<Option<Vec<u8>>> {
    let values = cluster.dump(&format!("{}/objects/apples/", address.prefix));
    let id = |value: Vec<u8>| (value[0] == 1).then(|| value[1..9].to_vec());
    let mut ids: Vec<_> = values.into_iter().map(|(_, value)| id(value)).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// How many values in etcd are sealed.
fn sealed(cluster: &Cluster, address: &Address) -> usize {
    let values = cluster.dump(&format!("{}/", address.prefix));
    values.iter().filter(|(_, value)| value.first() == Some(&1)).count()
}

async fn stats(store: &dyn Objects) -> Stats {
    Stats::of(&store.snapshot().await.unwrap(), &store.medium())
}

/// Waits until the encryption of a store is in this state, with this data key if one is given.
async fn reached(store: &dyn Objects, state: Option<EncryptionState>, data_key: Option<&str>) {
    let waiting = async {
        loop {
            let found = stats(store).await.encryption;
            let right = |id: &str| found.as_ref().is_some_and(|found| found.data_key == id);
            let now = found.as_ref().map(|found| found.state.clone());
            if now == state && data_key.is_none_or(right) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("encryption gets there");
}

#[test]
fn an_encrypted_etcd_holds_no_plaintext_and_opens_with_its_key_alone() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let one = open(&address, &[&right]).await;
        let made = fill(&*one, 150).await;
        let kept = name(0);
        let at = one.write(update(&kept, made[&kept], SECRET)).await.unwrap().revision();
        one.write(delete(&name(1), made[&name(1)])).await.unwrap();
        assert_eq!(readable(cluster, &address), [""; 0]);
        reached(&*one, Some(EncryptionState::Complete), None).await;
        assert_eq!(stats(&*one).await.encrypted_with.as_deref(), Some("right"));
        assert_eq!(one.verify().await.unwrap(), [""; 0]);

        let missing = refusal(&address, &[]).await;
        assert!(missing.contains("\"right\"") && missing.contains("--store-key"), "{missing}");
        let other = refusal(&address, &[&line("other")]).await;
        assert!(other.contains("does not have"), "{other}");
        let impostor = refusal(&address, &[&line("right")]).await;
        assert!(impostor.contains("is another one"), "{impostor}");

        let two = open(&address, &[&right]).await;
        assert_eq!(records(&*two).await, records(&*one).await);
        let at = two.write(update(&kept, at, "two")).await.unwrap().revision();
        let seen = one.get(&kept).await.unwrap().unwrap();
        assert_eq!((seen.revision(), value(&seen)), (at, "two".into()));
        assert_eq!(readable(cluster, &address), [""; 0]);
        one.close().await;
        two.close().await;
    });
}

#[test]
fn encryption_is_turned_on_once_every_server_has_the_key_and_no_watch_sees_it() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let without = open(&address, &[]).await;
        let start = without.revision(name(0).resource());
        fill(&*without, 300).await;
        let before = records(&*without).await;

        let with = open(&address, &[&right]).await;
        reached(&*with, Some(EncryptionState::WaitingForServers), None).await;
        let held = without.write(create(&name(300), SECRET)).await.unwrap();
        assert_eq!(sealed_with(cluster, &address), [None], "a server without the key still runs");
        let held = held.revision();
        let mut watch = with.watch(Scope::all(name(0).resource()), held).await.unwrap();
        without.close().await;
        reached(&*with, Some(EncryptionState::Complete), None).await;
        assert_eq!(readable(cluster, &address), [""; 0]);

        assert_eq!(records(&*with).await[..], {
            let mut all = before.clone();
            all.push(with.get(&name(300)).await.unwrap().unwrap());
            all.sort_by_key(|record| record.key().clone());
            all
        });
        assert!(watch.ready().unwrap().is_empty(), "encrypting a value is not a change");
        for record in &before[..50] {
            let written = with.write(update(record.key(), record.revision(), 1)).await;
            written.expect("versions from before still hold");
        }
        let mut seen = Vec::new();
        while seen.len() < 50 {
            seen.extend(watch.next().await.unwrap());
        }
        let seen: Vec<&Key> = seen.iter().map(|event| event.record.key()).collect();
        let expected: Vec<&Key> = before[..50].iter().map(|record| record.key()).collect();
        assert_eq!(seen, expected);
        // A server that was started afterwards has the same versions.
        let later = open(&address, &[&right]).await;
        assert_eq!(records(&*later).await, records(&*with).await);
        let old = with.watch(Scope::all(name(0).resource()), start).await;
        assert!(matches!(old, Err(Error::Expired { .. })), "history starts with the store");
        with.close().await;
        later.close().await;
    });
}

#[test]
fn a_server_without_the_key_refuses_writes_once_the_store_is_encrypted() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let (address, elsewhere) = (cluster.address(), cluster.address());
        let other = open(&elsewhere, &[&right]).await;
        other.close().await;
        let without = open(&address, &[]).await;
        without.write(create(&name(0), 1)).await.unwrap();
        without.ready().await.unwrap();
        // An active data key appears, as it does for a server that is just starting.
        let keys = cluster.dump(&format!("{}/objects/datakeys", elsewhere.prefix));
        for (key, value) in keys {
            cluster.put(&key.replacen(&elsewhere.prefix, &address.prefix, 1), &value);
        }
        without.snapshot().await.unwrap();
        for refused in [without.ready().await, without.write(create(&name(1), 1)).await.map(drop)] {
            let Err(Error::Unavailable { reason }) = refused else { panic!("{refused:?}") };
            assert!(reason.contains("\"right\"") && reason.contains("--store-key"), "{reason}");
        }
        assert!(without.get(&name(0)).await.unwrap().is_some(), "reads go on");
        without.close().await;
    });
}

#[test]
fn the_data_key_changes_while_two_servers_write() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let (one, two) = (open(&address, &[&right]).await, open(&address, &[&right]).await);
        let mut made = fill(&*one, 400).await;
        reached(&*one, Some(EncryptionState::Complete), None).await;
        let first = sealed_with(cluster, &address);
        let from = one.revision(name(0).resource());
        let mut watch = two.watch(Scope::all(name(0).resource()), from).await.unwrap();
        let id = one.rekey().await.unwrap();
        let again = two.rekey().await;
        assert!(matches!(again, Err(Error::Refused { .. })) || again.is_ok(), "{again:?}");
        let newest = again.unwrap_or(id);
        let mut written = 0;
        while !matches!(stats(&*one).await.encryption, Some(now)
            if now.state == EncryptionState::Complete && now.data_key == newest)
        {
            let key = name(written % 400);
            let writer = if written % 2 == 0 { &one } else { &two };
            let event = writer.write(update(&key, made[&key], written)).await;
            made.insert(key, event.expect("no write is refused meanwhile").revision());
            written += 1;
        }
        let ids = sealed_with(cluster, &address);
        assert!(ids.len() == 1 && ids != first && ids[0].is_some(), "{ids:?}");
        for store in [&one, &two] {
            let found: BTreeMap<Key, Revision> = records(&**store)
                .await
                .iter()
                .map(|record| (record.key().clone(), record.revision()))
                .collect();
            assert_eq!(found, made);
            assert_eq!(store.verify().await.unwrap(), [""; 0]);
        }
        let mut seen = 0;
        while seen < written {
            for event in watch.next().await.unwrap() {
                assert_eq!(value(&event.record), seen, "each write is seen once, in order");
                seen += 1;
            }
        }
        one.close().await;
        two.close().await;
    });
}

#[test]
fn a_new_key_file_rewraps_the_data_keys() {
    block_on(async {
        let cluster = shared_cluster();
        let (old, new) = (line("old"), line("new"));
        let address = cluster.address();
        let store = open(&address, &[&old]).await;
        fill(&*store, 20).await;
        reached(&*store, Some(EncryptionState::Complete), None).await;
        let before = cluster.dump(&format!("{}/objects/apples/", address.prefix));
        store.close().await;
        let store = open(&address, &[&new, &old]).await;
        let named = async {
            while stats(&*store).await.encrypted_with.as_deref() != Some("new") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, named).await.expect("the data key is wrapped anew");
        assert_eq!(cluster.dump(&format!("{}/objects/apples/", address.prefix)), before);
        store.close().await;
        let store = open(&address, &[&new]).await;
        assert_eq!(records(&*store).await.len(), 20);
        store.close().await;
        assert!(refusal(&address, &[&old]).await.contains("does not have"));
    });
}

#[test]
fn encryption_is_turned_off_and_the_key_is_not_needed_any_more() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let store = open(&address, &[&right]).await;
        fill(&*store, 120).await;
        let before = records(&*store).await;
        store.close().await;
        let decrypt = Settings { decrypt: true, ..settings(&[&right]) };
        let store = try_open(&address, &decrypt).await.unwrap();
        reached(&*store, None, None).await;
        let clear = async {
            while sealed_with(cluster, &address) != [None] {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, clear).await.expect("every value is in the clear");
        assert_eq!(records(&*store).await, before);
        store.close().await;
        let store = open(&address, &[]).await;
        assert_eq!(records(&*store).await, before);
        assert!(matches!(store.rekey().await, Err(Error::Refused { .. })));
        store.close().await;
        // And on again.
        let store = open(&address, &[&right]).await;
        reached(&*store, Some(EncryptionState::Complete), None).await;
        assert_eq!(readable(cluster, &address), [""; 0]);
        assert_eq!(records(&*store).await, before);
        store.close().await;
    });
}

#[test]
fn servers_with_different_settings_do_not_undo_each_others_work() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let decrypt = Settings { decrypt: true, ..settings(&[&right]) };
        let one = open(&address, &[&right]).await;
        fill(&*one, 150).await;
        reached(&*one, Some(EncryptionState::Complete), None).await;
        let left = usize::try_from(one.values_left().await.unwrap()).unwrap();
        assert_eq!(left, sealed(cluster, &address));
        let off = try_open(&address, &decrypt).await.unwrap();
        let clear = async {
            while sealed(cluster, &address) > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, clear).await.expect("every value is in the clear");
        assert_eq!(off.values_left().await.unwrap(), 0);
        // Servers that were started with the key alone, before or since, leave it so.
        let later = open(&address, &[&right]).await;
        for store in [&one, &later] {
            assert_eq!(stats(&**store).await.encryption, None);
            store.ready().await.unwrap();
        }
        assert_eq!(sealed(cluster, &address), 0);
        for store in [one, off, later] {
            store.close().await;
        }
        let store = open(&address, &[&right]).await;
        reached(&*store, Some(EncryptionState::Complete), None).await;
        assert_eq!(readable(cluster, &address), [""; 0]);
        store.close().await;
    });
}

#[test]
fn a_killed_server_leaves_encryption_for_the_next_one_to_finish() {
    let (cluster, right) = (shared_cluster(), line("right"));
    let address = cluster.address();
    let before = block_on(async {
        let store = open(&address, &[]).await;
        fill(&*store, 1500).await;
        let before = records(&*store).await;
        store.close().await;
        before
    });
    // Opening returns when new values are encrypted, while older ones are being rewritten.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    drop(runtime.block_on(open(&address, &[&right])));
    runtime.shutdown_background();
    block_on(async {
        let store = open(&address, &[&right]).await;
        // The record of the killed server is removed after a while; it does not stand in the way
        // of reading and writing.
        let first = &before[0];
        store.write(update(first.key(), first.revision(), "later")).await.unwrap();
        reached(&*store, Some(EncryptionState::Complete), None).await;
        assert_eq!(readable(cluster, &address), [""; 0]);
        assert_eq!(records(&*store).await[1..], before[1..]);
        assert_eq!(store.verify().await.unwrap(), [""; 0]);
        store.close().await;
    });
}

#[test]
fn a_value_with_an_unknown_data_key_is_reported_and_the_rest_is_served() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let (address, elsewhere) = (cluster.address(), cluster.address());
        let (store, other) = (open(&address, &[&right]).await, open(&elsewhere, &[&right]).await);
        let made = fill(&*store, 3).await;
        fill(&*other, 1).await;
        other.close().await;
        let path = |address: &Address| format!("{}/objects/apples/a/n0", address.prefix);
        let (_, foreign) = cluster.dump(&path(&elsewhere)).remove(0);
        let (_, own) = cluster.dump(&path(&address)).remove(0);
        cluster.put(&path(&address), &foreign);
        assert!(store.snapshot().await.is_err(), "a snapshot asks etcd first");
        let error = store.get(&name(0)).await.unwrap_err().to_string();
        assert!(error.contains("its data key is not in the store"), "{error}");
        assert!(store.get(&name(1)).await.unwrap().is_some());
        let found = store.verify().await.unwrap();
        assert!(found.len() == 1 && found[0].contains("a/n0"), "{found:?}");
        let readable = store.readable().await.unwrap();
        let apples = readable.collections.iter().find(|(it, _)| it.as_str() == "apples").unwrap();
        assert_eq!(apples.1.len(), 2, "a check goes on with the others");
        cluster.put(&path(&address), &own);
        store.snapshot().await.unwrap();
        let mended = store.get(&name(0)).await.unwrap().unwrap();
        assert!(mended.revision() > made[&name(0)], "it was written by hand");
        store.close().await;
    });
}

/// Puts the content of a value into etcd as another program could: in the clear, with its checksum.
fn forge(cluster: &Cluster, address: &Address, key: &Key, content: &str) {
    let path = format!("{}/objects/{}/{}", address.prefix, key.resource(), key.path());
    cluster.put(&path, &Codec::default().encode(key, content.as_bytes()));
}

#[test]
fn a_value_in_the_clear_is_not_served_from_a_store_that_is_encrypted_as_a_whole() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let store = open(&address, &[&right]).await;
        fill(&*store, 3).await;
        reached(&*store, Some(EncryptionState::Complete), None).await;
        let path = format!("{}/objects/apples/a/n0", address.prefix);
        let sealed = cluster.dump(&path).remove(0).1;
        forge(cluster, &address, &name(0), "{\"metadata\":{\"resourceVersion\":\"\"}}\n32 0");
        assert!(store.snapshot().await.is_err(), "a snapshot asks etcd first");
        let error = store.get(&name(0)).await.unwrap_err().to_string();
        assert!(error.contains("not encrypted although the store is"), "{error}");
        assert!(store.get(&name(1)).await.unwrap().is_some());
        assert!(store.ready().await.is_err());
        let found = store.verify().await.unwrap();
        assert!(found.len() == 1 && found[0].contains("a/n0"), "{found:?}");
        assert!(refusal(&address, &[&right]).await.contains("not encrypted although the store is"));
        // Changing the data key meanwhile does not let it in.
        let id = store.rekey().await.unwrap();
        let replaced = async {
            while store
                .readable()
                .await
                .map(|it| Stats::of(&it, &store.medium()))
                .unwrap()
                .encryption
                .is_none_or(|it| it.data_key != id || it.state != EncryptionState::Complete)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, replaced).await.expect("the data key is replaced");
        assert!(store.get(&name(0)).await.is_err());
        cluster.put(&path, &sealed);
        store.snapshot().await.unwrap();
        assert!(store.get(&name(0)).await.unwrap().is_some(), "older data keys still open values");
        store.close().await;
    });
}

#[test]
fn a_forged_state_of_a_data_key_is_not_taken_over() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let store = open(&address, &[&right]).await;
        fill(&*store, 3).await;
        reached(&*store, Some(EncryptionState::Complete), None).await;
        let keys = format!("{}/objects/datakeys.internal.mainstay.dev/", address.prefix);
        let (path, sound) = cluster.dump(&keys).remove(0);
        let text = String::from_utf8(sound.clone()).unwrap();
        let (content, _) = text.rsplit_once("\n#").unwrap();
        let retired = content.replace("\"Complete\"", " \"Retired\"");
        assert_ne!(retired, content);
        let key = Key::new(&data_keys(), None, path.rsplit('/').next().unwrap());
        forge(cluster, &address, &key, &retired);
        assert!(store.snapshot().await.is_err(), "a snapshot asks etcd first");
        let reason = store.ready().await.unwrap_err().to_string();
        assert!(reason.contains("changed by another program"), "{reason}");
        store.write(create(&name(7), SECRET)).await.unwrap();
        assert_eq!(readable(cluster, &address), [""; 0], "values are still encrypted");
        let kept = store.readable().await.unwrap();
        let shown = Stats::of(&kept, &store.medium()).with_values_left(&kept, 3);
        let state = shown.encryption.map(|encryption| encryption.state);
        assert_eq!(state, Some(EncryptionState::Complete), "the state that the server keeps");
        assert!(!kept.has_retired_keys_only());
        assert!(shown.damaged.len() == 1 && shown.damaged[0].contains(key.name()));
        let refused = refusal(&address, &[&right]).await;
        let first = refused.split_once("are damaged: ").unwrap().1;
        assert!(first.starts_with("datakeys.internal.mainstay.dev"), "{refused}");
        assert!(first.contains("changed by another program"), "{refused}");
        cluster.put(&path, &sound);
        store.ready().await.unwrap();
        store.close().await;
    });
}

#[test]
fn a_removed_data_key_stops_writes_and_is_replaced_by_a_rekey() {
    block_on(async {
        let (cluster, right) = (shared_cluster(), line("right"));
        let address = cluster.address();
        let store = open(&address, &[&right]).await;
        fill(&*store, 3).await;
        // Until then the store writes the data key itself, and would replace the damaged one.
        reached(&*store, Some(EncryptionState::Complete), None).await;
        let keys = format!("{}/objects/datakeys.internal.mainstay.dev/", address.prefix);
        let (key, _) = cluster.dump(&keys).remove(0);
        let sound = cluster.dump(&key).remove(0).1;
        cluster.put(&key, b"junk");
        assert!(store.snapshot().await.is_err(), "a snapshot asks etcd first");
        let found = store.verify().await.unwrap().join("\n");
        assert!(found.contains("store rekey") && !found.contains("etcdctl del"), "{found}");
        cluster.put(&key, &sound);
        assert!(cluster.control(&["del", &key]));
        store.snapshot().await.unwrap();
        let refused = store.write(create(&name(9), "x".to_owned())).await.unwrap_err().to_string();
        assert!(refused.contains("was removed from etcd"), "{refused}");
        assert!(store.ready().await.is_err());
        assert!(store.verify().await.unwrap().iter().any(|told| told.contains("store rekey")));
        store.rekey().await.unwrap();
        while store.write(create(&name(9), "x".to_owned())).await.is_err() {}
        store.ready().await.unwrap();
        store.close().await;
        let store = open(&address, &[&right]).await;
        assert_eq!(records(&*store).await.len(), 4);
        assert!(store.verify().await.unwrap().is_empty());
        store.close().await;
    });
}
