use super::*;
use crate::descriptor::{Descriptor, PrefixModel};
use crate::erased::BoxedDescriptor;
use crate::selector::KeySelector;

struct Named {
    name: String,
    model: PrefixModel<u32>,
    keys: KeySelector,
    after: Vec<String>,
}

impl Descriptor for Named {
    type Model = PrefixModel<u32>;
    type Metadata = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn model(&self) -> &PrefixModel<u32> {
        &self.model
    }

    fn keys(&self) -> KeySelector {
        self.keys.clone()
    }

    fn retrieve_after(&self) -> Vec<String> {
        self.after.clone()
    }
}

fn descriptor(name: &str, prefix: &str, after: &[&str]) -> Arc<dyn ErasedDescriptor> {
    with_keys(name, KeySelector::prefix(prefix), after)
}

fn with_keys(name: &str, keys: KeySelector, after: &[&str]) -> Arc<dyn ErasedDescriptor> {
    let named = Named {
        name: name.to_owned(),
        model: PrefixModel::new(name, |number: &u32| Some(number.to_string())),
        keys,
        after: after.iter().map(|name| (*name).to_owned()).collect(),
    };
    BoxedDescriptor::from(named).0
}

fn order(registry: &Registry) -> Vec<&str> {
    registry.in_retrieve_order().map(|id| registry.get(id).name()).collect()
}

#[test]
fn descriptors_are_retrieved_after_what_they_name() {
    let mut registry = Registry::default();
    for (name, after) in [("d1", "d2"), ("d2", "d3"), ("d3", "d4"), ("d4", "unknown")] {
        registry.register(descriptor(name, &format!("{name}/"), &[after])).unwrap();
    }
    assert_eq!(order(&registry), ["d4", "d3", "d2", "d1"]);
    registry.register(descriptor("a", "a/", &[])).unwrap();
    assert_eq!(order(&registry), ["a", "d4", "d3", "d2", "d1"]);
}

#[test]
fn conflicts_are_errors_when_registering_and_change_nothing() {
    let mut registry = Registry::default();
    registry.register(descriptor("d1", "a/b/", &["d3"])).unwrap();
    let refused = |registry: &mut Registry, one| registry.register(one).unwrap_err().to_string();
    assert_eq!(refused(&mut registry, descriptor("d1", "x/", &[])), "descriptor d1 already exists");
    for prefix in ["a/", "a/b/", "a/b/c/"] {
        let text = refused(&mut registry, descriptor("d2", prefix, &[]));
        assert!(text.contains("overlaps a/b/ of descriptor d1"), "{text}");
    }
    assert!(refused(&mut registry, descriptor("d2", "", &[])).contains("no key prefix"));
    registry.register(descriptor("d2", "a/c/", &["d1"])).unwrap();
    let text = refused(&mut registry, descriptor("d3", "z/", &["d2"]));
    assert_eq!(text, "retrieve order has a cycle: d1 after d3 after d2 after d1");
    assert_eq!(order(&registry), ["d1", "d2"]);
    assert!(registry.for_key("z/1").is_none());
}

#[test]
fn every_key_finds_its_descriptor_however_many_there_are() {
    let mut registry = Registry::default();
    for number in 0..40 {
        registry
            .register(descriptor(&format!("d{number:02}"), &format!("p{number:02}/"), &[]))
            .unwrap();
    }
    for round in 0..2 {
        for number in 0..700 {
            let key = format!("p{:02}/{number}", number % 40);
            let found = registry.for_key(&key).map(|id| registry.get(id).name().to_owned());
            assert_eq!(found, Some(format!("d{:02}", number % 40)), "round {round}");
        }
    }
    assert!(registry.for_key("p40/1").is_none());
    assert!(registry.for_key("p0").is_none());
}

#[test]
fn a_pattern_beats_a_function_and_a_function_beats_a_prefix() {
    let mut registry = Registry::default();
    let small = KeySelector::function("bd/", |key| key.len() < 6);
    let later = KeySelector::function("bd/", |key| key.len() < 8);
    for (name, keys) in [
        ("domain", KeySelector::prefix("bd/")),
        ("member", KeySelector::pattern("bd/*/interface/*")),
        ("small", small),
        ("later", later),
    ] {
        registry.register(with_keys(name, keys, &[])).unwrap();
    }
    for (key, name) in [
        ("bd/a/interface/b", Some("member")),
        ("bd/a/interface/b/c", Some("domain")),
        ("bd/domain", Some("domain")),
        ("bd/a", Some("small")),
        ("bd/abcd", Some("later")),
        ("bx/a", None),
    ] {
        let found = registry.for_key(key);
        assert_eq!(found.map(|id| registry.get(id).name()), name, "{key}");
        for id in registry.in_retrieve_order() {
            let begins = registry.starts_of(id).any(|start| key.starts_with(start));
            assert_eq!(begins && registry.serves(id, key), found == Some(id), "{key}");
        }
    }
}

#[test]
fn overlapping_and_malformed_patterns_are_refused() {
    let mut registry = Registry::default();
    registry.register(with_keys("a", KeySelector::pattern("bd/*/interface/*"), &[])).unwrap();
    for (pattern, problem) in [
        ("bd/x/interface/*", "pattern bd/x/interface/* of descriptor b overlaps bd/*/interface/*"),
        ("bd/**", "overlaps"),
        ("", "it is empty"),
        ("bd/eth*", "alone between two slashes"),
        ("bd/**/x", "must be its last part"),
    ] {
        let refused = registry.register(with_keys("b", KeySelector::pattern(pattern), &[]));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(problem), "{pattern}: {text}");
    }
    assert!(registry.for_key("bd/eth0").is_none());
}

#[test]
fn a_descriptor_may_have_several_selectors() {
    let mut registry = Registry::default();
    let keys = KeySelector::prefixes(["a/", "a/b/", "c/"]).or(KeySelector::pattern("a/*/x"));
    let id = registry.register(with_keys("all", keys, &[])).unwrap();
    for key in ["a/1", "a/b/1", "c/1", "a/z/x"] {
        assert_eq!(registry.for_key(key), Some(id), "{key}");
    }
    assert_eq!(registry.starts_of(id).collect::<Vec<_>>(), ["a/", "c/"]);
    let keys: Vec<&str> = registry.all_keys().map(|(keys, _)| keys).collect();
    assert_eq!(keys, ["a/", "c/", "a/*/x"]);
}
