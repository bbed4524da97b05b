//! Formats the JSON answers of an engine as text.
//!
//! An answer of unknown shape is printed unchanged: it may come from a newer engine.

use std::fmt::Write;

use serde_json::Value as Json;

use crate::record::{OperationRecord, TransactionRecord};

/// The request that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Status,
    Timeline,
    Dump,
    Plan,
    Commit,
}

/// The answer as text.
pub(super) fn text(question: Question, body: &str) -> String {
    let shown = serde_json::from_str(body).ok().and_then(|json: Json| match question {
        Question::Status => statuses(&json),
        Question::Timeline => timeline(&json),
        Question::Dump => dump(&json),
        Question::Plan => plan(json),
        Question::Commit => commit(json),
    });
    shown.unwrap_or_else(|| body.to_owned())
}

fn statuses(json: &Json) -> Option<String> {
    let mut rows = vec![["KEY", "STATE", "LAST", "WHY"].map(str::to_owned)];
    match json {
        Json::Array(all) => all.iter().for_each(|one| status(one, 0, &mut rows)),
        one => status(one, 0, &mut rows),
    }
    Some(table(&rows))
}

fn status(one: &Json, depth: usize, rows: &mut Vec<[String; 4]>) {
    let listed = |field: &str| {
        let list = one[field].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(plain).collect::<Vec<_>>().join(", ")
    };
    let mut why = Vec::new();
    if one["error"].is_string() {
        why.push(plain(&one["error"]));
    }
    for (field, said) in [("details", "PENDING"), ("cycle", "")] {
        let list = listed(field);
        if !list.is_empty() {
            why.push(match (field, one["state"] == said) {
                ("cycle", _) => format!("in a circle with {list}"),
                (_, true) => format!("waits for {list}"),
                _ => list,
            });
        }
    }
    if one["uncertain"] == true {
        why.push("what is really there is not known".to_owned());
    }
    let key = format!("{}{}", "  ".repeat(depth), plain(&one["key"]));
    rows.push([key, plain(&one["state"]), plain(&one["lastOperation"]), why.join("; ")]);
    for derived in one["derived"].as_array().into_iter().flatten() {
        status(derived, depth + 1, rows);
    }
}

fn timeline(json: &Json) -> Option<String> {
    let heads = ["SINCE", "UNTIL", "STATE", "TXN", "OPERATION", "VALUE", "ERROR"];
    let mut rows = vec![heads.map(str::to_owned)];
    for one in json.as_array()? {
        let until = if one["until"].is_null() { "now".to_owned() } else { plain(&one["until"]) };
        let rest = ["state", "transaction", "operation", "value", "error"];
        let [state, transaction, operation, value, error] = rest.map(|field| plain(&one[field]));
        rows.push([plain(&one["since"]), until, state, transaction, operation, value, error]);
    }
    Some(table(&rows))
}

fn dump(json: &Json) -> Option<String> {
    if let Some(index) = json.as_object() {
        let mut out = String::new();
        for (title, field) in
            [("descriptors", "Descriptors"), ("key prefixes", "KeyPrefixes"), ("views", "Views")]
        {
            let list: Vec<String> = index.get(field)?.as_array()?.iter().map(plain).collect();
            let _ = writeln!(out, "{title}: {}", list.join(", "));
        }
        return Some(out);
    }
    let mut rows = vec![["KEY", "VALUE", "METADATA", "ORIGIN"].map(str::to_owned)];
    let fields = ["key", "value", "metadata", "origin"];
    rows.extend(json.as_array()?.iter().map(|one| fields.map(|field| plain(&one[field]))));
    Some(table(&rows))
}

fn plan(json: Json) -> Option<String> {
    let operations: Vec<OperationRecord> = serde_json::from_value(json).ok()?;
    Some(lines(&operations))
}

fn commit(json: Json) -> Option<String> {
    let record: TransactionRecord = serde_json::from_value(json).ok()?;
    let mut out = format!("transaction {}\n{}", record.seq, lines(&record.executed));
    for warning in &record.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    Some(out)
}

fn lines(operations: &[OperationRecord]) -> String {
    if operations.is_empty() {
        return "nothing to do\n".to_owned();
    }
    operations.iter().zip(1..).fold(String::new(), |mut out, (operation, number)| {
        let _ = writeln!(out, "{number:>4}. {operation}");
        out
    })
}

/// A JSON string without quotes, null as an empty text, everything else as JSON.
fn plain(json: &Json) -> String {
    match json {
        Json::Null => String::new(),
        Json::String(text) => text.replace(char::is_control, " "),
        other => other.to_string(),
    }
}

/// A table with columns as wide as their content.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}   ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_shown_as_people_read_them() {
        for (question, body, shown) in [
            (
                Question::Status,
                r#"[{"key":"a","state":"CONFIGURED","lastOperation":"CREATE","derived":[
                    {"key":"a/x","state":"PENDING","lastOperation":"CREATE","details":["b","c"],"cycle":["a/x","b"]}]},
                    {"key":"z","state":"INVALID","lastOperation":"UPDATE","error":"too\nlong","details":["name"],"uncertain":true}]"#,
                "KEY     STATE        LAST     WHY\n\
                 a       CONFIGURED   CREATE\n\
                 \x20 a/x   PENDING      CREATE   waits for b, c; in a circle with a/x, b\n\
                 z       INVALID      UPDATE   too long; name; what is really there is not known\n",
            ),
            (
                Question::Dump,
                r#"[{"key":"a","value":{"n":1},"metadata":7,"origin":"NB"}]"#,
                "KEY   VALUE     METADATA   ORIGIN\na     {\"n\":1}   7          NB\n",
            ),
            (
                Question::Dump,
                r#"{"Descriptors":["d"],"KeyPrefixes":["d/"],"Views":["SB","NB"]}"#,
                "descriptors: d\nkey prefixes: d/\nviews: SB, NB\n",
            ),
            (
                Question::Timeline,
                r#"[{"since":"s","until":null,"state":"PENDING","transaction":3,"operation":"CREATE","value":{},"error":null}]"#,
                "SINCE   UNTIL   STATE     TXN   OPERATION   VALUE   ERROR\ns       now     PENDING   3     CREATE      {}\n",
            ),
            (Question::Plan, "[]", "nothing to do\n"),
            (
                Question::Plan,
                r#"[{"operation":"CREATE","key":"a","prev_state":"NONEXISTENT","new_state":"PENDING","flags":{"noop":true}}]"#,
                "   1. CREATE a NONEXISTENT>PENDING NOOP\n",
            ),
            (Question::Plan, "gibberish", "gibberish"),
            (Question::Commit, "{}", "{}"),
        ] {
            assert_eq!(text(question, body), shown, "{body}");
        }
    }
}
