use mainstay_clock::ManualClock;
use mainstay_store::object::{Body, Key, Resource, Revision};
use mainstay_store::objects::{Change, Write};
use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::testing::{Line, Remote, clock, settle, store, until};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One server: its own clock, its own line to the store.
struct Server {
    clock: Arc<ManualClock>,
    remote: Arc<Remote>,
    election: Handle,
}

impl Server {
    fn start(name: &str, store: &Arc<dyn Objects>) -> Self {
        let (clock, remote) = (clock(), Remote::new(store.clone()));
        let mut options = Options::new("primary", name);
        options.address = format!("{name}:6443");
        let election = Election::run(options, remote.clone(), clock.clone());
        Self { clock, remote, election }
    }

    fn leads(&self) -> bool {
        self.election.fence().is_some()
    }
}

async fn write(store: &Arc<dyn Objects>, fence: &Fence, name: &str) -> bool {
    let write = Write {
        key: Key::new(&Resource::new("", "things"), None, name),
        change: Change::Create(Body::new(&Map::new())),
        fence: Some(fence.clone()),
    };
    store.write(write).await.is_ok()
}

#[tokio::test]
async fn one_leads_and_the_others_know_where_it_is() {
    let store = store(clock());
    let a = Server::start("a", &store);
    until("a leads", || a.leads()).await;
    let b = Server::start("b", &store);
    let expected = Leadership::Following { holder: "a".to_owned(), address: "a:6443".to_owned() };
    let follows = b.election.leadership();
    until("b follows a", || *follows.borrow() == expected).await;
}

#[tokio::test]
async fn a_leader_that_renews_stays_for_one_term() {
    let store = store(clock());
    let a = Server::start("a", &store);
    let fence = a.election.leading().await.unwrap();
    let b = Server::start("b", &store);
    for _ in 0..20 {
        settle().await;
        a.clock.advance(secs(5));
        b.clock.advance(secs(5));
    }
    settle().await;
    assert_eq!(a.election.fence(), Some(fence));
    assert!(!b.leads());
}

#[tokio::test]
async fn a_leader_that_shuts_down_is_followed_at_once() {
    let store = store(clock());
    let a = Server::start("a", &store);
    a.election.leading().await;
    let b = Server::start("b", &store);
    settle().await;
    a.election.shutdown().await;
    assert!(!a.leads());
    until("b leads without time passing", || b.leads()).await;
    a.election.shutdown().await;
}

#[tokio::test]
async fn a_leader_that_cannot_renew_steps_down_before_another_may_lead() {
    for line in [Line::Down, Line::Silent, Line::Deaf] {
        let store = store(clock());
        let a = Server::start("a", &store);
        a.election.leading().await;
        let b = Server::start("b", &store);
        settle().await;
        a.remote.set(line);
        for second in 1..=30 {
            a.clock.advance(secs(1));
            b.clock.advance(secs(1));
            settle().await;
            assert!(!(a.leads() && b.leads()), "{line:?} after {second} s");
        }
        assert!(!a.leads(), "{line:?}");
        if line != Line::Deaf {
            assert!(b.leads(), "{line:?}");
        }
        b.election.shutdown().await;
        a.remote.set(Line::Up);
        for _ in 0..20 {
            settle().await;
            a.clock.advance(secs(1));
        }
        until("a leads again", || a.leads()).await;
    }
}

#[tokio::test]
async fn a_paused_leader_still_believes_but_can_no_longer_write() {
    let store = store(clock());
    let a = Server::start("a", &store);
    let old = a.election.leading().await.unwrap();
    let b = Server::start("b", &store);
    settle().await;
    // Time passes for everybody but the paused one.
    b.clock.advance(secs(15));
    let new = b.election.leading().await.unwrap();
    assert!(a.leads());
    assert!(new.token > old.token);
    assert!(!write(&store, &old, "by-a").await);
    assert!(write(&store, &new, "by-b").await);
    a.clock.advance(secs(5));
    until("a learns of it", || !a.leads()).await;
}

/// The answer says that the lease was renewed a moment ago, to a question asked long before.
#[tokio::test]
async fn a_slow_answer_does_not_make_a_lease_look_old() {
    let store = store(clock());
    let (a, b) = (Server::start("a", &store), Server::start("b", &store));
    until("a leads", || a.leads()).await;
    let pass = async |seconds: u64| {
        for _ in 0..seconds {
            a.clock.advance(secs(1));
            b.clock.advance(secs(1));
            settle().await;
            assert!(!(a.leads() && b.leads()), "two believe to lead");
        }
    };
    settle().await;
    b.remote.set(Line::Silent);
    pass(16).await;
    a.remote.set(Line::Down);
    b.remote.set(Line::Up);
    pass(20).await;
    assert!(b.leads(), "in time it takes over");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes for all.
    Together(u64),
    /// Time passes for one: the others are paused, or their clocks are slow.
    Alone(usize, u64),
    Cut(usize, Line),
    Restart(usize),
}

fn steps(pauses: bool) -> impl Strategy<Value = Vec<Step>> {
    let line = prop::sample::select(vec![Line::Up, Line::Up, Line::Down, Line::Deaf, Line::Silent]);
    let alone = (0_usize..3, 1_u64..20).prop_map(move |(server, seconds)| {
        if pauses { Step::Alone(server, seconds) } else { Step::Together(seconds) }
    });
    let step = prop_oneof![
        4 => (1_u64..8).prop_map(Step::Together),
        3 => alone,
        2 => (0_usize..3, line).prop_map(|(server, line)| Step::Cut(server, line)),
        1 => (0_usize..3).prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// Lives through a history and checks after every step.
async fn live(steps: Vec<Step>, pauses: bool) {
    let store = store(clock());
    let names = ["a", "b", "c"];
    let mut servers: Vec<_> = names.map(|name| Server::start(name, &store)).into();
    let (mut writes, mut highest) = (0, Revision::ZERO);
    for step in steps {
        match step {
            Step::Together(seconds) => {
                for _ in 0..seconds {
                    for server in &servers {
                        server.clock.advance(secs(1));
                    }
                    settle().await;
                    let leaders = servers.iter().filter(|server| server.leads()).count();
                    assert!(pauses || leaders <= 1, "two believe to lead");
                }
            }
            Step::Alone(server, seconds) => servers[server].clock.advance(secs(seconds)),
            Step::Cut(server, line) => servers[server].remote.set(line),
            // The new process has a fresh clock and no memory, but the same name.
            Step::Restart(server) => {
                servers[server] = Server::start(names[server], &store);
            }
        }
        settle().await;
        let mut succeeded = 0;
        for server in &servers {
            let Some(fence) = server.election.fence() else {
                continue;
            };
            writes += 1;
            if write(&store, &fence, &format!("w{writes}")).await {
                succeeded += 1;
                assert!(fence.token >= highest, "an older term wrote after a newer");
                highest = fence.token;
            }
        }
        assert!(succeeded <= 1, "two leaders wrote");
    }
    for server in &servers {
        server.remote.set(Line::Up);
    }
    for _ in 0..60 {
        for server in &servers {
            server.clock.advance(secs(1));
        }
        settle().await;
    }
    let leaders = servers.iter().filter(|server| server.leads()).count();
    assert_eq!(leaders, 1, "when faults stop, one leads");
}

fn on_one_thread(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn of_two_alleged_leaders_at_most_one_can_write(steps in steps(true)) {
        on_one_thread(live(steps, true));
    }

    #[test]
    fn without_pauses_no_two_believe_to_lead(steps in steps(false)) {
        on_one_thread(live(steps, false));
    }
}
