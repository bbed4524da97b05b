//! The words of the state machine: phases, operations, and all that a decision may look at.
//!
//! A *lock* phase says that exactly one operation owns the disk; it is written before the operation
//! is queued, and only the end of that operation leaves it. [`Facts`] is everything the table looks
//! at, as plain data; the table itself is in [`crate::table`].

use std::fmt;

/// How far a disk got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not formatted by Mainstay.
    Unprovisioned,
    /// Lock: it is being formatted, or wiped.
    Formatting,
    /// It has a filesystem (or physical volume) that we made or adopted.
    Formatted,
    /// Lock: it is being mounted.
    Mounting,
    /// It is mounted where we want it.
    Mounted,
    /// Lock: it is being taken out of the mount table.
    Unmounting,
    /// Lock: it is being registered as a pool.
    Provisioning,
    /// It is a pool.
    Provisioned,
    /// Lock: it is being emptied and taken out of use.
    Unprovisioning,
    /// Something went wrong; only a person leads out of here.
    Failed,
}

impl Phase {
    /// Every phase, in the order a disk meets them.
    pub const ALL: [Self; 10] = [
        Self::Unprovisioned,
        Self::Formatting,
        Self::Formatted,
        Self::Mounting,
        Self::Mounted,
        Self::Unmounting,
        Self::Provisioning,
        Self::Provisioned,
        Self::Unprovisioning,
        Self::Failed,
    ];

    /// Its name in `status.provisionPhase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unprovisioned => "Unprovisioned",
            Self::Formatting => "Formatting",
            Self::Formatted => "Formatted",
            Self::Mounting => "Mounting",
            Self::Mounted => "Mounted",
            Self::Unmounting => "Unmounting",
            Self::Provisioning => "Provisioning",
            Self::Provisioned => "Provisioned",
            Self::Unprovisioning => "Unprovisioning",
            Self::Failed => "Failed",
        }
    }

    /// The phase of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == name)
    }

    /// Whether an operation owns the disk.
    #[must_use]
    pub fn is_lock(self) -> bool {
        use Phase::{Formatting, Mounting, Provisioning, Unmounting, Unprovisioning};
        matches!(self, Formatting | Mounting | Unmounting | Provisioning | Unprovisioning)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Make a filesystem, or wipe for LVM.
    Format,
    /// Mount it.
    Mount,
    /// Unmount it.
    Unmount,
    /// Tell what uses disks about it; for LVM, make the group first.
    Register,
    /// Empty it, then tell what uses disks that it is gone.
    Deregister,
    /// Bring the tags up to date; changes no phase.
    Sync,
}

impl Operation {
    /// Its name in `status.operation.kind`, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Format => "Format",
            Self::Mount => "Mount",
            Self::Unmount => "Unmount",
            Self::Register => "Register",
            Self::Deregister => "Deregister",
            Self::Sync => "Sync",
        }
    }

    /// The phase it owns the disk in; `None` if it changes no phase.
    #[must_use]
    pub fn lock(self) -> Option<Phase> {
        match self {
            Self::Format => Some(Phase::Formatting),
            Self::Mount => Some(Phase::Mounting),
            Self::Unmount => Some(Phase::Unmounting),
            Self::Register => Some(Phase::Provisioning),
            Self::Deregister => Some(Phase::Unprovisioning),
            Self::Sync => None,
        }
    }

    /// The operation that owns the disk in a lock phase.
    #[must_use]
    pub fn of(phase: Phase) -> Option<Self> {
        [Self::Format, Self::Mount, Self::Unmount, Self::Register, Self::Deregister]
            .into_iter()
            .find(|operation| operation.lock() == Some(phase))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a disk is provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioner {
    /// A mounted filesystem.
    Filesystem,
    /// A volume group; it is never mounted.
    Lvm,
}

/// The contents of the disk, compared with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It is blank.
    Blank,
    /// The recorded UUID: made or adopted by Mainstay.
    Ours,
    /// A supported filesystem, and no UUID is recorded.
    Adoptable,
    /// A supported filesystem with another UUID than recorded.
    Foreign,
    /// A partition table.
    Partitioned,
    /// Anything else: LUKS, MD, swap, an unsupported filesystem, or several at once.
    Other,
}

/// Why a pool cannot be used although its disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk has another filesystem or physical volume than the recorded one.
    FilesystemChanged,
    /// The recorded filesystem or physical volume is no longer on the disk.
    FilesystemMissing,
    /// The filesystem is mounted for reading only.
    ReadOnly,
}

impl Fault {
    /// Its reason in conditions and failures.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::FilesystemChanged => "FilesystemChanged",
            Self::FilesystemMissing => "FilesystemMissing",
            Self::ReadOnly => "ReadOnly",
        }
    }
}

/// Where the disk is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mount {
    /// Nowhere.
    Nowhere,
    /// At our point, once, by this disk.
    Right,
    /// Somewhere else only.
    Elsewhere,
    /// At our point, with another mount over or under it.
    Stacked,
    /// Not it, but something else is at our point.
    WrongSource,
}

/// The record of the disk at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// There is nowhere to register: the node is not known yet.
    NoNode,
    /// It is not registered.
    Missing,
    /// It is registered as it should be.
    Equal,
    /// It is registered with another path.
    OtherPath,
    /// It is registered with other tags.
    OtherTags,
}

impl Record {
    /// Whether the backend has a record of the disk.
    #[must_use]
    pub fn exists(self) -> bool {
        matches!(self, Self::Equal | Self::OtherPath | Self::OtherTags)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Well.
    Ok,
    /// mount found no filesystem, or a damaged one.
    BadSuperblock,
    /// umount found it in use.
    Busy,
    /// It took too long and was ended, or could not be.
    Timeout,
    /// Any other error.
    Error,
    /// The record changed meanwhile.
    Conflict,
    /// The node's own object went away.
    NodeGone,
    /// Replicas are still there.
    ReplicasRemain,
    /// It ended after it had been given up.
    Late,
}

/// Why the table is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Something may have changed: a scan, an event, an edit, a restart.
    Look,
    /// An operation ended.
    Ended(Ending),
}

/// A person's reason to try a failed disk again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retrigger {
    /// There is none.
    None,
    /// `spec.retry` has a new value.
    Retry,
    /// It was corrupted, and was declared repaired.
    Repaired,
    /// It was corrupted, and formatting was asked for anew.
    Force,
}

/// All that a decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Why the table is asked.
    pub input: Input,
    /// The object belongs to another node, or is being deleted.
    pub not_ours: bool,
    /// The disk is there.
    pub active: bool,
    /// It shall be a pool.
    pub want: bool,
    /// Formatting was asked for and not done yet, or again because it is corrupted.
    pub request: bool,
    /// Auto-provisioning asked for it, not a person.
    pub auto: bool,
    /// The safety gate lets it pass. Only asked while there is a request.
    pub gate: bool,
    /// How it is provisioned.
    pub provisioner: Provisioner,
    /// Its contents.
    pub content: Content,
    /// Where it is mounted.
    pub mount: Mount,
    /// A person allowed exactly this filesystem to be taken over from another mount point.
    pub adopt: bool,
    /// Why it cannot be used as a pool although it is attached.
    pub fault: Option<Fault>,
    /// It could not be mounted because it is damaged.
    pub corrupted: bool,
    /// A person says it was repaired.
    pub repaired: bool,
    /// Its record at the backend.
    pub record: Record,
    /// A replica is on it.
    pub replicas: bool,
    /// It is closed for new replicas where it is used.
    pub closed: bool,
    /// A person's reason to try again.
    pub retrigger: Retrigger,
    /// Its device lease is free.
    pub lease_free: bool,
}

impl Facts {
    /// A disk that is there, blank, unwanted, and inspected.
    #[must_use]
    pub fn blank() -> Self {
        Self {
            input: Input::Look,
            not_ours: false,
            active: true,
            want: false,
            request: false,
            auto: false,
            gate: false,
            provisioner: Provisioner::Filesystem,
            content: Content::Blank,
            mount: Mount::Nowhere,
            adopt: false,
            fault: None,
            corrupted: false,
            repaired: false,
            record: Record::Missing,
            replicas: false,
            closed: false,
            retrigger: Retrigger::None,
            lease_free: true,
        }
    }

    /// Whether a pool is registered on it, or a replica is on it: it is neither unmounted nor formatted
    /// before it is emptied.
    #[must_use]
    pub fn pooled(&self) -> bool {
        self.record.exists() || self.replicas
    }

    /// The phase a disk is in by what can be seen alone. Never a lock phase. A disk that is registered
    /// is not Unprovisioned before its record is removed, unless a new format was asked for.
    #[must_use]
    pub fn derive(&self) -> Phase {
        let mounts = self.provisioner == Provisioner::Filesystem;
        let kept = self.pooled() && self.retrigger != Retrigger::Force && (mounts || !self.want);
        match (self.mount, self.content) {
            _ if self.pooled() && self.retrigger == Retrigger::Force => Phase::Provisioned,
            (Mount::Right, _) if mounts && (self.want || !kept) => Phase::Mounted,
            _ if kept => Phase::Formatted,
            _ if self.retrigger == Retrigger::Repaired && mounts => Phase::Formatted,
            (_, Content::Ours) => Phase::Formatted,
            _ => Phase::Unprovisioned,
        }
    }
}
