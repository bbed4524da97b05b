//! How an operation ended, and what held the disk while it ran.

use futures_util::future::BoxFuture;

use crate::host::{Disk, Lock, Trouble};
use crate::lease::{Device, Lease};
use crate::phase::Ending;
use crate::report::Account;

/// How an operation ended, and what is to be said about it.
pub(super) struct End {
    pub(super) ending: Ending,
    pub(super) account: Account,
    /// The disk as the operation left it, if that changed it.
    pub(super) disk: Option<Disk>,
    /// Completes once what could not be ended has ended by itself.
    pub(super) stuck: Option<BoxFuture<'static, ()>>,
}

impl End {
    pub(super) fn well(message: impl Into<String>) -> Self {
        let account = Account { message: message.into(), ..Account::default() };
        Self { ending: Ending::Ok, account, disk: None, stuck: None }
    }

    /// The same, with what became of the disk.
    pub(super) fn seen(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    pub(super) fn made(message: impl Into<String>, uuid: String) -> Self {
        let mut end = Self::well(message);
        end.account.uuid = Some(uuid);
        end
    }

    pub(super) fn badly(ending: Ending, reason: Option<&str>, message: impl Into<String>) -> Self {
        let reason = reason.map(str::to_owned);
        let account = Account { message: message.into(), reason, ..Account::default() };
        Self { ending, account, disk: None, stuck: None }
    }

    /// What the metrics call it.
    pub(super) fn outcome(&self) -> &'static str {
        match (self.ending, self.stuck.is_some()) {
            (Ending::Ok, _) => "ok",
            (Ending::Timeout, true) => "stuck",
            (Ending::Timeout, false) => "timeout",
            _ => "error",
        }
    }
}

impl From<Trouble> for End {
    fn from(trouble: Trouble) -> Self {
        let message = trouble.message().to_owned();
        match trouble {
            Trouble::Failed(_) => Self::badly(Ending::Error, None, message),
            Trouble::BadSuperblock(_) => Self::badly(Ending::BadSuperblock, None, message),
            Trouble::Busy(_) => Self::badly(Ending::Busy, Some("Busy"), message),
            Trouble::Gone(_) => Self::badly(Ending::Error, Some("DeviceGone"), message),
            Trouble::TimedOut(_) => Self::badly(Ending::Timeout, Some("OperationTimeout"), message),
            Trouble::Stuck(_, reaped) => {
                let mut end = Self::badly(Ending::Timeout, Some("OperationTimeout"), message);
                end.account.lease_held = true;
                end.stuck = Some(reaped);
                end
            }
        }
    }
}

/// What holds a disk while an operation runs: the lease of this process, and the lock against all
/// others.
pub(super) struct Hold {
    pub(super) disk: Disk,
    pub(super) lock: Lock,
    pub(super) _lease: Lease,
}

impl Hold {
    /// The same, over the disk as it is now; nothing if it is another.
    pub(super) fn over(self, disk: &Disk) -> Option<Self> {
        let same = Device::of(disk) == Device::of(&self.disk);
        same.then(|| Self { disk: disk.clone(), ..self })
    }
}
