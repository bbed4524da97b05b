use super::*;
use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use mainstay_store::memory::MemoryStore;
use proptest::prelude::*;

fn now() -> Timestamp {
    "2026-11-16T00:00:00Z".parse().unwrap()
}

fn issued(serial: &str, uid: Option<&str>) -> Issued {
    Issued {
        serial: serial.to_owned(),
        key: "key".to_owned(),
        authority: "authority".to_owned(),
        uid: uid.map(str::to_owned),
        expires: now() + Duration::from_secs(3600),
    }
}

/// An event in the life of a node.
#[derive(Clone, Debug)]
enum Deed {
    Join,
    Renew(usize),
    Revoke,
}

proptest! {
    /// Whatever happens in whatever order, certificates from before a revocation are never good
    /// after it, and the newest one is good unless it was revoked.
    #[test]
    fn no_certificate_survives_a_revocation(
        deeds in proptest::collection::vec(prop_oneof![
            Just(Deed::Join),
            (0_usize..8).prop_map(Deed::Renew),
            Just(Deed::Revoke),
        ], 1..40),
    ) {
        let mut record = NodeRecord::default();
        let mut given: Vec<(String, bool)> = vec![("legacy".to_owned(), true)];
        for (at, deed) in deeds.into_iter().enumerate() {
            let time = now() + Duration::from_secs(at as u64 + 1);
            let serial = format!("s{at}");
            let grounds = match deed {
                Deed::Revoke => {
                    record = record.revoked(None, time);
                    given.iter_mut().for_each(|(_, good)| *good = false);
                    continue;
                }
                Deed::Join => Grounds::Token(time),
                Deed::Renew(which) => {
                    Grounds::Certificate(given[which % given.len()].0.clone())
                }
            };
            let allowed = match &grounds {
                Grounds::Token(_) => true,
                Grounds::Certificate(old) => given.iter().any(|(known, good)| known == old && *good),
            };
            let next = record.with(&grounds, &issued(&serial, None), None, time);
            prop_assert_eq!(next.is_ok(), allowed);
            if let Ok(next) = next {
                record = next;
                given.push((serial, true));
            }
        }
        for (serial, good) in given {
            prop_assert_eq!(record.takes(&serial), good, "{}", serial);
        }
    }
}

#[test]
fn a_token_from_before_a_revocation_does_not_bring_the_node_back() {
    let record = NodeRecord::default().revoked(None, now());
    let second = Duration::from_secs(1);
    let join = |made| record.with(&Grounds::Token(made), &issued("a", None), None, now());
    assert_eq!(join(now() - second).unwrap_err(), Refusal::OldToken);
    assert!(join(now() + second).is_ok());
}

#[test]
fn a_deletion_that_is_seen_late_leaves_a_node_that_joined_since_with_a_new_token() {
    let later = now() + Duration::from_secs(1);
    let join = |record: &NodeRecord, serial: &str, uid: Option<&str>, made| {
        record.with(&Grounds::Token(made), &issued(serial, uid), None, later)
    };
    let record = join(&NodeRecord::default(), "old", Some("u1"), now()).unwrap();
    let record = record.revoked(Some("u1"), now());
    assert!(!record.takes("old"));
    assert_eq!(join(&record, "sly", Some("u2"), now()).unwrap_err(), Refusal::OldToken);
    let record = join(&record, "new", Some("u2"), later).unwrap();
    assert_eq!(record.without_node("u1", later), None, "all was done before it");
    // A Node that vanished in another way: nobody knows on which grounds the rest was given.
    let record = record.without_node("u2", later).unwrap();
    assert!(!record.takes("new") && record.takes_token(later).is_err());
}

#[test]
fn a_clock_that_goes_back_lets_no_older_token_in() {
    let record = NodeRecord::default().revoked(None, now());
    let record = record.revoked(None, now() - Duration::from_secs(60));
    assert_eq!(record.takes_token(now()), Err(Refusal::OldToken));
}

#[test]
fn certificates_that_are_over_make_room_and_so_do_the_oldest() {
    let mut record = NodeRecord::default();
    for number in 0..100 {
        let one = issued(&number.to_string(), None);
        record = record.with(&Grounds::Token(now()), &one, None, now()).unwrap();
    }
    assert_eq!(record.certificates.len(), 32);
    let later = now() + Duration::from_secs(3600);
    let record = record.with(&Grounds::Token(later), &issued("x", None), None, later).unwrap();
    assert_eq!(record.certificates.len(), 1);
}

#[tokio::test]
async fn a_revoked_node_is_forgotten_once_no_certificate_of_it_can_be_good() {
    let clock = ManualClock::new(now());
    let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
    let all = Certificates::load(Arc::new(objects), clock.clone()).await.unwrap();
    let test = async {
        all.revoke("n1", None).await.unwrap();
        assert!(!all.good("n1", "legacy") && all.good("n2", "legacy"));
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(367 * 24 * 3600));
        while !all.records().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = all.follow() => panic!("the feed ended: {ended:?}"),
        ended = all.keep_swept() => panic!("sweeping ended: {ended:?}"),
        () = test => {}
    }
}
