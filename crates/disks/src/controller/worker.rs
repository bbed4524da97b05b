//! The worker: runs the operations of the job queue, one disk each.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::devices::Devices;
use super::machine::Machine;
use super::observe::Observer;
use super::operations::Operations;
use super::signals::Signals;

/// Runs operations. Its methods are in [`super::job`] (one job), [`super::resume`] (operations of another
/// process), [`super::work`] (disks), [`super::pool`] (pools) and [`super::outcome`] (results).
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) machine: Arc<Machine>,
    pub(super) devices: Arc<Devices>,
    pub(super) observer: Arc<Observer>,
    pub(super) operations: Arc<Operations>,
    pub(super) signals: Arc<Signals>,
    pub(super) stop: CancellationToken,
    /// Quarantined operations.
    pub(super) tasks: TaskTracker,
}
