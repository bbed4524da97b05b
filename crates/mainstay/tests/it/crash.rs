//! kill -9 under load, again and again: what was acknowledged is there, the rest is whole or absent.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use tokio::sync::Semaphore;

use crate::kube_rs::client;
use crate::process::{TestServer, folder};

const ROUNDS: usize = 24;
const WRITERS: usize = 8;

/// The state of one object as its only writer knows it.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// Acknowledged to hold this count.
    Holds(u64),
    /// Acknowledged to be gone.
    Gone,
    /// A write was under way: it holds one of these counts, or is absent if `None` is among them.
    Either(Option<u64>, Option<u64>),
}

/// Everything a writer has been told, across rounds.
#[derive(Debug, Default, Clone)]
struct Ledger {
    objects: BTreeMap<String, Known>,
    highest: u64,
}

fn configmap(name: &str, count: u64) -> ConfigMap {
    // The same count in three places, far apart: half a write would show.
    let text = count.to_string();
    let filler = text.repeat(200);
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name},
        "data": {"a-count": text, "m-filler": filler, "z-count": text},
    }))
    .unwrap()
}

fn version(object: &ConfigMap) -> u64 {
    let text = object.metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).expect("a numeric version")
}

/// The count an object holds; panics if the object is not whole.
fn count(object: &ConfigMap) -> u64 {
    let data = object.data.as_ref().expect("data");
    assert_eq!(data["a-count"], data["z-count"], "half a write");
    assert_eq!(data["m-filler"], data["a-count"].repeat(200), "half a write");
    data["a-count"].parse().unwrap()
}

/// Creates, updates and deletes objects until the server is gone.
async fn write(
    client: Client,
    writer: usize,
    round: usize,
    mut ledger: Ledger,
    acknowledged: Arc<Semaphore>,
) -> Ledger {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let post = PostParams::default();
    for turn in 0.. {
        let name = format!("w{writer}-{}", turn % 12);
        let known = ledger.objects.get(&name).cloned().unwrap_or(Known::Gone);
        let next = (round * 1_000_000 + turn) as u64;
        let (result, now, doubt) = match known {
            Known::Gone => {
                let made = api.create(&post, &configmap(&name, next)).await;
                (made, Known::Holds(next), Known::Either(None, Some(next)))
            }
            Known::Holds(count) if turn % 5 == 4 => {
                let deleted = api.delete(&name, &DeleteParams::default()).await;
                let deleted = deleted.map(|answer| answer.left().unwrap_or_default());
                (deleted, Known::Gone, Known::Either(Some(count), None))
            }
            Known::Holds(count) => {
                let replaced = api.replace(&name, &post, &configmap(&name, next)).await;
                (replaced, Known::Holds(next), Known::Either(Some(count), Some(next)))
            }
            Known::Either(..) => unreachable!("doubts are settled before a round"),
        };
        match result {
            Ok(object) => {
                if object.metadata.resource_version.is_some() {
                    ledger.highest = ledger.highest.max(version(&object));
                }
                ledger.objects.insert(name, now);
                acknowledged.add_permits(1);
            }
            Err(kube::Error::Api(status)) => panic!("round {round}: {name}: {status:?}"),
            Err(_) => {
                ledger.objects.insert(name, doubt);
                return ledger;
            }
        }
    }
    ledger
}

/// Compares the answers that a writer got with the stored objects, and settles unknown outcomes.
fn settle(ledger: &mut Ledger, there: &BTreeMap<String, u64>) {
    for (name, known) in &mut ledger.objects {
        let found = there.get(name).copied();
        let fits = match known {
            Known::Holds(count) => found == Some(*count),
            Known::Gone => found.is_none(),
            Known::Either(one, other) => found == *one || found == *other,
        };
        assert!(fits, "{name}: told {known:?}, found {found:?}");
        *known = found.map_or(Known::Gone, Known::Holds);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost_by_kill_9() {
    let folder = folder();
    let mut ledgers = vec![Ledger::default(); WRITERS];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..ROUNDS {
        let server = TestServer::start_in(folder.path(), &[]);
        let client = client(&server).await;
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let list = api.list(&ListParams::default()).await.expect("a ready server");
        let there: BTreeMap<String, u64> = list
            .items
            .iter()
            .map(|object| (object.metadata.name.clone().unwrap(), count(object)))
            .collect();
        let revision: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        for ledger in &mut ledgers {
            settle(ledger, &there);
            assert!(
                revision >= ledger.highest,
                "the revision went back: {revision} < {}",
                ledger.highest
            );
        }

        let acknowledged = Arc::new(Semaphore::new(0));
        let mut writers = tokio::task::JoinSet::new();
        for (writer, ledger) in ledgers.drain(..).enumerate() {
            let writing = write(client.clone(), writer, round, ledger, Arc::clone(&acknowledged));
            writers.spawn(async move { (writer, writing.await) });
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let enough = 10 + u32::try_from(random >> 33).unwrap() % 400;
        drop(acknowledged.acquire_many(enough).await.unwrap());
        tokio::task::spawn_blocking(|| server.kill()).await.unwrap();
        let mut back: Vec<(usize, Ledger)> = Vec::new();
        while let Some(done) = writers.join_next().await {
            back.push(done.unwrap());
        }
        back.sort_by_key(|(writer, _)| *writer);
        ledgers = back.into_iter().map(|(_, ledger)| ledger).collect();
    }
}
