//! Sessions: waiting for an instance, opening, mapping the gateway's port.

mod closing;
mod reports;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Command, Due, Effect, Engine, Key, Moment, Refusal, Session, Subject, Ticket, key, parts,
};
use crate::api::{InstancePool, OpenMode, Protocol, SessionSpec, SessionState};
use crate::endpoints;
use crate::protocol::{OpenSession, to_node};

/// The number of ports that are tried when other programs use them.
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
            return Err(Refusal::Busy("another server is the primary".to_owned()));
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
            self.event(Subject::Application(application), true, "SystemBusy", message);
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

    /// Queues a session for an instance, as the last or the first.
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

    fn stop_waiting(&mut self, name: &Key) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if let Some(order) = session.order.take()
            && let Some(known) = self.applications.get_mut(&session.application)
        {
            known.waiting.remove(&order);
        }
    }

    /// Assigns ready instances to waiting sessions.
    pub(super) fn assign_waiting(&mut self, application: &Key, now: Moment) {
        loop {
            let Some(known) = self.applications.get(application) else { return };
            let Some((_, name)) = known.waiting.first_key_value() else { return };
            let name = name.clone();
            if self.assign(application, &name, now).is_err() {
                return;
            }
            self.stop_waiting(&name);
        }
    }

    /// Assigns the longest idle instance and a port to a session. The error is the reason why not.
    fn assign(&mut self, application: &Key, name: &Key, now: Moment) -> Result<(), String> {
        let known = self.applications.get(application).ok_or("the application was deleted")?;
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
        self.command_open(name);
        self.instance_monitor.touch(instance, now.elapsed);
        self.effects.push(Effect::Session(name.clone()));
    }

    /// Sends the command to open a session and remembers it, so that a failure is noticed.
    pub(super) fn command_open(&mut self, name: &Key) {
        let Some(request) = self.send_open(name) else { return };
        if let Some(session) = self.sessions.get_mut(name) {
            self.commands.remove(&session.command);
            session.command = request;
            self.commands.insert(request, (Command::Open, name.clone()));
        }
    }

    fn send_open(&mut self, name: &Key) -> Option<u64> {
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

    /// The instance has opened the session: map its port, then it is available.
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

    /// The result of [`Effect::Map`].
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
                        self.send_open(name);
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
        // The answer contains the published session, so it comes after the change.
        self.effects.push(Effect::Session(name.clone()));
        if let Some(ticket) = ticket {
            self.effects.push(Effect::Answer { ticket, answer: Ok(name.clone()) });
        }
    }

    /// Queues a session that lost its instance for another one; it keeps its port.
    pub(super) fn requeue(&mut self, name: &Key, reason: &'static str, why: &str, now: Moment) {
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
        self.event(Subject::Session(name.clone()), true, reason, why.to_owned());
        self.effects.push(Effect::Session(name.clone()));
        self.wait(name, true);
    }

    /// An instance failed to open a session: terminate the instance and queue the session again.
    pub(super) fn open_failed(&mut self, name: &Key, why: &str, now: Moment) {
        let instance = self.sessions.get(name).and_then(|session| session.instance.clone());
        if let Some(instance) = instance {
            if let Some(known) = self.instances.get_mut(&instance) {
                known.session = None;
            }
            self.end(&instance, "OpenFailed", &format!("it failed to open a session: {why}"), now);
        }
        let closing = self.sessions.get(name).is_some_and(|one| one.state == SessionState::Closing);
        if closing {
            self.finish(name, "OpenFailed", why.to_owned(), now);
        } else {
            self.requeue(name, "OpenFailed", why, now);
        }
    }

    /// Closes a session that is not open at its deadline.
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
            self.send_close(name, 0);
        }
        self.finish_as(name, SessionState::Timeout, "OpenTimeout", message, now);
        if let Some(instance) = instance {
            self.end(&instance, "OpenTimeout", "it did not open its session in time", now);
        }
    }

    /// Frees ports of an earlier run whose sessions no node has reported.
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

    /// The time at which a session got its instance.
    #[must_use]
    pub fn assigned(&self, name: &str) -> Option<Duration> {
        self.sessions.get(name)?.assigned
    }

    /// The timeouts.
    #[must_use]
    pub fn timeouts(&self) -> &super::Timeouts {
        &self.timeouts
    }

    /// The gateway's ports.
    #[must_use]
    pub fn endpoints(&self) -> Option<&endpoints::Endpoints> {
        self.endpoints.as_ref()
    }
}
