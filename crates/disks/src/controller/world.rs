//! The state that a scan finds: the disks, their links, the mount table, and which disk belongs to which
//! object. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstay_host::{Disk, MountLine};

use crate::identity;

/// The disks of a node and the objects they belong to.
#[derive(Debug, Default)]
pub(super) struct World {
    disks: BTreeMap<String, Arc<Disk>>,
    /// Each link ([`identity::links`]) with the name of each disk that bears it.
    links: BTreeSet<(String, String)>,
    pub(super) mounts: Arc<[MountLine]>,
    pub(super) assigned: BTreeMap<String, Assigned>,
}

/// The disk of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    /// The kernel's name of it.
    pub(super) disk: String,
    /// Other disks that claim to be it.
    pub(super) duplicates: Vec<String>,
}

impl World {
    /// Every disk, by the kernel's name of it.
    pub(super) fn disks(&self) -> &BTreeMap<String, Arc<Disk>> {
        &self.disks
    }

    /// The disks that bear a link.
    pub(super) fn linked(&self, link: &str) -> impl Iterator<Item = &Arc<Disk>> {
        let rest = self.links.range((link.to_owned(), String::new())..);
        let names = rest.take_while(move |(other, _)| other == link).map(|(_, name)| name);
        names.filter_map(|name| self.disks.get(name))
    }

    /// Puts a disk in its place, or takes away the one that was there.
    pub(super) fn set(&mut self, name: &str, disk: Option<Disk>) {
        let disk = disk.map(Arc::new);
        let old = match &disk {
            Some(disk) => self.disks.insert(name.to_owned(), disk.clone()),
            None => self.disks.remove(name),
        };
        for link in old.iter().flat_map(|old| of(old)) {
            self.links.remove(&(link, name.to_owned()));
        }
        for link in disk.iter().flat_map(|disk| of(disk)) {
            self.links.insert((link, name.to_owned()));
        }
    }

    /// Takes away every disk that is not among these.
    pub(super) fn keep(&mut self, there: &BTreeSet<String>) {
        let gone: Vec<_> =
            self.disks.keys().filter(|name| !there.contains(*name)).cloned().collect();
        gone.iter().for_each(|name| self.set(name, None));
    }

    /// The disk of an object.
    pub(super) fn disk_of(&self, object: &str) -> Option<&Arc<Disk>> {
        self.disks.get(&self.assigned.get(object)?.disk)
    }
}

/// The links of a disk.
pub(super) fn of(disk: &Disk) -> Vec<String> {
    identity::links(&identity::of(disk), &disk.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_host::sim::SimHost;

    #[test]
    fn a_disk_is_found_by_its_current_links_only() {
        let mut world = World::default();
        let mut disk = SimHost::disk("sda", 1 << 30);
        let before = of(&disk);
        world.set("sda", Some(disk.clone()));
        disk.serial = "another".to_owned();
        world.set("sda", Some(disk.clone()));
        let found = |world: &World, link: &String| world.linked(link).count();
        let now = of(&disk);
        assert!(now.iter().all(|link| found(&world, link) == 1));
        let lost: Vec<_> = before.iter().filter(|link| !now.contains(link)).collect();
        assert!(!lost.is_empty() && lost.iter().all(|link| found(&world, link) == 0));
        world.keep(&BTreeSet::new());
        assert!(world.links.is_empty() && world.disks().is_empty());
    }
}
