//! Admission: judges a write on the object as it would be stored.
//!
//! The body of a request differs from the stored object: unknown fields are dropped, defaults
//! filled in, patches merged, and a subresource takes only its own part.
//! [`Resources`](crate::resources::Resources) therefore asks an [`Admission`] right before the
//! compare-and-swap, on every attempt. Exactly the admitted object is written: after a conflict the
//! next attempt is judged again. A dry run and a write that changes nothing are judged the same.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use crate::status::Error;

/// A change of one object, exactly as it would be written.
#[derive(Clone, Copy, Debug)]
pub struct Proposed<'a> {
    /// The object as it is stored; absent for a new object.
    pub old: Option<&'a Map<String, Value>>,
    /// The object as it would be stored; absent for a deletion.
    pub new: Option<&'a Map<String, Value>>,
}

/// Decides whether a write may happen.
pub trait Admission: Send + Sync + std::fmt::Debug {
    /// Whether the stored object may be touched at all. Asked before anything is computed from it,
    /// so that a refusal reveals nothing about its contents.
    fn touch<'a>(&'a self, stored: &'a Map<String, Value>) -> BoxFuture<'a, Result<(), Error>>;

    /// Whether this change may be written.
    fn admit<'a>(&'a self, proposed: Proposed<'a>) -> BoxFuture<'a, Result<(), Error>>;
}
