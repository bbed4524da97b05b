//! Placement: candidates → filters → scores → choice, with the reason for every exclusion.
//!
//! Everything here is pure: no I/O, no async, no clock, no randomness. The same input gives the
//! same answer, every candidate is scored by itself, and ties are broken by a total order.
//!
//! * [`pipeline`] is generic over the candidate: predicates that count what they exclude, scores
//!   by candidate, node and zone, and [`pipeline::Pipeline::select_best`].
//! * [`eligible`] and [`topology`] are the two sources and the zone rules of replicas.
//! * [`pass`] schedules all replicas of one volume. It performs no I/O: it returns the next request or
//!   write, and its caller carries it out.
//! * [`joint`] finds a place for all replicas at once, or for none.
//! * [`batch`] places very many items over the same candidates.
//! * [`machines`] places instances by processor and memory.
//! * [`explain`] gives the reasons, candidate by candidate.

pub mod batch;
pub mod bench;
pub mod eligible;
pub mod explain;
pub mod joint;
pub mod machines;
pub mod pass;
pub mod pipeline;
pub mod topology;
pub mod volume;

pub use eligible::{EligibleGroup, EligibleNode, EligibleNodes, Slot};
pub use explain::Explanation;
pub use pass::{Extender, Narrowing, Next, Pass, ReplicaDecision, Unavailable};
pub use pipeline::{Candidate, Entry, Pipeline};
pub use topology::Topology;
pub use volume::{
    IdSet, PoolType, Replica, ReplicaType, Strategy, Volume, VolumeAccess, ZoneFallback,
};
