//! ConfigMap: configuration as keys and values.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::column::{Column, ColumnType};
use crate::meta::ObjectMeta;
use crate::names;
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// All values of a ConfigMap together may take this many bytes.
const LIMIT: usize = 1 << 20;

/// Settings as keys and values. All values together may take 1 MiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMap {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Values that are text. Keys are made of letters, digits, '-', '_' and '.', and none may occur
    /// in binaryData as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Values that are any bytes, written in base64. The same rules as in data apply to keys, and
    /// none may occur in both.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Base64>")]
    pub binary_data: BTreeMap<String, String>,
    /// True freezes data and binaryData for good: from then on only the metadata can change, and
    /// this field cannot be taken back. If not set, everything can change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
}

typed!(ConfigMap, group: "", version: "v1", plural: "configmaps", namespaced: true);

/// The schema of bytes written in base64.
pub(super) struct Base64;

impl JsonSchema for Base64 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Base64".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "byte"})
    }
}

pub(super) fn kind() -> Kind {
    Kind::of::<ConfigMap>()
        .short("cm")
        .column(
            Column::computed("Data", ColumnType::Integer, |object, _: Timestamp| {
                Value::from(length(object, "data") + length(object, "binaryData"))
            })
            .about("How many keys it has, of text and of bytes together."),
        )
        .column(Column::age())
        .validate_json(check)
        .build()
}

fn length(object: &Map<String, Value>, name: &str) -> usize {
    entries(object, name).map_or(0, Map::len)
}

fn entries<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    object.get(name).and_then(Value::as_object)
}

fn check(new: &Map<String, Value>, old: Option<&Map<String, Value>>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut size = 0;
    for part in ["data", "binaryData"] {
        for (key, value) in entries(new, part).into_iter().flatten() {
            let length = value.as_str().map_or(0, str::len);
            // Three bytes take four characters of base64.
            size += if part == "data" { length } else { length / 4 * 3 };
            for problem in names::config_key_problems(key) {
                let field = format!("{part}[{key}]");
                found.push(Violation::invalid(field, &Value::from(key.as_str()), &problem));
            }
            if part == "binaryData"
                && entries(new, "data").is_some_and(|data| data.contains_key(key))
            {
                found.push(Violation::invalid(
                    format!("data[{key}]"),
                    &Value::from(key.as_str()),
                    "duplicate of key present in binaryData",
                ));
            }
        }
    }
    if size > LIMIT {
        found.push(Violation::too_long("data", LIMIT));
    }
    let is_immutable =
        |object: &Map<String, Value>| object.get("immutable") == Some(&Value::Bool(true));
    if let Some(old) = old.filter(|old| is_immutable(old)) {
        const WHY: &str = "field is immutable when `immutable` is set";
        if !is_immutable(new) {
            found.push(Violation::forbidden("immutable", WHY));
        }
        for part in ["data", "binaryData"] {
            if new.get(part) != old.get(part) {
                found.push(Violation::forbidden(part, WHY));
            }
        }
    }
    found
}
