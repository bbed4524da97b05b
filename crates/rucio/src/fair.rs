//! Shares a number of places fairly between users: a semaphore with weights and a queue per user.
//!
//! A request takes as many places as it weighs, for example the bytes of its body, and gives them
//! back when it is done. A user alone may hold half of the places, two users a third each, and so on:
//! a user that holds some gets more only while as many stay free. A request that does not fit waits.
//! Users with waiting requests are served in rotation, so one user's many requests delay another
//! user's by one at most.
//!
//! Invariants: the places held never exceed the capacity; a request of a user that holds none is
//! served before any that came to the queue after it, so no request starves.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A user of a lane.
pub trait User: Clone + Debug + Eq + Hash + Send + 'static {}

impl<T: Clone + Debug + Eq + Hash + Send + 'static> User for T {}

/// A number of places that users share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lane<U: User>(Arc<Mutex<State<U>>>);

#[derive(Debug)]
struct State<U: User> {
    capacity: usize,
    free: usize,
    /// The places that each user holds; users without any are not in it.
    held: HashMap<U, usize>,
    /// Users with waiting requests, in the order of their next turns.
    order: VecDeque<U>,
    waiting: HashMap<U, VecDeque<Waiting<U>>>,
}

#[derive(Debug)]
struct Waiting<U: User> {
    weight: usize,
    granted: oneshot::Sender<Turn<U>>,
}

/// The places of one request, until dropped.
#[derive(Debug)]
pub struct Turn<U: User> {
    /// None once the places are given back.
    lane: Option<Lane<U>>,
    user: U,
    weight: usize,
}

/// Whether a user that holds `held` places may take `weight` more while `free` are free.
fn fits(held: usize, weight: usize, free: usize) -> bool {
    match held {
        0 => weight <= free,
        // Afterwards it holds no more than is free.
        held => held + 2 * weight <= free,
    }
}

impl<U: User> State<U> {
    fn held(&self, user: &U) -> usize {
        self.held.get(user).copied().unwrap_or(0)
    }

    fn take(&mut self, user: &U, weight: usize) {
        self.free -= weight;
        *self.held.entry(user.clone()).or_default() += weight;
    }

    fn give_back(&mut self, user: &U, weight: usize) {
        self.free += weight;
        if let Some(held) = self.held.get_mut(user) {
            *held -= weight;
            if *held == 0 {
                self.held.remove(user);
            }
        }
    }

    /// The requests whose turn it is now; their places are taken.
    fn next(&mut self) -> Vec<(U, Waiting<U>)> {
        let mut next = Vec::new();
        let mut at = 0;
        while let Some(user) = self.order.get(at).cloned() {
            let requests = self.waiting.entry(user.clone()).or_default();
            // Clients that went away while they waited.
            requests.retain(|request| !request.granted.is_closed());
            let Some(weight) = requests.front().map(|request| request.weight) else {
                self.waiting.remove(&user);
                self.order.remove(at);
                continue;
            };
            let held = self.held(&user);
            if !fits(held, weight, self.free) {
                if held == 0 {
                    // Room is kept for this one.
                    break;
                }
                at += 1;
                continue;
            }
            self.take(&user, weight);
            self.order.remove(at);
            if let Some(requests) = self.waiting.get_mut(&user) {
                next.extend(requests.pop_front().map(|request| (user.clone(), request)));
                match requests.is_empty() {
                    true => drop(self.waiting.remove(&user)),
                    false => self.order.push_back(user),
                }
            }
        }
        next
    }
}

impl<U: User> Lane<U> {
    /// A lane with so many places.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            capacity,
            free: capacity,
            held: HashMap::new(),
            order: VecDeque::new(),
            waiting: HashMap::new(),
        })))
    }

    /// Waits for a turn. A weight beyond the capacity counts as the capacity. Bound the wait with a
    /// deadline: a request that is dropped leaves the queue.
    pub async fn take(&self, user: U, weight: usize) -> Turn<U> {
        match self.enter(user, weight) {
            Ok(turn) => turn,
            Err(wait) => match wait.await {
                Ok(turn) => turn,
                // The lane keeps the other end for as long as this end waits.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn enter(&self, user: U, weight: usize) -> Result<Turn<U>, oneshot::Receiver<Turn<U>>> {
        let mut state = self.0.lock();
        let weight = weight.min(state.capacity);
        if state.order.is_empty() && fits(state.held(&user), weight, state.free) {
            state.take(&user, weight);
            drop(state);
            return Ok(Turn { lane: Some(self.clone()), user, weight });
        }
        let (granted, wait) = oneshot::channel();
        let requests = state.waiting.entry(user.clone()).or_default();
        requests.push_back(Waiting { weight, granted });
        if requests.len() == 1 {
            state.order.push_back(user);
        }
        let next = state.next();
        drop(state);
        self.grant(next);
        Err(wait)
    }

    fn grant(&self, next: Vec<(U, Waiting<U>)>) {
        for (user, Waiting { weight, granted }) in next {
            // If the client went away just now, the turn comes back and is dropped: the next begins.
            drop(granted.send(Turn { lane: Some(self.clone()), user, weight }));
        }
    }

    /// Whether no request holds a place or waits for one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.0.lock();
        state.held.is_empty() && state.order.is_empty()
    }
}

impl<U: User> Drop for Turn<U> {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        let mut state = lane.0.lock();
        state.give_back(&self.user, self.weight);
        let next = state.next();
        drop(state);
        lane.grant(next);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use proptest::prelude::*;

    use super::*;

    type Asked = (&'static str, BoxFuture<'static, Turn<&'static str>>);

    /// A request that waits.
    fn ask(lane: &Lane<&'static str>, user: &'static str, weight: usize) -> Asked {
        let lane = lane.clone();
        let mut turn = async move { lane.take(user, weight).await }.boxed();
        assert!(turn.as_mut().now_or_never().is_none(), "{user} waits");
        (user, turn)
    }

    /// The users in the order in which they are served, each done before the next is looked for.
    fn order(mut waiting: Vec<Asked>) -> Vec<&'static str> {
        let mut served = Vec::new();
        while !waiting.is_empty() {
            let ready = waiting.iter_mut().enumerate().find_map(|(at, (user, turn))| {
                turn.as_mut().now_or_never().map(|turn| (at, *user, turn))
            });
            let (at, user, turn) = ready.expect("one of them has its turn");
            served.push(user);
            drop((waiting.remove(at), turn));
        }
        served
    }

    #[test]
    fn one_user_holds_at_most_half_and_another_gets_in_at_once() {
        let lane = Lane::new(1024);
        // Forty bodies just below any threshold.
        let first: Vec<_> = (0..2).filter_map(|_| lane.take("eve", 255).now_or_never()).collect();
        assert_eq!(first.len(), 2);
        let waiting: Vec<_> = (0..38).map(|_| ask(&lane, "eve", 255)).collect();
        assert!(lane.take("ada", 100).now_or_never().is_some(), "others do not wait");
        drop(first);
        assert_eq!(order(waiting).len(), 38);
        assert!(lane.is_idle());
    }

    #[test]
    fn turns_go_round_between_users_however_many_requests_each_has() {
        let lane = Lane::new(1);
        let held = lane.take("eve", 1).now_or_never().unwrap();
        let mut waiting: Vec<_> = (0..50).map(|_| ask(&lane, "eve", 1)).collect();
        waiting.extend(["ada", "bob", "ada"].map(|user| ask(&lane, user, 1)));
        // A request that was given up takes no turn.
        drop(waiting.remove(0));
        drop(held);
        let order = order(waiting);
        assert_eq!(order[..6], ["eve", "ada", "bob", "eve", "ada", "eve"]);
        assert_eq!(order.len(), 52);
        assert!(lane.is_idle());
    }

    #[test]
    fn a_heavy_request_is_not_overtaken_for_ever_by_light_ones() {
        let lane = Lane::new(100);
        let light = ["a", "b", "c"].map(|user| lane.take(user, 20).now_or_never().unwrap());
        let (_, mut heavy) = ask(&lane, "heavy", 90);
        let (_, mut late) = ask(&lane, "late", 1);
        drop(light);
        let heavy = heavy.as_mut().now_or_never().expect("it came first");
        drop(heavy);
        assert!(late.as_mut().now_or_never().is_some());
        assert!(lane.take("huge", 1000).now_or_never().is_some(), "as heavy as the lane at most");
    }

    proptest! {
        #[test]
        fn every_request_is_served_and_the_capacity_is_kept(
            capacity in 1_usize..50,
            steps in proptest::collection::vec((0_u8..5, 1_usize..60, any::<bool>()), 1..200),
        ) {
            let lane = Lane::new(capacity);
            let mut held = Vec::new();
            let mut waiting = Vec::new();
            for (user, weight, gives_up) in steps {
                let taken = lane.clone();
                let mut turn = async move { taken.take(user, weight).await }.boxed();
                match turn.as_mut().now_or_never() {
                    Some(turn) => held.push(turn),
                    None if gives_up => {}
                    None => waiting.push(turn),
                }
                prop_assert!(held.iter().map(|turn| turn.weight).sum::<usize>() <= capacity);
                if held.len() > 3 {
                    drop(held.remove(0));
                }
            }
            while !held.is_empty() || !waiting.is_empty() {
                held.clear();
                let before = waiting.len();
                waiting.retain_mut(|turn| match turn.as_mut().now_or_never() {
                    Some(turn) => {
                        held.push(turn);
                        false
                    }
                    None => true,
                });
                prop_assert!(waiting.len() < before || waiting.is_empty(), "nobody is served");
            }
            prop_assert!(lane.is_idle());
        }
    }
}
