//! How the parts wake each other: an object to reconcile, or disks and objects to match again.

use std::sync::OnceLock;

use mainstay_controller::runtime;
use tokio::sync::Notify;

/// The wake-ups of the reconciler and the scanner.
#[derive(Debug, Default)]
pub(super) struct Signals {
    reconciler: OnceLock<runtime::Handle<String>>,
    rematch: Notify,
}

impl Signals {
    /// Sets the reconciler; called once, at the start.
    pub(super) fn run_by(&self, reconciler: runtime::Handle<String>) {
        let set = self.reconciler.set(reconciler);
        debug_assert!(set.is_ok(), "the reconciler is set once");
    }

    /// Queues an object for the reconciler.
    pub(super) fn reconcile(&self, object: &str) {
        if let Some(reconciler) = self.reconciler.get() {
            reconciler.add(object.to_owned());
        }
    }

    /// Asks the scanner to match disks and objects again.
    pub(super) fn rematch(&self) {
        self.rematch.notify_one();
    }

    /// Waits until [`Signals::rematch`] was called.
    pub(super) async fn rematch_asked(&self) {
        self.rematch.notified().await;
    }

    /// Ends the reconciler.
    pub(super) async fn shutdown(&self) {
        if let Some(reconciler) = self.reconciler.get() {
            reconciler.shutdown().await;
        }
    }
}
