//! A cursor over the changes of a scope.

use std::sync::Arc;

use tokio::sync::watch;

use crate::object::{Action, Event, Resource, Revision};
use crate::objects::{Error, Scope};

use super::interest::Selected;
use super::{Cache, State};

/// The most events [`Watch::next`] returns at once.
const BATCH: usize = 256;

/// The signal that wakes a watch, and the changes that concern it if it selects one value of a field.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) cache: Arc<Cache>,
    pub(super) resource: Resource,
    pub(super) selected: Option<Selected>,
    pub(super) published: watch::Receiver<()>,
}

impl Subscription {
    /// The revisions of the changes after `from` that concern the watch; `None` if the log must be
    /// walked.
    fn changes(&self, from: Revision) -> Option<Vec<Revision>> {
        let selected = self.selected.as_ref()?;
        let mut signals = self.cache.signals.lock();
        signals.interests.after(&self.resource, selected, from, BATCH)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(selected) = &self.selected {
            self.cache.signals.lock().interests.unsubscribe(&self.resource, selected);
        }
    }
}

/// A cursor over the changes of a scope.
#[derive(Debug)]
pub struct Watch {
    pub(super) subscription: Subscription,
    pub(super) scope: Scope,
    pub(super) position: Revision,
    pub(super) examined: u64,
}

impl Watch {
    /// Waits for changes and returns them in order, at least one and at most a few hundred.
    ///
    /// Safe to cancel: events that were not returned will be returned by the next call.
    ///
    /// # Errors
    /// [`Error::Expired`] if the watcher was too slow: list again. [`Error::Closed`] at shutdown.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        loop {
            self.subscription.published.mark_unchanged();
            let events = self.ready()?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.subscription.published.changed().await.is_err() {
                let rest = self.ready()?;
                return if rest.is_empty() { Err(Error::Closed) } else { Ok(rest) };
            }
        }
    }

    /// The changes that are there already, possibly none. Same promises as [`Watch::next`].
    ///
    /// # Errors
    /// [`Error::Expired`] if the watcher was too slow.
    pub fn ready(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        let state = self.subscription.cache.load();
        if self.position >= state.revision {
            return Ok(Vec::new());
        }
        if let Some(revisions) = self.subscription.changes(self.position)
            && let Some(events) = self.at_revisions(&state, &revisions)
        {
            return Ok(events);
        }
        state.reaches_back_to(&self.scope.resource, self.position)?;
        let mut events = Vec::new();
        let mut seen = Revision::ZERO;
        if let Some(collection) = state.collections.get(&self.scope.resource) {
            for event in collection.log.focus().narrow(collection.first_after(self.position)..) {
                if events.len() == BATCH {
                    break;
                }
                seen = event.revision();
                self.examined += 1;
                events.extend(self.seen(event));
            }
        }
        self.position = if events.len() < BATCH { state.revision } else { seen };
        Ok(events)
    }

    /// The events of these changes, the only ones after the position that concern this watch; `None`
    /// if one of them is forgotten.
    fn at_revisions(&mut self, state: &State, revisions: &[Revision]) -> Option<Vec<Arc<Event>>> {
        let mut events = Vec::new();
        // Some may be newer than the state that was loaded.
        let published = revisions.iter().take_while(|revision| **revision <= state.revision);
        for revision in published {
            let collection = state.collections.get(&self.scope.resource)?;
            let first = collection.first_after(Revision(revision.0.checked_sub(1)?));
            let event = collection.log.get(first).filter(|event| event.revision() == *revision)?;
            self.examined += 1;
            events.extend(self.seen(event));
        }
        let complete = revisions.len() < BATCH;
        self.position = match revisions.last() {
            Some(last) if !complete => (*last).min(state.revision),
            _ => state.revision,
        };
        Some(events)
    }

    /// The event that this watch reports for a change, if any.
    fn seen(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        if !self.scope.contains(event.record.key()) {
            return None;
        }
        if self.scope.selection.is_everything() {
            return Some(event.clone());
        }
        let action = self.scope.selection.action(event)?;
        if action == event.action {
            return Some(event.clone());
        }
        let record = match (action, &event.previous) {
            (Action::Deleted, Some(previous)) => Arc::new(previous.at(event.revision())),
            _ => event.record.clone(),
        };
        Some(Arc::new(Event::new(action, record, event.previous.clone())))
    }

    /// How many changes it has compared with its scope so far: a measure of its cost.
    #[must_use]
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// The revision up to which this watch has returned everything: what a bookmark says.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
