//! Decides how long an account must wait after wrong passwords; pure functions over plain data.
//!
//! Failures are counted for each account at each source address. The first few cause no wait; then
//! each doubles the wait, up to a quarter of an hour. An account that fails at many addresses has
//! fewer free tries at each of them, but every address keeps one: an attacker cannot lock an
//! account out at other addresses. A right password clears the failures at its address. The table
//! is bounded; when it is full, the entry with the shortest wait is removed.

use std::collections::HashMap;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::api::{Micros, SECOND};

/// Failures at one address before there is a wait.
pub const FREE: u32 = 5;
/// The same while an account is under attack from other addresses.
pub const FREE_UNDER_ATTACK: u32 = 1;
/// This many failures at all addresses together are an attack on an account.
pub const ATTACK: u32 = 30;
/// The longest wait.
pub const LONGEST: Micros = 900 * SECOND;
/// Failures are forgotten this long after the last of them.
pub const REMEMBERED: Micros = 3_600 * SECOND;
/// The capacity of each table.
pub const MOST: usize = 8_192;

/// The source of a login: an IPv4 address, or the /64 network of an IPv6 address, which a single
/// customer usually has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(u64);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits())),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64),
        }
    }
}

/// An account name from an unauthenticated client, hashed to a fixed length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account([u8; 16]);

impl Account {
    /// The account of this name, whether it exists or not.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Self(short)
    }
}

/// Consecutive failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Their number.
    pub count: u32,
    /// The time of the last one.
    pub last: Micros,
}

impl Failures {
    fn counted(self, now: Micros) -> u32 {
        if now.saturating_sub(self.last) > REMEMBERED { 0 } else { self.count }
    }

    /// The time at which the wait ends.
    fn until(self, free: u32) -> Micros {
        match self.count.checked_sub(free) {
            None => 0,
            Some(beyond) => {
                let wait = SECOND.checked_shl(beyond.min(30)).unwrap_or(LONGEST);
                self.last.saturating_add(wait.min(LONGEST))
            }
        }
    }
}

/// How long to wait, given the failures at this address and at all addresses.
#[must_use]
pub fn wait(here: Failures, anywhere: Failures, now: Micros) -> Micros {
    let attacked = anywhere.counted(now) >= ATTACK;
    let free = if attacked { FREE_UNDER_ATTACK } else { FREE };
    match here.counted(now) {
        0 => 0,
        _ => here.until(free).saturating_sub(now).clamp(0, LONGEST),
    }
}

/// The failures of all accounts.
#[derive(Debug, Default)]
pub struct Lockout {
    here: HashMap<(Account, Network), Failures>,
    anywhere: HashMap<Account, Failures>,
}

/// Adds a failure to a bounded table.
fn add<K: std::hash::Hash + Eq + Clone>(table: &mut HashMap<K, Failures>, key: &K, now: Micros) {
    if !table.contains_key(key) && table.len() >= MOST {
        table.retain(|_, failures| failures.counted(now) > 0);
        if table.len() >= MOST {
            let least = table.iter().min_by_key(|(_, failures)| (failures.count, failures.last));
            let least = least.map(|(key, _)| key.clone());
            least.and_then(|key| table.remove(&key));
        }
    }
    let failures = table.entry(key.clone()).or_default();
    *failures = Failures { count: failures.counted(now).saturating_add(1), last: now };
}

impl Lockout {
    /// How long this account has to wait at this address before its password is verified; 0 for no
    /// wait.
    #[must_use]
    pub fn wait(&self, account: &Account, from: Network, now: Micros) -> Micros {
        let here = self.here.get(&(account.clone(), from)).copied().unwrap_or_default();
        let anywhere = self.anywhere.get(account).copied().unwrap_or_default();
        wait(here, anywhere, now)
    }

    /// Records a wrong password.
    pub fn failed(&mut self, account: &Account, from: Network, now: Micros) {
        add(&mut self.here, &(account.clone(), from), now);
        add(&mut self.anywhere, account, now);
    }

    /// Records a right password.
    pub fn passed(&mut self, account: &Account, from: Network) {
        self.here.remove(&(account.clone(), from));
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.here.len() + self.anywhere.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(last: u8) -> Network {
        Network::from(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn waits_double_after_the_free_tries_up_to_a_quarter_of_an_hour() {
        let now = 1_000_000 * SECOND;
        for (count, seconds) in
            [(0, 0), (1, 0), (4, 0), (5, 1), (6, 2), (9, 16), (14, 512), (15, 900), (9_999, 900)]
        {
            let here = Failures { count, last: now };
            assert_eq!(wait(here, here_elsewhere(0, now), now), seconds * SECOND, "{count}");
            let later = now + seconds * SECOND;
            assert_eq!(wait(here, here_elsewhere(0, now), later), 0, "{count}");
        }
        let here = Failures { count: 1, last: now };
        assert_eq!(wait(here, here_elsewhere(ATTACK, now), now), SECOND);
        let old = Failures { count: 99, last: now - REMEMBERED - 1 };
        assert_eq!(wait(old, old, now), 0);
    }

    fn here_elsewhere(count: u32, last: Micros) -> Failures {
        Failures { count, last }
    }

    #[test]
    fn an_attack_from_many_addresses_leaves_other_addresses_one_free_try() {
        let (root, mut lockout) = (Account::named("root"), Lockout::default());
        let now = 1_000_000 * SECOND;
        for last in 0..200 {
            for _ in 0..20 {
                lockout.failed(&root, network(last), now);
            }
        }
        assert_eq!(lockout.wait(&root, network(7), now), LONGEST);
        assert_eq!(lockout.wait(&root, network(201), now), 0, "a first try");
        assert_eq!(lockout.wait(&Account::named("ann"), network(7), now), 0, "another account");
        lockout.failed(&root, network(201), now);
        assert_eq!(lockout.wait(&root, network(201), now), SECOND, "a second one soon");
        lockout.passed(&root, network(201));
        assert_eq!(lockout.wait(&root, network(201), now), 0);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_entries_with_most_failures() {
        let mut lockout = Lockout::default();
        let (root, now) = (Account::named("root"), SECOND);
        for _ in 0..10 {
            lockout.failed(&root, network(1), now);
        }
        for at in 0..2 * MOST {
            lockout.failed(&Account::named(&at.to_string()), network(1), now + 1);
        }
        assert!(lockout.len() <= 2 * MOST);
        assert!(lockout.wait(&root, network(1), now) > 0);
        lockout.failed(&Account::named("new"), network(1), now + 2 * REMEMBERED);
        assert_eq!(lockout.len(), 2, "expired entries go when there is no room");
    }

    #[test]
    fn ipv6_addresses_of_one_64_bit_network_count_as_one() {
        let at = |text: &str| Network::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
    }
}
