//! The life of namespaces: the usual ones are there from the start, and one that is deleted empties
//! itself before it goes.
//!
//! A namespace on its way out holds a finalizer of ours. Each pass deletes what is still in it; two
//! empty passes in a row, a moment apart, let it go: a request that was creating something when it was
//! marked is through by then. Objects that other finalizers hold are waited for, at growing intervals.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_store::object::{Action, Key};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Resources, Subresource, WriteOptions};
use mainstay_store::status::{Error, Reason};
use mainstay_store::strategy::{self, DeleteOptions};
use serde_json::{Map, Value, json};

/// The namespaces that are always there.
pub(crate) const ALWAYS: [&str; 4] =
    ["default", "kube-node-lease", "kube-system", "mainstay-system"];

const FINALIZER: &str = "kubernetes";
const MOMENT: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the namespaces that are always there. Called twice it changes nothing.
pub(crate) async fn ensure(resources: &Resources) -> Result<(), Error> {
    let Some(kind) = kind(resources) else {
        return Ok(());
    };
    for name in ALWAYS {
        let object = json!({"metadata": {"name": name}});
        let object = object.as_object().cloned().unwrap_or_default();
        match resources.create(&kind, None, object, &WriteOptions::default()).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn kind(resources: &Resources) -> Option<std::sync::Arc<Kind>> {
    resources.registry().find("", "v1", "namespaces").cloned()
}

#[derive(Clone, Copy, Debug, Default)]
struct Leaving {
    due: Duration,
    delay: Duration,
    empty: bool,
}

/// Empties namespaces that are deleted, until the store closes.
pub(crate) async fn run(resources: &Resources) -> Result<(), Error> {
    let Some(kind) = kind(resources) else {
        return Ok(());
    };
    loop {
        match follow(resources, &kind).await {
            Err(error) if error.reason == Reason::Expired => {}
            other => return other,
        }
    }
}

async fn follow(resources: &Resources, kind: &Kind) -> Result<(), Error> {
    let clock = resources.clock();
    let all = resources.list(kind, At::Latest).await?;
    let mut changes = resources.watch(kind, None, None, all.revision()).await?;
    let mut leaving: BTreeMap<String, Leaving> = all
        .range(None, None)
        .filter(|record| strategy::is_marked(&record.object()))
        .map(|record| (record.key().name().to_owned(), Leaving::default()))
        .collect();
    loop {
        let now = clock.elapsed();
        let next = leaving.values().map(|leaving| leaving.due).min();
        let wait = async {
            match next {
                Some(due) => clock.sleep(due.saturating_sub(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            events = changes.next() => {
                let events = match events {
                    Err(mainstay_store::objects::Error::Closed) => return Ok(()),
                    other => other.map_err(|error| Error::from_store(kind, "", error))?,
                };
                for event in events {
                    let name = event.record.key().name();
                    if event.action == Action::Deleted {
                        leaving.remove(name);
                    } else if strategy::is_marked(&event.record.object()) {
                        leaving.entry(name.to_owned()).or_default();
                    }
                }
            }
            () = wait => {
                let now = clock.elapsed();
                for (name, state) in leaving.iter_mut().filter(|(_, state)| state.due <= now) {
                    *state = pass(resources, kind, name, *state).await;
                }
            }
        }
    }
}

/// One pass over a namespace that is leaving, and when the next one is due.
async fn pass(resources: &Resources, kind: &Kind, name: &str, state: Leaving) -> Leaving {
    let now = resources.clock().elapsed();
    let again = |delay: Duration, empty| Leaving { due: now + delay, delay, empty };
    let later = (state.delay * 2).clamp(MOMENT, PATIENCE);
    let done = match empty(resources, name).await {
        Ok(0) if state.empty => release(resources, kind, name).await,
        Ok(0) => return again(MOMENT, true),
        Ok(_) => return again(later, false),
        Err(error) => Err(error),
    };
    match done {
        // Other finalizers may still hold it: the request that takes the last one removes it.
        Ok(()) => again(PATIENCE, true),
        Err(error) => {
            tracing::warn!(namespace = name, %error, "emptying a namespace failed; retrying");
            again(later, false)
        }
    }
}

/// Deletes what is in a namespace, and says how much is left.
async fn empty(resources: &Resources, namespace: &str) -> Result<usize, Error> {
    let mut left = 0;
    let kinds: Vec<_> =
        resources.registry().iter().filter(|kind| kind.namespaced).cloned().collect();
    for kind in kinds {
        let all = resources.list(&kind, At::Latest).await?;
        for record in all.range(Some(namespace), None) {
            left += 1;
            let (delete, options) = (DeleteOptions::default(), WriteOptions::default());
            match resources.delete(&kind, record.key(), &delete, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    Ok(left)
}

/// Takes our finalizer off a namespace.
async fn release(resources: &Resources, kind: &Kind, name: &str) -> Result<(), Error> {
    let key: Key = kind.key(None, name);
    let edit = |old: &Map<String, Value>| {
        let mut new = old.clone();
        if let Some(finalizers) = new
            .get_mut("spec")
            .and_then(|spec| spec.get_mut("finalizers"))
            .and_then(Value::as_array_mut)
        {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        Ok(new)
    };
    let options = WriteOptions::default();
    match resources.modify(kind, &key, Some(Subresource::Finalize), &options, edit).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
