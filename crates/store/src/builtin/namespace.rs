//! Namespace: a room for names. Deleting one empties it first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::column::Column;
use crate::meta::{Condition, ObjectMeta};
use crate::registry::Kind;
use crate::typed;

/// Namespace provides a scope for Names. Use of multiple namespaces is optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Spec defines the behavior of the Namespace.
    #[serde(default)]
    pub spec: NamespaceSpec,
    /// Status describes the current status of a Namespace.
    #[serde(default)]
    pub status: NamespaceStatus,
}

/// NamespaceSpec describes the attributes on a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSpec {
    /// Finalizers is an opaque list of values that must be empty to permanently remove object from
    /// storage. It is written through the finalize subresource only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub finalizers: Vec<String>,
}

/// NamespaceStatus is information about the current status of a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceStatus {
    /// Represents the latest available observations of a namespace's current state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub conditions: Vec<Condition>,
    /// Phase is the current lifecycle phase of the namespace: Active, or Terminating while its
    /// content is being deleted.
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
                .about("The status of the namespace: Active or Terminating."),
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
