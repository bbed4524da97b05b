//! How an operation ended, and the locks it held on its disk.

use futures_util::future::BoxFuture;
use mainstay_host::{Device, Disk, Lock, Trouble};

use crate::lease::Lease;
use crate::phase::Ending;
use crate::report::Account;

/// How an operation ended, and what the status reports about it.
pub(super) struct End {
    pub(super) ending: Ending,
    pub(super) account: Account,
    /// The disk as the operation left it, if that changed it.
    pub(super) disk: Option<Disk>,
    /// Completes when a process that could not be killed has ended by itself.
    pub(super) stuck: Option<BoxFuture<'static, ()>>,
}

impl End {
    pub(super) fn well(message: impl Into<String>) -> Self {
        let account = Account { message: message.into(), ..Account::default() };
        Self { ending: Ending::Ok, account, disk: None, stuck: None }
    }

    /// The same, with the disk as the operation left it.
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

    /// Its label in the metrics.
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

/// A disk that no one else may use while an operation runs: it has the lease within this process and the
/// lock against all others.
pub(super) struct LockedDisk {
    pub(super) disk: Disk,
    pub(super) lock: Lock,
    pub(super) _lease: Lease,
}

impl LockedDisk {
    /// The same, with the disk as it is now; `None` if it is another disk.
    pub(super) fn over(self, disk: &Disk) -> Option<Self> {
        let same = Device::of(disk) == Device::of(&self.disk);
        same.then(|| Self { disk: disk.clone(), ..self })
    }
}
