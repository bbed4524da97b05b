//! The command lines of actions on disks, and how their output is read.
//!
//! The command lines are data ([`commands`]), so that the gate can see that none is forced, and a
//! golden file can show those that this machine cannot run. LVM scans only this disk:
//! another one that does not answer must not block it.

use std::fs::File;
use std::time::Duration;

use serde::Deserialize;

use super::{LinuxHost, PROBE};
use crate::FsType;
use crate::{Act, Class, Disk, Group, Lock, Signature, Space, Trouble};

type Line = (&'static str, Vec<String>);

fn line(program: &'static str, arguments: &[&str]) -> Line {
    (program, arguments.iter().map(|word| (*word).to_owned()).collect())
}

/// The commands of an act, in order.
pub(crate) fn commands(path: &str, act: &Act) -> Vec<Line> {
    match act {
        Act::Wipe { .. } => vec![line("wipefs", &["--all", "--backup", path])],
        Act::MakeFilesystem { kind: FsType::Ext4, uuid } => {
            vec![line("mkfs.ext4", &["-q", "-U", uuid, path])]
        }
        Act::MakeFilesystem { kind: FsType::Xfs, uuid } => {
            vec![line("mkfs.xfs", &["-q", "-m", &format!("uuid={uuid}"), path])]
        }
        Act::Mount { kind, point } => vec![line("mount", &["-t", kind, path, point])],
        Act::Unmount { point, vanished: false } => vec![line("umount", &[point])],
        Act::Unmount { point, vanished: true } => vec![line("umount", &["--force", point])],
        Act::MakeGroup { name, parameters } => {
            let mut create = line("vgcreate", &["--devices", path]);
            create.1.extend(parameters.iter().cloned());
            create.1.extend([name.clone(), path.to_owned()]);
            vec![line("pvcreate", &["--devices", path, path]), create]
        }
        Act::RemoveGroup { name } => {
            let remove = line("vgremove", &["--devices", path, name]);
            vec![remove, line("pvremove", &["--devices", path, path])]
        }
    }
}

/// How the space of a group is asked for.
fn measure(group: &str, path: &str) -> Line {
    let columns = "vg_size,vg_free,vg_extent_size";
    let form = ["--noheadings", "--units", "b", "--nosuffix", "--separator", ",", "-o", columns];
    let words: Vec<&str> = ["--devices", path].into_iter().chain(form).chain([group]).collect();
    line("vgs", &words)
}

/// How all groups of the machine are asked for. The empty name turns LVM's devices file off.
fn list_groups() -> Line {
    let columns = "vg_name,vg_uuid,pv_name";
    line("vgs", &["--devicesfile", "", "--noheadings", "--separator", ",", "-o", columns])
}

/// Reads the output of [`list_groups`].
fn groups(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let mut words = line.trim().splitn(3, ',').map(str::to_owned);
        Some(Group { name: words.next()?, uuid: words.next()?, path: words.next()? })
    };
    text.lines().filter_map(group).collect()
}

/// Reads the `KEY=value` lines of blkid.
pub(super) fn blkid_signatures(text: &str) -> Vec<Signature> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().replace('\\', "")
    };
    let mut found = Vec::new();
    let (kind, table) = (value("TYPE"), value("PTTYPE"));
    if !kind.is_empty() {
        let (uuid, label) = (value("UUID"), value("LABEL"));
        found.push(Signature { class: class(&kind), name: kind, uuid, label, offset: 0 });
    }
    if !table.is_empty() {
        let (uuid, label) = (value("PTUUID"), String::new());
        found.push(Signature { class: Class::PartitionTable, name: table, uuid, label, offset: 0 });
    }
    found
}

#[derive(Deserialize)]
struct Wipefs {
    signatures: Vec<Wiped>,
}

#[derive(Deserialize)]
struct Wiped {
    offset: String,
    #[serde(rename = "type")]
    kind: String,
    uuid: Option<String>,
    label: Option<String>,
}

/// The output of wipefs.
pub(super) fn wipefs_signatures(text: &str) -> Vec<Signature> {
    let Ok(read) = serde_json::from_str::<Wipefs>(text) else { return Vec::new() };
    let tables = read.signatures.iter().any(|found| found.kind == "gpt");
    let signatures = read.signatures.into_iter().filter(|found| {
        // The protective record of a GPT is a part of it.
        !(tables && found.kind == "PMBR")
    });
    let signature = |found: Wiped| Signature {
        class: class(&found.kind),
        offset: u64::from_str_radix(found.offset.trim_start_matches("0x"), 16).unwrap_or(0),
        name: found.kind,
        uuid: found.uuid.unwrap_or_default(),
        label: found.label.unwrap_or_default(),
    };
    signatures.map(signature).collect()
}

fn class(name: &str) -> Class {
    match name {
        "gpt" | "dos" | "PMBR" | "mac" | "bsd" | "sun" | "atari" => Class::PartitionTable,
        "crypto_LUKS" | "BitLocker" => Class::Luks,
        "swap" | "swsuspend" => Class::Swap,
        _ if name.starts_with("LVM") => Class::Lvm,
        _ if name.ends_with("_member") || name == "bcache" => Class::Raid,
        _ => Class::Filesystem,
    }
}

/// Classifies an error message of mount.
fn mount_trouble(complaint: String) -> Trouble {
    let damaged = [
        "wrong fs type",
        "bad superblock",
        "can't read superblock",
        "needs cleaning",
        "probably corrupted",
    ];
    if damaged.iter().any(|words| complaint.contains(words)) {
        Trouble::BadSuperblock(complaint)
    } else if complaint.contains("busy") || complaint.contains("already mounted") {
        Trouble::Busy(complaint)
    } else {
        Trouble::Failed(complaint)
    }
}

impl LinuxHost {
    /// Does what an act is, command by command.
    pub(super) async fn carry_out(
        &self,
        disk: &Disk,
        act: &Act,
        lock: &Lock,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let held = lock.file.as_ref();
        match act {
            Act::Mount { point, .. } => {
                std::fs::create_dir_all(point)
                    .map_err(|error| Trouble::Failed(format!("{point} cannot be made: {error}")))?;
                self.each(&disk.path, act, held, limit, mount_trouble).await
            }
            Act::Unmount { point, .. } => {
                self.each(&disk.path, act, held, limit, mount_trouble).await?;
                // An empty folder may be removed; any other may be in use.
                let _ = std::fs::remove_dir(point);
                Ok(())
            }
            Act::MakeGroup { name, .. } => self.make_group(disk, act, name, held, limit).await,
            Act::RemoveGroup { name } => self.remove_group(disk, act, name, held, limit).await,
            Act::Wipe { .. } | Act::MakeFilesystem { .. } => {
                self.each(&disk.path, act, held, limit, Trouble::Failed).await
            }
        }
    }

    async fn each(
        &self,
        path: &str,
        act: &Act,
        held: Option<&File>,
        limit: Duration,
        trouble: fn(String) -> Trouble,
    ) -> Result<(), Trouble> {
        self.run_all(commands(path, act).into_iter(), held, limit, trouble).await
    }

    async fn run_all(
        &self,
        lines: impl Iterator<Item = Line>,
        held: Option<&File>,
        limit: Duration,
        trouble: fn(String) -> Trouble,
    ) -> Result<(), Trouble> {
        for (program, arguments) in lines {
            let said = self.programs.run(program, &arguments, held, limit).await?;
            if !said.ok() {
                return Err(trouble(format!("{program}: {}", said.complaint())));
            }
        }
        Ok(())
    }

    /// Makes a group; what an interrupted attempt has made already is kept.
    async fn make_group(
        &self,
        disk: &Disk,
        act: &Act,
        name: &str,
        held: Option<&File>,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let groups = match disk.contents.of_class(Class::Lvm) {
            Some(_) => self.groups_of(&disk.path).await?,
            None => Vec::new(),
        };
        if groups.iter().any(|group| group == name) {
            return Ok(());
        }
        if let Some(other) = groups.first() {
            return Err(Trouble::Failed(format!("{} belongs to the group {other}", disk.path)));
        }
        let there = disk.contents.of_class(Class::Lvm).is_some();
        let _alone = self.lvm.lock().await;
        let all = self.all_groups().await?;
        if let Some(other) = all.iter().find(|group| group.name == name) {
            return Err(Trouble::Failed(format!(
                "{other} exists already on this machine; choose another vgName"
            )));
        }
        let lines = commands(&disk.path, act).into_iter();
        let left = lines.filter(|(program, _)| *program != "pvcreate" || !there);
        self.run_all(left, held, limit, Trouble::Failed).await
    }

    /// Removes a group; what an interrupted attempt has removed already stays so.
    async fn remove_group(
        &self,
        disk: &Disk,
        act: &Act,
        name: &str,
        held: Option<&File>,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let there = self.groups_of(&disk.path).await?.iter().any(|group| group == name);
        let _alone = self.lvm.lock().await;
        let lines = commands(&disk.path, act).into_iter();
        let left = lines.filter(|(program, _)| *program != "vgremove" || there);
        self.run_all(left, held, limit, Trouble::Failed).await
    }

    /// Every group of the machine: not only those on disks that are managed, and not only those in LVM's
    /// devices file. The caller holds the lock of LVM's commands.
    pub(super) async fn all_groups(&self) -> Result<Vec<Group>, Trouble> {
        let (program, arguments) = list_groups();
        let said = self.programs.run(program, &arguments, None, PROBE).await?;
        if !said.ok() {
            return Err(Trouble::Failed(format!("vgs: {}", said.complaint())));
        }
        Ok(groups(&said.out))
    }

    /// The groups a physical volume belongs to: none or one.
    pub(super) async fn groups_of(&self, path: &str) -> Result<Vec<String>, Trouble> {
        let arguments =
            ["--devices", path, "--noheadings", "-o", "vg_name", path].map(str::to_owned);
        let _alone = self.lvm.lock().await;
        let said = self.programs.run("pvs", &arguments, None, PROBE).await?;
        if !said.ok() {
            return Err(Trouble::Failed(format!("pvs: {}", said.complaint())));
        }
        let names = said.out.lines().map(str::trim).filter(|name| !name.is_empty());
        Ok(names.map(str::to_owned).collect())
    }

    /// The space of a group whose disk is at `path`.
    pub(super) async fn group_space(&self, name: &str, path: &str) -> Result<Space, Trouble> {
        let (program, arguments) = measure(name, path);
        let _alone = self.lvm.lock().await;
        let said = self.programs.run(program, &arguments, None, PROBE).await?;
        let numbers: Vec<u64> =
            said.out.trim().split(',').filter_map(|n| n.trim().parse().ok()).collect();
        match numbers.as_slice() {
            [size, free, extent] if said.ok() => {
                Ok(Space { size: *size, free: *free, extent: *extent, read_only: false })
            }
            _ => Err(Trouble::Failed(format!("vgs: {}", said.complaint()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_are_these_and_none_is_forced() {
        let uuid = "11111111-2222-4333-8444-555555555555".to_owned();
        let acts = [
            Act::Wipe { names: vec!["gpt".to_owned()] },
            Act::MakeFilesystem { kind: FsType::Ext4, uuid: uuid.clone() },
            Act::MakeFilesystem { kind: FsType::Xfs, uuid },
            Act::Mount { kind: "ext4".to_owned(), point: "/mnt/a".to_owned() },
            Act::Unmount { point: "/mnt/a".to_owned(), vanished: false },
            Act::Unmount { point: "/mnt/a".to_owned(), vanished: true },
            Act::MakeGroup {
                name: "vg1".to_owned(),
                parameters: vec!["--physicalextentsize=8m".to_owned()],
            },
            Act::RemoveGroup { name: "vg1".to_owned() },
        ];
        let lines = acts.iter().flat_map(|act| commands("/dev/sda", act));
        let lines = lines.chain([measure("vg1", "/dev/sda")]);
        let lines: Vec<_> =
            lines.map(|(program, words)| format!("{program} {}", words.join(" "))).collect();
        let expected = [
            "wipefs --all --backup /dev/sda",
            "mkfs.ext4 -q -U 11111111-2222-4333-8444-555555555555 /dev/sda",
            "mkfs.xfs -q -m uuid=11111111-2222-4333-8444-555555555555 /dev/sda",
            "mount -t ext4 /dev/sda /mnt/a",
            "umount /mnt/a",
            "umount --force /mnt/a",
            "pvcreate --devices /dev/sda /dev/sda",
            "vgcreate --devices /dev/sda --physicalextentsize=8m vg1 /dev/sda",
            "vgremove --devices /dev/sda vg1",
            "pvremove --devices /dev/sda /dev/sda",
            "vgs --devices /dev/sda --noheadings --units b --nosuffix --separator , -o vg_size,vg_free,vg_extent_size vg1",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn output_of_blkid_and_wipefs_is_parsed() {
        let blkid = "DEVNAME=/dev/a\nUUID=u1\nVERSION=LVM2\\ 001\nTYPE=LVM2_member\nUSAGE=raid\nPTTYPE=dos\nPTUUID=p1\n";
        let found = blkid_signatures(blkid);
        let names: Vec<_> =
            found.iter().map(|s| (s.class, s.name.as_str(), s.uuid.as_str())).collect();
        assert_eq!(
            names,
            [(Class::Lvm, "LVM2_member", "u1"), (Class::PartitionTable, "dos", "p1")]
        );
        let wipefs = r#"{"signatures": [
            {"device": "a", "offset": "0x200", "type": "gpt", "uuid": null, "label": null},
            {"device": "a", "offset": "0x1fe", "type": "PMBR", "uuid": null, "label": null}]}"#;
        let found = wipefs_signatures(wipefs);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].offset), ("gpt", 0x200));
        assert!(wipefs_signatures("").is_empty() && blkid_signatures("").is_empty());
    }

    #[test]
    fn every_group_of_the_machine_is_read_with_its_uuid() {
        let (program, words) = list_groups();
        let expected = ["--devicesfile", "", "--noheadings", "--separator", ",", "-o"];
        assert_eq!((program, &words[..6]), ("vgs", &expected.map(str::to_owned)[..]));
        let found = groups("  root,u-1,/dev/sda2\n  root,u-2,/dev/sdb\n\n");
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        let expected = [
            "volume group root (UUID u-1, on /dev/sda2)",
            "volume group root (UUID u-2, on /dev/sdb)",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_damaged_filesystem_is_distinguished_from_other_errors() {
        let damaged = "mount: /mnt: wrong fs type, bad option, bad superblock on /dev/loop0";
        assert!(matches!(mount_trouble(damaged.to_owned()), Trouble::BadSuperblock(_)));
        let corrupted = "mount: /mnt: cannot mount; probably corrupted filesystem on /dev/loop0.";
        assert!(matches!(mount_trouble(corrupted.to_owned()), Trouble::BadSuperblock(_)));
        assert!(matches!(
            mount_trouble("umount: /mnt: target is busy.".to_owned()),
            Trouble::Busy(_)
        ));
        assert!(matches!(mount_trouble("unknown filesystem type".to_owned()), Trouble::Failed(_)));
    }
}
