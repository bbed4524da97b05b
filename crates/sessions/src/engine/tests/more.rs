//! Cases beyond the recorded ones: standby, volumes, failing instances, ports used by other programs,
//! and a restart of the server.

use super::*;
use crate::api::{Standby, VolumeUse};

#[test]
fn standby_instances_are_frozen_thawed_on_demand_and_replaced() {
    let mut world = World::new(None);
    world.join("n1", 64000, 1 << 40);
    let mut spec = spec((1, 6), 1, 1, 6);
    spec.scaling_policy.standby = Some(Standby { minimum: 2, maximum: 3 });
    world.apply("t/app", spec);
    world.run();
    let count = |world: &World| {
        use InstancePool::{Active, Ready, Standby};
        [Ready, Standby, Active].map(|pool| world.pool("t/app", pool).len())
    };
    assert_eq!(count(&world), [1, 2, 0]);
    world.pass(300.0);
    assert_eq!(count(&world), [1, 2, 0], "frozen instances need no health reports");
    // The ready instance is used, a frozen one replaces it, and another one is frozen.
    world.open("t/s1", session("app"));
    world.run();
    assert_eq!(count(&world), [1, 2, 1]);
    let report = &world.hosts["n1"].commands;
    assert!(report.iter().any(|body| matches!(body, to_node::Body::Activate(_))));
    // Surplus idle instances are frozen first, and terminated only beyond the maximum.
    world.close("t/s1");
    world.run();
    assert_eq!(count(&world), [1, 3, 0]);
    // Without a ready instance, a frozen one is thawed for the session.
    world.hosts.get_mut("n1").unwrap().lazy = true;
    world.open("t/s2", session("app"));
    world.open("t/s3", session("app"));
    assert_eq!(world.state("t/s3"), Some(SessionState::Starting));
    world.hosts.get_mut("n1").unwrap().lazy = false;
    world.run();
    assert_eq!(world.state("t/s3"), Some(SessionState::Available));
}

#[test]
fn nodes_with_a_replica_are_preferred_and_the_volume_is_attached_there() {
    let mut world = World::new(None);
    for (name, cpu) in [("big", 64000), ("small", 2000)] {
        world.join(name, cpu, 1 << 40);
    }
    world.engine.replicas("data", HashSet::from(["small".into()]));
    let mut spec = spec((3, 3), 0, 3, 3);
    spec.process = process(1000, 0);
    let volume = VolumeUse { replicated_volume_name: "data".to_owned(), mount_path: String::new() };
    spec.volume = Some(volume);
    world.apply("t/app", spec);
    world.run();
    let on = |world: &World, node: &str| world.hosts[node].instances.len();
    assert_eq!((on(&world, "small"), on(&world, "big")), (2, 1));
    let attached = |node: &str| ("data".to_owned(), Key::from(node));
    assert!(world.attached[&attached("small")]);
    assert!(world.attached[&attached("big")]);
    world.engine.delete_application(&"t/app".into(), world.now);
    world.act();
    world.run();
    assert!(world.attached.values().all(|wanted| !wanted), "{:?}", world.attached);
}

#[test]
fn failing_instances_are_recreated_with_growing_delays() {
    let mut world = World::new(None);
    world.join("n1", 64000, 1 << 40);
    world.hosts.get_mut("n1").unwrap().lazy = true;
    world.apply("t/app", spec((1, 1), 0, 1, 1));
    let mut made = Vec::new();
    for _ in 0..120 {
        let n1: Key = "n1".into();
        while let Some((request, body)) = world.hosts.get_mut(&n1).unwrap().inbox.pop_front() {
            if let to_node::Body::Create(_) = body {
                made.push(world.now.elapsed.as_secs());
                let message = "no such program".to_owned();
                let failed = CommandFailed { request, message, ..CommandFailed::default() };
                world.say(&n1, from_node::Body::Failed(failed), false);
            }
        }
        world.pass(1.0);
    }
    let pauses: Vec<u64> = made.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32], "{made:?}");
    let status = world.engine.application_status("t/app").unwrap();
    assert_eq!(status.message, "no such program");
    assert_eq!(world.engine.machines.left("n1").unwrap().cpu, 64000, "no reservation is left");
}

#[test]
fn a_port_used_by_another_program_is_skipped() {
    let mut world = World::new(Some((30000, 30010)));
    world.join("n1", 64000, 1 << 40);
    world.apply("t/app", spec((1, 1), 0, 1, 1));
    world.run();
    let s1: Key = "t/s1".into();
    let spec = Arc::new(session("app"));
    world.engine.open(&s1, spec, Arc::from(&b"{}"[..]), 99, world.now);
    // The effects are answered here: the first port is in use.
    let mut refused = 0;
    for _ in 0..10 {
        for effect in world.engine.effects() {
            match effect {
                Effect::Map { session, port, .. } => {
                    let result = if port == 30000 { Err("in use".to_owned()) } else { Ok(()) };
                    refused += u32::from(result.is_err());
                    world.engine.mapped(&session, result, world.now);
                }
                Effect::Send { node, request, body } => {
                    let host = world.hosts.get_mut(&node).unwrap();
                    host.inbox.push_back((request, body));
                }
                _ => {}
            }
        }
        let n1: Key = "n1".into();
        if let Some((_, to_node::Body::Open(open))) =
            world.hosts.get_mut(&n1).unwrap().inbox.pop_front()
        {
            let host = world.hosts.get_mut(&n1).unwrap();
            host.revision += 1;
            let report = SessionReport {
                namespace: open.namespace,
                name: open.name,
                instance: open.instance,
                phase: SessionPhase::Open as i32,
                ..SessionReport::default()
            };
            let body = Some(from_node::Body::Session(report));
            let message = FromNode { revision: host.revision, body };
            world.engine.receive(&n1, message, world.now);
        }
    }
    assert_eq!(refused, 1);
    let status = world.engine.session_status("t/s1", "gw").unwrap();
    assert_eq!(status.session_status, SessionState::Available);
    assert_eq!(status.access_end_points[0].port, 30001);
}

#[test]
fn a_restarted_server_learns_its_state_from_the_nodes() {
    let mut world = World::new(Some((30000, 30127)));
    for node in ["n1", "n2"] {
        world.join(node, 64000, 1 << 40);
    }
    world.apply("t/app", spec((4, 10), 0, 4, 4));
    world.run();
    world.open("t/s1", session("app"));
    world.open("t/s2", session("app"));
    world.run();
    let (instance, ports) = (world.instance_of("t/s1"), world.mapped.clone());
    let before: Vec<Key> = world.hosts["n1"].instances.keys().cloned().collect();
    let known: BTreeMap<String, u16> =
        ports.iter().map(|(port, session)| (session.to_string(), *port)).collect();
    world.engine = Engine::new(Timeouts::default(), 8, Some((30000, 30127)));
    world.mapped.clear();
    world.apply("t/app", spec((4, 10), 0, 4, 4));
    // Also a port of a session that no node will report.
    let lost = [("t/lost".to_owned(), 30010)];
    world.engine.recall_ports(&[0], &known.into_iter().chain(lost).collect(), world.now);
    world.act();
    for node in ["n1", "n2"] {
        world.reconnect(node);
        world.run();
    }
    assert_eq!(world.state("t/s1"), Some(SessionState::Available));
    assert_eq!(world.instance_of("t/s1"), instance);
    assert_eq!(world.mapped, ports, "with their former ports");
    let after: Vec<Key> = world.hosts["n1"].instances.keys().cloned().collect();
    assert!(before.iter().all(|name| after.contains(name)), "no instance was replaced");
    assert_eq!(world.engine.endpoints().unwrap().of("t/lost"), Some(30010));
    world.pass(31.0);
    assert_eq!(
        world.engine.endpoints().unwrap().of("t/lost"),
        None,
        "the time to report it is over"
    );
    assert_eq!(world.engine.endpoints().unwrap().allocated(), 2);
}
