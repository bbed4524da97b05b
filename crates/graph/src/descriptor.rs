//! The traits that a user of the engine implements: a [`Model`] names the values of one type, a
//! [`Descriptor`] creates, updates, deletes and retrieves them.
//!
//! Everything but the four operations is a pure function of its arguments: the engine calls them as
//! often as it likes, also while it only plans. The operations are asynchronous, get a [`Context`],
//! and run in parallel if [`Options::parallel`](crate::Options::parallel) allows it.

mod abilities;
mod error;
mod model;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub use self::abilities::Abilities;
use self::abilities::NotImplemented;
pub use self::error::{InvalidValue, OperationError};
pub use self::model::{Model, PatternModel, PrefixModel};
use crate::key::Key;
use crate::metadata::{Metadata, MetadataIndexes, MetadataType};
use crate::selector::KeySelector;
use crate::state::Origin;
use crate::value::{Value, ValueType};

/// The circumstances of an operation.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) shared: Arc<SharedContext>,
    pub(crate) base: Option<Key>,
    pub(crate) revert: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct SharedContext {
    pub(crate) transaction: u64,
    pub(crate) attempt: u32,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) cancellation: CancellationToken,
    pub(crate) indexes: MetadataIndexes,
}

impl Context {
    /// The sequence number of the transaction.
    pub fn transaction(&self) -> u64 {
        self.shared.transaction
    }

    /// Which retry this is; 0 for the first try.
    pub fn attempt(&self) -> u32 {
        self.shared.attempt
    }

    /// When the operation is cancelled, if ever.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.shared.deadline
    }

    /// Cancelled when the engine stops or the deadline has passed.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.shared.cancellation
    }

    /// The key of the value that this one is derived from.
    pub fn base(&self) -> Option<&Key> {
        self.base.as_ref()
    }

    /// Whether the operation reverts an earlier one.
    pub fn is_revert(&self) -> bool {
        self.revert
    }

    /// The metadata of all descriptors, by index name and label.
    pub fn indexes(&self) -> &MetadataIndexes {
        &self.shared.indexes
    }
}

type KeyTest = Arc<dyn Fn(&str) -> bool + Send + Sync>;
type ValueTest = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// A value that must exist before another can.
///
/// ```
/// use mainstay_graph::{AnyOf, Dependency};
///
/// // One key, and a condition on its value.
/// let mtu = Dependency::on("interface/eth0").when(|mtu: &u32| *mtu >= 1500);
/// assert_eq!(mtu.label(), "interface/eth0");
///
/// // Any key of a set.
/// let uplink = Dependency::any_of("uplink", AnyOf::prefixes(["interface/uplink-"]));
/// assert_eq!(uplink.label(), "uplink");
/// ```
#[derive(Clone)]
pub struct Dependency {
    pub(crate) label: Arc<str>,
    pub(crate) target: Target,
    pub(crate) test: Option<ValueTest>,
}

/// The target of a dependency.
#[derive(Clone)]
pub(crate) enum Target {
    Key(Key),
    AnyOf(Arc<AnyOf>),
}

/// A set of keys, one of which is enough.
///
/// ```
/// use mainstay_graph::AnyOf;
///
/// let even = AnyOf::prefixes(["port/"]).matching(|key| key.ends_with(['0', '2', '4', '6', '8']));
/// # let _ = even;
/// ```
#[derive(Clone, Default)]
pub struct AnyOf {
    pub(crate) prefixes: Vec<Arc<str>>,
    pub(crate) selector: Option<KeyTest>,
}

impl AnyOf {
    /// Any key with one of these prefixes; with none given, any key at all.
    pub fn prefixes(prefixes: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let prefixes = prefixes.into_iter().map(|prefix| prefix.as_ref().into()).collect();
        Self { prefixes, selector: None }
    }

    /// Narrows the set to keys that the predicate accepts.
    #[must_use]
    pub fn matching(mut self, selector: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.selector = Some(Arc::new(selector));
        self
    }

    /// The prefixes of its keys; the empty one if it has none.
    pub(crate) fn all_prefixes(&self) -> impl Iterator<Item = &str> {
        let all = self.prefixes.is_empty().then_some("");
        self.prefixes.iter().map(|prefix| &**prefix).chain(all)
    }

    pub(crate) fn accepts(&self, key: &str) -> bool {
        (self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| key.starts_with(&**prefix)))
            && self.selector.as_ref().is_none_or(|selector| selector(key))
    }
}

impl Dependency {
    /// On one key; the label is the key.
    pub fn on(key: impl Into<Key>) -> Self {
        let key = key.into();
        Self { label: key.as_str().into(), target: Target::Key(key), test: None }
    }

    /// On any key of a set.
    pub fn any_of(label: impl AsRef<str>, set: AnyOf) -> Self {
        Self { label: label.as_ref().into(), target: Target::AnyOf(Arc::new(set)), test: None }
    }

    /// Gives the dependency another label.
    #[must_use]
    pub fn labelled(mut self, label: impl AsRef<str>) -> Self {
        self.label = label.as_ref().into();
        self
    }

    /// Adds a condition on the target's value; a value of another type never satisfies it.
    #[must_use]
    pub fn when<V: ValueType>(mut self, test: impl Fn(&V) -> bool + Send + Sync + 'static) -> Self {
        self.test = Some(Arc::new(move |value: &Value| value.get::<V>().is_some_and(&test)));
        self
    }

    /// The name of the dependency.
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Dependency");
        out.field("label", &self.label);
        match &self.target {
            Target::Key(key) => out.field("key", key),
            Target::AnyOf(set) => out.field("any_of", &set.prefixes),
        };
        out.finish_non_exhaustive()
    }
}

impl fmt::Debug for AnyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyOf").field("prefixes", &self.prefixes).finish_non_exhaustive()
    }
}

/// A value that follows from another one.
///
/// ```
/// use mainstay_graph::Derived;
///
/// let member = Derived::new("member/bd1/eth0", "eth0".to_owned());
/// assert!(!member.property);
/// assert!(Derived::property("state/bd1/up", true).property);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Derived {
    /// Its key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// Whether it needs no operation: other values depend on it, that is all.
    pub property: bool,
}

impl Derived {
    /// A derived value, handled by the descriptor its key belongs to; a property if there is none.
    pub fn new<V: ValueType>(key: impl Into<Key>, value: V) -> Self {
        Self { key: key.into(), value: Value::new(value), property: false }
    }

    /// A derived value that needs no operation, whichever descriptor its key belongs to.
    pub fn property<V: ValueType>(key: impl Into<Key>, value: V) -> Self {
        Self { property: true, ..Self::new(key, value) }
    }
}

/// A value that exists in the south.
///
/// ```
/// use mainstay_graph::{Origin, Retrieved};
///
/// let found = Retrieved::<u32, ()>::new("interface/eth0", 1500).origin(Origin::South);
/// assert_eq!(found.value, 1500);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Retrieved<V, M> {
    /// Its key.
    pub key: Key,
    /// The value.
    pub value: V,
    /// Its metadata, if the descriptor keeps any.
    pub metadata: Option<M>,
    /// Where it comes from, if the south knows.
    pub origin: Origin,
}

impl<V, M> Retrieved<V, M> {
    /// A value without metadata, of unknown origin.
    pub fn new(key: impl Into<Key>, value: V) -> Self {
        Self { key: key.into(), value, metadata: None, origin: Origin::Unknown }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn metadata(mut self, metadata: M) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Sets the origin.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }
}

/// A value that the engine knows, given to a retrieval so that it can recognise what it finds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Known<'a, V, M> {
    /// Its key.
    pub key: &'a Key,
    /// The value as last wanted or retrieved.
    pub value: &'a V,
    /// Its metadata, if it was ever applied.
    pub metadata: Option<&'a M>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Teaches the engine one type of value.
///
/// Only `name` and `model` are required; the page of the crate has a whole example. The engine knows
/// which operations are implemented from the `impl` block: without `update` a change is a deletion
/// and a creation, without `retrieve` a resync leaves the values as they are, and without `create` or
/// `delete` (for values that only the south makes) that operation fails. The name, the keys, the
/// abilities and the pure functions must answer the same every time.
///
/// Descriptors of different types are kept together as [`BoxedDescriptor`](crate::BoxedDescriptor)s.
pub trait Descriptor: Sized + Send + Sync + 'static {
    /// The model of the values.
    type Model: Model;
    /// The metadata of an applied value, such as an index or a [`Handle`](crate::Handle); `()` for
    /// none.
    type Metadata: MetadataType;

    /// The descriptor's name, unique in an engine.
    fn name(&self) -> &str;

    /// The model.
    fn model(&self) -> &Self::Model;

    /// The keys of this descriptor, derived ones included; by default those of the model.
    fn keys(&self) -> KeySelector {
        self.model().selector()
    }

    /// The operations that may be called; by default all that are implemented. Implement this only
    /// to give up some of them at run time.
    fn abilities(&self) -> Abilities {
        Abilities::of::<Self>()
    }

    /// The name of the index from labels to metadata; none to keep no metadata.
    fn metadata_index(&self) -> Option<&str> {
        None
    }

    /// The label of a key; the key itself if it is not of the model.
    fn label(&self, key: &Key) -> String {
        self.model().parse(key).unwrap_or(key).to_owned()
    }

    /// Whether a change from one value to the other needs no operation.
    fn equivalent(&self, _key: &Key, old: &ValueOf<Self>, new: &ValueOf<Self>) -> bool {
        old == new
    }

    /// Checks a wanted value. Not called while planning.
    fn validate(&self, _key: &Key, _value: &ValueOf<Self>) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Creates a value; returns its metadata.
    fn create(
        &self,
        _context: &Context,
        _key: &Key,
        _value: &ValueOf<Self>,
    ) -> impl Future<Output = Result<Self::Metadata, OperationError>> + Send {
        NotImplemented::new("create")
    }

    /// Changes a value in place; returns new metadata, or none to keep the old. Not called for
    /// changes that [`Self::recreate`] decides to re-create.
    fn update(
        &self,
        _context: &Context,
        _key: &Key,
        _old: &ValueOf<Self>,
        _new: &ValueOf<Self>,
        _metadata: Option<&Self::Metadata>,
    ) -> impl Future<Output = Result<Option<Self::Metadata>, OperationError>> + Send {
        NotImplemented::new("update")
    }

    /// Deletes a value.
    fn delete(
        &self,
        _context: &Context,
        _key: &Key,
        _value: &ValueOf<Self>,
        _metadata: Option<&Self::Metadata>,
    ) -> impl Future<Output = Result<(), OperationError>> + Send {
        NotImplemented::new("delete")
    }

    /// Lists every base value of this descriptor that exists in the south.
    fn retrieve(
        &self,
        _context: &Context,
        _known: &[Known<'_, ValueOf<Self>, Self::Metadata>],
    ) -> impl Future<Output = Result<RetrievedBy<Self>, OperationError>> + Send {
        NotImplemented::new("retrieve")
    }

    /// Descriptors whose values are retrieved before those of this one.
    fn retrieve_after(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether a change needs a deletion and a creation.
    fn recreate(
        &self,
        _key: &Key,
        _old: &ValueOf<Self>,
        _new: &ValueOf<Self>,
        _metadata: Option<&Self::Metadata>,
    ) -> bool {
        false
    }

    /// Whether a retry may help after an error that does not decide that itself.
    fn is_retriable(&self, _error: &OperationError) -> bool {
        true
    }

    /// The values that follow from this one; each has its own operations and dependencies. They
    /// depend on the key and the value alone: the execution of a plan uses the list of the plan.
    fn derived(&self, _key: &Key, _value: &ValueOf<Self>) -> Vec<Derived> {
        Vec::new()
    }

    /// The values that must exist before this one can.
    fn dependencies(&self, _key: &Key, _value: &ValueOf<Self>) -> Vec<Dependency> {
        Vec::new()
    }
}

/// The result of a retrieval.
pub type RetrievedBy<D> = Vec<Retrieved<ValueOf<D>, <D as Descriptor>::Metadata>>;

/// The value type of a descriptor.
pub type ValueOf<D> = <<D as Descriptor>::Model as Model>::Value;

/// Labels that a user gave to a value: kept and shown, never interpreted.
pub type UserLabels = BTreeMap<String, String>;

/// A retrieved value with its type put aside.
pub(crate) type ErasedRetrieved = Retrieved<Value, Metadata>;

/// A known value with its type put aside.
#[derive(Debug, Clone)]
pub(crate) struct ErasedKnown {
    pub(crate) key: Key,
    pub(crate) value: Value,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) origin: Origin,
}
