//! The things the catalog speaks of, and what makes a name or a value valid.

use serde::{Deserialize, Serialize};

use crate::error::{Class, Error, Result, refuse};

/// Seconds and the like are kept as microseconds since 1970, UTC.
pub type Micros = i64;

/// One second in [`Micros`].
pub const SECOND: Micros = 1_000_000;

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

/// The name of a data identifier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Did {
    /// Its scope.
    pub scope: String,
    /// Its name within the scope.
    pub name: String,
}

impl Did {
    /// A name from its two parts.
    pub fn new(scope: impl Into<String>, name: impl Into<String>) -> Self {
        Self { scope: scope.into(), name: name.into() }
    }

    /// Reads `scope:name`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scope, name) = text.split_once(':')?;
        Some(Self::new(scope, name))
    }

    /// Fails unless both parts are well-formed.
    pub fn check(&self) -> Result<()> {
        check_scope(&self.scope)?;
        let first = self.name.bytes().next();
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
        let well = first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
            && self.name.len() <= 250
            && self.name.bytes().all(legal)
            && !self.name.split('/').any(|part| part == "." || part == "..");
        if well {
            Ok(())
        } else {
            let right = "^[A-Za-z0-9/][A-Za-z0-9/._-]*$ of at most 250, without parts . and ..";
            Err(malformed("name", &self.name, right))
        }
    }
}

impl std::fmt::Display for Did {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.scope, self.name)
    }
}

fn malformed(what: &str, value: &str, right: &str) -> Error {
    let shown: String = value.chars().take(60).collect();
    refuse(
        Class::InvalidObject,
        format!("Problem validating {what}: {shown:?} does not match {right}"),
    )
}

/// Fails unless `scope` is well-formed.
pub fn check_scope(scope: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=25).contains(&scope.len()) && scope.bytes().all(legal) {
        Ok(())
    } else {
        Err(malformed("scope", scope, "^[A-Za-z0-9._-]{1,25}$"))
    }
}

/// Fails unless `account` is well-formed.
pub fn check_account(account: &str) -> Result<()> {
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=25).contains(&account.len()) && account.bytes().all(legal) {
        Ok(())
    } else {
        Err(malformed("account", account, "^[a-z0-9_-]{1,25}$"))
    }
}

/// Fails unless `rse` is well-formed: upper-case words joined by single `_` or `-`.
pub fn check_rse(rse: &str) -> Result<()> {
    let word = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    };
    if rse.len() <= 255 && rse.split(['_', '-']).all(word) {
        Ok(())
    } else {
        Err(malformed("rse", rse, "upper-case words joined by single _ or -"))
    }
}

/// A file as it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFile {
    /// Its name.
    #[serde(flatten)]
    pub did: Did,
    /// Its size.
    pub bytes: i64,
    /// Its Adler-32 checksum, eight hexadecimal digits.
    #[serde(default)]
    pub adler32: Option<String>,
    /// Its MD5 checksum.
    #[serde(default)]
    pub md5: Option<String>,
    /// Where it lies on an RSE that does not derive paths.
    #[serde(default, alias = "pfn")]
    pub path: Option<String>,
    /// The state of the new replica, available unless said otherwise.
    #[serde(default)]
    pub state: Option<String>,
}

/// A data identifier as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DidRecord {
    /// The catalog's own number for it.
    pub id: i64,
    /// Its name.
    pub did: Did,
    /// What it names.
    pub did_type: DidType,
    /// Who made it.
    pub account: String,
    /// Whether it takes new contents.
    pub is_open: bool,
    /// Kept and shown, never enforced.
    pub monotonic: bool,
    /// Whether the last copy of the file is gone.
    pub lost: bool,
    /// Size, of files always, of collections once closed.
    pub bytes: Option<i64>,
    /// Number of files, of collections once closed.
    pub length: Option<i64>,
    /// Checksum of a file.
    pub md5: Option<String>,
    /// Checksum of a file.
    pub adler32: Option<String>,
    /// When it expires.
    pub expired_at: Option<Micros>,
    /// When it was closed.
    pub closed_at: Option<Micros>,
    /// When it was made.
    pub created_at: Micros,
    /// When it was last changed.
    pub updated_at: Micros,
}

/// A new rule, for one or several data identifiers.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRule {
    /// What it is for.
    pub dids: Vec<Did>,
    /// Who pays.
    pub account: String,
    /// How many copies, at least one.
    pub copies: i64,
    /// Where they may be.
    pub rse_expression: String,
    /// Which files share their RSEs.
    pub grouping: Grouping,
    /// The RSE attribute that weighs the choice.
    pub weight: Option<String>,
    /// Seconds until it expires; none means never.
    pub lifetime: Option<i64>,
    /// Whether it is safe from deletion.
    pub locked: bool,
    /// Where copies may be made from.
    pub source_replica_expression: Option<String>,
    /// What the transfers are for.
    pub activity: String,
    /// When it tells the world.
    pub notify: Notification,
    /// Whether replicas are to vanish at once when it goes.
    pub purge_replicas: bool,
    /// Whether RSEs that cannot be written now are targets too.
    pub ignore_availability: bool,
    /// Whether quotas do not count.
    pub ignore_account_limit: bool,
    /// A word for people.
    pub comment: Option<String>,
    /// Whether somebody must approve it first.
    pub ask_approval: bool,
    /// Whether the injector applies it.
    pub asynchronous: bool,
    /// Seconds until the injector applies it.
    pub delay_injection: Option<i64>,
    /// Of its transfers, 1 to 5.
    pub priority: i64,
    /// Whether a container becomes one rule for each dataset.
    pub split_container: bool,
    /// JSON text of the client's own.
    pub meta: Option<String>,
    /// End of life by policy.
    pub eol_at: Option<Micros>,
    /// The subscription that made it.
    pub subscription_id: Option<String>,
}

impl NewRule {
    /// A rule with every option at its default.
    pub fn new(
        dids: Vec<Did>,
        account: impl Into<String>,
        copies: i64,
        rse_expression: impl Into<String>,
    ) -> Self {
        Self {
            dids,
            account: account.into(),
            copies,
            rse_expression: rse_expression.into(),
            grouping: Grouping::Dataset,
            weight: None,
            lifetime: None,
            locked: false,
            source_replica_expression: None,
            activity: DEFAULT_ACTIVITY.to_owned(),
            notify: Notification::No,
            purge_replicas: false,
            ignore_availability: false,
            ignore_account_limit: false,
            comment: None,
            ask_approval: false,
            asynchronous: false,
            delay_injection: None,
            priority: 3,
            split_container: false,
            meta: None,
            eol_at: None,
            subscription_id: None,
        }
    }

    /// Fails when a field is out of its bounds.
    pub fn check(&self) -> Result<()> {
        let long = |what: &str, text: Option<&str>, most: usize| match text {
            Some(text) if text.chars().count() > most => Err(refuse(
                Class::InvalidObject,
                format!("Problem validating rule: {what} is longer than {most}"),
            )),
            _ => Ok(()),
        };
        if self.copies <= 0 {
            let message = "The number of copies for a replication rule should be greater than 0.";
            return Err(refuse(Class::InvalidValueForKey, message));
        }
        if self.copies > 1_000 {
            return Err(refuse(
                Class::InvalidValueForKey,
                "The number of copies for a replication rule should be at most 1000.",
            ));
        }
        if self.dids.is_empty() {
            return Err(refuse(Class::InvalidObject, "Problem validating rule: dids is empty"));
        }
        if !(1..=5).contains(&self.priority) {
            return Err(refuse(
                Class::InvalidObject,
                "Problem validating rule: priority is not between 1 and 5",
            ));
        }
        check_seconds("rule", self.lifetime)?;
        check_seconds("rule", self.delay_injection)?;
        long("rse_expression", Some(&self.rse_expression), 3000)?;
        long("source_replica_expression", self.source_replica_expression.as_deref(), 255)?;
        long("comment", self.comment.as_deref(), 250)?;
        long("meta", self.meta.as_deref(), 3999)?;
        long("weight", self.weight.as_deref(), 255)?;
        long("activity", Some(&self.activity), 50)
    }
}

/// The activity of a rule that names none.
pub const DEFAULT_ACTIVITY: &str = "User Subscriptions";

/// Activities a rule may name.
const ACTIVITIES: &[&str] = &[
    "Data Brokering",
    "Data Consolidation",
    "Data Rebalancing",
    "Debug",
    "DebugJudge",
    "Express",
    "Functional Test",
    "Group Subscriptions",
    "Production Input",
    "Production Output",
    "Analysis Input",
    "Analysis Output",
    "Staging",
    "T0 Export",
    "T0 Tape",
    "Upload/Download (Job)",
    "Upload/Download (User)",
    "User Subscriptions",
    "Data Challenge",
    "Recovery",
];

/// Fails unless a rule may name this activity.
pub(crate) fn check_activity(activity: &str) -> Result<()> {
    if ACTIVITIES.contains(&activity) {
        return Ok(());
    }
    let message = format!("Problem validating rule: '{activity:.50}' is not one of {ACTIVITIES:?}");
    Err(refuse(Class::InvalidObject, message))
}

/// The furthest moment that is meant seriously, in seconds from now.
const HORIZON: i64 = 1_000 * 366 * 86_400;

/// Fails when a time is further away than anybody means.
pub(crate) fn check_seconds(what: &str, seconds: Option<i64>) -> Result<()> {
    match seconds {
        Some(seconds) if !(-HORIZON..=HORIZON).contains(&seconds) => {
            let message = format!("Problem validating {what}: a time is more than 1000 years away");
            Err(refuse(Class::InvalidObject, message))
        }
        _ => Ok(()),
    }
}

/// A rule as stored.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields of NewRule, and what became of them")]
pub struct Rule {
    pub id: i64,
    pub uuid: String,
    pub account: String,
    pub did_id: i64,
    pub did: Did,
    pub did_type: DidType,
    pub copies: i64,
    pub rse_expression: String,
    pub weight: Option<String>,
    pub source_replica_expression: Option<String>,
    pub grouping: Grouping,
    pub state: RuleState,
    pub counts: Counts,
    pub expires_at: Option<Micros>,
    pub eol_at: Option<Micros>,
    pub locked: bool,
    pub activity: String,
    pub priority: i64,
    pub comments: Option<String>,
    pub meta: Option<String>,
    pub notification: Notification,
    pub purge_replicas: bool,
    pub ignore_availability: bool,
    pub ignore_account_limit: bool,
    pub split_container: bool,
    pub child_rule_id: Option<i64>,
    pub subscription_id: Option<String>,
    pub error: Option<String>,
    pub stuck_at: Option<Micros>,
    /// `user` or `repairer`.
    pub suspended_by: Option<String>,
    /// Some files have fewer locks than copies, because placing them failed.
    pub incomplete: bool,
    /// How far the injector came: the dataset and the file.
    pub cursor: Option<(i64, i64)>,
    /// When the repairer looks at it next.
    pub repair_at: Micros,
    pub created_at: Micros,
    pub updated_at: Micros,
    /// Its deletion has begun.
    pub deleted_at: Option<Micros>,
}

/// Locks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that are there.
    pub ok: i64,
    /// Copies on their way.
    pub replicating: i64,
    /// Copies that could not be made.
    pub stuck: i64,
}

impl Counts {
    /// Adds `number` locks of a state.
    pub fn add(&mut self, state: LockState, number: i64) {
        match state {
            LockState::Ok => self.ok += number,
            LockState::Replicating => self.replicating += number,
            LockState::Stuck => self.stuck += number,
        }
    }

    /// All locks.
    #[must_use]
    pub fn total(self) -> i64 {
        self.ok + self.replicating + self.stuck
    }
}

/// Shows a moment as clients read it: `Sun, 15 Nov 2026 22:02:54 UTC`.
#[must_use]
pub fn show_time(at: Micros) -> String {
    jiff::Timestamp::from_microsecond(at)
        .map(|at| at.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_at_the_border() {
        for (scope, name, fits) in [
            ("user.alice", "ds1", true),
            ("user.alice", "/a/b.c_d-e", true),
            ("user.alice", "../x", false),
            ("user.alice", "a/../x", false),
            ("user.alice", "a/./x", false),
            ("user.alice", "a/..", false),
            ("user.alice", "a..b", true),
            ("user alice", "x", false),
            ("", "x", false),
            ("s", "", false),
            ("s", "x'; DROP TABLE dids", false),
        ] {
            assert_eq!(Did::new(scope, name).check().is_ok(), fits, "{scope}:{name}");
        }
        for (rse, fits) in [("SITE-A", true), ("SITE__A", false), ("site", false), ("X1_Y2", true)]
        {
            assert_eq!(check_rse(rse).is_ok(), fits, "{rse}");
        }
    }

    #[test]
    fn times_read_as_clients_expect() {
        assert_eq!(show_time(1_794_780_174_000_000), "Sun, 15 Nov 2026 22:02:54 UTC");
        assert_eq!(show_time(0), "Thu, 01 Jan 1970 00:00:00 UTC");
    }
}
