//! A simulated south: values in memory, failures on demand, and a list of all operations.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::sync::Notify;

use super::file::{DelaySpec, DescriptorSpec, FailSpec, InvalidSpec, Items, Op, Scenario};
use super::kept::KeptSouth;
use crate::descriptor::{
    Abilities, AnyOf, Context, Dependency, Derived, Descriptor, InvalidValue, Known, Model,
    OperationError, Retrieved,
};
use crate::key::Key;
use crate::selector::KeySelector;
use crate::state::Origin;
use crate::time::{Clock, later};

/// The state that the descriptors of a scenario share.
#[derive(Debug, Clone)]
pub(super) struct South {
    inside: Arc<Mutex<Inside>>,
    clock: Arc<dyn Clock>,
    /// Wakes [`South::idle`] when an operation begins that takes time.
    asleep: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inside {
    values: BTreeMap<String, Held>,
    specs: Vec<DescriptorSpec>,
    invalid: Vec<InvalidSpec>,
    fail: Vec<FailSpec>,
    delay: Vec<DelaySpec>,
    /// When the operations under way end.
    ends: Vec<Timestamp>,
    done: HashMap<(String, Op), u32>,
    numbers: HashMap<String, i64>,
    calls: Vec<String>,
    correlate: BTreeMap<String, BTreeMap<String, Json>>,
    kept: Option<KeptSouth>,
}

/// A value in the south.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Held {
    value: Json,
    derived: bool,
    metadata: Option<i64>,
    origin: Origin,
}

impl South {
    pub(super) fn new(scenario: &Scenario, clock: Arc<dyn Clock>) -> Self {
        let mut inside = Inside {
            specs: scenario.descriptors.clone(),
            invalid: scenario.invalid.clone(),
            fail: scenario.fail.clone(),
            delay: scenario.delay.clone(),
            ..Inside::default()
        };
        for one in &scenario.south {
            let origin = match one.origin.as_deref() {
                Some("nb") => Origin::North,
                Some("sb") => Origin::South,
                _ => Origin::Unknown,
            };
            inside.count_from(&one.key, one.metadata);
            inside.put_whole(&one.key, one.value.clone(), one.metadata, origin);
        }
        Self { inside: Arc::new(Mutex::new(inside)), clock, asleep: Arc::default() }
    }

    /// Keeps the values in a file from now on; one that exists has the values of an earlier run.
    pub(super) fn keep(&self, path: &Path) -> io::Result<()> {
        let mut inside = self.lock();
        let (kept, values) = KeptSouth::open(path, std::mem::take(&mut inside.values))?;
        for (key, held) in &values {
            inside.count_from(key, held.metadata);
        }
        inside.values = values;
        inside.kept = Some(kept);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock()
    }

    /// Lets an operation take its time, then decides whether it fails.
    async fn attempt(
        &self,
        op: Op,
        key: &str,
        base: Option<&Key>,
    ) -> Result<MutexGuard<'_, Inside>, OperationError> {
        let (count, time) = self.lock().begin(op, key);
        if let Some(time) = time {
            let end = later(self.clock.now(), time);
            let sleep = self.clock.sleep_until(end);
            self.lock().ends.push(end);
            self.asleep.notify_one();
            sleep.await;
            let mut inside = self.lock();
            let position = inside.ends.iter().position(|other| *other == end);
            position.map(|position| inside.ends.swap_remove(position));
        }
        let mut inside = self.lock();
        inside.end(op, key, base, count)?;
        Ok(inside)
    }

    /// Waits until the engine only waits for operations that take time; returns when the first of
    /// them ends. The engine must be polled by the same task.
    pub(super) async fn idle(&self) -> Timestamp {
        loop {
            // The engine may have more operations to start.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            let first = self.lock().ends.iter().min().copied();
            match first {
                Some(first) => return first,
                None => self.asleep.notified().await,
            }
        }
    }

    /// The operations since the last call.
    pub(super) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    /// The known values that descriptors got since the last call.
    pub(super) fn take_correlate(&self) -> BTreeMap<String, BTreeMap<String, Json>> {
        std::mem::take(&mut self.lock().correlate)
    }

    /// The values in the south.
    pub(super) fn values(&self) -> BTreeMap<String, Json> {
        self.lock().values.iter().map(|(key, held)| (key.clone(), held.value.clone())).collect()
    }

    /// Changes values without a notification.
    pub(super) fn drift(&self, set: &BTreeMap<String, Json>, delete: &[String]) {
        let mut inside = self.lock();
        for key in delete {
            inside.remove_whole(key);
        }
        for (key, value) in set {
            let old = inside.values.get(key).cloned();
            inside.remove_whole(key);
            let (metadata, origin) =
                old.map_or((None, Origin::Unknown), |old| (old.metadata, old.origin));
            inside.put_whole(key, value.clone(), metadata, origin);
        }
    }
}

impl Inside {
    /// New numbers of a descriptor follow those of its values.
    fn count_from(&mut self, key: &str, metadata: Option<i64>) {
        let name = self.spec_of(key).map(|spec| spec.name.clone());
        if let (Some(number), Some(name)) = (metadata, name) {
            let next = self.numbers.entry(name).or_insert(0);
            *next = (*next).max(number + 1);
        }
    }

    /// Sets or deletes one value, in the file too.
    fn set(&mut self, key: &str, held: Option<Held>) -> io::Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.write(key, held.as_ref())?;
        }
        match held {
            Some(held) => self.values.insert(key.to_owned(), held),
            None => self.values.remove(key),
        };
        Ok(())
    }

    /// The descriptor of a key: a pattern beats a prefix.
    fn spec_of(&self, key: &str) -> Option<&DescriptorSpec> {
        let fits = |pattern: &String| KeySelector::pattern(pattern).accepts(key);
        let begins = |prefix: &String| key.starts_with(prefix.as_str());
        let by_pattern = self.specs.iter().find(|spec| spec.pattern.as_ref().is_some_and(fits));
        let by_prefix = || self.specs.iter().find(|spec| spec.prefix.as_ref().is_some_and(begins));
        by_pattern.or_else(by_prefix)
    }

    /// Sets a base value and its derived values.
    fn put_whole(&mut self, key: &str, value: Json, metadata: Option<i64>, origin: Origin) {
        let derives = self.spec_of(key).is_some_and(|spec| spec.items == Items::Derive);
        if derives {
            for (derived, value) in derived(key, &value) {
                self.values.insert(derived, Held { value, derived: true, metadata: None, origin });
            }
        }
        self.values.insert(key.to_owned(), Held { value, derived: false, metadata, origin });
    }

    fn remove_whole(&mut self, key: &str) {
        if let Some(held) = self.values.remove(key) {
            for (derived, _) in derived(key, &held.value) {
                self.values.remove(&derived);
            }
        }
    }

    /// Counts an operation; returns its number and how long it takes.
    fn begin(&mut self, op: Op, key: &str) -> (u32, Option<Duration>) {
        self.calls.push(format!("{} {key}", op.word()));
        let count = self.done.entry((key.to_owned(), op)).or_insert(0);
        *count += 1;
        let count = *count;
        let slow = self.delay.iter().find(|one| {
            let name = if op == Op::Retrieve { &one.descriptor } else { &one.key };
            one.op.map_or(op != Op::Retrieve, |other| other == op)
                && name.as_ref().is_none_or(|name| name == key)
                && one.nth.is_none_or(|nth| nth == count)
        });
        (count, slow.map(|slow| slow.time).filter(|time| !time.is_zero()))
    }

    /// Decides whether an operation fails.
    fn end(
        &mut self,
        op: Op,
        key: &str,
        base: Option<&Key>,
        count: u32,
    ) -> Result<(), OperationError> {
        let name = if op == Op::Retrieve {
            |one: &FailSpec| one.descriptor.clone()
        } else {
            |one: &FailSpec| one.key.clone()
        };
        let failing = self.fail.iter().find(|one| {
            one.op == op
                && name(one).as_deref() == Some(key)
                && one.nth.is_none_or(|nth| nth == count)
        });
        let Some(failing) = failing.cloned() else {
            return Ok(());
        };
        if let Some(after) = failing.south {
            // A value with items is a base value, left behind by a failing derived value.
            let target = match (&after, base) {
                (Some(value), Some(base)) if value.get("items").is_some() => base.to_string(),
                _ => key.to_owned(),
            };
            match after {
                Some(value) => {
                    let old = self.values.get(&target).cloned();
                    let held = Held {
                        value,
                        derived: base.is_some() && target == key,
                        metadata: old.as_ref().and_then(|old| old.metadata),
                        origin: old.map_or(Origin::North, |old| old.origin),
                    };
                    self.set(&target, Some(held))?;
                }
                None => self.set(&target, None)?,
            }
        }
        let text = failing.error.unwrap_or_else(|| format!("{} failed", op.word()));
        Err(if failing.retriable {
            OperationError::new(text)
        } else {
            OperationError::permanent(text)
        })
    }
}

/// The items of a value.
pub(super) fn items(value: &Json) -> Vec<String> {
    let items = value.get("items").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
}

/// The derived values of a value: one for each item, with the other fields.
fn derived(key: &str, value: &Json) -> Vec<(String, Json)> {
    let rest: serde_json::Map<String, Json> = value
        .as_object()
        .map(|fields| {
            fields
                .iter()
                .filter(|(name, _)| *name != "items")
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect()
        })
        .unwrap_or_default();
    items(value)
        .into_iter()
        .map(|item| {
            let mut fields = rest.clone();
            fields.insert("item".to_owned(), Json::String(item.clone()));
            (format!("{key}/{item}"), Json::Object(fields))
        })
        .collect()
}

/// The model of values under a prefix; the values do not contain their names.
pub(super) struct PlainModel(String);

impl Model for PlainModel {
    type Value = Json;

    fn prefix(&self) -> &str {
        &self.0
    }

    fn label(&self, _value: &Json) -> Option<String> {
        None
    }
}

/// A descriptor of the simulated south.
pub(super) struct MadeUp {
    spec: DescriptorSpec,
    model: PlainModel,
    south: South,
}

impl MadeUp {
    pub(super) fn new(spec: DescriptorSpec, south: South) -> Self {
        let model = PlainModel(spec.prefix.clone().unwrap_or_default());
        Self { spec, model, south }
    }
}

impl Descriptor for MadeUp {
    type Model = PlainModel;
    type Metadata = i64;

    fn name(&self) -> &str {
        &self.spec.name
    }

    fn model(&self) -> &PlainModel {
        &self.model
    }

    fn keys(&self) -> KeySelector {
        self.spec.keys()
    }

    fn abilities(&self) -> Abilities {
        let can = |op| !self.spec.without.contains(&op);
        Abilities {
            create: can(Op::Create),
            update: can(Op::Update),
            delete: can(Op::Delete),
            retrieve: can(Op::Retrieve),
        }
    }

    fn metadata_index(&self) -> Option<&str> {
        self.spec.metadata.then_some(self.spec.name.as_str())
    }

    fn retrieve_after(&self) -> Vec<String> {
        self.spec.after.clone()
    }

    fn equivalent(&self, key: &Key, old: &Json, new: &Json) -> bool {
        old == new || self.spec.equivalent.iter().any(|one| one == key.as_str())
    }

    fn validate(&self, key: &Key, value: &Json) -> Result<(), InvalidValue> {
        let inside = self.south.lock();
        let wrong =
            inside.invalid.iter().find(|one| one.key == key.as_str() && one.items == items(value));
        match wrong {
            Some(wrong) => {
                let reason = wrong.error.clone().unwrap_or_else(|| "invalid value".to_owned());
                Err(InvalidValue { reason, fields: wrong.fields.clone() })
            }
            None => Ok(()),
        }
    }

    async fn create(
        &self,
        context: &Context,
        key: &Key,
        value: &Json,
    ) -> Result<i64, OperationError> {
        let mut inside = self.south.attempt(Op::Create, key, context.base()).await?;
        let derived = context.base().is_some();
        let number = if derived || !self.spec.metadata {
            None
        } else {
            let next = inside.numbers.entry(self.spec.name.clone()).or_insert(0);
            let number = *next;
            *next += 1;
            Some(number)
        };
        let held = Held { value: value.clone(), derived, metadata: number, origin: Origin::North };
        inside.set(key, Some(held))?;
        Ok(number.unwrap_or_default())
    }

    async fn update(
        &self,
        context: &Context,
        key: &Key,
        _old: &Json,
        new: &Json,
        _metadata: Option<&i64>,
    ) -> Result<Option<i64>, OperationError> {
        let mut inside = self.south.attempt(Op::Update, key, context.base()).await?;
        let old = inside.values.get(key.as_str()).cloned();
        let held = Held {
            value: new.clone(),
            derived: context.base().is_some(),
            metadata: old.and_then(|old| old.metadata),
            origin: Origin::North,
        };
        inside.set(key, Some(held))?;
        Ok(None)
    }

    async fn delete(
        &self,
        context: &Context,
        key: &Key,
        _value: &Json,
        _metadata: Option<&i64>,
    ) -> Result<(), OperationError> {
        let mut inside = self.south.attempt(Op::Delete, key, context.base()).await?;
        inside.set(key, None)?;
        Ok(())
    }

    async fn retrieve(
        &self,
        _context: &Context,
        known: &[Known<'_, Json, i64>],
    ) -> Result<Vec<Retrieved<Json, i64>>, OperationError> {
        let told = known.iter().map(|one| {
            let metadata = one.metadata.map_or(Json::Null, |number| Json::from(*number));
            (one.key.to_string(), metadata)
        });
        self.south.lock().correlate.insert(self.spec.name.clone(), told.collect());
        let inside = self.south.attempt(Op::Retrieve, &self.spec.name, None).await?;
        let is_own = |key: &str| inside.spec_of(key).is_some_and(|one| one.name == self.spec.name);
        let own = inside.values.iter().filter(|(key, held)| !held.derived && is_own(key));
        Ok(own
            .map(|(key, held)| Retrieved {
                key: Key::from(key.as_str()),
                value: held.value.clone(),
                metadata: held.metadata,
                origin: held.origin,
            })
            .collect())
    }

    fn recreate(&self, key: &Key, _old: &Json, _new: &Json, _metadata: Option<&i64>) -> bool {
        self.spec.recreate.iter().any(|one| one == key.as_str())
    }

    fn derived(&self, key: &Key, value: &Json) -> Vec<Derived> {
        if self.spec.items == Items::None {
            return Vec::new();
        }
        let all = derived(key, value).into_iter();
        let property = self.spec.items == Items::Properties;
        all.map(|(key, value)| Derived { property, ..Derived::new(key, value) }).collect()
    }

    fn dependencies(&self, key: &Key, value: &Json) -> Vec<Dependency> {
        let specs = self.spec.depends.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        let items = items(value);
        let applies = |when: &Option<String>| when.as_ref().is_none_or(|item| items.contains(item));
        specs
            .iter()
            .filter(|spec| applies(&spec.when))
            .filter_map(|spec| {
                let dependency = match (&spec.key, &spec.any_of) {
                    (Some(key), _) => Dependency::on(key.as_str()),
                    (None, Some(set)) => {
                        let label = spec.label.clone().unwrap_or_else(|| "any-of".to_owned());
                        let mut any = AnyOf::prefixes(&set.prefixes);
                        if let Some(suffix) = set.suffix.clone() {
                            any = any.matching(move |key| key.ends_with(&suffix));
                        }
                        Dependency::any_of(label, any)
                    }
                    (None, None) => return None,
                };
                Some(match &spec.label {
                    Some(label) => dependency.labelled(label),
                    None => dependency,
                })
            })
            .collect()
    }
}
