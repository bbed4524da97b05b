//! The recorded cases of `cases.jsonl` that need one server only, by their names.

mod sessions;

use serde_json::Value;

use super::*;
use crate::endpoints::{self, Endpoints};
use crate::scale::{self, Counts};

fn cases() -> Vec<(String, Value)> {
    include_str!("cases.jsonl")
        .lines()
        .map(|line| {
            let case: Value = serde_json::from_str(line).expect("JSON");
            (case["id"].as_str().expect("named").to_owned(), case)
        })
        .collect()
}

fn number(case: &Value, name: &str) -> i64 {
    case["given"][name].as_i64().unwrap_or(0)
}

fn small(case: &Value, name: &str) -> i32 {
    i32::try_from(number(case, name)).expect("small")
}

#[test]
fn every_case_holds() {
    for (id, case) in cases() {
        // Cases with several servers are tested elsewhere.
        if case["area"].as_str().expect("an area").starts_with("ha/") {
            continue;
        }
        eprintln!("{id} {}", case["area"]);
        match id.as_bytes() {
            [b'A', ..] => scaling(&id, &case),
            [b'B', ..] => placing(&id),
            [b'C', ..] => nodes(&id),
            [b'D', ..] => monitors(&id),
            [b'E', ..] => sessions::play(&id),
            [b'F', ..] => ports(&id, &case),
            [b'J' | b'K', ..] => applications(&id),
            _ => panic!("{id} is not implemented"),
        }
    }
}

fn scaling(id: &str, case: &Value) {
    let threshold = Some(Threshold { high: small(case, "high"), low: small(case, "low") });
    let percent = case["area"] == "scaling/idle_session_percent";
    let policy = ScalingPolicy {
        minimum_instance: small(case, "min"),
        maximum_instance: small(case, "max"),
        burst: small(case, "burst"),
        scaling_policy_type: match percent {
            true => crate::api::ScalingPolicyType::IdleSessionPercent,
            false => crate::api::ScalingPolicyType::IdleSessionNumber,
        },
        idle_session_num_threshold: threshold.filter(|_| !percent),
        idle_session_percent_threshold: threshold.filter(|_| percent),
        standby: None,
    };
    let counts = Counts {
        allocated: number(case, "allocated"),
        unused: number(case, "pending_pods") + number(case, "idle_pods"),
        waiting: number(case, "pending_sessions"),
    };
    let delta = case["then"]["pod_delta"].as_i64().expect("a step");
    assert_eq!(scale::step(&policy, counts), delta, "{id}");
}

/// The nodes of instances, in the order of their creation.
fn places(world: &World) -> Vec<Option<Key>> {
    let mut all: Vec<_> = world.engine.instances.values().collect();
    all.sort_by_key(|instance| instance.place);
    all.into_iter().map(|instance| instance.node.clone()).collect()
}

fn placing(id: &str) {
    const MIB: u64 = 1 << 20;
    let mut world = World::new(None);
    let one = |cpu, memory, count| ApplicationSpec {
        process: process(cpu, memory),
        ..spec((count, count), 0, 0, 20)
    };
    match id {
        "B01" => {
            for (name, cpu) in [("a", 4000), ("b", 3000), ("c", 2000)] {
                world.join(name, cpu, 1 << 40);
            }
            world.apply("t/app", one(1000, 0, 10));
            let got = places(&world);
            let got: Vec<_> = got.iter().map(|node| node.as_deref()).collect();
            let wanted = ["a", "b", "a", "c", "b", "a", "c", "b", "a"].map(Some);
            assert_eq!(got[..9], wanted);
            assert_eq!(got[9], None);
            for node in ["a", "b", "c"] {
                assert_eq!(world.engine.machines.left(node).unwrap().cpu, 0);
            }
        }
        "B02" => {
            world.join("a", 8000, 256 * MIB);
            world.join("b", 1000, 4096 * MIB);
            world.apply("t/app", one(500, 512 << 20, 1));
            assert_eq!(places(&world), [Some("b".into())]);
        }
        "B03" => {
            world.join("a", 500, 256 * MIB);
            world.apply("t/app", one(0, 0, 1));
            assert_eq!(places(&world), [Some("a".into())]);
            assert_eq!(world.engine.machines.left("a").unwrap().cpu, 500);
        }
        "B04" => {
            world.join("a", 1000, MIB);
            world.apply("t/one", one(1000, 0, 1));
            world.run();
            world.apply("t/two", one(1000, 0, 1));
            world.run();
            assert!(world.pool("t/two", InstancePool::Ready).is_empty());
            world.pass(4.0);
            world.engine.delete_application(&"t/one".into(), world.now);
            world.act();
            world.run();
            assert_eq!(world.pool("t/two", InstancePool::Ready).len(), 1, "woken at once");
        }
        "B05" => {
            world.join("a", 2000, MIB);
            world.join("b", 1000, MIB);
            world.apply("t/app", one(1000, 0, 1));
            assert_eq!(places(&world), [Some("a".into())]);
            world.disconnect("a");
            world.run();
            assert_eq!(places(&world), [Some("b".into())]);
            assert_eq!(world.engine.machines.left("a").unwrap().cpu, 2000);
            assert_eq!(world.pool("t/app", InstancePool::Ready).len(), 1);
        }
        "B06" => {
            world.apply("t/app", one(0, 0, 1));
            assert_eq!(places(&world), [None]);
            world.engine.delete_application(&"t/app".into(), world.now);
            world.act();
            world.join("a", 1000, MIB);
            world.run();
            assert!(world.hosts["a"].instances.is_empty());
            assert!(world.engine.instances.is_empty());
        }
        _ => panic!("{id} is not implemented"),
    }
}

/// A node `n1` with `count` ready instances of `t/app`.
fn with_ready(count: i32, ports: Option<(u16, u16)>) -> World {
    let mut world = World::new(ports);
    world.join("n1", 64000, 1 << 40);
    world.apply("t/app", spec((count, 10), 0, count, 10));
    world.run();
    assert_eq!(world.pool("t/app", InstancePool::Ready).len(), usize::try_from(count).unwrap());
    world
}

fn syncs(world: &World, node: &str) -> usize {
    let commands = &world.hosts[node].commands;
    commands.iter().filter(|body| matches!(body, to_node::Body::FullSync(_))).count()
}

fn nodes(id: &str) {
    let n1: Key = "n1".into();
    match id {
        "C01" | "C02" => {
            let mut world = World::new(None);
            world
                .hosts
                .insert(n1.clone(), Host { revision: 5, connected: true, ..Host::default() });
            assert!(world.engine.connect(&n1, world.now));
            world.say(&n1, from_node::Body::Register(Register::default()), false);
            let commands = &world.hosts[&n1].commands;
            assert!(matches!(commands[..], [to_node::Body::Configuration(_)]));
            world.apply("t/app", spec((1, 1), 0, 0, 1));
            assert_eq!(places(&world), [None], "not before it is ready");
            world.say(&n1, from_node::Body::Ready(Report::default()), true);
            assert_eq!(world.engine.revision("n1"), Some(6));
            assert_eq!(places(&world), [Some(n1)]);
        }
        "C03" | "C04" | "C05" => {
            let mut world = with_ready(1, None);
            let instance = world.pool("t/app", InstancePool::Ready)[0].clone();
            let base = world.engine.revision("n1").unwrap();
            let mut gone = world.hosts[&n1].instances[&instance].clone();
            gone.phase = InstancePhase::Terminated as i32;
            let mut tell = |revision: u64| {
                let body = Some(from_node::Body::Instance(gone.clone()));
                world.engine.receive(&n1, FromNode { revision, body }, world.now);
                world.act();
                let known = world.engine.instances.contains_key(&instance);
                (known, world.engine.revision("n1").unwrap(), syncs(&world, "n1"))
            };
            match id {
                "C03" => assert_eq!(tell(base + 1), (false, base + 1, 0)),
                "C04" => {
                    assert_eq!(tell(base + 3), (true, base, 1));
                    assert_eq!(tell(base + 4), (true, base, 1), "asked once");
                }
                _ => {
                    assert_eq!(tell(base), (true, base, 0));
                    assert_eq!(tell(base), (true, base, 0));
                    assert_eq!(tell(base - 1), (true, base, 0), "older ones too");
                }
            }
        }
        "C06" => {
            let mut world = with_ready(3, None);
            world.open("t/s2", session("app"));
            world.run();
            let p2 = world.instance_of("t/s2").unwrap();
            let host = world.hosts.get_mut(&n1).unwrap();
            host.instances.remove(&p2);
            host.sessions.clear();
            host.revision = 20;
            let report = world.report(&n1);
            let left: Vec<Key> = world.hosts[&n1].instances.keys().cloned().collect();
            world.say(&n1, from_node::Body::State(report), false);
            assert_eq!(world.state("t/s2"), Some(SessionState::Closed));
            assert!(!world.engine.instances.contains_key(&p2));
            assert!(left.iter().all(|name| world.engine.instances.contains_key(name)));
            assert_eq!(world.engine.revision("n1"), Some(20));
        }
        "C07" => {
            let mut world = with_ready(1, None);
            world.hosts.get_mut(&n1).unwrap().lazy = true;
            world.apply("t/app", spec((2, 10), 0, 2, 10));
            let p4 = world.pool("t/app", InstancePool::Pending)[0].clone();
            world.pass(0.05);
            let report = world.report(&n1);
            world.say(&n1, from_node::Body::State(report), false);
            assert_eq!(world.pool("t/app", InstancePool::Pending), [p4]);
        }
        "C08" => {
            let mut world = with_ready(1, None);
            let p1 = world.pool("t/app", InstancePool::Ready)[0].clone();
            world.disconnect("n1");
            let lost = Host { revision: 1, cpu: 1, memory: 1, ..Host::default() };
            world.hosts.insert(n1.clone(), lost);
            world.reconnect("n1");
            world.hosts.get_mut(&n1).unwrap().revision = 2;
            world.say(&n1, from_node::Body::Ready(Report::default()), false);
            assert_eq!(world.engine.revision("n1"), Some(2));
            assert!(!world.engine.instances.contains_key(&p1));
        }
        "C09" => {
            let mut world = with_ready(1, None);
            assert!(!world.engine.connect(&n1, world.now));
            assert!(world.engine.is_ready("n1"));
        }
        // The controller has the queue: see its tests.
        "C10" => {}
        _ => panic!("{id} is not implemented"),
    }
}

fn monitors(id: &str) {
    let at = Duration::from_secs_f64;
    let mut monitor = Monitor::default();
    match id {
        "D01" => {
            for (name, time) in [("A", 0.0), ("B", 1.0), ("C", 2.0), ("A", 5.0)] {
                monitor.touch(&name, at(time));
            }
            assert_eq!(monitor.stale(at(11.5), at(10.0)), ["B"]);
            assert_eq!(monitor.iter().copied().collect::<Vec<_>>(), ["C", "A"]);
        }
        "D02" => {
            let mut world = with_ready(1, None);
            let instance = world.pool("t/app", InstancePool::Ready)[0].clone();
            world.pass_without(15.0, &["n1"]);
            world.instance_is("n1", &instance, InstancePhase::Running);
            world.pass_without(15.0, &["n1"]);
            assert!(
                world.engine.is_ready("n1"),
                "a report about an instance counts as one of its node"
            );
            world.pass_without(6.0, &["n1"]);
            assert!(!world.engine.is_ready("n1"));
        }
        "D03" => {
            let mut world = with_ready(2, Some((30000, 30010)));
            world.open("t/s1", closing("app"));
            world.run();
            assert_eq!(world.mapped.len(), 1);
            let before: Vec<Key> = world.engine.instances.keys().cloned().collect();
            world.pass_without(21.0, &["n1"]);
            assert_eq!(world.state("t/s1"), Some(SessionState::Closed));
            assert!(world.mapped.is_empty());
            assert_eq!(world.engine.endpoints().unwrap().allocated(), 0);
            let made = world.engine.instances.keys().filter(|name| !before.contains(name));
            assert_eq!(made.count(), 2);
        }
        "D04" => {
            let mut world = with_ready(1, None);
            world.open("t/s1", closing("app"));
            world.run();
            world.engine.set_primary(false, world.now);
            world.act();
            let (named, commands) = (world.engine.named, world.hosts["n1"].commands.len());
            world.pass_without(21.0, &["n1"]);
            assert_eq!(world.state("t/s1"), Some(SessionState::Closed));
            assert!(world.engine.instances.is_empty());
            assert_eq!((world.engine.named, world.hosts["n1"].commands.len()), (named, commands));
            world.engine.set_primary(true, world.now);
            assert_eq!(
                world.engine.instances.len(),
                1,
                "primary again, it creates the missing instances"
            );
        }
        "D05" => {
            let mut world = World::new(None);
            world.join("n1", 1000, 1 << 30);
            world.hosts.get_mut("n1").unwrap().lazy = true;
            let mut names = Vec::new();
            for count in 1..=3 {
                world.apply("t/app", spec((count, 10), 0, count, 10));
                let pending = world.pool("t/app", InstancePool::Pending);
                names.extend(
                    pending.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>(),
                );
                world.pass(1.0);
            }
            assert_eq!(names.len(), 3);
            world.pass(2.0);
            let n1: Key = "n1".into();
            let create = world.hosts[&n1].inbox.iter().find_map(|(request, body)| match body {
                to_node::Body::Create(create) if names[1].ends_with(&create.name) => {
                    Some((*request, body.clone()))
                }
                _ => None,
            });
            let (request, body) = create.unwrap();
            world.obey(&n1, request, body);
            let pool = |world: &World, name: &Key| world.engine.instances[name].pool;
            world.pass(25.5);
            assert_eq!(pool(&world, &names[0]), InstancePool::Deleting, "30.5");
            world.pass(1.0);
            assert_eq!(pool(&world, &names[1]), InstancePool::Ready, "31.5");
            assert_eq!(pool(&world, &names[2]), InstancePool::Pending, "31.5");
            world.pass(1.0);
            assert_eq!(pool(&world, &names[2]), InstancePool::Deleting, "32.5");
            assert_eq!(world.pool("t/app", InstancePool::Pending).len(), 2, "both replaced");
        }
        "D06" => {
            let mut world = World::new(None);
            world.apply("t/app", spec((1, 10), 0, 1, 1));
            let p1 = world.pool("t/app", InstancePool::Pending);
            world.pass(60.0);
            assert_eq!(world.pool("t/app", InstancePool::Pending), p1);
        }
        _ => panic!("{id} is not implemented"),
    }
}

fn ports(id: &str, case: &Value) {
    let range = case["given"]["range"].as_str().unwrap_or("30000-30010");
    let (first, last) = range.split_once('-').expect("a range");
    let mut endpoints = Endpoints::new(first.parse().unwrap(), last.parse().unwrap());
    match id {
        "F01" => {
            endpoints.reserved(0);
            let steps = case["when"].as_array().unwrap();
            let results = case["then"]["results"].as_array().unwrap();
            for (step, result) in steps.iter().zip(results) {
                let session: Arc<str> = step[1].as_str().unwrap().into();
                let got: Value = match step[0].as_str().unwrap() {
                    "free" => {
                        endpoints.free(&session);
                        "OK".into()
                    }
                    _ => match endpoints.allocate(&session) {
                        Ok(port) => port.into(),
                        Err(endpoints::Error::Exhausted(_)) => "EXHAUSTED".into(),
                        Err(other) => panic!("{other}"),
                    },
                };
                assert_eq!(got, *result, "{step}");
            }
            assert_eq!(endpoints.allocated(), 4);
        }
        "F02" => {
            endpoints.reserved(0);
            let s1: Arc<str> = "s1".into();
            assert_eq!(endpoints.allocate(&s1), Ok(30000));
            assert_eq!(endpoints.allocate(&s1), Ok(30000));
            assert_eq!(endpoints.free("nobody"), None);
            assert_eq!(endpoints.allocated(), 1);
        }
        "F03" => {
            let mut world = World::new(Some((30000, 30200)));
            let known = BTreeMap::from([("t/s1".to_owned(), 30000), ("t/s2".to_owned(), 30002)]);
            world.engine = Engine::new(Timeouts::default(), 8, Some((30000, 30200)));
            world.engine.recall_ports(&[0], &known, world.now);
            world.act();
            world.join("n1", 64000, 1 << 40);
            world.apply("t/app", spec((1, 10), 0, 1, 10));
            world.run();
            world.open("t/s3", session("app"));
            world.run();
            assert_eq!(*world.mapped.first_key_value().unwrap().0, 30064, "from a new block");
        }
        _ => panic!("{id} is not implemented"),
    }
}

fn applications(id: &str) {
    let ports = Some((30000, 30010));
    match id {
        "J01" => {
            let kinds = mainstay_store::registry::Registry::new(crate::api::kinds()).unwrap();
            assert!(kinds.iter().any(|kind| kind.plural == "applications"));
            crate::api::application::check::tests::refusals();
        }
        "J02" => {
            let mut world = with_ready(5, ports);
            world.open("t/s1", session("app"));
            world.open("t/s2", session("app"));
            world.run();
            world.pass(1.0);
            world.run();
            let idle = world.pool("t/app", InstancePool::Ready);
            let used = world.pool("t/app", InstancePool::Active);
            let mut changed = spec((5, 10), 0, 5, 10);
            changed.process.command = vec!["game2".to_owned()];
            world.apply("t/app", changed);
            world.run();
            world.pass(1.0);
            world.run();
            let ready = world.pool("t/app", InstancePool::Ready);
            assert!(idle.iter().all(|old| !ready.contains(old)), "idle ones are replaced");
            assert!(ready.len() >= 3);
            assert_eq!(world.pool("t/app", InstancePool::Active), used, "used ones are kept");
            world.close("t/s1");
            world.run();
            assert!(!world.engine.instances.contains_key(&used[0]), "and not used again");
        }
        "J03" => {
            let mut world = with_ready(5, ports);
            world.open("t/s1", session("app"));
            world.open("t/s2", session("app"));
            world.run();
            world.engine.delete_application(&"t/app".into(), world.now);
            world.act();
            world.run();
            let order: Vec<&str> = world
                .gone
                .iter()
                .map(|gone| gone.split(' ').next().unwrap())
                .filter(|kind| *kind != "session")
                .collect();
            assert_eq!(
                order,
                ["instance", "instance", "instance", "instance", "instance", "application"]
            );
            assert_eq!(world.gone.iter().filter(|gone| gone.starts_with("session")).count(), 2);
            assert!(world.mapped.is_empty());
            assert!(world.engine.instances.is_empty() && world.engine.sessions.is_empty());
        }
        "J04" => {
            let mut world = World::new(ports);
            world.join("n1", 1000, 1 << 30);
            let n1: Key = "n1".into();
            let orphan = InstanceState {
                namespace: "t".to_owned(),
                name: "p9".to_owned(),
                application: "gone".to_owned(),
                phase: InstancePhase::Running as i32,
                ..InstanceState::default()
            };
            world.say(&n1, from_node::Body::Instance(orphan), true);
            let commands = world.hosts[&n1].commands.last().unwrap();
            assert!(matches!(commands, to_node::Body::Terminate(name) if name.name == "p9"));
        }
        "J05" => {
            let mut world = World::new(ports);
            world.join("n1", 64000, 1 << 40);
            for name in ["t1/web", "t2/web"] {
                world.apply(name, spec((2, 4), 0, 2, 4));
            }
            world.run();
            let before = world.pool("t2/web", InstancePool::Ready);
            world.engine.delete_application(&"t1/web".into(), world.now);
            world.act();
            world.run();
            assert_eq!(world.pool("t2/web", InstancePool::Ready), before);
            assert!(world.gone.contains(&"application t1/web".to_owned()));
        }
        "K01" => {
            let mut world = with_ready(2, ports);
            world.open("t/s1", session("app"));
            world.run();
            let (revision, named) = (world.hosts["n1"].revision, world.engine.named);
            let pools = || {
                use InstancePool::{Active, Ready};
                move |world: &World| [Ready, Active].map(|pool| world.pool("t/app", pool))
            };
            let before = pools()(&world);
            world.disconnect("n1");
            world.reconnect("n1");
            world.run();
            assert_eq!(world.engine.revision("n1"), Some(revision));
            assert_eq!(pools()(&world), before);
            assert_eq!(world.state("t/s1"), Some(SessionState::Available));
            assert_eq!(world.engine.named, named, "no instance was created");
        }
        _ => panic!("{id} is not implemented"),
    }
}
