//! The queue of events on their way to the servers.
//!
//! There is at most one for each instance and each session: a newer state replaces an
//! older one that was not taken yet. So the queue is bounded by the instances of the node, and adding
//! an event never waits, not even when the reader itself gave the command.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mainstay_sessions::protocol::{InstancePhase, Report, SessionPhase};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{Event, Id};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum About {
    Instance(Id),
    Session(Id),
}

#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<About>,
    newest: HashMap<About, Event>,
    ended: bool,
}

/// The writing end. Clones write to the same queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    queue: Arc<Mutex<Queue>>,
    some: Arc<Notify>,
}

/// The reading end, oldest change first.
#[derive(Debug)]
pub struct Events(Outbox);

impl Outbox {
    pub(super) fn new() -> (Self, Events) {
        let outbox = Self::default();
        (outbox.clone(), Events(outbox))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Adds the newest state of an instance or session.
    pub(super) fn say(&self, event: Event) {
        let about = match &event {
            Event::Instance(state) => About::Instance(Id::new(&state.namespace, &state.name)),
            Event::Session(state) => About::Session(Id::new(&state.namespace, &state.name)),
        };
        let mut queue = self.queue();
        // A newer state goes to the end, so that a session's end never overtakes its instance's.
        if queue.newest.insert(about.clone(), event).is_some() {
            queue.order.retain(|other| *other != about);
        }
        queue.order.push_back(about);
        drop(queue);
        self.some.notify_one();
    }

    /// Adds ended instances and sessions whose events were not taken yet to a report.
    pub(super) fn report(&self, report: &mut Report) {
        let queue = self.queue();
        for about in &queue.order {
            match queue.newest.get(about) {
                Some(Event::Instance(state)) if state.phase() == InstancePhase::Terminated => {
                    report.instances.push(state.clone());
                }
                Some(Event::Session(state)) if state.phase() == SessionPhase::Closed => {
                    report.sessions.push(state.clone());
                }
                _ => {}
            }
        }
    }

    /// No more events follow.
    pub(super) fn end(&self) {
        self.queue().ended = true;
        self.some.notify_one();
    }
}

impl Events {
    /// The next event; `None` after the runtime was shut down and all were taken.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.0.queue().ended {
                return None;
            }
            self.0.some.notified().await;
        }
    }

    /// The next event if there is one now.
    pub fn try_next(&mut self) -> Option<Event> {
        let mut queue = self.0.queue();
        let about = queue.order.pop_front()?;
        queue.newest.remove(&about)
    }
}
