//! Rules as requested and as stored.

use super::{Did, DidType, Grouping, LockState, Micros, Notification, RuleState, check_seconds};
use crate::error::{Class, Result, refuse};

/// A new rule, for one or several data identifiers.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRule {
    /// The data identifiers it applies to.
    pub dids: Vec<Did>,
    /// The account that is charged.
    pub account: String,
    /// How many copies, at least one.
    pub copies: i64,
    /// The expression of RSEs that may hold the copies.
    pub rse_expression: String,
    /// Which files share their RSEs.
    pub grouping: Grouping,
    /// The RSE attribute used as weight for the choice.
    pub weight: Option<String>,
    /// Seconds until it expires; none means never.
    pub lifetime: Option<i64>,
    /// Whether it is protected from deletion.
    pub locked: bool,
    /// The expression of RSEs that copies may be made from.
    pub source_replica_expression: Option<String>,
    /// The activity of the transfers.
    pub activity: String,
    /// When notifications are sent.
    pub notify: Notification,
    /// Whether replicas become obsolete as soon as the rule is deleted.
    pub purge_replicas: bool,
    /// Whether RSEs that are closed for writing are targets too.
    pub ignore_availability: bool,
    /// Whether quotas are ignored.
    pub ignore_account_limit: bool,
    /// A free-text comment.
    pub comment: Option<String>,
    /// Whether it needs approval first.
    pub ask_approval: bool,
    /// Whether the injector applies it.
    pub asynchronous: bool,
    /// Seconds until the injector applies it.
    pub delay_injection: Option<i64>,
    /// Priority of its transfers, 1 to 5.
    pub priority: i64,
    /// Whether a container becomes one rule for each dataset.
    pub split_container: bool,
    /// Client-defined JSON text.
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

    /// Fails when a field is out of bounds.
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
pub fn check_activity(activity: &str) -> Result<()> {
    if ACTIVITIES.contains(&activity) {
        return Ok(());
    }
    let message = format!("Problem validating rule: '{activity:.50}' is not one of {ACTIVITIES:?}");
    Err(refuse(Class::InvalidObject, message))
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
    /// The injector's progress: the dataset and the last file.
    pub cursor: Option<(i64, i64)>,
    /// When the repairer processes it next.
    pub repair_at: Micros,
    pub created_at: Micros,
    pub updated_at: Micros,
    /// Its deletion has begun.
    pub deleted_at: Option<Micros>,
}

/// Locks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that exist.
    pub ok: i64,
    /// Copies being transferred.
    pub replicating: i64,
    /// Copies whose transfer failed.
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

    /// The number of all locks.
    #[must_use]
    pub fn total(self) -> i64 {
        self.ok + self.replicating + self.stuck
    }
}
