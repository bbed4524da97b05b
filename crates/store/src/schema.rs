//! Structural schemas: the shape of a kind's objects, made once from its Rust type.
//!
//! A [`Schema`] is a tree with every reference inlined, as a CustomResourceDefinition has it. It
//! finds and prunes unknown fields, fills in defaults, and validates, each in one walk over the
//! object without copying it; and it can be written as OpenAPI v3. The `x-kubernetes-*`
//! extensions are kept, for code that merges lists.
//!
//! Invariants: pruning and defaulting are idempotent, and neither makes a valid object invalid.

mod convert;
mod decode;
mod openapi;
mod strategic;
#[cfg(test)]
mod tests;
mod validate;
mod walk;

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

pub use decode::{Decoded, decode};
pub(crate) use walk::default as fill;

use crate::meta::ObjectMeta;
use crate::registry::Typed;
use crate::status::{self, Violation};

/// Why a Rust type cannot be described. A mistake in the type, found at start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The type is not an object with named fields.
    #[error("the type is not an object")]
    NotAnObject,
    /// A pattern is not a regular expression.
    #[error("the pattern {pattern:?} is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        reason: String,
    },
    /// The schema uses something a structural schema cannot say.
    #[error("{path}: {what}")]
    Unsupported {
        /// Where in the type.
        path: String,
        /// The feature it uses.
        what: String,
    },
}

/// The structure of a kind's objects.
#[derive(Clone, Debug)]
pub struct Schema {
    root: Arc<Node>,
}

/// The schema of `metadata`, which all kinds share.
static METADATA: LazyLock<Result<Arc<Node>, Error>> =
    LazyLock::new(|| convert::node_of::<ObjectMeta>().map(Arc::new));

impl Schema {
    /// The schema of a kind, with `apiVersion`, `kind` and `metadata` added.
    ///
    /// # Errors
    /// If the type has no structural schema.
    pub fn of<T: Typed>() -> Result<Self, Error> {
        let mut root = convert::node_of::<T>()?;
        let metadata = METADATA.clone()?;
        let Shape::Object(fields) = &mut root.shape else {
            return Err(Error::NotAnObject);
        };
        for (name, about) in [("apiVersion", openapi::API_VERSION), ("kind", openapi::KIND)] {
            let mut node = Node::new(Shape::String(Text::default()));
            node.description = Some(about.to_owned());
            fields.put(name, Arc::new(node));
        }
        fields.put("metadata", metadata);
        fields.required.retain(|name| name != "metadata");
        Ok(Self { root: Arc::new(root) })
    }

    /// The schema of `metadata`, which all kinds share.
    ///
    /// # Errors
    /// Never in a program that passes its tests.
    pub fn of_metadata() -> Result<Self, Error> {
        METADATA.clone().map(|root| Self { root })
    }

    /// A schema that allows everything.
    #[must_use]
    pub fn anything() -> Self {
        let mut root = Node::new(Shape::Any);
        root.preserve_unknown = true;
        Self { root: Arc::new(root) }
    }

    /// The tree itself.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Whether objects have a field of this name at the top.
    #[must_use]
    pub fn has_property(&self, name: &str) -> bool {
        matches!(&self.root.shape, Shape::Object(fields) if fields.get(name).is_some())
    }

    /// Removes the fields the schema does not know, and null where it means nothing; quantities
    /// given as numbers become texts. Returns the paths of what it did not know, as `spec.nodes[0].nmae`.
    pub fn prune(&self, object: &mut Map<String, Value>) -> Vec<String> {
        walk::prune(&self.root, object)
    }

    /// Fills in defaults.
    pub fn default(&self, object: &mut Map<String, Value>) {
        walk::default(&self.root, object);
    }

    /// Whether defaulting may add anything.
    pub(crate) fn has_defaults(&self) -> bool {
        self.root.has_defaults
    }

    /// Everything the object breaks, with the paths of the fields.
    #[must_use]
    pub fn validate(&self, object: &Map<String, Value>) -> Vec<Violation> {
        validate::validate(&self.root, object)
    }

    /// The first field of the object's metadata whose type is wrong.
    pub(crate) fn mistyped_metadata(&self, object: &Map<String, Value>) -> Option<Mistyped> {
        let Shape::Object(fields) = &self.root.shape else {
            return None;
        };
        let node = fields.get("metadata")?;
        validate::mistyped(node, object.get("metadata")?)
    }

    /// Merges a strategic merge patch into an object: lists the schema calls mergeable are merged
    /// item by item.
    ///
    /// # Errors
    /// 400 if a directive of the patch makes no sense.
    pub fn merge_strategic(
        &self,
        object: &mut Map<String, Value>,
        patch: &Map<String, Value>,
    ) -> Result<(), status::Error> {
        strategic::merge(Some(&self.root), object, patch)
    }

    /// The schema as OpenAPI v3.
    #[must_use]
    pub fn openapi(&self) -> Value {
        openapi::write(&self.root)
    }
}

/// A value of the wrong type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistyped(pub(crate) String);

/// One place in the tree.
#[derive(Debug)]
pub struct Node {
    /// Its description.
    pub description: Option<String>,
    /// The values that are allowed.
    pub shape: Shape,
    /// Whether null is a value of its own there.
    pub nullable: bool,
    /// The default.
    pub default: Option<Value>,
    /// The values allowed, if not all.
    pub allowed: Vec<Value>,
    /// Whether fields the schema does not know are kept.
    pub preserve_unknown: bool,
    /// Extensions and annotations that are passed on as they are.
    pub extensions: Vec<(String, Value)>,
    /// Whether a default stands here or below, so that defaulting need not look in vain.
    pub(crate) has_defaults: bool,
}

impl Node {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            description: None,
            shape,
            nullable: false,
            default: None,
            allowed: Vec::new(),
            preserve_unknown: false,
            extensions: Vec::new(),
            has_defaults: false,
        }
    }

    /// An extension by its name, as `x-kubernetes-list-type`.
    #[must_use]
    pub fn extension(&self, name: &str) -> Option<&Value> {
        self.extensions.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// The values that are allowed at a place.
#[derive(Debug)]
pub enum Shape {
    /// Anything at all.
    Any,
    /// True or false.
    Boolean,
    /// A whole number.
    Integer(Range),
    /// Any number.
    Number(Range),
    /// A text.
    String(Text),
    /// A whole number or a text.
    IntOrString {
        /// Whether the text or number is a quantity.
        quantity: bool,
    },
    /// A list.
    List(List),
    /// An object with named fields, or a map.
    Object(Fields),
}

/// Bounds of a number.
#[derive(Debug, Default)]
pub struct Range {
    /// The least value.
    pub minimum: Option<f64>,
    /// The greatest value.
    pub maximum: Option<f64>,
    /// The value it must be above.
    pub above: Option<f64>,
    /// The value it must be below.
    pub below: Option<f64>,
    /// It must be a multiple of this.
    pub multiple_of: Option<f64>,
    /// The OpenAPI format, as `int64`.
    pub format: Option<String>,
}

/// Rules of a text.
#[derive(Debug, Default)]
pub struct Text {
    /// The least number of characters.
    pub min_length: Option<usize>,
    /// The greatest number of characters.
    pub max_length: Option<usize>,
    /// The pattern it must match.
    pub pattern: Option<Pattern>,
    /// The OpenAPI format, as `date-time`.
    pub format: Option<String>,
}

/// A regular expression, compiled once.
pub struct Pattern {
    /// As it was written.
    pub text: String,
    pub(crate) regex: regex_automata::meta::Regex,
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Result<Self, Error> {
        let regex = regex_automata::meta::Regex::new(text).map_err(|error| Error::Pattern {
            pattern: text.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self { text: text.to_owned(), regex })
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// Rules of a list.
#[derive(Debug)]
pub struct List {
    /// The schema of its items.
    pub items: Arc<Node>,
    /// The least number of items.
    pub min_items: Option<usize>,
    /// The greatest number of items.
    pub max_items: Option<usize>,
    /// How items are identified.
    pub identity: Identity,
}

/// How the items of a list are identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// They are not: the list is one value.
    Atomic,
    /// By their value, which may occur once.
    Set,
    /// By these fields, which together may occur once.
    Map(Vec<String>),
}

/// Rules of an object.
#[derive(Debug, Default)]
pub struct Fields {
    /// Its named fields, in order of their names.
    properties: Vec<(String, Arc<Node>)>,
    /// The fields it must have.
    pub required: Vec<String>,
    /// The schema of its other fields, if it may have others.
    pub additional: Option<Arc<Node>>,
    /// The least number of fields.
    pub min_properties: Option<usize>,
    /// The greatest number of fields.
    pub max_properties: Option<usize>,
}

impl Fields {
    /// A named field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Node>> {
        let at = self.properties.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        self.properties.get(at).map(|(_, node)| node)
    }

    /// Its named fields, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Node>)> {
        self.properties.iter().map(|(name, node)| (name.as_str(), node))
    }

    pub(crate) fn put(&mut self, name: &str, node: Arc<Node>) {
        match self.properties.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
            Ok(at) => self.properties[at].1 = node,
            Err(at) => self.properties.insert(at, (name.to_owned(), node)),
        }
    }
}
