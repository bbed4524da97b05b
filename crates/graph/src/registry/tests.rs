use super::*;
use crate::descriptor::{Context, Descriptor, OperationError, PrefixModel};
use crate::erased::Typed;
use crate::key::Key;

struct Named {
    name: String,
    model: PrefixModel<u32>,
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

    async fn create(&self, _: &Context, _: &Key, _: &u32) -> Result<(), OperationError> {
        Ok(())
    }

    async fn delete(
        &self,
        _: &Context,
        _: &Key,
        _: &u32,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        Ok(())
    }

    fn retrieve_after(&self) -> Vec<String> {
        self.after.clone()
    }
}

fn descriptor(name: &str, prefix: &str, after: &[&str]) -> Arc<dyn ErasedDescriptor> {
    Arc::new(Typed(Named {
        name: name.to_owned(),
        model: PrefixModel::new(prefix, |number: &u32| Some(number.to_string())),
        after: after.iter().map(|name| (*name).to_owned()).collect(),
    }))
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
