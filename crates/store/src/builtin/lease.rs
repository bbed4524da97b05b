//! Lease: who holds an office, and until when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::column::Column;
use crate::meta::{MicroTime, ObjectMeta};
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// Lease defines a lease concept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// spec contains the specification of the Lease.
    #[serde(default)]
    pub spec: LeaseSpec,
}

/// LeaseSpec is a specification of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSpec {
    /// acquireTime is a time when the current lease was acquired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// holderIdentity contains the identity of the holder of a current lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// leaseDurationSeconds is a duration that candidates for a lease need to wait to force acquire
    /// it. This is measured against the time of last observed renewTime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// leaseTransitions is the number of transitions of a lease between holders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// PreferredHolder signals to a lease holder that the lease has a more optimal holder and should
    /// be given up. This field can only be set if Strategy is also set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_holder: Option<String>,
    /// renewTime is a time when the current holder of a lease has last updated the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// Strategy indicates the strategy for picking the leader for coordinated leader election. If
    /// the field is not specified, there is no active coordination for this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
}

typed!(Lease, group: "coordination.k8s.io", version: "v1", plural: "leases", namespaced: true);

pub(super) fn kind() -> Kind {
    Kind::of::<Lease>()
        .column(
            Column::string("Holder", ".spec.holderIdentity")
                .about("holderIdentity contains the identity of the holder of a current lease."),
        )
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
