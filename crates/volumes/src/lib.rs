//! Volumes: place every replica, and say why.
//!
//! * [`api`] has the resources: classes, pools, volume groups, volumes, replicas, attachments.
//! * Pure decisions are named for what they decide: [`configure`] (what a class means),
//!   [`eligible`] (which nodes a pool offers), [`form`] (which replicas a volume should have),
//!   [`schedule`] (guards and words of scheduling; the choice itself is
//!   [`mainstay_placement::Pass`]), [`attach`] (where a volume is wanted), [`satisfy`] (whether a
//!   replica may stay), [`ledger`] (what every group can still promise), [`candidates`] (a pool's
//!   groups as both placement and the ledger know them).
//! * Shells: [`controller`] reads, lets the decisions decide, and writes; [`reserve`] keeps
//!   reservations in the store; [`extender`] speaks the wire contract.
//! * Seeing it: [`plan`] (what would happen), [`explain`] (why), [`capacity`] (what still fits),
//!   all over a [`world::World`] of plain objects.

pub mod api;
pub mod attach;
pub mod candidates;
pub mod capacity;
pub mod conditions;
pub mod configure;
pub mod controller;
pub mod duration;
pub mod eligible;
pub mod explain;
pub mod extender;
mod fnv;
pub mod form;
pub mod ledger;
pub mod plan;
pub mod reserve;
pub mod satisfy;
pub mod schedule;
mod text;
pub mod world;

pub use api::kinds;
pub use plan::plan;
