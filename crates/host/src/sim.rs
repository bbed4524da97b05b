//! A machine in memory, with disks that are as slow and as faulty as a test wants.
//!
//! Time is the clock's, so an operation of ten minutes takes none. Two agents may share one machine;
//! its locks hold between them as flock does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::{
    Act, Class, Contents, Disk, Drive, Group, Host, Inspection, Lock, MountLine, Place, Signature,
    Space, Trouble, Wake,
};

/// How an action fails, or how long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It takes this long, and goes well if it is in time.
    Takes(Duration),
    /// It fails at once.
    Fails(String),
    /// It says that there is no filesystem.
    BadSuperblock,
    /// It never ends and cannot be ended, until [`SimHost::thaw`].
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    boot: String,
    disks: BTreeMap<String, Disk>,
    mounts: Vec<MountLine>,
    fates: BTreeMap<(String, &'static str), Fate>,
    locked: BTreeSet<(String, u64)>,
    busy: BTreeSet<String>,
    log: Vec<String>,
    audit: Vec<String>,
    running: usize,
    most: usize,
    looks: u64,
    lists: u64,
    sequence: u64,
    pending: BTreeSet<Wake>,
    /// The space of disks that is not simply their size.
    spaces: BTreeMap<String, Result<Space, String>>,
}

/// A machine in memory. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct SimHost {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Notify,
    frozen: watch::Sender<bool>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The name of an action in the log.
fn word(act: &Act) -> &'static str {
    match act {
        Act::Wipe { .. } => "wipe",
        Act::MakeFilesystem { .. } => "mkfs",
        Act::Mount { .. } => "mount",
        Act::Unmount { .. } => "umount",
        Act::MakeGroup { .. } => "vgcreate",
        Act::RemoveGroup { .. } => "vgremove",
    }
}

impl SimHost {
    /// A machine without disks.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { boot: "boot-1".to_owned(), ..State::default() };
        let shared = Shared {
            clock,
            state: Mutex::new(state),
            changed: Notify::new(),
            frozen: watch::Sender::new(true),
        };
        Self { shared: Arc::new(shared) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    fn notify(&self, wake: Wake) {
        self.state().pending.insert(wake);
        self.shared.changed.notify_one();
    }

    /// A disk of ordinary make, not attached yet.
    #[must_use]
    pub fn disk(name: &str, size: u64) -> Disk {
        Disk {
            name: name.to_owned(),
            path: format!("/dev/{name}"),
            size,
            logical_block: 512,
            physical_block: 4096,
            drive: Drive::Ssd,
            controller: "SCSI".to_owned(),
            vendor: "ACME".to_owned(),
            model: "Disk".to_owned(),
            serial: format!("serial-{name}"),
            bus_path: format!("pci-{name}"),
            ..Disk::default()
        }
    }

    /// Attaches a disk: it gets a number and a sequence of its own.
    pub fn attach(&self, mut disk: Disk) {
        let name = disk.name.clone();
        {
            let mut state = self.state();
            state.sequence += 1;
            disk.diskseq = state.sequence;
            disk.number = format!("8:{}", state.sequence);
            state.disks.insert(name.clone(), disk);
        }
        self.notify(Wake::Disk(name));
    }

    /// Takes a disk away; its mounts stay behind, as they do.
    pub fn detach(&self, name: &str) -> Option<Disk> {
        let disk = self.state().disks.remove(name);
        self.notify(Wake::Disk(name.to_owned()));
        disk
    }

    /// Changes a disk where it is.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Disk)) {
        if let Some(disk) = self.state().disks.get_mut(name) {
            edit(disk);
        }
        self.notify(Wake::Disk(name.to_owned()));
    }

    /// Says that a disk changed, though it did not.
    pub fn poke(&self, name: &str) {
        self.notify(Wake::Disk(name.to_owned()));
    }

    /// Puts a signature on a disk.
    pub fn write_signature(&self, name: &str, class: Class, what: &str, uuid: &str) {
        let signature = Signature {
            class,
            name: what.to_owned(),
            uuid: uuid.to_owned(),
            label: String::new(),
            offset: 0,
        };
        self.edit(name, |disk| disk.contents.signatures = vec![signature]);
    }

    /// Changes the mount table from outside, with an event.
    pub fn edit_mounts(&self, edit: impl FnOnce(&mut Vec<MountLine>)) {
        edit(&mut self.state().mounts);
        self.notify(Wake::Mounts);
    }

    /// Says how an act on a disk goes: `mkfs`, `mount`, `umount`, `wipe`, `vgcreate`, `vgremove`.
    pub fn fate(&self, disk: &str, act: &'static str, fate: Fate) {
        self.state().fates.insert((disk.to_owned(), act), fate);
    }

    /// Sets the space of the pool on a disk, or the error of reading it. Sends no event, as a real
    /// machine sends none.
    pub fn set_space(&self, disk: &str, space: Result<Space, String>) {
        self.state().spaces.insert(disk.to_owned(), space);
    }

    /// Lets everything that hangs end.
    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
    }

    /// Marks a disk as held by a program that is not ours.
    pub fn set_busy(&self, name: &str, busy: bool) {
        let mut state = self.state();
        if busy {
            state.busy.insert(name.to_owned())
        } else {
            state.busy.remove(name)
        };
    }

    /// The next boot: mounts are gone, disks have other numbers.
    pub fn reboot(&self) {
        let mut state = self.state();
        state.boot = format!("{}'", state.boot);
        state.mounts.clear();
        state.locked.clear();
        let disks: Vec<Disk> = std::mem::take(&mut state.disks).into_values().collect();
        for mut disk in disks {
            state.sequence += 1;
            disk.diskseq = state.sequence;
            disk.number = format!("8:{}", state.sequence);
            state.disks.insert(disk.name.clone(), disk);
        }
    }

    /// Everything that was done, as `mkfs sda`, in the order it began.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// How often something was begun, as `mkfs sda`.
    #[must_use]
    pub fn count(&self, entry: &str) -> usize {
        self.state().log.iter().filter(|line| *line == entry).count()
    }

    /// The audit lines.
    #[must_use]
    pub fn audit_lines(&self) -> Vec<String> {
        self.state().audit.clone()
    }

    /// The most acts that ever ran at once.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.state().most
    }

    /// How often single disks, and the list of disks, were read.
    #[must_use]
    pub fn reads(&self) -> (u64, u64) {
        let state = self.state();
        (state.looks, state.lists)
    }

    /// The mount table.
    #[must_use]
    pub fn mount_table(&self) -> Vec<MountLine> {
        self.state().mounts.clone()
    }

    /// One disk as it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Disk> {
        self.state().disks.get(name).cloned()
    }

    async fn work(&self, disk: &Disk, act: &Act, limit: Duration) -> Result<(), Trouble> {
        let fate = self.state().fates.get(&(disk.name.clone(), word(act))).cloned();
        let clock = &self.shared.clock;
        match fate {
            None => Ok(()),
            Some(Fate::Takes(time)) if time <= limit => {
                clock.sleep(time).await;
                Ok(())
            }
            Some(Fate::Takes(_)) => {
                clock.sleep(limit).await;
                Err(Trouble::TimedOut(format!("{} took longer than {limit:?}", word(act))))
            }
            Some(Fate::Fails(why)) => Err(Trouble::Failed(why)),
            Some(Fate::BadSuperblock) => {
                Err(Trouble::BadSuperblock("wrong fs type, bad superblock".to_owned()))
            }
            Some(Fate::Hangs) => {
                clock.sleep(limit).await;
                let mut frozen = self.shared.frozen.subscribe();
                let ended = async move {
                    // The sender lives as long as the machine.
                    let _ = frozen.wait_for(|frozen| !frozen).await;
                };
                Err(Trouble::Stuck(format!("{} cannot be ended", word(act)), ended.boxed()))
            }
        }
    }

    fn carry_out(&self, name: &str, act: &Act) -> Result<(), Trouble> {
        let mut state = self.state();
        match act {
            Act::Unmount { point, .. } => {
                let last = state.mounts.iter().rposition(|line| line.point == *point);
                let last = last.ok_or_else(|| Trouble::Failed(format!("{point}: not mounted")))?;
                state.mounts.remove(last);
                drop(state);
                self.notify(Wake::Mounts);
                return Ok(());
            }
            Act::Mount { kind, point } => {
                let disk = state.disks.get(name);
                let disk = disk.ok_or_else(|| Trouble::Gone(format!("{name} is gone")))?;
                if disk.contents.of_class(Class::Filesystem).is_none() {
                    let text = "wrong fs type, bad option, bad superblock";
                    return Err(Trouble::BadSuperblock(text.to_owned()));
                }
                let line = MountLine {
                    number: disk.number.clone(),
                    point: point.clone(),
                    source: disk.path.clone(),
                    filesystem: kind.clone(),
                    read_only: false,
                };
                state.mounts.push(line);
                drop(state);
                self.notify(Wake::Mounts);
                return Ok(());
            }
            _ => {}
        }
        let disk = state.disks.get_mut(name);
        let disk = disk.ok_or_else(|| Trouble::Gone(format!("{name} is gone")))?;
        let put = |class, name: &str, uuid: &str| Signature {
            class,
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            label: String::new(),
            offset: 1080,
        };
        disk.contents.signatures = match act {
            Act::MakeFilesystem { kind, uuid } => {
                vec![put(Class::Filesystem, kind.as_str(), uuid)]
            }
            Act::MakeGroup { name, .. } => {
                vec![put(Class::Lvm, "LVM2_member", &format!("pv-{name}"))]
            }
            _ => Vec::new(),
        };
        Ok(())
    }
}

/// Counts an act for as long as it runs.
struct Running(SimHost);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

/// Lets go of a lock when it is dropped.
struct Held(SimHost, (String, u64));

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
    }
}

impl Host for SimHost {
    fn boot_id(&self) -> String {
        self.state().boot.clone()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<String>, Trouble>> {
        let mut state = self.state();
        state.lists += 1;
        let names = state.disks.keys().cloned().collect();
        std::future::ready(Ok(names)).boxed()
    }

    fn look<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Disk>, Trouble>> {
        let mut state = self.state();
        state.looks += 1;
        let disk = state.disks.get(name).cloned();
        std::future::ready(Ok(disk)).boxed()
    }

    fn mounts(&self) -> BoxFuture<'_, Result<Arc<[MountLine]>, Trouble>> {
        std::future::ready(Ok(self.state().mounts.clone().into())).boxed()
    }

    fn changed(&self) -> BoxFuture<'_, Vec<Wake>> {
        async move {
            loop {
                let pending = std::mem::take(&mut self.state().pending);
                if !pending.is_empty() {
                    return pending.into_iter().collect();
                }
                self.shared.changed.notified().await;
            }
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, disk: &'a Disk, locked: bool) -> BoxFuture<'a, Inspection> {
        let mut inspection = Inspection { holders: disk.holders.clone(), ..Inspection::default() };
        let state = self.state();
        let now = state.disks.get(&disk.name);
        inspection.contents = now.map_or_else(Contents::default, |disk| disk.contents.clone());
        if now.is_none_or(|now| now.diskseq != disk.diskseq || now.size != disk.size) {
            inspection.changed = Some("another disk took its place".to_owned());
        }
        let mounted = state.mounts.iter().filter(|line| disk.has_number(&line.number));
        inspection.mounts = mounted.map(ToString::to_string).collect();
        if state.busy.contains(&disk.name) {
            inspection.exclusive = Some("Device or resource busy".to_owned());
        }
        if !locked && state.locked.contains(&(disk.number.clone(), disk.diskseq)) {
            inspection.lock = Some("another process has its lock".to_owned());
        }
        drop(state);
        std::future::ready(inspection).boxed()
    }

    fn lock<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, Result<Lock, Trouble>> {
        let key = (disk.number.clone(), disk.diskseq);
        let free = self.state().locked.insert(key.clone());
        let lock = if free {
            Ok(Lock { file: None, guard: Some(Box::new(Held(self.clone(), key))) })
        } else {
            Err(Trouble::Busy(format!("{} is locked by another process", disk.path)))
        };
        std::future::ready(lock).boxed()
    }

    fn is_busy<'a>(&'a self, disk: &'a Disk) -> BoxFuture<'a, bool> {
        let busy = self.state().busy.contains(&disk.name);
        std::future::ready(busy).boxed()
    }

    fn commands(&self, disk: &Disk, act: &Act) -> Vec<Vec<String>> {
        vec![vec![word(act).to_owned(), disk.path.clone()]]
    }

    fn operate<'a>(
        &'a self,
        disk: &'a Disk,
        act: &'a Act,
        _lock: &'a Lock,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), Trouble>> {
        async move {
            {
                let mut state = self.state();
                state.log.push(format!("{} {}", word(act), disk.name));
                state.running += 1;
                state.most = state.most.max(state.running);
            }
            let _running = Running(self.clone());
            self.work(disk, act, limit).await?;
            self.carry_out(&disk.name, act)
        }
        .boxed()
    }

    fn space<'a>(
        &'a self,
        place: &'a Place,
        _path: &'a str,
    ) -> BoxFuture<'a, Result<Space, Trouble>> {
        let state = self.state();
        let of = |number: &str| state.disks.values().find(|disk| disk.number == number);
        let disk = match place {
            Place::Filesystem { point } => {
                let line = state.mounts.iter().find(|line| line.point == *point);
                line.and_then(|line| of(&line.number))
            }
            Place::Group { name } => state.disks.values().find(|disk| {
                disk.contents.of_class(Class::Lvm).is_some_and(|pv| pv.uuid == format!("pv-{name}"))
            }),
        };
        let space = disk.map(|disk| match state.spaces.get(&disk.name) {
            Some(space) => space.clone().map_err(Trouble::Failed),
            None => {
                let (size, free) = (disk.size, disk.size);
                Ok(Space { size, free, extent: 4 << 20, read_only: false })
            }
        });
        let space =
            space.unwrap_or_else(|| Err(Trouble::Failed("there is no such pool".to_owned())));
        drop(state);
        std::future::ready(space).boxed()
    }

    fn groups(&self) -> BoxFuture<'_, Result<Vec<Group>, Trouble>> {
        let state = self.state();
        let group = |disk: &Disk| {
            let uuid = disk.contents.of_class(Class::Lvm)?.uuid.clone();
            let name = uuid.strip_prefix("pv-")?.to_owned();
            Some(Group { name, uuid: format!("vg-{}", disk.name), path: disk.path.clone() })
        };
        let groups = state.disks.values().filter_map(group).collect();
        drop(state);
        std::future::ready(Ok(groups)).boxed()
    }

    fn audit<'a>(&'a self, line: &'a str) -> BoxFuture<'a, Result<(), String>> {
        self.state().audit.push(line.to_owned());
        std::future::ready(Ok(())).boxed()
    }
}
