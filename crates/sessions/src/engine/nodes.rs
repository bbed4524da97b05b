//! Nodes: their streams, their reports, and the consequences of losing one.

use std::collections::{BTreeMap, HashSet};

use mainstay_placement::machines::Amount;

use super::instances::name_of;
use super::{Due, Effect, Engine, Key, Moment, Subject, key};
use crate::api::{InstancePool, OnNodeLoss};
use crate::protocol::{
    Configuration, FromNode, FullSync, InstancePhase, Register, Report, from_node, to_node,
};

impl Engine {
    /// A node opens its stream. `false` if it has one already: the second is refused.
    pub fn connect(&mut self, node: &Key, now: Moment) -> bool {
        let known = self.nodes.entry(node.clone()).or_default();
        if known.connected {
            return false;
        }
        known.connected = true;
        known.registered = false;
        known.syncing = false;
        self.node_monitor.touch(node, now.elapsed);
        true
    }

    /// A node's stream ended. Instances that the node has not reported yet are placed elsewhere; the
    /// others wait for the node to come back, until it is lost.
    pub fn disconnect(&mut self, node: &Key, now: Moment) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        if !known.connected {
            return;
        }
        known.connected = false;
        known.ready = false;
        known.registered = false;
        let instances: Vec<Key> = known.instances.iter().cloned().collect();
        self.machines.set_schedulable(node, false);
        for name in instances {
            let Some(instance) = self.instances.get_mut(&name) else { continue };
            match instance.pool {
                InstancePool::Pending if !instance.acknowledged && instance.session.is_none() => {
                    self.place_again(&name, now);
                }
                InstancePool::Ready => {
                    instance.reason = "NodeAway";
                    instance.message = format!("its node {node} is not connected");
                    self.move_to(&name, InstancePool::Pending);
                }
                _ => {}
            }
        }
        self.effects.push(Effect::Node(node.clone()));
        self.settle(now);
    }

    /// An administrator cordons a node (no new instances), or ends that.
    pub fn cordon(&mut self, node: &Key, cordoned: bool, now: Moment) {
        let known = self.nodes.entry(node.clone()).or_default();
        if known.cordoned != cordoned {
            known.cordoned = cordoned;
            let schedulable = known.ready && !cordoned;
            self.machines.set_schedulable(node, schedulable);
            self.freed |= schedulable;
            self.settle(now);
        }
    }

    /// Sets the labels of a node's object; without an object the node has the labels it registered
    /// with. Calling it again with the same labels does nothing.
    pub fn label(&mut self, node: &Key, labels: Option<BTreeMap<String, String>>, now: Moment) {
        let known = self.nodes.entry(node.clone()).or_default();
        if known.labels == labels {
            return;
        }
        known.labels = labels;
        if known.registered {
            let labels = known.labels.as_ref().unwrap_or(&known.registered_labels).clone();
            self.machines.relabel(node, labels);
            self.freed = true;
            self.settle(now);
        }
    }

    /// Processes a message of a node.
    pub fn receive(&mut self, node: &Key, message: FromNode, now: Moment) {
        let Some(known) = self.nodes.get(node) else { return };
        if !known.connected {
            return;
        }
        self.node_monitor.touch(node, now.elapsed);
        let (revision, newest) = (message.revision, known.revision);
        let ready = known.ready;
        match message.body {
            None => {}
            Some(from_node::Body::Register(register)) => self.register(node, revision, &register),
            Some(from_node::Body::Ready(report))
                if self.nodes.get(node).is_some_and(|known| known.registered) =>
            {
                self.apply_report(node, revision, report, now);
                self.make_ready(node);
            }
            Some(from_node::Body::State(report)) if ready => {
                self.apply_report(node, revision, report, now);
            }
            Some(from_node::Body::Heartbeat(_)) if ready && revision > newest => {
                self.request_full_sync(node);
            }
            Some(from_node::Body::Instance(state)) if ready && self.is_next(node, revision) => {
                self.receive_instance(node, state, now);
            }
            Some(from_node::Body::Session(state)) if ready && self.is_next(node, revision) => {
                self.receive_session(node, state, now);
            }
            Some(from_node::Body::Health(health)) if ready => {
                for name in &health.instances {
                    let name = key(&name.namespace, &name.name);
                    let known = self.instances.get(&name);
                    if known.is_some_and(|known| known.pool != InstancePool::Standby) {
                        self.instance_monitor.touch(&name, now.elapsed);
                    }
                }
                for name in &health.sessions {
                    let name = key(&name.namespace, &name.name);
                    if self.session_monitor.last(&name).is_some() {
                        self.session_monitor.touch(&name, now.elapsed);
                    }
                }
            }
            Some(from_node::Body::Failed(failed)) => {
                self.receive_failure(node, failed.request, &failed.message, now);
            }
            // The controller handles logs; other messages are ignored until the node is ready.
            Some(_) => {}
        }
        self.settle(now);
    }

    /// Whether a change is the next one. A gap requests a full report, once.
    fn is_next(&mut self, node: &Key, revision: u64) -> bool {
        let Some(known) = self.nodes.get_mut(node) else { return false };
        if revision == known.revision + 1 && !known.syncing {
            known.revision = revision;
            return true;
        }
        if revision > known.revision {
            self.request_full_sync(node);
        }
        false
    }

    fn request_full_sync(&mut self, node: &Key) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        if !known.syncing {
            known.syncing = true;
            self.send(node, to_node::Body::FullSync(FullSync {}));
        }
    }

    fn register(&mut self, node: &Key, revision: u64, register: &Register) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        known.registered = true;
        known.ready = false;
        known.revision = revision;
        known.address.clone_from(&register.address);
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let has = Amount { cpu: signed(register.cpu_milli), memory: signed(register.memory_bytes) };
        known.registered_labels =
            register.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        // An agent cannot choose its zone: only operators change the labels of its Node.
        let labels = known.labels.as_ref().unwrap_or(&known.registered_labels).clone();
        self.machines.set_schedulable(node, false);
        self.machines.join(node, has, labels);
        let configuration = Configuration {
            cluster_domain: "mainstay".to_owned(),
            heartbeat_millis: millis(self.timeouts.heartbeat),
            health_millis: millis(self.timeouts.health),
        };
        self.effects.push(Effect::Send {
            node: node.clone(),
            request: 0,
            body: to_node::Body::Configuration(configuration),
        });
    }

    fn make_ready(&mut self, node: &Key) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        known.ready = true;
        let schedulable = !known.cordoned;
        self.machines.set_schedulable(node, schedulable);
        self.freed = true;
        self.effects.push(Effect::Node(node.clone()));
    }

    /// Applies a full report of a node. Instances missing from it are gone, except those that the
    /// node was sent and has not reported yet.
    fn apply_report(&mut self, node: &Key, revision: u64, report: Report, now: Moment) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        known.revision = revision;
        known.syncing = false;
        let before: Vec<Key> = known.instances.iter().cloned().collect();
        let instances = report.instances.iter().map(|state| key(&state.namespace, &state.name));
        let instances: HashSet<Key> = instances.collect();
        let sessions = report.sessions.iter().map(|state| key(&state.namespace, &state.name));
        let sessions: HashSet<Key> = sessions.collect();
        for name in before {
            let Some(instance) = self.instances.get(&name) else { continue };
            if instances.contains(&name) {
                let Some(session) = instance.session.clone() else { continue };
                if sessions.contains(&session) {
                    continue;
                }
                if self.was_open(&session) {
                    // It ended while the node was disconnected.
                    let message = "its node no longer has it".to_owned();
                    self.finish(&session, "SessionLost", message, now);
                    self.end(
                        &name,
                        "SessionLost",
                        "its session ended while the node was disconnected",
                        now,
                    );
                } else {
                    // The command to open it may have been lost with the stream.
                    self.command_open(&session);
                }
            } else if instance.acknowledged || instance.pool == InstancePool::Deleting {
                let gone = self.drop_instance(&name);
                if let Some(session) = gone.and_then(|gone| gone.session) {
                    let message = format!("its instance is no longer on {node}");
                    self.finish(&session, "InstanceLost", message, now);
                }
            }
        }
        // An unknown instance is adopted, unless its session is known to be over or elsewhere.
        // Sessions need their instances, so instances are adopted first.
        let with_known_session: HashSet<Key> = report
            .sessions
            .iter()
            .filter(|state| self.sessions.contains_key(&key(&state.namespace, &state.name)))
            .map(|state| key(&state.namespace, &state.instance))
            .collect();
        for state in report.instances {
            let name = key(&state.namespace, &state.name);
            if !self.instances.contains_key(&name) && !with_known_session.contains(&name) {
                self.adopt(node, &name, &state, now);
            }
            let runs = state.phase() == InstancePhase::Running;
            self.receive_instance(node, state, now);
            let frozen = self.instances.get(&name).map(|known| known.pool);
            if runs && frozen == Some(InstancePool::Standby) {
                // The command to freeze it may have been lost with the stream.
                self.send(node, to_node::Body::Hibernate(name_of(&name)));
            }
        }
        for state in report.sessions {
            self.receive_session(node, state, now);
        }
    }

    /// A node is lost because its heartbeats stopped: its instances are dropped, its sessions move or
    /// close.
    pub(super) fn lose_node(&mut self, node: &Key, now: Moment) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        let connected = std::mem::take(&mut known.connected);
        known.ready = false;
        known.registered = false;
        let instances: Vec<Key> = known.instances.iter().cloned().collect();
        if connected {
            self.effects.push(Effect::Disconnect { node: node.clone() });
        }
        self.machines.set_schedulable(node, false);
        let (mut moved, mut closed) = (0, 0);
        for name in &instances {
            let Some(instance) = self.drop_instance(name) else { continue };
            let Some(session) = instance.session else { continue };
            let recreate = self.sessions.get(&session).is_some_and(|session| {
                session.spec.on_node_loss == OnNodeLoss::Recreate && session.state.is_live()
            });
            if recreate {
                moved += 1;
                self.requeue(&session, "NodeLost", &format!("its node {node} was lost"), now);
            } else {
                closed += 1;
                let message = format!("its node {node} was lost");
                self.finish(&session, "NodeLost", message, now);
            }
        }
        self.machines.leave(node);
        self.nodes.remove(node);
        let message = format!(
            "no heartbeat for {:?}: {} instances dropped, {moved} sessions moved, {closed} closed",
            self.timeouts.node_stale,
            instances.len(),
        );
        self.event(Subject::Node(node.clone()), true, "NodeLost", message);
        self.effects.push(Effect::Node(node.clone()));
    }

    /// Restores the ports of an earlier run: reserved blocks, and the port of each session.
    pub fn recall_ports(&mut self, blocks: &[usize], mapping: &BTreeMap<String, u16>, now: Moment) {
        if let Some(endpoints) = &mut self.endpoints {
            endpoints.rest(blocks.iter().copied());
            for (session, port) in mapping {
                endpoints.restore(&session.as_str().into(), *port);
            }
            if !blocks.is_empty() {
                self.due.insert((now.elapsed + self.timeouts.settle, Due::Settle));
            }
        }
        self.settle(now);
    }

    /// A block of ports was reserved durably, or could not be.
    pub fn reserved(&mut self, block: Option<usize>, now: Moment) {
        self.reserving = false;
        if let (Some(block), Some(endpoints)) = (block, &mut self.endpoints) {
            endpoints.reserved(block);
            self.touched.extend(self.applications.keys().cloned());
        }
        if block.is_some() {
            self.settle(now);
        }
    }

    /// Whether a node is connected and ready.
    #[must_use]
    pub fn is_ready(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.ready)
    }

    /// The newest revision that the node reported.
    #[must_use]
    pub fn revision(&self, node: &str) -> Option<u64> {
        self.nodes.get(node).map(|node| node.revision)
    }
}

fn millis(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
