//! The status of values, and watching it.
//!
//! Each watcher has a bounded queue. The engine never waits for a watcher; one that falls behind gets
//! the number of changes it missed and reads the present state again.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::descriptor::UserLabels;
use crate::graph::{Circles, Graph};
use crate::key::{Key, KeyId};
use crate::state::{Operation, ValueState};

/// The status of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ValueStatus {
    /// Its key.
    pub key: Key,
    /// Its state.
    pub state: ValueState,
    /// The last operation on it.
    #[serde(rename = "lastOperation")]
    pub last_operation: Operation,
    /// The error of that operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The dependencies that are not met, or the fields that are not valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// The dependency cycle that it waits in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycle: Vec<Key>,
    /// Whether the south may differ: the last operation was interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// The labels of the user.
    #[serde(default, skip_serializing_if = "UserLabels::is_empty")]
    pub labels: UserLabels,
    /// The values derived from it, in key order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<ValueStatus>,
}

/// The status of a value, its derived values included. `circles` is shared by all statuses of one
/// moment.
pub(crate) fn status(graph: &Graph, id: KeyId, circles: &mut Circles) -> ValueStatus {
    let key = graph.key(id).clone();
    let Some(node) = graph.node(id) else {
        return ValueStatus {
            key,
            state: ValueState::Nonexistent,
            last_operation: Operation::Undefined,
            error: None,
            details: Vec::new(),
            cycle: Vec::new(),
            uncertain: false,
            labels: UserLabels::new(),
            derived: Vec::new(),
        };
    };
    let details = match (node.state, &node.error) {
        (ValueState::Pending, _) => graph.unmet(id),
        (ValueState::Invalid, Some(error)) => error.fields.clone(),
        _ => Vec::new(),
    };
    ValueStatus {
        key,
        state: node.state,
        last_operation: if node.is_obtained() { Operation::Undefined } else { node.last.operation },
        error: node.error.as_ref().map(|error| error.message.clone()),
        details,
        cycle: circles.of(graph, id),
        uncertain: node.uncertain,
        labels: node.labels.as_deref().cloned().unwrap_or_default(),
        derived: node
            .derived
            .iter()
            .filter(|derived| graph.node(**derived).is_some())
            .map(|derived| status(graph, *derived, circles))
            .collect(),
    }
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A value changed.
    Status(Arc<ValueStatus>),
    /// This many changes did not fit the queue: read the status again.
    Missed(usize),
}

type Filter = Box<dyn Fn(&str) -> bool + Send + Sync>;

struct Queue {
    filter: Filter,
    capacity: usize,
    events: Mutex<(VecDeque<Arc<ValueStatus>>, usize, bool)>,
    wake: Notify,
}

/// A watch on the status of values; made by [`Engine::watch`](crate::Engine::watch).
pub struct StatusWatch(Arc<Queue>);

impl StatusWatch {
    /// Waits for the next change; none once the engine has stopped.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            let woken = self.0.wake.notified();
            {
                let mut events = self.0.events.lock();
                if let Some(event) = events.0.pop_front() {
                    return Some(WatchEvent::Status(event));
                }
                match std::mem::take(&mut events.1) {
                    0 if events.2 => return None,
                    0 => {}
                    missed => return Some(WatchEvent::Missed(missed)),
                }
            }
            woken.await;
        }
    }

    /// The next change, if one is queued.
    pub fn try_next(&mut self) -> Option<WatchEvent> {
        let mut events = self.0.events.lock();
        if let Some(event) = events.0.pop_front() {
            return Some(WatchEvent::Status(event));
        }
        match std::mem::take(&mut events.1) {
            0 => None,
            missed => Some(WatchEvent::Missed(missed)),
        }
    }
}

impl fmt::Debug for StatusWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusWatch").finish_non_exhaustive()
    }
}

/// All watchers of an engine.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Weak<Queue>>>);

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").finish_non_exhaustive()
    }
}

impl Watchers {
    pub(crate) fn watch(
        &self,
        capacity: usize,
        filter: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> StatusWatch {
        let queue = Arc::new(Queue {
            filter: Box::new(filter),
            capacity: capacity.max(1),
            events: Mutex::default(),
            wake: Notify::new(),
        });
        self.lock().push(Arc::downgrade(&queue));
        StatusWatch(queue)
    }

    /// Queues the status of these base values for every watcher whose filter accepts them.
    pub(crate) fn tell(&self, graph: &Graph, bases: impl FnOnce() -> BTreeSet<KeyId>) {
        let queues: Vec<Arc<Queue>> = {
            let mut watchers = self.lock();
            watchers.retain(|queue| queue.strong_count() > 0);
            watchers.iter().filter_map(Weak::upgrade).collect()
        };
        if queues.is_empty() {
            return;
        }
        let mut circles = Circles::default();
        for id in bases() {
            let mut told: Option<Arc<ValueStatus>> = None;
            for queue in queues.iter().filter(|queue| (queue.filter)(graph.key(id))) {
                let status = told.get_or_insert_with(|| Arc::new(status(graph, id, &mut circles)));
                let mut events = queue.events.lock();
                if events.1 == 0 && events.0.len() < queue.capacity {
                    events.0.push_back(Arc::clone(status));
                } else {
                    events.1 += 1;
                }
                queue.wake.notify_one();
            }
        }
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        for queue in self.lock().iter().filter_map(Weak::upgrade) {
            queue.events.lock().2 = true;
            queue.wake.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Queue>>> {
        self.0.lock()
    }
}
