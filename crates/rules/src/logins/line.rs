//! A short queue of waiting logins, fair between source addresses and, within one address, between
//! accounts.

use std::collections::VecDeque;

use super::Refused;
use super::lockout::{Account, Network};

/// How many logins may wait in all.
pub const IN_ALL: usize = 128;
/// How many logins may wait from one address.
pub const OF_ADDRESS: usize = 32;
/// How many logins may wait for one account from one address.
pub const OF_ACCOUNT: usize = 16;

#[derive(Debug)]
struct Group<K, V> {
    key: K,
    members: V,
}

type Accounts<T> = VecDeque<Group<Account, VecDeque<T>>>;

/// A queue. The first address is served next, and within it its first account; both then move to
/// the end.
#[derive(Debug)]
pub struct Line<T> {
    addresses: VecDeque<Group<Network, Accounts<T>>>,
    length: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { addresses: VecDeque::new(), length: 0 }
    }
}

impl<T> Line<T> {
    /// The number of waiting logins.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends a login to the queue of its account at its address.
    pub fn push(&mut self, from: Network, account: Account, item: T) -> Result<(), Refused> {
        if self.length >= IN_ALL {
            return Err(Refused::Busy(2));
        }
        let at = self.addresses.iter().position(|one| one.key == from).unwrap_or_else(|| {
            self.addresses.push_back(Group { key: from, members: VecDeque::new() });
            self.addresses.len() - 1
        });
        let accounts = &mut self.addresses[at].members;
        if accounts.iter().map(|one| one.members.len()).sum::<usize>() >= OF_ADDRESS {
            return Err(Refused::Crowded(2));
        }
        let at = accounts.iter().position(|one| one.key == account).unwrap_or_else(|| {
            accounts.push_back(Group { key: account, members: VecDeque::new() });
            accounts.len() - 1
        });
        let waiting = &mut accounts[at].members;
        if waiting.len() >= OF_ACCOUNT {
            return Err(Refused::Crowded(2));
        }
        waiting.push_back(item);
        self.length += 1;
        Ok(())
    }

    /// Takes the next login.
    pub fn pop(&mut self) -> Option<T> {
        let mut address = self.addresses.pop_front()?;
        let mut account = address.members.pop_front()?;
        let item = account.members.pop_front()?;
        self.length -= 1;
        if !account.members.is_empty() {
            address.members.push_back(account);
        }
        if !address.members.is_empty() {
            self.addresses.push_back(address);
        }
        Some(item)
    }
}
