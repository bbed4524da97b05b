//! The retention of history: recent changes in the order in which they are forgotten.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::object::{Event, Resource, Revision};

use super::{Retention, State};

/// Recent changes in the order in which they are forgotten. Only the writer has it.
#[derive(Debug, Default)]
pub(crate) struct RetentionQueue {
    order: VecDeque<QueuedChange>,
    counted: usize,
    bytes: usize,
}

#[derive(Debug)]
struct QueuedChange {
    revision: Revision,
    resource: Resource,
    counted: bool,
    weight: usize,
    at: Timestamp,
}

impl RetentionQueue {
    /// Notes that `event` is now part of the history.
    pub(crate) fn note(&mut self, event: &Event, at: Timestamp) {
        self.push(event, at, true);
    }

    /// The same for a change that the store made for itself, which does not count against the
    /// number of changes that are kept.
    pub(crate) fn note_aside(&mut self, event: &Event, at: Timestamp) {
        self.push(event, at, false);
    }

    fn push(&mut self, event: &Event, at: Timestamp, counted: bool) {
        let (revision, weight) = (event.revision(), event.weight());
        let resource = event.record.key().resource().clone();
        self.counted += usize::from(counted);
        self.bytes += weight;
        self.order.push_back(QueuedChange { revision, resource, counted, weight, at });
    }

    /// Forgets changes beyond the limits, and returns the revision up to which all are forgotten.
    pub(crate) fn trim(
        &mut self,
        state: &mut State,
        retention: &Retention,
        now: Timestamp,
    ) -> Option<Revision> {
        let oldest = now.checked_sub(retention.age).unwrap_or(Timestamp::MIN);
        self.forget_while(state, |retained, first| {
            retained.counted > retention.events
                || retained.bytes > retention.bytes
                || first.at < oldest
        })
    }

    /// Forgets everything up to and including `through`.
    pub(crate) fn compact(&mut self, state: &mut State, through: Revision) {
        self.forget_while(state, |_, first| first.revision <= through);
        state.raise_floor(through.min(state.revision));
    }

    fn forget_while(
        &mut self,
        state: &mut State,
        condition: impl Fn(&Self, &QueuedChange) -> bool,
    ) -> Option<Revision> {
        let mut last = None;
        while self.order.front().is_some_and(|first| condition(self, first)) {
            let Some(kept) = self.order.pop_front() else {
                break;
            };
            self.counted -= usize::from(kept.counted);
            self.bytes -= kept.weight;
            state.forget_first(&kept.resource);
            last = Some(kept.revision);
        }
        last
    }
}
