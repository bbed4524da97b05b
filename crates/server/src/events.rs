//! Events do not stay: after an hour, or when there are too many, the oldest go.
//!
//! The work is proportional to what expires: Events are kept in order of the time they were last
//! seen, and only those at the front are looked at. The bound holds whatever clients write: the kind
//! refuses finalizers, and one that is there all the same (from an older version, or from a deletion
//! that waits for dependents) does not keep an Event that is due.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::object::{Action, Key, Record};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Deleted, Resources, WriteOptions};
use mainstay_store::status::{Error, Reason};
use mainstay_store::strategy::DeleteOptions;
use serde_json::{Map, Value};

use crate::options::Limits;

/// How often is looked for what expired.
const SWEEP: Duration = Duration::from_secs(30);

/// Events in the order in which they go.
#[derive(Debug, Default)]
struct Ages {
    order: BTreeSet<(Timestamp, String)>,
    seen: HashMap<String, Timestamp>,
}

impl Ages {
    fn note(&mut self, path: &str, seen: Timestamp) {
        self.forget(path);
        self.seen.insert(path.to_owned(), seen);
        self.order.insert((seen, path.to_owned()));
    }

    fn forget(&mut self, path: &str) {
        if let Some(seen) = self.seen.remove(path) {
            self.order.remove(&(seen, path.to_owned()));
        }
    }

    /// The paths of those that must go: last seen before `oldest`, or beyond the number of `most`.
    fn due(&self, oldest: Timestamp, most: usize) -> Vec<String> {
        let surplus = self.order.len().saturating_sub(most);
        self.order
            .iter()
            .enumerate()
            .take_while(|(at, (seen, _))| *at < surplus || *seen < oldest)
            .map(|(_, (_, path))| path.clone())
            .collect()
    }
}

/// When an Event that was there before the server was last seen.
fn last_seen(record: &Record) -> Option<Timestamp> {
    let object = record.object();
    let moment = |value: &serde_json::Value| value.as_str()?.parse::<Timestamp>().ok();
    [
        object.get("lastTimestamp").and_then(moment),
        object.get("eventTime").and_then(moment),
        object.get("series").and_then(|series| moment(series.get("lastObservedTime")?)),
        object.get("metadata").and_then(|metadata| moment(metadata.get("creationTimestamp")?)),
    ]
    .into_iter()
    .flatten()
    .max()
}

/// Removes old Events until the store closes.
pub(crate) async fn run(resources: &Resources, limits: &Limits) -> Result<(), Error> {
    let Some(kind) = resources.registry().find("", "v1", "events").cloned() else {
        return Ok(());
    };
    loop {
        match follow(resources, &kind, limits).await {
            Err(error) if error.reason == Reason::Expired => {}
            other => return other,
        }
    }
}

async fn follow(resources: &Resources, kind: &Kind, limits: &Limits) -> Result<(), Error> {
    let clock = resources.clock();
    let all = resources.list(kind, At::Latest).await?;
    let mut changes = resources.watch(kind, None, None, all.revision()).await?;
    let mut ages = Ages::default();
    for record in all.range(None, None) {
        let seen = last_seen(record).unwrap_or_else(|| clock.now());
        ages.note(record.key().path(), seen.min(clock.now()));
    }
    let mut sweep = clock.sleep(SWEEP);
    loop {
        let crowded = ages.order.len() > limits.events;
        if !crowded {
            tokio::select! {
                events = changes.next() => {
                    let events = match events {
                        Err(mainstay_store::objects::Error::Closed) => return Ok(()),
                        other => other.map_err(|error| Error::from_store(kind, "", error))?,
                    };
                    let now = clock.now();
                    for event in events {
                        let path = event.record.key().path();
                        match event.action {
                            Action::Deleted => ages.forget(path),
                            Action::Added | Action::Modified => ages.note(path, now),
                        }
                    }
                    continue;
                }
                () = &mut sweep => sweep = clock.sleep(SWEEP),
            }
        }
        let oldest = clock.now().checked_sub(limits.event_age).unwrap_or(Timestamp::MIN);
        for path in ages.due(oldest, limits.events) {
            let key = Key::from_stored(kind.resource().clone(), &path);
            match remove(resources, kind, &key).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => ages.forget(&path),
            }
        }
    }
}

/// Removes an Event, whatever finalizers it has.
async fn remove(resources: &Resources, kind: &Kind, key: &Key) -> Result<(), Error> {
    let options = WriteOptions::default();
    let deleted = resources.delete(kind, key, &DeleteOptions::default(), &options).await?;
    if let Deleted::Marked(_) = deleted {
        let without_finalizers = |event: &Map<String, Value>| {
            let mut event = event.clone();
            if let Some(Value::Object(metadata)) = event.get_mut("metadata") {
                metadata.remove("finalizers");
            }
            Ok(event)
        };
        resources.modify(kind, key, None, &options, without_finalizers).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_store::cache::Retention;
    use mainstay_store::clock::SystemClock;
    use mainstay_store::memory::MemoryStore;
    use mainstay_store::object::Body;
    use mainstay_store::objects::{Change, Write};
    use mainstay_store::registry::{Registry, builtin};
    use mainstay_store::resources::{CountingIdentities, Propagation};
    use serde_json::json;

    use super::*;

    fn event(name: &str, finalizers: &[&str]) -> Map<String, Value> {
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": "default", "finalizers": finalizers},
            "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": "default"},
        });
        event.as_object().cloned().unwrap()
    }

    #[tokio::test]
    async fn finalizers_do_not_keep_events_beyond_the_bound() {
        let clock = SystemClock::new();
        let store = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
        let registry = Arc::new(Registry::new(builtin()).unwrap());
        let identities = Arc::new(CountingIdentities::default());
        let resources = Resources::new(Arc::new(store), registry, clock, identities);
        crate::namespaces::ensure(&resources).await.unwrap();
        let kind = resources.registry().find("", "v1", "events").cloned().unwrap();
        let options = WriteOptions::default();

        // Clients cannot set one, neither at once nor later.
        let made = event("new", &["a.b/c"]);
        let refused = resources.create(&kind, Some("default"), made, &options).await.unwrap_err();
        assert!(refused.message.contains("metadata.finalizers: Forbidden"), "{}", refused.message);
        resources.create(&kind, Some("default"), event("e0", &[]), &options).await.unwrap();
        let key = kind.key(Some("default"), "e0");
        let held = event("e0", &["a.b/c"]);
        let refused = resources.replace(&kind, &key, held, None, &options).await.unwrap_err();
        assert!(refused.message.contains("metadata.finalizers: Forbidden"), "{}", refused.message);

        // A deletion that waits for dependents, and one that an older version let in.
        let foreground = DeleteOptions {
            propagation: Some(Propagation::Foreground),
            ..DeleteOptions::default()
        };
        resources.delete(&kind, &key, &foreground, &options).await.unwrap();
        for name in ["e1", "e2", "e3"] {
            let body = Body::new(&event(name, &["a.b/c"]));
            let key = kind.key(Some("default"), name);
            let write = Write { key, change: Change::Create(body), fence: None };
            resources.objects().write(write).await.unwrap();
        }
        let limits = Limits { events: 1, ..Limits::default() };
        let from = resources.objects().revision(kind.resource());
        let mut changes = resources.watch(&kind, None, None, from).await.unwrap();
        let sweeping = follow(&resources, &kind, &limits);
        let watching = async {
            let mut gone = 0;
            while gone < 3 {
                let events = changes.next().await.unwrap();
                gone += events.iter().filter(|event| event.action == Action::Deleted).count();
            }
        };
        tokio::select! {
            ended = sweeping => panic!("the sweep ended: {ended:?}"),
            () = watching => {}
        }
        assert_eq!(resources.list(&kind, At::Latest).await.unwrap().range(None, None).count(), 1);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_oldest_go_first_and_only_as_many_as_must() {
        let mut ages = Ages::default();
        for (path, second) in [("a", 10), ("b", 20), ("c", 30), ("d", 40)] {
            ages.note(path, at(second));
        }
        assert_eq!(ages.due(at(0), 9), Vec::<String>::new());
        assert_eq!(ages.due(at(25), 9), ["a", "b"]);
        assert_eq!(ages.due(at(0), 3), ["a"]);
        assert_eq!(ages.due(at(25), 1), ["a", "b", "c"]);
        ages.note("a", at(50));
        ages.forget("b");
        assert_eq!(ages.due(at(35), 9), ["c"]);
    }
}
