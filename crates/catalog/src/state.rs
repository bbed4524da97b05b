//! The states and kinds of things, each stored as one letter and shown by name.

use serde::Serialize;

use crate::row::Stored;

/// An enumeration stored as one letter and shown by name.
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
    /// What a data identifier names.
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
        /// Copies are on their way.
        Replicating = "R" "REPLICATING",
        /// Every copy is there.
        Ok = "O" "OK",
        /// A copy could not be made; the repairer tries again.
        Stuck = "S" "STUCK",
        /// Nobody works on it.
        Suspended = "U" "SUSPENDED",
        /// Somebody must approve it first.
        WaitingApproval = "W" "WAITING_APPROVAL",
        /// The injector applies it.
        Inject = "I" "INJECT",
    }
}

letters! {
    /// The state of one lock.
    LockState {
        /// The copy is on its way.
        Replicating = "R" "REPLICATING",
        /// The copy is there.
        Ok = "O" "OK",
        /// The copy could not be made.
        Stuck = "S" "STUCK",
    }
}

letters! {
    /// The state of a replica.
    ReplicaState {
        /// It is there.
        Available = "A" "AVAILABLE",
        /// It is not there.
        Unavailable = "U" "UNAVAILABLE",
        /// It is being written.
        Copying = "C" "COPYING",
        /// It is being deleted.
        BeingDeleted = "B" "BEING_DELETED",
        /// Its content is wrong.
        Bad = "D" "BAD",
        /// It is there, but cannot be read now.
        TemporaryUnavailable = "T" "TEMPORARY_UNAVAILABLE",
    }
}

letters! {
    /// Which files share their RSEs.
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
    /// When a rule tells the world.
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
        /// A worker takes it.
        Submitting = "G" "SUBMITTING",
        /// It runs.
        Submitted = "S" "SUBMITTED",
        /// It is done; the finisher will see to it.
        Done = "D" "DONE",
        /// It failed; the finisher will see to it.
        Failed = "F" "FAILED",
        /// Nobody knows what became of it.
        Lost = "L" "LOST",
        /// There is nothing to copy from.
        NoSources = "N" "NO_SOURCES",
        /// Only tapes have it.
        OnlyTapeSources = "O" "ONLY_TAPE_SOURCES",
        /// It could not be handed over.
        SubmissionFailed = "A" "SUBMISSION_FAILED",
        /// Source and destination share no protocol.
        MismatchScheme = "M" "MISMATCH_SCHEME",
        /// Nobody needs it any more (history only).
        Cancelled = "X" "CANCELLED",
    }
}

impl RequestState {
    /// Whether nobody works on it any more.
    #[must_use]
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Queued | Self::Submitting | Self::Submitted)
    }
}
