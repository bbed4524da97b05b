//! Values of any type.
//!
//! A descriptor is written against a Rust type; the graph holds values of every type side by side.
//! [`Value`] is the bridge: shared, compared and shown without knowing the type, and given back to
//! its descriptor as what it was. A value that arrives as JSON (over the wire, from the journal, or
//! before its descriptor is known) stays JSON until a descriptor reads it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use crate::metadata::Metadata;

/// A Rust type whose instances can be values.
///
/// Implemented for every type that serde can read and write. For the messages of `prost`, which serde
/// does not know, the macro `proto_value!` of the feature `prost` implements it.
pub trait ValueType: PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The value as JSON, as it is shown, journalled and sent.
    fn to_json(&self) -> Result<serde_json::Value, String>;

    /// Reads a value from JSON.
    fn from_json(json: serde_json::Value) -> Result<Self, String>
    where
        Self: Sized;

    /// About the number of bytes that the value takes.
    fn weight(&self) -> usize;
}

impl<T> ValueType for T
where
    T: Serialize + DeserializeOwned + PartialEq + fmt::Debug + Send + Sync + 'static,
{
    fn to_json(&self) -> Result<serde_json::Value, String> {
        serde_json::to_value(self).map_err(|error| error.to_string())
    }

    fn from_json(json: serde_json::Value) -> Result<Self, String> {
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    fn weight(&self) -> usize {
        let mut counted = Counted(0);
        match serde_json::to_writer(&mut counted, self) {
            Ok(()) => counted.0,
            Err(_) => size_of::<T>(),
        }
    }
}

trait Erased: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn json(&self) -> serde_json::Value;
    fn same(&self, other: &dyn Erased) -> bool;
    fn weight(&self) -> usize;
}

impl<T: ValueType> Erased for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn json(&self) -> serde_json::Value {
        self.to_json().unwrap_or_else(unshowable)
    }

    fn same(&self, other: &dyn Erased) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|other| self == other)
    }

    fn weight(&self) -> usize {
        ValueType::weight(self)
    }
}

pub(crate) fn unshowable(error: String) -> serde_json::Value {
    serde_json::Value::String(format!("cannot be shown as JSON: {error}"))
}

struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A value of any type. Cheap to clone.
///
/// ```
/// use mainstay_graph::Value;
///
/// let value = Value::new(1500_u32);
/// assert_eq!(value.get::<u32>(), Some(&1500));
/// assert_eq!(value.get::<u64>(), None);
/// assert_eq!(value.json(), serde_json::json!(1500));
/// ```
#[derive(Clone)]
pub struct Value(Arc<dyn Erased>);

impl Value {
    /// Wraps a typed value.
    pub fn new<T: ValueType>(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// The value as its type, if it is of that type.
    pub fn get<T: ValueType>(&self) -> Option<&T> {
        self.0.as_any().downcast_ref()
    }

    /// The value as JSON.
    pub fn json(&self) -> serde_json::Value {
        self.0.json()
    }

    /// About the number of bytes that the value takes.
    pub fn weight(&self) -> usize {
        self.0.weight()
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.same(&*other.0)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json().fmt(f)
    }
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        Self::new(json)
    }
}

impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_compare_by_type_and_content() {
        assert_eq!(Value::new(1_u32), Value::new(1_u32));
        assert_ne!(Value::new(1_u32), Value::new(2_u32));
        assert_ne!(Value::new(1_u32), Value::new(1_u64));
        assert_eq!(Value::new("a".to_owned()).json(), serde_json::json!("a"));
        assert_eq!(Value::new(vec![1, 22]).weight(), "[1,22]".len());
    }
}
