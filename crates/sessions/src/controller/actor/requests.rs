//! Requests of API users: opening, changing and deleting sessions.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::keeper::Prepared;
use mainstay_store::object::{self, Record, Revision};
use mainstay_store::status::{Error, Reason};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::Actor;
use crate::api::{ApplicationSession, SessionSpec};
use crate::engine::{Key, Moment, Refusal, Ticket, parts};

/// A request to open a session that has not been answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    session: Key,
    answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    since: Duration,
}

impl Actor {
    /// Gives a request to open a session to the engine, which answers by its ticket.
    pub(super) fn open(
        &mut self,
        key: &object::Key,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
        now: Moment,
    ) {
        let spec = object.get("spec").map(SessionSpec::deserialize);
        let Some(Ok(spec)) = spec else {
            // Validation of the kind lets no other spec through.
            let error = Error::bad_request("spec: not a valid ApplicationSession spec");
            let _ = answer.send(Err(error));
            return;
        };
        self.tickets += 1;
        let name: Key = key.path().into();
        let request = PendingRequest { session: name.clone(), answer, since: now.elapsed };
        self.requests.insert(self.tickets, request);
        let object: Arc<[u8]> = match self.parts.engine.session_object(&name) {
            Some(known) => known.into(),
            None => self.publisher.set_object(&name, object).into(),
        };
        self.parts.engine.open(&name, Arc::new(spec), object, self.tickets, now);
    }

    /// Applies a user's change of a session's metadata, or its deletion.
    pub(super) async fn update(
        &mut self,
        key: &object::Key,
        before: Option<Revision>,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
        now: Moment,
    ) {
        let name: Key = key.path().into();
        if self.parts.engine.session_object(&name).is_none() {
            let _ = answer.send(Err(not_found(key.name())));
            return;
        }
        let deleted = object
            .get("metadata")
            .and_then(|metadata| metadata.get("deletionTimestamp"))
            .is_some_and(|time| *time != Value::Null);
        // Status changes by the engine do not conflict with a user's change; a newer change by
        // another user does, unless this one deletes the session.
        let edited = self.edited.get(&name);
        if let (Some(before), Some(edited)) = (before, edited)
            && before < *edited
            && !deleted
        {
            let _ = answer.send(Err(self.stale(key.name())));
            return;
        }
        self.publisher.set_object(&name, object);
        if deleted {
            self.parts.engine.close(&name, now);
        }
        self.perform(now).await;
        let record = match self.publisher.publish(&self.parts.engine, &name).await {
            Some(record) => Some(record),
            // It had no instance to wait for and is deleted already.
            None => self.parts.handle.recall(key),
        };
        if let Some(record) = record.as_ref().filter(|_| !deleted) {
            self.edited.insert(name, record.revision());
        }
        let gone = || not_found(key.name());
        let _ = answer.send(record.ok_or_else(gone));
    }

    /// The error for a change that was based on an older version.
    fn stale(&self, name: &str) -> Error {
        match self.parts.resources.kind_of::<ApplicationSession>() {
            Ok(kind) => Error::stale(kind, name),
            Err(error) => error,
        }
    }

    /// Answers a request to open a session, after the session was published.
    pub(super) async fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Key, Refusal>,
        now: Moment,
    ) {
        let Some(request) = self.requests.remove(&ticket) else { return };
        let metrics = &self.parts.handle.metrics;
        let took = now.elapsed.saturating_sub(request.since).as_secs_f64();
        let answer = match answer {
            Ok(name) => {
                metrics.answered("opened");
                metrics.took("total", took);
                if let Some(assigned) = self.parts.engine.assigned(&name) {
                    let waited = assigned.saturating_sub(request.since);
                    metrics.took("waiting", waited.as_secs_f64());
                    metrics.took("node", now.elapsed.saturating_sub(assigned).as_secs_f64());
                }
                let record = self.publisher.publish(&self.parts.engine, &name).await;
                record.ok_or_else(|| {
                    Error::internal(
                        "the session was opened but could not be published; read it again",
                    )
                })
            }
            Err(refusal) => {
                metrics.answered(refusal_label(&refusal));
                if self.parts.engine.session_object(&request.session).is_none() {
                    self.publisher.forget(&request.session);
                }
                Err(error(&request.session, &refusal))
            }
        };
        // A caller that no longer waits can read the session by its name.
        let _ = request.answer.send(answer);
    }
}

/// The value of the metric's `outcome` label.
fn refusal_label(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Busy(_) => "busy",
        Refusal::Timeout(_) => "timeout",
        Refusal::Closed(_) => "closed",
        Refusal::AlreadyExists | Refusal::NoApplication(_) | Refusal::ApplicationDeleted(_) => {
            "refused"
        }
    }
}

/// A refusal as the API's `Status`.
fn error(session: &Key, refusal: &Refusal) -> Error {
    let name = parts(session).1;
    let about = format!("applicationsessions.apps.mainstay.dev \"{name}\"");
    let (reason, message, retry_after) = match refusal {
        Refusal::AlreadyExists => (Reason::AlreadyExists, format!("{about} already exists"), None),
        Refusal::NoApplication(application) => (
            Reason::NotFound,
            format!("applications.apps.mainstay.dev \"{application}\" not found"),
            None,
        ),
        Refusal::ApplicationDeleted(_) => {
            (Reason::Conflict, format!("{about} cannot be opened: {refusal}"), None)
        }
        Refusal::Busy(_) => {
            (Reason::SystemBusy, format!("{about} is not open: {refusal}"), Some(1))
        }
        Refusal::Timeout(_) => {
            (Reason::Timeout, format!("{about} is not open: {refusal}"), Some(1))
        }
        Refusal::Closed(_) => (Reason::Conflict, format!("{about}: {refusal}"), None),
    };
    let mut error = Error::new(reason, message);
    name.clone_into(&mut error.details.name);
    "apps.mainstay.dev".clone_into(&mut error.details.group);
    "applicationsessions".clone_into(&mut error.details.kind);
    error.retry_after = retry_after;
    error
}

fn not_found(name: &str) -> Error {
    let message = format!("applicationsessions.apps.mainstay.dev \"{name}\" not found");
    Error::new(Reason::NotFound, message)
}
