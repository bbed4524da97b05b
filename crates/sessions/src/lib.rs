//! Sessions: keeps pools of warm instances and assigns one to every session within milliseconds.
//!
//! * [`api`] has the kinds: applications, their sessions, their instances.
//! * Pure decisions: [`scale`] (how many instances), [`endpoints`] (which port), [`secrets`] (which
//!   environment), and [`engine`], which combines them.
//! * [`controller`] runs the engine on a store.
//! * [`protocol`] is the gRPC protocol between servers and agents.
//! * [`gateway`] forwards external connections to instances.
//! * For people: [`cli`] has the commands, [`mod@bench`] a workload.

pub mod api;
pub mod bench;
pub mod cli;
pub mod controller;
pub mod endpoints;
pub mod engine;
pub mod gateway;
pub mod protocol;
pub mod scale;
pub mod secrets;

pub use api::kinds;
