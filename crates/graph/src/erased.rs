//! Descriptors behind one trait without type parameters, so that a registry can hold all of them.
//!
//! A value that is not of the descriptor's type is never passed on: it counts as different from
//! every other, has neither dependencies nor derived values, and validation names the problem.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::descriptor::{
    Abilities, Context, Dependency, Derived, Descriptor, ErasedKnown, ErasedRetrieved,
    InvalidValue, Known, OperationError, Retrieved, ValueOf,
};
use crate::key::Key;
use crate::selector::KeySelector;
use crate::value::{Metadata, Value, ValueType};

pub(crate) type Job<T> = Pin<Box<dyn Future<Output = Result<T, OperationError>> + Send>>;

pub(crate) trait ErasedDescriptor: Send + Sync {
    fn name(&self) -> &str;
    fn keys(&self) -> KeySelector;
    fn abilities(&self) -> Abilities;
    fn metadata_index(&self) -> Option<&str>;
    fn label(&self, key: &Key) -> String;
    fn retrieve_after(&self) -> Vec<String>;
    /// The value converted to this descriptor's type, if possible.
    fn read(&self, value: &Value) -> Option<Value>;
    fn equivalent(&self, key: &Key, old: &Value, new: &Value) -> bool;
    fn validate(&self, key: &Key, value: &Value) -> Result<(), InvalidValue>;
    fn recreate(&self, key: &Key, old: &Value, new: &Value, metadata: Option<&Metadata>) -> bool;
    fn is_retriable(&self, error: &OperationError) -> bool;
    fn derived(&self, key: &Key, value: &Value) -> Vec<Derived>;
    fn dependencies(&self, key: &Key, value: &Value) -> Vec<Dependency>;
    fn create(self: Arc<Self>, context: Context, key: Key, value: Value) -> Job<Option<Metadata>>;
    fn update(
        self: Arc<Self>,
        context: Context,
        key: Key,
        old: Value,
        new: Value,
        metadata: Option<Metadata>,
    ) -> Job<Option<Metadata>>;
    fn delete(
        self: Arc<Self>,
        context: Context,
        key: Key,
        value: Value,
        metadata: Option<Metadata>,
    ) -> Job<Option<Metadata>>;
    fn retrieve(
        self: Arc<Self>,
        context: Context,
        known: Vec<ErasedKnown>,
    ) -> Job<Vec<ErasedRetrieved>>;
}

impl fmt::Debug for dyn ErasedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Descriptor").field(&self.name()).finish()
    }
}

/// A descriptor of any type, so that descriptors of several types fit into one collection. Cheap to
/// clone.
///
/// [`Builder::register`](crate::Builder::register) takes it in place of a descriptor, as it takes an
/// `Arc` of one.
///
/// ```
/// use mainstay_graph::{BoxedDescriptor, Builder, Descriptor, Options, PrefixModel};
///
/// struct Named(&'static str, PrefixModel<u32>);
///
/// impl Descriptor for Named {
///     type Model = PrefixModel<u32>;
///     type Metadata = ();
///
///     fn name(&self) -> &str {
///         self.0
///     }
///
///     fn model(&self) -> &Self::Model {
///         &self.1
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = |prefix| PrefixModel::new(prefix, |number: &u32| Some(number.to_string()));
/// let all: Vec<BoxedDescriptor> =
///     vec![Named("port", model("port/")).into(), Named("link", model("link/")).into()];
/// let mut builder = Builder::new(Options::default());
/// for descriptor in all {
///     builder = builder.register(descriptor)?;
/// }
/// # let _ = builder;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BoxedDescriptor(pub(crate) Arc<dyn ErasedDescriptor>);

impl BoxedDescriptor {
    /// The descriptor's name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The operations that may be called.
    pub fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
}

impl<D: Descriptor> From<D> for BoxedDescriptor {
    fn from(descriptor: D) -> Self {
        Self::from(Arc::new(descriptor))
    }
}

impl<D: Descriptor> From<Arc<D>> for BoxedDescriptor {
    fn from(descriptor: Arc<D>) -> Self {
        let abilities = descriptor.abilities() & Abilities::of::<D>();
        Self(Arc::new(Typed(descriptor, abilities)))
    }
}

/// A typed descriptor behind the untyped trait.
struct Typed<D>(Arc<D>, Abilities);

fn typed<D: Descriptor>(value: &Value) -> Result<&ValueOf<D>, OperationError> {
    value.get::<ValueOf<D>>().ok_or_else(|| {
        OperationError::permanent(format!(
            "the value is not a {}",
            std::any::type_name::<ValueOf<D>>()
        ))
    })
}

impl<D: Descriptor> ErasedDescriptor for Typed<D> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn keys(&self) -> KeySelector {
        self.0.keys()
    }

    fn abilities(&self) -> Abilities {
        self.1
    }

    fn metadata_index(&self) -> Option<&str> {
        self.0.metadata_index()
    }

    fn label(&self, key: &Key) -> String {
        self.0.label(key)
    }

    fn retrieve_after(&self) -> Vec<String> {
        self.0.retrieve_after()
    }

    fn read(&self, value: &Value) -> Option<Value> {
        if value.get::<ValueOf<D>>().is_some() {
            return Some(value.clone());
        }
        let json = value.get::<serde_json::Value>()?;
        ValueOf::<D>::from_json(json.clone()).ok().map(Value::new)
    }

    fn equivalent(&self, key: &Key, old: &Value, new: &Value) -> bool {
        match (old.get(), new.get()) {
            (Some(old), Some(new)) => self.0.equivalent(key, old, new),
            _ => old == new,
        }
    }

    fn validate(&self, key: &Key, value: &Value) -> Result<(), InvalidValue> {
        match value.get::<ValueOf<D>>() {
            Some(value) => self.0.validate(key, value),
            None => {
                let problem = value
                    .get::<serde_json::Value>()
                    .and_then(|json| ValueOf::<D>::from_json(json.clone()).err())
                    .unwrap_or_else(|| "it is of another type".to_owned());
                let name = self.0.name();
                Err(InvalidValue {
                    reason: format!("not a value of {name}: {problem}"),
                    fields: vec![],
                })
            }
        }
    }

    fn recreate(&self, key: &Key, old: &Value, new: &Value, metadata: Option<&Metadata>) -> bool {
        match (old.get(), new.get()) {
            (Some(old), Some(new)) => {
                self.0.recreate(key, old, new, metadata.and_then(Metadata::get))
            }
            _ => false,
        }
    }

    fn is_retriable(&self, error: &OperationError) -> bool {
        self.0.is_retriable(error)
    }

    fn derived(&self, key: &Key, value: &Value) -> Vec<Derived> {
        value.get().map(|value| self.0.derived(key, value)).unwrap_or_default()
    }

    fn dependencies(&self, key: &Key, value: &Value) -> Vec<Dependency> {
        value.get().map(|value| self.0.dependencies(key, value)).unwrap_or_default()
    }

    fn create(self: Arc<Self>, context: Context, key: Key, value: Value) -> Job<Option<Metadata>> {
        Box::pin(async move {
            let metadata = self.0.create(&context, &key, typed::<D>(&value)?).await?;
            Ok(self.0.metadata_index().is_some().then(|| Metadata::new(metadata)))
        })
    }

    fn update(
        self: Arc<Self>,
        context: Context,
        key: Key,
        old: Value,
        new: Value,
        metadata: Option<Metadata>,
    ) -> Job<Option<Metadata>> {
        Box::pin(async move {
            let metadata = metadata.as_ref().and_then(Metadata::get);
            let (old, new) = (typed::<D>(&old)?, typed::<D>(&new)?);
            let metadata = self.0.update(&context, &key, old, new, metadata).await?;
            Ok(metadata.map(Metadata::new).filter(|_| self.0.metadata_index().is_some()))
        })
    }

    fn delete(
        self: Arc<Self>,
        context: Context,
        key: Key,
        value: Value,
        metadata: Option<Metadata>,
    ) -> Job<Option<Metadata>> {
        Box::pin(async move {
            let metadata = metadata.as_ref().and_then(Metadata::get);
            self.0.delete(&context, &key, typed::<D>(&value)?, metadata).await?;
            Ok(None)
        })
    }

    fn retrieve(
        self: Arc<Self>,
        context: Context,
        known: Vec<ErasedKnown>,
    ) -> Job<Vec<ErasedRetrieved>> {
        Box::pin(async move {
            let known: Vec<_> = known
                .iter()
                .filter_map(|known| {
                    Some(Known {
                        key: &known.key,
                        value: known.value.get()?,
                        metadata: known.metadata.as_ref().and_then(Metadata::get),
                        origin: known.origin,
                    })
                })
                .collect();
            let found = self.0.retrieve(&context, &known).await?;
            let keeps = self.0.metadata_index().is_some();
            let erase = |found: Retrieved<ValueOf<D>, D::Metadata>| Retrieved {
                key: found.key,
                value: Value::new(found.value),
                metadata: found.metadata.map(Metadata::new).filter(|_| keeps),
                origin: found.origin,
            };
            Ok(found.into_iter().map(erase).collect())
        })
    }
}
