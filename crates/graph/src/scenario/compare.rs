//! Compares the expectations of a step with its result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value as Json;

use super::file::{ExpectSpec, Step};
use super::report::{StepReport, TransactionReport};

/// The differences between the expectations of a step and its result, as text.
pub(super) fn differences(number: usize, step: &Step, got: &StepReport) -> Vec<String> {
    let mut found = Vec::new();
    let mut say = |text: String| found.push(format!("step {number}: {text}"));
    match (&step.error, &got.error) {
        (None, Some(error)) => say(format!("was refused: {error}")),
        (Some(wanted), None) => say(format!("should have been refused with {wanted:?}")),
        (Some(wanted), Some(error)) if !error.contains(wanted.as_str()) => {
            say(format!("was refused with {error:?}, not with {wanted:?}"));
        }
        _ => {}
    }
    if let Some(expected) = &step.expect {
        if expected.len() != got.transactions.len() {
            let types: Vec<_> = got.transactions.iter().map(|one| one.kind.as_str()).collect();
            say(format!(
                "expected {} transactions, got {}: {types:?}",
                expected.len(),
                types.len()
            ));
        }
        for (position, (wanted, got)) in expected.iter().zip(&got.transactions).enumerate() {
            for text in transaction(wanted, got) {
                say(format!("transaction {}: {text}", position + 1));
            }
        }
    }
    let absent_state = Json::from("NONEXISTENT");
    for (what, wanted, got) in [
        ("state", &step.states, &got.states),
        ("south", &step.south, &got.south),
        ("metadata", &step.metadata, &got.metadata),
    ] {
        let equal = |wanted: &Json, got: Option<&Json>| match got {
            Some(got) => wanted == got,
            None => wanted.is_null() || *wanted == absent_state,
        };
        for text in map(wanted.as_ref(), got, equal) {
            say(format!("{what} {text}"));
        }
    }
    let as_set = |value: &Json| -> BTreeSet<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
            .collect()
    };
    let unordered = |wanted: &Json, got: Option<&Json>| match got {
        Some(got) => as_set(wanted) == as_set(got),
        None => wanted.is_null() || as_set(wanted).is_empty(),
    };
    for text in map(step.pending.as_ref(), &got.pending, unordered) {
        say(format!("pending {text}"));
    }
    let part = |wanted: &Json, got: Option<&Json>| status(wanted, got.unwrap_or(&Json::Null));
    for text in map(step.status.as_ref(), &got.status, part) {
        say(format!("status {text}"));
    }
    let told = |wanted: &Json, got: Option<&Json>| {
        let wanted = wanted.as_object().cloned().unwrap_or_default();
        let got = got.and_then(Json::as_object).cloned().unwrap_or_default();
        if wanted.is_empty() {
            got.is_empty()
        } else {
            wanted.iter().all(|(key, one)| got.get(key) == Some(one))
        }
    };
    for text in map(step.correlate.as_ref(), &got.correlate, told) {
        say(format!("correlate {text}"));
    }
    if let Some(wanted) = step.calls.as_ref().filter(|wanted| **wanted != got.calls) {
        say(format!("calls differ:\n{}", list_difference(wanted, &got.calls)));
    }
    found
}

/// Compares the named keys; an empty map expects no keys.
fn map(
    wanted: Option<&BTreeMap<String, Json>>,
    got: &BTreeMap<String, Json>,
    equal: impl Fn(&Json, Option<&Json>) -> bool,
) -> Vec<String> {
    let Some(wanted) = wanted else {
        return Vec::new();
    };
    if wanted.is_empty() && !got.is_empty() {
        let keys: Vec<_> = got.keys().collect();
        return vec![format!("should be empty, but there is {keys:?}")];
    }
    let shown = |value: Option<&Json>| value.map_or_else(|| "nothing".to_owned(), Json::to_string);
    wanted
        .iter()
        .filter(|(key, value)| !equal(value, got.get(*key)))
        .map(|(key, value)| format!("of {key} should be {value}, but is {}", shown(got.get(key))))
        .collect()
}

fn status(wanted: &Json, got: &Json) -> bool {
    let Some(fields) = wanted.as_object() else {
        return wanted.is_null() && got.is_null();
    };
    fields.iter().all(|(name, wanted)| {
        let got = got.get(name).unwrap_or(&Json::Null);
        match (name.as_str(), wanted) {
            ("cycle", Json::Bool(wanted)) => {
                *wanted == got.as_array().is_some_and(|one| !one.is_empty())
            }
            ("cycle", Json::Array(wanted)) => {
                let keys =
                    |list: &[Json]| list.iter().map(Json::to_string).collect::<BTreeSet<_>>();
                keys(wanted) == keys(got.as_array().map(Vec::as_slice).unwrap_or_default())
            }
            ("cycle", Json::Null) => got.as_array().is_none_or(Vec::is_empty),
            _ => wanted == got,
        }
    })
}

fn transaction(wanted: &ExpectSpec, got: &TransactionReport) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(kind) = wanted.kind.as_ref().filter(|kind| **kind != got.kind) {
        found.push(format!("should be a {kind}, but is a {}", got.kind));
    }
    if let Some(executed) = &wanted.executed {
        let planned = wanted.planned.as_ref().unwrap_or(executed);
        if *planned != got.planned {
            found.push(format!("plan differs:\n{}", list_difference(planned, &got.planned)));
        }
        if *executed != got.executed {
            found.push(format!("execution differs:\n{}", list_difference(executed, &got.executed)));
        }
    } else if let Some(planned) = wanted.planned.as_ref().filter(|planned| **planned != got.planned)
    {
        found.push(format!("plan differs:\n{}", list_difference(planned, &got.planned)));
    }
    if let Some(errors) = &wanted.errors {
        let keys: Vec<_> = got.errors.iter().map(|error| error.key.to_string()).collect();
        if *errors != keys {
            found.push(format!("should fail on {errors:?}, but failed on {:?}", got.errors));
        }
    }
    found
}

/// The difference of two lists: missing and unexpected lines.
fn list_difference(wanted: &[String], got: &[String]) -> String {
    let mut out = String::new();
    // The longest common subsequence, so that one extra line does not mark everything after it.
    let mut common = vec![vec![0_usize; got.len() + 1]; wanted.len() + 1];
    for (i, a) in wanted.iter().enumerate().rev() {
        for (j, b) in got.iter().enumerate().rev() {
            common[i][j] = if a == b {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < wanted.len() || j < got.len() {
        if i < wanted.len() && j < got.len() && wanted[i] == got[j] {
            let _ = writeln!(out, "      {}", wanted[i]);
            (i, j) = (i + 1, j + 1);
        } else if j >= got.len() || (i < wanted.len() && common[i + 1][j] >= common[i][j + 1]) {
            let _ = writeln!(out, "    - {}", wanted[i]);
            i += 1;
        } else {
            let _ = writeln!(out, "    + {}", got[j]);
            j += 1;
        }
    }
    out.trim_end().to_owned()
}
