//! Decisions about locks, replicas, requests and rule states.
//!
//! All functions are pure. The decision about one copy ([`copy`]) exists once, as a function; the
//! set-based SQL uses a `CASE` expression that is rendered from it ([`copy_sql`]), so the two
//! cannot differ.

use crate::api::{Counts, LockState, Micros, Notification, ReplicaState, Rule, RuleState, SECOND};

/// The effect of creating a lock on one (file, RSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The state of the new lock.
    pub lock: LockState,
    /// The state of the replica afterwards.
    pub replica: ReplicaState,
    /// Whether a transfer is requested.
    pub transfer: bool,
}

/// Decides about one copy. `before` is the replica at the target, `source` whether the source
/// expression (if any) has an available replica, `writable` whether the target takes writes.
#[must_use]
pub fn copy(before: Option<ReplicaState>, source: bool, writable: bool) -> Copy {
    use ReplicaState as Replica;
    let made = |lock, replica, transfer| Copy { lock, replica, transfer };
    match before {
        Some(there @ (Replica::Available | Replica::TemporaryUnavailable)) => {
            made(LockState::Ok, there, false)
        }
        Some(Replica::Copying) => made(LockState::Replicating, Replica::Copying, false),
        // The reaper may be removing it: it sees the lock and leaves an unavailable replica.
        Some(Replica::BeingDeleted) => made(LockState::Stuck, Replica::BeingDeleted, false),
        None | Some(Replica::Unavailable | Replica::Bad) if source && writable => {
            made(LockState::Replicating, Replica::Copying, true)
        }
        Some(there) => made(LockState::Stuck, there, false),
        None => made(LockState::Stuck, Replica::Unavailable, false),
    }
}

/// Which field of a [`struct@Copy`] an SQL expression yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// [`Copy::lock`] as a letter.
    Lock,
    /// [`Copy::replica`] as a letter.
    Replica,
    /// [`Copy::transfer`] as 0 or 1.
    Transfer,
}

/// [`copy`] as an SQL expression over a replica state (`-` for none) and two numbers 0 or 1.
#[must_use]
pub fn copy_sql(before: &str, source: &str, writable: &str, field: Field) -> String {
    let value = |decided: Copy| match field {
        Field::Lock => format!("'{}'", decided.lock.letter()),
        Field::Replica => format!("'{}'", decided.replica.letter()),
        Field::Transfer => i64::from(decided.transfer).to_string(),
    };
    let mut text = String::from("CASE");
    for state in std::iter::once(None).chain(ReplicaState::ALL.iter().copied().map(Some)) {
        let letter = state.map_or("-", ReplicaState::letter);
        let otherwise = value(copy(state, false, false));
        for (source_is, writable_is) in [(true, true), (true, false), (false, true)] {
            let decided = value(copy(state, source_is, writable_is));
            if decided != otherwise {
                let (source_is, writable_is) = (i64::from(source_is), i64::from(writable_is));
                text.push_str(&format!(
                    " WHEN {before} = '{letter}' AND {source} = {source_is} AND {writable} = \
                     {writable_is} THEN {decided}"
                ));
            }
        }
        text.push_str(&format!(" WHEN {before} = '{letter}' THEN {otherwise}"));
    }
    text.push_str(" END");
    text
}

/// The state a rule settles in. `complete` is false while files lack locks because placing failed.
#[must_use]
pub fn settle(rule: &Rule, counts: Counts, complete: bool) -> RuleState {
    match rule.state {
        RuleState::WaitingApproval | RuleState::Inject => rule.state,
        // A rule suspended by a user stays suspended; one suspended by the repairer becomes OK once
        // all copies exist.
        RuleState::Suspended if rule.suspended_by.as_deref() != Some("repairer") => rule.state,
        RuleState::Suspended if counts.stuck + counts.replicating > 0 || !complete => rule.state,
        _ if counts.stuck > 0 || !complete => RuleState::Stuck,
        _ if counts.replicating > 0 => RuleState::Replicating,
        _ => RuleState::Ok,
    }
}

/// How long the repairer waits before it retries a stuck lock in place.
#[must_use]
pub fn retry_delay(activity: &str, stuck_for: Micros, delays: &[Micros]) -> Micros {
    let first = delays.first().copied().unwrap_or(0);
    match activity {
        "DebugJudge" => 0,
        "Express" => first,
        _ => {
            let day = usize::try_from(stuck_for / (86_400 * SECOND)).unwrap_or(usize::MAX);
            delays.get(day).or(delays.last()).copied().unwrap_or(0)
        }
    }
}

/// The progress of a rule in steps of ten per cent.
#[must_use]
pub fn progress(counts: Counts) -> i64 {
    if counts.total() == 0 { 100 } else { counts.ok * 10 / counts.total() * 10 }
}

/// Whether a rule that has become OK sends a notification.
#[must_use]
pub fn announces_ok(notification: Notification, closed: bool) -> bool {
    match notification {
        Notification::Yes => true,
        Notification::Close | Notification::Progress => closed,
        Notification::No => false,
    }
}

/// The part of an error that fits the rule's error field.
#[must_use]
pub fn clip(error: &str, most: usize) -> String {
    if error.chars().count() <= most {
        return error.to_owned();
    }
    let mut text: String = error.chars().take(most.saturating_sub(3)).collect();
    text.push_str("...");
    text
}

/// The replicas that the reaper may take on one RSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reap {
    /// Unlocked replicas with a tombstone in the past, oldest first, this many bytes.
    Until(i64),
    /// Everything unlocked with a tombstone in the past.
    Everything,
    /// Only obsolete replicas.
    Obsolete,
    /// No replica.
    Nothing,
}

/// Decides which replicas the reaper takes. Deletion stops while the evaluator is behind: replicas
/// may be needed by changes that it has not processed yet.
#[must_use]
pub fn reap(deletable: bool, backlog: bool, greedy: bool, needed: Option<i64>) -> Reap {
    match needed {
        _ if !deletable || backlog => Reap::Nothing,
        _ if greedy => Reap::Everything,
        Some(needed) if needed > 0 => Reap::Until(needed),
        _ => Reap::Obsolete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_and_replica_states_follow_the_table() {
        use LockState as Lock;
        use ReplicaState as Replica;
        for (before, source, writable, lock, replica, transfer) in [
            (Some(Replica::Available), false, false, Lock::Ok, Replica::Available, false),
            (
                Some(Replica::TemporaryUnavailable),
                true,
                true,
                Lock::Ok,
                Replica::TemporaryUnavailable,
                false,
            ),
            (Some(Replica::Copying), false, false, Lock::Replicating, Replica::Copying, false),
            (Some(Replica::Unavailable), true, true, Lock::Replicating, Replica::Copying, true),
            (Some(Replica::Unavailable), true, false, Lock::Stuck, Replica::Unavailable, false),
            (Some(Replica::Unavailable), false, true, Lock::Stuck, Replica::Unavailable, false),
            (None, true, true, Lock::Replicating, Replica::Copying, true),
            (None, true, false, Lock::Stuck, Replica::Unavailable, false),
            (None, false, true, Lock::Stuck, Replica::Unavailable, false),
        ] {
            let made = Copy { lock, replica, transfer };
            assert_eq!(copy(before, source, writable), made, "{before:?} {source} {writable}");
        }
    }

    #[test]
    fn no_lock_replicates_without_a_copying_replica() {
        for state in ReplicaState::ALL.iter().copied().map(Some).chain([None]) {
            for (source, writable) in [(true, true), (true, false), (false, true), (false, false)] {
                let made = copy(state, source, writable);
                let copying = made.replica == ReplicaState::Copying;
                assert_eq!(made.lock == LockState::Replicating, copying);
                assert!(!made.transfer || copying);
            }
        }
    }

    #[test]
    fn retries_slow_down_by_the_day() {
        let delays = [2, 4, 6, 8].map(|hours| hours * 3600 * SECOND);
        let day = 86_400 * SECOND;
        for (activity, age, hours) in [
            ("User Subscriptions", 0, 2),
            ("User Subscriptions", day, 4),
            ("User Subscriptions", 9 * day, 8),
            ("Express", 9 * day, 2),
            ("DebugJudge", 9 * day, 0),
        ] {
            assert_eq!(
                retry_delay(activity, age, &delays),
                hours * 3600 * SECOND,
                "{activity} {age}"
            );
        }
    }
}
