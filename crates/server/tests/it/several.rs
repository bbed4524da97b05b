//! Several servers on one etcd: one truth, one leader, whatever happens to the members.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use mainstay_server::{Options, Server};
use mainstay_store::Location;
use mainstay_store::clock::SystemClock;
use mainstay_store::etcd::Address;
use serde_json::{Value, json};

use crate::client::{Client, Host};
use crate::cluster::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server(address: &Address) -> Host {
    let store = Location::Etcd(address.clone());
    Host::start_with(SystemClock::new(), |options| options.store = store).await
}

fn map(name: &str, value: i64) -> Value {
    json!({"metadata": {"name": name}, "data": {"n": value.to_string()}})
}

#[tokio::test]
async fn trust_is_shared_and_writes_are_seen_in_order_everywhere() {
    let cluster = Cluster::start(1);
    let address = cluster.address();
    let (one, two) = (server(&address).await, server(&address).await);
    let authority = |host: &Host| std::fs::read_to_string(host.dir.path().join("ca.crt")).unwrap();
    assert_eq!(authority(&one), authority(&two), "one authority");
    let token = one.token(json!({"role": "editor"})).await;
    let mut other = two.client_with(Some(token)).await;
    let version = other.get(MAPS).await.ok()["metadata"]["resourceVersion"].clone();
    let path = format!("{MAPS}?watch=true&resourceVersion={}", version.as_str().unwrap());
    let mut events = two.client().await.watch(&path).await;

    let mut client = one.client().await;
    client.post(MAPS, &map("m", 0)).await.ok();
    for n in 1..20 {
        client.merge(&format!("{MAPS}/m"), &json!({"data": {"n": n.to_string()}})).await.ok();
        let seen = other.get(&format!("{MAPS}/m")).await.ok();
        assert_eq!(seen["data"]["n"], n.to_string(), "an acknowledged write is read everywhere");
    }
    for n in 0..20 {
        let event = events.next().await.unwrap();
        assert_eq!(event["object"]["data"]["n"], n.to_string());
    }
    two.stop().await;
    one.stop().await;
}

/// Many write at once, so that changes share transactions of etcd; each event is read on a
/// connection of its own, by turns at either server.
#[tokio::test]
async fn a_watch_goes_on_at_any_server_after_any_event() {
    const WRITERS: usize = 16;
    const EACH: usize = 6;
    let cluster = Cluster::start(1);
    let address = cluster.address();
    let hosts = &[server(&address).await, server(&address).await];
    let listed = hosts[0].client().await.get(MAPS).await.ok();
    let mut from = listed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let writers = (0..WRITERS).map(|n| async move {
        let mut client = hosts[n % 2].client().await;
        for m in 0..EACH {
            client.post(MAPS, &map(&format!("m{n}-{m}"), 0)).await.ok();
        }
    });
    join_all(writers).await;
    let mut seen = BTreeSet::new();
    for n in 0..WRITERS * EACH {
        let path = format!("{MAPS}?watch=true&resourceVersion={from}");
        let mut events = hosts[n % 2].client().await.watch(&path).await;
        let event = events.next().await.unwrap();
        assert_eq!(event["type"], "ADDED");
        let metadata = &event["object"]["metadata"];
        from = metadata["resourceVersion"].as_str().unwrap().to_owned();
        assert!(seen.insert(metadata["name"].clone().to_string()), "{metadata} came twice");
    }
    assert_eq!(seen.len(), WRITERS * EACH);
}

#[tokio::test]
async fn a_damaged_object_in_etcd_is_named_by_reads_lists_and_the_check() {
    let cluster = Cluster::start(1);
    let address = cluster.address();
    let host = server(&address).await;
    let mut client = host.client().await;
    client.post(MAPS, &map("good", 1)).await.ok();
    client.post(MAPS, &map("bad", 1)).await.ok();
    let path = format!("{}/objects/configmaps/default/bad", address.prefix);
    let value = cluster.value(&path);
    assert!(cluster.control(&["put", &path, &value.replacen("\"n\":\"1\"", "\"n\":\"9\"", 1)]));
    const CHECK: &str = "/mainstay/v1/store/check";
    let report = client.get(CHECK).await.ok();
    let found = report["medium"][0].as_str().unwrap();
    assert!(found.contains("configmaps \"default/bad\": checksum is"), "{found}");
    for path in [MAPS.to_owned(), format!("{MAPS}/bad")] {
        let answer = client.get(&path).await;
        let message = answer.refused(503, "ServiceUnavailable");
        assert!(message.contains("default/bad"), "{message}");
    }
    assert_eq!(client.get(&format!("{MAPS}/good")).await.ok()["data"]["n"], "1");
    let ready = async |client: &mut crate::client::Client, code: u16| loop {
        let answer = client.get("/readyz").await;
        if answer.code == code {
            return String::from_utf8_lossy(&answer.bytes).into_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let why = ready(&mut client, 503).await;
    assert!(why.contains("[-]store failed") && why.contains("default/bad"), "{why}");
    assert!(cluster.control(&["put", &path, &value]));
    assert_eq!(client.get(CHECK).await.ok()["medium"], json!([]));
    assert_eq!(client.get(&format!("{MAPS}/bad")).await.ok()["data"]["n"], "1");
    ready(&mut client, 200).await;
}

#[tokio::test]
async fn all_servers_follow_a_revocation_and_an_exchanged_authority() {
    let cluster = Cluster::start(1);
    let address = cluster.address();
    let (one, two) = (server(&address).await, server(&address).await);
    let (certificate, key) = one.join("n1").await;
    let pair = Some((certificate.as_str(), key.as_str()));
    assert!(two.lets_in(two.tls(pair, &[b"http/1.1"])).await);
    let mut admin = one.client().await;
    admin.post("/mainstay/v1/nodes/n1/revoke", &json!({})).await.ok();
    while two.lets_in(two.tls(pair, &[b"http/1.1"])).await {}

    let authority = |host: &Host| std::fs::read_to_string(host.dir.path().join("ca.crt")).unwrap();
    let old = authority(&two);
    admin.post("/mainstay/v1/authority/rotate", &json!({})).await.ok();
    while authority(&two) == old {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(authority(&one), authority(&two));
    two.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn one_server_leads_and_another_takes_over_its_work() {
    let cluster = Cluster::start(1);
    let address = cluster.address();
    let one = server(&address).await;
    one.running.election().unwrap().leading().await.unwrap();
    let two = server(&address).await;
    assert!(two.running.election().unwrap().fence().is_none(), "there is one leader");

    let mut client = two.client().await;
    let space = json!({"metadata": {"name": "team"}});
    client.post("/api/v1/namespaces", &space).await.ok();
    one.stop().await;
    two.running.election().unwrap().leading().await.unwrap();
    let watching = "/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Dteam";
    let mut events = two.client().await.watch(watching).await;
    client.delete("/api/v1/namespaces/team").await.ok();
    while events.next().await.unwrap()["type"] != "DELETED" {}
    two.stop().await;
}

/// One operation of a client, and its time: by a counter that only goes up, taken before and after.
#[derive(Clone, Debug)]
struct Deed {
    began: u64,
    ended: u64,
    object: usize,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Written or read at this revision, with this value.
    At { revision: u64, value: String, wrote: bool },
    /// Removed at some revision.
    Removed,
    /// Read, and not there.
    Absent,
    /// Whether anything came of it is unknown.
    Unknown,
}

/// Clients of two servers create, update, delete and read a few objects while members of etcd are
/// killed, paused and cut off. Revisions give every object a total order of its states; the
/// history is linearizable if no answer contradicts that order, or goes back behind an answer that
/// ended before it was asked for.
#[test]
fn histories_through_two_servers_are_linearizable() {
    const OBJECTS: usize = 3;
    let mut cluster = Cluster::start(3);
    let address = cluster.address();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let deeds = runtime.block_on(async {
        let hosts = [server(&address).await, server(&address).await];
        let (time, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut clients = Vec::new();
        for number in 0..6 {
            let client = hosts[number % 2].client().await;
            let (time, stop) = (time.clone(), stop.clone());
            clients.push(tokio::spawn(act(client, number, OBJECTS, time, stop)));
        }
        for member in 0..3 {
            let pause = || tokio::time::sleep(Duration::from_millis(900));
            pause().await;
            cluster.kill(member);
            pause().await;
            cluster.restart(member);
            pause().await;
            cluster.signal(member, "-STOP");
            pause().await;
            cluster.signal(member, "-CONT");
            cluster.cut(member, true);
            pause().await;
            cluster.cut(member, false);
        }
        tokio::time::sleep(Duration::from_millis(900)).await;
        stop.store(true, Ordering::Relaxed);
        let mut deeds = Vec::new();
        for client in clients {
            deeds.extend(client.await.unwrap());
        }
        for host in hosts {
            host.stop().await;
        }
        deeds
    });
    let known = deeds.iter().filter(|deed| !matches!(deed.what, What::Unknown)).count();
    assert!(known > 100, "too little happened to tell: {known} answers");
    for object in 0..OBJECTS {
        let mut mine: Vec<_> = deeds.iter().filter(|deed| deed.object == object).collect();
        mine.sort_by_key(|deed| deed.began);
        check(&mine);
    }
}

async fn act(
    mut client: Client,
    number: usize,
    objects: usize,
    time: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Vec<Deed> {
    let tick = || time.fetch_add(1, Ordering::SeqCst);
    let mut deeds = Vec::new();
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let object = turn % objects;
        let path = format!("{MAPS}/o{object}");
        let value = format!("{number}-{turn}");
        let body = json!({"metadata": {"name": format!("o{object}")}, "data": {"n": value}});
        let began = tick();
        let wrote = turn.is_multiple_of(2);
        let answer = match turn % 8 {
            0 | 2 => client.put(&path, &body).await,
            4 => client.post(MAPS, &body).await,
            6 => client.delete(&path).await,
            _ => client.get(&path).await,
        };
        let ended = tick();
        let text = |path: &str| answer.body.pointer(path).and_then(Value::as_str);
        let what = match (answer.code, turn % 8) {
            (200, 6) => What::Removed,
            (200 | 201, _) => What::At {
                revision: text("/metadata/resourceVersion").unwrap().parse().unwrap(),
                value: text("/data/n").unwrap().to_owned(),
                wrote,
            },
            (404, _) => What::Absent,
            // Refused without effect: it says nothing about the object's state.
            (409, _) => continue,
            _ => What::Unknown,
        };
        deeds.push(Deed { began, ended, object, what });
    }
    deeds
}

fn check(deeds: &[&Deed]) {
    let mut values = std::collections::BTreeMap::new();
    let mut writers = std::collections::BTreeMap::new();
    for deed in deeds {
        let What::At { revision, value, wrote } = &deed.what else { continue };
        let known = values.entry(*revision).or_insert_with(|| value.clone());
        assert_eq!(known, value, "revision {revision} has two values");
        if *wrote && let Some(other) = writers.insert(*revision, deed) {
            panic!("revision {revision} was written twice: {other:?} and {deed:?}");
        }
    }
    for (index, later) in deeds.iter().enumerate() {
        for earlier in deeds[..index].iter().filter(|earlier| earlier.ended < later.began) {
            match (&earlier.what, &later.what) {
                (What::At { revision: before, .. }, What::At { revision: after, wrote, .. }) => {
                    let fine = if *wrote { after > before } else { after >= before };
                    assert!(fine, "went back: {earlier:?} then {later:?}");
                }
                (What::At { .. }, What::Absent) => {
                    let removed = |deed: &&&Deed| {
                        matches!(deed.what, What::Removed | What::Unknown)
                            && deed.began < later.ended
                            && deed.ended > earlier.began
                    };
                    assert!(
                        deeds.iter().any(|deed| removed(&deed)),
                        "vanished: {earlier:?} then {later:?}"
                    );
                }
                _ => {}
            }
        }
    }
}

/// Starts a server of this data folder on this etcd, and stops it again.
async fn try_server(dir: &Path, address: &Address, new_cluster: bool) -> Result<(), String> {
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut options =
        Options::new(listen, dir.to_owned(), crate::client::registry(), SystemClock::new());
    options.store = Location::Etcd(address.clone());
    options.new_cluster = new_cluster;
    let running = Server::start(options).await.map_err(|error| error.to_string())?;
    running.shut_down().await;
    Ok(())
}

/// The data folder of each server remembers the cluster that its etcd holds.
#[tokio::test]
async fn an_etcd_that_was_wiped_or_is_another_clusters_is_refused() {
    let cluster = Cluster::start(1);
    let (address, other) = (cluster.address(), cluster.address());
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, two, stranger] = folders.each_ref().map(|folder| folder.path());
    let marker = |dir: &Path| std::fs::read_to_string(dir.join("cluster.json")).unwrap();

    try_server(one, &address, false).await.unwrap();
    try_server(two, &address, false).await.unwrap();
    assert_eq!(marker(one), marker(two), "a new folder joins the cluster that is there");
    try_server(stranger, &other, false).await.unwrap();
    assert_ne!(marker(one), marker(stranger));

    let foreign = try_server(one, &other, false).await.unwrap_err();
    assert!(foreign.contains("belongs to") && foreign.contains("--new-cluster"), "{foreign}");
    assert!(cluster.control(&["del", "--prefix", &format!("{}/", address.prefix)]));
    for folder in [one, two] {
        let lost = try_server(folder, &address, false).await.unwrap_err();
        assert!(lost.contains("empty") && lost.contains("--new-cluster"), "{lost}");
    }
    // A refusal changes nothing; the operator's word does.
    assert_eq!(marker(one), marker(two));
    try_server(one, &address, true).await.unwrap();
    assert_ne!(marker(one), marker(two));
    try_server(one, &address, false).await.unwrap();
}
