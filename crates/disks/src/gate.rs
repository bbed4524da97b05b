//! The safety gate: whether anything destructive may begin. Pure.
//!
//! Thirteen rules, all of which must hold; every refusal names its reason. The gate is asked before
//! the lock phase is written, and again under the device lease, immediately before the first byte.
//! `mainstay disks format --dry-run` prints the verdict rule by rule.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_host::{Class, Contents, Group, Inspection};

use crate::backend::Known;

/// The smallest disk that is worth anything: mkfs.xfs refuses less than 300 MiB.
pub const XFS_MINIMUM: u64 = 300 << 20;
/// The smallest disk for ext4 and LVM.
pub const MINIMUM: u64 = 16 << 20;
/// The sector sizes that are supported.
pub const SECTORS: [u64; 2] = [512, 4096];

/// How well a disk is distinguished from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It is this one and no other.
    Single,
    /// It cannot be told apart from other disks.
    Not,
    /// These other paths claim to be the same.
    Duplicate(Vec<String>),
}

/// Everything the gate looks at.
#[derive(Clone, Debug)]
pub struct Scene {
    /// How well it is distinguished.
    pub resolved: Resolved,
    /// The rule that excludes it, if one does.
    pub excluded: Option<String>,
    /// The object names the node this is asked on.
    pub on_this_node: bool,
    /// The inspection by the host.
    pub inspection: Inspection,
    /// The signatures whose loss was acknowledged, as [`entries`] writes them.
    pub acknowledged: Vec<String>,
    /// Auto-provisioning asks, not a person.
    pub auto: bool,
    /// It cannot be written.
    pub read_only: bool,
    /// How large it is.
    pub size: u64,
    /// How large it must be.
    pub minimum: u64,
    /// The size of its sectors.
    pub sector: u64,
    /// The arguments of the commands that would run.
    pub commands: Vec<Vec<String>>,
    /// The UUID that the new filesystem would get.
    pub target_uuid: String,
    /// Another disk that has that UUID already.
    pub uuid_taken: Option<String>,
    /// Another volume group of the machine that has the name of the new one, or why that is unknown.
    pub group_taken: Option<String>,
    /// The mount that occupies its mount point, if there is one.
    pub point_taken: Option<String>,
    /// The pool or the replicas on it, if there are any ([`pool_in_use`]).
    pub pool: Option<String>,
}

/// The finding of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its number, from 1 to 13.
    pub rule: u8,
    /// The requirement.
    pub asks: &'static str,
    /// Why it refuses; `None` if it holds.
    pub refusal: Option<String>,
}

/// The findings of all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The finding of every rule, in order.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Whether every rule holds.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.findings.iter().all(|finding| finding.refusal.is_none())
    }

    /// Why it refuses, every rule that does.
    #[must_use]
    pub fn reasons(&self) -> String {
        let refusals = self.findings.iter().filter_map(|finding| {
            let why = finding.refusal.as_ref()?;
            Some(format!("rule {}: {why}", finding.rule))
        });
        refusals.collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { rule, asks, refusal } in &self.findings {
            match refusal {
                None => writeln!(f, "{rule:>2}  pass    {asks}")?,
                Some(why) => writeln!(f, "{rule:>2}  REFUSE  {asks}: {why}")?,
            }
        }
        let verdict = if self.passes() { "the gate would let it pass" } else { "the gate refuses" };
        writeln!(f, "{verdict}")
    }
}

type Rule = (&'static str, fn(&Scene) -> Option<String>);

/// The rules, in order.
const RULES: [Rule; 13] = [
    ("one disk, known for certain, not excluded, on this node, not the system's", known),
    ("neither it nor a part of it is mounted, in any mount namespace", unmounted),
    (
        "it is not in use: exclusive open, holders, loop devices, multipath, RAID, encryption",
        unused,
    ),
    ("nothing is on it, or exactly what is on it was acknowledged", blank),
    ("writable, large enough, sectors of a supported size", fit),
    ("its lock can be had", lockable),
    ("it is still the disk that was inspected", unchanged),
    ("no command is forced", unforced),
    ("the new UUID and the name of the new volume group are not in use", unique),
    ("nothing is mounted at its mount point", free_point),
    ("every probe answered in time", answered),
    ("the audit line can be written first", audited),
    ("no pool is registered on it, and no replica is on it", unpooled),
];

/// Judges a scene.
#[must_use]
pub fn judge(scene: &Scene) -> Verdict {
    let findings = (1..).zip(RULES).map(|(rule, (asks, check))| {
        let refusal = check(scene);
        Finding { rule, asks, refusal }
    });
    Verdict { findings: findings.collect() }
}

fn known(scene: &Scene) -> Option<String> {
    match &scene.resolved {
        Resolved::Not => return Some("nothing tells this disk apart from others".to_owned()),
        Resolved::Duplicate(paths) => {
            return Some(format!("{} claim to be the same disk", paths.join(" and ")));
        }
        Resolved::Single => {}
    }
    if let Some(rule) = &scene.excluded {
        return Some(format!("excluded by {rule}"));
    }
    if !scene.on_this_node {
        return Some("the object belongs to another node".to_owned());
    }
    scene.inspection.system.as_ref().map(|part| format!("the running system stands on it: {part}"))
}

fn unmounted(scene: &Scene) -> Option<String> {
    (!scene.inspection.mounts.is_empty())
        .then(|| format!("mounted: {}", scene.inspection.mounts.join(", ")))
}

fn unused(scene: &Scene) -> Option<String> {
    if let Some(why) = &scene.inspection.exclusive {
        return Some(format!("in use: {why}"));
    }
    if !scene.inspection.holders.is_empty() {
        return Some(format!("held by {}", scene.inspection.holders.join(", ")));
    }
    if !scene.inspection.loops.is_empty() {
        return Some(format!("backs {}", scene.inspection.loops.join(", ")));
    }
    scene
        .inspection
        .multipath_member
        .then(|| "one of several paths to a disk; use the map".to_owned())
}

fn blank(scene: &Scene) -> Option<String> {
    let Contents { signatures, ambiguous, unreadable } = &scene.inspection.contents;
    if let Some(why) = unreadable {
        return Some(format!("cannot be read: {why}"));
    }
    if *ambiguous {
        let found = scene.inspection.contents.names().join(", ");
        return Some(format!("it is ambiguous what it holds ({found}); wipe it by hand"));
    }
    let found = entries(&scene.inspection.contents);
    if found.is_empty() {
        return None;
    }
    let listed = found.join(", ");
    if scene.auto {
        let data = signatures.iter().map(|found| found.class).max() > Some(Class::Filesystem);
        let what = if data { "is in use by something else" } else { "holds data" };
        return Some(format!(
            "found {listed}: it {what}; auto-provisioning takes blank disks only"
        ));
    }
    let mut acknowledged = scene.acknowledged.clone();
    acknowledged.sort();
    acknowledged.dedup();
    if acknowledged == found {
        return None;
    }
    let said = if acknowledged.is_empty() { "nothing".to_owned() } else { acknowledged.join(", ") };
    let names = scene.inspection.contents.names().join(",");
    Some(format!(
        "found {listed}, acknowledged {said}; to erase it, use --erase {names}, or set spec.acknowledgeDataLoss to exactly [{listed}] together with the format request"
    ))
}

/// How spec.acknowledgeDataLoss names a signature: `NAME:UUID`, or `NAME` if it has no UUID.
#[must_use]
pub fn entry(name: &str, uuid: &str) -> String {
    if uuid.is_empty() { name.to_owned() } else { format!("{name}:{uuid}") }
}

/// The entries that acknowledge the loss of everything on a disk, each once, in order.
#[must_use]
pub fn entries(contents: &Contents) -> Vec<String> {
    let signatures = contents.signatures.iter();
    let entries: BTreeSet<_> = signatures.map(|found| entry(&found.name, &found.uuid)).collect();
    entries.into_iter().collect()
}

fn fit(scene: &Scene) -> Option<String> {
    if scene.read_only {
        return Some("read-only".to_owned());
    }
    if scene.size < scene.minimum {
        let (size, minimum) = (crate::text::size(scene.size), crate::text::size(scene.minimum));
        return Some(format!("{size} is too small: at least {minimum} are needed"));
    }
    let sector = scene.sector;
    (!SECTORS.contains(&sector)).then(|| format!("sectors of {sector} bytes are not supported"))
}

fn lockable(scene: &Scene) -> Option<String> {
    scene.inspection.lock.clone()
}

fn unchanged(scene: &Scene) -> Option<String> {
    scene.inspection.changed.clone()
}

fn unforced(scene: &Scene) -> Option<String> {
    const FORCES: [&str; 6] = ["-f", "-F", "-ff", "--force", "-y", "--yes"];
    let forced = scene
        .commands
        .iter()
        .find(|command| command.iter().any(|word| FORCES.contains(&word.as_str())));
    forced.map(|command| format!("`{}` is forced", command.join(" ")))
}

fn unique(scene: &Scene) -> Option<String> {
    if let Some(group) = &scene.group_taken {
        return Some(group.clone());
    }
    if scene.target_uuid.is_empty() {
        return Some("no UUID was chosen".to_owned());
    }
    scene
        .uuid_taken
        .as_ref()
        .map(|disk| format!("{disk} has the UUID {} already", scene.target_uuid))
}

fn free_point(scene: &Scene) -> Option<String> {
    scene.point_taken.as_ref().map(|what| format!("{what} is mounted there"))
}

fn answered(scene: &Scene) -> Option<String> {
    scene.inspection.silent.as_ref().map(|what| format!("{what} did not answer in time"))
}

fn audited(scene: &Scene) -> Option<String> {
    scene.inspection.audit.as_ref().map(|why| format!("it cannot: {why}"))
}

fn unpooled(scene: &Scene) -> Option<String> {
    scene.pool.as_ref().map(|what| format!("{what}; unprovision it first"))
}

/// The pool or the replicas on a disk, in words. A disk that has either is neither formatted nor
/// unmounted.
#[must_use]
pub fn pool_in_use(known: &Known) -> Option<String> {
    const NAMED: usize = 5;
    if known.replicas.is_empty() {
        return known.record.exists().then(|| "a pool is registered on it".to_owned());
    }
    let names: Vec<_> = known.replicas.iter().take(NAMED).map(String::as_str).collect();
    let more = known.replicas.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("replicas are on it: {}{more}", names.join(", ")))
}

/// Why a volume group of this name cannot be made on a disk: the machine has another one. The group on
/// the disk itself does not count, since it has to be acknowledged.
#[must_use]
pub fn name_in_use(name: &str, path: &str, groups: &[Group]) -> Option<String> {
    let other = groups.iter().find(|group| group.name == name && group.path != path)?;
    Some(format!("{other} exists already on this machine; choose another vgName"))
}

#[cfg(test)]
pub(crate) mod tests;
