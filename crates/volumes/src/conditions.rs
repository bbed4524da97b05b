//! Conditions: set so that what is so already is not written again.

use jiff::Timestamp;
use mainstay_controller::conditions::Report;
use mainstay_store::meta::{Condition, ConditionStatus};

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The type.
    pub kind: &'static str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, in words.
    pub message: String,
}

impl Statement {
    /// A condition that says so.
    #[must_use]
    pub fn new(
        kind: &'static str,
        status: impl Into<ConditionStatus>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status: status.into(), reason, message: message.into() }
    }
}

/// The condition of a type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    mainstay_controller::conditions::get(conditions, kind)
}

/// Whether a condition holds for exactly this generation.
#[must_use]
pub fn holds(conditions: &[Condition], kind: &str, generation: Option<i64>) -> bool {
    find(conditions, kind).is_some_and(|condition| {
        condition.status == ConditionStatus::True && condition.observed_generation == generation
    })
}

/// Sets a condition, and says whether that changed anything. The time of transition changes only
/// with the status.
pub fn set(
    conditions: &mut Vec<Condition>,
    statement: &Statement,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let Statement { kind, status, reason, message } = statement;
    let report = Report::new(kind, *status, reason).message(message).observed(generation);
    mainstay_controller::conditions::set(conditions, &report, now)
}

/// Removes a condition, and says whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    mainstay_controller::conditions::remove(conditions, kind)
}
