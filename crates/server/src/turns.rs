//! Large bodies one after the other: taking them apart and checking them costs a processor a good
//! part of a second, and many at once would leave none for others.
//!
//! A body of more than [`LARGE`] bytes waits for its turn, which lasts until its write is decided.
//! Ordinary users have one turn at a time among them; administrators, servers and nodes another.
//! The time that a request may take bounds the wait.

use bytes::Bytes;
use mainstay_store::schema::Decoded;
use mainstay_store::status::Error;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::body;
use crate::gate::Who;
use crate::negotiate::Format;

/// Smaller bodies do not wait.
const LARGE: usize = 256 << 10;

/// The turns of large bodies.
#[derive(Debug)]
pub(crate) struct Turns {
    users: Semaphore,
    others: Semaphore,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { users: Semaphore::new(1), others: Semaphore::new(1) }
    }

    /// The turn of a body of so many bytes, if it needs one.
    ///
    /// # Errors
    /// None as long as the server runs.
    pub(crate) async fn take(
        &self,
        who: &Who,
        bytes: usize,
    ) -> Result<Option<SemaphorePermit<'_>>, Error> {
        if bytes <= LARGE {
            return Ok(None);
        }
        let turns = if who.is_ordinary() { &self.users } else { &self.others };
        turns.acquire().await.map(Some).map_err(Error::internal)
    }
}

/// Turns a body into an object, beside the requests of others if it is large.
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
    use std::net::{IpAddr, Ipv4Addr};
    use std::pin::pin;

    #[tokio::test]
    async fn large_bodies_of_users_take_turns_and_administrators_do_not_wait_for_them() {
        let gate = Gate::new(&Limits::default());
        let visitor = Visitor::new(&gate, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let who = |name: &str, role| {
            let claims = Claims::of_role(role);
            visitor.acting(&User { name: name.into(), role: Some(role), node: None, claims })
        };
        let turns = Turns::new();
        let (eve, other) = (who("eve", Role::Editor), who("other", Role::Editor));
        let first = turns.take(&eve, LARGE + 1).await.unwrap();
        assert!(first.is_some());
        let mut second = pin!(turns.take(&other, LARGE + 1));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        assert!(turns.take(&other, LARGE).await.unwrap().is_none(), "small ones do not wait");
        assert!(turns.take(&who("admin", Role::Admin), LARGE + 1).await.unwrap().is_some());
        drop(first);
        assert!(second.await.unwrap().is_some());
    }
}
