//! Kinds whose objects somebody keeps: an engine that must decide before a write is acknowledged.
//!
//! For such a kind the rules of the strategy hold as for any other; what would be written to the
//! store is handed to the [`Keeper`] instead. It does what the write asks for (opens a session, ends
//! an instance), publishes the object in the store itself, and answers with it. Reads, lists and
//! watches go to the store as ever. Who wrote which field is not noted for such kinds, except for what
//! is applied: their writes are orders, not settings that several parties share.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use crate::object::{Key, Record};
use crate::status::Error;

/// An object that passed the rules of its kind.
pub type Prepared = Map<String, Value>;

/// Keeps the objects of a kind.
pub trait Keeper: Send + Sync + std::fmt::Debug {
    /// An object shall be made.
    fn create(&self, key: Key, object: Prepared) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// The refusal of every creation and update, if the keeper takes none. A dry run answers with it
    /// too.
    fn read_only(&self) -> Option<Error> {
        None
    }

    /// An object shall become another, or is marked as being deleted. `before` is what the caller
    /// saw; a keeper to whom somebody else has said otherwise since answers that it is stale, and
    /// the caller looks again.
    fn update(
        &self,
        key: Key,
        before: Arc<Record>,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// An object shall go at once. `before` is what the caller saw.
    fn remove(&self, key: Key, before: Arc<Record>) -> BoxFuture<'_, Result<Arc<Record>, Error>>;

    /// An object that is gone and can be read a little longer.
    fn recall(&self, key: &Key) -> Option<Arc<Record>>;
}
