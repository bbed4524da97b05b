//! Discovery: which kinds there are, for clients that ask.
//!
//! Two dialects of the same facts. The old one answers a group at a time, the aggregated one all
//! at once; kubectl prefers the latter and needs it under both `/api` and `/apis`.

use mainstay_store::registry::{GroupVersion, Kind, Registry};
use serde_json::{Map, Value, json};

/// The verbs of a collection.
const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The verbs of a kind. Namespaces go one at a time, since each has to be emptied first.
fn verbs(kind: &Kind) -> Vec<&'static str> {
    let served = |verb: &&str| *verb != "deletecollection" || serves_delete_collection(kind);
    VERBS.into_iter().filter(served).collect()
}

/// Whether all objects of a kind can be deleted at once.
pub(crate) fn serves_delete_collection(kind: &Kind) -> bool {
    !kind.has_finalize
}

/// The body of `/api`.
#[must_use]
pub fn core_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": server_address},
        ],
    })
}

/// The body of `/apis`.
#[must_use]
pub fn groups(registry: &Registry) -> Value {
    let names = group_names(registry);
    let groups: Vec<Value> = names.iter().filter_map(|name| group_body(registry, name)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The body of `/apis/GROUP`; `None` if there is no such group.
#[must_use]
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let mut body = group_body(registry, name)?;
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Some(body)
}

/// The body of `/api/v1` or `/apis/GROUP/VERSION`; `None` if there is no such version.
#[must_use]
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let found = versions(registry).into_iter().find(|known| is(known, group, version))?;
    let resources: Vec<Value> = found.kinds.iter().flat_map(|kind| resource_bodies(kind)).collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    }))
}

/// The aggregated body of `/api` (the core group) or `/apis` (all others). `version` is that of
/// the aggregated form: `v2` or `v2beta1`.
#[must_use]
pub fn aggregated(registry: &Registry, core: bool, version: &str) -> Value {
    let names: Vec<&str> = if core { vec![""] } else { group_names(registry) };
    let items: Vec<Value> = names
        .into_iter()
        .map(|name| {
            let mut metadata = Map::new();
            metadata.insert("creationTimestamp".to_owned(), Value::Null);
            if !name.is_empty() {
                metadata.insert("name".to_owned(), json!(name));
            }
            let of_group = versions(registry).into_iter().filter(|known| known.group == name);
            let versions: Vec<Value> = of_group.map(|known| aggregated_version(&known)).collect();
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

/// Every group version; the core group is there even if it is empty.
fn versions(registry: &Registry) -> Vec<GroupVersion> {
    let mut versions = registry.groups();
    if !versions.iter().any(|known| is(known, "", "v1")) {
        versions.insert(0, GroupVersion { group: "", version: "v1", kinds: Vec::new() });
    }
    versions
}

fn is(known: &GroupVersion, group: &str, version: &str) -> bool {
    known.group == group && known.version == version
}

fn group_names(registry: &Registry) -> Vec<&'static str> {
    let mut names: Vec<&str> = registry.groups().iter().map(|known| known.group).collect();
    names.retain(|name| !name.is_empty());
    names.dedup();
    names
}

pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn group_body(registry: &Registry, name: &str) -> Option<Value> {
    let of_group = versions(registry).into_iter().filter(|known| known.group == name);
    let versions: Vec<Value> = of_group
        .filter(|known| !known.group.is_empty())
        .map(|known| {
            json!({
                "groupVersion": group_version(known.group, known.version),
                "version": known.version,
            })
        })
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({"name": name, "versions": versions, "preferredVersion": preferred}))
}

/// The parts of a kind that are written on their own, and what can be done with each.
fn subresources(kind: &Kind) -> Vec<(&'static str, &'static [&'static str])> {
    let mut parts: Vec<(&str, &[&str])> = Vec::new();
    if kind.has_finalize {
        parts.push(("finalize", &["update"]));
    }
    if kind.has_status {
        parts.push(("status", &["get", "patch", "update"]));
    }
    parts
}

fn resource_bodies(kind: &Kind) -> Vec<Value> {
    let mut body = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": verbs(kind),
    });
    if !kind.short_names.is_empty() {
        body["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        body["categories"] = json!(kind.categories);
    }
    let parts = subresources(kind).into_iter().map(|(name, verbs)| {
        json!({
            "name": format!("{}/{name}", kind.plural),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        })
    });
    std::iter::once(body).chain(parts).collect()
}

fn aggregated_version(known: &GroupVersion) -> Value {
    let resources: Vec<Value> = known.kinds.iter().map(|kind| aggregated_resource(kind)).collect();
    json!({"version": known.version, "resources": resources, "freshness": "Current"})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut body = json!({
        "resource": kind.plural,
        "responseKind": response_kind,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": verbs(kind),
    });
    if !kind.short_names.is_empty() {
        body["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        body["categories"] = json!(kind.categories);
    }
    let parts: Vec<Value> = subresources(kind)
        .into_iter()
        .map(|(name, verbs)| {
            json!({"subresource": name, "responseKind": response_kind, "verbs": verbs})
        })
        .collect();
    if !parts.is_empty() {
        body["subresources"] = Value::Array(parts);
    }
    body
}

#[cfg(test)]
mod tests;
