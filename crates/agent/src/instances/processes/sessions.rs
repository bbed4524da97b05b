//! The sessions of real instances: instances that use the session service report when a session
//! is open and closed; for all others this happens at once.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sessions::protocol::{CloseSession, InstancePhase, OpenSession, SessionPhase};

use super::service::{self, Seen, Wanted};
use super::{MISSED, Shared, spawn};
use crate::instances::ledger::Done;
use crate::instances::{Error, Id, reason};

impl Shared {
    pub(super) fn open_session(&self, open: OpenSession) -> Result<(), Error> {
        let (id, name) = (Id::new(&open.namespace, &open.instance), open.name.clone());
        let new = self.ledger().open(open)?;
        if new == Done::Again {
            return Ok(());
        }
        if let Err(error) = self.thawed(&id).and_then(|()| {
            self.present(&id);
            self.save(&id).map_err(|error| spawn::trouble("the session", &error))
        }) {
            // The next agent would not know a session without a state file.
            self.ledger().closed(&id, &name, reason::NOT_WRITTEN, error.to_string());
            self.show(&id);
            return Err(error);
        }
        Ok(())
    }

    /// Opens the session of a running instance, as far as the agent can.
    pub(super) fn present(&self, id: &Id) {
        let mut ledger = self.ledger();
        let Ok(record) = ledger.get(id) else { return };
        let (running, serviced) =
            (record.state.phase() == InstancePhase::Running, record.own.service.is_some());
        let Some((name, SessionPhase::Initializing)) = ledger.session_of(id) else { return };
        if !running {
            return;
        }
        if serviced {
            drop(ledger);
            self.show(id);
        } else {
            ledger.opened(id, &name);
        }
    }

    /// Publishes the wanted state to an instance through its service.
    pub(super) fn show(&self, id: &Id) {
        let now = self.clock.elapsed();
        let mut ledger = self.ledger();
        let Ok(record) = ledger.get_mut(id) else { return };
        let Some(service) = record.own.service.clone() else { return };
        record.own.alive.seen += 1;
        let session = record.session.as_deref();
        let state = service::wanted(session.map(|session| session.state.phase()));
        let grace = session.map(|session| session.grace_seconds);
        let seen = Seen {
            number: record.own.alive.seen,
            state,
            session: session.map(|session| session.state.name.clone()),
            data: session.map(|session| session.data.clone()),
            grace_seconds: grace.filter(|_| state == Wanted::Closing),
        };
        // Under the lock, so that a newer state is never overtaken by an older one.
        service.show(seen, now);
    }

    pub(super) fn close_session(self: &Arc<Self>, close: &CloseSession) -> Result<(), Error> {
        let id = Id::new(&close.namespace, &close.instance);
        let mut ledger = self.ledger();
        let new = ledger.closing(&id, &close.name, close.grace_seconds)?;
        if new == Done::Again {
            return Ok(());
        }
        let record = ledger.get(&id)?;
        let heard = record.state.phase() != InstancePhase::Creating;
        if record.own.service.is_none() || !heard {
            ledger.closed(&id, &close.name, reason::CLEAN, String::new());
        }
        drop(ledger);
        self.close_in_time(&id);
        self.show(&id);
        self.keep(&id);
        Ok(())
    }

    /// Closes a closing session by force when its grace is over.
    pub(super) fn close_in_time(self: &Arc<Self>, id: &Id) {
        let ledger = self.ledger();
        let Ok(record) = ledger.get(id) else { return };
        let gone = record.own.gone.clone();
        let Some(session) = record.session.as_deref() else { return };
        if session.state.phase() != SessionPhase::Closing {
            return;
        }
        let (name, seconds) = (session.state.name.clone(), session.grace_seconds);
        drop(ledger);
        let (shared, id) = (self.clone(), id.clone());
        let sleep = self.clock.sleep(Duration::from_secs(seconds.into()));
        self.tasks.spawn(async move {
            tokio::select! {
                () = sleep => {}
                () = gone.cancelled() => return,
                () = shared.stop.cancelled() => return,
            }
            let message = format!("the instance did not close it within {seconds} s");
            let late = shared.ledger().closed(&id, &name, reason::GRACE_EXCEEDED, message);
            if late {
                shared.show(&id);
                shared.keep(&id);
            }
        });
    }

    /// The instance reports that its session is open.
    pub(super) fn said_open(&self, id: &Id) -> bool {
        let mut ledger = self.ledger();
        let opened = match ledger.session_of(id) {
            Some((name, SessionPhase::Initializing)) => ledger.opened(id, &name),
            Some((_, phase)) => return phase == SessionPhase::Open,
            None => return false,
        };
        drop(ledger);
        self.keep(id);
        opened
    }

    /// The instance reports that its session is closed.
    pub(super) fn said_closed(&self, id: &Id) -> bool {
        let mut ledger = self.ledger();
        let Some((name, _)) = ledger.session_of(id) else { return false };
        ledger.closed(id, &name, reason::CLEAN, String::new());
        drop(ledger);
        self.show(id);
        self.keep(id);
        true
    }

    /// The instance reports its connected clients.
    pub(super) fn said_clients(&self, id: &Id, ids: Vec<String>) -> bool {
        let now = self.clock.now().as_microsecond();
        let mut ledger = self.ledger();
        let Ok(record) = ledger.get(id) else { return false };
        let Some(session) = record.session.as_deref() else { return false };
        let clients = service::joined(ids, &session.state.clients, now);
        let name = session.state.name.clone();
        ledger.clients(id, &name, clients);
        drop(ledger);
        self.keep(id);
        true
    }

    /// The instance missed its pings for too long.
    pub(super) fn silent(&self, id: &Id, name: &str) {
        let message = format!("the instance missed more than {MISSED} pings");
        if self.ledger().silent(id, name, message) {
            self.keep(id);
        }
    }
}
