//! Passwords are judged slowly and with much memory on purpose; here is how much of that strangers
//! can make us do.
//!
//! At most [`AT_ONCE`] hashes are computed at a time, each on a thread of low priority with memory
//! that is used again and given back after a while. Whoever waits stands in a short line
//! ([`line::Line`]) that is fair between source addresses and between their accounts; beyond it a
//! login is refused at once. Wrong passwords make their account wait longer and longer at that
//! address ([`lockout`]). An account that does not exist costs the same as one that does.

pub mod line;
pub mod lockout;

use std::sync::Arc;
use std::time::Duration;

use argon2::{Algorithm, Argon2, Block, Params, PasswordHash, Version};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use self::line::Line;
use self::lockout::{Account, Lockout, Network};
use crate::api::{Micros, SECOND};

/// Hashes computed at a time; each takes about 19 MiB.
pub const AT_ONCE: usize = 2;

/// How long a login waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long memory for hashes is kept when nobody logs in.
const KEPT: Duration = Duration::from_secs(30);

/// A hash that asks for more than this was not made here.
const MOST_BLOCKS: usize = 64 << 10;

/// How much nicer than others the threads are that compute hashes.
const NICENESS: i32 = 10;

/// Why a password is not judged now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many wrong passwords.
    #[error("too many wrong passwords; try again in {0} s")]
    LockedOut(u64),
    /// Too many logins from this address are waiting.
    #[error("too many logins are waiting at this address; try again in {0} s")]
    Crowded(u64),
    /// Too many logins are waiting in all, or one has waited too long.
    #[error("too many logins are waiting; try again in {0} s")]
    Busy(u64),
}

impl Refused {
    /// After how many seconds to try again.
    #[must_use]
    pub fn retry_after(self) -> u64 {
        let (Self::LockedOut(after) | Self::Crowded(after) | Self::Busy(after)) = self;
        after
    }
}

#[derive(Debug, Default)]
struct State {
    lockout: Lockout,
    line: Line<oneshot::Sender<Turn>>,
    running: usize,
    /// Memory that no hash uses.
    memory: Vec<Memory>,
    /// Grows with each hash.
    hashed: u64,
    /// Somebody will look whether the memory is still needed.
    watched: bool,
}

/// What one hash is computed in.
struct Memory(Vec<Block>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} blocks", self.0.len())
    }
}

/// Where all passwords of a server are judged.
#[derive(Clone, Debug, Default)]
pub struct Logins(Arc<Mutex<State>>);

/// One of the places at which hashes are computed.
#[derive(Debug)]
pub struct Turn {
    logins: Logins,
}

impl Logins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Waits until a password of this account may be judged.
    pub async fn turn(
        &self,
        account: &Account,
        from: Network,
        now: &(dyn Fn() -> Micros + Sync),
    ) -> Result<Turn, Refused> {
        let waiting = {
            let mut state = self.state();
            state.may_try(account, from, now())?;
            if state.running < AT_ONCE {
                state.running += 1;
                None
            } else {
                let (call, called) = oneshot::channel();
                state.line.push(from, account.clone(), call)?;
                Some(called)
            }
        };
        let Some(called) = waiting else { return Ok(Turn { logins: self.clone() }) };
        let called = tokio::time::timeout(PATIENCE, called).await;
        let turn = called.map_err(|_| Refused::Busy(1))?.map_err(|_| Refused::Busy(1))?;
        // Others of this account may have failed meanwhile.
        let may_try = self.state().may_try(account, from, now());
        may_try.map(|()| turn)
    }

    /// Remembers how a login ended.
    pub fn ended(&self, account: &Account, from: Network, right: bool, now: Micros) {
        let lockout = &mut self.state().lockout;
        match right {
            true => lockout.passed(account, from),
            false => lockout.failed(account, from, now),
        }
    }

    /// Gives memory back once nobody has logged in for a while.
    fn watch_memory(&self) {
        if std::mem::replace(&mut self.state().watched, true) {
            return;
        }
        let logins = self.clone();
        tokio::spawn(async move {
            loop {
                let before = logins.state().hashed;
                tokio::time::sleep(KEPT).await;
                if logins.state().give_back(before) {
                    return;
                }
            }
        });
    }
}

impl State {
    /// Gives memory back if there were no logins since so many, and says whether it did.
    fn give_back(&mut self, before: u64) -> bool {
        let unused = self.hashed == before && self.running == 0;
        if unused {
            self.memory = Vec::new();
            self.watched = false;
        }
        unused
    }

    fn may_try(&self, account: &Account, from: Network, now: Micros) -> Result<(), Refused> {
        match self.lockout.wait(account, from, now) {
            0 => Ok(()),
            wait => Err(Refused::LockedOut(u64::try_from(wait / SECOND).unwrap_or(0) + 1)),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut state = self.logins.state();
            let next = state.line.pop();
            state.running -= usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            // Whoever went away drops the turn, before or after it arrives: it goes to the next.
            drop(next.send(Turn { logins: self.logins.clone() }));
        }
    }
}

impl Turn {
    /// Whether this is the password that was hashed.
    pub async fn is_password(self, password: String, hash: String) -> bool {
        self.compute(move |memory| is_password(&password, &hash, memory)).await.unwrap_or(false)
    }

    /// The hash under which a password is kept.
    pub async fn hash(self, password: String) -> crate::error::Result<String> {
        let hashed = self.compute(move |_| crate::identity::hash_password(&password)).await;
        hashed.ok_or_else(|| crate::error::Error::Internal("hashing a password failed".into()))?
    }

    /// The place stays taken until the thread is through, also if nobody waits for it any more.
    async fn compute<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Vec<Block>) -> T + Send + 'static,
    ) -> Option<T> {
        let mut memory = {
            let mut state = self.logins.state();
            state.hashed += 1;
            state.memory.pop().unwrap_or(Memory(Vec::new()))
        };
        let (done, result) = oneshot::channel();
        self.logins.watch_memory();
        let thread = move || {
            // Only a wish: the hash is right at any priority.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let answer = work(&mut memory.0);
            self.logins.state().memory.push(memory);
            drop(self);
            drop(done.send(answer));
        };
        std::thread::Builder::new().name("password".to_owned()).spawn(thread).ok()?;
        result.await.ok()
    }
}

/// Whether this is the password that was hashed, computed in the given memory.
fn is_password(password: &str, hash: &str, memory: &mut Vec<Block>) -> bool {
    let mut computed = || {
        let hash = PasswordHash::new(hash).ok()?;
        let (salt, expected) = (hash.salt.as_ref()?, hash.hash.as_ref()?);
        let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
        let version = Version::try_from(hash.version?).ok()?;
        let params = Params::try_from(&hash).ok()?;
        let blocks = params.block_count();
        if blocks > MOST_BLOCKS {
            return None;
        }
        memory.resize(blocks.max(memory.len()), Block::new());
        let mut found = vec![0; expected.len()];
        let argon = Argon2::new(algorithm, version, params);
        let (password, room) = (password.as_bytes(), &mut memory[..blocks]);
        argon.hash_password_into_with_memory(password, salt, &mut found, room).ok()?;
        // Every byte is compared, whatever the others are.
        let differs = found.iter().zip(expected.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        Some(differs == 0)
    };
    computed().unwrap_or(false)
}

#[cfg(test)]
mod tests;
