//! Manages the disks of a node: it formats no disk twice, and never the wrong one.
//!
//! * [`api`] has the resource: BlockDevice.
//! * Pure decisions: [`table`] (which phase and operation follow), [`gate`] (whether a disk may be
//!   erased), [`identity`] (which object belongs to which disk), [`recover`] (interrupted operations),
//!   [`config`] (which disks are excluded or provisioned automatically), [`facts`] (the input of the
//!   table), [`report`] (the status).
//! * Interfaces: [`mainstay_host`] (the machine), [`backend`] (the user of provisioned disks), [`lease`]
//!   (one holder per disk), [`memory`] (the wanted state, kept durably).
//! * The shell: [`controller`] reads, decides, writes, and runs operations.
//! * For people: [`cli`] has the commands, [`mod@bench`] a workload.

pub mod api;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod config;
pub mod controller;
pub mod facts;
pub mod gate;
pub mod identity;
pub mod lease;
pub mod memory;
pub mod metrics;
pub mod phase;
pub mod recover;
pub mod report;
mod retry;
pub mod table;
mod text;

pub use api::kinds;
pub use controller::{Disks, Options, Parts};
pub use mainstay_controller::rate::Rate;
pub use text::size;
