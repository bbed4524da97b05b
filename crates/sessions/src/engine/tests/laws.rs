//! Laws that hold after every step of random histories: opens, closes, kills, disconnects, re-joins,
//! lost stores, template changes, and time.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Open {
        session: u8,
        wait: bool,
        close_on_loss: bool,
        application: u8,
    },
    Close(u8),
    /// A node carries out its next command, or all of them.
    Obey(u8),
    ObeyAll,
    Disconnect(u8),
    Reconnect(u8),
    /// A process exits by itself.
    Kill(u8),
    /// The agent lost its store, and its instances with it.
    Forget(u8),
    Template(u8),
    Scale {
        application: u8,
        minimum: u8,
        maximum: u8,
        low: u8,
    },
    Pass(u8),
    /// Time passes and a node sends no heartbeats.
    Silence(u8),
    DeleteInstance(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        6 => (0_u8..8, any::<bool>(), any::<bool>(), 0_u8..2)
            .prop_map(|(session, wait, close_on_loss, application)| Step::Open { session, wait, close_on_loss, application }),
        4 => (0_u8..8).prop_map(Step::Close),
        6 => (0_u8..3).prop_map(Step::Obey),
        3 => Just(Step::ObeyAll),
        1 => (0_u8..3).prop_map(Step::Disconnect),
        2 => (0_u8..3).prop_map(Step::Reconnect),
        1 => (0_u8..16).prop_map(Step::Kill),
        1 => (0_u8..3).prop_map(Step::Forget),
        1 => (0_u8..3).prop_map(Step::Template),
        1 => (0_u8..2, 0_u8..3, 1_u8..5, 0_u8..3)
            .prop_map(|(application, minimum, maximum, low)| Step::Scale { application, minimum, maximum, low }),
        3 => (1_u8..40).prop_map(Step::Pass),
        1 => (0_u8..3).prop_map(Step::Silence),
        1 => (0_u8..16).prop_map(Step::DeleteInstance),
    ];
    proptest::collection::vec(one, 1..60)
}

const NODES: [&str; 3] = ["n0", "n1", "n2"];

struct Play {
    world: World,
    specs: [ApplicationSpec; 2],
}

impl Play {
    fn new() -> Self {
        let mut world = World::new(Some((30000, 30005)));
        for node in NODES {
            world.join(node, 3000, 3 << 20);
        }
        let mut specs = [spec((1, 4), 1, 2, 2), spec((0, 3), 0, 1, 0)];
        specs[0].process = process(1000, 1 << 20);
        specs[1].reuse_instances = false;
        specs[1].scaling_policy.standby = Some(crate::api::Standby { minimum: 1, maximum: 2 });
        world.apply("t/a0", specs[0].clone());
        world.apply("t/a1", specs[1].clone());
        Self { world, specs }
    }

    fn step(&mut self, step: &Step) {
        let world = &mut self.world;
        let node = |number: &u8| NODES[usize::from(*number) % 3];
        let chosen = |world: &World, number: &u8| {
            let mut all: Vec<Key> = world.engine.instances.keys().cloned().collect();
            all.sort();
            (!all.is_empty()).then(|| all[usize::from(*number) % all.len()].clone())
        };
        match step {
            Step::Open { session, wait, close_on_loss, application } => {
                let spec = SessionSpec {
                    open_mode: if *wait { OpenMode::Wait } else { OpenMode::FailFast },
                    on_node_loss: match close_on_loss {
                        true => OnNodeLoss::Close,
                        false => OnNodeLoss::Recreate,
                    },
                    ..super::session(&format!("a{application}"))
                };
                world.open(&format!("t/s{session}"), spec);
            }
            Step::Close(session) => world.close(&format!("t/s{session}")),
            Step::Obey(number) => {
                let name: Key = node(number).into();
                let host = world.hosts.get_mut(&name).unwrap();
                let next = if host.connected { host.inbox.pop_front() } else { None };
                if let Some((request, body)) = next {
                    world.obey(&name, request, body);
                }
            }
            Step::ObeyAll => world.run(),
            Step::Disconnect(number) => world.disconnect(node(number)),
            Step::Reconnect(number) => {
                if !world.hosts[node(number)].connected {
                    world.reconnect(node(number));
                }
            }
            Step::Kill(number) => {
                let victim = chosen(world, number);
                let Some(victim) = victim else { return };
                let host = world.engine.instances[&victim].node.clone();
                let Some(host) = host else { return };
                if world.hosts[&host].instances.contains_key(&victim) {
                    world.instance_is(&host, &victim, InstancePhase::Terminated);
                }
            }
            Step::Forget(number) => {
                world.disconnect(node(number));
                let host = world.hosts.get_mut(node(number)).unwrap();
                host.instances.clear();
                host.sessions.clear();
                host.revision = 1;
            }
            Step::Template(number) => {
                let spec = &mut self.specs[0];
                spec.process.command = vec![format!("game{number}")];
                let spec = spec.clone();
                world.apply("t/a0", spec);
            }
            Step::Scale { application, minimum, maximum, low } => {
                let spec = &mut self.specs[usize::from(*application)];
                let maximum = (*maximum).max(*minimum);
                spec.scaling_policy.minimum_instance = (*minimum).into();
                spec.scaling_policy.maximum_instance = maximum.into();
                let threshold = Threshold { low: (*low).into(), high: i32::from(*low) + 1 };
                spec.scaling_policy.idle_session_num_threshold = Some(threshold);
                let spec = spec.clone();
                world.apply(&format!("t/a{application}"), spec);
            }
            Step::Pass(seconds) => world.pass(f64::from(*seconds)),
            Step::Silence(number) => world.pass_without(21.0, &[node(number)]),
            Step::DeleteInstance(number) => {
                if let Some(victim) = chosen(world, number) {
                    world.engine.delete_instance(&victim, world.now);
                    world.act();
                }
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let (world, engine) = (&self.world, &self.world.engine);
        // Every instance is in exactly one pool, the one in its field.
        let mut pooled = 0;
        for (name, application) in &engine.applications {
            for pool in [
                InstancePool::Pending,
                InstancePool::Ready,
                InstancePool::Standby,
                InstancePool::Active,
                InstancePool::Deleting,
            ] {
                for (place, instance) in application.pools.of(pool) {
                    let known = &engine.instances[instance];
                    prop_assert_eq!(
                        (known.pool, known.place, &known.application),
                        (pool, *place, name)
                    );
                    pooled += 1;
                }
            }
            let freezing = application.pools.of(InstancePool::Pending).values();
            let freezing = freezing.filter(|name| engine.instances[*name].standby).count();
            prop_assert_eq!(application.freezing, i64::try_from(freezing).unwrap());
            for (order, session) in &application.waiting {
                prop_assert_eq!(engine.sessions[session].order, Some(*order));
                prop_assert_eq!(engine.sessions[session].state, SessionState::Pending);
            }
        }
        prop_assert_eq!(pooled, engine.instances.len());
        // On each node, the reserved amount is the sum of its instances' requests.
        for (name, node) in &engine.nodes {
            let (mut cpu, mut memory) = (0, 0);
            for instance in &node.instances {
                let known = &engine.instances[instance];
                prop_assert_eq!(known.node.as_ref(), Some(name));
                cpu += known.amount.cpu;
                memory += known.amount.memory;
            }
            if let (Some(has), Some(left)) = (engine.machines.has(name), engine.machines.left(name))
            {
                prop_assert_eq!((has.cpu - left.cpu, has.memory - left.memory), (cpu, memory));
            }
        }
        for (name, instance) in &engine.instances {
            if let Some(node) = &instance.node {
                prop_assert!(engine.nodes[node].instances.contains(name));
            }
            if let Some(session) = &instance.session {
                prop_assert_eq!(engine.sessions[session].instance.as_ref(), Some(name));
            }
            prop_assert_eq!(
                instance.session.is_some() && instance.pool == InstancePool::Ready,
                false
            );
            if instance.pool == InstancePool::Ready {
                prop_assert!(engine.nodes[instance.node.as_ref().unwrap()].connected);
            }
        }
        // A live session has at most one instance, which refers to it; ports are mapped while open.
        let mut mapped = BTreeMap::new();
        for (name, session) in &engine.sessions {
            if session.state.is_live()
                && let Some(instance) = &session.instance
            {
                prop_assert_eq!(engine.instances[instance].session.as_ref(), Some(name));
                prop_assert_eq!(engine.instances[instance].pool, InstancePool::Active);
            }
            if session.mapped {
                mapped.insert(session.port.unwrap().0, name.clone());
            }
            let open = matches!(session.state, SessionState::Available | SessionState::InUse);
            prop_assert!(!open || session.mapped, "{} is open and not mapped", name);
            prop_assert!(
                !session.state.is_over() || engine.endpoints.as_ref().unwrap().of(name).is_none()
            );
        }
        prop_assert_eq!(&mapped, &world.mapped);
        Ok(())
    }

    /// All nodes connect and carry out their commands, until the engine has nothing left to do.
    fn calm(&mut self) {
        for _ in 0..8 {
            for node in NODES {
                if !self.world.hosts[node].connected {
                    self.world.reconnect(node);
                }
            }
            self.world.run();
            self.world.pass(100.0);
            self.world.run();
        }
    }
}

proptest! {
    #[test]
    fn invariants_hold_after_every_step_and_the_engine_settles(steps in steps()) {
        let mut play = Play::new();
        for step in &steps {
            play.step(step);
            play.check()?;
        }
        play.calm();
        play.check()?;
        let engine = &play.world.engine;
        for (name, session) in &engine.sessions {
            let settled = matches!(session.state, SessionState::Available) || session.state.is_over();
            prop_assert!(settled, "{}: {:?}", name, session);
        }
        for (name, application) in &engine.applications {
            let policy = &application.spec.scaling_policy;
            let alive = application.pools.alive();
            prop_assert!(alive <= i64::from(policy.maximum_instance).max(application.pools.len(InstancePool::Active)), "{}: {}", name, alive);
            prop_assert!(alive >= i64::from(policy.minimum_instance), "{}: {}", name, alive);
            prop_assert_eq!(application.pools.len(InstancePool::Deleting), 0);
            prop_assert!(application.waiting.is_empty());
        }
        // The nodes have the instances and sessions that the engine expects.
        for (name, host) in &play.world.hosts {
            let real: Vec<&Key> = host.instances.keys().collect();
            let mut known: Vec<&Key> = engine.nodes[name].instances.iter().collect();
            known.sort();
            prop_assert_eq!(real, known);
            for session in host.sessions.keys() {
                prop_assert!(engine.sessions.contains_key(session), "{} is still on {}", session, name);
            }
        }
        prop_assert!(engine.commands.is_empty(), "{:?}", engine.commands);
    }
}
