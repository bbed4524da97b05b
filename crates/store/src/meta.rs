//! What every object carries: its metadata, conditions, and the scalar types of Kubernetes.
//!
//! The doc comments of fields are what `kubectl explain` prints.

mod duration;
mod quantity;
mod time;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use duration::human_duration;
pub use quantity::{Quantity, QuantityError};
pub use time::{MicroTime, Time};

/// ObjectMeta is metadata that all persisted resources must have, which includes all objects users
/// must create.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Annotations is an unstructured key value map stored with a resource that may be set by
    /// external tools to store and retrieve arbitrary metadata. They are not queryable and should
    /// be preserved when modifying objects.
    /// More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// CreationTimestamp is a timestamp representing the server time when this object was created.
    /// It is not guaranteed to be set in happens-before order across separate operations. Clients
    /// may not set this value. It is represented in RFC3339 form and is in UTC.
    ///
    /// Populated by the system. Read-only. Null for lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Number of seconds allowed for this object to gracefully terminate before it will be removed
    /// from the system. Only set when deletionTimestamp is also set. May only be shortened.
    /// Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// DeletionTimestamp is RFC 3339 date and time at which this resource will be deleted. This
    /// field is set by the server when a graceful deletion is requested by the user, and is not
    /// directly settable by a client. The resource is expected to be deleted (no longer visible
    /// from resource lists, and not reachable by name) after the time in this field, once the
    /// finalizers list is empty. As long as the finalizers list contains items, deletion is
    /// blocked. Once the deletionTimestamp is set, this value may not be unset or be set further
    /// into the future.
    ///
    /// Populated by the system when a graceful deletion is requested. Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Must be empty before the object is deleted from the registry. Each entry is an identifier
    /// for the responsible component that will remove the entry from the list. If the
    /// deletionTimestamp of the object is non-nil, entries in this list can only be removed.
    /// Finalizers may be processed and removed in any order. Order is NOT enforced because it
    /// introduces significant risk of stuck finalizers.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-patch-strategy" = "merge"))]
    pub finalizers: Vec<String>,
    /// GenerateName is an optional prefix, used by the server, to generate a unique name ONLY IF
    /// the Name field has not been provided. If this field is used, the name returned to the client
    /// will be different than the name passed. This value will also be combined with a unique
    /// suffix. The provided value has the same validation rules as the Name field, and may be
    /// truncated by the length of the suffix required to make the value unique on the server.
    ///
    /// If this field is specified and the generated name exists, the server will return a 409.
    ///
    /// Applied only if Name is not specified.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub generate_name: String,
    /// A sequence number representing a specific generation of the desired state. Populated by the
    /// system. Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Map of string keys and values that can be used to organize and categorize (scope and select)
    /// objects. May match selectors of controllers and services.
    /// More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// ManagedFields maps workflow-id and version to the set of fields that are managed by that
    /// workflow. This is mostly for internal housekeeping, and users typically shouldn't need to
    /// set or understand this field.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(with = "Vec<ManagedFieldsEntry>", extend("x-kubernetes-list-type" = "atomic"))]
    pub managed_fields: Vec<Value>,
    /// Name must be unique within a namespace. Is required when creating resources, although some
    /// resources may allow a client to request the generation of an appropriate name automatically.
    /// Name is primarily intended for creation idempotence and configuration definition. Cannot be
    /// updated.
    /// More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub name: String,
    /// Namespace defines the space within which each name must be unique. An empty namespace is
    /// equivalent to the "default" namespace, but "default" is the canonical representation. Not
    /// all objects are required to be scoped to a namespace - the value of this field for those
    /// objects will be empty.
    ///
    /// Must be a DNS_LABEL. Cannot be updated.
    /// More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// List of objects depended by this object. If ALL objects in the list have been deleted, this
    /// object will be garbage collected. If this object is managed by a controller, then an entry
    /// in this list will point to this controller, with the controller field set to true. There
    /// cannot be more than one managing controller.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["uid"],
        "x-kubernetes-patch-merge-key" = "uid",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub owner_references: Vec<OwnerReference>,
    /// An opaque value that represents the internal version of this object that can be used by
    /// clients to determine when objects have changed. May be used for optimistic concurrency,
    /// change detection, and the watch operation on a resource or set of resources. Clients must
    /// treat these values as opaque and passed unmodified back to the server. They may only be
    /// valid for a particular resource or set of resources.
    ///
    /// Populated by the system. Read-only. Value must be treated as opaque by clients.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub resource_version: String,
    /// Deprecated: selfLink is a legacy read-only field that is no longer populated by the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_link: Option<String>,
    /// UID is the unique in time and space value for this object. It is typically generated by the
    /// server on successful creation of a resource and is not allowed to change on PUT operations.
    ///
    /// Populated by the system. Read-only.
    /// More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#uids
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub uid: String,
}

/// Reads `null` as nothing, as Kubernetes does.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// OwnerReference contains enough information to let you identify an owning object. An owning
/// object must be in the same namespace as the dependent, or be cluster-scoped, so there is no
/// namespace field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct OwnerReference {
    /// API version of the referent.
    pub api_version: String,
    /// If true, AND if the owner has the "foregroundDeletion" finalizer, then the owner cannot be
    /// deleted from the key-value store until this reference is removed. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
    /// If true, this reference points to the managing controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Kind of the referent.
    pub kind: String,
    /// Name of the referent.
    pub name: String,
    /// UID of the referent.
    pub uid: String,
}

/// ManagedFieldsEntry is a workflow-id, a FieldSet and the group version of the resource that the
/// fieldset applies to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedFieldsEntry {
    /// APIVersion defines the version of this resource that this field set applies to. The format
    /// is "group/version" just like the top-level APIVersion field. It is necessary to track the
    /// version of a field set because it cannot be automatically converted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// FieldsType is the discriminator for the different fields format and version. There is
    /// currently only one possible value: "FieldsV1"
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields_type: Option<String>,
    /// FieldsV1 holds the first JSON version format as described in the "FieldsV1" type.
    #[serde(default, rename = "fieldsV1", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub fields_v1: Option<Value>,
    /// Manager is an identifier of the workflow managing these fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// Operation is the type of operation which lead to this ManagedFieldsEntry being created. The
    /// only valid values for this field are 'Apply' and 'Update'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Subresource is the name of the subresource used to update that object, or empty string if
    /// the object was updated through the main resource. The value of this field is used to
    /// distinguish between managers, even if they share the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    /// Time is the timestamp of when the ManagedFields entry was added. The timestamp will also be
    /// updated if a field is added, the manager changes any of the owned fields value or removes a
    /// field. The timestamp does not update when a field is removed from the entry because another
    /// manager took it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Condition contains details for one aspect of the current state of this API Resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// lastTransitionTime is the last time the condition transitioned from one status to another.
    /// This should be when the underlying condition changed. If that is not known, then using the
    /// time when the API field changed is acceptable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// lastUpdateTime is the last time the condition was reported, whether or not it changed. Only
    /// some kinds report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// message is a human readable message indicating details about the transition. This may be an
    /// empty string.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// observedGeneration represents the .metadata.generation that the condition was set based
    /// upon. For instance, if .metadata.generation is currently 12, but the
    /// .status.conditions[x].observedGeneration is 9, the condition is out of date with respect to
    /// the current state of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// reason contains a programmatic identifier indicating the reason for the condition's last
    /// transition, in CamelCase.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// status of the condition, one of True, False, Unknown.
    pub status: ConditionStatus,
    /// type of condition in CamelCase or in foo.example.com/CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub kind: String,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// There is no telling.
    Unknown,
}

impl ConditionStatus {
    /// The word it is written as.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}
