//! Reports of nodes about sessions, and clients that connect and disconnect.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{Effect, Engine, Key, Moment, Session, key, parts};
use crate::api::{ApplicationSession, InstancePool, SessionState};
use crate::protocol::{self, InstancePhase, SessionPhase};

impl Engine {
    /// Whether a node has reported a session as open.
    pub(in crate::engine) fn was_open(&self, name: &Key) -> bool {
        use SessionState::{Available, Closing, InUse};
        let state = self.sessions.get(name).map(|session| session.state);
        matches!(state, Some(Available | InUse | Closing))
    }

    /// Processes a node's report about a session.
    pub(in crate::engine) fn receive_session(
        &mut self,
        node: &Key,
        state: protocol::SessionState,
        now: Moment,
    ) {
        let name = key(&state.namespace, &state.name);
        let instance = key(&state.namespace, &state.instance);
        let phase = state.phase();
        let over = matches!(phase, SessionPhase::Closed | SessionPhase::NoHeartbeat);
        let here = self.instances.get(&instance).is_some_and(|one| one.node.as_ref() == Some(node));
        if !here {
            return;
        }
        self.instance_monitor.touch(&instance, now.elapsed);
        if !self.sessions.contains_key(&name) && !over {
            if !self.adopt_session(&name, &instance, &state, now) {
                self.end(&instance, "UnknownSession", "its session is unknown", now);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&name) else { return };
        if session.instance.as_ref() != Some(&instance) {
            if !over {
                self.end(&instance, "SessionMoved", "its session went to another instance", now);
            }
            return;
        }
        if session.state.is_live() && session.state != SessionState::Starting {
            self.session_monitor.touch(&name, now.elapsed);
        }
        match (phase, session.state) {
            (
                SessionPhase::Open,
                SessionState::Closing | SessionState::Closed | SessionState::Timeout,
            ) => {
                let grace = session.spec.close_grace_period_seconds;
                self.send_close(&name, u32::try_from(grace).unwrap_or(0));
            }
            (SessionPhase::Open, SessionState::Starting) => {
                self.receive_clients(&name, &state.clients, now);
                self.opened(&name, now);
            }
            (SessionPhase::Open, _) => self.receive_clients(&name, &state.clients, now),
            (SessionPhase::Closed, _) => {
                let clean = matches!(state.reason.as_str(), "" | protocol::CLEAN);
                let message = match state.message.as_str() {
                    "" => "its instance closed it".to_owned(),
                    message => message.to_owned(),
                };
                let reason = if clean { "Closed" } else { "Unclean" };
                let kill = session.spec.kill_instance_when_session_closed;
                self.finish(&name, reason, message, now);
                self.after_session(&instance, clean && !kill, now);
            }
            (SessionPhase::NoHeartbeat, _) => {
                let message = "its instance no longer sends heartbeats".to_owned();
                self.finish(&name, "NoHeartbeat", message, now);
                self.after_session(&instance, false, now);
            }
            (SessionPhase::Initializing | SessionPhase::Closing, _) => {}
        }
    }

    /// Returns an instance whose session is over to the pool, or terminates it.
    fn after_session(&mut self, name: &Key, may_reuse: bool, now: Moment) {
        let Some(instance) = self.instances.get_mut(name) else { return };
        instance.session = None;
        if instance.pool != InstancePool::Active {
            return;
        }
        let reuse = may_reuse
            && instance.phase == InstancePhase::Running
            && self.applications.get(&instance.application).is_some_and(|known| {
                known.spec.reuse_instances && !known.deleting && known.template == instance.template
            });
        if reuse {
            self.move_to(name, InstancePool::Ready);
        } else {
            self.end(name, "SessionClosed", "its session is over", now);
        }
    }

    /// Adopts a session that a node reports and the engine does not know, because it was opened before
    /// the server started. `false` if it cannot be adopted.
    fn adopt_session(
        &mut self,
        name: &Key,
        instance: &Key,
        state: &protocol::SessionState,
        now: Moment,
    ) -> bool {
        let Ok(object) = serde_json::from_slice::<ApplicationSession>(&state.object) else {
            return false;
        };
        let application = key(parts(name).0, &object.spec.application_name);
        let Some(known) = self.applications.get_mut(&application) else { return false };
        if known.deleting {
            return false;
        }
        known.sessions.insert(name.clone());
        let ports = known.spec.process().ports.first().map(|port| port.protocol);
        let port = match (u16::try_from(state.external_port), &mut self.endpoints, ports) {
            (Ok(port @ 1..), Some(endpoints), Some(protocol)) => {
                let port = match endpoints.restore(name, port) {
                    true => Ok(port),
                    false => endpoints.allocate(name),
                };
                port.ok().map(|port| (port, protocol))
            }
            _ => None,
        };
        let session = Session {
            application,
            spec: Arc::new(object.spec),
            state: SessionState::Starting,
            instance: Some(instance.clone()),
            ticket: None,
            order: None,
            command: 0,
            refused_ports: 0,
            deadline: now.elapsed,
            assigned: None,
            port,
            mapped: false,
            clients: BTreeMap::new(),
            available: None,
            closed: None,
            deleted: false,
            reason: "",
            message: String::new(),
            object: state.object.as_slice().into(),
        };
        self.sessions.insert(name.clone(), session);
        self.move_to(instance, InstancePool::Active);
        if let Some(known) = self.instances.get_mut(instance) {
            known.session = Some(name.clone());
        }
        self.effects.push(Effect::Session(name.clone()));
        match state.phase() {
            SessionPhase::Closing => self.close_for(name, "Closing", "it was closing", now),
            _ => self.opened(name, now),
        }
        true
    }

    /// Replaces the clients that the instance reported before.
    fn receive_clients(&mut self, name: &Key, clients: &[protocol::Client], now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        let before = session.clients.clone();
        session.clients.retain(|_, (_, reported)| !*reported);
        for client in clients {
            let joined =
                jiff::Timestamp::from_microsecond(client.joined_micros).unwrap_or(now.wall);
            session.clients.insert(client.id.clone(), (joined, true));
        }
        if session.clients != before {
            self.update_in_use(name);
        }
    }

    /// A client connected through the gateway, or disconnected.
    pub fn client(&mut self, name: &Key, id: String, joined: bool, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if joined {
            session.clients.insert(id, (now.wall, false));
        } else {
            session.clients.remove(&id);
        }
        self.update_in_use(name);
    }

    fn update_in_use(&mut self, name: &Key) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if matches!(session.state, SessionState::Available | SessionState::InUse) {
            session.state = match session.clients.is_empty() {
                true => SessionState::Available,
                false => SessionState::InUse,
            };
            self.effects.push(Effect::Session(name.clone()));
        }
    }
}
