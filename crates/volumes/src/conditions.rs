//! Sets and removes conditions, and reports whether that changed the object.

use jiff::Timestamp;
use mainstay_controller::conditions::Report;
use mainstay_store::meta::{Condition, ConditionStatus};

/// The content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The type.
    pub kind: &'static str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The reason, as one CamelCase word.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl Statement {
    /// A statement with status True or False.
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

/// Sets a condition. Returns whether that changed anything. lastTransitionTime changes only with the
/// status.
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

/// Removes a condition. Returns whether it existed.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    mainstay_controller::conditions::remove(conditions, kind)
}
