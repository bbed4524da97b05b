//! Sessions: opened on a ready instance, closed cleanly or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    About, Command, Due, Effect, Engine, Key, Moment, Refusal, Session, Ticket, key, parts,
};
use crate::api::{ApplicationSession, InstancePool, OpenMode, Protocol, SessionSpec, SessionState};
use crate::endpoints;
use crate::protocol::{self, CloseSession, InstancePhase, OpenSession, SessionPhase, to_node};

/// How many ports are tried when others on the machine have them.
const PORT_TRIES: u32 = 16;

fn seconds(number: i32) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}

impl Engine {
    /// Opens a session. The answer comes as [`Effect::Answer`], now or later.
    pub fn open(
        &mut self,
        name: &Key,
        spec: Arc<SessionSpec>,
        object: Arc<[u8]>,
        ticket: Ticket,
        now: Moment,
    ) {
        if let Err(refusal) = self.try_open(name, spec, object, ticket, now) {
            self.effects.push(Effect::Answer { ticket, answer: Err(refusal) });
        }
        self.settle(now);
    }

    fn try_open(
        &mut self,
        name: &Key,
        spec: Arc<SessionSpec>,
        object: Arc<[u8]>,
        ticket: Ticket,
        now: Moment,
    ) -> Result<(), Refusal> {
        if self.sessions.contains_key(name) {
            return Err(Refusal::AlreadyExists);
        }
        if !self.primary {
            return Err(Refusal::Busy("another server is in command".to_owned()));
        }
        let application = key(parts(name).0, &spec.application_name);
        let known = self
            .applications
            .get_mut(&application)
            .ok_or_else(|| Refusal::NoApplication(spec.application_name.clone()))?;
        if known.deleting {
            return Err(Refusal::ApplicationDeleted(spec.application_name.clone()));
        }
        let deadline = now.elapsed + seconds(spec.open_timeout_seconds);
        let session = Session {
            application: application.clone(),
            spec: spec.clone(),
            state: SessionState::Pending,
            instance: None,
            ticket: Some(ticket),
            order: None,
            command: 0,
            refused_ports: 0,
            deadline,
            assigned: None,
            port: None,
            mapped: false,
            clients: BTreeMap::new(),
            available: None,
            closed: None,
            deleted: false,
            reason: "",
            message: String::new(),
            object,
        };
        self.sessions.insert(name.clone(), session);
        let why = self.assign(&application, name, now).err();
        let Some(known) = self.applications.get_mut(&application) else { return Ok(()) };
        if let (Some(why), OpenMode::FailFast) = (&why, spec.open_mode) {
            self.sessions.remove(name);
            let most = usize::try_from(known.spec.scaling_policy.maximum_instance).unwrap_or(0);
            if known.refused.len() < most {
                known.refused.push_back(deadline);
            }
            self.touched.insert(application.clone());
            let message = format!("a session was refused: {why}");
            self.note(About::Application(application), true, "SystemBusy", message);
            return Err(Refusal::Busy(why.clone()));
        }
        known.sessions.insert(name.clone());
        self.due.insert((deadline, Due::Open(name.clone())));
        if why.is_some() {
            self.wait(name, false);
        }
        self.effects.push(Effect::Session(name.clone()));
        Ok(())
    }

    /// Lets a session wait for an instance, behind the others or before them.
    fn wait(&mut self, name: &Key, first: bool) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        let Some(known) = self.applications.get_mut(&session.application) else { return };
        let order = match first {
            true => known.waiting.first_key_value().map_or(0, |(order, _)| order - 1),
            false => known.waiting.last_key_value().map_or(0, |(order, _)| order + 1),
        };
        session.order = Some(order);
        known.waiting.insert(order, name.clone());
        self.touched.insert(session.application.clone());
    }

    fn wait_no_more(&mut self, name: &Key) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if let Some(order) = session.order.take()
            && let Some(known) = self.applications.get_mut(&session.application)
        {
            known.waiting.remove(&order);
        }
    }

    /// Gives waiting sessions instances, as long as there are both.
    pub(super) fn assign_waiting(&mut self, application: &Key, now: Moment) {
        loop {
            let Some(known) = self.applications.get(application) else { return };
            let Some((_, name)) = known.waiting.first_key_value() else { return };
            let name = name.clone();
            if self.assign(application, &name, now).is_err() {
                return;
            }
            self.wait_no_more(&name);
        }
    }

    /// Gives a session the longest idle instance and a port, or says why not.
    fn assign(&mut self, application: &Key, name: &Key, now: Moment) -> Result<(), String> {
        let known = self.applications.get(application).ok_or("the application is gone")?;
        let first_in_line = known.waiting.first_key_value().is_none_or(|(_, first)| first == name);
        let free = |pool| known.pools.of(pool).values().next().cloned();
        let frozen = || {
            let frozen = known.pools.of(InstancePool::Standby).values();
            let mut frozen = frozen.filter(|name| self.is_reachable(name));
            frozen.next().cloned()
        };
        let (instance, thaw) = match free(InstancePool::Ready).filter(|_| first_in_line) {
            Some(instance) => (instance, false),
            None => match frozen().filter(|_| first_in_line) {
                Some(instance) => (instance, true),
                None => return Err("no instance is ready".to_owned()),
            },
        };
        let protocol = known.spec.process().ports.first().map(|port| port.protocol);
        let port = match (&mut self.endpoints, protocol) {
            (Some(endpoints), Some(protocol)) => {
                let port = endpoints.allocate(name).map_err(|error| error.to_string())?;
                Some((port, protocol))
            }
            _ => None,
        };
        if thaw {
            self.thaw(&instance, now);
        }
        self.give(name, &instance, port, now);
        Ok(())
    }

    fn is_reachable(&self, instance: &Key) -> bool {
        let node = self.instances.get(instance).and_then(|instance| instance.node.as_ref());
        node.and_then(|node| self.nodes.get(node)).is_some_and(|node| node.ready)
    }

    fn give(&mut self, name: &Key, instance: &Key, port: Option<(u16, Protocol)>, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        session.instance = Some(instance.clone());
        session.state = SessionState::Starting;
        session.assigned = Some(now.elapsed);
        session.port = port;
        session.reason = "";
        session.message.clear();
        self.move_to(instance, InstancePool::Active);
        if let Some(known) = self.instances.get_mut(instance) {
            known.session = Some(name.clone());
        }
        self.order_to_open(name);
        self.instance_monitor.touch(instance, now.elapsed);
        self.effects.push(Effect::Session(name.clone()));
    }

    /// Tells a session's instance to open it; if it cannot, that matters.
    pub(super) fn order_to_open(&mut self, name: &Key) {
        let Some(request) = self.tell_to_open(name) else { return };
        if let Some(session) = self.sessions.get_mut(name) {
            self.commands.remove(&session.command);
            session.command = request;
            self.commands.insert(request, (Command::Open, name.clone()));
        }
    }

    fn tell_to_open(&mut self, name: &Key) -> Option<u64> {
        let session = self.sessions.get(name)?;
        let instance = session.instance.as_ref()?;
        let node = self.instances.get(instance)?.node.clone()?;
        let (namespace, own) = parts(name);
        let open = OpenSession {
            namespace: namespace.to_owned(),
            name: own.to_owned(),
            instance: parts(instance).1.to_owned(),
            session_data: session.spec.session_data.clone(),
            external_port: session.port.map_or(0, |(port, _)| u32::from(port)),
            object: session.object.to_vec(),
        };
        Some(self.send(&node, to_node::Body::Open(open)))
    }

    fn tell_to_close(&mut self, name: &Key, grace: u32) {
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

    /// Its instance has the session: its port is mapped next, then it is available.
    fn opened(&mut self, name: &Key, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        self.commands.remove(&session.command);
        let Some((port, protocol)) = session.port else {
            self.available(name, now);
            return;
        };
        let instance = session.instance.as_ref().and_then(|name| self.instances.get(name));
        let udp = protocol == Protocol::Udp;
        let to = instance.and_then(|one| one.endpoints.iter().find(|to| to.udp == udp));
        let Some(to) = to.cloned() else {
            self.available(name, now);
            return;
        };
        self.effects.push(Effect::Map {
            session: name.clone(),
            port,
            protocol,
            address: to.address,
            to: u16::try_from(to.port).unwrap_or(0),
        });
    }

    /// A port of the gateway forwards to a session's instance, or cannot.
    pub fn mapped(&mut self, name: &Key, result: Result<(), String>, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        match result {
            Ok(()) => {
                session.mapped = true;
                if session.state == SessionState::Starting {
                    self.available(name, now);
                }
            }
            Err(why) => {
                session.refused_ports += 1;
                let tries = session.refused_ports;
                let next = self.endpoints.as_mut().map(|endpoints| endpoints.replace(name));
                match (next, tries) {
                    (Some(Ok(port)), ..PORT_TRIES) => {
                        session.port = session.port.map(|(_, protocol)| (port, protocol));
                        self.tell_to_open(name);
                        self.opened(name, now);
                    }
                    _ => {
                        let message = format!("no port of the gateway can be used: {why}");
                        self.close_for(name, "NoPort", &message, now);
                    }
                }
            }
        }
        self.settle(now);
    }

    fn available(&mut self, name: &Key, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        session.state = match session.clients.is_empty() {
            true => SessionState::Available,
            false => SessionState::InUse,
        };
        session.available = Some(now.wall);
        session.reason = "";
        session.message.clear();
        self.due.remove(&(session.deadline, Due::Open(name.clone())));
        let ticket = session.ticket.take();
        self.session_monitor.touch(name, now.elapsed);
        // The answer shows the session, so it comes last.
        self.effects.push(Effect::Session(name.clone()));
        if let Some(ticket) = ticket {
            self.effects.push(Effect::Answer { ticket, answer: Ok(name.clone()) });
        }
    }

    /// Somebody wants a session closed, and its object gone.
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

    /// Closes a session: its instance is told, unless it has none yet.
    pub(super) fn close_for(&mut self, name: &Key, reason: &'static str, why: &str, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        match session.state {
            SessionState::Pending => self.finish(name, reason, why.to_owned(), now),
            SessionState::Starting | SessionState::Available | SessionState::InUse => {
                session.state = SessionState::Closing;
                session.reason = reason;
                why.clone_into(&mut session.message);
                let grace = seconds(session.spec.close_grace_period_seconds);
                self.unmap(name, grace);
                self.tell_to_close(name, u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
                let again = now.elapsed + grace + self.settings.closing;
                self.due.insert((again, Due::Close(name.clone())));
                self.session_monitor.remove(name);
                self.effects.push(Effect::Session(name.clone()));
            }
            SessionState::Closing | SessionState::Closed | SessionState::Timeout => {}
        }
    }

    /// A session that is closing for too long is told again.
    pub(super) fn close_again(&mut self, name: &Key, now: Moment) {
        let closing = self.sessions.get(name).is_some_and(|one| one.state == SessionState::Closing);
        if closing {
            self.tell_to_close(name, 0);
            self.due.insert((now.elapsed + self.settings.closing, Due::Close(name.clone())));
        }
    }

    fn unmap(&mut self, name: &Key, drain: Duration) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if let (Some((port, protocol)), true) = (session.port, session.mapped) {
            session.mapped = false;
            self.effects.push(Effect::Unmap { session: name.clone(), port, protocol, drain });
        }
    }

    /// A session is over, whatever its instance thinks.
    pub(super) fn finish(
        &mut self,
        name: &Key,
        reason: &'static str,
        message: String,
        now: Moment,
    ) {
        self.finish_as(name, SessionState::Closed, reason, message, now);
    }

    fn finish_as(
        &mut self,
        name: &Key,
        state: SessionState,
        reason: &'static str,
        message: String,
        now: Moment,
    ) {
        self.unmap(name, Duration::ZERO);
        self.wait_no_more(name);
        let Some(session) = self.sessions.get_mut(name) else { return };
        if session.state.is_over() {
            return;
        }
        // What closed it says why; that its instance then said so too is no reason.
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
            self.note(About::Session(name.clone()), true, reason, message);
        }
        self.effects.push(Effect::Session(name.clone()));
        self.touched.insert(application);
        if deleted {
            self.forget_session(name);
        } else {
            self.due.insert((now.elapsed + self.settings.closed, Due::Forget(name.clone())));
        }
    }

    /// A session that is over is no longer shown.
    pub(super) fn forget_session(&mut self, name: &Key) {
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

    /// A session lost its instance and shall have another; it keeps its port.
    pub(super) fn wait_again(&mut self, name: &Key, reason: &'static str, why: &str, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if !session.state.is_live() {
            return;
        }
        session.state = SessionState::Pending;
        session.instance = None;
        session.reason = reason;
        why.clone_into(&mut session.message);
        session.clients.clear();
        self.commands.remove(&session.command);
        if session.available.take().is_some() {
            session.deadline = now.elapsed + seconds(session.spec.open_timeout_seconds);
            self.due.insert((session.deadline, Due::Open(name.clone())));
        }
        self.session_monitor.remove(name);
        self.note(About::Session(name.clone()), true, reason, why.to_owned());
        self.effects.push(Effect::Session(name.clone()));
        self.wait(name, true);
    }

    /// An instance would not take a session: the instance ends, the session gets another.
    pub(super) fn open_failed(&mut self, name: &Key, why: &str, now: Moment) {
        let instance = self.sessions.get(name).and_then(|session| session.instance.clone());
        if let Some(instance) = instance {
            if let Some(known) = self.instances.get_mut(&instance) {
                known.session = None;
            }
            self.end(&instance, "OpenFailed", &format!("it would not take a session: {why}"), now);
        }
        let closing = self.sessions.get(name).is_some_and(|one| one.state == SessionState::Closing);
        if closing {
            self.finish(name, "OpenFailed", why.to_owned(), now);
        } else {
            self.wait_again(name, "OpenFailed", why, now);
        }
    }

    /// The time to open a session is over.
    pub(super) fn check_open(&mut self, name: &Key, now: Moment) {
        let Some(session) = self.sessions.get(name) else { return };
        let opening = matches!(session.state, SessionState::Pending | SessionState::Starting);
        if !opening || session.deadline > now.elapsed {
            return;
        }
        let waited = session.spec.open_timeout_seconds;
        let instance = session.instance.clone();
        let message = match &instance {
            None => format!("no instance was ready within {waited} s"),
            Some(instance) => {
                format!("its instance {} did not open it within {waited} s", parts(instance).1)
            }
        };
        if instance.is_some() {
            self.tell_to_close(name, 0);
        }
        self.finish_as(name, SessionState::Timeout, "OpenTimeout", message, now);
        if let Some(instance) = instance {
            self.end(&instance, "OpenTimeout", "it did not open its session in time", now);
        }
    }

    /// A session was not heard of for too long.
    pub(super) fn give_up_session(&mut self, name: &Key, now: Moment) {
        let instance = self.sessions.get(name).and_then(|session| session.instance.clone());
        let message = "it has not been heard of for too long".to_owned();
        self.finish(name, "Stale", message, now);
        if let Some(instance) = instance {
            self.end(&instance, "SessionStale", "its session was not heard of for too long", now);
        }
    }

    /// Whether a node has said that a session is open on it.
    pub(super) fn was_open(&self, name: &Key) -> bool {
        use SessionState::{Available, Closing, InUse};
        let state = self.sessions.get(name).map(|session| session.state);
        matches!(state, Some(Available | InUse | Closing))
    }

    /// What a node says about a session.
    pub(super) fn hear_session(&mut self, node: &Key, state: protocol::SessionState, now: Moment) {
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
                self.end(&instance, "UnknownSession", "nobody knows its session", now);
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
                self.tell_to_close(&name, u32::try_from(grace).unwrap_or(0));
            }
            (SessionPhase::Open, SessionState::Starting) => {
                self.hear_clients(&name, &state.clients, now);
                self.opened(&name, now);
            }
            (SessionPhase::Open, _) => self.hear_clients(&name, &state.clients, now),
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
                let message = "its instance no longer answers".to_owned();
                self.finish(&name, "NoHeartbeat", message, now);
                self.after_session(&instance, false, now);
            }
            (SessionPhase::Initializing | SessionPhase::Closing, _) => {}
        }
    }

    /// An instance without a session: it waits for the next, or ends.
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

    /// Takes in a session that a node has and the engine does not know: it was opened before the
    /// engine began.
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

    /// What an instance says about who is connected replaces what it said before.
    fn hear_clients(&mut self, name: &Key, clients: &[protocol::Client], now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        let before = session.clients.clone();
        session.clients.retain(|_, (_, told)| !*told);
        for client in clients {
            let joined =
                jiff::Timestamp::from_microsecond(client.joined_micros).unwrap_or(now.wall);
            session.clients.insert(client.id.clone(), (joined, true));
        }
        if session.clients != before {
            self.in_use_or_not(name);
        }
    }

    /// Somebody connected through the gateway, or left.
    pub fn client(&mut self, name: &Key, id: String, joined: bool, now: Moment) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if joined {
            session.clients.insert(id, (now.wall, false));
        } else {
            session.clients.remove(&id);
        }
        self.in_use_or_not(name);
    }

    fn in_use_or_not(&mut self, name: &Key) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if matches!(session.state, SessionState::Available | SessionState::InUse) {
            session.state = match session.clients.is_empty() {
                true => SessionState::Available,
                false => SessionState::InUse,
            };
            self.effects.push(Effect::Session(name.clone()));
        }
    }

    /// Everybody has had time to report: ports of sessions that nobody knows are free.
    pub(super) fn settle_ports(&mut self) {
        let Some(endpoints) = &mut self.endpoints else { return };
        endpoints.settle();
        let unknown: Vec<Key> = endpoints
            .iter()
            .filter(|(session, _)| !self.sessions.contains_key(*session))
            .map(|(session, _)| session.clone())
            .collect();
        for session in unknown {
            endpoints.free(&session);
        }
    }

    /// When a session got its instance.
    #[must_use]
    pub fn assigned(&self, name: &str) -> Option<Duration> {
        self.sessions.get(name)?.assigned
    }

    /// How patient it is.
    #[must_use]
    pub fn settings(&self) -> &super::Settings {
        &self.settings
    }

    /// The gateway's ports.
    #[must_use]
    pub fn endpoints(&self) -> Option<&endpoints::Endpoints> {
        self.endpoints.as_ref()
    }
}
