//! The recorded cases of opening, using and closing sessions.

use super::*;

pub(super) fn play(id: &str) {
    use SessionState::{Available, Closed, Closing, InUse, Starting};
    let ports = Some((30000, 30010));
    match id {
        "E01" => {
            let mut world = with_ready(1, ports);
            let p1 = world.pool("t/app", InstancePool::Ready)[0].clone();
            let ticket = world.open("t/s1", session("app"));
            assert_eq!(world.state("t/s1"), Some(Starting));
            world.run();
            assert_eq!(world.state("t/s1"), Some(Available));
            assert_eq!(world.answers[&ticket], Ok("t/s1".into()));
            assert_eq!(world.pool("t/app", InstancePool::Active), [p1]);
            let status = world.engine.session_status("t/s1", "192.0.2.1").unwrap();
            assert_eq!(status.access_end_points[0].port, 30000);
            assert_eq!(status.access_end_points[0].ip_address, "192.0.2.1");
        }
        "E02" | "E03" => {
            let allocated: i32 = if id == "E02" { 2 } else { 5 };
            let mut world = World::new(ports);
            world.join("n1", 64000, 1 << 40);
            world.apply("t/app", spec((allocated, 5), 0, 0, 5));
            world.run();
            for number in 0..allocated {
                world.open(&format!("t/before{number}"), session("app"));
            }
            world.run();
            let before = world.engine.instances.len();
            let ticket = world.open("t/s1", session("app"));
            assert!(matches!(world.answers[&ticket], Err(Refusal::Busy(_))));
            let made = world.engine.instances.len() - before;
            assert_eq!(made, usize::from(id == "E02"));
            assert_eq!(world.state("t/s1"), None, "the session is forgotten");
            world.run();
            world.pass(5.0);
            assert_eq!(world.pool("t/app", InstancePool::Ready).len(), made, "and it stays");
            world.pass(6.0);
            world.run();
            assert!(
                world.pool("t/app", InstancePool::Ready).is_empty(),
                "until the demand has expired"
            );
        }
        "E04" => {
            let mut world = World::new(ports);
            world.apply("t/app", spec((0, 1), 0, 0, 5));
            for name in ["t/s1", "t/s2", "t/s3"] {
                world.open(name, waiting("app"));
            }
            world.join("n1", 64000, 1 << 40);
            world.run();
            let states = ["t/s1", "t/s2", "t/s3"].map(|name| world.state(name).unwrap());
            use SessionState::Pending;
            assert_eq!(states, [Available, Pending, Pending]);
        }
        "E05" => {
            let mut world = World::new(ports);
            world.apply("t/app", spec((0, 1), 0, 0, 5));
            let ticket =
                world.open("t/s1", SessionSpec { open_timeout_seconds: 5, ..waiting("app") });
            world.pass(4.5);
            assert!(!world.answers.contains_key(&ticket));
            world.pass(0.5);
            assert!(matches!(world.answers[&ticket], Err(Refusal::Timeout(_))));
            assert_eq!(world.state("t/s1"), Some(SessionState::Timeout));
            world.join("n1", 64000, 1 << 40);
            world.run();
            assert_eq!(world.instance_of("t/s1"), None);
        }
        "E06" => {
            let mut world = with_ready(1, ports);
            world.open("t/s1", session("app"));
            world.run();
            let (p1, count) = (world.instance_of("t/s1"), world.engine.named);
            world.close("t/s1");
            world.run();
            world.open("t/s2", session("app"));
            world.run();
            assert_eq!(world.instance_of("t/s2"), p1);
            assert_eq!(world.engine.named, count, "no instance was created");
        }
        "E07" => {
            let mut world = with_ready(1, ports);
            let kill = SessionSpec { kill_instance_when_session_closed: true, ..session("app") };
            world.open("t/s1", kill);
            world.run();
            let p1 = world.instance_of("t/s1").unwrap();
            world.close("t/s1");
            assert_eq!(world.state("t/s1"), Some(Closing));
            world.run();
            assert_eq!(world.gone[..2], ["session t/s1".to_owned(), format!("instance {p1}")]);
        }
        "E08" => {
            let mut world = with_ready(1, ports);
            world.open("t/s1", session("app"));
            world.run();
            let p1 = world.instance_of("t/s1").unwrap();
            world.session_is("n1", "t/s1", SessionPhase::NoHeartbeat, &[]);
            assert_eq!(world.state("t/s1"), Some(Closed));
            assert_eq!(world.engine.instances[&p1].pool, InstancePool::Deleting);
        }
        "E09" => {
            let mut world = with_ready(1, ports);
            world.open("t/s1", session("app"));
            world.run();
            world.session_is("n1", "t/s1", SessionPhase::Open, &["ada"]);
            assert_eq!(world.state("t/s1"), Some(InUse));
            world.session_is("n1", "t/s1", SessionPhase::Open, &[]);
            assert_eq!(world.state("t/s1"), Some(Available));
            let s1: Key = "t/s1".into();
            for (joined, state) in [(true, InUse), (false, Available)] {
                world.engine.client(&s1, "10.1.1.1:5".to_owned(), joined, world.now);
                assert_eq!(world.state("t/s1"), Some(state), "the gateway's event counts too");
            }
        }
        "E10" => {
            let mut world = with_ready(1, ports);
            world.hosts.get_mut("n1").unwrap().lazy = true;
            world.open("t/s1", session("app"));
            world.close("t/s1");
            assert_eq!(world.state("t/s1"), Some(Closing));
            world.hosts.get_mut("n1").unwrap().lazy = false;
            let n1: Key = "n1".into();
            let (request, open) = world.hosts.get_mut(&n1).unwrap().inbox.pop_front().unwrap();
            world.hosts.get_mut(&n1).unwrap().inbox.clear();
            world.obey(&n1, request, open);
            assert_eq!(world.state("t/s1"), Some(Closing), "never available");
            let commands = world.hosts[&n1].commands.last().unwrap();
            assert!(matches!(commands, to_node::Body::Close(_)), "{commands:?}");
            world.run();
            assert_eq!(world.gone, ["session t/s1"]);
        }
        "E11" => {
            let mut world = with_ready(1, ports);
            world.open("t/s1", session("app"));
            world.run();
            let p1 = world.instance_of("t/s1").unwrap();
            world.instance_is("n1", &p1, InstancePhase::Terminated);
            assert_eq!(world.state("t/s1"), Some(Closed));
            assert!(world.mapped.is_empty());
            world.run();
            assert_eq!(world.pool("t/app", InstancePool::Ready).len(), 1, "minimum is one");
        }
        "E12" => {
            let mut world = with_ready(2, ports);
            world.open("t/s1", session("app"));
            world.run();
            let again = world.open("t/s1", session("app"));
            assert_eq!(world.answers[&again], Err(Refusal::AlreadyExists));
            assert_eq!(world.pool("t/app", InstancePool::Active).len(), 1);
        }
        _ => panic!("{id} is not implemented"),
    }
}
