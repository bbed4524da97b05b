//! A task with an owner: it ends with its last owner, and any number can wait for its end.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// A spawned task. Clones are the same task; when the last is dropped, it is cut off.
#[derive(Clone, Debug)]
pub(crate) struct Owned<T> {
    ended: watch::Receiver<Option<T>>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl<T: Clone + Default + Send + Sync + 'static> Owned<T> {
    pub(crate) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Self {
        let (sender, ended) = watch::channel(None);
        let task = tokio::spawn(async move {
            let value = work.await;
            sender.send_replace(Some(value));
        });
        Self { ended, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// Waits for its end, and gives what it returned; the default if it panicked.
    pub(crate) async fn end(&self) -> T {
        let mut ended = self.ended.clone();
        let value = ended.wait_for(Option::is_some).await;
        value.ok().and_then(|value| value.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{settle, until};

    #[tokio::test]
    async fn many_can_wait_for_the_end_also_of_one_that_panicked() {
        let task = Owned::spawn(async { 7 });
        assert_eq!((task.end().await, task.clone().end().await), (7, 7));
        let task: Owned<i32> = Owned::spawn(async { panic!("as asked") });
        assert_eq!(task.end().await, 0);
    }

    #[tokio::test]
    async fn it_ends_with_its_last_owner() {
        let alive = Arc::new(());
        let inside = alive.clone();
        let task: Owned<()> = Owned::spawn(async move {
            let _inside = inside;
            std::future::pending().await
        });
        let other = task.clone();
        drop(task);
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(other);
        until("it has ended", || Arc::strong_count(&alive) == 1).await;
    }
}
