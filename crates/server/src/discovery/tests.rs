use mainstay_store::registry::builtin;

use super::*;
use crate::golden;

fn registry() -> Registry {
    Registry::new(builtin()).unwrap()
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[test]
fn discovery_reads_as_kubernetes_writes_it() {
    let registry = registry();
    golden::check("discovery/api.json", &pretty(&core_versions("10.0.0.1:6443")));
    golden::check("discovery/apis.json", &pretty(&groups(&registry)));
    golden::check(
        "discovery/group.json",
        &pretty(&group(&registry, "coordination.k8s.io").unwrap()),
    );
    golden::check("discovery/api-v1.json", &pretty(&resources(&registry, "", "v1").unwrap()));
    golden::check("discovery/aggregated-api.json", &pretty(&aggregated(&registry, true, "v2")));
    golden::check(
        "discovery/aggregated-apis.json",
        &pretty(&aggregated(&registry, false, "v2beta1")),
    );
}

#[test]
fn unregistered_kinds_are_not_found() {
    let registry = registry();
    assert_eq!(group(&registry, "apps"), None);
    assert_eq!(group(&registry, ""), None);
    assert_eq!(resources(&registry, "", "v2"), None);
    assert_eq!(resources(&registry, "coordination.k8s.io", "v1beta1"), None);
}

#[test]
fn the_core_group_is_there_even_if_it_is_empty() {
    let registry = Registry::default();
    assert_eq!(resources(&registry, "", "v1").unwrap()["resources"], json!([]));
    assert_eq!(aggregated(&registry, true, "v2")["items"][0]["versions"][0]["version"], "v1");
    assert_eq!(groups(&registry)["groups"], json!([]));
}
