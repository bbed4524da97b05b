//! Disks: never format twice, never the wrong one.
//!
//! * [`api`] has the resource: BlockDevice.
//! * Pure decisions are named for what they decide: [`table`] (what follows from a phase),
//!   [`gate`] (whether anything destructive may begin), [`identity`] (which object is which disk),
//!   [`recover`] (what to do about an operation that was interrupted), [`config`] (which disks are
//!   left alone, and which are taken unasked), [`facts`] (what the table is told), [`report`] (what
//!   the status says afterwards).
//! * The border to the world: [`host`] (a machine), [`sim`] (one in memory), [`backend`] (what uses
//!   disks), [`lease`] (one holder for each disk), [`memory`] (what was wanted).
//! * The shell: [`controller`] reads, lets the decisions decide, writes, and runs operations.

pub mod api;
pub mod backend;
pub mod config;
pub mod controller;
pub mod facts;
pub mod gate;
pub mod glob;
pub mod host;
pub mod identity;
pub mod lease;
pub mod memory;
pub mod metrics;
pub mod phase;
pub mod recover;
pub mod report;
mod retry;
pub mod sim;
pub mod table;
mod text;

pub use api::kinds;
pub use controller::{Disks, Options, Parts};
pub use mainstay_controller::rate::Rate;
pub use text::size;
