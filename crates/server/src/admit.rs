//! Admission: writes and reads of objects that a user may touch only if they belong to its node.
//!
//! The store asks right before it writes, with the object as it is and as it would be
//! ([`mainstay_store::admission`]); the rules are in [`crate::authorize::own`]. The lookups
//! are here: of the object which an Event is about, and of the zone in which a node joined.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Admission, Proposed, Resources};
use mainstay_store::status::{Error, Reason};
use serde_json::{Map, Value};

use crate::audit::AuditNote;
use crate::authorize::own::{self, Owned, Subject};
use crate::authorize::{self, Attempt, Own, table};
use crate::certificates::Certificates;
use crate::identity::User;
use crate::service::App;

/// Admits what belongs to the node of a user.
#[derive(Debug)]
pub(crate) struct OwnOnly {
    user: Arc<User>,
    rule: Own,
    subresource: String,
    resources: Resources,
    certificates: Arc<Certificates>,
    /// The answer to everything else.
    refusal: Error,
    /// The answer about a stored object of somebody else: the same as if there were none.
    hidden: Error,
    /// Where an attempt on such an object is noted, since the answer does not show it.
    note: AuditNote,
}

impl OwnOnly {
    /// Admits what a rule says, for one attempt.
    pub(crate) fn new(
        app: &App,
        user: &Arc<User>,
        rule: Own,
        kind: &Kind,
        attempt: &Attempt<'_>,
    ) -> Self {
        Self {
            user: user.clone(),
            rule,
            subresource: attempt.subresource.to_owned(),
            resources: app.resources.clone(),
            certificates: app.certificates.clone(),
            refusal: authorize::forbidden(user, kind, attempt),
            hidden: Error::not_found(kind, attempt.name.unwrap_or_default()),
            note: AuditNote::default(),
        }
    }

    /// Notes attempts on objects of others in the books of the request.
    pub(crate) fn noting(mut self, note: AuditNote) -> Self {
        self.note = note;
        self
    }

    /// Refuses a stored object that belongs to somebody else, as if it were not there: a node does not
    /// learn which objects other nodes have. If the name alone tells, there is nothing to hide.
    pub(crate) async fn find(&self, stored: &Map<String, Value>) -> Result<(), Error> {
        let found = self.check(stored).await;
        match found {
            Err(error) if error.reason == Reason::Forbidden && !self.rule.is_by_name() => {
                self.note.denied();
                Err(self.hidden.clone())
            }
            found => found,
        }
    }

    /// Refuses an object that belongs to somebody else.
    pub(crate) async fn check(&self, object: &Map<String, Value>) -> Result<(), Error> {
        let owned = match own::owns(&self.user, self.rule, object) {
            Owned::Yes => true,
            Owned::No => false,
            Owned::IfSubject(subject) => self.owns_subject(&subject).await?,
        };
        let owned = owned && (self.rule != Own::NewNode || self.is_in_its_zone(object).await?);
        if owned { Ok(()) } else { Err(self.refusal.clone()) }
    }

    /// Whether a new Node says the zone that was noted when the node joined.
    async fn is_in_its_zone(&self, node: &Map<String, Value>) -> Result<bool, Error> {
        let (name, zone) = own::name_and_zone(node);
        let record = self.certificates.of_node(name).await;
        let record =
            record.map_err(|error| Error::new(Reason::ServiceUnavailable, error.to_string()))?;
        Ok(record.zone.as_deref() == zone)
    }

    /// Whether the object that an Event is about belongs to the node. One that is gone has no owner
    /// any more, except a Node, which is known by its name.
    async fn owns_subject(&self, subject: &Subject) -> Result<bool, Error> {
        let mut kinds = self.resources.registry().iter();
        let Some(kind) = kinds.find(|kind| {
            kind.kind == subject.kind
                && (subject.api_version.is_empty() || kind.api_version() == subject.api_version)
        }) else {
            return Ok(false);
        };
        match table::ownership(kind.group, kind.plural) {
            Some(Own::Node) => Ok(self.user.speaks_for(&subject.name)),
            Some(rule) if !kind.namespaced => {
                match self.resources.get(kind, &kind.key(None, &subject.name)).await {
                    Ok(record) => Ok(own::owns(&self.user, rule, &record.object()) == Owned::Yes),
                    Err(error) if error.is_not_found() => Ok(true),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(false),
        }
    }
}

impl Admission for OwnOnly {
    fn touch<'a>(&'a self, stored: &'a Map<String, Value>) -> BoxFuture<'a, Result<(), Error>> {
        self.find(stored).boxed()
    }

    fn admit<'a>(&'a self, proposed: Proposed<'a>) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let Proposed { old, new } = proposed;
            if !own::keeps_to(&self.subresource, old, new) {
                return Err(self.refusal.clone());
            }
            if let Some(why) = new.and_then(|new| own::lets_data_be_lost(old, new)) {
                let mut refusal = self.refusal.clone();
                refusal.message = format!("{}: {why}", refusal.message);
                return Err(refusal);
            }
            match new {
                Some(new) => self.check(new).await,
                None => Ok(()),
            }
        }
        .boxed()
    }
}
