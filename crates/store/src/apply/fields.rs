//! Sets of fields, and their JSON form `FieldsV1`.
//!
//! A set is a tree of path elements; a node says whether its own path belongs to the set. In JSON
//! a field is `f:NAME`, an item of a keyed list `k:{…}`, a member of a set list `v:VALUE`, a
//! position `i:N`, and `.` stands for the node itself where it has children too.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    /// A field of an object.
    Field(String),
    /// The item of a keyed list with these key fields, in order of their names; values as JSON.
    Key(Vec<(String, String)>),
    /// A member of a set, as JSON.
    Value(String),
    /// A position, which other servers may have written.
    Index(usize),
}

impl Element {
    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        Some(match kind {
            "f" => Self::Field(rest.to_owned()),
            "k" => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(rest).ok()?;
                Self::Key(keys.into_iter().map(|(name, key)| (name, key.to_string())).collect())
            }
            "v" => Self::Value(serde_json::from_str::<Value>(rest).ok()?.to_string()),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let keys = keys.iter().map(|(name, key)| format!("{}:{key}", Value::from(&**name)));
                format!("k:{{{}}}", keys.collect::<Vec<_>>().join(","))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys = keys.iter().map(|(name, key)| format!("{name}={key}"));
                write!(f, "[{}]", keys.collect::<Vec<_>>().join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// Whether the path that leads here belongs to the set.
    pub(crate) member: bool,
    /// The fields below.
    pub(crate) children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    /// A set of the one path that leads here.
    pub(crate) fn leaf() -> Self {
        Self { member: true, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    pub(crate) fn child(&self, element: &Element) -> Option<&Self> {
        self.children.get(element)
    }

    /// Puts `child` below, unless it is empty.
    pub(crate) fn put(&mut self, element: Element, child: Self) {
        if !child.is_empty() {
            self.children.insert(element, child);
        }
    }

    /// Reads `FieldsV1`; `None` if it is anything else.
    pub(crate) fn parse(json: &Value) -> Option<Self> {
        let mut set = Self::read(json.as_object()?)?;
        set.member = false;
        Some(set)
    }

    fn read(object: &Map<String, Value>) -> Option<Self> {
        let mut set = Self { member: object.is_empty(), ..Self::default() };
        for (name, below) in object {
            if name == "." {
                set.member = true;
            } else {
                set.children.insert(Element::parse(name)?, Self::read(below.as_object()?)?);
            }
        }
        Some(set)
    }

    /// Writes `FieldsV1`.
    pub(crate) fn encode(&self) -> Value {
        let mut object = Map::new();
        if self.member && !self.children.is_empty() {
            object.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            object.insert(element.encode(), child.encode());
        }
        Value::Object(object)
    }

    pub(crate) fn union(mut self, other: &Self) -> Self {
        self.member |= other.member;
        for (element, theirs) in &other.children {
            let mine = self.children.remove(element).unwrap_or_default();
            self.put(element.clone(), mine.union(theirs));
        }
        self
    }

    /// The fields that are in this set and not in the other.
    pub(crate) fn without(mut self, other: &Self) -> Self {
        self.member &= !other.member;
        for (element, theirs) in &other.children {
            if let Some(mine) = self.children.remove(element) {
                self.put(element.clone(), mine.without(theirs));
            }
        }
        self
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { member: self.member && other.member, ..Self::default() };
        for (element, mine) in &self.children {
            if let Some(theirs) = other.child(element) {
                both.put(element.clone(), mine.intersection(theirs));
            }
        }
        both
    }

    /// Every path of the set, as `.spec.replicas`, in order.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, here: &mut String, paths: &mut Vec<String>) {
        if self.member {
            paths.push(here.clone());
        }
        for (element, child) in &self.children {
            let length = here.len();
            here.push_str(&element.to_string());
            child.collect(here, paths);
            here.truncate(length);
        }
    }
}
