//! Shares the work on bodies (parsing, patching, validation) between users, and runs that on large
//! ones beside the threads that serve requests.
//!
//! The work costs a processor in proportion to the size of the body and of the object that it
//! changes. Every write takes a turn of that weight in bytes ([`mainstay_rucio::fair`]): the writes of
//! one user in flight are at most half of [`IN_FLIGHT`], so that one user's many bodies, of whatever
//! size, leave processors for the others. One of more than [`LARGE`] bytes would delay every request
//! behind it on a shared thread. So it takes the one turn for large ones instead, and runs on a
//! thread of its own ([`beside`]). Ordinary users share one set of turns; administrators, servers and
//! nodes share another.
//!
//! Turns go round between users, not between requests: a user with a hundred large bodies gets every
//! second turn as long as another user waits. The time that a request may take bounds the wait.

use bytes::Bytes;
use mainstay_rucio::fair::{self, Lane};
use mainstay_store::schema::Decoded;
use mainstay_store::status::Error;

use crate::body;
use crate::gate::Who;
use crate::negotiate::Format;

/// Work on more bytes than this runs on a thread of its own.
pub(crate) const LARGE: usize = 256 << 10;

/// The bytes of other work in flight.
const IN_FLIGHT: usize = 1 << 20;

/// The bytes that a write counts in addition to its body.
const OVERHEAD: usize = 256;

/// The turns of all writes.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    users: Lanes,
    others: Lanes,
}

#[derive(Debug)]
struct Lanes {
    large: Lane<usize>,
    others: Lane<usize>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { large: Lane::new(1), others: Lane::new(IN_FLIGHT) }
    }
}

/// The right to work on a body, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    large: bool,
    _places: fair::Turn<usize>,
}

impl Turn {
    /// Whether the work belongs on a thread of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }
}

impl Turns {
    /// Waits for the turn of work on so many bytes.
    pub(crate) async fn take(&self, who: &Who, bytes: usize) -> Turn {
        let lanes = if who.is_ordinary() { &self.users } else { &self.others };
        let large = bytes > LARGE;
        let (lane, weight) = match large {
            true => (&lanes.large, 1),
            false => (&lanes.others, bytes + OVERHEAD),
        };
        Turn { large, _places: lane.take(who.flow_id(), weight).await }
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
    use tokio::sync::oneshot;

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
        let first = turns.take(&eve, LARGE + 1).await;
        assert!(first.is_large());
        let mut second = pin!(turns.take(&other, LARGE + 1));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        assert!(!turns.take(&other, LARGE).await.is_large(), "others go on meanwhile");
        assert!(turns.take(&admin, LARGE + 1).await.is_large());
        drop(first);
        assert!(second.await.is_large());
    }

    #[tokio::test]
    async fn bodies_of_one_user_do_not_delay_other_users_whatever_their_size() {
        let visitor = visitor();
        for bytes in [300, 100 << 10, LARGE - 1, LARGE] {
            let turns = Turns::default();
            let eve = who(&visitor, "eve", Role::Editor);
            let mut held = Vec::new();
            while let Some(turn) = turns.take(&eve, bytes).now_or_never() {
                held.push(turn);
            }
            assert!(held.len() * (bytes + OVERHEAD) <= IN_FLIGHT / 2, "{bytes}");
            let ada = who(&visitor, "ada", Role::Editor);
            assert!(
                turns.take(&ada, bytes).now_or_never().is_some(),
                "{bytes}: others do not wait"
            );
        }
    }

    #[tokio::test]
    async fn a_turn_lasts_until_its_work_is_done_though_its_request_was_given_up() {
        let (visitor, turns) = (visitor(), Turns::default());
        let eve = who(&visitor, "eve", Role::Editor);
        let turn = turns.take(&eve, LARGE + 1).await;
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
        assert!(next.await.is_large());
    }
}
