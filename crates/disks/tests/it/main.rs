//! Disks on real loop devices, with the real programs. Needs root; everything is cleaned up,
//! whatever happens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod crash;
mod refuse;
mod rig;
mod stores;
mod walk;
mod yard;
