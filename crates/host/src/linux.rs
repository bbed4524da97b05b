//! A real machine: sysfs and udev's database, the mount table, uevents, and the usual
//! programs.
//!
//! Reading a disk may hang for ever (a frozen device, a dead path), so it is done on a thread of its
//! own with a deadline, and never twice at once for one disk. The module `cmd` runs programs.

mod act;
mod blank;
mod cmd;
mod listen;
mod mounts;
mod probe;
mod sysfs;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tokio::sync::Mutex as AsyncMutex;

use self::blank::Blanks;
use self::cmd::Programs;
use self::listen::PendingEvents;
pub use self::sysfs::Roots;
use crate::glob;
use crate::{
    Act, Class, Contents, Disk, Group, Host, Inspection, Lock, MountLine, Place, Signature, Space,
    Trouble, Wake,
};

/// How long reading a disk may take.
const PROBE: Duration = Duration::from_secs(10);

/// How a machine is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the kernel's trees are.
    pub roots: Roots,
    /// Where the audit log and the copies of erased signatures are kept.
    pub state_dir: PathBuf,
    /// Patterns of loop devices that count as disks; none if there is none.
    pub loops: Vec<String>,
    /// Where programs are looked for first, if not where the environment says.
    pub path: Option<std::ffi::OsString>,
}

/// A real machine.
#[derive(Debug)]
pub struct LinuxHost {
    inner: Arc<Inner>,
    programs: Programs,
    events: Arc<PendingEvents>,
    mounts: mounts::Own,
    /// LVM's own commands are run one at a time.
    lvm: AsyncMutex<()>,
    _listener: listen::Listener,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    /// Disks a thread reads, or is stuck on.
    reading: Mutex<BTreeSet<String>>,
    ended: tokio::sync::Notify,
    blanks: Blanks,
    /// Loop devices with their backing files, and the kernel's state when they were read.
    loops: Mutex<(String, Vec<(String, String)>)>,
}

impl LinuxHost {
    /// This machine. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the kernel's events cannot be received, or the state folder cannot be made.
    pub fn new(options: Options) -> std::io::Result<Self> {
        let mut folder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(folder.recursive(true), 0o700)
            .create(&options.state_dir)?;
        let events = Arc::new(PendingEvents::default());
        let listener = listen::Listener::start(&options.roots.proc, events.clone())?;
        let programs = Programs::find(options.path.clone(), options.state_dir.clone());
        let mounts = mounts::Own::new(&options.roots.proc);
        let ended = tokio::sync::Notify::new();
        let (reading, blanks) = (Mutex::default(), Blanks::default());
        let inner = Arc::new(Inner { options, reading, ended, blanks, loops: Mutex::default() });
        let lvm = AsyncMutex::new(());
        Ok(Self { inner, programs, events, mounts, lvm, _listener: listener })
    }

    fn roots(&self) -> &Roots {
        &self.inner.options.roots
    }

    /// Reads on a thread of its own, with a deadline.
    async fn read<T: Send + 'static>(
        &self,
        what: &str,
        name: &str,
        read: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let inner = self.inner.clone();
        let free = async {
            loop {
                let ended = inner.ended.notified();
                let mut ended = std::pin::pin!(ended);
                ended.as_mut().enable();
                if inner.begin(name) {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout(PROBE, free).await.is_err() {
            return Err(Trouble::Busy(format!("{name} has not answered yet")));
        }
        let inner = self.inner.clone();
        let owned = name.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let read = read(&inner);
            inner.end(&owned);
            read
        });
        match tokio::time::timeout(PROBE, reading).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(error)) => Err(Trouble::Failed(format!("{what} of {name}: {error}"))),
            Err(_) => Err(Trouble::TimedOut(format!("{what} of {name} did not answer"))),
        }
    }

    /// Adds the signatures that wipefs finds, and (`last`, before the first byte) those of blkid where there are any,
    /// which tells when it is not clear what a disk holds; and the groups of physical volumes.
    #[expect(clippy::disallowed_methods, reason = "dates what was read from the device just now")]
    async fn thorough(
        &self,
        disk: &Disk,
        contents: &mut Contents,
        last: bool,
    ) -> Result<(), Trouble> {
        let path = disk.path.clone();
        let run = |program, arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(|word| (*word).to_owned()).collect();
            async move { self.programs.run(program, &arguments, None, PROBE).await }
        };
        let (written, now) = (self.roots().written(&disk.name), tokio::time::Instant::now());
        if last && contents.is_blank() && self.inner.blanks.holds(disk, written, now) {
            return Ok(());
        }
        let wipefs = run("wipefs", &["--no-act", "--json", &path]).await?;
        if !wipefs.ok() {
            contents.unreadable = Some(format!("wipefs: {}", wipefs.complaint()));
        }
        contents.add(act::wipefs_signatures(&wipefs.out));
        if contents.is_blank() {
            self.inner.blanks.note(disk, written, now);
        }
        // Where nothing at all was found there is nothing that could contradict itself.
        if last && !contents.is_blank() {
            let blkid = run("blkid", &["-p", "-o", "export", &path]).await?;
            match blkid.code {
                Some(0 | 2) => {}
                Some(8) => contents.ambiguous = true,
                _ => contents.unreadable = Some(format!("blkid: {}", blkid.complaint())),
            }
            contents.add(act::blkid_signatures(&blkid.out));
        }
        if contents.signatures.iter().any(|known| known.class == Class::Lvm) {
            for group in self.groups_of(&path).await? {
                contents.signatures.push(Signature {
                    class: Class::Lvm,
                    name: format!("vg:{group}"),
                    uuid: String::new(),
                    label: String::new(),
                    offset: 0,
                });
            }
        }
        Ok(())
    }
}

impl Inner {
    fn begin(&self, name: &str) -> bool {
        self.reading.lock().insert(name.to_owned())
    }

    fn end(&self, name: &str) {
        self.reading.lock().remove(name);
        self.ended.notify_waiters();
    }

    fn is_loop_wanted(&self, path: &str) -> bool {
        self.options.loops.iter().any(|pattern| glob::matches(pattern, path))
    }

    /// One disk with its contents.
    fn look(&self, name: &str) -> Option<Disk> {
        let roots = &self.options.roots;
        let mut disk = roots.disk(name, &|path| self.is_loop_wanted(path))?;
        let file = match File::open(&disk.path) {
            Ok(file) => file,
            Err(error) => {
                disk.contents.unreadable = Some(error.to_string());
                return Some(disk);
            }
        };
        match probe::probe(&file, disk.size, disk.logical_block) {
            Ok(contents) => disk.contents = contents,
            Err(error) => disk.contents.unreadable = Some(error.to_string()),
        }
        self.look_into(&mut disk, &file);
        Some(disk)
    }

    /// Reads the types of partitions that udev does not know.
    fn look_into(&self, disk: &mut Disk, file: &File) {
        let types = match disk.partitions.iter().any(|part| part.kind.is_empty()) {
            true => probe::partition_types(file, disk.logical_block).unwrap_or_default(),
            false => Vec::new(),
        };
        let roots = &self.options.roots;
        let folder = Path::new(&disk.path).parent().unwrap_or(&roots.dev).to_owned();
        for part in &mut disk.partitions {
            let index = roots.partition_index(&disk.name, &part.name);
            if part.kind.is_empty()
                && let Some((_, kind)) = types.iter().find(|(number, _)| *number == index)
            {
                part.kind.clone_from(kind);
            }
            if part.filesystem.is_empty()
                && let Ok(file) = File::open(folder.join(&part.name))
                && let Ok(contents) = probe::probe(&file, u64::MAX >> 1, disk.logical_block)
                && let Some(found) = contents.of_class(Class::Filesystem)
            {
                part.filesystem.clone_from(&found.name);
                part.label.clone_from(&found.label);
            }
        }
    }

    /// The parts of an inspection that need no program.
    fn inspect(&self, disk: &Disk, locked: bool) -> Inspection {
        let roots = &self.options.roots;
        let mut inspection = Inspection {
            contents: disk.contents.clone(),
            holders: disk.holders.clone(),
            loops: self.loops_on(disk),
            multipath_member: roots.is_member(&disk.name),
            ..Inspection::default()
        };
        match roots.bound(&disk.name) {
            None => inspection.changed = Some(format!("{} is not there any more", disk.path)),
            Some((number, diskseq, size)) => {
                if (&number, diskseq, size) != (&disk.number, disk.diskseq, disk.size) {
                    inspection.changed = Some(format!(
                        "{} is now {number} (sequence {diskseq}, {size} bytes)",
                        disk.path
                    ));
                }
            }
        }
        // Only under the lock: an inspection must not block the mkfs of another process.
        let held = if locked { Ok(None) } else { lock(disk).map(Some) };
        let mut alone = false;
        match &held {
            Ok(_) => {
                let opened = exclusive(&disk.path);
                alone = opened.as_ref().is_ok_and(is_device);
                inspection.exclusive = opened.err().map(|error| error.to_string());
            }
            Err(trouble) => inspection.lock = Some(trouble.message().to_owned()),
        }
        // The kernel opens no disk exclusively that is mounted or swapped to anywhere.
        if !alone {
            self.users(disk, &mut inspection);
        }
        inspection.audit = self.audit_log().err().map(|error| error.to_string());
        inspection
    }

    /// Loop devices that stand on a disk or on one of its partitions. The kernel sends an
    /// event for every loop device that is made or removed: without events they are unchanged.
    fn loops_on(&self, disk: &Disk) -> Vec<String> {
        let roots = &self.options.roots;
        let (events, paths) = (roots.event_count(), roots.paths(disk));
        let mut known = self.loops.lock();
        if events.is_empty() || known.0 != events {
            *known = (events, roots.loops());
        }
        let on = known.1.iter().filter(|(_, backing)| paths.contains(backing));
        on.map(|(name, _)| name.clone()).collect()
    }

    /// Finds the users of a disk: mounts in every namespace, and swap spaces.
    fn users(&self, disk: &Disk, inspection: &mut Inspection) {
        let roots = &self.options.roots;
        let numbers = roots.numbers(disk);
        let is_part = |source: &str| {
            let name = source.rsplit('/').next().unwrap_or_default();
            disk.partitions.iter().any(|part| part.name == name)
        };
        let wanted = |number: &str, source: &str| {
            numbers.iter().any(|known| known == number) || source == disk.path || is_part(source)
        };
        for (process, line) in mounts::everywhere(&roots.proc, wanted) {
            if ["/", "/boot", "/boot/efi", "/usr", "/var"].contains(&line.point.as_str()) {
                inspection.system.get_or_insert_with(|| line.point.clone());
            }
            inspection.mounts.push(format!("{} (as process {process} sees it)", line.point));
        }
        for swap in mounts::swaps(&roots.proc) {
            let name = swap.rsplit('/').next().unwrap_or_default();
            let number = sysfs::line(&roots.class(name).join("dev"));
            if swap == disk.path || numbers.contains(&number) {
                inspection.system.get_or_insert_with(|| format!("swap on {swap}"));
            }
        }
    }

    fn audit_log(&self) -> std::io::Result<File> {
        let file = self.options.state_dir.join("audit.log");
        std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file)
    }
}

/// Opens a disk exclusively.
fn exclusive(path: &str) -> std::io::Result<File> {
    let flags = OFlags::EXCL.bits().cast_signed();
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Whether a file is a disk, not one that stands in for it.
fn is_device(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.file_type().is_block_device())
}

/// Locks a disk.
fn lock(disk: &Disk) -> Result<Lock, Trouble> {
    let path = &disk.path;
    let file = File::open(path).map_err(|error| Trouble::Gone(format!("{path}: {error}")))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { file: Some(file), guard: None }),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Trouble::Busy(format!("another process has the lock of {path}")))
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Trouble::Failed(format!("{path} cannot be locked: {error}")))
        }
    }
}

impl Host for LinuxHost {
    fn boot_id(&self) -> String {
        sysfs::line(&self.roots().proc.join("sys/kernel/random/boot_id"))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<String>, Trouble>> {
        async move {
            self.read("the list", "all disks", |inner| {
                let roots = &inner.options.roots;
                let wanted = |path: &str| inner.is_loop_wanted(path);
                let names = roots.all().into_iter();
                names.filter(|name| roots.disk(name, &wanted).is_some()).collect()
            })
            .await
        }
        .boxed()
    }

    fn look<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Disk>, Trouble>> {
        async move {
            let owned = name.to_owned();
            match self.read("the content", name, move |inner| inner.look(&owned)).await {
                Err(trouble @ (Trouble::TimedOut(_) | Trouble::Busy(_))) => {
                    // It is there, but its content is unknown: nothing is done to it.
                    let wanted = |path: &str| self.inner.is_loop_wanted(path);
                    let mut disk = self.roots().disk(name, &wanted);
                    if let Some(disk) = &mut disk {
                        disk.contents.unreadable = Some(trouble.message().to_owned());
                    }
                    Ok(disk)
                }
                other => other,
            }
        }
        .boxed()
    }

    fn mounts(&self) -> BoxFuture<'_, Result<Arc<[MountLine]>, Trouble>> {
        let table = self.mounts.lines();
        let table = table.map_err(|error| Trouble::Failed(format!("the mount table: {error}")));
        std::future::ready(table).boxed()
    }

    fn changed(&self) -> BoxFuture<'_, Vec<Wake>> {
        self.events.take().boxed()
    }

    fn inspect<'a>(&'a self, disk: &'a Disk, locked: bool) -> BoxFuture<'a, Inspection> {
        async move {
            let owned = disk.clone();
            let read =
                self.read("the state", &disk.name, move |inner| inner.inspect(&owned, locked));
            let mut inspection = match read.await {
                Ok(inspection) => inspection,
                Err(trouble) => {
                    let silent = Some(trouble.message().to_owned());
                    return Inspection { silent, ..Inspection::default() };
                }
            };
            let mut contents = inspection.contents.clone();
            match self.thorough(disk, &mut contents, locked).await {
                Ok(()) => inspection.contents = contents,
                Err(trouble) => inspection.silent = Some(trouble.message().to_owned()),
            }
            inspection
        }
        .boxed()
    }

    fn lock<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, Result<Lock, Trouble>> {
        let locked = lock(disk).and_then(|held| {
            let now = sysfs::line(&self.roots().sys.join("block").join(&disk.name).join("diskseq"));
            if now.parse::<u64>().unwrap_or(0) == disk.diskseq {
                Ok(held)
            } else {
                Err(Trouble::Gone(format!("another disk was attached as {}", disk.path)))
            }
        });
        std::future::ready(locked).boxed()
    }

    fn is_busy<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, bool> {
        std::future::ready(exclusive(&disk.path).is_err()).boxed()
    }

    fn commands(&self, disk: &Disk, act: &Act) -> Vec<Vec<String>> {
        let commands = act::commands(&disk.path, act).into_iter();
        commands.map(|(program, arguments)| self.programs.line(program, &arguments)).collect()
    }

    fn operate<'a>(
        &'a self,
        disk: &'a Disk,
        act: &'a Act,
        lock: &'a Lock,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        self.carry_out(disk, act, lock, limit).boxed()
    }

    fn space<'a>(
        &'a self,
        place: &'a Place,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Space, Trouble>> {
        async move {
            match place {
                Place::Filesystem { point } => {
                    let owned = point.clone();
                    let read = self.read("the space", point, move |_| rustix::fs::statvfs(&owned));
                    let stat = read.await?;
                    let stat =
                        stat.map_err(|error| Trouble::Failed(format!("{point}: {error}")))?;
                    let unit = stat.f_frsize;
                    let (size, free) = (stat.f_blocks * unit, stat.f_bavail * unit);
                    let read_only = stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
                    Ok(Space { size, free, extent: 4 << 20, read_only })
                }
                Place::Group { name } => self.group_space(name, path).await,
            }
        }
        .boxed()
    }

    fn groups(&self) -> BoxFuture<'_, Result<Vec<Group>, Trouble>> {
        async move {
            let _alone = self.lvm.lock().await;
            self.all_groups().await
        }
        .boxed()
    }

    fn audit<'a>(&'a self, line: &'a str) -> BoxFuture<'a, Result<(), String>> {
        tracing::warn!(target: "audit", line, "destructive disk operation");
        let (inner, text) = (self.inner.clone(), format!("{line}\n"));
        let written = tokio::task::spawn_blocking(move || {
            let mut log = inner.audit_log()?;
            log.write_all(text.as_bytes())?;
            log.sync_data()
        });
        async move {
            match written.await {
                Ok(written) => written.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }
        .boxed()
    }
}
