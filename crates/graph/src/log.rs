//! The transaction log: one text box per transaction, for people.
//!
//! Arguments and plan are written and flushed before anything is executed, so that an operation
//! that crashes the process still leaves its plan behind.

use std::fmt::{self, Write as _};
use std::io::Write;

use crate::record::{OperationRecord, TransactionRecord};
use crate::state::{Operation, Origin, ValueState};
use crate::transaction::{Resync, TransactionType};
use crate::value::Value;

const WIDTH: usize = 120;

/// Writes transactions to a stream.
pub(crate) struct TransactionLog {
    out: Box<dyn Write + Send>,
    text: String,
}

impl fmt::Debug for TransactionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionLog").finish_non_exhaustive()
    }
}

impl TransactionLog {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out, text: String::new() }
    }

    /// Writes the arguments and the plan.
    pub(crate) fn before(&mut self, record: &TransactionRecord) {
        self.text.clear();
        write_before(&mut self.text, record);
        self.flush();
    }

    /// Writes the executed operations.
    pub(crate) fn after(&mut self, record: &TransactionRecord) {
        self.text.clear();
        write_after(&mut self.text, record);
        self.flush();
    }

    fn flush(&mut self) {
        // A log that cannot be written must not stop the engine.
        let _ = self.out.write_all(self.text.as_bytes());
        let _ = self.out.flush();
    }
}

/// A record as text, as the transaction log shows it.
pub fn text(record: &TransactionRecord) -> String {
    let mut out = String::new();
    write_before(&mut out, record);
    if !record.pre_record {
        write_after(&mut out, record);
    }
    out
}

fn rule(out: &mut String, corner: char, line: char) {
    out.push(corner);
    out.extend(std::iter::repeat_n(line, WIDTH - 2));
    out.push(corner);
    out.push('\n');
}

fn kind(record: &TransactionRecord) -> &'static str {
    match record.kind {
        TransactionType::NBTransaction => "NB transaction",
        TransactionType::SBNotification => "SB notification",
        TransactionType::RetryFailedOps => "retry of failed operations",
        TransactionType::RetryUnimplOps => "retry of unimplemented operations",
        TransactionType::Unknown => "unknown",
    }
}

fn remark(record: &TransactionRecord) -> String {
    match (record.resync, record.retry_for) {
        (Resync::FullResync, _) => "Full Resync".to_owned(),
        (Resync::UpstreamResync, _) => "Upstream Resync".to_owned(),
        (Resync::DownstreamResync, _) => "Downstream Resync".to_owned(),
        (Resync::NotResync, Some(seq)) => {
            format!("retrying failed TXN #{seq} (attempt {})", record.attempt)
        }
        (Resync::NotResync, None) => kind(record).to_owned(),
    }
}

fn headed(out: &mut String, edge: char, left: &str, right: &str) {
    let room = (WIDTH - 4).saturating_sub(left.chars().count());
    let _ = writeln!(out, "{edge} {left}{right:>room$} {edge}");
}

fn write_before(out: &mut String, record: &TransactionRecord) {
    rule(out, '+', '=');
    headed(out, '|', &format!("Transaction #{}", record.seq), &remark(record));
    rule(out, '+', '=');
    out.push_str("  * transaction arguments:\n");
    let _ = writeln!(out, "      - seq-num: {}", record.seq);
    let _ = writeln!(out, "      - type: {}", kind(record));
    if record.resync != Resync::NotResync {
        let _ = writeln!(out, "      - resync: {}", remark(record));
    }
    if !record.description.is_empty() {
        let indented = record.description.replace('\n', "\n                     ");
        let _ = writeln!(out, "      - Description: {indented}");
    }
    write_values(out, record);
    out.push_str("  * planned operations:\n");
    write_operations(out, &record.planned);
}

fn write_values(out: &mut String, record: &TransactionRecord) {
    if record.resync == Resync::DownstreamResync {
        return;
    }
    let shown = |origin: Origin| record.resync == Resync::NotResync || origin != Origin::South;
    let mut values = record.values.iter().filter(|value| shown(value.origin)).peekable();
    if values.peek().is_none() {
        out.push_str("      - values: NONE\n");
        return;
    }
    out.push_str("      - values:\n");
    for value in values {
        let _ = writeln!(out, "          - key: {}", value.key);
        let _ = writeln!(out, "            value: {}", Shown(value.value.as_ref()));
    }
}

fn write_after(out: &mut String, record: &TransactionRecord) {
    rule(out, 'o', '-');
    let took = record.stop.duration_since(record.start);
    let milliseconds = took.as_micros() as f64 / 1000.0;
    let _ = writeln!(
        out,
        "  * executed operations ({} - {}, duration = {milliseconds:.3}ms):",
        record.start, record.stop
    );
    write_operations(out, &record.executed);
    if !record.ahead.is_empty() {
        out.push_str("  * made ahead and taken back:\n");
        write_operations(out, &record.ahead);
    }
    for warning in &record.warnings {
        let _ = writeln!(out, "  * warning: {warning}");
    }
    rule(out, 'x', '-');
    headed(out, 'x', &format!("#{}", record.seq), &format!("took {milliseconds:.1}ms"));
    rule(out, 'x', '-');
}

fn write_operations(out: &mut String, operations: &[OperationRecord]) {
    if operations.is_empty() {
        out.push_str("      <NONE>\n");
    }
    for (index, operation) in operations.iter().enumerate() {
        let _ = write!(out, "      {}. {}", index + 1, operation.operation);
        let flags = flags(operation);
        if !flags.is_empty() {
            let _ = write!(out, " [{}]", flags.join(" "));
        }
        out.push_str(":\n");
        let _ = writeln!(out, "          - key: {}", operation.key);
        let previous = Shown(operation.prev_value.as_ref());
        let new = Shown(operation.new_value.as_ref());
        match operation.operation {
            Operation::Update => {
                let _ = writeln!(out, "          - prev-value: {previous}");
                let _ = writeln!(out, "          - new-value: {new}");
            }
            Operation::Delete => {
                let _ = writeln!(out, "          - value: {previous}");
            }
            _ => {
                let _ = writeln!(out, "          - value: {new}");
            }
        }
        if let Some(error) = &operation.prev_error {
            let _ = writeln!(out, "          - prev-error: {error}");
        }
        if let Some(error) = &operation.new_error {
            let _ = writeln!(out, "          - error: {error}");
        }
    }
}

fn flags(operation: &OperationRecord) -> Vec<&'static str> {
    use ValueState as S;
    let flags = operation.flags;
    let (before, after) = (operation.prev_state, operation.new_state);
    let moved = |state: S, still: &'static str, was: &'static str, is: &'static str| match (
        before == state,
        after == state,
    ) {
        (true, true) => Some(still),
        (true, false) => Some(was),
        (false, true) => Some(is),
        (false, false) => None,
    };
    let mut shown = Vec::new();
    if flags.property {
        shown.push("PROPERTY");
    } else if flags.derived {
        shown.push("DERIVED");
    }
    let plain = [
        (flags.noop, "NOOP"),
        (flags.revert, "REVERT"),
        (flags.retry, "RETRY"),
        (flags.recreate, "RECREATE"),
    ];
    shown.extend(plain.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag));
    shown.extend(moved(S::Obtained, "OBTAINED", "WAS-OBTAINED", "OBTAINED"));
    shown.extend(moved(S::Unimplemented, "UNIMPLEMENTED", "WAS-UNIMPLEMENTED", "UNIMPLEMENTED"));
    if operation.operation == Operation::Delete && before == S::Removed {
        shown.push("ALREADY-REMOVED");
    }
    if before == S::Missing {
        let deleted = operation.operation == Operation::Delete;
        shown.push(if deleted { "ALREADY-MISSING" } else { "WAS-MISSING" });
    }
    if before == S::Discovered {
        shown.push("DISCOVERED");
    }
    shown.extend(moved(S::Pending, "STILL-PENDING", "WAS-PENDING", "IS-PENDING"));
    match (before.is_failure(), after.is_failure()) {
        (true, true) => shown.push("STILL-FAILING"),
        (true, false) => shown.push("FIXED"),
        (false, true) => shown.push("FAILED"),
        (false, false) => {}
    }
    shown.extend(moved(S::Invalid, "STILL-INVALID", "FIXED", "INVALID"));
    shown
}

/// A value as the log shows it.
struct Shown<'a>(Option<&'a Value>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.0 else {
            return f.write_str("<NIL>");
        };
        match value.json() {
            serde_json::Value::Null => f.write_str("<EMPTY>"),
            serde_json::Value::Object(fields) if fields.is_empty() => f.write_str("<EMPTY>"),
            serde_json::Value::Object(fields) => {
                f.write_str("{ ")?;
                for (name, value) in &fields {
                    write!(f, "{name}:{value} ")?;
                }
                f.write_str("}")
            }
            other => write!(f, "{{ {other} }}"),
        }
    }
}
