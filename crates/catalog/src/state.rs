//! Enumerations of the catalog (types and states), each stored as one letter and shown by name.

use serde::Serialize;

use crate::row::Stored;

/// Defines an enumeration that is stored as one letter and shown by name.
macro_rules! letters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $letter:literal $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The letter it is stored as.
            #[must_use]
            pub const fn letter(self) -> &'static str {
                match self { $(Self::$variant => $letter),+ }
            }

            /// The name it is shown as.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads a letter or a name.
            #[must_use]
            pub fn read(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| {
                    value.letter() == text || value.name().eq_ignore_ascii_case(text)
                })
            }
        }

        impl Stored for $name {
            const NAME: &'static str = stringify!($name);

            fn from_letter(letter: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.letter() == letter)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

letters! {
    /// The type of a data identifier.
    DidType {
        /// One file.
        File = "F" "FILE",
        /// A set of files.
        Dataset = "D" "DATASET",
        /// A set of datasets or of containers.
        Container = "C" "CONTAINER",
    }
}

letters! {
    /// The state of a rule.
    RuleState {
        /// Copies are being made.
        Replicating = "R" "REPLICATING",
        /// Every copy exists.
        Ok = "O" "OK",
        /// A copy could not be made; the repairer tries again.
        Stuck = "S" "STUCK",
        /// It is not worked on until an operator resumes it.
        Suspended = "U" "SUSPENDED",
        /// It must be approved first.
        WaitingApproval = "W" "WAITING_APPROVAL",
        /// The injector will apply it.
        Inject = "I" "INJECT",
    }
}

letters! {
    /// The state of one lock.
    LockState {
        /// The copy is being made.
        Replicating = "R" "REPLICATING",
        /// The copy exists.
        Ok = "O" "OK",
        /// The copy could not be made.
        Stuck = "S" "STUCK",
    }
}

letters! {
    /// The state of a replica.
    ReplicaState {
        /// It exists and can be read.
        Available = "A" "AVAILABLE",
        /// It does not exist.
        Unavailable = "U" "UNAVAILABLE",
        /// It is being written.
        Copying = "C" "COPYING",
        /// It is being deleted.
        BeingDeleted = "B" "BEING_DELETED",
        /// Its content is wrong.
        Bad = "D" "BAD",
        /// It exists, but cannot be read now.
        TemporaryUnavailable = "T" "TEMPORARY_UNAVAILABLE",
    }
}

letters! {
    /// Which files of a rule are placed on the same RSEs.
    Grouping {
        /// All files of the rule.
        All = "A" "ALL",
        /// The files of each dataset.
        Dataset = "D" "DATASET",
        /// None: each file by itself.
        None = "N" "NONE",
    }
}

letters! {
    /// When a rule sends notifications.
    Notification {
        /// Always.
        Yes = "Y" "YES",
        /// Never.
        No = "N" "NO",
        /// When the data identifier is closed.
        Close = "C" "CLOSE",
        /// With its progress.
        Progress = "P" "PROGRESS",
    }
}

letters! {
    /// The state of a transfer request.
    RequestState {
        /// Waits for a worker.
        Queued = "Q" "QUEUED",
        /// A worker is taking it.
        Submitting = "G" "SUBMITTING",
        /// The transfer is running.
        Submitted = "S" "SUBMITTED",
        /// The transfer succeeded; the finisher has not processed it yet.
        Done = "D" "DONE",
        /// The transfer failed; the finisher has not processed it yet.
        Failed = "F" "FAILED",
        /// Its outcome is unknown.
        Lost = "L" "LOST",
        /// No source replica is available.
        NoSources = "N" "NO_SOURCES",
        /// All source replicas are on tape.
        OnlyTapeSources = "O" "ONLY_TAPE_SOURCES",
        /// It could not be submitted.
        SubmissionFailed = "A" "SUBMISSION_FAILED",
        /// Source and destination share no protocol.
        MismatchScheme = "M" "MISMATCH_SCHEME",
        /// It is no longer needed (history only).
        Cancelled = "X" "CANCELLED",
    }
}

impl RequestState {
    /// Whether it is final: no worker has it or will take it.
    #[must_use]
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Queued | Self::Submitting | Self::Submitted)
    }
}
