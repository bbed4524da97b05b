//! The holders of fields: reads and writes `metadata.managedFields`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fields::FieldSet;
use crate::meta::Time;

/// One party that holds fields: the same name counts separately for applying and for updating,
/// and for each subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Party {
    pub(crate) manager: String,
    pub(crate) applies: bool,
    pub(crate) subresource: String,
    pub(crate) api_version: String,
}

impl Party {
    /// Whether an entry of `metadata.managedFields` is this party's.
    pub(crate) fn is_of(&self, entry: &Value) -> bool {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = if self.applies { "Apply" } else { "Update" };
        text("manager") == self.manager
            && text("operation") == operation
            && text("subresource") == self.subresource
            && text("apiVersion") == self.api_version
    }
}

/// The fields that a party holds, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) fields: FieldSet,
    pub(crate) time: String,
}

/// All parties of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Managers(pub(crate) BTreeMap<Party, Holding>);

impl Managers {
    /// The holders in `metadata.managedFields`; `None` if it cannot be read.
    pub(crate) fn parse(entries: &[Value]) -> Option<Self> {
        let mut managers = BTreeMap::new();
        for entry in entries {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let applies = match text("operation") {
                "Apply" => true,
                "Update" => false,
                _ => return None,
            };
            let party = Party {
                manager: text("manager").to_owned(),
                applies,
                subresource: text("subresource").to_owned(),
                api_version: text("apiVersion").to_owned(),
            };
            let fields = match entry.get("fieldsV1") {
                Some(fields) => FieldSet::parse(fields)?,
                None => FieldSet::default(),
            };
            managers.insert(party, Holding { fields, time: text("time").to_owned() });
        }
        Some(Self(managers))
    }

    /// Writes them, appliers first, then by time.
    pub(crate) fn encode(&self) -> Vec<Value> {
        let mut entries: Vec<_> =
            self.0.iter().filter(|(_, holding)| !holding.fields.is_empty()).collect();
        entries.sort_by_key(|(party, holding)| (!party.applies, holding.time.clone()));
        entries
            .into_iter()
            .map(|(party, holding)| {
                let mut entry = Map::new();
                entry.insert("apiVersion".into(), json!(party.api_version));
                entry.insert("fieldsType".into(), json!("FieldsV1"));
                entry.insert("fieldsV1".into(), holding.fields.encode());
                entry.insert("manager".into(), json!(party.manager));
                let operation = if party.applies { "Apply" } else { "Update" };
                entry.insert("operation".into(), json!(operation));
                if !party.subresource.is_empty() {
                    entry.insert("subresource".into(), json!(party.subresource));
                }
                if !holding.time.is_empty() {
                    entry.insert("time".into(), json!(holding.time));
                }
                Value::Object(entry)
            })
            .collect()
    }

    /// Whether nothing would change if `party` changed and removed these fields.
    pub(crate) fn would_keep(&self, party: &Party, changed: &FieldSet, removed: &FieldSet) -> bool {
        let holds =
            |holding: &Holding, fields: &FieldSet| !holding.fields.intersection(fields).is_empty();
        let own = |holding: &Holding| changed.clone().without(&holding.fields).is_empty();
        self.0.iter().all(|(other, holding)| {
            !holds(holding, removed) && (other == party || !holds(holding, changed))
        }) && (changed.is_empty() || self.0.get(party).is_some_and(own))
    }

    /// All fields that have a holder.
    pub(crate) fn all(&self) -> FieldSet {
        self.0.values().fold(FieldSet::default(), |all, holding| all.union(&holding.fields))
    }

    /// Sets the fields that a party holds. Its time changes only if the fields do.
    pub(crate) fn set(&mut self, party: Party, fields: FieldSet, now: Timestamp) {
        if fields.is_empty() {
            self.0.remove(&party);
            return;
        }
        let holding = self.0.entry(party).or_default();
        if holding.fields != fields || holding.time.is_empty() {
            *holding = Holding { fields, time: Time::new(now).to_string() };
        }
    }

    /// Takes fields away from every party but `party`.
    pub(crate) fn take_from_others(&mut self, party: &Party, fields: &FieldSet) {
        for (other, holding) in &mut self.0 {
            if other != party {
                let mine = std::mem::take(&mut holding.fields);
                holding.fields = mine.without(fields);
            }
        }
        self.0.retain(|_, holding| !holding.fields.is_empty());
    }

    /// Removes holders of fields at or below fields that were removed.
    pub(crate) fn forget(&mut self, removed: &FieldSet) {
        for holding in self.0.values_mut() {
            let mine = std::mem::take(&mut holding.fields);
            holding.fields = mine.without(removed);
        }
        self.0.retain(|_, holding| !holding.fields.is_empty());
    }
}
