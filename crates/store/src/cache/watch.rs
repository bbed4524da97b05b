//! A cursor over the changes of a scope.

use std::sync::Arc;

use tokio::sync::watch;

use crate::object::{Action, Event, Revision};
use crate::objects::{Error, Scope};

use super::Cache;

/// The most events [`Watch::next`] returns at once.
const BATCH: usize = 256;

/// A cursor over the changes of a scope.
#[derive(Debug)]
pub struct Watch {
    pub(super) cache: Arc<Cache>,
    pub(super) scope: Scope,
    pub(super) position: Revision,
    pub(super) published: watch::Receiver<()>,
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
            self.published.mark_unchanged();
            let events = self.ready()?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.published.changed().await.is_err() {
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
        let state = self.cache.state.load();
        if self.position >= state.revision {
            return Ok(Vec::new());
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
                events.extend(self.seen(event));
            }
        }
        self.position = if events.len() < BATCH { state.revision } else { seen };
        Ok(events)
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

    /// The revision up to which this watch has returned everything: what a bookmark says.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
