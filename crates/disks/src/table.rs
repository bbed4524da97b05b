//! The transition table, as data: one row for each line of the document.
//!
//! [`decide`] takes the first row whose phase and guard match. Every pair of phase and input has a
//! row; a disk reaches Formatting only by rows whose guard names the gate; and no two rows send a
//! disk round in a circle (all three are properties of the tests). `mainstay disks table` prints
//! [`ROWS`]; [`diagram`] draws them.

mod notes;
mod rows;

pub use self::rows::ROWS;
use crate::phase::Phase::{Failed, Formatted, Mounted, Unprovisioned};
use crate::phase::{Facts, Operation, Phase};

/// The phases a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Every phase.
    Any,
    /// A value that is no phase.
    Unknown,
    /// Every lock phase.
    Lock,
    /// Every phase that is no lock, but Failed.
    Stable,
    /// This one.
    The(Phase),
}

impl On {
    fn covers(self, phase: Option<Phase>) -> bool {
        match (self, phase) {
            (Self::Any, _) | (Self::Unknown, None) => true,
            (Self::The(this), Some(phase)) => this == phase,
            (Self::Lock, Some(phase)) => phase.is_lock(),
            (Self::Stable, Some(phase)) => !phase.is_lock() && phase != Phase::Failed,
            (_, None) | (Self::Unknown, Some(_)) => false,
        }
    }

    /// How the table writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Unknown => "unknown value",
            Self::Lock => "any lock phase",
            Self::Stable => "any stable phase",
            Self::The(phase) => phase.as_str(),
        }
    }
}

/// The phase after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same.
    Same,
    /// This one.
    To(Phase),
    /// Failed, for this reason; the ending of an operation may say it better.
    Failed(&'static str),
    /// By the facts ([`Facts::derive`]).
    Derive,
}

/// An effect of a row on the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Condition Refused: the gate's reasons.
    Refused,
    /// Condition NeedsFormat.
    NeedsFormat,
    /// Condition NeedsFormat, because of a partition table.
    Partitioned,
    /// Condition Formatted=True, UUID recorded, corrupted=false.
    Formatted,
    /// The filesystem's UUID is recorded.
    Adopted,
    /// Condition Formatted=False.
    NotFormatted,
    /// The recorded UUID is forgotten.
    Forgotten,
    /// Condition Corrupted.
    Corrupted,
    /// corrupted=true.
    Damaged,
    /// Condition Mounted=True.
    Mounted,
    /// Condition Mounted=False.
    NotMounted,
    /// Condition Provisioned=True.
    Provisioned,
    /// Condition Provisioned=False.
    NotProvisioned,
    /// Condition Refused: unprovision first.
    InUse,
    /// Condition Refused: the disk is mounted in a wrong place, and its pool is in use.
    Displaced,
    /// Condition Refused: another program has mounted the disk.
    MountedElsewhere,
    /// Looked at again after a while.
    Later,
    /// The result is thrown away, only the lease is let go.
    Discard,
    /// The failure is cleared.
    Cleared,
    /// The reason of the failure is the fault that was found.
    Faulty,
}

impl Effect {
    /// How the table writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "Refused=True with the gate's reasons, 0 bytes written",
            Self::NeedsFormat => "NeedsFormat=True",
            Self::Partitioned => "NeedsFormat=True (PartitionedUnsupported)",
            Self::Formatted => "Formatted=True and time, UUID recorded, corrupted=false",
            Self::Adopted => "UUID recorded",
            Self::NotFormatted => "Formatted=False",
            Self::Forgotten => "recorded UUID forgotten",
            Self::Corrupted => "Corrupted=True",
            Self::Damaged => "corrupted=true",
            Self::Mounted => "Mounted=True",
            Self::NotMounted => "Mounted=False",
            Self::Provisioned => "Provisioned=True",
            Self::NotProvisioned => "Provisioned=False",
            Self::InUse => "Refused=True: unprovision first",
            Self::Displaced => "Refused=True: remove the wrong mount by hand",
            Self::MountedElsewhere => "Refused=True: unmount it by hand, or adopt it",
            Self::Later => "checked again later",
            Self::Discard => "result discarded, lease let go",
            Self::Cleared => "failure cleared",
            Self::Faulty => "the reason is the fault that was found",
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number in the document.
    pub id: &'static str,
    /// The phases it is about.
    pub on: On,
    /// When, in words.
    pub guard: &'static str,
    /// When.
    pub when: fn(&Facts) -> bool,
    /// The phase after.
    pub next: Next,
    /// The operation that follows.
    pub operation: Option<Operation>,
    /// The effects on the status.
    pub effects: &'static [Effect],
}

/// The decision for a phase and facts.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The row that decided.
    pub row: &'static Row,
    /// The phase after.
    pub next: Phase,
}

impl Decision {
    /// The operation to run, under its lock phase or (Sync) without one.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.row.operation
    }
}

/// Decides. `phase` is `None` for a value that is no phase.
///
/// # Panics
/// Never: the table has a row for every phase and input.
#[must_use]
pub fn decide(phase: Option<Phase>, facts: &Facts) -> Decision {
    let row = ROWS.iter().find(|row| row.on.covers(phase) && (row.when)(facts));
    let row = row.expect("the table has a row for every phase and input");
    let next = match row.next {
        Next::Same => phase.unwrap_or(Failed),
        Next::To(phase) => phase,
        Next::Failed(_) => Failed,
        Next::Derive => facts.derive(),
    };
    Decision { row, next }
}

/// The table for people: one line a row.
#[must_use]
pub fn text() -> String {
    let heads = ["#", "Phase", "Guard", "Next", "Operation", "Effect", "Differs from the document"];
    let mut lines = vec![heads.map(str::to_owned)];
    for row in ROWS {
        let next = match row.next {
            Next::Same => "same".to_owned(),
            Next::To(phase) => phase.to_string(),
            Next::Failed(reason) => format!("Failed({reason})"),
            Next::Derive => "what can be seen".to_owned(),
        };
        let operation = row.operation.map_or("—", Operation::as_str).to_owned();
        let effects: Vec<_> = row.effects.iter().map(|effect| effect.as_str()).collect();
        let effects = if effects.is_empty() { "—".to_owned() } else { effects.join("; ") };
        let differs = notes::of(row.id).unwrap_or("—");
        let words = [row.id, row.on.as_str(), row.guard, differs].map(str::to_owned);
        let [id, on, guard, differs] = words;
        lines.push([id, on, guard, next, operation, effects, differs]);
    }
    let mut out = String::new();
    for (count, line) in lines.iter().enumerate() {
        out.push_str(&format!("| {} |\n", line.join(" | ")));
        if count == 0 {
            out.push_str(&format!("{}|\n", "|---".repeat(heads.len())));
        }
    }
    out
}

/// The table as a state diagram (Mermaid).
#[must_use]
pub fn diagram() -> String {
    let mut out = String::from("stateDiagram-v2\n    [*] --> Unprovisioned\n");
    let mut seen = std::collections::BTreeSet::new();
    for row in ROWS {
        let On::The(from) = row.on else { continue };
        let to: &[Phase] = match row.next {
            Next::Same => continue,
            Next::To(ref phase) => std::slice::from_ref(phase),
            Next::Failed(_) => &[Failed],
            Next::Derive => &[Unprovisioned, Formatted, Mounted, Phase::Provisioned],
        };
        for to in to {
            if seen.insert((row.id, from, *to)) {
                out.push_str(&format!("    {from} --> {to}: {}\n", row.id));
            }
        }
    }
    for phase in Phase::ALL.into_iter().filter(|phase| phase.is_lock()) {
        out.push_str(&format!("    {phase}: {phase} (lock)\n"));
    }
    out
}

#[cfg(test)]
mod tests;
