//! Runs the work on large bodies (parsing, patching, validation) a few at a time, beside the threads
//! that serve requests.
//!
//! A body of megabytes costs a processor a good part of a second. Many at once would leave none for
//! others, and one on a shared thread delays every request behind it. So work on more than [`LARGE`]
//! bytes waits for a turn and then runs on a thread of its own ([`beside`]). Ordinary users have one
//! turn at a time among them; administrators, servers and nodes have another.
//!
//! Turns go round between users, not between requests: a user with a hundred large bodies gets every
//! second turn as long as another user waits. The time that a request may take bounds the wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use mainstay_store::schema::Decoded;
use mainstay_store::status::Error;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::body;
use crate::gate::Who;
use crate::negotiate::Format;

/// Smaller bodies do not wait.
pub(crate) const LARGE: usize = 256 << 10;

/// The turns of large bodies.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    users: Arc<Lane>,
    others: Arc<Lane>,
}

/// One turn at a time, and the requests that wait for it.
#[derive(Debug, Default)]
struct Lane(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    taken: bool,
    /// Users with requests that wait, in the order of their next turns.
    order: VecDeque<usize>,
    requests: HashMap<usize, VecDeque<oneshot::Sender<Turn>>>,
}

impl Lane {
    /// A turn at once, or the place where one will arrive.
    fn enter(self: &Arc<Self>, user: usize) -> Result<Turn, oneshot::Receiver<Turn>> {
        let mut waiting = self.0.lock();
        if !std::mem::replace(&mut waiting.taken, true) {
            return Ok(Turn { lane: Some(self.clone()) });
        }
        let (sender, receiver) = oneshot::channel();
        waiting.push(user, sender);
        Err(receiver)
    }
}

impl Waiting {
    fn push(&mut self, user: usize, request: oneshot::Sender<Turn>) {
        let requests = self.requests.entry(user).or_default();
        if requests.is_empty() {
            self.order.push_back(user);
        }
        requests.push_back(request);
    }

    /// The request whose turn is next. Its user goes to the end of the line.
    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(user) = self.order.pop_front() {
            let Some(mut requests) = self.requests.remove(&user) else { continue };
            // Requests that were given up while they waited.
            requests.retain(|request| !request.is_closed());
            let next = requests.pop_front();
            if !requests.is_empty() {
                self.requests.insert(user, requests);
                self.order.push_back(user);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

/// The right to work on a large body, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    lane: Option<Arc<Lane>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        loop {
            let mut waiting = lane.0.lock();
            let Some(request) = waiting.pop() else {
                waiting.taken = false;
                return;
            };
            drop(waiting);
            let next = Turn { lane: Some(lane.clone()) };
            match request.send(next) {
                Ok(()) => return,
                // The request was given up just now.
                Err(mut next) => next.lane = None,
            }
        }
    }
}

impl Turns {
    /// The turn of work on so many bytes, if it needs one.
    ///
    /// # Errors
    /// None as long as the server runs.
    pub(crate) async fn take(&self, who: &Who, bytes: usize) -> Result<Option<Turn>, Error> {
        if bytes <= LARGE {
            return Ok(None);
        }
        let lane = if who.is_ordinary() { &self.users } else { &self.others };
        match lane.enter(who.flow_id()) {
            Ok(turn) => Ok(Some(turn)),
            Err(wait) => wait.await.map(Some).map_err(Error::internal),
        }
    }
}

/// Does work that has its turn on a thread of its own.
///
/// # Errors
/// Those of the work.
pub(crate) async fn beside<T: Send + 'static>(
    turn: Turn,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || {
        let done = runtime.block_on(work);
        // Also where the request was given up meanwhile, the next turn begins only now.
        drop(turn);
        done
    });
    done.await.map_err(Error::internal)?
}

/// Turns a body into an object, on a thread of its own if it is large.
///
/// # Errors
/// 400 if it is none.
pub(crate) async fn parse(format: Format, bytes: Bytes) -> Result<Decoded, Error> {
    if bytes.len() <= LARGE {
        return body::object(format, &bytes);
    }
    let parsed = tokio::task::spawn_blocking(move || body::object(format, &bytes));
    parsed.await.map_err(Error::internal)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Gate, Visitor};
    use crate::identity::{Claims, Role, User};
    use crate::options::Limits;
    use futures_util::FutureExt;
    use std::net::{IpAddr, Ipv4Addr};
    use std::pin::pin;

    fn visitor() -> Visitor {
        let gate = Gate::new(&Limits::default());
        Visitor::new(&gate, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
    }

    fn who(visitor: &Visitor, name: &str, role: Role) -> Who {
        let claims = Claims::of_role(role);
        visitor.acting(&User { name: name.into(), role: Some(role), node: None, claims })
    }

    #[tokio::test]
    async fn large_bodies_of_users_take_turns_and_administrators_do_not_wait_for_them() {
        let (visitor, turns) = (visitor(), Turns::default());
        let eve = who(&visitor, "eve", Role::Editor);
        let other = who(&visitor, "other", Role::Editor);
        let admin = who(&visitor, "admin", Role::Admin);
        let first = turns.take(&eve, LARGE + 1).await.unwrap();
        assert!(first.is_some());
        let mut second = pin!(turns.take(&other, LARGE + 1));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        assert!(turns.take(&other, LARGE).await.unwrap().is_none(), "small ones do not wait");
        assert!(turns.take(&admin, LARGE + 1).await.unwrap().is_some());
        drop(first);
        assert!(second.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn turns_go_round_between_users_however_many_requests_each_has() {
        let (visitor, turns) = (visitor(), Turns::default());
        let eve = who(&visitor, "eve", Role::Editor);
        let ada = who(&visitor, "ada", Role::Editor);
        let bob = who(&visitor, "bob", Role::Viewer);
        let held = turns.take(&eve, LARGE + 1).await.unwrap();
        let ask = |who: &Who, name: &'static str| {
            let (turns, who) = (&turns, who.clone());
            let mut waits =
                async move { (name, turns.take(&who, LARGE + 1).await.unwrap()) }.boxed();
            assert!(waits.as_mut().now_or_never().is_none(), "{name} waits");
            waits
        };
        let mut waiting: Vec<_> = (0..50).map(|_| ask(&eve, "eve")).collect();
        waiting.extend([ask(&ada, "ada"), ask(&bob, "bob"), ask(&ada, "ada")]);
        // A request that was given up takes no turn.
        drop(waiting.remove(0));
        drop(held);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let mut served = None;
            for (index, request) in waiting.iter_mut().enumerate() {
                if let Some((name, turn)) = request.as_mut().now_or_never() {
                    order.push(name);
                    served = Some((index, turn));
                    break;
                }
            }
            let (index, turn) = served.expect("one of them has its turn");
            drop((waiting.remove(index), turn));
        }
        assert_eq!(order[..6], ["eve", "ada", "bob", "eve", "ada", "eve"]);
        assert_eq!(order.len(), 52);
        assert!(turns.take(&bob, LARGE + 1).now_or_never().is_some(), "the turn is free again");
    }

    #[tokio::test]
    async fn a_turn_lasts_until_its_work_is_done_though_its_request_was_given_up() {
        let (visitor, turns) = (visitor(), Turns::default());
        let eve = who(&visitor, "eve", Role::Editor);
        let turn = turns.take(&eve, LARGE + 1).await.unwrap().unwrap();
        let (begin, begun) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let work = async move {
            begin.send(()).unwrap();
            released.await.map_err(Error::internal)
        };
        let mut request = Box::pin(beside(turn, work));
        assert!(futures_util::poll!(request.as_mut()).is_pending());
        begun.await.unwrap();
        drop(request);
        let mut next = pin!(turns.take(&eve, LARGE + 1));
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        release.send(()).unwrap();
        assert!(next.await.unwrap().is_some());
    }
}
