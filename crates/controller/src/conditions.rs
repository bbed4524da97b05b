//! Conditions: what a controller says about an object, one word at a time.
//!
//! A condition is set on every run and changes rarely, so [`set`] says whether anything changed,
//! and a reconciler writes only then. Always true: `lastTransitionTime` moves when the status
//! moves and never otherwise; the order of conditions stays; fields of others are left alone.
//!
//! [`set`], [`get`] and [`remove`] work on typed lists, [`set_in`], [`get_in`] and [`remove_in`] on
//! `status.conditions` of an object that is plain JSON.

use jiff::Timestamp;
use mainstay_store::meta::{Condition, ConditionStatus, Time};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A condition to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    kind: String,
    status: ConditionStatus,
    reason: String,
    message: String,
    observed_generation: Option<i64>,
    timed: bool,
}

impl Report {
    /// That the condition `kind` has this status, for this reason.
    #[must_use]
    pub fn new(kind: &str, status: impl Into<ConditionStatus>, reason: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            status: status.into(),
            reason: reason.to_owned(),
            message: String::new(),
            observed_generation: None,
            timed: false,
        }
    }

    /// In words for people.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Judged by this generation of the object.
    #[must_use]
    pub fn observed(mut self, generation: Option<i64>) -> Self {
        self.observed_generation = generation;
        self
    }

    /// With `lastUpdateTime`, for kinds that declare it: it moves at every report.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.timed = true;
        self
    }

    /// The changed condition; `None` if it is so already.
    fn over(&self, old: Option<&Condition>, now: Timestamp) -> Option<Condition> {
        let now = Time::new(now);
        let same_status = old.filter(|old| old.status == self.status);
        let since = same_status.and_then(|old| old.last_transition_time);
        let updated = old.and_then(|old| old.last_update_time);
        let new = Condition {
            kind: self.kind.clone(),
            status: self.status,
            reason: self.reason.clone(),
            message: self.message.clone(),
            observed_generation: self.observed_generation,
            last_transition_time: Some(since.unwrap_or(now)),
            last_update_time: if self.timed { Some(now) } else { updated },
        };
        (old != Some(&new)).then_some(new)
    }
}

/// Says it, in its place or at the end. Returns whether that changed anything; saying the same
/// again does not.
pub fn set(conditions: &mut Vec<Condition>, report: &Report, now: Timestamp) -> bool {
    let place = conditions.iter().position(|condition| condition.kind == report.kind);
    let old = place.map(|place| &conditions[place]);
    let Some(new) = report.over(old, now) else {
        return false;
    };
    match place {
        Some(place) => conditions[place] = new,
        None => conditions.push(new),
    }
    true
}

/// The condition of a kind, if there is one.
#[must_use]
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// Whether a condition is true, for this generation or a newer one if one is given.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str, generation: Option<i64>) -> bool {
    get(conditions, kind).is_some_and(|condition| {
        condition.status == ConditionStatus::True
            && generation.is_none_or(|wanted| condition.observed_generation >= Some(wanted))
    })
}

/// Takes it back. Returns whether there was anything to take back.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.kind != kind);
    conditions.len() < before
}

/// Like [`set`], on `status.conditions` of `object`. A condition's further fields are kept.
pub fn set_in(object: &mut Map<String, Value>, report: &Report, now: Timestamp) -> bool {
    let conditions = list_in(object);
    let place = conditions.iter().position(|condition| is(condition, &report.kind));
    let old = place.and_then(|place| Condition::deserialize(&conditions[place]).ok());
    let Some(new) = report.over(old.as_ref(), now) else {
        return false;
    };
    let Ok(Value::Object(new)) = serde_json::to_value(&new) else {
        unreachable!("a condition is an object");
    };
    match place.and_then(|place| conditions[place].as_object_mut()) {
        Some(condition) => {
            if !new.contains_key("observedGeneration") {
                condition.remove("observedGeneration");
            }
            condition.extend(new);
        }
        None => conditions.push(Value::Object(new)),
    }
    true
}

/// Like [`get`], on `status.conditions` of `object`; `None` also if it cannot be read.
#[must_use]
pub fn get_in(object: &Map<String, Value>, kind: &str) -> Option<Condition> {
    let conditions = object.get("status")?.get("conditions")?.as_array()?;
    let condition = conditions.iter().find(|condition| is(condition, kind))?;
    Condition::deserialize(condition).ok()
}

/// Like [`remove`], on `status.conditions` of `object`.
pub fn remove_in(object: &mut Map<String, Value>, kind: &str) -> bool {
    let status = object.get_mut("status").and_then(Value::as_object_mut);
    let conditions = status.and_then(|status| status.get_mut("conditions"));
    let Some(conditions) = conditions.and_then(Value::as_array_mut) else {
        return false;
    };
    let before = conditions.len();
    conditions.retain(|condition| !is(condition, kind));
    conditions.len() < before
}

fn is(condition: &Value, kind: &str) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(kind)
}

/// The list in its place, made if it is not there.
fn list_in(object: &mut Map<String, Value>) -> &mut Vec<Value> {
    let status = object.entry("status").or_insert(Value::Null);
    if !status.is_object() {
        *status = Value::Object(Map::new());
    }
    let conditions = &mut status["conditions"];
    if !conditions.is_array() {
        *conditions = Value::Array(Vec::new());
    }
    conditions.as_array_mut().expect("it was just made a list")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn ready(status: bool) -> Report {
        Report::new("Ready", status, "Checked").message("all is well").observed(Some(3))
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let cases = [
            ("the same", ready(true), false, 0),
            ("another reason", Report::new("Ready", true, "Other").observed(Some(3)), true, 0),
            ("another message", ready(true).message("still"), true, 0),
            ("another generation", ready(true).observed(Some(4)), true, 0),
            ("another status", ready(false), true, 10),
        ];
        for (case, report, changes, since) in cases {
            let mut conditions = Vec::new();
            assert!(set(&mut conditions, &ready(true), at(0)), "{case}: it is new");
            assert_eq!(set(&mut conditions, &report, at(10)), changes, "{case}");
            let condition = get(&conditions, "Ready").unwrap();
            assert_eq!(condition.last_transition_time, Some(Time::new(at(since))), "{case}");
            assert_eq!(conditions.len(), 1, "{case}");
        }
    }

    #[test]
    fn the_update_time_moves_at_every_report_of_kinds_that_declare_it() {
        let mut conditions = Vec::new();
        set(&mut conditions, &ready(true).timed(), at(0));
        assert!(set(&mut conditions, &ready(true).timed(), at(10)));
        let condition = &conditions[0];
        assert_eq!(condition.last_update_time, Some(Time::new(at(10))));
        assert_eq!(condition.last_transition_time, Some(Time::new(at(0))));
        set(&mut conditions, &Report::new("Other", true, "Checked"), at(10));
        assert_eq!(conditions[1].last_update_time, None);
    }

    #[test]
    fn a_condition_is_true_only_for_the_generation_it_was_judged_by() {
        let mut conditions = Vec::new();
        assert!(!is_true(&conditions, "Ready", None));
        set(&mut conditions, &ready(true), at(0));
        assert!(is_true(&conditions, "Ready", None));
        assert!(is_true(&conditions, "Ready", Some(3)));
        assert!(!is_true(&conditions, "Ready", Some(4)));
        assert!(remove(&mut conditions, "Ready"));
        assert!(!remove(&mut conditions, "Ready"));
    }

    #[test]
    fn plain_objects_keep_their_order_and_foreign_conditions() {
        let Value::Object(mut object) = json!({
            "kind": "Thing",
            "status": {"phase": "Busy", "conditions": [
                {"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
                {"type": "Odd", "status": "Perhaps"},
            ]},
        }) else {
            panic!("it is an object");
        };
        assert!(set_in(&mut object, &ready(true), at(0)));
        assert!(set_in(&mut object, &Report::new("New", false, "Made"), at(0)));
        assert!(set_in(&mut object, &Report::new("Odd", true, "Mended"), at(0)));
        let expected = json!({"phase": "Busy", "conditions": [
            {"type": "Ready", "status": "True", "reason": "Checked", "message": "all is well",
             "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z",
             "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
            {"type": "Odd", "status": "True", "reason": "Mended", "message": "",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "New", "status": "False", "reason": "Made", "message": "",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]});
        assert_eq!(object["status"], expected);
        assert!(remove_in(&mut object, "Odd"));
        assert!(!remove_in(&mut object, "Odd"));
        assert_eq!(get_in(&object, "Odd"), None);
    }

    #[test]
    fn objects_without_a_proper_status_get_one() {
        for status in [json!(null), json!("odd"), json!({"conditions": "odd"})] {
            let mut object = Map::new();
            object.insert("status".to_owned(), status);
            assert!(!remove_in(&mut object, "Ready"));
            assert_eq!(get_in(&object, "Ready"), None);
            assert!(set_in(&mut object, &ready(true), at(0)));
            assert!(get_in(&object, "Ready").is_some());
        }
    }

    fn reports() -> impl Strategy<Value = Vec<(Report, i64)>> {
        let report = (
            0_usize..3,
            0_usize..3,
            0_usize..2,
            prop::option::of(0_i64..3),
            any::<bool>(),
            0_i64..5,
        );
        let report = report.prop_map(|(kind, status, reason, generation, timed, step)| {
            use ConditionStatus::{False, True, Unknown};
            let status = [True, False, Unknown][status];
            let report = Report::new(["A", "B", "C"][kind], status, ["R", "S"][reason]);
            let report = report.observed(generation);
            (if timed { report.timed() } else { report }, step)
        });
        prop::collection::vec(report, 1..30)
    }

    proptest! {
        #[test]
        fn typed_and_plain_objects_agree(reports in reports()) {
            let (mut typed, mut plain, mut now) = (Vec::new(), Map::new(), 0);
            for (report, step) in reports {
                now += step;
                let before = typed.clone();
                let changed = set(&mut typed, &report, at(now));
                prop_assert_eq!(set_in(&mut plain, &report, at(now)), changed);
                prop_assert_eq!(changed, typed != before);
                prop_assert!(!set(&mut typed, &report, at(now)), "saying it twice changes nothing");
                let read: Vec<Condition> =
                    serde_json::from_value(plain["status"]["conditions"].clone()).unwrap();
                prop_assert_eq!(&read, &typed);
            }
        }
    }
}
