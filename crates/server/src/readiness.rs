//! Whether the parts that a server depends on work: its store, and those that were given to it.
//!
//! Each check runs by itself, about once a second, and its last outcome is what `/readyz` and the
//! metrics show: a flood of probes asks nobody, and a part that hangs holds up no probe. A check
//! that does not answer within [`DEADLINE`] has failed; it is not started a second time while it is
//! still under way, so that hanging ones do not pile up. Enter at [`Readiness::run`].

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, join_all, select};
use mainstay_store::clock::Clock;
use mainstay_store::identity;
use mainstay_store::objects::Objects;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How long a part may take to answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// How long an answer counts.
const REST: Duration = Duration::from_secs(1);

/// Something that must work for a server to be ready.
pub trait Check: Send + Sync + std::fmt::Debug {
    /// Whether it works; if it does not, why, in words that anybody may read.
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;

    /// The program that is asked, for the message when it does not answer; empty if it needs no name.
    fn asks(&self) -> &'static str {
        ""
    }
}

/// The store, and the cluster whose objects it held when it was first asked.
#[derive(Debug)]
struct Store {
    objects: Arc<dyn Objects>,
    cluster: OnceLock<Option<String>>,
}

impl Check for Store {
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            self.objects.ready().await.map_err(|error| error.to_string())?;
            let found = identity::of(&*self.objects).await.map_err(|error| error.to_string())?;
            same_cluster(self.cluster.get_or_init(|| found.clone()).as_deref(), found.as_deref())
        }
        .boxed()
    }
}

/// A store that was emptied or exchanged under a running server is not ready.
fn same_cluster(first: Option<&str>, found: Option<&str>) -> Result<(), String> {
    match (first, found) {
        (None, _) => Ok(()),
        (Some(first), Some(found)) if first == found => Ok(()),
        (Some(first), Some(found)) => Err(format!(
            "the store now holds cluster {found} instead of {first}; stop the server and give it its own store"
        )),
        (Some(first), None) => Err(format!(
            "the store was emptied: the identity of cluster {first} is gone; stop the server and restore a backup"
        )),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    check: &'static str,
}

/// The checks of a server, and their last answers.
#[derive(Debug)]
pub(crate) struct Readiness {
    clock: Arc<dyn Clock>,
    parts: Vec<Part>,
    ready: Family<Named, Gauge>,
    /// Whether the engines beside the server run; nothing if there are none to wait for.
    started: Option<AtomicBool>,
    /// Whether the server is on its way out.
    pub(crate) ending: AtomicBool,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    check: Arc<dyn Check>,
    last: Mutex<Result<(), String>>,
}

/// The name of a check and its last answer.
pub(crate) type Outcome = (&'static str, Result<(), String>);

impl Readiness {
    /// The store and `others`, which all worked a moment ago. With `engines` the server is not ready
    /// before [`Self::set_started`].
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        others: Vec<(&'static str, Arc<dyn Check>)>,
        engines: bool,
        clock: Arc<dyn Clock>,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let store = Store { objects, cluster: OnceLock::new() };
        let store: (&'static str, Arc<dyn Check>) = ("store", Arc::new(store));
        let parts = [store].into_iter().chain(others);
        let parts = parts.map(|(name, check)| Part { name, check, last: Mutex::new(Ok(())) });
        let ready: Family<Named, Gauge> = Family::default();
        let own = registry.sub_registry_with_prefix("mainstay");
        let help = "Whether a part that the server depends on works: 1 or 0";
        own.register("ready", help, ready.clone());
        let parts: Vec<_> = parts.collect();
        for part in &parts {
            ready.get_or_create(&Named { check: part.name }).set(1);
        }
        let started = engines.then(|| AtomicBool::new(false));
        Arc::new(Self { clock, parts, ready, started, ending: AtomicBool::new(false) })
    }

    /// The engines run. Called again it changes nothing.
    pub(crate) fn set_started(&self) {
        if let Some(started) = &self.started {
            started.store(true, Relaxed);
        }
    }

    /// Checks all parts, again and again, for as long as it is polled.
    pub(crate) async fn run(&self) {
        join_all(self.parts.iter().map(|part| self.watch(part))).await;
    }

    async fn watch(&self, part: &Part) {
        loop {
            let mut check = part.check.check();
            let outcome = match futures_util::poll!(&mut check) {
                std::task::Poll::Ready(outcome) => outcome,
                std::task::Poll::Pending => match select(check, self.clock.sleep(DEADLINE)).await {
                    Either::Left((outcome, _)) => outcome,
                    Either::Right(((), check)) => {
                        let asked = part.check.asks();
                        let asked = if asked.is_empty() { "" } else { &format!("{asked}: ") };
                        let late = format!("{asked}no answer within {} s", DEADLINE.as_secs());
                        self.note(part, Err(late));
                        check.await
                    }
                },
            };
            self.note(part, outcome);
            self.clock.sleep(REST).await;
        }
    }

    fn note(&self, part: &Part, outcome: Result<(), String>) {
        let mut last = part.last.lock();
        match (&*last, &outcome) {
            (Ok(()), Err(reason)) => {
                tracing::warn!(check = part.name, %reason, "readiness check failed");
            }
            (Err(_), Ok(())) => tracing::info!(check = part.name, "readiness check passes again"),
            _ => {}
        }
        self.ready.get_or_create(&Named { check: part.name }).set(i64::from(outcome.is_ok()));
        *last = outcome;
    }

    /// The last answer of every check, in order.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let last = |part: &Part| part.last.lock().clone();
        let parts = self.parts.iter().map(|part| (part.name, last(part)));
        let started = self.started.as_ref().map(|started| match started.load(Relaxed) {
            true => ("startup", Ok(())),
            false => ("startup", Err("the server is starting its engines".to_owned())),
        });
        let ending = match self.ending.load(Relaxed) {
            true => Err("the server is shutting down".to_owned()),
            false => Ok(()),
        };
        let first = [("ping", Ok(()))].into_iter().chain(parts).chain(started);
        first.chain([("shutdown", ending)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::clock::ManualClock;
    use mainstay_store::memory::MemoryStore;
    use tokio::sync::watch;

    /// Answers when told.
    #[derive(Debug)]
    struct Told(watch::Sender<Option<Result<(), String>>>);

    impl Check for Told {
        fn check(&self) -> BoxFuture<'_, Result<(), String>> {
            let mut told = self.0.subscribe();
            async move {
                let said = told.wait_for(Option::is_some).await;
                said.ok().and_then(|said| said.clone()).unwrap_or(Ok(()))
            }
            .boxed()
        }

        fn asks(&self) -> &'static str {
            "PostgreSQL"
        }
    }

    #[test]
    fn a_store_of_another_cluster_or_of_none_is_not_ready() {
        assert_eq!(same_cluster(None, None), Ok(()));
        assert_eq!(same_cluster(None, Some("a")), Ok(()));
        assert_eq!(same_cluster(Some("a"), Some("a")), Ok(()));
        assert!(same_cluster(Some("a"), Some("b")).unwrap_err().contains("cluster b instead of a"));
        assert!(same_cluster(Some("a"), None).unwrap_err().contains("was emptied"));
    }

    #[tokio::test]
    async fn a_part_that_hangs_or_fails_is_named_until_it_works() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let store = MemoryStore::new(1, Default::default(), 1 << 20, clock.clone());
        let told = Arc::new(Told(watch::Sender::new(None)));
        let mut registry = Registry::default();
        let others: Vec<(&'static str, Arc<dyn Check>)> = vec![("catalog", told.clone())];
        let readiness = Readiness::new(Arc::new(store), others, true, clock.clone(), &mut registry);
        let catalog = || {
            let found = readiness.outcomes().into_iter().find(|(name, _)| *name == "catalog");
            found.map(|(_, outcome)| outcome).unwrap()
        };
        let mut run = std::pin::pin!(readiness.run());
        let mut step = async |time: Duration| {
            for _ in 0..4 {
                assert!(futures_util::poll!(&mut run).is_pending());
            }
            clock.advance(time);
            for _ in 0..4 {
                assert!(futures_util::poll!(&mut run).is_pending());
            }
        };
        step(Duration::ZERO).await;
        assert_eq!(catalog(), Ok(()), "it worked a moment ago");
        step(DEADLINE).await;
        assert_eq!(catalog(), Err("PostgreSQL: no answer within 2 s".to_owned()));
        told.0.send_replace(Some(Err("no route".to_owned())));
        step(REST).await;
        assert_eq!(catalog(), Err("no route".to_owned()));
        told.0.send_replace(Some(Ok(())));
        step(REST).await;
        step(REST).await;
        assert_eq!(catalog(), Ok(()));
        let failing = || readiness.outcomes().into_iter().find(|(_, outcome)| outcome.is_err());
        assert_eq!(failing().unwrap().0, "startup", "not ready before the engines run");
        readiness.set_started();
        assert_eq!(failing(), None);
    }
}
