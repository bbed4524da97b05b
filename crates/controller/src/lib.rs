//! The runtime of every reconciler: watch → keyed queue → reconcile.
//!
//! A reconciler is a function from a key to "done", "again later" or an error. This crate does
//! everything around it, on a clock that tests can move:
//!
//! * [`reflector`]: a typed copy of a collection, with declared indexes, kept up to date;
//! * [`queue`]: which key is worked on next, never by two workers, failing ones ever more rarely;
//! * [`runtime`]: the two put together, and why reconcilers take no hint of what changed;
//! * [`mod@write`]: writes that every reconciler makes; [`liveness`]: which nodes are alive;
//! * [`election`]: of several servers one runs the controllers, and only its writes count;
//! * [`jobs`]: long, heavy work, a bounded number at once;
//! * [`conditions`] and [`events`]: reports for people; [`meter`]: metrics;
//! * [`rate`]: token buckets and windows.
//!
//! Each long-running part has the same three pieces: `Options`, a `run` (or `start`), and a cheap
//! handle whose `shutdown` returns when every task has ended. Each that decides anything is a pure
//! state machine with time as an argument, and a thin shell around it.
//!
//! Enter at [`Controller`]; `docs/controllers.md` has a complete example.

pub mod conditions;
pub mod election;
pub mod events;
pub mod jobs;
pub mod liveness;
pub mod meter;
pub mod queue;
pub mod rate;
pub mod reflector;
pub mod runtime;
mod task;
#[cfg(test)]
mod testing;
pub mod write;

pub use conditions::Report;
pub use election::{Election, Leadership};
pub use events::Recorder;
pub use jobs::JobQueue;
pub use mainstay_clock::{Clock, ManualClock, SystemClock};
pub use meter::Meter;
pub use queue::Queue;
pub use reflector::Reflector;
pub use runtime::{BoxError, Context, Controller, Handle, Options, Outcome};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/controllers.md")]
struct Guide;
