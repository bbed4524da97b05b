//! Reads disks from sysfs and udev's database. The roots of all trees can be moved, so that a tree of files
//! can stand in for hardware.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{Disk, Drive, Partition};

/// Where the kernel's trees are.
#[derive(Clone, Debug)]
pub struct Roots {
    /// sysfs.
    pub sys: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
    /// udev's database.
    pub udev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            dev: "/dev".into(),
            udev: "/run/udev".into(),
        }
    }
}

/// A file of one line; empty if it is not there.
pub(super) fn line(path: &Path) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn number(path: &Path) -> u64 {
    line(path).parse().unwrap_or(0)
}

/// The names in a folder, in order; none if it is not there.
pub(super) fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Roots {
    fn block(&self, name: &str) -> PathBuf {
        self.sys.join("block").join(name)
    }

    /// The folder of any block device, partitions and maps included.
    pub(super) fn class(&self, name: &str) -> PathBuf {
        self.sys.join("class/block").join(name)
    }

    /// Every block device that is no partition.
    pub(super) fn all(&self) -> Vec<String> {
        names(&self.sys.join("block"))
    }

    /// udev's properties of a device, by its number.
    fn properties(&self, number: &str) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(self.udev.join(format!("data/b{number}")));
        let text = text.unwrap_or_default();
        let entries = text.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
        entries.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn is_multipath(&self, name: &str) -> bool {
        name.starts_with("dm-") && line(&self.block(name).join("dm/uuid")).starts_with("mpath-")
    }

    /// Whether a disk is one of several paths to another.
    pub(super) fn is_member(&self, name: &str) -> bool {
        names(&self.block(name).join("holders")).iter().any(|holder| self.is_multipath(holder))
    }

    /// Whether a device is never listed, whatever anybody wants.
    fn is_hidden(&self, name: &str, loops: &dyn Fn(&str) -> bool) -> bool {
        let begins = |prefix: &str| name.starts_with(prefix);
        if begins("loop") {
            let backing = self.block(name).join("loop/backing_file");
            return !backing.exists() || !loops(&self.path(name));
        }
        if begins("dm-") {
            return !self.is_multipath(name);
        }
        ["nbd", "ram", "zram", "md", "drbd", "zd"].iter().any(|prefix| begins(prefix))
            || self.is_member(name)
    }

    fn path(&self, name: &str) -> String {
        let map = match name.starts_with("dm-") {
            true => line(&self.block(name).join("dm/name")),
            false => String::new(),
        };
        let plain = match map.as_str() {
            "" => self.dev.join(name.replace('!', "/")),
            map => self.dev.join("mapper").join(map),
        };
        plain.display().to_string()
    }

    /// One disk without its contents; `None` if it is not there, empty, or never listed.
    pub(super) fn disk(&self, name: &str, loops: &dyn Fn(&str) -> bool) -> Option<Disk> {
        let folder = self.block(name);
        if name.contains('/') || !folder.is_dir() || self.is_hidden(name, loops) {
            return None;
        }
        let size = number(&folder.join("size")) * 512;
        if size == 0 {
            return None;
        }
        let device = line(&folder.join("dev"));
        let properties = self.properties(&device);
        let say = |keys: &[&str], files: &[&str]| {
            let known = keys.iter().filter_map(|key| properties.get(*key).cloned());
            let read = files.iter().map(|file| line(&folder.join(file)));
            known.chain(read).find(|text| !text.is_empty()).unwrap_or_default()
        };
        let backing = line(&folder.join("loop/backing_file"));
        let place = match backing.is_empty() {
            true => std::fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone()),
            false => PathBuf::new(),
        };
        let parts = self.partition_names(name);
        let bus = say(&["ID_PATH", "DM_NAME"], &[]);
        let (serial, bus_path) = if backing.is_empty() {
            let serial =
                say(&["ID_SERIAL_SHORT", "ID_SERIAL", "DM_SERIAL"], &["device/serial", "serial"]);
            (serial, if bus.is_empty() { self.bus(&place) } else { bus })
        } else {
            (backing.clone(), "loop".to_owned())
        };
        let queue = |file: &str| number(&folder.join("queue").join(file));
        Some(Disk {
            name: name.to_owned(),
            path: self.path(name),
            number: device,
            diskseq: number(&folder.join("diskseq")),
            size,
            logical_block: queue("logical_block_size").max(512),
            physical_block: queue("physical_block_size").max(512),
            read_only: number(&folder.join("ro")) != 0,
            removable: number(&folder.join("removable")) != 0,
            drive: drive(name, &line(&folder.join("queue/rotational"))),
            controller: controller(name, &place).to_owned(),
            vendor: if backing.is_empty() {
                say(&["ID_VENDOR"], &["device/vendor"])
            } else {
                "loop".to_owned()
            },
            model: say(&["ID_MODEL"], &["device/model"]),
            serial,
            wwn: say(&["ID_WWN_WITH_EXTENSION", "ID_WWN", "DM_WWN"], &["wwid", "device/wwid"]),
            bus_path,
            numa: line(&folder.join("device/numa_node")).parse().ok().filter(|node| *node >= 0),
            multipath: self.is_multipath(name),
            holders: self.holders(name, &parts),
            partitions: self.partitions(name, parts),
            ..Disk::default()
        })
    }

    /// The number, sequence and size of a disk, which bind operations to it; `None` if it is gone.
    pub(super) fn bound(&self, name: &str) -> Option<(String, u64, u64)> {
        let folder = self.block(name);
        let device = line(&folder.join("dev"));
        let size = number(&folder.join("size")) * 512;
        let there = !device.is_empty() && size > 0;
        there.then(|| (device, number(&folder.join("diskseq")), size))
    }

    /// How much the kernel has counted as written to a disk or discarded on it; `None` if it does
    /// not count.
    pub(super) fn written(&self, name: &str) -> Option<u64> {
        let folder = self.block(name);
        if line(&folder.join("queue/iostats")) != "1" {
            return None;
        }
        let counts = line(&folder.join("stat"));
        let counts: Vec<u64> = counts.split_whitespace().flat_map(str::parse).collect();
        // Writes, their sectors, discards, their sectors.
        [4, 6, 11, 13].into_iter().map(|at| counts.get(at)).sum()
    }

    /// The place on the bus, as the kernel names it.
    fn bus(&self, place: &Path) -> String {
        let root = std::fs::canonicalize(self.sys.join("devices"));
        let root = root.unwrap_or_else(|_| self.sys.join("devices"));
        let inner = place.strip_prefix(&root).unwrap_or(place);
        let parent = inner.parent().and_then(Path::parent).unwrap_or(inner);
        parent.display().to_string()
    }

    /// The devices that use a disk or its partitions.
    fn holders(&self, name: &str, parts: &[String]) -> Vec<String> {
        let folder = self.block(name);
        let mut all = names(&folder.join("holders"));
        for part in parts {
            all.extend(names(&folder.join(part).join("holders")));
        }
        all
    }

    fn partition_names(&self, name: &str) -> Vec<String> {
        let folder = self.block(name);
        // The kernel names a partition after its disk.
        let inside = names(&folder).into_iter().filter(|part| part.starts_with(name));
        inside.filter(|part| folder.join(part).join("partition").is_file()).collect()
    }

    fn partitions(&self, name: &str, parts: Vec<String>) -> Vec<Partition> {
        let folder = self.block(name);
        let parts = parts.into_iter().map(|part| {
            let number = line(&folder.join(&part).join("dev"));
            let properties = self.properties(&number);
            let say = |key: &str| properties.get(key).cloned().unwrap_or_default();
            Partition {
                label: say("ID_FS_LABEL"),
                filesystem: say("ID_FS_TYPE"),
                kind: say("ID_PART_ENTRY_TYPE"),
                name: part,
                number,
            }
        });
        parts.collect()
    }

    /// The number of a partition in its table.
    pub(super) fn partition_index(&self, disk: &str, part: &str) -> u64 {
        number(&self.block(disk).join(part).join("partition"))
    }

    /// The numbers of a disk, its partitions, and everything that stands on them.
    pub(super) fn numbers(&self, disk: &Disk) -> Vec<String> {
        let mut numbers = vec![disk.number.clone()];
        numbers.extend(disk.partitions.iter().map(|part| part.number.clone()));
        let mut above: Vec<String> = disk.holders.clone();
        while let Some(holder) = above.pop() {
            let number = line(&self.class(&holder).join("dev"));
            if !number.is_empty() && !numbers.contains(&number) {
                numbers.push(number);
                above.extend(names(&self.class(&holder).join("holders")));
            }
        }
        numbers
    }

    /// Every loop device with its backing file.
    pub(super) fn loops(&self) -> Vec<(String, String)> {
        let loops = self.all().into_iter().filter(|name| name.starts_with("loop"));
        let backed = loops.map(|name| {
            let backing = line(&self.block(&name).join("loop/backing_file"));
            (name, backing)
        });
        backed.filter(|(_, backing)| !backing.is_empty()).collect()
    }

    /// The number of device events that the kernel has sent; empty if it is unknown.
    pub(super) fn event_count(&self) -> String {
        line(&self.sys.join("kernel/uevent_seqnum"))
    }

    /// The paths of a disk and its partitions.
    pub(super) fn paths(&self, disk: &Disk) -> Vec<String> {
        let folder = Path::new(&disk.path).parent().unwrap_or(&self.dev);
        let parts = disk.partitions.iter().map(|part| folder.join(&part.name));
        let parts = parts.map(|path| path.display().to_string());
        std::iter::once(disk.path.clone()).chain(parts).collect()
    }
}

fn drive(name: &str, rotational: &str) -> Drive {
    match name {
        _ if name.starts_with("sr") => Drive::Odd,
        _ if name.starts_with("fd") => Drive::Fdd,
        _ => match rotational {
            "1" => Drive::Hdd,
            "0" => Drive::Ssd,
            _ => Drive::Unknown,
        },
    }
}

fn controller(name: &str, place: &Path) -> &'static str {
    let place = place.to_string_lossy();
    match name {
        _ if name.starts_with("nvme") => "NVMe",
        _ if name.starts_with("mmc") => "MMC",
        _ if name.starts_with("vd") => "virtio",
        _ if name.starts_with("hd") => "IDE",
        _ if name.starts_with("loop") => "loop",
        _ if name.starts_with("sd") && place.contains("virtio") => "virtio",
        _ if name.starts_with("sd") || name.starts_with("sr") => "SCSI",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files that stands for a machine.
    struct Tree {
        folder: tempfile::TempDir,
        roots: Roots,
    }

    impl Tree {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let roots =
                Roots { sys: at("sys"), proc: at("proc"), dev: at("dev"), udev: at("udev") };
            Self { folder, roots }
        }

        fn put(&self, path: &str, text: &str) {
            let file = self.folder.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }

        fn disk(&self, name: &str, number: &str) {
            self.put(&format!("sys/block/{name}/dev"), number);
            self.put(&format!("sys/block/{name}/size"), "2097152");
            self.put(&format!("sys/block/{name}/queue/rotational"), "0");
            self.put(&format!("sys/block/{name}/queue/logical_block_size"), "512");
        }

        fn listed(&self) -> Vec<String> {
            let none = |_: &str| false;
            self.roots
                .all()
                .into_iter()
                .filter(|name| self.roots.disk(name, &none).is_some())
                .collect()
        }
    }

    #[test]
    fn udev_properties_win_over_sysfs() {
        let tree = Tree::new();
        tree.disk("sda", "8:0");
        tree.put("sys/block/sda/device/vendor", "ATA     ");
        tree.put("sys/block/sda/device/model", "KernelName");
        tree.put("udev/data/b8:0", "E:ID_MODEL=Udev_Name\nE:ID_SERIAL=long\nE:ID_SERIAL_SHORT=S1\nE:ID_WWN=0x5\nE:ID_WWN_WITH_EXTENSION=0x5ff\nE:ID_PATH=pci-1\n");
        let disk = tree.roots.disk("sda", &|_| false).unwrap();
        assert_eq!((disk.vendor.as_str(), disk.model.as_str()), ("ATA", "Udev_Name"));
        assert_eq!((disk.serial.as_str(), disk.wwn.as_str()), ("S1", "0x5ff"));
        assert_eq!((disk.bus_path.as_str(), disk.size), ("pci-1", 1 << 30));
        assert_eq!(disk.drive, Drive::Ssd);
    }

    #[test]
    fn maps_and_their_members_are_distinguished() {
        let tree = Tree::new();
        for (name, number) in [("sda", "8:0"), ("sdb", "8:16"), ("sdc", "8:32"), ("dm-1", "253:1")]
        {
            tree.disk(name, number);
        }
        tree.put("sys/block/dm-1/dm/uuid", "LVM-abc");
        assert_eq!(tree.listed(), ["sda", "sdb", "sdc"], "a logical volume is no disk");
        tree.disk("dm-0", "253:0");
        tree.put("sys/block/dm-0/dm/uuid", "mpath-3600");
        tree.put("sys/block/dm-0/dm/name", "mpatha");
        for member in ["sda", "sdb"] {
            tree.put(&format!("sys/block/{member}/holders/dm-0/dev"), "253:0");
        }
        assert_eq!(tree.listed(), ["dm-0", "sdc"], "the map stands for its members");
        let map = tree.roots.disk("dm-0", &|_| false).unwrap();
        assert!(map.multipath && map.path.ends_with("/dev/mapper/mpatha"), "{}", map.path);
        assert!(tree.roots.is_member("sda") && !tree.roots.is_member("sdc"));
    }

    #[test]
    fn devices_that_are_no_disks_are_never_listed() {
        let tree = Tree::new();
        for name in ["loop0", "nbd0", "zram0", "ram1", "md0", "sda"] {
            tree.disk(name, "1:1");
        }
        tree.disk("sdz", "8:1");
        tree.put("sys/block/sdz/size", "0");
        tree.put("sys/block/loop0/loop/backing_file", "/images/a");
        assert_eq!(tree.listed(), ["sda"]);
        let disk = tree.roots.disk("loop0", &|path| path.ends_with("/dev/loop0")).unwrap();
        assert_eq!((disk.serial.as_str(), disk.vendor.as_str()), ("/images/a", "loop"));
    }

    #[test]
    fn partitions_and_their_holders_belong_to_the_disk() {
        let tree = Tree::new();
        tree.disk("sda", "8:0");
        tree.put("sys/block/sda/sda1/partition", "1");
        tree.put("sys/block/sda/sda1/dev", "8:1");
        tree.put("sys/block/sda/sda1/holders/dm-3/dev", "253:3");
        tree.put("sys/class/block/dm-3/dev", "253:3");
        tree.put("sys/class/block/dm-3/holders/dm-4/dev", "253:4");
        tree.put("sys/class/block/dm-4/dev", "253:4");
        tree.put("udev/data/b8:1", "E:ID_FS_LABEL=DATA\nE:ID_PART_ENTRY_TYPE=abc\n");
        let disk = tree.roots.disk("sda", &|_| false).unwrap();
        assert_eq!(disk.holders, ["dm-3"]);
        assert_eq!(
            (disk.partitions[0].label.as_str(), disk.partitions[0].kind.as_str()),
            ("DATA", "abc")
        );
        assert_eq!(tree.roots.numbers(&disk), ["8:0", "8:1", "253:3", "253:4"]);
    }
}
