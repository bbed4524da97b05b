//! Leases: one holder, a token that grows, and fenced writes.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::cache::Retention;
use mainstay_store::lease::{Claim, Lease, holder};
use mainstay_store::objects::{Error, Fence, Objects, Write};
use proptest::prelude::*;

use crate::{BACKENDS, Stage, block_on, create, key, update};

const TTL: Duration = Duration::from_secs(15);

fn contender(store: &Arc<dyn Objects>, who: &str) -> Lease {
    Lease::new(store.clone(), "controllers", who, &format!("{who}:6443"), TTL)
}

fn fence(claim: Claim) -> Fence {
    match claim {
        Claim::Held(fence) => fence,
        Claim::Other { holder, .. } => panic!("{holder} holds it"),
    }
}

#[test]
fn a_paused_holder_can_no_longer_write_once_another_took_over() {
    for backend in BACKENDS {
        block_on(async {
            let stage = Stage::new(backend, Retention::default()).await;
            let (mut old, mut new) =
                (contender(&stage.store, "old"), contender(&stage.store, "new"));
            let first = fence(old.claim(|| Duration::ZERO).await.unwrap());
            let waiting = new.claim(|| Duration::ZERO).await.unwrap();
            assert!(matches!(waiting, Claim::Other { ref holder, retry_in, .. }
                if holder == "old" && retry_in == TTL));

            let apple = key("apples", "a", "x");
            let mine = Write { fence: Some(first.clone()), ..create(&apple, 1) };
            let at = stage.store.write(mine).await.unwrap().revision();

            let second = fence(new.claim(|| TTL).await.unwrap());
            assert!(second.token > first.token, "tokens only grow");
            let stale = Write { fence: Some(first.clone()), ..update(&apple, at, 2) };
            assert!(matches!(stage.store.write(stale).await, Err(Error::Fenced { .. })));
            let fresh = Write { fence: Some(second), ..update(&apple, at, 3) };
            stage.store.write(fresh).await.unwrap();
            assert!(matches!(old.claim(|| TTL).await.unwrap(), Claim::Other { .. }));
            let (who, address) = holder(&*stage.store, "controllers").await.unwrap().unwrap();
            assert_eq!((who.as_str(), address.as_str()), ("new", "new:6443"));
        });
    }
}

#[test]
fn a_renewed_lease_is_not_taken_and_a_released_one_at_once() {
    for backend in BACKENDS {
        block_on(async {
            let stage = Stage::new(backend, Retention::default()).await;
            let (mut one, mut two) =
                (contender(&stage.store, "one"), contender(&stage.store, "two"));
            let token = fence(one.claim(|| Duration::ZERO).await.unwrap()).token;
            for tick in 1..5 {
                let now = Duration::from_secs(10 * tick);
                assert_eq!(
                    fence(one.claim(|| now).await.unwrap()).token,
                    token,
                    "renewal keeps it"
                );
                assert!(matches!(two.claim(|| now).await.unwrap(), Claim::Other { .. }));
            }
            one.release().await.unwrap();
            one.release().await.unwrap();
            assert!(holder(&*stage.store, "controllers").await.unwrap().is_none());
            assert!(fence(two.claim(|| Duration::from_secs(41)).await.unwrap()).token > token);
        });
    }
}

#[test]
fn the_same_holder_comes_back_at_once_after_a_restart() {
    block_on(async {
        let mut stage = Stage::new(crate::Backend::Sqlite, Retention::default()).await;
        let before = fence(contender(&stage.store, "me").claim(|| Duration::ZERO).await.unwrap());
        stage.reopen().await;
        let after = fence(contender(&stage.store, "me").claim(|| Duration::ZERO).await.unwrap());
        assert!(after.token > before.token, "what the former process still sends is refused");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Three contenders act in any order at any time; only the contender that last got the lease
    /// makes fenced writes that succeed.
    #[test]
    fn only_the_newest_holder_can_write(turns in prop::collection::vec((0..3usize, 0..20u64), 1..40)) {
        block_on(async {
            let stage = Stage::new(crate::Backend::Memory, Retention::default()).await;
            let mut contenders: Vec<_> =
                ["a", "b", "c"].iter().map(|who| contender(&stage.store, who)).collect();
            let mut fences: Vec<Option<Fence>> = vec![None; 3];
            let mut now = Duration::ZERO;
            let mut newest = None;
            let counter = key("apples", "a", "n");
            let mut at = stage.store.write(create(&counter, 0)).await.unwrap().revision();
            for (who, pause) in turns {
                now += Duration::from_secs(pause);
                if let Claim::Held(fence) = contenders[who].claim(|| now).await.unwrap() {
                    newest = Some(newest.map_or(fence.token, |token| fence.token.max(token)));
                    fences[who] = Some(fence);
                }
                for fence in fences.iter().flatten() {
                    let write = Write { fence: Some(fence.clone()), ..update(&counter, at, 1) };
                    match stage.store.write(write).await {
                        Ok(event) => {
                            assert_eq!(Some(fence.token), newest);
                            at = event.revision();
                        }
                        Err(Error::Fenced { .. }) => assert_ne!(Some(fence.token), newest),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
}
