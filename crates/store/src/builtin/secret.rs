//! Secret: values that only administrators read.
//!
//! Values are written in base64 (`data`) or as plain text (`stringData`), which is taken into
//! `data` and never kept. Access to Secrets is decided elsewhere; here no column and no message
//! shows a value.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::configmap::Base64;
use crate::column::{Column, ColumnType};
use crate::meta::ObjectMeta;
use crate::names;
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// All values of a Secret together may take this many bytes.
const LIMIT: usize = 1 << 20;

/// The type of a Secret that names none.
const OPAQUE: &str = "Opaque";

/// Values such as passwords and keys, which only administrators read, and nodes for the instances
/// they run. All values together may take 1 MiB.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The values, each written in base64. Keys are made of letters, digits, '-', '_' and '.'.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Base64>")]
    pub data: BTreeMap<String, String>,
    /// Values as plain text, for writing only: they are taken into data, over values of the same
    /// key, and never shown here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub string_data: BTreeMap<String, String>,
    /// The purpose of the values, as a word for programs. It cannot change. If not set, Opaque.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// True freezes the values for good: from then on only the metadata can change, and this field
    /// cannot be taken back. If not set, everything can change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
}

typed!(Secret, group: "", version: "v1", plural: "secrets", namespaced: true);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.metadata.name)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

impl Secret {
    /// The value of a key, if there is one.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        STANDARD.decode(self.data.get(key)?).ok()
    }
}

pub(super) fn kind() -> Kind {
    Kind::of::<Secret>()
        .column(
            Column::string("Type", ".type")
                .about("The purpose of the values, as a word for programs."),
        )
        .column(
            Column::computed("Data", ColumnType::Integer, |object, _: Timestamp| {
                Value::from(entries(object, "data").map_or(0, Map::len))
            })
            .about("How many keys it has."),
        )
        .column(Column::age())
        .selectable("type")
        .default_json(take_in)
        .validate_json(check)
        .build()
}

fn entries<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    object.get(name).and_then(Value::as_object)
}

/// Takes plain values into `data`, and gives the Secret a type.
fn take_in(object: &mut Map<String, Value>) {
    if let Some(Value::Object(plain)) = object.remove("stringData")
        && !plain.is_empty()
    {
        let data = object.entry("data").or_insert_with(|| Value::Object(Map::new()));
        if !data.is_object() {
            *data = Value::Object(Map::new());
        }
        if let Some(data) = data.as_object_mut() {
            for (key, value) in plain {
                let text = STANDARD.encode(value.as_str().unwrap_or_default());
                data.insert(key, Value::from(text));
            }
        }
    }
    if object.get("type").and_then(Value::as_str).is_none_or(str::is_empty) {
        object.insert("type".to_owned(), Value::from(OPAQUE));
    }
}

fn check(new: &Map<String, Value>, old: Option<&Map<String, Value>>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut size = 0;
    for (key, value) in entries(new, "data").into_iter().flatten() {
        // Three bytes take four characters of base64.
        size += value.as_str().map_or(0, str::len) / 4 * 3;
        for problem in names::config_key_problems(key) {
            let field = format!("data[{key}]");
            found.push(Violation::invalid(field, &Value::from(key.as_str()), &problem));
        }
    }
    if size > LIMIT {
        found.push(Violation::too_long("data", LIMIT));
    }
    let Some(old) = old else { return found };
    if new.get("type") != old.get("type") {
        found.push(Violation::forbidden("type", "field is immutable"));
    }
    let is_immutable =
        |object: &Map<String, Value>| object.get("immutable") == Some(&Value::Bool(true));
    if is_immutable(old) {
        const WHY: &str = "field is immutable when `immutable` is set";
        if !is_immutable(new) {
            found.push(Violation::forbidden("immutable", WHY));
        }
        if new.get("data") != old.get("data") {
            found.push(Violation::forbidden("data", WHY));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(mut object) = value else { panic!("not an object") };
        take_in(&mut object);
        object
    }

    #[test]
    fn string_data_overwrites_data_and_is_not_stored() {
        let taken = object(json!({"data": {"a": "AA==", "b": "AA=="}, "stringData": {"a": "x"}}));
        let meant = json!({"data": {"a": "eA==", "b": "AA=="}, "type": "Opaque"});
        assert_eq!(Value::Object(taken.clone()), meant);
        assert_eq!(object(meant.clone()), taken, "twice changes nothing more");
        let secret: Secret = serde_json::from_value(meant).unwrap();
        assert_eq!(secret.value("a"), Some(b"x".to_vec()));
        assert_eq!(secret.value("none"), None);
        assert!(!format!("{secret:?}").contains("eA=="));
    }

    #[test]
    fn immutable_secrets_keep_their_values_and_a_type_never_changes() {
        let before = object(json!({"data": {"a": "eA=="}, "immutable": true}));
        for (after, fields) in [
            (json!({"data": {"a": "eA=="}, "immutable": true}), vec![]),
            (json!({"data": {"a": "eQ=="}, "immutable": true}), vec!["data"]),
            (json!({"stringData": {"a": "y"}, "immutable": true}), vec!["data"]),
            (json!({"data": {"a": "eA=="}}), vec!["immutable"]),
            (json!({"data": {"a": "eA=="}, "immutable": true, "type": "tls"}), vec!["type"]),
        ] {
            let found = check(&object(after.clone()), Some(&before));
            assert_eq!(found.len(), fields.len(), "{after}: {found:?}");
            for field in fields {
                assert!(format!("{found:?}").contains(field), "{after}: {found:?}");
            }
        }
        let large = "A".repeat(LIMIT / 3 * 4 + 8);
        assert_eq!(check(&object(json!({"data": {"a": large}})), None).len(), 1);
        let odd = check(&object(json!({"stringData": {"a b": "hush"}})), None);
        assert!(odd.len() == 1 && !format!("{odd:?}").contains("aHVzaA"), "{odd:?}");
    }
}
