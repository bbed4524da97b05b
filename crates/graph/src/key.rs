//! Keys, the small integers that represent them in a graph, and sets of either.
//!
//! A [`Key`] is the text that people write; a [`KeyId`] is the number that the graph stores, so that an edge costs four
//! bytes and a comparison one instruction. Ids are local to one graph and are reused after their
//! key is removed, so code outside the graph never keeps one.
//!
//! Always holds: a [`KeySet`] iterates in ascending order, and a clone never sees later changes of
//! the original.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Identifies a value. Cheap to clone.
///
/// ```
/// use mainstay_graph::Key;
///
/// let key = Key::from("interface/eth0");
/// assert!(key.starts_with("interface/"));
/// assert_eq!(key.clone(), key);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(Arc<str>);

impl Key {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text itself, shared.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl Deref for Key {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The number of a key inside one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyId(pub(crate) u32);

impl KeyId {
    /// The number that no key has.
    pub(crate) const NOWHERE: Self = Self(u32::MAX);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An ordered set that costs nothing when empty, little when it holds one element, and is copied
/// only when a shared copy changes.
///
/// ```
/// use mainstay_graph::KeySet;
///
/// let mut set: KeySet<u32> = [2, 1].into_iter().collect();
/// assert!(set.add(3));
/// assert!(!set.add(3));
/// assert_eq!(set.to_string(), "{1, 2, 3}");
/// ```
#[derive(Clone)]
pub struct KeySet<T: Ord + Clone>(Members<T>);

#[derive(Clone)]
enum Members<T: Ord + Clone> {
    None,
    One(T),
    Many(Arc<BTreeSet<T>>),
}

impl<T: Ord + Clone> KeySet<T> {
    /// An empty set.
    pub const fn new() -> Self {
        Self(Members::None)
    }

    /// Adds an element; returns whether the set changed.
    pub fn add(&mut self, element: T) -> bool {
        match &mut self.0 {
            Members::None => {
                self.0 = Members::One(element);
                true
            }
            Members::One(only) if *only == element => false,
            Members::One(only) => {
                self.0 = Members::Many(Arc::new(BTreeSet::from([only.clone(), element])));
                true
            }
            Members::Many(many) => !many.contains(&element) && Arc::make_mut(many).insert(element),
        }
    }

    /// Removes an element; returns whether the set changed.
    pub fn remove<Q: Ord + ?Sized>(&mut self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        match &mut self.0 {
            Members::None => false,
            Members::One(only) => {
                let found = (*only).borrow() == element;
                if found {
                    self.0 = Members::None;
                }
                found
            }
            Members::Many(many) => {
                let found = many.contains(element) && Arc::make_mut(many).remove(element);
                if many.is_empty() {
                    self.0 = Members::None;
                }
                found
            }
        }
    }

    /// Removes every element of `other`; returns whether the set changed.
    pub fn subtract(&mut self, other: &Self) -> bool {
        let before = self.len();
        for element in other.iter() {
            self.remove(element);
        }
        self.len() != before
    }

    /// Keeps only elements that `other` holds too; returns whether the set changed.
    pub fn intersect(&mut self, other: &Self) -> bool {
        let gone: Vec<T> =
            self.iter().filter(|element| !other.contains(*element)).cloned().collect();
        for element in &gone {
            self.remove(element);
        }
        !gone.is_empty()
    }

    /// Whether the element is in the set.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        match &self.0 {
            Members::None => false,
            Members::One(only) => only.borrow() == element,
            Members::Many(many) => many.contains(element),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match &self.0 {
            Members::None => 0,
            Members::One(_) => 1,
            Members::Many(many) => many.len(),
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Members::None)
    }

    /// The elements in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, many) = match &self.0 {
            Members::None => (None, None),
            Members::One(only) => (Some(only), None),
            Members::Many(many) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl<T: Ord + Clone> PartialEq for KeySet<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Ord + Clone> Eq for KeySet<T> {}

impl<T: Ord + Clone> Default for KeySet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Ord + Clone> FromIterator<T> for KeySet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut set = Self::new();
        for element in elements {
            set.add(element);
        }
        set
    }
}

impl<T: Ord + Clone + fmt::Debug> fmt::Debug for KeySet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Ord + Clone + fmt::Display> fmt::Display for KeySet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (position, element) in self.iter().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{element}")?;
        }
        f.write_str("}")
    }
}

impl<T: Ord + Clone + Serialize> Serialize for KeySet<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: Ord + Clone + Deserialize<'de>> Deserialize<'de> for KeySet<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<T>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(keys: &[&str]) -> KeySet<Key> {
        keys.iter().map(|key| Key::from(*key)).collect()
    }

    #[test]
    fn adding_and_removing_return_whether_the_set_changed() {
        let mut keys = KeySet::<Key>::new();
        assert!(keys.is_empty());
        assert!(keys.add("b".into()));
        assert!(!keys.add("b".into()));
        assert!(keys.add("a".into()));
        assert!(keys.add("c".into()));
        assert_eq!(keys.len(), 3);
        assert!(keys.remove("b"));
        assert!(!keys.remove("b"));
        assert!(keys.contains("a") && keys.contains("c") && !keys.contains("b"));
        assert!(keys.remove("a") && keys.remove("c"));
        assert!(keys.is_empty());
        assert_eq!(keys, KeySet::new());
    }

    #[test]
    fn subtract_and_intersect_follow_set_arithmetic() {
        let mut keys = set(&["a", "b", "c"]);
        assert!(keys.subtract(&set(&["b", "x"])));
        assert!(!keys.subtract(&set(&["b", "x"])));
        assert_eq!(keys, set(&["a", "c"]));
        assert!(keys.intersect(&set(&["c", "d"])));
        assert!(!keys.intersect(&set(&["c", "d"])));
        assert_eq!(keys, set(&["c"]));
        assert!(!keys.subtract(&KeySet::new()));
        assert!(keys.intersect(&KeySet::new()));
        assert!(keys.is_empty());
    }

    #[test]
    fn a_copy_is_independent_of_its_original() {
        let original = set(&["a", "b"]);
        let mut copy = original.clone();
        copy.add("c".into());
        copy.remove("a");
        assert_eq!(original, set(&["a", "b"]));
        assert_eq!(copy, set(&["b", "c"]));
    }

    #[test]
    fn text_and_json_are_ordered() {
        let keys = set(&["b", "a"]);
        assert_eq!(keys.to_string(), "{a, b}");
        assert_eq!(set(&[]).to_string(), "{}");
        assert_eq!(serde_json::to_string(&keys).unwrap(), r#"["a","b"]"#);
        assert_eq!(serde_json::from_str::<KeySet<Key>>(r#"["b","a","b"]"#).unwrap(), keys);
    }
}
