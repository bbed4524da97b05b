//! Sessions: a warm instance for everyone who asks, on a node that is alive.
//!
//! * [`api`] has the resources: applications, their sessions, their instances.
//! * Pure decisions: [`scale`] (how many instances), [`endpoints`] (which port), and [`engine`], which puts them together.
//! * Shells: [`controller`] runs the engine beside the store.
//! * [`protocol`] is what servers and agents say to each other.
//! * [`gateway`] forwards from the outside to instances.

pub mod api;
pub mod controller;
pub mod endpoints;
pub mod engine;
pub mod gateway;
pub mod protocol;
pub mod scale;
pub mod secrets;

pub use api::kinds;
