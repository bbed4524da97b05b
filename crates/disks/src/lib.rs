//! Disks: never format twice, never the wrong one.
//!
//! * [`api`] has the resource: BlockDevice.
//! * Pure decisions are named for what they decide: [`table`] (what follows from a phase),
//!   [`gate`] (whether anything destructive may begin), [`identity`] (which object is which disk),
//!   [`recover`] (what to do about an operation that was interrupted), [`config`] (which disks are
//!   left alone, and which are taken unasked), [`facts`] (what the table is told).

pub mod api;
pub mod backend;
pub mod config;
pub mod facts;
pub mod gate;
pub mod glob;
pub mod host;
pub mod identity;
pub mod lease;
pub mod memory;
pub mod phase;
pub mod recover;
pub mod table;
mod text;

pub use api::kinds;
pub use text::size;
