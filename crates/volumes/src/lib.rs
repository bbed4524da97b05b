//! Volumes: chooses a place for every replica, and explains the choice.
//!
//! * [`api`] has the kinds: classes, pools, volume groups, volumes, replicas, attachments.
//! * Pure decisions are named for what they decide: [`configure`] (the configuration of a class),
//!   [`eligible`] (which nodes a pool offers), [`form`] (which replicas a volume should have),
//!   [`schedule`] (guards and conditions of scheduling; the choice itself is
//!   [`mainstay_placement::Pass`]), [`attach`] (the nodes that use a volume), [`satisfy`] (whether a
//!   replica may stay), [`ledger`] (free space of every group), [`candidates`] (a pool's
//!   groups for both placement and the ledger).
//! * [`controller`] reads, applies the decisions, and writes; [`reserve`] stores reservations;
//!   [`extender`] serves and calls the HTTP contract of the scheduler extender.
//! * For people: [`mod@plan`] (a dry run), [`explain`] (the reasons), [`capacity`] (the space left), all
//!   over a [`world::World`] of plain objects; [`cli`] has their commands, [`mod@bench`] a workload.

pub mod api;
pub mod attach;
pub mod bench;
pub mod candidates;
pub mod capacity;
pub mod cli;
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
