//! Sessions: a warm instance for everyone who asks, on a node that is alive.
//!
//! * [`api`] has the resources: applications, their sessions, their instances.
//! * [`protocol`] is what servers and agents say to each other.
//! * [`gateway`] forwards from the outside to instances.

pub mod api;
pub mod gateway;
pub mod protocol;

pub use api::kinds;
