//! Which object is which disk, over reboots, changed paths, clones and several paths. Pure.
//!
//! A disk is matched with an object by the UUID on it, else by its world wide name, else by vendor,
//! model, serial number and bus path together. A placeholder ("", "unknown", zeros) matches
//! nothing. A disk that claims to be another one is reported on both and added for neither.
//!
//! Enter at [`reconcile`]: it compares the objects of a node with the disks of a scan, and says what
//! is to be done about each.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use mainstay_host::{Class, Disk, Signature};

use crate::api::Identity;
use crate::phase::Phase;

/// The identity of a disk, by its hardware and its signatures.
#[must_use]
pub fn of(disk: &Disk) -> Identity {
    // The UUID of a partition table or of an encrypted container is not the disk's.
    let own =
        |found: &&Signature| matches!(found.class, Class::Filesystem | Class::Lvm | Class::Swap);
    let uuid = disk.contents.only().filter(own).map(|found| found.uuid.as_str());
    Identity {
        uuid: real(uuid.unwrap_or_default()),
        wwn: real(&disk.wwn),
        vendor: disk.vendor.trim().to_owned(),
        model: disk.model.trim().to_owned(),
        serial: real(&disk.serial),
        bus_path: disk.bus_path.clone(),
    }
}

/// A serial number or world wide name; empty if it is a placeholder.
#[must_use]
pub fn real(text: &str) -> String {
    let text = text.trim();
    let bare = text.strip_prefix("0x").unwrap_or(text);
    let hollow =
        bare.chars().all(|c| matches!(c, '0' | '-')) || bare.eq_ignore_ascii_case("unknown");
    if hollow { String::new() } else { text.to_owned() }
}

/// An object, as far as matching needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Whether its disk was there at the last scan.
    pub active: bool,
    /// Where its disk was.
    pub path: String,
    /// How far it got; `None` if that cannot be read.
    pub phase: Option<Phase>,
    /// The identity of its disk.
    pub identity: Identity,
}

impl Known {
    /// Its links with disks and other objects.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        links(&self.identity, &self.path)
    }
}

/// The links between disks and objects. Two that cannot be reached from each other over these have nothing
/// to do with each other: whatever happens to one changes nothing for the other.
#[must_use]
pub fn links(identity: &Identity, path: &str) -> Vec<String> {
    let aspects = ASPECTS.iter().enumerate();
    let told = aspects.filter_map(|(level, aspect)| Some(format!("{level}:{}", aspect(identity)?)));
    told.chain([format!("path:{path}")]).collect()
}

/// Every link that can be reached from some, where `next` tells the links of whatever bears one.
pub fn reachable(
    from: impl IntoIterator<Item = String>,
    mut next: impl FnMut(&str) -> Vec<String>,
) -> BTreeSet<String> {
    let mut open: Vec<String> = from.into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(link) = open.pop() {
        if seen.insert(link.clone()) {
            open.extend(next(&link).into_iter().filter(|link| !seen.contains(link)));
        }
    }
    seen
}

/// A step that a scan takes for an object or a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A disk without object: make one.
    Create {
        /// The position of the disk in the scan.
        disk: usize,
        /// Other paths that claim to be the same disk.
        duplicates: Vec<String>,
    },
    /// The disk of an object is there: report it as it is.
    Refresh {
        /// The object.
        name: String,
        /// The position of the disk in the scan.
        disk: usize,
        /// Other paths that claim to be the same disk.
        duplicates: Vec<String>,
    },
    /// The disk of an object is gone, or has moved and is taken up by the next scan.
    Deactivate {
        /// The object.
        name: String,
        /// Whether it was found at another path.
        moved: bool,
    },
    /// The disk of an unused object is gone: delete the object.
    Delete {
        /// The object.
        name: String,
    },
}

/// The aspects of an identity, in the order in which they are compared.
type Aspect = fn(&Identity) -> Option<String>;

const ASPECTS: [Aspect; 3] = [
    |identity| some(&identity.uuid),
    |identity| some(&identity.wwn),
    |identity| {
        let Identity { vendor, model, serial, bus_path, .. } = identity;
        let parts = [vendor, model, serial, bus_path];
        let told = parts.iter().any(|part| !part.is_empty());
        told.then(|| parts.map(String::as_str).join("\u{1f}"))
    },
];

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Whether a disk can be told apart from others at all.
#[must_use]
pub fn resolved(identity: &Identity) -> bool {
    ASPECTS.iter().any(|aspect| aspect(identity).is_some())
}

/// Whether two descriptions are of one disk. The first aspect that both have decides.
#[must_use]
pub fn same(a: &Identity, b: &Identity) -> bool {
    ASPECTS.iter().find_map(|aspect| Some(aspect(a)? == aspect(b)?)).unwrap_or(false)
}

/// Compares the objects of a node with the disks of a scan. Disks that must not have an object are
/// not in `disks`.
#[must_use]
pub fn reconcile<D: Borrow<Disk>>(known: &[Known], disks: &[D]) -> Vec<Step> {
    let disks: Vec<&Disk> = disks.iter().map(Borrow::borrow).collect();
    let identities: Vec<_> = disks.iter().map(|disk| of(disk.borrow())).collect();
    let groups = duplicates(&identities);
    let mut matched: BTreeMap<usize, usize> = BTreeMap::new();
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    for (level, aspect) in ASPECTS.iter().enumerate() {
        let mut candidates: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (disk, identity) in identities.iter().enumerate() {
            if !taken.contains(&disk)
                && let Some(value) = aspect(identity)
            {
                candidates.entry(value).or_default().push(disk);
            }
        }
        for (object, known) in known.iter().enumerate() {
            if matched.contains_key(&object) {
                continue;
            }
            let Some(value) = aspect(&known.identity) else { continue };
            let Some(found) = candidates.get_mut(&value) else { continue };
            // A UUID that several disks bear was copied: it tells nothing.
            if level == 0 && groups.of_uuid(&value) > 1 {
                continue;
            }
            let at_home = found.iter().position(|disk| disks[*disk].path == known.path);
            if found.is_empty() {
                continue;
            }
            let disk = found.remove(at_home.unwrap_or(0));
            matched.insert(object, disk);
            taken.insert(disk);
        }
    }
    // An object that was not scanned yet has only its path.
    for (object, known) in known.iter().enumerate() {
        if matched.contains_key(&object) || resolved(&known.identity) {
            continue;
        }
        let here = |disk: &usize| !taken.contains(disk) && disks[*disk].path == known.path;
        if let Some(disk) = (0..disks.len()).find(here) {
            matched.insert(object, disk);
            taken.insert(disk);
        }
    }
    let mut steps = Vec::new();
    for (object, known) in known.iter().enumerate() {
        steps.push(match matched.get(&object) {
            Some(disk)
                if known.active && !known.path.is_empty() && known.path != disks[*disk].path =>
            {
                Step::Deactivate { name: known.name.clone(), moved: true }
            }
            Some(disk) => Step::Refresh {
                name: known.name.clone(),
                disk: *disk,
                duplicates: groups.others(*disk, &disks),
            },
            None if known.phase == Some(Phase::Unprovisioned) => {
                Step::Delete { name: known.name.clone() }
            }
            None => Step::Deactivate { name: known.name.clone(), moved: false },
        });
    }
    let mut spoken_for: BTreeSet<usize> =
        taken.iter().flat_map(|disk| groups.group(*disk)).collect();
    for disk in 0..disks.len() {
        if !taken.contains(&disk) && !spoken_for.contains(&disk) {
            spoken_for.extend(groups.group(disk));
            steps.push(Step::Create { disk, duplicates: groups.others(disk, &disks) });
        }
    }
    steps
}

/// Which disks of a scan claim to be the same.
struct Groups {
    by_value: Vec<BTreeMap<String, Vec<usize>>>,
    identities: Vec<Identity>,
}

fn duplicates(identities: &[Identity]) -> Groups {
    let by_value = ASPECTS.iter().enumerate().map(|(level, aspect)| {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (disk, identity) in identities.iter().enumerate() {
            // Disks without serial number may well be of the same make: that is no claim.
            if level == 2 && identity.serial.is_empty() {
                continue;
            }
            if let Some(value) = aspect(identity) {
                groups.entry(value).or_default().push(disk);
            }
        }
        groups.retain(|_, disks| disks.len() > 1);
        groups
    });
    Groups { by_value: by_value.collect(), identities: identities.to_vec() }
}

impl Groups {
    fn of_uuid(&self, uuid: &str) -> usize {
        self.by_value[0].get(uuid).map_or(1, Vec::len)
    }

    /// The disk and all that claim to be it.
    fn group(&self, disk: usize) -> Vec<usize> {
        let mut all = BTreeSet::from([disk]);
        for (level, aspect) in ASPECTS.iter().enumerate() {
            if let Some(value) = aspect(&self.identities[disk]) {
                all.extend(self.by_value[level].get(&value).into_iter().flatten());
            }
        }
        all.into_iter().collect()
    }

    fn others(&self, disk: usize, disks: &[&Disk]) -> Vec<String> {
        let group = self.group(disk);
        group
            .into_iter()
            .filter(|other| *other != disk)
            .map(|other| disks[other].path.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests;
