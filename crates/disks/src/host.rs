//! What a machine can tell about its disks, and do to them: the border to the real world.
//!
//! Nothing above [`Host`] knows whether it has a real machine or one in memory, on a clock that can
//! be moved.
//!
//! What every implementation promises: what it tells was read now, never remembered; a destructive
//! call returns only when nothing of it is running any more, or says that something still is
//! ([`Trouble::Stuck`]).

pub mod linux;

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::api::{FsType, Identity};
use crate::gate::Scene;

/// What sort of drive a disk is.
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
    /// Nobody can tell.
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

/// What class of thing a signature stands for.
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
    /// Something else that somebody put there.
    Other,
}

/// Something somebody put on a disk.
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

/// What is on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Every signature, by offset.
    pub signatures: Vec<Signature>,
    /// Whether it is not clear what the disk holds.
    pub ambiguous: bool,
    /// Why it could not be read, if it could not.
    pub unreadable: Option<String>,
}

impl Contents {
    /// Whether there is nothing on it, for certain.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.signatures.is_empty() && !self.ambiguous && self.unreadable.is_none()
    }

    /// Adds what another look found, unless it was known by that name.
    pub(crate) fn add(&mut self, found: Vec<Signature>) {
        for found in found {
            if !self.signatures.iter().any(|known| known.name == found.name) {
                self.signatures.push(found);
            }
        }
    }

    /// The names of what is on it, each once, in order: what must be acknowledged.
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
    /// The type of the partition, as its table says.
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
    /// What sort of drive it is.
    pub drive: Drive,
    /// SCSI, virtio, NVMe and so on.
    pub controller: String,
    /// Who made it.
    pub vendor: String,
    /// What they call it.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its world wide name, as the machine tells it.
    pub wwn: String,
    /// Its place on the bus.
    pub bus_path: String,
    /// The memory node it is attached to.
    pub numa: Option<i64>,
    /// It is a map over several paths.
    pub multipath: bool,
    /// What stands on top of it: maps, RAIDs, caches.
    pub holders: Vec<String>,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// What is on it.
    pub contents: Contents,
}

impl Disk {
    /// What tells it apart, as far as its hardware and content say.
    #[must_use]
    pub fn identity(&self) -> Identity {
        // The UUID of a partition table or of an encrypted container is not the disk's.
        let own = |found: &&Signature| {
            matches!(found.class, Class::Filesystem | Class::Lvm | Class::Swap)
        };
        let uuid = self.contents.only().filter(own).map(|found| found.uuid.as_str());
        Identity {
            uuid: crate::identity::real(uuid.unwrap_or_default()),
            wwn: crate::identity::real(&self.wwn),
            vendor: self.vendor.trim().to_owned(),
            model: self.model.trim().to_owned(),
            serial: crate::identity::real(&self.serial),
            bus_path: self.bus_path.clone(),
        }
    }

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

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// major:minor of what is mounted.
    pub number: String,
    /// Where.
    pub point: String,
    /// What, as it was named.
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

/// What may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// Anything: look at everything.
    Everything,
    /// This disk, by the kernel's name of it.
    Disk(String),
    /// The mount table.
    Mounts,
}

/// What is to be done to a disk.
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

/// Why something was not done.
pub enum Trouble {
    /// It was tried and went wrong.
    Failed(String),
    /// Mount said that this is no filesystem, or a damaged one.
    BadSuperblock(String),
    /// Somebody uses the disk or the mount point.
    Busy(String),
    /// It took too long and was ended; nothing of it runs any more.
    TimedOut(String),
    /// It took too long and could not be ended; the future completes once it has ended by itself.
    Stuck(String, BoxFuture<'static, ()>),
    /// The disk is not there.
    Gone(String),
}

impl Trouble {
    /// What is wrong, in words.
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

/// A disk's lock over all processes of the machine; dropping it lets go.
pub struct Lock {
    /// The locked disk. Children get it as well, so that the lock outlives a killed agent for as
    /// long as they run.
    pub file: Option<File>,
    /// What else is let go with it.
    pub guard: Option<Box<dyn Send + Sync>>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("file", &self.file).finish_non_exhaustive()
    }
}

/// What is known of the space of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// In all.
    pub size: u64,
    /// Of which free.
    pub free: u64,
    /// The unit it is given out in.
    pub extent: u64,
}

/// A machine.
pub trait Host: Send + Sync + fmt::Debug + 'static {
    /// This boot of it.
    fn boot_id(&self) -> String;

    /// The kernel's names of the disks there are, without those that are never listed.
    fn list(&self) -> BoxFuture<'_, Result<Vec<String>, Trouble>>;

    /// One disk as it is now; `None` if it is not there, or is never listed.
    fn look<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Disk>, Trouble>>;

    /// The mount table as it is now.
    fn mounts(&self) -> BoxFuture<'_, Result<Arc<[MountLine]>, Trouble>>;

    /// Waits for something to change. What changed while nobody waited is told at once.
    fn changed(&self) -> BoxFuture<'_, Vec<Wake>>;

    /// Fills in what only the gate looks at: users, holders, all signatures, locks. `disk` is as
    /// [`Host::look`] has just seen it. A scene that names a lock already is one whose asker holds
    /// it.
    fn inspect<'a>(&'a self, disk: &'a Disk, scene: Scene) -> BoxFuture<'a, Scene>;

    /// Locks a disk against all other processes; [`Trouble::Busy`] if one has it.
    fn lock<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, Result<Lock, Trouble>>;

    /// Whether the kernel lets nobody else have the disk: a program works on it.
    fn is_busy<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, bool>;

    /// The commands that [`Host::operate`] would run.
    fn commands(&self, disk: &Disk, act: &Act) -> Vec<Vec<String>>;

    /// Does it, within `limit`. `lock` is the lock of `disk`.
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

    /// Writes a line that survives, before the first byte of something destructive is written.
    ///
    /// # Errors
    /// Why it could not be written.
    fn audit<'a>(&'a self, line: &'a str) -> BoxFuture<'a, Result<(), String>>;
}

/// Where the space of a pool is.
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
