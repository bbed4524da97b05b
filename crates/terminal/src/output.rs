//! Writes to stdout: tables for people, JSON and YAML for programs.
//!
//! Text that came from a server is cleaned of control characters before a terminal sees it.

use std::io::{self, Write};

use serde_json::Value;

/// How `get` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Columns chosen by the server.
    #[default]
    #[value(hide = true)]
    Table,
    /// All columns the server has.
    Wide,
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
    /// Only TYPE/NAME, one a line.
    Name,
}

/// A table for people, or JSON for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
}

/// Writes text to stdout, without colours if stdout is not a terminal, and flushes.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

pub fn print_line(text: &str) -> io::Result<()> {
    print(&format!("{text}\n"))
}

/// Indented JSON that ends with a line break.
pub fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// YAML of any JSON value.
pub fn yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => yaml_block(value, 0, &mut text),
        Value::Array(list) if !list.is_empty() => yaml_block(value, 0, &mut text),
        scalar => {
            yaml_scalar(scalar, 0, &mut text);
            text.push('\n');
        }
    }
    text
}

fn yaml_block(value: &Value, indent: usize, text: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                text.push_str(&pad);
                text.push_str(&yaml_string(key));
                text.push(':');
                yaml_under(value, indent, false, text);
            }
        }
        Value::Array(list) => {
            for item in list {
                text.push_str(&pad);
                text.push('-');
                yaml_under(item, indent, true, text);
            }
        }
        _ => {}
    }
}

/// The value after a `key:` or a `-`.
fn yaml_under(value: &Value, indent: usize, item: bool, text: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() && item => {
            // The first field stands beside the dash, the others below it.
            let start = text.len();
            yaml_block(value, indent + 2, text);
            text.replace_range(start..start + indent + 2, " ");
        }
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            yaml_block(value, indent + 2, text);
        }
        Value::Array(list) if !list.is_empty() && item => {
            let start = text.len();
            yaml_block(value, indent + 2, text);
            text.replace_range(start..start + indent + 2, " ");
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            yaml_block(value, indent, text);
        }
        scalar => {
            text.push(' ');
            yaml_scalar(scalar, indent, text);
            text.push('\n');
        }
    }
}

fn yaml_scalar(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::String(string) if is_block(string) => {
            let strip = if string.ends_with('\n') { "|" } else { "|-" };
            text.push_str(strip);
            for line in string.trim_end_matches('\n').split('\n') {
                text.push('\n');
                if !line.is_empty() {
                    text.push_str(&" ".repeat(indent + 2));
                    text.push_str(line);
                }
            }
        }
        Value::String(string) => text.push_str(&yaml_string(string)),
        Value::Object(_) => text.push_str("{}"),
        Value::Array(_) => text.push_str("[]"),
        other => text.push_str(&other.to_string()),
    }
}

/// Several lines that a block scalar keeps exactly.
fn is_block(string: &str) -> bool {
    let body = string.strip_suffix('\n').unwrap_or(string);
    string.contains('\n')
        && !body.is_empty()
        && !body.ends_with('\n')
        && !body.starts_with([' ', '\n', '\t'])
        && !string.chars().any(|c| c.is_control() && c != '\n' && c != '\t')
        && !string.contains(['\u{feff}', '\u{2028}', '\u{2029}', '\u{85}'])
}

/// A string as YAML, quoted exactly when it could be read as something else.
fn yaml_string(string: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./ ()+=,@%$;<>^~".contains(c) || c == ':';
    let starts = string.starts_with(|c: char| c.is_ascii_alphanumeric() || "_/.(".contains(c));
    let safe = starts
        && string.chars().all(plain)
        && !string.ends_with([' ', ':'])
        && !string.contains(": ")
        && !string.contains(" #");
    if safe && !looks_typed(string) {
        string.to_owned()
    } else {
        Value::String(string.to_owned()).to_string()
    }
}

/// Could be read as a number, boolean, null or date (by YAML 1.1 or 1.2).
fn looks_typed(string: &str) -> bool {
    let word = string.to_ascii_lowercase();
    let digits = word.replace('_', "");
    let based = ["0x", "0o", "0b"].iter().any(|base| digits.starts_with(base));
    let of = |letters: &str| word.chars().all(|c| c.is_ascii_digit() || letters.contains(c));
    let dated = of("-:.tz +") && word.get(4..5) == Some("-");
    matches!(
        word.as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null" | ".inf" | ".nan"
    ) || digits.parse::<f64>().is_ok()
        || based
        || of(":.")
        || dated
}

/// Rows under headings, each column as wide as its widest cell.
#[derive(Debug, Default)]
pub struct Table {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|&heading| heading.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// The table as text; `widths` makes further rows line up with what was printed before.
    pub fn render(&self, with_headings: bool, widths: &mut Vec<usize>) -> String {
        let lines = || {
            let headings = with_headings.then_some(&self.headings);
            headings.into_iter().chain(&self.rows)
        };
        for line in lines() {
            widths.resize(widths.len().max(line.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for line in lines() {
            let mut row = String::new();
            for (width, cell) in widths.iter().zip(line) {
                row.push_str(cell);
                row.push_str(&" ".repeat(width + 3 - cell.chars().count()));
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }

    pub fn text(&self) -> String {
        self.render(true, &mut Vec::new())
    }

    /// The table as Markdown writes it.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let headings: Vec<String> = self.headings.iter().map(|name| name.to_lowercase()).collect();
        let rule = format!("|{}\n", "---|".repeat(headings.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{rule}{rows}", line(&headings))
    }

    /// The table under another text.
    pub fn indented(&self, by: usize) -> String {
        let pad = " ".repeat(by);
        self.text().lines().map(|line| format!("{pad}{line}\n")).collect()
    }
}

/// A cell's value as one line of text, without terminal control sequences.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(string) => clean(string),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        other => clean(&other.to_string()),
    }
}

/// The first line of `text`, control characters made visible.
pub fn clean(text: &str) -> String {
    let mut lines = text.lines();
    let first: String = lines
        .next()
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if lines.next().is_some() { first + "..." } else { first }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "[ -~]{0,12}",
            "[a-z \n:#-]{0,12}",
            Just("yes".to_owned()),
            Just("1e3".to_owned()),
            "[0-9a-fx_.:-]{0,8}",
            "[0-9]{1,4}-[0-9]{1,2}-[0-9]{1,2}",
            Just("0x1f".to_owned()),
            Just("~".to_owned()),
            Just("2001-01-01".to_owned()),
            Just("é\u{2028}ü".to_owned()),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ -~]{1,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_reads_back_as_the_same_value(value in any_json()) {
            let text = yaml(&value);
            let read: Value = serde_saphyr::from_str(&text)
                .map_err(|error| TestCaseError::fail(format!("{error}\n---\n{text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }

    #[test]
    fn yaml_has_the_usual_layout() {
        let value = json!({"kind": "ConfigMap", "data": {"a": "1", "b": "x\ny\n"}, "list": [{"a": 1, "b": [2]}, "c"], "none": {}});
        assert_eq!(
            yaml(&value),
            "data:\n  a: \"1\"\n  b: |\n    x\n    y\nkind: ConfigMap\nlist:\n- a: 1\n  b:\n  - 2\n- c\nnone: {}\n"
        );
    }

    #[test]
    fn columns_line_up_and_terminals_are_safe() {
        let mut table = Table::new(&["NAME", "AGE"]);
        table.rows.push(vec!["long-name".to_owned(), "1m".to_owned()]);
        assert_eq!(table.text(), "NAME        AGE\nlong-name   1m\n");
        assert_eq!(table.markdown(), "| name | age |\n|---|---|\n| long-name | 1m |\n");
        assert_eq!(cell(&json!("a\u{1b}[31m\nb")), "a\u{fffd}[31m...");
    }
}
