//! The live configuration: the ConfigMap `mainstay-system/disks`, as far as it is valid.
//!
//! An invalid value is logged and reported as an Event about the Node, and the last valid value of
//! that key stays in force. An agent may not write Events about the ConfigMap itself.

use std::sync::Arc;

use mainstay_controller::events::{self, Recorder, Severity};
use mainstay_host::{Disk, MountLine};
use mainstay_store::builtin::{ConfigMap, Node};
use parking_lot::Mutex;

use crate::config::{Config, NAME, NAMESPACE};

/// The configuration that is in force.
#[derive(Debug)]
pub(super) struct Configuration {
    node: String,
    defaults: Config,
    current: Mutex<Arc<Config>>,
}

impl Configuration {
    /// The defaults of a node, until [`Configuration::apply`] is called.
    pub(super) fn new(node: &str, defaults: &Config) -> Self {
        let current = Mutex::new(Arc::new(defaults.clone()));
        Self { node: node.to_owned(), defaults: defaults.clone(), current }
    }

    /// The configuration as it is now.
    pub(super) fn current(&self) -> Arc<Config> {
        self.current.lock().clone()
    }

    /// Applies the ConfigMap, or the defaults if there is none. Returns whether anything changed.
    pub(super) fn apply(&self, map: Option<&ConfigMap>, recorder: &Recorder) -> bool {
        let data = map.map(|map| map.data.clone()).unwrap_or_default();
        let previous = self.current();
        let (next, errors) = Config::update(&data, &self.defaults, &previous);
        for error in errors {
            let (key, reason) = (error.name, &error.reason);
            tracing::warn!(
                configmap = format!("{NAMESPACE}/{NAME}"),
                key,
                reason,
                "invalid value in the disks ConfigMap; the previous value stays in force"
            );
            let message = format!(
                "ConfigMap {NAMESPACE}/{NAME}: {error}; the previous value stays in force until it is corrected"
            );
            let mut node = Node::default();
            node.metadata.name.clone_from(&self.node);
            let about = events::reference(&node);
            recorder.event(&about, Severity::Warning, "InvalidDiskConfiguration", &message);
        }
        let changed = next != *previous;
        *self.current.lock() = Arc::new(next);
        changed
    }

    /// Why a disk is excluded, with the mount table as it is now; `None` if it is not.
    pub(super) fn excludes(&self, disk: &Disk, mounts: &[MountLine]) -> Option<String> {
        let points: Vec<_> = mounts
            .iter()
            .filter(|line| disk.has_number(&line.number))
            .map(|line| line.point.clone())
            .collect();
        self.current().excludes(&self.node, disk, &points)
    }
}
