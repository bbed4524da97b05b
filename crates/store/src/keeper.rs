//! Kinds whose writes are handled by an engine that must decide before a write is acknowledged.
//!
//! For such a kind the rules of the strategy hold as for any other, but the object is handed to the
//! [`Keeper`] instead of being written to the store. The keeper carries the write out (opens a
//! session, ends an instance), publishes the object in the store itself, and returns it. Reads,
//! lists and watches go to the store as for other kinds. Holders of fields are not noted for such
//! kinds, except for applied fields: their writes are commands, not settings that several parties
//! share.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use crate::object::{Key, Record};
use crate::status::Error;

/// An object that passed the rules of its kind.
pub type Prepared = Map<String, Value>;

/// Keeps the objects of a kind.
pub trait Keeper: Send + Sync + std::fmt::Debug {
    /// Creates an object.
    fn create(&self, key: Key, object: Prepared) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// The refusal of every creation and update, if the keeper takes none. A dry run answers with it
    /// too.
    fn read_only(&self) -> Option<Error> {
        None
    }

    /// Replaces an object, or marks it as being deleted. `before` is the object that the caller
    /// read; the keeper returns a conflict if it has changed since, and the caller reads it again.
    fn update(
        &self,
        key: Key,
        before: Arc<Record>,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// Removes an object at once. `before` is the object that the caller read.
    fn remove(&self, key: Key, before: Arc<Record>) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// An object that is gone and can be read a little longer.
    fn recall(&self, key: &Key) -> Option<Arc<Record>>;
}
