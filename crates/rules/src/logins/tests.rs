use std::net::IpAddr;

use super::*;

fn network(last: u8) -> Network {
    Network::from(IpAddr::from([10, 0, 0, last]))
}

fn at(now: Micros) -> impl Fn() -> Micros + Sync {
    move || now
}

#[test]
fn passwords_are_verified_in_reused_memory() {
    let hash = crate::identity::hash_password("a word").unwrap();
    let mut memory = Vec::new();
    for (word, right) in [("a word", true), ("another", false), ("a word", true), ("", false)] {
        assert_eq!(is_password(word, &hash, &mut memory), right, "{word}");
        assert_eq!(crate::identity::is_password(word, &hash), right, "{word}");
    }
    let room = memory.len();
    assert!(!is_password("a word", "not a hash", &mut memory));
    let greedy = hash.replace("m=19456", "m=4000000");
    assert!(!is_password("a word", &greedy, &mut memory));
    assert_eq!(memory.len(), room);
}

#[test]
fn the_queue_is_bounded_and_fair_between_addresses_and_accounts() {
    let mut line = Line::default();
    let account = |name: &str| Account::named(name);
    for item in 0..line::OF_ACCOUNT {
        line.push(network(1), account("root"), item).unwrap();
    }
    assert_eq!(line.push(network(1), account("root"), 99), Err(Refused::Crowded(2)));
    line.push(network(1), account("ann"), 100).unwrap();
    line.push(network(2), account("root"), 200).unwrap();
    let order: Vec<usize> = std::iter::from_fn(|| line.pop()).take(5).collect();
    assert_eq!(order, [0, 200, 100, 1, 2]);
    let mut line = Line::default();
    let mut pushed = 0;
    for address in 0..=255 {
        for name in 0..40 {
            let name = account(&name.to_string());
            pushed += usize::from(line.push(network(address), name, ()).is_ok());
        }
    }
    assert_eq!((pushed, line.len()), (line::IN_ALL, line::IN_ALL));
    assert_eq!(std::iter::from_fn(|| line.pop()).count(), line::IN_ALL);
    assert!(line.is_empty());
}

#[tokio::test]
async fn a_slot_passes_to_the_next_waiting_login() {
    let logins = Logins::default();
    let ann = Account::named("ann");
    let turns = [
        logins.turn(&ann, network(1), &at(SECOND)).await.unwrap(),
        logins.turn(&ann, network(1), &at(SECOND)).await.unwrap(),
    ];
    // One waits, one leaves while it waits, and one more waits.
    let waiting = |last| {
        let (logins, ann) = (logins.clone(), ann.clone());
        tokio::spawn(async move { logins.turn(&ann, network(last), &at(SECOND)).await.is_ok() })
    };
    let (first, gone, last) = (waiting(1), waiting(2), waiting(3));
    while logins.state().line.len() < 3 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    assert!(gone.await.is_err());
    drop(turns);
    assert!(first.await.unwrap() && last.await.unwrap());
    assert_eq!(logins.state().running, 0);
    assert!(logins.state().line.is_empty());
}

#[tokio::test]
async fn a_slot_given_to_a_cancelled_login_passes_to_the_next() {
    use futures_util::FutureExt;
    let logins = Logins::default();
    let (ann, now) = (Account::named("ann"), at(SECOND));
    let turns = [
        logins.turn(&ann, network(1), &now).await.unwrap(),
        logins.turn(&ann, network(1), &now).await.unwrap(),
    ];
    let mut left = Box::pin(logins.turn(&ann, network(1), &now));
    let mut stays = Box::pin(logins.turn(&ann, network(2), &now));
    assert!((&mut left).now_or_never().is_none() && (&mut stays).now_or_never().is_none());
    // Both get a turn, and one leaves before it receives it.
    drop(turns);
    drop(left);
    drop(stays.await.unwrap());
    assert_eq!(logins.state().running, 0);
}

#[tokio::test]
async fn waiting_logins_are_refused_once_their_account_is_locked_out() {
    let logins = Logins::default();
    let ann = Account::named("ann");
    let turns = [
        logins.turn(&ann, network(1), &at(SECOND)).await.unwrap(),
        logins.turn(&ann, network(1), &at(SECOND)).await.unwrap(),
    ];
    let waiting = {
        let (logins, ann) = (logins.clone(), ann.clone());
        tokio::spawn(async move { logins.turn(&ann, network(1), &at(SECOND)).await.map(drop) })
    };
    while logins.state().line.is_empty() {
        tokio::task::yield_now().await;
    }
    for _ in 0..lockout::FREE {
        logins.ended(&ann, network(1), false, SECOND);
    }
    drop(turns);
    assert_eq!(waiting.await.unwrap(), Err(Refused::LockedOut(2)));
    assert_eq!(logins.state().running, 0);
    assert!(logins.turn(&ann, network(2), &at(SECOND)).await.is_ok());
}

#[tokio::test]
async fn hash_memory_is_reused_and_freed_when_idle() {
    let logins = Logins::default();
    let ann = Account::named("ann");
    let hash = crate::identity::hash_password("a word").unwrap();
    for _ in 0..3 {
        let turn = logins.turn(&ann, network(1), &at(SECOND)).await.unwrap();
        assert!(turn.is_password("a word".to_owned(), hash.clone()).await);
        assert!(logins.state().memory.len() <= AT_ONCE);
    }
    assert_eq!(logins.state().memory.len(), 1);
    let turn = logins.turn(&ann, network(1), &at(SECOND)).await.unwrap();
    assert!(!logins.state().give_back(3), "somebody is about to need it");
    drop(turn);
    assert!(!logins.state().give_back(2), "somebody logged in meanwhile");
    assert!(logins.state().give_back(3));
    assert!(logins.state().memory.is_empty());
}
