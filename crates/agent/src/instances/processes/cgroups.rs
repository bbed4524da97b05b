//! Control groups: limits, freezing and killing of instances, as far as the machine has them.
//!
//! Each controller is detected by itself, since machines mix both versions: first in version 2, then in
//! version 1. A missing freezer is replaced by SIGSTOP, a missing kill by signals to the process group;
//! missing limits are logged once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process_group};

/// One period of the processor's bandwidth, in microseconds.
const PERIOD: u64 = 100_000;

/// The control groups of the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups {
    unified: Option<PathBuf>,
    /// Which controllers the unified hierarchy has for us.
    controllers: Vec<String>,
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    freezer: Option<PathBuf>,
}

/// The groups of one instance.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    folders: Vec<PathBuf>,
    unified: Option<PathBuf>,
    freezer: Option<PathBuf>,
}

/// Mounts of control groups: where, which version, and its options.
fn mounts(table: &str) -> Vec<(PathBuf, bool, Vec<String>)> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let (place, kind, options) = (words.nth(1)?, words.next()?, words.next()?);
        let second = match kind {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        Some((place.into(), second, options.split(',').map(str::to_owned).collect()))
    };
    table.lines().filter_map(of).collect()
}

/// A folder of ours that can be written to.
fn own(mount: &Path, name: &str) -> Option<PathBuf> {
    let folder = mount.join(name);
    match fs::create_dir(&folder) {
        Ok(()) => Some(folder),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(folder),
        Err(_) => None,
    }
}

impl Cgroups {
    /// Looks what there is, and makes groups called `name` to put instances into.
    pub(super) fn find(name: &str) -> Self {
        let mut found = Self::default();
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for (mount, second, options) in mounts(&table) {
            if second {
                let enable = |folder: &Path| {
                    for controller in ["+cpu", "+memory"] {
                        // A controller that is missing cannot be enabled: checked again below.
                        let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
                    }
                };
                enable(&mount);
                if let Some(folder) = own(&mount, name) {
                    enable(&folder);
                    let on = fs::read_to_string(folder.join("cgroup.subtree_control"));
                    found.controllers =
                        on.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
                    found.unified = Some(folder);
                }
                continue;
            }
            for (controller, slot) in [
                ("cpu", &mut found.cpu),
                ("memory", &mut found.memory),
                ("freezer", &mut found.freezer),
            ] {
                if options.iter().any(|option| option == controller) {
                    *slot = own(&mount, name);
                }
            }
        }
        found
    }

    fn unified_has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|on| on == controller)
    }

    /// Which of cpu and memory cannot be limited here.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.cpu.is_none() && !self.unified_has("cpu") {
            missing.push("cpu");
        }
        if self.memory.is_none() && !self.unified_has("memory") {
            missing.push("memory");
        }
        missing
    }

    /// The folders that were made for all instances.
    fn own_folders(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.unified, &self.cpu, &self.memory, &self.freezer].into_iter().flatten()
    }

    /// Removes what was made for all instances, unless some live.
    pub(super) fn remove(&self) {
        for folder in self.own_folders() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// The groups of an instance, made if need be.
    pub(super) fn group(&self, name: &str) -> Group {
        let mut group = Group::default();
        let make = |parent: &Option<PathBuf>| own(parent.as_deref()?, name);
        group.unified = make(&self.unified);
        group.freezer = if group.unified.is_none() { make(&self.freezer) } else { None };
        let cpu = if self.unified_has("cpu") { None } else { make(&self.cpu) };
        let memory = if self.unified_has("memory") { None } else { make(&self.memory) };
        group
            .folders
            .extend([&group.unified, &group.freezer, &cpu, &memory].into_iter().flatten().cloned());
        group
    }
}

/// Writes to whichever of the files is there.
fn write_some(folders: &[PathBuf], file: &str, value: &str) -> Option<io::Result<()>> {
    let place = folders.iter().map(|folder| folder.join(file)).find(|place| place.exists())?;
    Some(fs::write(place, value))
}

impl Group {
    /// Limits what is in the group: thousandths of a processor, and bytes. Says what could not be.
    pub(super) fn limit(&self, cpu: Option<u64>, memory: Option<u64>) -> Vec<String> {
        let mut failed = Vec::new();
        let mut set = |files: [(&str, String); 2]| {
            let done = files.iter().find_map(|(file, value)| {
                write_some(&self.folders, file, value).map(|done| (*file, done))
            });
            if let Some((file, Err(error))) = done {
                failed.push(format!("{file}: {error}"));
            }
        };
        if let Some(milli) = cpu {
            // The kernel takes nothing below a thousand microseconds.
            let quota = (milli * PERIOD / 1_000).max(1_000);
            set([
                ("cpu.max", format!("{quota} {PERIOD}")),
                ("cpu.cfs_quota_us", quota.to_string()),
            ]);
        }
        if let Some(bytes) = memory {
            set([("memory.max", bytes.to_string()), ("memory.limit_in_bytes", bytes.to_string())]);
        }
        failed
    }

    /// Puts a process into the group.
    pub(super) fn enter(&self, pid: Pid) -> io::Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        self.folders.iter().try_for_each(|folder| fs::write(folder.join("cgroup.procs"), &pid))
    }

    /// Stops everything in the group where it stands.
    pub(super) fn freeze(&self, pid: Pid) -> io::Result<()> {
        match (&self.unified, &self.freezer) {
            (Some(folder), _) => fs::write(folder.join("cgroup.freeze"), "1"),
            (None, Some(folder)) => fs::write(folder.join("freezer.state"), "FROZEN"),
            (None, None) => Ok(kill_process_group(pid, Signal::STOP)?),
        }
    }

    /// Lets everything go on.
    pub(super) fn thaw(&self, pid: Pid) -> io::Result<()> {
        match (&self.unified, &self.freezer) {
            (Some(folder), _) => fs::write(folder.join("cgroup.freeze"), "0"),
            (None, Some(folder)) => fs::write(folder.join("freezer.state"), "THAWED"),
            (None, None) => Ok(kill_process_group(pid, Signal::CONT)?),
        }
    }

    /// Kills every process of the control group and of the process group.
    pub(super) fn kill(&self, pid: Pid) {
        self.end_members();
        // An empty group has ended.
        let _ = kill_process_group(pid, Signal::KILL);
    }

    /// Ends everything in the group.
    pub(super) fn end_members(&self) {
        if let Some(folder) = &self.unified {
            // Kernels before 5.14 do not have it; then the members are ended one by one.
            if fs::write(folder.join("cgroup.kill"), "1").is_err() {
                let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                for member in members.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
                    let _ = rustix::process::kill_process(member, Signal::KILL);
                }
            }
        }
    }

    /// Whether the kernel killed a process of the group because it ran out of memory.
    pub(super) fn out_of_memory(&self) -> bool {
        let killed = |text: String| {
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
            count.unwrap_or(0_u64) > 0
        };
        let files = ["memory.events", "memory.oom_control"];
        let places = self.folders.iter().flat_map(|folder| files.map(|file| folder.join(file)));
        places.filter_map(|place| fs::read_to_string(place).ok()).any(killed)
    }

    /// Removes the group; fails while a process is in it.
    pub(super) fn remove(&self) -> io::Result<()> {
        for folder in &self.folders {
            match fs::remove_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Group {
        /// Whether the kernel shows the group frozen; nothing if there is no freezer.
        pub(crate) fn shown_frozen(&self) -> Option<bool> {
            let read = |folder: &PathBuf, file| fs::read_to_string(folder.join(file)).unwrap();
            let unified = self.unified.as_ref();
            let unified = unified.map(|f| read(f, "cgroup.events").contains("frozen 1"));
            let first = self.freezer.as_ref();
            unified.or_else(|| first.map(|f| read(f, "freezer.state").trim() == "FROZEN"))
        }

        /// The part of the processor's period that the group may use.
        pub(crate) fn quota(&self) -> Option<String> {
            let files = ["cpu.max", "cpu.cfs_quota_us"];
            let places = self.folders.iter().flat_map(|folder| files.map(|file| folder.join(file)));
            let text = places.filter_map(|place| fs::read_to_string(place).ok()).next()?;
            text.split_whitespace().next().map(str::to_owned)
        }
    }

    #[test]
    fn both_versions_are_found_in_the_table_of_mounts() {
        let table = "proc /proc proc rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
            broken\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = mounts(table);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].0.to_str(), found[0].1), (Some("/sys/fs/cgroup/cpu,cpuacct"), false));
        assert!(found[0].2.contains(&"cpu".to_owned()));
        assert!(found[1].1);
    }
}
