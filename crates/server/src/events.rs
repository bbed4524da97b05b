//! Events do not stay: after an hour, or when there are too many, the oldest go.
//!
//! The work is proportional to what expires: Events are kept in order of the time they were last
//! seen, and only those at the front are looked at.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::object::{Action, Key, Record};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Resources, WriteOptions};
use mainstay_store::status::{Error, Reason};
use mainstay_store::strategy::DeleteOptions;

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
            let (delete, options) = (DeleteOptions::default(), WriteOptions::default());
            match resources.delete(kind, &key, &delete, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => ages.forget(&path),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
