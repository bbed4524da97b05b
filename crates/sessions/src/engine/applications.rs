//! Applications: creation, change and deletion, and the scaling of their instances.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mainstay_placement::machines::Amount;

use super::{Application, Due, Effect, Engine, Key, Moment, Subject};
use crate::api::application::DeploymentHistory;
use crate::api::{ApplicationSpec, InstancePool, Standby};
use crate::engine::pool::Pools;
use crate::protocol::Template;
use crate::scale::{self, Counts};

/// The number of scaling steps in an application's history.
const HISTORY: usize = 10;

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Engine {
    /// Adds an application, or changes its spec. Calling it again changes nothing.
    pub fn application(
        &mut self,
        key: &Key,
        spec: Arc<ApplicationSpec>,
        generation: i64,
        now: Moment,
    ) {
        let template = Template::of(&spec);
        let hash: Arc<str> = template.hash().into();
        let (cpu, memory) = spec.process().resources.reserved();
        let amount = Amount { cpu: signed(cpu), memory: signed(memory) };
        let process: Arc<[u8]> = template.to_json().into();
        match self.applications.get_mut(key) {
            None => {
                self.applications.insert(
                    key.clone(),
                    Application {
                        spec,
                        generation,
                        process,
                        template: hash,
                        amount,
                        deleting: false,
                        pools: Pools::default(),
                        unplaced: VecDeque::new(),
                        waiting: BTreeMap::new(),
                        refused: VecDeque::new(),
                        sessions: HashSet::new(),
                        freezing: 0,
                        failures: 0,
                        held: Duration::ZERO,
                        message: String::new(),
                        desired: 0,
                        history: VecDeque::new(),
                    },
                );
            }
            Some(application) => {
                let changed = application.template != hash;
                application.spec = spec;
                application.generation = generation;
                application.amount = amount;
                if changed {
                    application.template = hash;
                    application.process = process;
                    application.failures = 0;
                    application.held = Duration::ZERO;
                    application.message.clear();
                    self.roll_out(key, now);
                }
            }
        }
        self.effects.push(Effect::Application(key.clone()));
        self.touched.insert(key.clone());
        self.settle(now);
    }

    /// Sets or clears a missing prerequisite of an application's instances, such as a Secret. New
    /// instances wait for it; running ones stay. Calling it again changes nothing.
    pub fn set_missing(&mut self, key: &Key, missing: Option<String>, now: Moment) {
        if self.missing.get(key) == missing.as_ref() {
            return;
        }
        match missing {
            Some(missing) => drop(self.missing.insert(key.clone(), missing)),
            None => drop(self.missing.remove(key)),
        }
        // Waiting instances get the message, or are placed.
        self.freed = true;
        self.settle(now);
    }

    /// Replaces the instances of an older template that have no session.
    fn roll_out(&mut self, key: &Key, now: Moment) {
        use InstancePool::{Pending, Ready, Standby};
        let Some(application) = self.applications.get(key) else { return };
        let old: Vec<Key> = [Pending, Ready, Standby]
            .iter()
            .flat_map(|pool| application.pools.of(*pool).values())
            .filter(|name| {
                let instance = self.instances.get(*name);
                instance.is_some_and(|instance| instance.template != application.template)
            })
            .cloned()
            .collect();
        let count = old.len();
        for instance in old {
            self.end(&instance, "TemplateChanged", "the application's template changed", now);
        }
        if count > 0 {
            let message = format!("the template changed: {count} instances are replaced");
            self.event(Subject::Application(key.clone()), false, "TemplateChanged", message);
        }
    }

    /// Deletes an application: closes its sessions, then terminates its instances, then emits
    /// [`Effect::ApplicationGone`]. Calling it again changes nothing.
    pub fn delete_application(&mut self, key: &Key, now: Moment) {
        let Some(application) = self.applications.get_mut(key) else {
            self.effects.push(Effect::ApplicationGone(key.clone()));
            return;
        };
        if !application.deleting {
            application.deleting = true;
            let sessions: Vec<Key> = application.sessions.iter().cloned().collect();
            for session in sessions {
                self.close_for(&session, "ApplicationDeleted", "its application is deleted", now);
            }
        }
        self.touched.insert(key.clone());
        self.settle(now);
    }

    /// Terminates the instances of a deleted application once its last session is closed.
    fn finish_deletion(&mut self, key: &Key, now: Moment) {
        let Some(application) = self.applications.get(key) else { return };
        let open = application.sessions.iter().any(|session| {
            self.sessions.get(session).is_some_and(|session| !session.state.is_over())
        });
        if open {
            return;
        }
        let instances: Vec<Key> = application.pools.iter().cloned().collect();
        for instance in &instances {
            self.end(instance, "ApplicationDeleted", "its application is deleted", now);
        }
        let Some(application) = self.applications.get(key) else { return };
        if application.pools.total() == 0 {
            for session in application.sessions.clone() {
                self.forget_session(&session);
            }
            self.applications.remove(key);
            self.effects.push(Effect::ApplicationGone(key.clone()));
        }
    }

    /// The numbers of instances and waiting sessions, as the scaling policy counts them.
    fn counts(&mut self, key: &Key, now: Moment) -> Option<Counts> {
        let application = self.applications.get_mut(key)?;
        while application.refused.front().is_some_and(|until| *until <= now.elapsed) {
            application.refused.pop_front();
        }
        let waiting = application.waiting.len() + application.refused.len();
        let pools = &application.pools;
        Some(Counts {
            allocated: pools.len(InstancePool::Active),
            unused: pools.len(InstancePool::Pending) + pools.len(InstancePool::Ready)
                - application.freezing,
            waiting: i64::try_from(waiting).unwrap_or(i64::MAX),
        })
    }

    /// Creates and terminates instances by the scaling policy.
    pub(super) fn scale(&mut self, key: &Key, now: Moment) {
        let Some(counts) = self.counts(key, now) else { return };
        let Some(application) = self.applications.get(key) else { return };
        if application.deleting {
            self.finish_deletion(key, now);
            return;
        }
        if !self.primary {
            return;
        }
        let policy = application.spec.scaling_policy.clone();
        let wanted = scale::wanted(&policy, counts);
        let mut step = scale::step(&policy, counts);
        let held = application.held > now.elapsed;
        if let Some(until) = application.refused.front() {
            self.due.insert((*until, Due::Scale(key.clone())));
        }
        if held {
            let at = application.held;
            step = step.min(0);
            self.due.insert((at, Due::Scale(key.clone())));
        }
        let desired = counts.allocated + wanted;
        let Some(application) = self.applications.get_mut(key) else { return };
        if application.desired != desired {
            application.desired = desired;
            self.effects.push(Effect::Application(key.clone()));
        }
        if step > 0 {
            self.grow(key, step, now);
        } else if step < 0 {
            self.shrink(key, -step, policy.standby, now);
        }
        if step != wanted - counts.unused && !held {
            self.due.insert((now.elapsed + self.timeouts.step, Due::Scale(key.clone())));
        }
        self.keep_standby(key, policy.standby.unwrap_or_default(), held, now);
    }

    /// Thaws frozen instances first, then creates the rest.
    fn grow(&mut self, key: &Key, step: i64, now: Moment) {
        let Some(application) = self.applications.get(key) else { return };
        let frozen = application.pools.of(InstancePool::Standby).values();
        let thaw: Vec<Key> = frozen
            .filter(|name| {
                let node = self.instances.get(*name).and_then(|one| one.node.as_ref());
                node.and_then(|node| self.nodes.get(node)).is_some_and(|node| node.connected)
            })
            .take(usize::try_from(step).unwrap_or(0))
            .cloned()
            .collect();
        let thawed = i64::try_from(thaw.len()).unwrap_or(0);
        for instance in thaw {
            self.thaw(&instance, now);
        }
        let maximum = i64::from(application_maximum(self, key));
        let Some(application) = self.applications.get(key) else { return };
        // Standby instances count towards the maximum.
        let room = (maximum - application.pools.alive()).max(0);
        let count = (step - thawed).min(room);
        if count > 0 {
            self.make(key, count, false, now);
            let why = format!("{count} created: fewer idle than the policy keeps");
            self.remember(key, "CreateInstance", "ScaledUp", why, now);
        }
    }

    /// Terminates surplus instances in this order: without a node, not yet reported by their node,
    /// pending on their node, longest idle. Never one with a session.
    fn shrink(&mut self, key: &Key, step: i64, standby: Option<Standby>, now: Moment) {
        let Some(application) = self.applications.get(key) else { return };
        let pending = application.pools.of(InstancePool::Pending).iter();
        let mut surplus: Vec<(u8, u64, Key)> = pending
            .filter_map(|(place, name)| {
                let instance = self.instances.get(name).filter(|one| !one.standby)?;
                let order = match (&instance.node, instance.acknowledged) {
                    (None, _) => 0,
                    (Some(_), false) => 1,
                    (Some(_), true) => 2,
                };
                Some((order, *place, name.clone()))
            })
            .collect();
        surplus.sort_unstable();
        let ready = application.pools.of(InstancePool::Ready).iter();
        surplus.extend(
            ready
                .take(usize::try_from(step).unwrap_or(0))
                .map(|(place, name)| (3, *place, name.clone())),
        );
        surplus.truncate(usize::try_from(step).unwrap_or(0));
        let count = surplus.len();
        let frozen = application.pools.len(InstancePool::Standby);
        let most = standby.map_or(0, |standby| i64::from(standby.maximum));
        let mut freeze = (most - frozen).max(0);
        for (order, _, instance) in surplus {
            if order == 3 && freeze > 0 {
                freeze -= 1;
                self.freeze(&instance);
            } else {
                self.end(&instance, "ScaledDown", "more idle than the policy keeps", now);
            }
        }
        if count == 0 {
            return;
        }
        let why = format!("{count} terminated: more idle than the policy keeps");
        self.remember(key, "DeleteInstance", "ScaledDown", why, now);
    }

    /// Creates and terminates frozen instances by the scaling policy.
    fn keep_standby(&mut self, key: &Key, standby: Standby, held: bool, now: Moment) {
        let Some(application) = self.applications.get(key) else { return };
        let pools = &application.pools;
        let frozen = pools.len(InstancePool::Standby) + application.freezing;
        let room = i64::from(application_maximum(self, key)) - pools.alive();
        let lacking = (i64::from(standby.minimum) - frozen).min(room);
        if lacking > 0 && !held {
            self.make(key, lacking, true, now);
        }
        let surplus = (frozen - i64::from(standby.maximum)).max(-room);
        let Some(application) = self.applications.get(key) else { return };
        let extra: Vec<Key> = application
            .pools
            .of(InstancePool::Standby)
            .values()
            .take(usize::try_from(surplus).unwrap_or(0))
            .cloned()
            .collect();
        for instance in extra {
            self.end(&instance, "ScaledDown", "more frozen than the policy keeps", now);
        }
    }

    /// Adds a step to the history.
    fn remember(&mut self, key: &Key, action: &str, reason: &str, message: String, now: Moment) {
        let Some(application) = self.applications.get_mut(key) else { return };
        let lacking = !application.unplaced.is_empty();
        if application.history.len() == HISTORY {
            application.history.pop_front();
        }
        application.history.push_back(DeploymentHistory {
            action: action.to_owned(),
            update_time: Some(mainstay_store::meta::Time::new(now.wall)),
            reason: reason.to_owned(),
            message,
            deployment_status: if lacking { "PartialSuccess" } else { "Success" }.to_owned(),
        });
        self.effects.push(Effect::Application(key.clone()));
    }

    /// An instance failed before it was ready: the next one is created after a pause that doubles
    /// with every failure.
    pub(super) fn back_off(&mut self, key: &Key, why: &str, now: Moment) {
        let Some(application) = self.applications.get_mut(key) else { return };
        application.failures = application.failures.saturating_add(1);
        let pause = self.timeouts.start_backoff.after(application.failures);
        application.held = now.elapsed + pause;
        why.clone_into(&mut application.message);
        let message = format!("an instance failed: {why}; the next is created in {pause:?}");
        self.event(Subject::Application(key.clone()), true, "InstanceFailed", message);
        self.effects.push(Effect::Application(key.clone()));
        self.touched.insert(key.clone());
    }
}

fn application_maximum(engine: &Engine, key: &Key) -> i32 {
    engine.applications.get(key).map_or(0, |one| one.spec.scaling_policy.maximum_instance)
}
