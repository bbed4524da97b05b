//! Instances: creation, placement, reports of their nodes, termination.

use std::collections::{HashSet, VecDeque};

use mainstay_placement::machines::{Amount, Considered, Needs};

use super::{Command, Effect, Engine, Instance, Key, Moment, Subject, key, parts};
use crate::api::InstancePool;
use crate::protocol::{CreateInstance, InstancePhase, InstanceState, Name, to_node};

/// The unique part of an instance's name: a few letters derived from a number.
fn suffix(seed: u64, number: u64) -> String {
    const LETTERS: &[u8; 32] = b"bcdfghjklmnpqrstvwxz0123456789ae";
    // SplitMix64: consecutive numbers give very different letters.
    let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    (0..8).map(|place| char::from(LETTERS[(mixed >> (5 * place)) as usize % 32])).collect()
}

pub(super) fn name_of(instance: &Key) -> Name {
    let (namespace, name) = parts(instance);
    Name { namespace: namespace.to_owned(), name: name.to_owned() }
}

impl Engine {
    /// Creates instances and places them; those without a suitable node wait.
    pub(super) fn make(&mut self, application: &Key, count: i64, standby: bool, now: Moment) {
        let Some(known) = self.applications.get(application) else { return };
        let (template, amount) = (known.template.clone(), known.amount);
        let (namespace, name) = parts(application);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let mut fresh = VecDeque::new();
        for _ in 0..count {
            let instance = loop {
                self.named += 1;
                let instance =
                    key(&namespace, &format!("{name}-{}", suffix(self.seed, self.named)));
                if !self.instances.contains_key(&instance) {
                    break instance;
                }
            };
            let made = Instance {
                application: application.clone(),
                node: None,
                pool: InstancePool::Pending,
                place: 0,
                template: template.clone(),
                amount,
                phase: InstancePhase::Creating,
                session: None,
                command: 0,
                endpoints: Vec::new(),
                acknowledged: false,
                standby,
                created: now.wall,
                ready: None,
                reason: "",
                message: String::new(),
            };
            self.insert(instance.clone(), made);
            fresh.push_back(instance);
        }
        self.place(application, fresh, now);
    }

    /// Adds an instance to its pool.
    pub(super) fn insert(&mut self, name: Key, mut instance: Instance) {
        self.places += 1;
        instance.place = self.places;
        if let Some(application) = self.applications.get_mut(&instance.application) {
            application.pools.insert(instance.pool, instance.place, name.clone());
            if instance.standby && instance.pool == InstancePool::Pending {
                application.freezing += 1;
            }
        }
        self.effects.push(Effect::Instance(name.clone()));
        self.instances.insert(name, instance);
    }

    /// Moves an instance to the end of a pool.
    pub(super) fn move_to(&mut self, name: &Key, pool: InstancePool) {
        let Some(instance) = self.instances.get_mut(name) else { return };
        self.places += 1;
        let (before, place) = (instance.pool, instance.place);
        instance.pool = pool;
        instance.place = self.places;
        if let Some(application) = self.applications.get_mut(&instance.application) {
            application.pools.remove(before, place);
            application.pools.insert(pool, self.places, name.clone());
            if instance.standby && before == InstancePool::Pending && pool != before {
                application.freezing -= 1;
                instance.standby = false;
            }
            self.touched.insert(instance.application.clone());
        }
        self.effects.push(Effect::Instance(name.clone()));
    }

    /// Removes an instance and frees its reservation.
    pub(super) fn drop_instance(&mut self, name: &Key) -> Option<Instance> {
        let instance = self.instances.remove(name)?;
        if let Some(application) = self.applications.get_mut(&instance.application) {
            application.pools.remove(instance.pool, instance.place);
            if instance.standby && instance.pool == InstancePool::Pending {
                application.freezing -= 1;
            }
            self.touched.insert(instance.application.clone());
        }
        self.instance_monitor.remove(name);
        self.commands.remove(&instance.command);
        self.unbind(name, &instance);
        self.effects.push(Effect::InstanceGone(name.clone()));
        Some(instance)
    }

    /// Removes an instance from its node and frees its reservation.
    fn unbind(&mut self, name: &Key, instance: &Instance) {
        let Some(node) = &instance.node else { return };
        self.machines.release(node, instance.amount);
        self.freed = true;
        if let Some(node) = self.nodes.get_mut(node) {
            node.instances.remove(name);
        }
        self.use_volume(&instance.application, node, false);
    }

    /// Assigns an instance to a node and reserves its amount there, unless `reserved` already.
    pub(super) fn bind(&mut self, name: &Key, node: &Key, reserved: bool) {
        let Some(instance) = self.instances.get_mut(name) else { return };
        instance.node = Some(node.clone());
        let (amount, application) = (instance.amount, instance.application.clone());
        if !reserved {
            self.machines.reserve(node, amount);
        }
        self.nodes.entry(node.clone()).or_default().instances.insert(name.clone());
        self.use_volume(&application, node, true);
    }

    /// Counts the instances that use a volume on a node; the first attaches it, the last detaches it.
    fn use_volume(&mut self, application: &Key, node: &Key, more: bool) {
        let Some(application) = self.applications.get(application) else { return };
        let Some(volume) = &application.spec.volume else { return };
        let volume = volume.replicated_volume_name.clone();
        let uses = self.volume_uses.entry((volume.clone(), node.clone())).or_default();
        let before = *uses;
        *uses = if more { before + 1 } else { before.saturating_sub(1) };
        let after = *uses;
        if after == 0 {
            self.volume_uses.remove(&(volume.clone(), node.clone()));
        }
        if (before == 0) != (after == 0) {
            let attached = after > 0;
            self.effects.push(Effect::Attach { volume, node: node.clone(), attached });
        }
    }

    /// Sets the nodes with a replica of a volume.
    pub fn replicas(&mut self, volume: &str, nodes: HashSet<Key>) {
        if nodes.is_empty() {
            self.replicas.remove(volume);
        } else {
            self.replicas.insert(volume.to_owned(), nodes);
        }
    }

    /// Places instances of one application and sends them to their nodes; those without a suitable
    /// node wait.
    fn place(&mut self, application: &Key, mut waiting: VecDeque<Key>, now: Moment) {
        if let Some(missing) = self.missing.get(application).cloned() {
            self.put_off(application, waiting, "SecretMissing", missing);
            return;
        }
        let Some(known) = self.applications.get_mut(application) else { return };
        let spec = known.spec.clone();
        let volume = spec.volume.as_ref().map(|volume| volume.replicated_volume_name.as_str());
        let needs = Needs {
            amount: known.amount,
            selector: (!spec.node_selector.is_empty()).then_some(&spec.node_selector),
            preferred: volume.and_then(|volume| self.replicas.get(volume)),
        };
        let placed = self.machines.place(&needs, waiting.len());
        let (process, template) = (known.process.clone(), known.template.clone());
        let Amount { cpu, memory } = known.amount;
        let lacking = waiting.len() - placed.len();
        for node in placed {
            let Some(name) = waiting.pop_front() else { break };
            self.bind(&name, &node, true);
            let Some(instance) = self.instances.get_mut(&name) else { continue };
            instance.reason = "";
            instance.message.clear();
            let standby = instance.standby;
            let (namespace, own) = parts(&name);
            let create = CreateInstance {
                namespace: namespace.to_owned(),
                name: own.to_owned(),
                application: parts(application).1.to_owned(),
                template: template.to_string(),
                cpu_milli: u64::try_from(cpu).unwrap_or(0),
                memory_bytes: u64::try_from(memory).unwrap_or(0),
                process: process.to_vec(),
                standby,
                // The controller adds them when it sends the message; the engine does not know the values.
                secrets: std::collections::HashMap::new(),
            };
            let request = self.send(&node, to_node::Body::Create(create));
            self.commanded(&name, Command::Create, request);
            self.instance_monitor.touch(&name, now.elapsed);
            self.pending.push_back((now.elapsed, name.clone()));
            self.effects.push(Effect::Instance(name));
        }
        if lacking > 0 {
            let message = self.why_unplaced(application);
            self.put_off(application, waiting, "Unschedulable", message);
        } else if let Some(known) = self.applications.get_mut(application)
            && known.failures == 0
            && !known.message.is_empty()
        {
            known.message.clear();
            self.effects.push(Effect::Application(application.clone()));
        }
    }

    /// Keeps instances unplaced, with a message in the application's status.
    fn put_off(
        &mut self,
        application: &Key,
        mut waiting: VecDeque<Key>,
        reason: &'static str,
        message: String,
    ) {
        for name in &waiting {
            if let Some(instance) = self.instances.get_mut(name) {
                instance.reason = reason;
                instance.message.clone_from(&message);
            }
            self.effects.push(Effect::Instance(name.clone()));
        }
        let Some(known) = self.applications.get_mut(application) else { return };
        let news = known.message != message;
        known.message.clone_from(&message);
        known.unplaced.append(&mut waiting);
        self.starved.insert(application.clone());
        if news {
            self.event(Subject::Application(application.clone()), true, reason, message);
            self.effects.push(Effect::Application(application.clone()));
        }
    }

    /// A summary of why no node takes an instance.
    fn why_unplaced(&self, application: &Key) -> String {
        let considered = self.explain(application);
        if considered.is_empty() {
            return "no node has joined".to_owned();
        }
        let mut reasons: std::collections::BTreeMap<&str, usize> =
            std::collections::BTreeMap::new();
        for one in &considered {
            let why = match one.because.as_str() {
                why if why.contains("processor") => "too little processor",
                why if why.contains("memory") => "too little memory",
                why if why.contains("labels") => "other labels",
                _ => "not ready",
            };
            *reasons.entry(why).or_default() += 1;
        }
        let reasons: Vec<String> =
            reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
        format!("0 of {} nodes can take an instance: {}", considered.len(), reasons.join(", "))
    }

    /// Every node, with the reason if an instance of the application cannot be placed there.
    #[must_use]
    pub fn explain(&self, application: &Key) -> Vec<Considered> {
        let Some(known) = self.applications.get(application) else { return Vec::new() };
        let volume = known.spec.volume.as_ref();
        let volume = volume.map(|volume| volume.replicated_volume_name.as_str());
        let needs = Needs {
            amount: known.amount,
            selector: (!known.spec.node_selector.is_empty()).then_some(&known.spec.node_selector),
            preferred: volume.and_then(|volume| self.replicas.get(volume)),
        };
        self.machines.explain(&needs)
    }

    /// Tries to place the instances without a node.
    pub(super) fn place_waiting(&mut self, now: Moment) {
        for application in std::mem::take(&mut self.starved) {
            let Some(known) = self.applications.get_mut(&application) else { continue };
            let mut again = std::mem::take(&mut known.unplaced);
            again.retain(|name| {
                let instance = self.instances.get(name);
                instance.is_some_and(|instance| {
                    instance.node.is_none() && instance.pool == InstancePool::Pending
                })
            });
            if !again.is_empty() {
                self.place(&application, again, now);
            }
        }
    }

    /// Terminates an instance: sends the command to its node, or removes it at once if it has none.
    pub(super) fn end(&mut self, name: &Key, reason: &'static str, message: &str, now: Moment) {
        let Some(instance) = self.instances.get_mut(name) else { return };
        if instance.pool == InstancePool::Deleting {
            return;
        }
        instance.reason = reason;
        message.clone_into(&mut instance.message);
        let Some(node) = instance.node.clone() else {
            self.drop_instance(name);
            return;
        };
        self.move_to(name, InstancePool::Deleting);
        let usual =
            ["ScaledDown", "SessionClosed", "ApplicationDeleted", "TemplateChanged", "Deleted"];
        let warning = !usual.contains(&reason);
        self.event(Subject::Instance(name.clone()), warning, reason, message.to_owned());
        self.send_terminate(name, &node, now);
    }

    fn send_terminate(&mut self, name: &Key, node: &Key, now: Moment) {
        self.deleting.push_back((now.elapsed, name.clone()));
        if self.nodes.get(node).is_some_and(|node| node.connected) {
            self.send(node, to_node::Body::Terminate(name_of(name)));
        }
    }

    /// A user deleted an instance: close its session and terminate it.
    pub fn delete_instance(&mut self, name: &Key, now: Moment) {
        let session = self.instances.get(name).and_then(|instance| instance.session.clone());
        if let Some(session) = session {
            self.finish(&session, "InstanceDeleted", "its instance was deleted".to_owned(), now);
        }
        self.end(name, "Deleted", "deleted by a user", now);
        self.settle(now);
    }

    /// Freezes an idle instance.
    pub(super) fn freeze(&mut self, name: &Key) {
        let node = self.instances.get(name).and_then(|instance| instance.node.clone());
        if let Some(node) = node {
            self.move_to(name, InstancePool::Standby);
            self.instance_monitor.remove(name);
            self.send(&node, to_node::Body::Hibernate(name_of(name)));
        }
    }

    /// Thaws a frozen instance; it is ready once its node reports it as running.
    pub(super) fn thaw(&mut self, name: &Key, now: Moment) {
        let node = self.instances.get(name).and_then(|instance| instance.node.clone());
        if let Some(node) = node {
            self.move_to(name, InstancePool::Pending);
            self.instance_monitor.touch(name, now.elapsed);
            self.pending.push_back((now.elapsed, name.clone()));
            let request = self.send(&node, to_node::Body::Activate(name_of(name)));
            self.commanded(name, Command::Activate, request);
        }
    }

    /// Remembers the command that an instance waits for.
    fn commanded(&mut self, name: &Key, command: Command, request: u64) {
        if let Some(instance) = self.instances.get_mut(name) {
            self.commands.remove(&instance.command);
            instance.command = request;
            self.commands.insert(request, (command, name.clone()));
        }
    }

    /// Places an instance again that its node may not have received. If the node reports it later
    /// nevertheless, it gets the command to terminate it.
    pub(super) fn place_again(&mut self, name: &Key, now: Moment) {
        let Some(mut instance) = self.instances.remove(name) else { return };
        self.unbind(name, &instance);
        self.commands.remove(&instance.command);
        instance.node = None;
        let application = instance.application.clone();
        self.instances.insert(name.clone(), instance);
        self.place(&application, VecDeque::from([name.clone()]), now);
    }

    /// Replaces instances that are pending for too long.
    pub(super) fn replace_stuck(&mut self, now: Moment) {
        while let Some((since, _)) = self.pending.front() {
            if now.elapsed.saturating_sub(*since) <= self.timeouts.pending {
                return;
            }
            let Some((_, name)) = self.pending.pop_front() else { return };
            let stuck = self.instances.get(&name).is_some_and(|instance| {
                instance.pool == InstancePool::Pending && instance.node.is_some()
            });
            if stuck {
                let message = format!("it was not ready within {:?}", self.timeouts.pending);
                self.end(&name, "StuckPending", &message, now);
            }
        }
    }

    /// Repeats the command to terminate instances that are still terminating.
    pub(super) fn repeat_terminate(&mut self, now: Moment) {
        while let Some((since, _)) = self.deleting.front() {
            if now.elapsed.saturating_sub(*since) <= self.timeouts.deleting {
                return;
            }
            let Some((_, name)) = self.deleting.pop_front() else { return };
            let node = self.instances.get(&name).and_then(|instance| instance.node.clone());
            if let Some(node) = node {
                self.send_terminate(&name, &node, now);
            }
        }
    }

    /// Terminates an instance without health reports.
    pub(super) fn expire_instance(&mut self, name: &Key, now: Moment) {
        let Some(instance) = self.instances.get(name) else { return };
        if matches!(instance.pool, InstancePool::Standby | InstancePool::Deleting) {
            return;
        }
        if let Some(session) = instance.session.clone() {
            let message = "its instance had no health report within the timeout".to_owned();
            self.finish(&session, "InstanceStale", message, now);
        }
        self.end(name, "Stale", "no health report within the timeout", now);
    }

    /// Processes a node's report about one of its instances.
    pub(super) fn receive_instance(&mut self, node: &Key, state: InstanceState, now: Moment) {
        let name = key(&state.namespace, &state.name);
        let phase = state.phase();
        match self.instances.get(&name) {
            None if phase == InstancePhase::Terminated => return,
            None => {
                self.send(node, to_node::Body::Terminate(name_of(&name)));
                return;
            }
            // It was placed on another node while this one was disconnected.
            Some(instance) if instance.node.as_ref() != Some(node) => {
                if phase != InstancePhase::Terminated {
                    self.send(node, to_node::Body::Terminate(name_of(&name)));
                }
                return;
            }
            Some(_) => {}
        }
        let Some(instance) = self.instances.get_mut(&name) else { return };
        instance.acknowledged = true;
        instance.phase = phase;
        if matches!(phase, InstancePhase::Running | InstancePhase::Standby) {
            self.commands.remove(&instance.command);
        }
        if !state.endpoints.is_empty() {
            instance.endpoints = state.endpoints;
        }
        let (pool, application) = (instance.pool, instance.application.clone());
        if pool != InstancePool::Standby {
            self.instance_monitor.touch(&name, now.elapsed);
        }
        match (phase, pool) {
            (InstancePhase::Terminated, _) => {
                self.terminated(&name, &state.reason, &state.message, now);
            }
            (_, InstancePool::Deleting) => {
                if phase != InstancePhase::Terminating {
                    self.send(node, to_node::Body::Terminate(name_of(&name)));
                }
            }
            (InstancePhase::Running, InstancePool::Pending) => {
                instance.ready = Some(now.wall);
                let outdated = self
                    .applications
                    .get(&application)
                    .is_some_and(|known| known.template != instance.template);
                if outdated {
                    self.end(&name, "TemplateChanged", "the application's template changed", now);
                    return;
                }
                self.move_to(&name, InstancePool::Ready);
                if let Some(known) = self.applications.get_mut(&application) {
                    known.failures = 0;
                    if known.unplaced.is_empty() && !known.message.is_empty() {
                        known.message.clear();
                        self.effects.push(Effect::Application(application));
                    }
                }
            }
            (InstancePhase::Standby, InstancePool::Pending) => {
                instance.ready = Some(now.wall);
                self.move_to(&name, InstancePool::Standby);
                self.instance_monitor.remove(&name);
            }
            _ => self.effects.push(Effect::Instance(name)),
        }
    }

    /// Removes an instance whose process has ended.
    fn terminated(&mut self, name: &Key, reason: &str, message: &str, now: Moment) {
        let Some(instance) = self.drop_instance(name) else { return };
        let why = match (reason, message) {
            ("", "") => "it terminated".to_owned(),
            (reason, "") => reason.to_owned(),
            (_, message) => message.to_owned(),
        };
        if let Some(session) = &instance.session {
            let message = format!("its instance {} terminated: {why}", parts(name).1);
            self.finish(session, "InstanceTerminated", message, now);
        }
        if instance.pool == InstancePool::Deleting {
            return;
        }
        if instance.ready.is_none() {
            self.back_off(&instance.application, &why, now);
        }
        self.event(Subject::Instance(name.clone()), true, "InstanceTerminated", why);
    }

    /// Adopts an instance that a node reports and the engine does not know, because it was created
    /// before the server started. Instances of unknown or deleted applications are not adopted.
    pub(super) fn adopt(&mut self, node: &Key, name: &Key, state: &InstanceState, now: Moment) {
        let application = key(&state.namespace, &state.application);
        let wanted = self.applications.get(&application).is_some_and(|known| !known.deleting);
        if !wanted || state.phase() == InstancePhase::Terminated {
            return;
        }
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let adopted = Instance {
            application,
            node: None,
            pool: InstancePool::Pending,
            place: 0,
            template: state.template.as_str().into(),
            amount: Amount { cpu: signed(state.cpu_milli), memory: signed(state.memory_bytes) },
            phase: state.phase(),
            session: None,
            command: 0,
            endpoints: state.endpoints.clone(),
            acknowledged: true,
            standby: false,
            created: now.wall,
            ready: None,
            reason: "",
            message: String::new(),
        };
        self.insert(name.clone(), adopted);
        self.bind(name, node, false);
        self.pending.push_back((now.elapsed, name.clone()));
    }

    /// Processes the failure of a command.
    pub(super) fn receive_failure(&mut self, node: &Key, request: u64, why: &str, now: Moment) {
        let Some((command, name)) = self.commands.get(&request).cloned() else { return };
        let instance = match command {
            Command::Open => self.sessions.get(&name).and_then(|session| session.instance.as_ref()),
            Command::Create | Command::Activate => Some(&name),
        };
        let instance = instance.and_then(|name| self.instances.get(name));
        if instance.is_none_or(|instance| instance.node.as_ref() != Some(node)) {
            return;
        }
        self.commands.remove(&request);
        match command {
            Command::Create => {
                if let Some(instance) = self.drop_instance(&name) {
                    self.back_off(&instance.application, why, now);
                    if let Some(session) = &instance.session {
                        self.requeue(session, "InstanceFailed", why, now);
                    }
                }
            }
            Command::Activate => {
                let message = format!("it could not be thawed: {why}");
                self.end(&name, "InstanceFailed", &message, now);
            }
            Command::Open => self.open_failed(&name, why, now),
        }
    }
}
