//! The promises of every runtime, tested on the simulated one with a manual clock.

use jiff::Timestamp;
use mainstay_clock::ManualClock;
use mainstay_sessions::protocol::{Failure, SessionPhase};

use super::*;
use crate::instances::Event;

fn node(delays: Delays) -> (Simulated, Events, Arc<ManualClock>) {
    let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
    let (node, events) = Simulated::new(delays, clock.clone());
    (node, events, clock)
}

fn start(name: &str, template: &str, standby: bool) -> Start {
    Start {
        id: Id::new("default", name),
        application: "game".to_owned(),
        template: template.to_owned(),
        process: Default::default(),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        standby,
        secrets: Default::default(),
    }
}

fn open(session: &str, instance: &str) -> OpenSession {
    OpenSession {
        namespace: "default".to_owned(),
        name: session.to_owned(),
        instance: instance.to_owned(),
        object: b"object".to_vec(),
        external_port: 7,
        ..OpenSession::default()
    }
}

fn close(session: &str, instance: &str) -> CloseSession {
    CloseSession {
        namespace: "default".to_owned(),
        name: session.to_owned(),
        instance: instance.to_owned(),
        grace_seconds: 1,
    }
}

/// The pending events, abbreviated.
fn told(events: &mut Events) -> Vec<String> {
    let short = |event| match event {
        Event::Instance(state) => format!("{} {:?} {}", state.name, state.phase(), state.reason),
        Event::Session(state) => format!("{} {:?} {}", state.name, state.phase(), state.reason),
    };
    let mut all = Vec::new();
    while let Some(event) = events.try_next() {
        all.push(short(event).trim().to_owned());
    }
    all
}

#[tokio::test]
async fn a_session_lives_on_an_instance() {
    let (node, mut events, _) = node(Delays::default());
    node.start(start("a", "t1", true)).await.unwrap();
    assert_eq!(told(&mut events), ["a Standby"], "steps nobody has taken make one");
    node.open(open("s", "a")).await.unwrap();
    assert_eq!(told(&mut events), ["a Running", "s Open"]);
    node.open(open("s", "a")).await.unwrap();
    assert_eq!(told(&mut events), ["s Open"], "twice is once, and told again");
    let report = node.report();
    assert_eq!((report.instances.len(), report.sessions.len()), (1, 1));
    assert_eq!(
        (report.sessions[0].object.as_slice(), report.sessions[0].external_port),
        (&b"object"[..], 7)
    );

    assert_eq!(node.open(open("t", "a")).await.unwrap_err().failure(), Failure::Conflict);
    assert_eq!(
        node.freeze(Id::new("default", "a")).await.unwrap_err().failure(),
        Failure::Conflict
    );
    assert_eq!(node.open(open("t", "b")).await.unwrap_err().failure(), Failure::NotFound);
    assert_eq!(node.close(close("t", "a")).await.unwrap_err().failure(), Failure::NotFound);
    let other = node.start(start("a", "t2", false)).await.unwrap_err();
    assert_eq!(other.to_string(), "instance default/a runs another template (t1, not t2)");

    node.close(close("s", "a")).await.unwrap();
    assert_eq!(told(&mut events), ["s Closed Closed"]);
    node.freeze(Id::new("default", "a")).await.unwrap();
    node.thaw(Id::new("default", "a")).await.unwrap();
    node.open(open("u", "a")).await.unwrap();
    told(&mut events);
    node.stop(Id::new("default", "a"), None).await.unwrap();
    let report = node.report();
    assert_eq!(report.instances[0].phase(), InstancePhase::Terminated, "until it is taken");
    assert_eq!(report.sessions[0].phase(), SessionPhase::Closed);
    assert_eq!(told(&mut events), ["u Closed InstanceEnded", "a Terminated Stopped"]);
    assert_eq!(node.report(), Report::default());
    node.shutdown().await;
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn delays_are_kept() {
    let millis = Duration::from_millis;
    let delays = Delays { start: millis(40), stop: millis(5), thaw: millis(2), session: millis(3) };
    let (node, mut events, clock) = node(delays);
    let pass = async |duration| {
        clock.advance(duration);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    };
    node.start(start("a", "t", false)).await.unwrap();
    node.open(open("s", "a")).await.unwrap();
    pass(millis(39)).await;
    assert_eq!(told(&mut events), ["a Creating", "s Initializing"]);
    pass(millis(1)).await;
    assert_eq!(told(&mut events), ["a Running"]);
    pass(millis(3)).await;
    assert_eq!(told(&mut events), ["s Open"]);
    node.close(close("s", "a")).await.unwrap();
    pass(millis(2)).await;
    assert_eq!(told(&mut events), ["s Closing"]);
    pass(millis(1)).await;
    assert_eq!(told(&mut events), ["s Closed Closed"]);
    node.freeze(Id::new("default", "a")).await.unwrap();
    node.open(open("t", "a")).await.unwrap();
    assert_eq!(told(&mut events), ["t Initializing", "a Activating"]);
    pass(millis(2)).await;
    assert_eq!(told(&mut events), ["a Running"]);
    pass(millis(3)).await;
    assert_eq!(told(&mut events), ["t Open"]);
    node.stop(Id::new("default", "a"), None).await.unwrap();
    assert_eq!(node.open(open("u", "a")).await.unwrap_err().failure(), Failure::Conflict);
    pass(millis(5)).await;
    assert_eq!(told(&mut events), ["t Closed InstanceEnded", "a Terminated Stopped"]);
    node.start(start("b", "t", false)).await.unwrap();
    node.shutdown().await;
}

#[test]
fn a_template_that_cannot_be_read_is_invalid() {
    let create = mainstay_sessions::protocol::CreateInstance {
        name: "a".to_owned(),
        process: b"{".to_vec(),
        ..Default::default()
    };
    assert_eq!(Start::try_from(create).unwrap_err().failure(), Failure::Invalid);
}
