//! Formats the JSON answers of an engine as text.
//!
//! An answer of unknown shape is printed unchanged: it may come from a newer engine.

use std::fmt::Write;

use serde_json::Value as Json;

use crate::health::Health;
use crate::record::{OperationRecord, TransactionRecord};

/// The request that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Status,
    Timeline,
    Snapshot,
    Stats,
    Health,
    Dump,
    Plan,
    Commit,
    /// Its answer is a success also if values failed.
    Resync,
}

/// The answer as text.
pub(super) fn text(question: Question, body: &str) -> String {
    let shown = serde_json::from_str(body).ok().and_then(|json: Json| match question {
        Question::Status => statuses(&json),
        Question::Timeline => timeline(&json),
        Question::Snapshot => snapshot(&json),
        Question::Stats => stats(&json),
        Question::Health => health(json),
        Question::Dump => dump(&json),
        Question::Plan => plan(json),
        Question::Commit | Question::Resync => commit(json),
    });
    shown.unwrap_or_else(|| body.to_owned())
}

/// Why a transaction did not succeed, if the answer is the record of one that did not.
pub(super) fn failure(body: &str) -> Option<String> {
    let json: Json = serde_json::from_str(body).ok()?;
    let errors = json["seq"].is_u64().then(|| json["errors"].as_array())?;
    if let Some(error) = json["error"].as_str() {
        return Some(error.to_owned());
    }
    let line = |one: &Json| {
        format!("{} {}: {}", plain(&one["op"]), plain(&one["key"]), plain(&one["error"]))
    };
    let lines: Vec<String> = errors?.iter().map(line).collect();
    (!lines.is_empty()).then(|| format!("transaction {} failed: {}", json["seq"], lines.join("; ")))
}

/// Why an engine accepts no transactions, if the answer is the health of one that does not.
pub(super) fn illness(body: &str) -> Option<String> {
    let health: Health = serde_json::from_str(body).ok()?;
    (!health.accepts).then(|| "the engine accepts no transactions".to_owned())
}

/// Why a request was refused: the text of the engine, or the message of a JSON object.
pub(super) fn problem(status: u16, body: &str) -> String {
    let message = serde_json::from_str::<Json>(body).ok().and_then(|json| {
        let text = json["error"].as_str().or(json["message"].as_str())?;
        Some(text.to_owned())
    });
    let text = message.unwrap_or_else(|| body.trim().to_owned());
    match text.is_empty() {
        true if status == 404 => "there is no graph at this URL (404)".to_owned(),
        true => format!("the server answered {status} without a reason"),
        false => text,
    }
}

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}

/// One line for an event of a watch.
pub(super) fn change(event: &Json) -> String {
    if let Some(count) = event["missed"].as_u64() {
        return format!("{count} changes were missed; read the status again");
    }
    let mut rows = Vec::new();
    status(event, 0, &mut rows);
    let line = |[key, state, last, why]: &[String; 4]| {
        format!("{key} {state} {last} {why}").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
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
                ("cycle", _) => format!("in a cycle with {list}"),
                (_, true) => format!("waits for {list}"),
                _ => list,
            });
        }
    }
    if one["uncertain"] == true {
        why.push("the south may differ".to_owned());
    }
    if let Some(labels) = one["labels"].as_object() {
        let labels = labels.iter().map(|(name, text)| format!("{name}={}", plain(text)));
        why.push(format!("[{}]", labels.collect::<Vec<_>>().join(", ")));
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

fn snapshot(json: &Json) -> Option<String> {
    let mut rows = vec![["KEY", "STATE", "TXN", "VALUE", "ERROR"].map(str::to_owned)];
    let fields = ["key", "state", "transaction", "value", "error"];
    rows.extend(json.as_array()?.iter().map(|one| fields.map(|field| plain(&one[field]))));
    Some(table(&rows))
}

fn health(json: Json) -> Option<String> {
    let health: Health = serde_json::from_value(json).ok()?;
    let mut out = match (health.accepts, &health.reason) {
        (true, _) => "accepts transactions\n".to_owned(),
        (false, reason) => {
            let reason = reason.as_deref().unwrap_or("no reason is given");
            format!("accepts no transactions: {reason}\n")
        }
    };
    if !health.journalled {
        out.push_str("has no journal: a restart begins anew\n");
    }
    for notice in &health.notices {
        let _ = writeln!(out, "note: {notice}");
    }
    for one in &health.unseen {
        let (name, error, next) = (&one.descriptor, &one.error, one.next);
        let _ = writeln!(out, "descriptor {name} cannot retrieve: {error}; next attempt {next}");
    }
    Some(out)
}

fn stats(json: &Json) -> Option<String> {
    let mut out = String::new();
    for (title, field) in [
        ("values", "values"),
        ("requests that wait", "queue_length"),
        ("requests refused", "dropped"),
        ("values that failed", "errors"),
        ("transactions reverted", "reverted"),
    ] {
        let _ = writeln!(out, "{title}: {}", plain(json.get(field)?));
    }
    for (kind, count) in json["transactions"].as_object()? {
        let _ = writeln!(out, "{kind}: {count}");
    }
    let heads = ["DESCRIPTOR", "OPERATION", "COUNT", "FAILED", "SECONDS"];
    let mut rows = vec![heads.map(str::to_owned)];
    for (descriptor, operations) in json["descriptors"].as_object()? {
        for (operation, one) in operations.as_object()? {
            let [count, failed] = ["count", "failed"].map(|field| plain(&one[field]));
            let seconds = format!("{:.3}", one["seconds"].as_f64()?);
            rows.push([descriptor.clone(), operation.clone(), count, failed, seconds]);
        }
    }
    out.push_str(&table(&rows));
    Some(out)
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
    let after = json["status"].as_array().map(|_| statuses(&json["status"]));
    let record: TransactionRecord = serde_json::from_value(json).ok()?;
    let reverted = if record.reverted { ", reverted" } else { "" };
    let mut out = format!("transaction {}{reverted}\n{}", record.seq, lines(&record.executed));
    for error in &record.errors {
        let _ = writeln!(out, "failed: {error}");
    }
    for warning in &record.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if let Some(table) = after.flatten() {
        out.push_str(&table);
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
                    {"key":"z","state":"INVALID","lastOperation":"UPDATE","error":"too\nlong","details":["name"],"uncertain":true,"labels":{"owner":"net"}}]"#,
                "KEY     STATE        LAST     WHY\n\
                 a       CONFIGURED   CREATE\n\
                 \x20 a/x   PENDING      CREATE   waits for b, c; in a cycle with a/x, b\n\
                 z       INVALID      UPDATE   too long; name; the south may differ; [owner=net]\n",
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
            (
                Question::Snapshot,
                r#"[{"key":"a","state":"FAILED","transaction":3,"value":1,"error":"busy"}]"#,
                "KEY   STATE    TXN   VALUE   ERROR\na     FAILED   3     1       busy\n",
            ),
            (
                Question::Stats,
                r#"{"values":4,"queue_length":0,"dropped":0,"errors":1,"reverted":0,
                    "transactions":{"NBTransaction":2},
                    "descriptors":{"d":{"CREATE":{"count":3,"failed":1,"seconds":0.5}}}}"#,
                "values: 4\nrequests that wait: 0\nrequests refused: 0\nvalues that failed: 1\n\
                 transactions reverted: 0\nNBTransaction: 2\n\
                 DESCRIPTOR   OPERATION   COUNT   FAILED   SECONDS\n\
                 d            CREATE      3       1        0.500\n",
            ),
            (
                Question::Health,
                r#"{"accepts":false,"reason":"no space","journalled":true,"notices":["cut"],"unseen":[
                    {"descriptor":"d","error":"busy","attempts":1,"next":"2026-01-31T12:00:00Z"}]}"#,
                "accepts no transactions: no space\nnote: cut\n\
                 descriptor d cannot retrieve: busy; next attempt 2026-01-31T12:00:00Z\n",
            ),
            (
                Question::Commit,
                r#"{"seq":3,"type":"NBTransaction","resync":"NotResync","start":"2026-01-31T12:00:00Z",
                    "stop":"2026-01-31T12:00:00Z","values":[],"planned":[],"executed":[],"reverted":true,
                    "errors":[{"key":"a","op":"CREATE","error":"busy"}],"error":"transaction 3 failed",
                    "status":[{"key":"a","state":"NONEXISTENT","lastOperation":"DELETE"}]}"#,
                "transaction 3, reverted\nnothing to do\nfailed: CREATE a: busy\n\
                 KEY   STATE         LAST     WHY\na     NONEXISTENT   DELETE\n",
            ),
            (Question::Plan, "gibberish", "gibberish"),
            (Question::Commit, "{}", "{}"),
        ] {
            assert_eq!(text(question, body), shown, "{body}");
        }
    }

    #[test]
    fn refusals_are_shown_without_json() {
        for (status, body, shown) in [
            (404, "transaction 7 is not known\n", "transaction 7 is not known"),
            (404, "", "there is no graph at this URL (404)"),
            (401, r#"{"kind":"Status","message":"Unauthorized"}"#, "Unauthorized"),
            (503, "", "the server answered 503 without a reason"),
        ] {
            assert_eq!(problem(status, body), shown);
        }
        assert_eq!(failure(r#"{"seq":1,"errors":[]}"#), None);
        assert_eq!(failure("[]"), None);
        let failed = r#"{"seq":1,"errors":[{"key":"a","op":"CREATE","error":"busy"}]}"#;
        assert_eq!(failure(failed).as_deref(), Some("transaction 1 failed: CREATE a: busy"));
    }

    #[test]
    fn changes_are_shown_in_one_line_per_value() {
        let event = serde_json::json!({"key": "a", "state": "PENDING", "lastOperation": "CREATE",
            "details": ["b"], "derived": [{"key": "a/x", "state": "CONFIGURED"}]});
        assert_eq!(change(&event), "a PENDING CREATE waits for b\n  a/x CONFIGURED");
        let event = serde_json::json!({"missed": 3});
        assert_eq!(change(&event), "3 changes were missed; read the status again");
    }
}
