//! Versioned objects with compare-and-swap, list and watch; leases; the registry of kinds.
//!
//! Enter at [`objects::Objects`], the trait every backend serves, and at [`open`], which picks a
//! backend by URL. Code outside this crate does not know which backend it uses.

pub mod admission;
pub mod apply;
pub mod backup;
pub mod builtin;
pub mod cache;
pub mod check;
pub mod clock;
pub mod column;
pub mod etcd;
pub mod identity;
pub mod keeper;
pub mod kubernetes;
pub mod lease;
pub mod location;
pub mod memory;
pub mod meta;
pub mod names;
pub mod object;
pub mod objects;
pub mod registry;
pub mod remote;
pub mod resources;
pub mod schema;
pub mod seal;
pub mod select;
pub mod snapshot;
pub mod sqlite;
pub mod status;
pub mod strategy;
pub mod tiered;
pub mod value;

pub use location::{Location, Settings, open};
/// Describes the types of kinds that other crates declare.
pub use schemars;
