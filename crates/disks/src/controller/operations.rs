//! The operations that are queued or running: their tokens, their objects and the leases of their disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use mainstay_controller::jobs;
use mainstay_controller::meter::Depth;
use parking_lot::Mutex;

use crate::lease::Leases;

/// The operations of this process.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pub(super) leases: Leases,
    /// The tokens this process wrote, and when it queued their operations.
    tokens: Mutex<BTreeMap<String, Duration>>,
    /// Objects whose operation is queued or running.
    busy: Mutex<BTreeSet<String>>,
    queue: OnceLock<jobs::Handle<String>>,
}

impl Operations {
    /// Sets the queue; called once, at the start.
    pub(super) fn run_in(&self, queue: jobs::Handle<String>) {
        let set = self.queue.set(queue);
        debug_assert!(set.is_ok(), "the queue is set once");
    }

    /// Queues the operation of an object's lock phase. Calling it again changes nothing.
    pub(super) fn enqueue(&self, object: &str) {
        self.busy.lock().insert(object.to_owned());
        if let Some(queue) = self.queue.get() {
            queue.add(object.to_owned());
        }
    }

    /// The operation of an object has ended.
    pub(super) fn finished(&self, object: &str) {
        self.busy.lock().remove(object);
    }

    /// Whether an operation of the object is queued or running.
    pub(super) fn is_busy(&self, object: &str) -> bool {
        self.busy.lock().contains(object)
    }

    /// Records a token that this process wrote.
    pub(super) fn own(&self, token: &str, now: Duration) {
        self.tokens.lock().insert(token.to_owned(), now);
    }

    /// When this process queued the operation of a token; `None` if another process wrote it.
    pub(super) fn queued_at(&self, token: &str) -> Option<Duration> {
        self.tokens.lock().get(token).copied()
    }

    /// Forgets a token whose result was written.
    pub(super) fn disown(&self, token: &str) {
        self.tokens.lock().remove(token);
    }

    /// How many operations wait and run.
    pub(super) fn depth(&self) -> Depth {
        self.queue.get().map(jobs::Handle::depth).unwrap_or_default()
    }

    /// Starts no more, and lets running operations finish within `grace`.
    pub(super) async fn shutdown(&self, grace: Duration) {
        if let Some(queue) = self.queue.get() {
            queue.shutdown(grace).await;
        }
    }
}
