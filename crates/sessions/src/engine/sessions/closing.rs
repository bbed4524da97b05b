//! Closing of sessions: by their user, by the engine, or because their instance is gone.

use std::time::Duration;

use super::super::{Due, Effect, Engine, Key, Moment, Refusal, Subject, parts};
use super::seconds;
use crate::api::SessionState;
use crate::protocol::{CloseSession, to_node};

impl Engine {
    pub(super) fn send_close(&mut self, name: &Key, grace: u32) {
        let Some(session) = self.sessions.get(name) else { return };
        let Some(instance) = session.instance.as_ref() else { return };
        let node = self.instances.get(instance).and_then(|instance| instance.node.clone());
        let Some(node) = node else { return };
        if self.nodes.get(&node).is_some_and(|node| node.connected) {
            let (namespace, own) = parts(name);
            let close = CloseSession {
                namespace: namespace.to_owned(),
                name: own.to_owned(),
                instance: parts(instance).1.to_owned(),
                grace_seconds: grace,
            };
            self.send(&node, to_node::Body::Close(close));
        }
    }

    /// A user deleted a session: close it and remove its object.
    pub fn close(&mut self, name: &Key, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        session.deleted = true;
        if session.state.is_over() {
            self.forget_session(name);
        } else {
            self.close_for(name, "Deleted", "closed by its user", now);
        }
        self.settle(now);
    }

    /// Closes a session; its instance, if it has one, gets the command to close it.
    pub(in crate::engine) fn close_for(
        &mut self,
        name: &Key,
        reason: &'static str,
        why: &str,
        now: Moment,
    ) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        match session.state {
            SessionState::Pending => self.finish(name, reason, why.to_owned(), now),
            SessionState::Starting | SessionState::Available | SessionState::InUse => {
                session.state = SessionState::Closing;
                session.reason = reason;
                why.clone_into(&mut session.message);
                let grace = seconds(session.spec.close_grace_period_seconds);
                self.unmap(name, grace);
                self.send_close(name, u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
                let again = now.elapsed + grace + self.timeouts.closing;
                self.due.insert((again, Due::Close(name.clone())));
                self.session_monitor.remove(name);
                self.effects.push(Effect::Session(name.clone()));
            }
            SessionState::Closing | SessionState::Closed | SessionState::Timeout => {}
        }
    }

    /// Repeats the command to close a session that is still closing.
    pub(in crate::engine) fn repeat_close(&mut self, name: &Key, now: Moment) {
        let closing = self.sessions.get(name).is_some_and(|one| one.state == SessionState::Closing);
        if closing {
            self.send_close(name, 0);
            self.due.insert((now.elapsed + self.timeouts.closing, Due::Close(name.clone())));
        }
    }

    pub(super) fn unmap(&mut self, name: &Key, drain: Duration) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if let (Some((port, protocol)), true) = (session.port, session.mapped) {
            session.mapped = false;
            self.effects.push(Effect::Unmap { session: name.clone(), port, protocol, drain });
        }
    }

    /// Ends a session at once, without waiting for its instance.
    pub(in crate::engine) fn finish(
        &mut self,
        name: &Key,
        reason: &'static str,
        message: String,
        now: Moment,
    ) {
        self.finish_as(name, SessionState::Closed, reason, message, now);
    }

    pub(super) fn finish_as(
        &mut self,
        name: &Key,
        state: SessionState,
        reason: &'static str,
        message: String,
        now: Moment,
    ) {
        self.unmap(name, Duration::ZERO);
        self.stop_waiting(name);
        let Some(session) = self.sessions.get_mut(name) else { return };
        if session.state.is_over() {
            return;
        }
        // Keep the reason of the close: the instance's later report is only its consequence.
        if session.state != SessionState::Closing || session.reason.is_empty() {
            session.reason = reason;
            session.message = message;
        }
        session.state = state;
        session.closed = Some(now.wall);
        session.clients.clear();
        self.commands.remove(&session.command);
        self.due.remove(&(session.deadline, Due::Open(name.clone())));
        let (reason, message) = (session.reason, session.message.clone());
        let (ticket, application) = (session.ticket.take(), session.application.clone());
        let (deleted, instance) = (session.deleted, session.instance.clone());
        if let Some(instance) = instance.and_then(|name| self.instances.get_mut(&name)) {
            instance.session = None;
        }
        if let Some(endpoints) = &mut self.endpoints {
            endpoints.free(name);
        }
        self.session_monitor.remove(name);
        if let Some(ticket) = ticket {
            let answer = Err(match state {
                SessionState::Timeout => Refusal::Timeout(message.clone()),
                _ => Refusal::Closed(message.clone()),
            });
            self.effects.push(Effect::Answer { ticket, answer });
        }
        if reason != "Deleted" {
            self.event(Subject::Session(name.clone()), true, reason, message);
        }
        self.effects.push(Effect::Session(name.clone()));
        self.touched.insert(application);
        if deleted {
            self.forget_session(name);
        } else {
            self.due.insert((now.elapsed + self.timeouts.closed, Due::Forget(name.clone())));
        }
    }

    /// Removes a session that is over.
    pub(in crate::engine) fn forget_session(&mut self, name: &Key) {
        let Some(session) = self.sessions.get(name).filter(|session| session.state.is_over())
        else {
            return;
        };
        if let Some(known) = self.applications.get_mut(&session.application) {
            known.sessions.remove(name);
        }
        // A session that is over has no endpoint, so the gateway's address does not matter.
        let last = self.session_status(name, "").unwrap_or_default();
        self.effects.push(Effect::SessionGone(name.clone(), Box::new(last)));
        self.sessions.remove(name);
    }

    /// Closes a session without health reports.
    pub(in crate::engine) fn expire_session(&mut self, name: &Key, now: Moment) {
        let instance = self.sessions.get(name).and_then(|session| session.instance.clone());
        let message = "no health report within the timeout".to_owned();
        self.finish(name, "Stale", message, now);
        if let Some(instance) = instance {
            self.end(
                &instance,
                "SessionStale",
                "its session had no health report within the timeout",
                now,
            );
        }
    }
}
