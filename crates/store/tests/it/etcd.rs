//! Tests that need a cluster: members fail, and several stores share it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::etcd::{Address, EtcdStore};
use mainstay_store::object::{Key, Revision};
use mainstay_store::objects::{At, Error, Fence, Objects, Scope, Write};
use mainstay_store::snapshot::Stats;

use crate::cluster::Cluster;
use crate::{block_on, create, delete, key, update};

/// How many versions one revision of etcd has.
const PLACES: u64 = 256;

async fn open(address: &Address) -> Arc<dyn Objects> {
    let store = EtcdStore::open(address, Retention::default(), 1 << 20, SystemClock::new()).await;
    Arc::new(store.unwrap())
}

#[test]
fn two_stores_on_one_etcd_see_each_other_at_once_and_in_order() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let (one, two) = (open(&address).await, open(&address).await);
        let counter = key("apples", "a", "n");
        let start = one.write(create(&counter, 0)).await.unwrap().revision();
        let mut watch = two.watch(Scope::all(counter.resource()), start).await.unwrap();
        let mut at = start;
        for n in 1..=50 {
            let writer = if n % 2 == 0 { &one } else { &two };
            at = writer.write(update(&counter, at, n)).await.unwrap().revision();
            let other = if n % 2 == 0 { &two } else { &one };
            let seen = other.get(&counter).await.unwrap().unwrap();
            assert_eq!(seen.revision(), at, "an acknowledged write is read everywhere");
        }
        let mut seen = 0;
        while seen < 50 {
            for event in watch.next().await.unwrap() {
                seen += 1;
                assert_eq!(crate::value(&event.record), seen);
            }
        }
        one.close().await;
        two.close().await;
    });
}

#[test]
fn concurrent_writes_share_transactions_and_each_gets_its_own_answer() {
    block_on(async {
        let cluster = Cluster::start(1);
        let store = open(&cluster.address()).await;
        let old = key("apples", "a", "old");
        let at = store.write(create(&old, 0)).await.unwrap().revision();
        let name = |n: i64| key("apples", "a", &format!("n{n}"));
        // Each name twice, and now and then one that must fail.
        let mut writes = Vec::new();
        for n in 0..100 {
            writes.push(create(&name(n), n));
            writes.push(create(&name((n + 50) % 100), n));
            if n % 10 == 0 {
                writes.push(update(&old, Revision(at.0 - 1), n));
            }
        }
        let keys: Vec<Key> = writes.iter().map(|write| write.key.clone()).collect();
        let outcomes = join_all(writes.into_iter().map(|write| store.write(write))).await;
        let mut made = BTreeMap::new();
        let mut refused = 0;
        for (key, outcome) in keys.iter().zip(outcomes) {
            match outcome {
                Ok(event) => {
                    assert_eq!(event.record.key(), key);
                    assert_eq!(made.insert(key.clone(), event.revision()), None, "made twice");
                }
                Err(Error::AlreadyExists { key: told }) => {
                    assert_eq!((&told, *key != old), (key, true))
                }
                Err(Error::Conflict { key: told, actual, .. }) => {
                    assert_eq!((told, actual), (old.clone(), at));
                    refused += 1;
                }
                Err(error) => panic!("{key:?}: {error}"),
            }
        }
        assert_eq!((made.len(), refused), (100, 10));
        for (key, at) in &made {
            assert_eq!(store.get(key).await.unwrap().unwrap().revision(), *at);
        }
        let versions: BTreeSet<Revision> = made.values().copied().collect();
        assert_eq!(versions.len(), 100, "each object has a version of its own");
        let turns: BTreeSet<u64> = versions.iter().map(|version| version.0 / PLACES).collect();
        assert!(turns.len() < 60, "{} transactions for 100 objects", turns.len());
        store.close().await;
    });
}

#[test]
fn a_version_of_the_right_transaction_but_another_change_is_refused() {
    block_on(async {
        let cluster = Cluster::start(1);
        let store = open(&cluster.address()).await;
        let name = |n: i64| key("apples", "a", &format!("n{n}"));
        let made = join_all((0..100).map(|n| store.write(create(&name(n), n)))).await;
        let made: Vec<Revision> =
            made.iter().map(|made| made.as_ref().unwrap().revision()).collect();
        let shared = |(_, at): &(usize, &Revision)| at.0 % PLACES > 0;
        let (n, at) = made.iter().enumerate().find(shared).unwrap();
        let (one, other) = (name(i64::try_from(n).unwrap()), Revision(at.0 - 1));
        for write in [update(&one, other, -1), delete(&one, other)] {
            let refused = store.write(write).await;
            let Err(Error::Conflict { expected, actual, .. }) = &refused else {
                panic!("{refused:?}");
            };
            assert_eq!((*expected, actual), (other, at));
        }
        for (token, held) in [(other, false), (*at, true)] {
            let fence = Some(Fence { key: one.clone(), token });
            let outcome = store.write(Write { fence, ..create(&name(100), 0) }).await;
            match outcome {
                Ok(_) => assert!(held),
                Err(error) => assert!(!held && matches!(error, Error::Fenced { .. }), "{error}"),
            }
        }
        store.close().await;
    });
}

#[test]
fn two_stores_on_one_etcd_agree_on_every_version() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let stores = &[open(&address).await, open(&address).await];
        let scope = Scope::all(key("apples", "a", "n").resource());
        let start = stores[0].collection(&scope.resource, At::Latest).await.unwrap().revision();
        let writes = (0..80_usize).map(|n| {
            let (store, key) = (&stores[n % 2], key("apples", "a", &format!("n{n}")));
            async move {
                let made = store.write(create(&key, 0)).await.unwrap().revision();
                // The other store may not know that version yet.
                let other = &stores[(n + 1) % 2];
                let changed = other.write(update(&key, made, 1)).await.unwrap().revision();
                if n % 3 == 0 {
                    store.write(delete(&key, changed)).await.unwrap();
                }
            }
        });
        join_all(writes).await;
        let count = 2 * 80 + 27;
        let mut seen = Vec::new();
        for store in stores {
            let latest = store.collection(&scope.resource, At::Latest).await.unwrap();
            let events = one_per_watch(store, &scope, start, count).await;
            let objects: Vec<_> = latest.range(None, None).map(|it| it.json().clone()).collect();
            seen.push((events, objects));
        }
        assert_eq!(seen[0], seen[1]);
        // One that comes later lists what the others watched.
        let late = open(&address).await;
        let latest = late.collection(&scope.resource, At::Latest).await.unwrap();
        let objects: Vec<_> = latest.range(None, None).map(|it| it.json().clone()).collect();
        assert_eq!(objects, seen[0].1);
        for store in stores.iter().chain([&late]) {
            store.close().await;
        }
    });
}

/// The lines of `count` changes, each read by a watch that begins at the version of the last one.
async fn one_per_watch(
    store: &Arc<dyn Objects>,
    scope: &Scope,
    mut from: Revision,
    count: usize,
) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let mut watch = store.watch(scope.clone(), from).await.unwrap();
        let events = watch.next().await.unwrap();
        from = events[0].revision();
        seen.push(events[0].line().to_vec());
    }
    seen
}

/// Transactions that we did not write: several changes without places, as the first release wrote
/// them, and more deletions at once than a revision has places.
#[test]
fn changes_without_places_cut_the_history_before_them() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let store = open(&address).await;
        let name = |n: usize| key("apples", "a", &format!("n{n:03}"));
        let root = format!("{}/objects/apples/a/", address.prefix);
        let old = r#"{"data":{"value":"7"},"metadata":{"resourceVersion":""}}"#;
        let hole = old.len() - 3;
        let put = |name: &str| format!("put {root}{name} {:?}", format!("{old}\n{hole}"));
        assert!(cluster.transact(&[put("n000"), put("n001")]));
        store.snapshot().await.unwrap();
        let records = store.collection(name(0).resource(), At::Latest).await.unwrap();
        let versions: Vec<u64> = records.range(None, None).map(|it| it.revision().0).collect();
        assert_eq!(versions.len(), 2);
        assert!(versions.iter().all(|version| version % PLACES == 0), "{versions:?}");
        let scope = Scope::all(name(0).resource());
        let watch = store.watch(scope.clone(), Revision(versions[0])).await;
        assert!(matches!(watch, Err(Error::Expired { .. })), "{watch:?}");
        // They can be changed, and what follows can be watched.
        let from = records.revision();
        for n in [0, 1] {
            let at = store.get(&name(n)).await.unwrap().unwrap().revision();
            store.write(update(&name(n), at, 8)).await.unwrap();
        }
        assert_eq!(one_per_watch(&store, &scope, from, 2).await.len(), 2);

        let made = join_all((2..300).map(|n| store.write(create(&name(n), n)))).await;
        assert!(made.iter().all(Result::is_ok));
        let from = store.collection(&scope.resource, At::Latest).await.unwrap().revision();
        let mut watch = store.watch(scope.clone(), from).await.unwrap();
        assert!(cluster.control(&["del", "--prefix", &root]));
        assert!(matches!(watch.next().await, Err(Error::Expired { .. })));
        let left = store.collection(&scope.resource, At::Latest).await.unwrap();
        assert!(left.is_empty() && left.revision() > from);
        store.close().await;
    });
}

/// etcd may forget the deletions of the very revision it is compacted at.
#[test]
fn a_deletion_at_the_compacted_revision_reaches_a_disconnected_store() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let near = open(&past_the_proxies(&cluster, &address)).await;
        let one = key("apples", "a", "one");
        let at = near.write(create(&one, 0)).await.unwrap().revision();
        let away = open(&address).await;
        assert!(away.get(&one).await.unwrap().is_some());
        cluster.sever(0, true);
        let gone = near.write(delete(&one, at)).await.unwrap().revision();
        near.compact(gone).await.unwrap();
        cluster.sever(0, false);
        let seen = loop {
            if let Ok(seen) = away.get(&one).await {
                break seen;
            }
        };
        assert!(seen.is_none(), "it is still there: {seen:?}");
        away.close().await;
        near.close().await;
    });
}

/// Reads until the store has had every chance to answer from its cache alone.
async fn settle_alone(store: &Arc<dyn Objects>, counter: &Key) {
    for _ in 0..200 {
        store.get(counter).await.unwrap();
    }
}

#[test]
fn a_new_server_does_not_write_before_the_only_reader_has_seen_it() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let one = open(&address).await;
        let counter = key("apples", "a", "n");
        let mut at = one.write(create(&counter, 0)).await.unwrap().revision();
        for round in 1..=10 {
            settle_alone(&one, &counter).await;
            let two = open(&address).await;
            at = two.write(update(&counter, at, round)).await.unwrap().revision();
            assert_eq!(one.get(&counter).await.unwrap().unwrap().revision(), at);
            at = two.write(update(&counter, at, -round)).await.unwrap().revision();
            two.close().await;
            assert_eq!(one.get(&counter).await.unwrap().unwrap().revision(), at);
        }
        one.close().await;
    });
}

/// The same place, past the proxies: cutting a member off does not touch who goes this way.
fn past_the_proxies(cluster: &Cluster, address: &Address) -> Address {
    let hosts = cluster.members.iter().map(|member| member.client.target.to_string());
    Address { endpoints: hosts.collect(), ..address.clone() }
}

#[test]
fn a_disconnected_only_server_never_returns_stale_reads() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let one = open(&address).await;
        let counter = key("apples", "a", "n");
        let start = one.write(create(&counter, 0)).await.unwrap().revision();
        settle_alone(&one, &counter).await;
        cluster.cut(0, true);
        let two = open(&past_the_proxies(&cluster, &address)).await;
        let at = two.write(update(&counter, start, 1)).await.unwrap().revision();
        // It may not know, but it may not say that nothing happened.
        let patience = Duration::from_millis(500);
        if let Ok(Ok(seen)) = tokio::time::timeout(patience, one.get(&counter)).await {
            assert_eq!(seen.unwrap().revision(), at);
        }
        cluster.cut(0, false);
        let seen = loop {
            if let Ok(seen) = one.get(&counter).await {
                break seen.unwrap();
            }
        };
        assert_eq!(seen.revision(), at);
        two.close().await;
        one.close().await;
    });
}

#[test]
fn a_server_whose_record_was_removed_registers_again_before_it_writes() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let one = open(&address).await;
        let counter = key("apples", "a", "n");
        let mut at = one.write(create(&counter, 0)).await.unwrap().revision();
        let records = format!("{}/objects/servers.internal.mainstay.dev/", address.prefix);
        for n in 1..=3 {
            settle_alone(&one, &counter).await;
            assert!(cluster.control(&["del", "--prefix", &records]));
            at = one.write(update(&counter, at, n)).await.unwrap().revision();
            assert_eq!(one.get(&counter).await.unwrap().unwrap().revision(), at);
        }
        let snapshot = one.snapshot().await.unwrap();
        let enlisted = snapshot
            .collections
            .iter()
            .find(|(resource, _)| resource.as_str() == "servers.internal.mainstay.dev");
        assert_eq!(enlisted.map(|(_, collection)| collection.len()), Some(1));
        one.close().await;
    });
}

#[test]
fn a_foreign_writer_on_the_same_etcd_does_not_hold_up_reads() {
    block_on(async {
        let cluster = Cluster::start(1);
        let store = open(&cluster.address()).await;
        let apple = key("apples", "a", "x");
        store.write(create(&apple, 1)).await.unwrap();
        assert!(cluster.control(&["put", "somebody/else", "value"]));
        assert_eq!(store.collection(apple.resource(), At::Latest).await.unwrap().len(), 1);
        store.close().await;
    });
}

#[test]
fn a_paused_etcd_is_not_ready_until_it_resumes() {
    block_on(async {
        let cluster = Cluster::start(1);
        let store = open(&cluster.address()).await;
        store.ready().await.unwrap();
        cluster.signal(0, "-STOP");
        let told = store.ready().await;
        cluster.signal(0, "-CONT");
        assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
        while store.ready().await.is_err() {}
        store.close().await;
    });
}

#[test]
fn an_etcd_without_space_is_not_ready_until_it_has_some() {
    block_on(async {
        let cluster = Cluster::start_with(1, &["--quota-backend-bytes=4194304"]);
        let store = open(&cluster.address()).await;
        store.ready().await.unwrap();
        let text = "x".repeat(100_000);
        for n in 0.. {
            let written = store.write(create(&key("apples", "a", &format!("n{n}")), &*text)).await;
            if let Err(error) = written {
                assert!(error.to_string().contains("space exceeded"), "{error}");
                break;
            }
        }
        let reason = loop {
            match store.ready().await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => break error.to_string(),
            }
        };
        assert!(reason.contains("space exceeded"), "{reason}");
        for _ in 0..20 {
            assert!(store.ready().await.is_err(), "it does not alternate");
        }
        let snapshot = store.snapshot().await.unwrap();
        let (_, apples) =
            snapshot.collections.iter().find(|(it, _)| it.as_str() == "apples").unwrap();
        for record in apples.range(None, None) {
            store.write(delete(record.key(), record.revision())).await.unwrap();
        }
        let revision = store.snapshot().await.unwrap().revision;
        store.compact(revision).await.unwrap();
        assert!(cluster.control(&["defrag"]) && cluster.control(&["alarm", "disarm"]));
        while store.ready().await.is_err() {}
        store.close().await;
    });
}

#[test]
fn a_read_of_a_paused_etcd_fails_within_its_deadline_with_a_read_error() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let (store, other) = (open(&address).await, open(&address).await);
        let apple = key("apples", "a", "x");
        store.write(create(&apple, 1)).await.unwrap();
        // A store that is the only one answers reads without asking etcd. The write of the second is
        // acknowledged only once the first knows of it.
        other.write(create(&key("apples", "a", "y"), 1)).await.unwrap();
        cluster.signal(0, "-STOP");
        let patience = Duration::from_secs(30);
        let read = tokio::time::timeout(patience, store.get(&apple)).await;
        let listed =
            tokio::time::timeout(patience, store.collection(apple.resource(), At::Latest)).await;
        cluster.signal(0, "-CONT");
        let read = read.expect("reads have a deadline").map(drop);
        let listed = listed.expect("lists have a deadline").map(drop);
        for told in [read, listed] {
            let Err(Error::Unavailable { reason }) = told else { panic!("{told:?}") };
            assert!(reason.contains("reading from etcd") && !reason.contains("write"), "{reason}");
        }
        while store.get(&apple).await.is_err() {}
        store.close().await;
        other.close().await;
    });
}

/// A key that another program puts into etcd is either foreign and ignored, or a damaged value. The
/// object of a damaged value is never served: neither its old value, nor a list without it.
#[test]
fn a_damaged_value_is_named_and_not_served() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let path = |name: &str| format!("{}/objects/apples/{name}", address.prefix);
        assert!(cluster.control(&["put", &format!("{}/objects/junk", address.prefix), "junk"]));
        let store = open(&address).await;
        let (good, bad) = (key("apples", "a", "good"), key("apples", "a", "bad"));
        for key in [&good, &bad] {
            store.write(create(key, 1)).await.unwrap();
        }
        let sound = cluster.value(&path("a/good"));
        let flipped = sound.replacen("1", "3", 1);
        assert_ne!(sound, flipped);
        // A flipped bit, a sound value of another object, and no value at all.
        let cases =
            [(&good, "a/good", &*flipped), (&bad, "a/bad", &*sound), (&bad, "a/bad", "junk")];
        for (round, (key, name, value)) in cases.into_iter().enumerate() {
            let before = cluster.value(&path(name));
            assert!(cluster.control(&["put", &path(name), value]));
            let told = |outcome: Result<(), Error>| match outcome {
                Err(Error::Unavailable { reason }) => {
                    assert!(reason.starts_with(&format!("{key}: ")), "{reason}");
                    assert!(reason.contains(&format!("`etcdctl del {}`", path(name))), "{reason}");
                }
                other => panic!("{key} with {value:?}: {other:?}"),
            };
            // Taking a snapshot asks etcd, which another program wrote to.
            told(store.snapshot().await.map(drop));
            told(store.get(key).await.map(drop));
            told(store.collection(key.resource(), At::Latest).await.map(drop));
            // Statistics count the others and name the damaged one.
            let stats = Stats::of(&store.readable().await.unwrap(), &store.medium());
            let [problem] = &stats.damaged[..] else { panic!("{:?}", stats.damaged) };
            assert!(problem.starts_with(&format!("{key}: ")), "{problem}");
            let apples = stats.collections.iter().find(|share| share.resource == "apples");
            assert_eq!(apples.map(|share| share.objects), Some(1));
            let found = store.verify().await.unwrap();
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found.iter().any(|line| line.starts_with(&format!("{key}: "))), "{found:?}");
            assert!(found.iter().any(|line| line.contains("/objects/junk\"")), "{found:?}");
            let second = EtcdStore::open(&address, Retention::default(), 1, SystemClock::new());
            let refused = second.await.unwrap_err().to_string();
            assert!(refused.contains(&key.to_string()), "{refused}");
            // Other collections, and what is put right, are served.
            store.write(create(&crate::key("pears", "a", &format!("n{round}")), 1)).await.unwrap();
            assert!(cluster.control(&["put", &path(name), &before]));
            store.snapshot().await.unwrap();
            assert_eq!(crate::value(&store.get(key).await.unwrap().unwrap()), 1);
            assert_eq!(store.collection(key.resource(), At::Latest).await.unwrap().len(), 2);
        }
        assert!(cluster.control(&["put", &path("a/bad"), "junk"]));
        assert!(store.snapshot().await.is_err() && store.get(&bad).await.is_err());
        assert!(cluster.control(&["del", &path("a/bad")]));
        store.snapshot().await.unwrap();
        assert!(store.get(&bad).await.unwrap().is_none());
        assert_eq!(store.collection(bad.resource(), At::Latest).await.unwrap().len(), 1);
        store.close().await;
    });
}

#[test]
fn an_object_too_large_for_etcd_is_refused_as_such() {
    block_on(async {
        let cluster = Cluster::start(1);
        let address = cluster.address();
        let store =
            EtcdStore::open(&address, Retention::default(), 8 << 20, SystemClock::new()).await;
        let store = store.unwrap();
        let outcome = store.write(create(&key("apples", "a", "big"), "x".repeat(2 << 20))).await;
        assert!(matches!(outcome, Err(Error::TooLarge { .. })), "{outcome:?}");
        store.close().await;
    });
}

#[test]
fn an_unreachable_etcd_is_named_in_the_error() {
    block_on(async {
        let address = Address::parse("127.0.0.1:1,127.0.0.1:2").unwrap();
        let opened =
            EtcdStore::open(&address, Retention::default(), 1 << 20, SystemClock::new()).await;
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1,127.0.0.1:2"), "{error}");
    });
}

#[test]
fn addresses_are_parsed() {
    let full = Address::parse("u:p@a:1,b:2/x/y?ca=/c&cert=/d&key=/e").unwrap();
    assert_eq!(full.endpoints, ["a:1", "b:2"]);
    assert_eq!(full.login, Some(("u".into(), "p".into())));
    assert_eq!(full.prefix, "x/y");
    assert_eq!(full.tls.unwrap().ca.unwrap().to_str(), Some("/c"));
    let plain = Address::parse("a:1").unwrap();
    assert_eq!((plain.prefix.as_str(), plain.tls, plain.login), ("mainstay", None, None));
    for bad in ["", "/x", "a:1?frob=1", "a:1?cert=/x"] {
        assert!(Address::parse(bad).is_err(), "{bad} should be refused");
    }
}

/// Counters are swapped and watched through two stores while members are killed, paused and cut
/// off, and while etcd compacts and defragments. Whatever was acknowledged happened exactly once;
/// watchers see every value of every counter, in order.
#[test]
fn faults_lose_no_write_and_repeat_no_event() {
    let mut cluster = Cluster::start(3);
    let address = cluster.address();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let stores = [open(&address).await, open(&address).await];
        let stop = Arc::new(AtomicBool::new(false));
        // More than are sent at once, so that some share transactions.
        let counters: Vec<_> = (0..12).map(|n| key("apples", "a", &format!("n{n}"))).collect();
        let mut start = Revision::ZERO;
        for counter in &counters {
            start = stores[0].write(create(counter, 0)).await.unwrap().revision();
        }
        let work: Vec<_> = counters
            .iter()
            .enumerate()
            .map(|(n, counter)| Work::start(stores[n % 2].clone(), counter.clone(), stop.clone()))
            .collect();
        let watching: Vec<_> = stores
            .iter()
            .map(|store| tokio::spawn(follow(store.clone(), start, counters.clone())))
            .collect();

        for member in 0..3 {
            let pause = || tokio::time::sleep(Duration::from_millis(700));
            cluster.kill(member);
            pause().await;
            cluster.restart(member);
            pause().await;
            cluster.signal(member, "-STOP");
            pause().await;
            cluster.signal(member, "-CONT");
            let now = stores[0].revision(counters[0].resource());
            // Either may be refused while a leader is being elected; the next round tries again.
            let _ = stores[0].compact(now).await;
            let _ = cluster.control(&["--command-timeout=2s", "defrag"]);
            cluster.cut(member, true);
            pause().await;
            cluster.cut(member, false);
            pause().await;
        }

        stop.store(true, Ordering::Relaxed);
        let mut finals = Vec::new();
        for (work, counter) in work.into_iter().zip(&counters) {
            let (done, unknown) = work.finish().await;
            let value = settled(&stores[1], counter).await;
            assert!(
                (done..=done + unknown).contains(&value),
                "{counter}: {done} acknowledged, {unknown} unknown, but it stands at {value}"
            );
            assert!(done > 0, "nothing was ever written");
            finals.push(value);
        }
        for watching in watching {
            assert_eq!(watching.await.unwrap(), finals, "watchers end where the counters do");
        }
        for store in stores {
            store.close().await;
        }
    });
}

/// Increments one counter until it is stopped, then writes -1 to mark its end.
struct Work {
    done: Arc<AtomicI64>,
    unknown: Arc<AtomicI64>,
    task: tokio::task::JoinHandle<()>,
}

impl Work {
    fn start(store: Arc<dyn Objects>, counter: Key, stop: Arc<AtomicBool>) -> Self {
        let (done, unknown) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let (acknowledged, uncertain) = (done.clone(), unknown.clone());
        let task = tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let Ok(Some(record)) = store.get(&counter).await else { continue };
                let value = crate::value(&record).as_i64().unwrap();
                match store.write(update(&counter, record.revision(), value + 1)).await {
                    Ok(_) => acknowledged.fetch_add(1, Ordering::Relaxed),
                    Err(Error::Unavailable { .. }) => uncertain.fetch_add(1, Ordering::Relaxed),
                    // Our own earlier write of unknown fate was done after all.
                    Err(Error::Conflict { .. }) => 0,
                    Err(error) => panic!("{error}"),
                };
            }
        });
        Self { done, unknown, task }
    }

    async fn finish(self) -> (i64, i64) {
        self.task.await.unwrap();
        (self.done.load(Ordering::Relaxed), self.unknown.load(Ordering::Relaxed))
    }
}

/// The counter's value once etcd answers again; marks its end for the watchers.
async fn settled(store: &Arc<dyn Objects>, counter: &Key) -> i64 {
    loop {
        let Ok(Some(record)) = store.get(counter).await else { continue };
        let value = crate::value(&record).as_i64().unwrap();
        if store.write(update(counter, record.revision(), -1)).await.is_ok() {
            return value;
        }
        let Ok(Some(record)) = store.get(counter).await else { continue };
        if crate::value(&record) == -1 {
            return value;
        }
    }
}

/// Follows all counters, one change per watch, and returns their last values; every value must be
/// one up from the last, or a fresh start after the history expired.
async fn follow(store: Arc<dyn Objects>, start: Revision, counters: Vec<Key>) -> Vec<i64> {
    let mut values = vec![0; counters.len()];
    let mut ended = vec![false; counters.len()];
    let scope = Scope::all(counters[0].resource());
    let mut from = start;
    while ended.contains(&false) {
        let next = match store.watch(scope.clone(), from).await {
            Ok(mut watch) => watch.next().await,
            Err(error) => Err(error),
        };
        let event = match next {
            Ok(events) => events[0].clone(),
            Err(Error::Expired { .. }) => {
                let collection = store.collection(&scope.resource, At::Latest).await;
                let Ok(collection) = collection else { continue };
                for (n, counter) in counters.iter().enumerate() {
                    let value = crate::value(collection.get(counter).unwrap()).as_i64().unwrap();
                    assert!(value >= values[n] || value == -1, "a value went back");
                    (values[n], ended[n]) = (value.max(values[n]), value == -1);
                }
                from = collection.revision();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        from = event.revision();
        let n = counters.iter().position(|key| key == event.record.key()).unwrap();
        let value = crate::value(&event.record).as_i64().unwrap();
        if value == -1 {
            ended[n] = true;
        } else {
            assert_eq!(value, values[n] + 1, "{} skipped or repeated", counters[n]);
            values[n] = value;
        }
    }
    values
}
