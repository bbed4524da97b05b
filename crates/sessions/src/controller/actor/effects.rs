//! The engine's effects: messages, answers, published objects, gateway ports, queued writes, events.

use std::net::SocketAddr;

use mainstay_controller::events::Severity;
use mainstay_store::builtin::{Node, ObjectReference};
use mainstay_store::registry::Typed;

use super::super::writer::PersistedPorts;
use super::Actor;
use crate::api::{Application, ApplicationSession, Instance};
use crate::engine::{Effect, EngineEvent, Moment, Subject, parts};
use crate::gateway::SessionKey;

impl Actor {
    /// Carries out the effects that the engine asked for, in order.
    pub(super) async fn perform(&mut self, now: Moment) {
        loop {
            let effects = self.parts.engine.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.perform_one(effect, now).await;
            }
        }
    }

    async fn perform_one(&mut self, effect: Effect, now: Moment) {
        match effect {
            Effect::Send { node, request, body } => self.send(&node, request, body, now),
            Effect::Disconnect { node } => {
                self.parts.handle.metrics.nodes_lost.inc();
                self.streams.remove(&node);
            }
            Effect::Answer { ticket, answer } => self.answer(ticket, answer, now).await,
            Effect::Session(name) => self.publisher.session_changed(name),
            Effect::SessionGone(name, last) => {
                self.edited.remove(&name);
                if let Some(record) = self.publisher.remove(&name, &last).await {
                    let until = now.elapsed + self.parts.engine.timeouts().closed;
                    self.parts.handle.keep_readable(record, until);
                }
            }
            Effect::Instance(name) => self.publisher.instance_changed(name),
            Effect::InstanceGone(name) => self.publisher.instance_gone(name),
            Effect::Application(name) => {
                self.applications.insert(name);
            }
            Effect::ApplicationGone(_) if !self.leads => {}
            Effect::ApplicationGone(name) => {
                self.parts.writes.add(|pending| {
                    pending.statuses.remove(&name);
                    pending.gone.push(name);
                });
            }
            Effect::Node(name) => {
                let ready = self.parts.engine.is_ready(&name);
                self.parts.writes.add(|pending| {
                    pending.nodes.insert(name, ready);
                });
            }
            Effect::Map { session, port, protocol, address, to } => {
                self.ports_changed = true;
                let opened = match (&self.parts.gateway, address.parse()) {
                    (Some(gateway), Ok(address)) => {
                        let target = SocketAddr::new(address, to);
                        let name = SessionKey(session.to_string());
                        let opened = gateway.open(port, protocol, name, target);
                        opened.map_err(|error| error.to_string())
                    }
                    (Some(_), Err(_)) => Err(format!("{address:?} is not an IP address")),
                    (None, _) => Ok(()),
                };
                self.parts.engine.mapped(&session, opened, now);
            }
            Effect::Unmap { port, protocol, drain, .. } => {
                self.ports_changed = true;
                if let Some(gateway) = &self.parts.gateway {
                    gateway.close(port, protocol, drain);
                }
            }
            Effect::Reserve(block) => self.write_ports(Some(block)),
            Effect::Attach { volume, node, attached } => {
                self.parts.writes.add(|pending| {
                    pending.attachments.insert((volume, node), attached);
                });
            }
            Effect::Event(event) => self.record(&event),
        }
    }

    /// Queues the statuses of changed applications to be written.
    pub(super) fn write_statuses(&mut self) {
        let changed = std::mem::take(&mut self.applications);
        for name in changed.into_iter().filter(|_| self.leads) {
            if let Some(status) = self.parts.engine.application_status(&name) {
                self.parts.writes.add(|pending| {
                    pending.statuses.insert(name, status);
                });
            }
        }
    }

    /// Queues changed ports to be written, with one more block to reserve if given.
    pub(super) fn write_ports(&mut self, reserve: Option<usize>) {
        if !std::mem::take(&mut self.ports_changed) && reserve.is_none() {
            return;
        }
        let (Some(endpoints), Some(first)) = (self.parts.engine.endpoints(), self.first_port)
        else {
            return;
        };
        let mapping = endpoints.iter().map(|(session, port)| (session.to_string(), port)).collect();
        let ports = PersistedPorts { blocks: endpoints.blocks(), mapping };
        self.parts.writes.add(|pending| {
            pending.ports = Some((first, ports));
            pending.reserve = reserve.or(pending.reserve);
        });
    }

    fn record(&self, event: &EngineEvent) {
        // Normal events of instances happen thousands of times a second and are not recorded.
        if !event.warning && matches!(event.subject, Subject::Instance(_)) {
            return;
        }
        let (api, kind, name) = match &event.subject {
            Subject::Session(name) => (api::<ApplicationSession>(), ApplicationSession::KIND, name),
            Subject::Instance(name) => (api::<Instance>(), Instance::KIND, name),
            Subject::Application(name) => (api::<Application>(), Application::KIND, name),
            Subject::Node(name) => ("v1".to_owned(), Node::KIND, name),
        };
        let (namespace, own) = parts(name);
        // `kubectl describe` finds the events of an object by its uid.
        let reflectors = &self.parts.reflectors;
        let uid = match &event.subject {
            Subject::Session(name) => self.publisher.session_uid(name),
            Subject::Instance(name) => self.publisher.instance_uid(name),
            Subject::Application(_) => {
                let found = reflectors.applications.find(Some(namespace), own);
                found.map(|application| application.metadata.uid.clone())
            }
            Subject::Node(name) => {
                reflectors.nodes.find(None, name).map(|node| node.metadata.uid.clone())
            }
        };
        let about = ObjectReference {
            uid,
            api_version: Some(api),
            kind: Some(kind.to_owned()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            name: Some(own.to_owned()),
            ..ObjectReference::default()
        };
        let severity = if event.warning { Severity::Warning } else { Severity::Normal };
        self.parts.recorder.event(&about, severity, event.reason, &event.message);
    }
}

fn api<T: Typed>() -> String {
    format!("{}/{}", T::GROUP, T::VERSION)
}
