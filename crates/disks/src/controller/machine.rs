//! The node: its options and the interfaces through which its disks are read, changed and reported.
//! All of it is constant while the controller runs.

use std::sync::Arc;

use mainstay_controller::Clock;
use mainstay_controller::events::{self, Recorder, Severity};
use mainstay_host::{Host, Place};
use mainstay_store::resources::Identities;

use super::{Options, Parts};
use crate::api::{BlockDevice, Makes};
use crate::backend::{Backend, Pool, Unready};
use crate::memory::Memory;
use crate::metrics::Metrics;

/// The node whose disks are managed.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) options: Options,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) identities: Arc<dyn Identities>,
    pub(super) host: Arc<dyn Host>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) memory: Arc<Memory>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) recorder: Recorder,
}

impl Machine {
    pub(super) fn new(options: Options, parts: Parts, recorder: Recorder) -> Self {
        let Parts { resources, identities, host, backend, memory, metrics } = parts;
        let clock = resources.clock().clone();
        Self { options, clock, identities, host, backend, memory, metrics, recorder }
    }

    /// Where an object's filesystem is mounted.
    pub(super) fn point(&self, name: &str) -> String {
        format!("{}/{name}", self.options.mount_root)
    }

    /// The pool that an object's disk is or becomes.
    pub(super) fn pool(&self, device: &BlockDevice, unready: Option<Unready>) -> Pool {
        let name = &device.metadata.name;
        let place = match device.makes() {
            Makes::Filesystem(_) => Place::Filesystem { point: self.point(name) },
            Makes::Lvm(lvm) => Place::Group { name: lvm.vg_name },
        };
        Pool {
            device: name.clone(),
            node: self.options.node.clone(),
            place,
            tags: device.spec.tags.clone(),
            unready,
        }
    }

    /// Records an Event about an object.
    pub(super) fn event(
        &self,
        device: &BlockDevice,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        self.recorder.event(&events::reference(device), severity, reason, message);
    }
}
