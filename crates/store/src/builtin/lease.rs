//! Lease: the holder of a role, and until when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::column::Column;
use crate::meta::{MicroTime, ObjectMeta};
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// Names the holder of a role, such as the leader, and for how long. The server only stores it:
/// candidates decide whether it is free, and take it by an update that names the resourceVersion.
/// Nodes renew theirs in kube-node-lease to show that they are alive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The holder, and since when.
    #[serde(default)]
    pub spec: LeaseSpec,
}

/// The holder of a Lease, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSpec {
    /// When the present holder took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// The holder. If empty or not set, the lease is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// For how many seconds a renewal is good. Others may take the Lease once that long has gone by
    /// since they saw the last renewal. Must be above 0 if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// How often it has changed hands. Not set means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// The preferred holder: the present holder is asked to step down. Only allowed together with
    /// strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_holder: Option<String>,
    /// When the holder last renewed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// By which rule candidates agree on a holder. If not set, the first candidate takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
}

typed!(Lease, group: "coordination.k8s.io", version: "v1", plural: "leases", namespaced: true);

pub(super) fn kind() -> Kind {
    Kind::of::<Lease>()
        .column(Column::string("Holder", ".spec.holderIdentity").about("The holder."))
        .column(Column::age())
        .validate(check)
        .build()
}

fn check(lease: &Lease, _: Option<&Lease>) -> Vec<Violation> {
    let mut found = Vec::new();
    if let Some(seconds) = lease.spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
        let field = "spec.leaseDurationSeconds";
        found.push(Violation::invalid(field, &Value::from(seconds), "must be greater than 0"));
    }
    if let Some(count) = lease.spec.lease_transitions.filter(|count| *count < 0) {
        let detail = "must be greater than or equal to 0";
        found.push(Violation::invalid("spec.leaseTransitions", &Value::from(count), detail));
    }
    let spec = &lease.spec;
    if spec.preferred_holder.as_deref().is_some_and(|holder| !holder.is_empty())
        && spec.strategy.as_deref().is_none_or(str::is_empty)
    {
        let detail = "may only be specified when `strategy` is defined";
        found.push(Violation::forbidden("spec.preferredHolder", detail));
    }
    found
}
