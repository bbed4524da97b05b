//! What the tests of this crate share.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_store::clock::ManualClock;

/// A clock that shows the beginning of 2026.
pub(crate) fn clock() -> Arc<ManualClock> {
    ManualClock::new(Timestamp::from_second(1_767_225_600).unwrap())
}

/// Lets the other tasks run until `condition` holds; fails if they cannot make it hold.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never happened: {what}");
}

/// Lets the other tasks run until they all wait for something.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}
