//! A simulated south for tests: values in memory, operations that can be blocked, failures by number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mainstay_graph::{
    Builder, Context, Dependency, Derived, Descriptor, Engine, Key, Known, Model, OperationError,
    Options, Origin, Retrieved,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A value: a number, its dependencies, and its derived values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Thing {
    pub(crate) number: u32,
    pub(crate) needs: Vec<String>,
    pub(crate) parts: BTreeMap<String, Vec<String>>,
}

impl Thing {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }

    pub(crate) fn needing(number: u32, needs: &[&str]) -> Self {
        Self { needs: needs.iter().map(|key| (*key).to_owned()).collect(), ..Self::new(number) }
    }
}

/// A wrong answer of a retrieval about one value.
#[derive(Debug, Clone)]
pub(crate) enum Lie {
    /// It does not exist.
    Hidden(String),
    /// It has no parts.
    WithoutParts(String),
    /// It also has a part of this name.
    WithPart(String, &'static str),
    /// Its number is another.
    Changed(String),
    /// It exists.
    Invented(String),
}

#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) values: BTreeMap<String, Thing>,
    derived: BTreeSet<String>,
    pub(crate) calls: Vec<String>,
    /// The operations, counted from 1, that fail; and whether they take effect all the same.
    pub(crate) fail: BTreeMap<usize, bool>,
    pub(crate) count: usize,
    /// Operations by name and key that fail, unless they revert another.
    pub(crate) fail_on: BTreeSet<(&'static str, String)>,
    /// The operations, counted from 1, that report success without effect.
    pub(crate) claims: BTreeSet<usize>,
    /// The operation, counted from 1, that never ends; and whether it takes effect first.
    pub(crate) halt: Option<(usize, bool)>,
    pub(crate) halted: Arc<Notify>,
    /// The wrong answers of retrievals, counted from 1.
    pub(crate) lies: BTreeMap<usize, Lie>,
    pub(crate) retrieved: usize,
    /// Keys whose operations are blocked until released.
    pub(crate) held: BTreeMap<String, Arc<Notify>>,
    /// After this many operations none fails any more; 0 for no limit.
    pub(crate) patience: usize,
    /// Whether an operation aborts the process.
    pub(crate) aborts: bool,
    /// Whether each operation yields before it ends.
    pub(crate) yields: bool,
    /// Violations: operations that ran too early or too late.
    pub(crate) offences: Vec<String>,
    pub(crate) running: BTreeSet<String>,
    pub(crate) most_running: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct South(pub(crate) Arc<Mutex<Inside>>);

impl Inside {
    fn put(&mut self, key: &Key, new: Option<&Thing>, derived: bool) {
        match new {
            Some(new) => self.values.insert(key.to_string(), new.clone()),
            None => self.values.remove(key.as_str()),
        };
        if derived && new.is_some() {
            self.derived.insert(key.to_string());
        }
    }

    /// The base values, as a retrieval returns them.
    fn shown(&mut self) -> BTreeMap<String, Thing> {
        self.retrieved += 1;
        let base = self.values.iter().filter(|(key, _)| !self.derived.contains(*key));
        let mut shown: BTreeMap<String, Thing> =
            base.map(|(key, value)| (key.clone(), value.clone())).collect();
        let seen = |shown: &mut BTreeMap<String, Thing>, key: &str, lie: &dyn Fn(&mut Thing)| {
            if let Some(value) = shown.get_mut(key) {
                lie(value);
            }
        };
        match self.lies.get(&self.retrieved) {
            None => {}
            Some(Lie::Hidden(key)) => drop(shown.remove(key)),
            Some(Lie::WithoutParts(key)) => seen(&mut shown, key, &|value| value.parts.clear()),
            Some(Lie::WithPart(key, part)) => seen(&mut shown, key, &|value| {
                value.parts.entry((*part).to_owned()).or_default();
            }),
            Some(Lie::Changed(key)) => seen(&mut shown, key, &|value| value.number += 50),
            Some(Lie::Invented(key)) => drop(shown.entry(key.clone()).or_insert(Thing::new(77))),
        }
        shown
    }
}

impl South {
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Inside) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub(crate) fn values(&self) -> BTreeMap<String, Thing> {
        self.with(|inside| inside.values.clone())
    }

    /// Runs an operation. Checks that no value exists without its dependencies.
    async fn does(
        &self,
        op: &'static str,
        context: &Context,
        key: &Key,
        new: Option<&Thing>,
    ) -> Result<(), OperationError> {
        let derived = context.base().is_some();
        let (held, yields, number) = self.with(|inside| {
            inside.calls.push(format!("{op} {key}"));
            inside.count += 1;
            inside.running.insert(key.to_string());
            inside.most_running = inside.most_running.max(inside.running.len());
            (inside.held.get(key.as_str()).cloned(), inside.yields, inside.count)
        });
        if self.with(|inside| inside.aborts) {
            std::process::abort();
        }
        if let Some(held) = held {
            held.notified().await;
        }
        if yields {
            for _ in 0..(key.len() * 7 + number) % 5 {
                tokio::task::yield_now().await;
            }
        }
        let halt = self.with(|inside| inside.halt.filter(|(halt, _)| *halt == number));
        if let Some((_, works)) = halt {
            self.with(|inside| {
                if works {
                    inside.put(key, new, derived);
                }
                inside.halted.notify_one();
            });
            std::future::pending::<()>().await;
        }
        self.with(|inside| {
            inside.running.remove(key.as_str());
            // A retrieval does not show derived values: when their operation fails, it had no effect.
            let part = derived || inside.derived.contains(key.as_str());
            let patient = inside.patience == 0 || number < inside.patience;
            let doomed =
                patient && !context.is_revert() && inside.fail_on.contains(&(op, key.to_string()));
            let failing = match doomed {
                true => Some(false),
                false => inside.fail.get(&number).map(|works| *works && !part),
            };
            if failing != Some(false) && !inside.claims.contains(&number) {
                match new {
                    Some(new) => {
                        let missing =
                            new.needs.iter().find(|need| !inside.values.contains_key(*need));
                        if let Some(need) = missing.filter(|_| op == "create") {
                            inside.offences.push(format!("{key} was created before {need}"));
                        }
                    }
                    None => {
                        let name = key.to_string();
                        // Skipped for very many values, because it takes too long.
                        let looked_at = if inside.values.len() < 1_000 { usize::MAX } else { 0 };
                        let others = inside.values.iter().filter(|(other, _)| **other != name);
                        let mut others = others.take(looked_at);
                        let left = others.find(|(_, one)| one.needs.contains(&name));
                        if let Some((left, _)) = left {
                            let text = format!("{left} outlived {key}");
                            inside.offences.push(text);
                        }
                    }
                }
                inside.put(key, new, derived);
            }
            match failing {
                _ if doomed => Err(OperationError::new("refused")),
                Some(_) => Err(OperationError::new(format!("operation {number} failed"))),
                None => Ok(()),
            }
        })
    }
}

/// Anything under `thing/`.
pub(crate) struct ThingModel;

impl Model for ThingModel {
    type Value = Thing;

    fn prefix(&self) -> &str {
        "thing/"
    }

    fn label(&self, thing: &Thing) -> Option<String> {
        Some(thing.number.to_string())
    }
}

pub(crate) struct Things(pub(crate) South);

impl Descriptor for Things {
    type Model = ThingModel;
    type Metadata = u32;

    fn name(&self) -> &str {
        "thing"
    }

    fn model(&self) -> &ThingModel {
        &ThingModel
    }

    fn metadata_index(&self) -> Option<&str> {
        Some("thing-numbers")
    }

    async fn create(
        &self,
        context: &Context,
        key: &Key,
        value: &Thing,
    ) -> Result<u32, OperationError> {
        self.0.does("create", context, key, Some(value)).await?;
        Ok(value.number)
    }

    async fn update(
        &self,
        context: &Context,
        key: &Key,
        _: &Thing,
        new: &Thing,
        _: Option<&u32>,
    ) -> Result<Option<u32>, OperationError> {
        self.0.does("update", context, key, Some(new)).await?;
        Ok(None)
    }

    async fn delete(
        &self,
        context: &Context,
        key: &Key,
        _: &Thing,
        _: Option<&u32>,
    ) -> Result<(), OperationError> {
        self.0.does("delete", context, key, None).await
    }

    async fn retrieve(
        &self,
        _: &Context,
        _: &[Known<'_, Thing, u32>],
    ) -> Result<Vec<Retrieved<Thing, u32>>, OperationError> {
        let shown = self.0.with(Inside::shown).into_iter();
        let found = shown.map(|(key, value)| {
            let number = value.number;
            Retrieved::new(key.as_str(), value).metadata(number).origin(Origin::North)
        });
        Ok(found.collect())
    }

    /// A number that ends in 9 cannot be changed into.
    fn recreate(&self, _: &Key, _: &Thing, new: &Thing, _: Option<&u32>) -> bool {
        new.number % 10 == 9
    }

    fn derived(&self, key: &Key, value: &Thing) -> Vec<Derived> {
        let part = |(name, needs): (&String, &Vec<String>)| {
            let part = Thing { number: value.number, needs: needs.clone(), parts: BTreeMap::new() };
            Derived::new(format!("{key}/{name}"), part)
        };
        value.parts.iter().map(part).collect()
    }

    fn dependencies(&self, _: &Key, value: &Thing) -> Vec<Dependency> {
        value.needs.iter().map(|key| Dependency::on(key.as_str())).collect()
    }
}

/// A running engine over a south.
pub(crate) struct Running {
    pub(crate) engine: Engine,
    pub(crate) south: South,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(options: Options) -> Self {
        Self::over(South::default(), options)
    }

    pub(crate) fn over(south: South, options: Options) -> Self {
        let builder = Builder::new(options).register(Things(south.clone())).unwrap();
        let (engine, service) = builder.build().unwrap();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(service.run(stop.clone()));
        Self { engine, south, stop, worker }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.worker.await.unwrap();
    }

    /// Ends without finishing, as a crash would.
    pub(crate) async fn kill(self) {
        self.worker.abort();
        let _ = self.worker.await;
    }
}
