//! Waiting in tests whose tasks share one thread: letting the others run.

/// Lets the other tasks run until `condition` holds; fails if they cannot make it hold.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never happened: {what}");
}

/// Lets the other tasks run until they all wait for something.
pub(crate) async fn settle() {
    for _ in 0..400 {
        tokio::task::yield_now().await;
    }
}
