//! Standard parts of objects: metadata, conditions, and the scalar types of Kubernetes.
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

/// The metadata of an object of any kind. Name, labels, annotations, owners and finalizers are
/// yours to write; the server maintains the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Notes for people and programs, by key. Selectors do not look at them; use labels for that.
    /// All annotations of an object together may take 256 KiB. None if not set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// When the server created the object, in UTC by its own clock. A time that a client sends is
    /// overwritten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Always 0, and only there together with deletionTimestamp: nothing here is given time to wind
    /// down, an object under deletion waits for its finalizers alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// When deletion of the object was requested. It is there only while finalizers hold the
    /// object back; the object goes with the last of them, and there is no way back. Not set on an
    /// object that is not being deleted. Clients cannot write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// The components that still have to clean up before the object may go. A deleted object stays, with a
    /// deletionTimestamp, until this list is empty; each party takes out its own entry when it is
    /// done, in any order. Once the object is being deleted no entry can be added. If a deletion
    /// hangs, look here for the party that is late. If empty, the object goes at once.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-patch-strategy" = "merge"))]
    pub finalizers: Vec<String>,
    /// The beginning of a name, to which the server adds a random ending. Used only if name is not
    /// set. The whole name is cut to 63 characters. If several endings in a row turn out to be
    /// taken, the create is refused.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub generate_name: String,
    /// How often the wanted state has changed: 1 for a new object, one more after every change
    /// outside of metadata and status, and when deletion begins. Compare it with observedGeneration
    /// to see whether a controller has caught up. Kinds without a spec have none. Clients cannot
    /// write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Keys and values to find objects by: label selectors match them. Both are short, at most 63
    /// characters besides the prefix of a key. None if not set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// The writers of fields. The server keeps it, so that an apply can tell what it may change
    /// and what belongs to others. There is rarely a reason to write it; a list of one empty entry
    /// makes the server forget all owners.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(with = "Vec<ManagedFieldsEntry>", extend("x-kubernetes-list-type" = "atomic"))]
    pub managed_fields: Vec<Value>,
    /// The name of the object. No other object of its kind in the same namespace has the same
    /// name, and it never changes. May be left out on create if generateName is set.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub name: String,
    /// The namespace the object lives in. If not set, it is taken from the path of the request.
    /// Kinds that live outside of namespaces have none. It never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The objects this one belongs to. When the last of them is gone, the server deletes this one
    /// too; as long as one is left, only the references to the others are dropped. If empty, the
    /// object stays until it is deleted.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["uid"],
        "x-kubernetes-patch-merge-key" = "uid",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub owner_references: Vec<OwnerReference>,
    /// Which version of the object this is; every change gives it a new one. Send it back with an
    /// update, and the update is refused with 409 if the object has changed since; leave it out,
    /// and the update overwrites the current version. Compare it for equality only. Not allowed on
    /// create.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub resource_version: String,
    /// Always missing here. A value that is sent is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_link: Option<String>,
    /// The identity of the object. An object that is deleted and created again under the same name
    /// gets another one. The server chooses it on create; an update that names another is refused
    /// with 409.
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

/// Points at an object that owns this one. The owner is in the same namespace or in none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct OwnerReference {
    /// The group and version of the owner, as v1 or coordination.k8s.io/v1.
    pub api_version: String,
    /// Whether the owner has to wait for this object when it is deleted in the foreground. If not
    /// set, it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
    /// Whether the owner is the one that steers this object. At most one owner is. If not set, it
    /// is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// The kind of the owner.
    pub kind: String,
    /// The name of the owner.
    pub name: String,
    /// The identity of the owner. If another object has taken the owner's name since, the owner
    /// counts as gone.
    pub uid: String,
}

/// The fields that one party holds, and how it came to hold them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedFieldsEntry {
    /// The version of the kind in which the fields are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// How fieldsV1 is to be read. Always FieldsV1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields_type: Option<String>,
    /// The fields, as a tree: a field is a key that begins with f:, an item of a list one that
    /// begins with k: or v:.
    #[serde(default, rename = "fieldsV1", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub fields_v1: Option<Value>,
    /// The name the party gives itself: the fieldManager of its requests or, failing that, the name
    /// of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// Apply if the fields were applied, Update if they were written in any other way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The part of the object that was written, as status. Not set if it was the object as a whole.
    /// The same manager is another party for every part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    /// When the party last came to hold other fields than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// One thing that is known about an object: whether it holds, since when, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// When status last changed. A report that says the same again does not move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When the condition was last reported, changed or not. Most kinds leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// The details, for people. May be empty.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// The generation of the object that was looked at. If it is lower than metadata.generation,
    /// the condition is about an earlier state. Not set if the reporter does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Why it is so, in one word for programs, as DiskFull.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Whether it holds: True or False, or Unknown if that cannot be determined at the moment.
    pub status: ConditionStatus,
    /// The name of the condition, in one word, as Ready. Every type occurs at most once.
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
