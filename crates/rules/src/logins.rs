//! Limits the work that password checks can cause: concurrency, waiting and lockout.
//!
//! Passwords are verified slowly and with much memory on purpose. At most [`AT_ONCE`] hashes are
//! computed at a time, each on a thread of low priority, in memory that is reused and freed when
//! idle. Waiting logins are in a short queue ([`line::Line`]) that is fair between source addresses
//! and between their accounts; a login beyond its limits is refused at once. Wrong passwords delay
//! further attempts on the account from the same address ([`lockout`]). An unknown account costs
//! the same as a known one.

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

/// How long idle memory for hashes is kept.
const KEPT: Duration = Duration::from_secs(30);

/// A stored hash that needs more than this was not made here.
const MOST_BLOCKS: usize = 64 << 10;

/// The niceness of the threads that compute hashes.
const NICENESS: i32 = 10;

/// Why a password is not verified now.
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
    /// Seconds after which to retry.
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
    /// Idle memory.
    memory: Vec<Memory>,
    /// The number of hashes computed so far.
    hashed: u64,
    /// A task is running that frees idle memory.
    watched: bool,
}

/// The working memory of one hash.
struct Memory(Vec<Block>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} blocks", self.0.len())
    }
}

/// Verifies all passwords of a server.
#[derive(Clone, Debug, Default)]
pub struct Logins(Arc<Mutex<State>>);

/// One of the slots in which hashes are computed.
#[derive(Debug)]
pub struct Turn {
    logins: Logins,
}

impl Logins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Waits for a slot to verify a password of this account.
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
        // Other logins of this account may have failed meanwhile.
        let may_try = self.state().may_try(account, from, now());
        may_try.map(|()| turn)
    }

    /// Records the result of a login.
    pub fn ended(&self, account: &Account, from: Network, right: bool, now: Micros) {
        let lockout = &mut self.state().lockout;
        match right {
            true => lockout.passed(account, from),
            false => lockout.failed(account, from, now),
        }
    }

    /// Frees memory after a time without logins.
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
    /// Frees memory if no hash was computed since there were `before`; returns whether it did.
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
            // If the receiver is gone, the turn is dropped and passes to the next login.
            drop(next.send(Turn { logins: self.logins.clone() }));
        }
    }
}

impl Turn {
    /// Whether the password matches the hash.
    pub async fn is_password(self, password: String, hash: String) -> bool {
        self.compute(move |memory| is_password(&password, &hash, memory)).await.unwrap_or(false)
    }

    /// The hash that is stored for a password.
    pub async fn hash(self, password: String) -> crate::error::Result<String> {
        let hashed = self.compute(move |_| crate::identity::hash_password(&password)).await;
        hashed.ok_or_else(|| crate::error::Error::Internal("hashing a password failed".into()))?
    }

    /// Computes a hash on its own thread. The slot stays taken until the thread ends, also if the
    /// caller is gone.
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
            // Best effort: the hash is right at any priority.
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

/// Whether the password matches the hash, computed in the given memory.
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
        // Every byte is compared, so the duration says nothing about the hash.
        let differs = found.iter().zip(expected.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        Some(differs == 0)
    };
    computed().unwrap_or(false)
}

#[cfg(test)]
mod tests;
