use super::*;
use crate::identity::Claims;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn user(name: &str, role: Role) -> User {
    User { name: name.into(), role: Some(role), node: None, claims: Claims::of_role(role) }
}

fn limits() -> Limits {
    Limits { in_flight: 32, watches: 32, connections: 64, bodies: 32, ..Limits::default() }
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn nothing_is_held(gate: &Gate) -> bool {
    Pool::ALL.iter().all(|pool| gate.held(*pool) == 0) && gate.lock().is_empty()
}

#[test]
fn a_viewer_at_its_bound_does_not_shut_out_others() {
    let gate = Gate::new(&limits());
    let (eve, visitor) = (user("eve", Role::Viewer), Visitor::new(&gate, address(1)).unwrap());
    let more: Vec<_> = (0..8).map(|_| Visitor::new(&gate, address(1)).unwrap()).collect();
    let mut held = Vec::new();
    for visitor in [&visitor].into_iter().chain(&more) {
        let who = visitor.known(&eve).unwrap();
        while let Ok(place) = who.enter(Pool::Requests) {
            held.push(place);
        }
    }
    // 32 places, of which 2, 4 and 2 are reserved: half of 26.
    assert_eq!(held.len(), 13);
    let refused = visitor.known(&eve).unwrap().enter(Pool::Requests).unwrap_err();
    assert_eq!((refused.reason, refused.retry_after), (Reason::TooManyRequests, Some(1)));
    assert_eq!(
        refused.message,
        "Too many requests under way: user \"eve\" has 13, which is its share of limits.in-flight (32); retry later, or with fewer at once"
    );
    for role in [Role::Viewer, Role::Editor, Role::Admin, Role::Node] {
        let other = Visitor::new(&gate, address(1)).unwrap();
        let who = other.known(&user(&format!("other-{role}"), role)).unwrap();
        assert!(who.enter(Pool::Requests).is_ok(), "{role}");
    }
    let stranger = visitor.stranger(false).enter(Pool::Strangers).unwrap();
    assert_eq!(gate.held(Pool::Requests), 13, "unknown users take no places of known ones");
    drop((held, stranger, visitor, more));
    assert!(nothing_is_held(&gate), "{gate:?}");
}

#[test]
fn the_last_places_of_administrators_and_nodes_are_theirs() {
    let gate = Gate::new(&limits());
    let visitors: Vec<_> = (0..40).map(|at| Visitor::new(&gate, address(at)).unwrap()).collect();
    let mut held = Vec::new();
    for (at, visitor) in visitors.iter().enumerate() {
        let who = visitor.acting(&user(&format!("viewer-{at}"), Role::Viewer));
        while let Ok(place) = who.enter(Pool::Watches) {
            held.push(place);
        }
    }
    assert_eq!(held.len(), 26, "all but the reserves");
    let who = |name, role| visitors[0].acting(&user(name, role));
    let refused = who("late", Role::Viewer).enter(Pool::Watches).unwrap_err();
    assert!(refused.message.contains("no place left for users"), "{}", refused.message);
    assert!(who("ada", Role::Admin).enter(Pool::Watches).is_ok());
    assert!(who("n1", Role::Node).enter(Pool::Watches).is_ok());
}

#[test]
fn servers_count_as_the_system_and_networks_as_one_address() {
    let server = Claims { groups: vec![SERVERS.to_owned()], ..Claims::default() };
    assert_eq!(class(&User::of_groups("s1", server)), Class::SYSTEM);
    assert_eq!(class(&user("ada", Role::Admin)), Class::ADMINISTRATORS);
    let same = |a: &str, b: &str| source(a.parse().unwrap()) == source(b.parse().unwrap());
    assert!(same("2001:db8::1", "2001:db8::2:3"));
    assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
    assert!(!same("192.0.2.1", "192.0.2.2"));
}

#[test]
fn a_connection_counts_for_its_user_and_changes_hands() {
    let gate = Gate::new(&limits());
    let visitor = Visitor::new(&gate, address(1)).unwrap();
    for name in ["ada", "ada", "bob", "ada"] {
        visitor.known(&user(name, Role::Viewer)).unwrap();
        assert_eq!(gate.held(Pool::Connections), 1);
    }
    drop(visitor);
    assert!(nothing_is_held(&gate));
}

#[test]
fn many_at_once_never_exceed_a_bound_and_leave_nothing() {
    let gate = Gate::new(&limits());
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let gate = &gate;
            scope.spawn(move || {
                let role =
                    [Role::Viewer, Role::Editor, Role::Admin, Role::Node][usize::from(thread % 4)];
                let visitor = Visitor::new(gate, address(thread)).unwrap();
                let who = visitor.acting(&user(&format!("user-{}", thread % 3), role));
                let mut held = Vec::new();
                for turn in 0..20_000 {
                    if let Ok(place) = who.enter(Pool::Requests) {
                        held.push(place);
                    }
                    if turn % 3 == 0 {
                        held.pop();
                    }
                    if turn % 50 == 0 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert!(nothing_is_held(&gate), "{gate:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Connect(u8),
    Enter(prop::sample::Index, u8, usize),
    Grow(prop::sample::Index),
    Leave(prop::sample::Index),
    Cut(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        (0_u8..3).prop_map(Step::Connect),
        (index(), 0_u8..6, 0_usize..4).prop_map(|(at, who, pool)| Step::Enter(at, who, pool)),
        index().prop_map(Step::Grow),
        index().prop_map(Step::Leave),
        index().prop_map(Step::Cut),
    ]
}

proptest! {
    #[test]
    fn every_place_is_given_back_however_a_request_ends(
        steps in proptest::collection::vec(step(), 0..300),
    ) {
        let gate = Gate::new(&limits());
        let (mut visitors, mut places) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Connect(from) => visitors.extend(Visitor::new(&gate, address(from))),
                Step::Enter(..) if visitors.is_empty() => {}
                Step::Enter(at, who, pool) => {
                    let visitor = &visitors[at.index(visitors.len())];
                    let role = [Role::Viewer, Role::Admin, Role::Node][usize::from(who % 3)];
                    let pool = [Pool::Requests, Pool::Watches, Pool::Bodies, Pool::Strangers][pool];
                    let who = match pool {
                        Pool::Strangers => Ok(visitor.stranger(who % 2 == 0)),
                        _ => visitor.known(&user(&format!("user-{who}"), role)),
                    };
                    places.extend(who.and_then(|who| who.enter(pool)));
                }
                Step::Grow(_) | Step::Leave(_) if places.is_empty() => {}
                Step::Grow(at) => {
                    let at = at.index(places.len());
                    // A refusal changes nothing.
                    let _ = places[at].grow(3);
                }
                Step::Leave(at) => drop(places.swap_remove(at.index(places.len()))),
                Step::Cut(_) if visitors.is_empty() => {}
                Step::Cut(at) => drop(visitors.swap_remove(at.index(visitors.len()))),
            }
            for pool in Pool::ALL {
                prop_assert!(gate.held(pool) <= gate.bounds[pool as usize].total);
            }
        }
        drop((places, visitors));
        prop_assert!(nothing_is_held(&gate), "{gate:?}");
    }
}
