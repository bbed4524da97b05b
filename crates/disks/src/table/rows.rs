//! The rows, one for each line of the document, and the guards they are written with.

use super::On::{self, Any, Lock, Stable, The, Unknown};
use super::{Effect, Next, Row};
use crate::phase::Phase::{
    Failed, Formatted, Formatting, Mounted, Mounting, Provisioned, Provisioning, Unmounting,
    Unprovisioned, Unprovisioning,
};
use crate::phase::{
    Content, Ending, Facts, Fault, Input, Mount, Operation, Provisioner, Record, Retrigger,
};

fn looks(facts: &Facts) -> bool {
    facts.input == Input::Look
}

fn ended(facts: &Facts, ending: Ending) -> bool {
    facts.input == Input::Ended(ending)
}

fn fails(facts: &Facts) -> bool {
    !looks(facts) && !ended(facts, Ending::Ok)
}

fn mounts(facts: &Facts) -> bool {
    facts.provisioner == Provisioner::Filesystem
}

fn usable(facts: &Facts) -> bool {
    match facts.provisioner {
        Provisioner::Filesystem => {
            matches!(facts.content, Content::Ours | Content::Adoptable | Content::Foreign)
        }
        Provisioner::Lvm => facts.content == Content::Ours,
    }
}

fn misplaced(facts: &Facts) -> bool {
    matches!(facts.mount, Mount::Elsewhere | Mount::Stacked | Mount::WrongSource)
}

/// The pool cannot be used, though its disk is attached and wanted.
fn faulty(facts: &Facts) -> bool {
    facts.active && facts.want && facts.fault.is_some()
}

/// An unwanted disk is still registered, or a replica is on it: that ends first.
fn left_over(facts: &Facts) -> bool {
    !facts.want && facts.pooled()
}

/// The disk itself is mounted, but not as it should be.
fn displaced(facts: &Facts) -> bool {
    matches!(facts.mount, Mount::Elsewhere | Mount::Stacked)
}

/// Another program has mounted the disk, and no person allowed to take it over.
fn occupied(facts: &Facts) -> bool {
    facts.mount == Mount::Elsewhere && !facts.adopt
}

fn gone(facts: &Facts) -> bool {
    facts.content != Content::Ours
}

const fn row(
    id: &'static str,
    on: On,
    guard: &'static str,
    when: fn(&Facts) -> bool,
    next: Next,
) -> Row {
    Row { id, on, guard, when, next, operation: None, effects: &[] }
}

impl Row {
    const fn starts(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    const fn and(mut self, effects: &'static [Effect]) -> Self {
        self.effects = effects;
        self
    }
}

/// The table. The first row that matches wins.
pub static ROWS: &[Row] = &[
    row(
        "A1",
        Any,
        "object belongs to another node, or is being deleted",
        |f| f.not_ours && looks(f),
        Next::Same,
    ),
    row("A2", Unknown, "—", |_| true, Next::Failed("UnknownPhase")),
    row("A3", Lock, "any spec change, scan, event or resync", looks, Next::Same),
    row(
        "A4",
        Stable,
        "result of an operation that no longer owns the disk",
        |f| !looks(f),
        Next::Same,
    )
    .and(&[Effect::Discard]),
    row(
        "A5",
        Stable,
        "want ∧ no format request ∧ another filesystem than recorded",
        |f| faulty(f) && !f.request && f.fault == Some(Fault::FilesystemChanged),
        Next::Failed("FilesystemChanged"),
    )
    .and(&[Effect::Faulty]),
    row("U8", The(Unprovisioned), "¬want ∧ still registered", left_over, Next::To(Unprovisioning))
        .starts(Operation::Deregister),
    row("U1", The(Unprovisioned), "Inactive", |f| !f.active, Next::Same),
    row(
        "U2",
        The(Unprovisioned),
        "format request ∧ gate passes",
        |f| f.request && f.gate,
        Next::To(Formatting),
    )
    .starts(Operation::Format),
    row(
        "U3",
        The(Unprovisioned),
        "format request by a person ∧ gate refuses",
        |f| f.request && !f.gate && !f.auto,
        Next::Failed("Refused"),
    )
    .and(&[Effect::Refused]),
    row(
        "U3",
        The(Unprovisioned),
        "format request by auto-provisioning ∧ gate refuses",
        |f| f.request && !f.gate,
        Next::Same,
    )
    .and(&[Effect::Refused]),
    row(
        "U10",
        The(Unprovisioned),
        "want ∧ a supported filesystem, mounted by another program ∧ not adopted by name",
        |f| f.want && usable(f) && occupied(f),
        Next::Same,
    )
    .and(&[Effect::MountedElsewhere]),
    row(
        "U4",
        The(Unprovisioned),
        "want ∧ no format request ∧ a supported filesystem (LVM: our group), not partitioned",
        |f| f.want && usable(f),
        Next::To(Formatted),
    )
    .and(&[Effect::Adopted]),
    row(
        "U6",
        The(Unprovisioned),
        "want ∧ partitioned ∧ no format request",
        |f| f.want && f.content == Content::Partitioned,
        Next::Same,
    )
    .and(&[Effect::Partitioned]),
    row(
        "U5",
        The(Unprovisioned),
        "want ∧ no usable filesystem ∧ no format request",
        |f| f.want,
        Next::Same,
    )
    .and(&[Effect::NeedsFormat]),
    row(
        "U9",
        The(Unprovisioned),
        "¬want ∧ the recorded filesystem was replaced or is gone",
        |f| {
            f.active && matches!(f.fault, Some(Fault::FilesystemChanged | Fault::FilesystemMissing))
        },
        Next::Same,
    )
    .and(&[Effect::Forgotten]),
    row("U7", The(Unprovisioned), "otherwise", |_| true, Next::Same),
    row("FG1", The(Formatting), "ok, token matches", |f| ended(f, Ending::Ok), Next::To(Formatted))
        .and(&[Effect::Formatted]),
    row("FG2", The(Formatting), "error or time-out", fails, Next::Failed("FormatFailed"))
        .and(&[Effect::NotFormatted]),
    row("F9", The(Formatted), "¬want ∧ still registered", left_over, Next::To(Unprovisioning))
        .starts(Operation::Deregister),
    row(
        "F1",
        The(Formatted),
        "new format request ∧ not mounted ∧ gate passes",
        |f| f.active && f.request && f.mount == Mount::Nowhere && f.gate,
        Next::To(Formatting),
    )
    .starts(Operation::Format),
    row(
        "L1",
        The(Formatted),
        "LVM: want",
        |f| f.active && !mounts(f) && f.want && !gone(f),
        Next::To(Provisioning),
    )
    .starts(Operation::Register),
    row(
        "F2",
        The(Formatted),
        "want ∧ mounted exactly at our point, by this disk",
        |f| mounts(f) && f.want && f.mount == Mount::Right,
        Next::To(Mounted),
    )
    .and(&[Effect::Mounted]),
    row(
        "F10",
        The(Formatted),
        "want ∧ mounted elsewhere or stacked ∧ registered, or a replica is on it",
        |f| mounts(f) && f.active && f.want && f.pooled() && displaced(f),
        Next::Same,
    )
    .and(&[Effect::Displaced]),
    row(
        "F11",
        The(Formatted),
        "want ∧ mounted by another program ∧ not adopted by name",
        |f| mounts(f) && f.active && f.want && occupied(f),
        Next::Same,
    )
    .and(&[Effect::MountedElsewhere]),
    row(
        "F3",
        The(Formatted),
        "want ∧ mounted elsewhere, stacked, or something else at our point",
        |f| mounts(f) && f.active && f.want && misplaced(f),
        Next::To(Unmounting),
    )
    .starts(Operation::Unmount),
    row(
        "F4",
        The(Formatted),
        "want ∧ not mounted ∧ (¬corrupted ∨ repaired) ∧ not foreign",
        |f| {
            mounts(f)
                && f.active
                && f.want
                && (!f.corrupted || f.repaired)
                && f.content != Content::Foreign
        },
        Next::To(Mounting),
    )
    .starts(Operation::Mount),
    row(
        "F5",
        The(Formatted),
        "want ∧ corrupted ∧ ¬repaired ∧ no format request",
        |f| mounts(f) && f.active && f.want && f.corrupted && !f.repaired,
        Next::Same,
    )
    .and(&[Effect::Corrupted]),
    row(
        "F6",
        The(Formatted),
        "¬want ∧ mounted at our point",
        |f| mounts(f) && !f.want && matches!(f.mount, Mount::Right | Mount::Stacked),
        Next::To(Unmounting),
    )
    .starts(Operation::Unmount),
    row(
        "F7",
        The(Formatted),
        "filesystem vanished or is foreign",
        |f| f.active && gone(f),
        Next::To(Unprovisioned),
    )
    .and(&[Effect::Forgotten]),
    row("F8", The(Formatted), "otherwise", |_| true, Next::Same),
    row("MG1", The(Mounting), "ok", |f| ended(f, Ending::Ok), Next::To(Mounted))
        .and(&[Effect::Mounted]),
    row(
        "MG2",
        The(Mounting),
        "wrong filesystem type, bad superblock",
        |f| ended(f, Ending::BadSuperblock),
        Next::Failed("Corrupted"),
    )
    .and(&[Effect::Damaged, Effect::NotMounted]),
    row("MG3", The(Mounting), "other error or time-out", fails, Next::Failed("MountFailed"))
        .and(&[Effect::NotMounted]),
    row("M7", The(Mounted), "¬want ∧ still registered", left_over, Next::To(Unprovisioning))
        .starts(Operation::Deregister),
    row(
        "M1",
        The(Mounted),
        "¬want ∧ mounted at our point",
        |f| !f.want && matches!(f.mount, Mount::Right | Mount::Stacked),
        Next::To(Unmounting),
    )
    .starts(Operation::Unmount),
    row(
        "M2",
        The(Mounted),
        "not mounted any more, or unwanted and not at our point",
        |f| f.mount == Mount::Nowhere || !f.want,
        Next::To(Formatted),
    )
    .and(&[Effect::NotMounted]),
    row(
        "M8",
        The(Mounted),
        "want ∧ mounted elsewhere or stacked ∧ registered, or a replica is on it",
        |f| f.active && f.want && f.pooled() && displaced(f),
        Next::Same,
    )
    .and(&[Effect::Displaced]),
    row(
        "M9",
        The(Mounted),
        "want ∧ mounted by another program ∧ not adopted by name",
        |f| f.active && f.want && occupied(f),
        Next::Same,
    )
    .and(&[Effect::MountedElsewhere]),
    row(
        "M3",
        The(Mounted),
        "want ∧ wrong or stacked mount",
        |f| f.active && f.want && misplaced(f),
        Next::To(Unmounting),
    )
    .starts(Operation::Unmount),
    row(
        "M4",
        The(Mounted),
        "want ∧ node not known where disks are used, or Inactive",
        |f| f.record == Record::NoNode || !f.active,
        Next::Same,
    )
    .and(&[Effect::Later]),
    row(
        "M6",
        The(Mounted),
        "want ∧ the filesystem was replaced, is gone or is read-only",
        faulty,
        Next::Failed("FilesystemChanged"),
    )
    .and(&[Effect::Faulty]),
    row("M5", The(Mounted), "want", |_| true, Next::To(Provisioning)).starts(Operation::Register),
    row(
        "PG1",
        The(Provisioning),
        "ok (record present and equal)",
        |f| ended(f, Ending::Ok),
        Next::To(Provisioned),
    )
    .and(&[Effect::Provisioned]),
    row(
        "PG2",
        The(Provisioning),
        "conflict: read again, tried again within the operation",
        |f| ended(f, Ending::Conflict),
        Next::Same,
    ),
    row(
        "PG3",
        The(Provisioning),
        "node gone where disks are used",
        |f| ended(f, Ending::NodeGone) && mounts(f),
        Next::To(Mounted),
    ),
    row(
        "PG3",
        The(Provisioning),
        "LVM: node gone where disks are used",
        |f| ended(f, Ending::NodeGone),
        Next::To(Formatted),
    ),
    row("PG4", The(Provisioning), "error or time-out", fails, Next::Failed("ProvisionFailed"))
        .and(&[Effect::NotProvisioned]),
    row(
        "P10",
        The(Provisioned),
        "corrupted ∧ format request ∧ not mounted: the lost pool is removed first",
        |f| f.corrupted && f.request && f.mount == Mount::Nowhere,
        Next::To(Unprovisioning),
    )
    .starts(Operation::Deregister),
    row("P1", The(Provisioned), "¬want", |f| !f.want, Next::To(Unprovisioning))
        .starts(Operation::Deregister),
    row("P2", The(Provisioned), "Inactive", |f| !f.active, Next::Same),
    row(
        "P3",
        The(Provisioned),
        "mount missing, or something else at our point",
        |f| mounts(f) && !matches!(f.mount, Mount::Right | Mount::Stacked),
        Next::To(Formatted),
    )
    .and(&[Effect::NotMounted]),
    row(
        "P9",
        The(Provisioned),
        "want ∧ mounted ∧ the filesystem was replaced, is gone or is read-only",
        faulty,
        Next::Failed("FilesystemChanged"),
    )
    .and(&[Effect::Faulty]),
    row(
        "P4",
        The(Provisioned),
        "record missing",
        |f| f.record == Record::Missing && mounts(f),
        Next::To(Mounted),
    )
    .and(&[Effect::NotProvisioned]),
    row(
        "P4",
        The(Provisioned),
        "LVM: record missing",
        |f| f.record == Record::Missing,
        Next::To(Formatted),
    )
    .and(&[Effect::NotProvisioned]),
    row(
        "P5",
        The(Provisioned),
        "record has another path",
        |f| f.record == Record::OtherPath,
        Next::To(Unprovisioning),
    )
    .starts(Operation::Deregister),
    row("P6", The(Provisioned), "tags differ", |f| f.record == Record::OtherTags, Next::Same)
        .starts(Operation::Sync),
    row("P7", The(Provisioned), "new format request", |f| f.request, Next::Same)
        .and(&[Effect::InUse]),
    row("P8", The(Provisioned), "otherwise", |_| true, Next::Same),
    row(
        "UG3",
        The(Unprovisioning),
        "ok ∧ disk Inactive or corrupted ∧ already closed",
        |f| ended(f, Ending::Ok) && (!f.active || f.corrupted) && f.closed,
        Next::To(Unprovisioned),
    )
    .and(&[Effect::NotMounted, Effect::NotProvisioned]),
    row(
        "UG1",
        The(Unprovisioning),
        "replicas remain: closed and emptied once, then waited for",
        |f| ended(f, Ending::ReplicasRemain) && !f.want,
        Next::Same,
    )
    .and(&[Effect::Later]),
    row(
        "UG2",
        The(Unprovisioning),
        "ok: no replicas, record removed",
        |f| ended(f, Ending::Ok) && mounts(f),
        Next::To(Mounted),
    )
    .and(&[Effect::NotProvisioned]),
    row(
        "UG2",
        The(Unprovisioning),
        "LVM: ok, no replicas, record and group removed",
        |f| ended(f, Ending::Ok),
        Next::To(Unprovisioned),
    )
    .and(&[Effect::NotProvisioned, Effect::Forgotten]),
    row(
        "UG4",
        The(Unprovisioning),
        "replicas remain ∧ wanted again: completes first",
        |f| ended(f, Ending::ReplicasRemain),
        Next::Same,
    )
    .and(&[Effect::Later]),
    row("UG5", The(Unprovisioning), "error", fails, Next::Failed("UnprovisionFailed")),
    row(
        "NG1",
        The(Unmounting),
        "ok, or not mounted already",
        |f| ended(f, Ending::Ok),
        Next::To(Formatted),
    )
    .and(&[Effect::NotMounted]),
    row("NG2", The(Unmounting), "target busy or time-out", fails, Next::Failed("Busy")),
    row(
        "X3",
        The(Failed),
        "late result of an operation that was given up",
        |f| !looks(f),
        Next::Same,
    )
    .and(&[Effect::Discard]),
    row(
        "X2",
        The(Failed),
        "explicit re-trigger ∧ lease free",
        |f| f.retrigger != Retrigger::None && f.lease_free,
        Next::Derive,
    )
    .and(&[Effect::Cleared]),
    row("X1", The(Failed), "scan, event, resync, restart", |_| true, Next::Same),
];
