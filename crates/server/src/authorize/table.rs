//! The table of kinds: one row for each kind and subresource, with what each role may do.
//!
//! Administrators may do everything and have no column. A kind without a row is denied to everybody
//! else; a test fails when a kind that is served has none.

use super::{Condition, Own, SYSTEM, Verb};
use crate::identity::Role;

/// Verbs, and under which condition they are allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) verbs: &'static [Verb],
    pub(crate) condition: Condition,
}

/// The grants of each role for a kind or one of its subresources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    /// Empty for the object itself.
    pub(crate) subresource: &'static str,
    editor: &'static [Grant],
    viewer: &'static [Grant],
    node: &'static [Grant],
}

impl Row {
    /// The grants of a role; an administrator needs none.
    pub(crate) fn grants(&self, role: Role) -> &'static [Grant] {
        match role {
            Role::Admin => &[],
            Role::Editor => self.editor,
            Role::Viewer => self.viewer,
            Role::Node => self.node,
        }
    }
}

const fn grant(verbs: &'static [Verb], condition: Condition) -> Grant {
    Grant { verbs, condition }
}

const ONE: &[Verb] = &[Verb::Get];
const READING: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];
const WRITING: &[Verb] =
    &[Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection];
const CHANGING: &[Verb] = &[Verb::Update, Verb::Patch];

/// The verbs of an agent for objects of its node, and for their status.
const KEEPING: &[Verb] =
    &[Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Update, Verb::Delete];
const REPORTING: &[Verb] = &[Verb::Get, Verb::Update];
/// The verbs of an agent for its heartbeat and its events.
const WRITING_ONE: &[Verb] = &[Verb::Get, Verb::Create, Verb::Update];

const NONE: &[Grant] = &[];
/// Reads a kind.
const READS: &[Grant] = &[grant(READING, Condition::Always)];
/// Lists a kind.
const LISTS: &[Grant] = &[grant(&[Verb::List], Condition::Always)];
/// Reads a subresource.
const READS_PART: &[Grant] = &[grant(ONE, Condition::Always)];
/// Reads and writes a kind that is in no namespace.
const EDITS: &[Grant] = &[grant(READING, Condition::Always), grant(WRITING, Condition::Always)];
/// Reads and writes a subresource of such a kind.
const EDITS_PART: &[Grant] = &[grant(ONE, Condition::Always), grant(CHANGING, Condition::Always)];
/// Reads a namespaced kind, and writes it outside of the system's namespace.
const EDITS_OUTSIDE: &[Grant] =
    &[grant(READING, Condition::Always), grant(WRITING, Condition::OutsideSystem)];
/// Reads a subresource of such a kind, and writes it outside of the system's namespace.
const EDITS_PART_OUTSIDE: &[Grant] =
    &[grant(ONE, Condition::Always), grant(CHANGING, Condition::OutsideSystem)];

const DISK_SETTINGS: Condition = Condition::Only { namespace: SYSTEM, name: "disks" };
const OWN_NODE: Condition = Condition::Own(Own::Node);
const OWN_DEVICE: Condition = Condition::Own(Own::SpecNodeName);
const OWN_GROUP: Condition = Condition::Own(Own::LocalNodeName);

const CORE: &str = "";
const LEASES: &str = "coordination.k8s.io";
const STORAGE: &str = "storage.mainstay.dev";
const APPS: &str = "apps.mainstay.dev";

const fn row(
    group: &'static str,
    plural: &'static str,
    subresource: &'static str,
    (editor, viewer): (&'static [Grant], &'static [Grant]),
    node: &'static [Grant],
) -> Row {
    Row { group, plural, subresource, editor, viewer, node }
}

type Two = (&'static [Grant], &'static [Grant]);
/// A kind that editors write and viewers read, and one of its subresources.
const ORDINARY: Two = (EDITS, READS);
const ORDINARY_PART: Two = (EDITS_PART, READS_PART);
/// The same of a namespaced kind.
const SPACED: Two = (EDITS_OUTSIDE, READS);
const SPACED_PART: Two = (EDITS_PART_OUTSIDE, READS_PART);
/// A kind that only administrators write, and one of its subresources.
const KEPT: Two = (READS, READS);
const KEPT_PART: Two = (READS_PART, READS_PART);
/// A kind that only administrators read.
const SECRET: Two = (NONE, NONE);

/// Every row.
pub(crate) static ROWS: &[Row] = &[
    row(CORE, "configmaps", "", SPACED, &[grant(READING, DISK_SETTINGS)]),
    row(CORE, "events", "", SPACED, &[grant(WRITING_ONE, Condition::Own(Own::Event))]),
    row(CORE, "namespaces", "", KEPT, NONE),
    row(CORE, "namespaces", "finalize", (NONE, NONE), NONE),
    row(CORE, "namespaces", "status", KEPT_PART, NONE),
    row(
        CORE,
        "nodes",
        "",
        KEPT,
        &[grant(READING, OWN_NODE), grant(&[Verb::Create], Condition::Own(Own::NewNode))],
    ),
    row(CORE, "nodes", "status", KEPT_PART, &[grant(REPORTING, OWN_NODE)]),
    // Not a kind of ours, but `kubectl describe node` lists them: the list is always empty.
    row(CORE, "pods", "", (LISTS, LISTS), NONE),
    // The server sends the values that an instance uses with the command that starts it.
    row(CORE, "secrets", "", SECRET, NONE),
    row(APPS, "applications", "", SPACED, NONE),
    row(APPS, "applications", "status", SPACED_PART, NONE),
    row(APPS, "applicationsessions", "", SPACED, NONE),
    row(APPS, "applicationsessions", "status", SPACED_PART, NONE),
    row(APPS, "instances", "", SPACED, NONE),
    row(APPS, "instances", "status", SPACED_PART, NONE),
    row(LEASES, "leases", "", KEPT, &[grant(WRITING_ONE, Condition::Own(Own::Heartbeat))]),
    row(STORAGE, "blockdevices", "", ORDINARY, &[grant(KEEPING, OWN_DEVICE)]),
    row(STORAGE, "blockdevices", "status", ORDINARY_PART, &[grant(REPORTING, OWN_DEVICE)]),
    row(STORAGE, "lvmvolumegroups", "", ORDINARY, &[grant(KEEPING, OWN_GROUP)]),
    row(STORAGE, "lvmvolumegroups", "status", ORDINARY_PART, &[grant(REPORTING, OWN_GROUP)]),
    row(STORAGE, "replicatedstorageclasses", "", ORDINARY, NONE),
    row(STORAGE, "replicatedstorageclasses", "status", ORDINARY_PART, NONE),
    row(STORAGE, "replicatedstoragepools", "", ORDINARY, NONE),
    row(STORAGE, "replicatedstoragepools", "status", ORDINARY_PART, NONE),
    row(STORAGE, "replicatedvolumeattachments", "", ORDINARY, NONE),
    row(STORAGE, "replicatedvolumeattachments", "status", ORDINARY_PART, NONE),
    row(STORAGE, "replicatedvolumereplicas", "", ORDINARY, &[grant(READING, OWN_DEVICE)]),
    row(STORAGE, "replicatedvolumereplicas", "status", ORDINARY_PART, &[grant(ONE, OWN_DEVICE)]),
    row(STORAGE, "replicatedvolumes", "", ORDINARY, NONE),
    row(STORAGE, "replicatedvolumes", "status", ORDINARY_PART, NONE),
];

/// The row of a kind or of one of its subresources.
pub(crate) fn find(group: &str, plural: &str, subresource: &str) -> Option<&'static Row> {
    let same =
        |row: &&Row| row.plural == plural && row.group == group && row.subresource == subresource;
    ROWS.iter().find(same)
}

/// Under which condition a role has a verb, if at all.
pub(super) fn condition(
    group: &str,
    plural: &str,
    subresource: &str,
    role: Role,
    verb: Verb,
) -> Option<Condition> {
    let grants = find(group, plural, subresource)?.grants(role);
    grants.iter().find(|grant| grant.verbs.contains(&verb)).map(|grant| grant.condition)
}

/// How objects of a kind tell to which node they belong; nothing for kinds that nodes do not read.
pub(crate) fn ownership(group: &str, plural: &str) -> Option<Own> {
    match condition(group, plural, "", Role::Node, Verb::Get)? {
        Condition::Own(rule) => Some(rule),
        _ => None,
    }
}
