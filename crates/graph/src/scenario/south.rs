//! A simulated south: values in memory, failures on demand, and a list of all operations.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value as Json;

use super::file::{DescriptorSpec, FailSpec, InvalidSpec, Items, Op, Scenario};
use crate::descriptor::{
    Abilities, AnyOf, Context, Dependency, Derived, Descriptor, InvalidValue, Known, Model,
    OperationError, Retrieved,
};
use crate::key::Key;
use crate::state::Origin;

/// The state that the descriptors of a scenario share.
#[derive(Debug, Clone)]
pub(super) struct South(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    values: BTreeMap<String, Held>,
    specs: Vec<DescriptorSpec>,
    invalid: Vec<InvalidSpec>,
    fail: Vec<FailSpec>,
    done: HashMap<(String, Op), u32>,
    numbers: HashMap<String, i64>,
    calls: Vec<String>,
    correlate: BTreeMap<String, BTreeMap<String, Json>>,
}

#[derive(Debug, Clone)]
struct Held {
    value: Json,
    derived: bool,
    metadata: Option<i64>,
    origin: Origin,
}

impl South {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut inside = Inside {
            specs: scenario.descriptors.clone(),
            invalid: scenario.invalid.clone(),
            fail: scenario.fail.clone(),
            ..Inside::default()
        };
        for one in &scenario.south {
            let origin = match one.origin.as_deref() {
                Some("nb") => Origin::North,
                Some("sb") => Origin::South,
                _ => Origin::Unknown,
            };
            if let (Some(number), Some(spec)) = (one.metadata, inside.spec_of(&one.key)) {
                let next = inside.numbers.entry(spec).or_insert(0);
                *next = (*next).max(number + 1);
            }
            inside.put_whole(&one.key, one.value.clone(), one.metadata, origin);
        }
        Self(Arc::new(Mutex::new(inside)))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock()
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
    fn spec_of(&self, key: &str) -> Option<String> {
        self.specs.iter().find(|spec| key.starts_with(&spec.prefix)).map(|spec| spec.name.clone())
    }

    /// Sets a base value and its derived values.
    fn put_whole(&mut self, key: &str, value: Json, metadata: Option<i64>, origin: Origin) {
        let derives = self
            .specs
            .iter()
            .any(|spec| key.starts_with(&spec.prefix) && spec.items == Items::Derive);
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

    /// Counts an operation and decides whether it fails.
    fn attempt(&mut self, op: Op, key: &str, base: Option<&Key>) -> Result<(), OperationError> {
        let word = match op {
            Op::Create => "create",
            Op::Update => "update",
            Op::Delete => "delete",
            Op::Retrieve => "retrieve",
        };
        self.calls.push(format!("{word} {key}"));
        let count = self.done.entry((key.to_owned(), op)).or_insert(0);
        *count += 1;
        let count = *count;
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
                    self.values.insert(target, held);
                }
                None => {
                    self.values.remove(&target);
                }
            }
        }
        let text = failing.error.unwrap_or_else(|| format!("{word} failed"));
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
        let model = PlainModel(spec.prefix.clone());
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
        let mut inside = self.south.lock();
        inside.attempt(Op::Create, key, context.base())?;
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
        inside.values.insert(key.to_string(), held);
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
        let mut inside = self.south.lock();
        inside.attempt(Op::Update, key, context.base())?;
        let old = inside.values.get(key.as_str()).cloned();
        let held = Held {
            value: new.clone(),
            derived: context.base().is_some(),
            metadata: old.and_then(|old| old.metadata),
            origin: Origin::North,
        };
        inside.values.insert(key.to_string(), held);
        Ok(None)
    }

    async fn delete(
        &self,
        context: &Context,
        key: &Key,
        _value: &Json,
        _metadata: Option<&i64>,
    ) -> Result<(), OperationError> {
        let mut inside = self.south.lock();
        inside.attempt(Op::Delete, key, context.base())?;
        inside.values.remove(key.as_str());
        Ok(())
    }

    async fn retrieve(
        &self,
        _context: &Context,
        known: &[Known<'_, Json, i64>],
    ) -> Result<Vec<Retrieved<Json, i64>>, OperationError> {
        let mut inside = self.south.lock();
        let told = known.iter().map(|one| {
            let metadata = one.metadata.map_or(Json::Null, |number| Json::from(*number));
            (one.key.to_string(), metadata)
        });
        inside.correlate.insert(self.spec.name.clone(), told.collect());
        inside.attempt(Op::Retrieve, &self.spec.name, None)?;
        let own = inside
            .values
            .iter()
            .filter(|(key, held)| !held.derived && key.starts_with(&self.spec.prefix));
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
