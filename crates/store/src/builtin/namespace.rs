//! Namespace: a scope for names. Deleting one deletes its objects first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::column::Column;
use crate::meta::{Condition, ObjectMeta};
use crate::registry::Kind;
use crate::typed;

/// A scope for names: objects in different namespaces may have the same name. Deleting a namespace
/// deletes everything in it first. Namespaces that the server needs cannot be deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Finalizers that keep the namespace when it is deleted.
    #[serde(default)]
    pub spec: NamespaceSpec,
    /// Whether the namespace is in use or on its way out.
    #[serde(default)]
    pub status: NamespaceStatus,
}

/// Finalizers that keep a namespace when it is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSpec {
    /// The components that still have to clean up before the namespace may go. The server puts its
    /// own entry here and takes it out when the namespace is empty. Changed through the finalize
    /// subresource only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub finalizers: Vec<String>,
}

/// Whether a namespace is in use or on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceStatus {
    /// Conditions of the namespace, one entry for each type. Empty if there is nothing to report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub conditions: Vec<Condition>,
    /// Active while the namespace can be used. Terminating once it is being deleted: its objects
    /// are deleted, and new ones are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Active", "Terminating"]))]
    pub phase: Option<String>,
}

typed!(Namespace, group: "", version: "v1", plural: "namespaces", namespaced: false);

pub(super) fn kind() -> Kind {
    Kind::of::<Namespace>()
        .short("ns")
        .status()
        .finalize()
        .label_names()
        .undeletable(&["default", "kube-system", "mainstay-system"])
        .selectable("status.phase")
        .column(
            Column::string("Status", ".status.phase")
                .about("Active, or Terminating while it is being deleted."),
        )
        .column(Column::age())
        .begin_with(begin)
        .default_json(name_label)
        .build()
}

fn begin(object: &mut Map<String, Value>) {
    object.insert("status".to_owned(), json!({"phase": "Active"}));
    let spec = object.entry("spec").or_insert_with(|| json!({}));
    if let Value::Object(spec) = spec {
        let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(finalizers) = finalizers
            && !finalizers.contains(&Value::from("kubernetes"))
        {
            finalizers.push(Value::from("kubernetes"));
        }
    }
}

/// Lets selectors pick namespaces by name.
fn name_label(object: &mut Map<String, Value>) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
        return;
    };
    let Some(name) = metadata.get("name").cloned() else {
        return;
    };
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    if let Value::Object(labels) = labels {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name);
    }
}
