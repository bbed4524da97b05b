//! A machine and its disks: reads them, changes them, and reports kernel events.
//!
//! [`Host`] is the interface; [`linux::LinuxHost`] is a real machine, [`sim::SimHost`] one in memory
//! whose clock tests can move. This crate depends on no other crate of the project but the clock.
//!
//! Every implementation promises: a result was read now, not cached; a destructive call returns only
//! when none of its processes runs any more, or reports that one still does ([`Trouble::Stuck`]).

pub mod glob;
pub mod linux;
pub mod sim;

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// The type of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// With platters.
    Hdd,
    /// Without.
    Ssd,
    /// A floppy disk.
    Fdd,
    /// An optical disc.
    Odd,
    /// The kernel does not tell.
    #[default]
    Unknown,
}

impl Drive {
    /// Its name in the status and in filters.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hdd => "HDD",
            Self::Ssd => "SSD",
            Self::Fdd => "FDD",
            Self::Odd => "ODD",
            Self::Unknown => "Unknown",
        }
    }
}

/// A type of filesystem that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FsType {
    /// ext4.
    #[default]
    Ext4,
    /// xfs.
    Xfs,
}

impl FsType {
    /// Its name, as mkfs and mount know it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// The class of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A filesystem.
    Filesystem,
    /// A partition table.
    PartitionTable,
    /// An encrypted container.
    Luks,
    /// A physical volume, or the group it belongs to.
    Lvm,
    /// A member of a RAID, ZFS pool or cache.
    Raid,
    /// Swap space.
    Swap,
    /// Any other known signature.
    Other,
}

/// A signature on a disk: the sign of a filesystem, a partition table and so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Its class.
    pub class: Class,
    /// Its name, as libblkid has it: ext4, xfs, gpt, LVM2_member.
    pub name: String,
    /// Its UUID, if it has one.
    pub uuid: String,
    /// Its label, if it has one.
    pub label: String,
    /// Where it is, in bytes.
    pub offset: u64,
}

/// The signatures on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Every signature, by offset.
    pub signatures: Vec<Signature>,
    /// The signatures contradict each other.
    pub ambiguous: bool,
    /// Why it could not be read, if it could not.
    pub unreadable: Option<String>,
}

impl Contents {
    /// Whether the disk is certainly blank.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.signatures.is_empty() && !self.ambiguous && self.unreadable.is_none()
    }

    /// Adds signatures that another probe found, unless their names are known.
    pub(crate) fn add(&mut self, found: Vec<Signature>) {
        for found in found {
            if !self.signatures.iter().any(|known| known.name == found.name) {
                self.signatures.push(found);
            }
        }
    }

    /// The names of the signatures, each once, in order: these must be acknowledged.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.signatures.iter().map(|found| found.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The one filesystem, physical volume or swap space on it, if it is that and nothing else.
    #[must_use]
    pub fn only(&self) -> Option<&Signature> {
        match self.signatures.as_slice() {
            [only] if !self.ambiguous => Some(only),
            _ => None,
        }
    }

    /// The first signature of a class.
    #[must_use]
    pub fn of_class(&self, class: Class) -> Option<&Signature> {
        self.signatures.iter().find(|found| found.class == class)
    }
}

/// A partition of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// The kernel's name of it.
    pub name: String,
    /// major:minor.
    pub number: String,
    /// The label of the filesystem on it.
    pub label: String,
    /// The type of the filesystem on it.
    pub filesystem: String,
    /// The type of the partition in the partition table.
    pub kind: String,
}

/// A disk as the machine shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name of it, as sda.
    pub name: String,
    /// Where it is, as /dev/sda.
    pub path: String,
    /// major:minor.
    pub number: String,
    /// The kernel's count of disks attached so far.
    pub diskseq: u64,
    /// How large it is, in bytes.
    pub size: u64,
    /// The size of a sector.
    pub logical_block: u64,
    /// The size of a physical block.
    pub physical_block: u64,
    /// It cannot be written.
    pub read_only: bool,
    /// It can be taken out.
    pub removable: bool,
    /// The type of the drive.
    pub drive: Drive,
    /// SCSI, virtio, NVMe and so on.
    pub controller: String,
    /// Its vendor.
    pub vendor: String,
    /// Its model.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its world wide name, as the kernel reports it.
    pub wwn: String,
    /// Its place on the bus.
    pub bus_path: String,
    /// The memory node it is attached to.
    pub numa: Option<i64>,
    /// It is a map over several paths.
    pub multipath: bool,
    /// The devices that use it: maps, RAIDs, caches.
    pub holders: Vec<String>,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// Its signatures.
    pub contents: Contents,
}

impl Disk {
    /// Whether it has a partition table or partitions.
    #[must_use]
    pub fn is_partitioned(&self) -> bool {
        !self.partitions.is_empty() || self.contents.of_class(Class::PartitionTable).is_some()
    }

    /// Whether a device number is this disk's or one of its partitions'.
    #[must_use]
    pub fn has_number(&self, number: &str) -> bool {
        self.number == number || self.partitions.iter().any(|part| part.number == number)
    }
}

/// A physical disk, within one boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    number: String,
    diskseq: u64,
}

impl Device {
    /// The device of a disk.
    #[must_use]
    pub fn of(disk: &Disk) -> Self {
        Self { number: disk.number.clone(), diskseq: disk.diskseq }
    }
}

/// Everything that decides whether a disk may be erased, besides the disk itself.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The part of the running system that is on it, if one is.
    pub system: Option<String>,
    /// Where it or a part of it is mounted, in any mount namespace.
    pub mounts: Vec<String>,
    /// The error of opening it exclusively; `None` if that worked.
    pub exclusive: Option<String>,
    /// The devices that use it.
    pub holders: Vec<String>,
    /// Loop devices whose backing it is.
    pub loops: Vec<String>,
    /// It is one path of several to the same disk.
    pub multipath_member: bool,
    /// All signatures on it.
    pub contents: Contents,
    /// Why its lock cannot be taken; `None` if it can, or if the caller holds it.
    pub lock: Option<String>,
    /// How it differs from the disk that was read first, if it does.
    pub changed: Option<String>,
    /// The probe that did not answer in time, if one did not.
    pub silent: Option<String>,
    /// All volume groups of the machine, if they were asked for.
    pub groups: Vec<Group>,
    /// Why the audit log cannot be written, if it cannot.
    pub audit: Option<String>,
}

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// major:minor of what is mounted.
    pub number: String,
    /// Where.
    pub point: String,
    /// The source, as it was given to mount.
    pub source: String,
    /// The type of the filesystem.
    pub filesystem: String,
    /// For reading only.
    pub read_only: bool,
}

impl fmt::Display for MountLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at {}", self.source, self.number, self.point)
    }
}

/// An event: a part of the machine that may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// Anything: scan everything.
    Everything,
    /// This disk, by the kernel's name of it.
    Disk(String),
    /// The mount table.
    Mounts,
}

/// An action on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Erase these signatures, keeping copies of them.
    Wipe {
        /// The names that were acknowledged.
        names: Vec<String>,
    },
    /// Make a filesystem on the whole disk.
    MakeFilesystem {
        /// Of this type.
        kind: FsType,
        /// With this UUID.
        uuid: String,
    },
    /// Mount it.
    Mount {
        /// As this type.
        kind: String,
        /// Here.
        point: String,
    },
    /// Unmount.
    Unmount {
        /// From here.
        point: String,
        /// The disk is gone: the last resort is allowed.
        vanished: bool,
    },
    /// Make a physical volume and a group of it.
    MakeGroup {
        /// The name of the group.
        name: String,
        /// Further arguments for vgcreate.
        parameters: Vec<String>,
    },
    /// Remove the group and the physical volume.
    RemoveGroup {
        /// The name of the group.
        name: String,
    },
}

/// Why an action failed.
pub enum Trouble {
    /// It failed.
    Failed(String),
    /// mount found no filesystem, or a damaged one.
    BadSuperblock(String),
    /// The disk or the mount point is in use.
    Busy(String),
    /// It took too long and was killed; none of its processes runs any more.
    TimedOut(String),
    /// It took too long and could not be killed; the future completes when it has ended by itself.
    Stuck(String, BoxFuture<'static, ()>),
    /// The disk is gone.
    Gone(String),
}

impl Trouble {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Failed(text)
            | Self::BadSuperblock(text)
            | Self::Busy(text)
            | Self::TimedOut(text)
            | Self::Stuck(text, _)
            | Self::Gone(text) => text,
        }
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Failed(_) => "Failed",
            Self::BadSuperblock(_) => "BadSuperblock",
            Self::Busy(_) => "Busy",
            Self::TimedOut(_) => "TimedOut",
            Self::Stuck(..) => "Stuck",
            Self::Gone(_) => "Gone",
        };
        f.debug_tuple(word).field(&self.message()).finish()
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Trouble {}

/// A lock on a disk against all other processes of the machine; dropping it releases it.
pub struct Lock {
    /// The locked disk. Children get it as well, so that the lock outlives a killed agent for as
    /// long as they run.
    pub file: Option<File>,
    /// Anything else that is released with it.
    pub guard: Option<Box<dyn Send + Sync>>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The space of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The size.
    pub size: u64,
    /// The free part of it.
    pub free: u64,
    /// The unit of allocation.
    pub extent: u64,
    /// It cannot be written: the filesystem is mounted for reading only.
    pub read_only: bool,
}

/// A volume group of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The path of one of its physical volumes.
    pub path: String,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume group {} (UUID {}, on {})", self.name, self.uuid, self.path)
    }
}

/// A machine.
pub trait Host: Send + Sync + fmt::Debug + 'static {
    /// The id of the current boot.
    fn boot_id(&self) -> String;

    /// The kernel's names of the disks, without those that are never listed.
    fn list(&self) -> BoxFuture<'_, Result<Vec<String>, Trouble>>;

    /// One disk as it is now; `None` if it is not there, or is never listed.
    fn look<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Disk>, Trouble>>;

    /// The mount table as it is now.
    fn mounts(&self) -> BoxFuture<'_, Result<Arc<[MountLine]>, Trouble>>;

    /// Waits for events. Events since the last call are returned at once.
    fn changed(&self) -> BoxFuture<'_, Vec<Wake>>;

    /// Reads everything that decides whether a disk may be erased: users, holders, all signatures,
    /// locks. `disk` is as [`Host::look`] has just returned it. `locked`: the caller holds its lock, and
    /// is about to erase it.
    fn inspect<'a>(&'a self, disk: &'a Disk, locked: bool) -> BoxFuture<'a, Inspection>;

    /// Locks a disk against all other processes; [`Trouble::Busy`] if one has it.
    fn lock<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, Result<Lock, Trouble>>;

    /// Whether another program has the disk open exclusively.
    fn is_busy<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, bool>;

    /// The commands that [`Host::operate`] would run.
    fn commands(&self, disk: &Disk, act: &Act) -> Vec<Vec<String>>;

    /// Performs an action within `limit`. `lock` is the lock of `disk`.
    fn operate<'a>(
        &'a self,
        disk: &'a Disk,
        act: &'a Act,
        lock: &'a Lock,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), Trouble>>;

    /// The space of a mounted filesystem, or of a group whose disk is at `path`.
    fn space<'a>(
        &'a self,
        place: &'a Place,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Space, Trouble>>;

    /// Every volume group of the machine with each of its physical volumes, also of disks that are never
    /// listed.
    fn groups(&self) -> BoxFuture<'_, Result<Vec<Group>, Trouble>>;

    /// Writes a line to the audit log durably, before the first byte of a destructive action.
    ///
    /// # Errors
    /// The reason if it could not be written.
    fn audit<'a>(&'a self, line: &'a str) -> BoxFuture<'a, Result<(), String>>;
}

/// The place of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a mounted filesystem.
    Filesystem {
        /// Where it is mounted.
        point: String,
    },
    /// In a volume group.
    Group {
        /// Its name.
        name: String,
    },
}
