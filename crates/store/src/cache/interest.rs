//! Which changes concern a watch that selects one value of a field.
//!
//! A thousand agents watch the objects of their own node (`spec.nodeName=n1`). A change must not cost
//! a look by each of them. So such a watch has an [`Interest`] in one value of one field: it is woken
//! by the changes of objects that have, or had, that value, and finds the revisions of these changes
//! here instead of walking the whole log. Watches without such a selector walk the log.
//!
//! Invariant: an interest has the revision of every change of its value after `since`, up to the
//! published state. It holds revisions only, so it keeps no object alive.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::sync::watch as channel;

use crate::object::{Event, Record, Resource, Revision};
use crate::objects::Scope;
use crate::select::FieldSelector;

use super::state::CollectionState;

/// A field and the value that a watch selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    field: String,
    value: String,
}

impl Selected {
    /// The field by which a scope can be found, if there is one.
    pub(super) fn of(scope: &Scope) -> Option<Self> {
        let selected = |(field, value): (&str, &str)| Self {
            field: field.to_owned(),
            value: value.to_owned(),
        };
        let name = scope.name.as_deref().map(|name| (FieldSelector::NAME, name));
        name.or_else(|| scope.selection.fields.first_equality()).map(selected)
    }
}

/// The changes of one value.
#[derive(Debug)]
struct Interest {
    changed: channel::Sender<()>,
    /// Changes after this revision are known.
    since: Revision,
    revisions: VecDeque<Revision>,
}

type Values = HashMap<String, Interest>;

/// The interests of all watches of a store.
#[derive(Debug, Default)]
pub(super) struct Interests {
    by_resource: BTreeMap<Resource, BTreeMap<String, Values>>,
}

/// Interests that a publication concerns.
pub(super) type Concerned = Vec<(Resource, Selected)>;

fn value<'a>(record: &'a Record, field: &str) -> Cow<'a, str> {
    FieldSelector::value(record, field)
}

impl Interests {
    fn find(&mut self, resource: &Resource, selected: &Selected) -> Option<&mut Interest> {
        let fields = self.by_resource.get_mut(resource)?;
        fields.get_mut(&selected.field)?.get_mut(&selected.value)
    }

    /// Registers a watch. The changes after `now`, the published revision, are noted from here on.
    pub(super) fn subscribe(
        &mut self,
        resource: &Resource,
        selected: &Selected,
        now: Revision,
    ) -> channel::Receiver<()> {
        let fields = self.by_resource.entry(resource.clone()).or_default();
        let values = fields.entry(selected.field.clone()).or_default();
        let interest = values.entry(selected.value.clone()).or_insert_with(|| Interest {
            changed: channel::Sender::new(()),
            since: now,
            revisions: VecDeque::new(),
        });
        interest.changed.subscribe()
    }

    /// Ends the registration of a watch whose receiver still exists.
    pub(super) fn unsubscribe(&mut self, resource: &Resource, selected: &Selected) {
        let Some(fields) = self.by_resource.get_mut(resource) else { return };
        let Some(values) = fields.get_mut(&selected.field) else { return };
        if values.get(&selected.value).is_some_and(|it| it.changed.receiver_count() <= 1) {
            values.remove(&selected.value);
        }
        if values.is_empty() {
            fields.remove(&selected.field);
        }
        if fields.is_empty() {
            self.by_resource.remove(resource);
        }
    }

    /// Notes the changes of a collection after `before` that are about to be published. Costs the
    /// changes and the number of fields, whatever the number of watches. Doing it again changes nothing.
    pub(super) fn note(
        &mut self,
        resource: &Resource,
        collection: &CollectionState,
        before: Revision,
        concerned: &mut Concerned,
    ) {
        let Some(fields) = self.by_resource.get_mut(resource) else { return };
        let first = collection.first_after(before);
        for event in collection.log.focus().narrow(first..) {
            for (field, values) in fields.iter_mut() {
                note_event(values, field, event, collection.floor(), |value| {
                    let selected = Selected { field: field.clone(), value: value.to_owned() };
                    concerned.push((resource.clone(), selected));
                });
            }
        }
    }

    /// Wakes the watches of these interests. The state must be published.
    pub(super) fn wake(&mut self, concerned: &Concerned) {
        for (resource, selected) in concerned {
            if let Some(interest) = self.find(resource, selected) {
                interest.changed.send_replace(());
            }
        }
    }

    /// Forgets all changes, for a state that does not follow from the last one, and wakes all watches.
    pub(super) fn reset(&mut self, now: Revision) {
        let fields = self.by_resource.values_mut().flat_map(BTreeMap::values_mut);
        for interest in fields.flat_map(HashMap::values_mut) {
            interest.since = now;
            interest.revisions.clear();
            interest.changed.send_replace(());
        }
    }

    /// The revisions of changes after `from`, at most so many; `None` if they are not all known.
    pub(super) fn after(
        &mut self,
        resource: &Resource,
        selected: &Selected,
        from: Revision,
        most: usize,
    ) -> Option<Vec<Revision>> {
        let interest = self.find(resource, selected).filter(|interest| from >= interest.since)?;
        let first = interest.revisions.partition_point(|revision| *revision <= from);
        Some(interest.revisions.range(first..).take(most).copied().collect())
    }
}

/// Notes one change for the values that the object has and had.
fn note_event(
    values: &mut Values,
    field: &str,
    event: &Event,
    floor: Revision,
    mut concerned: impl FnMut(&str),
) {
    let now = value(&event.record, field);
    let before = event.previous.as_ref().map(|record| value(record, field));
    let before = before.filter(|before| *before != now);
    for value in std::iter::once(now).chain(before) {
        let Some(interest) = values.get_mut(&*value) else { continue };
        let newest = interest.revisions.back().copied().unwrap_or(interest.since);
        if event.revision() <= newest {
            continue;
        }
        interest.revisions.push_back(event.revision());
        while let Some(first) = interest.revisions.front().filter(|first| **first <= floor) {
            interest.since = *first;
            interest.revisions.pop_front();
        }
        concerned(&value);
    }
}
