//! Formats values as tables.

use std::io::{Result, Write};

use serde_json::Value;

use super::Format;

/// A value as the text of one cell.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| format!("{key}={}", cell(value)))
            .collect::<Vec<_>>()
            .join(","),
        other => other.to_string(),
    }
}

/// One value: a line for each field, with its name.
pub(super) fn value(out: &mut dyn Write, format: Format, value: &Value) -> Result<()> {
    match (format, value) {
        (Format::Json, value) => writeln!(out, "{value:#}"),
        (_, Value::Object(map)) => {
            // Unknown fields are left out.
            let mut known = map.iter().filter(|(_, value)| !cell(value).is_empty());
            let width = known.clone().map(|(key, _)| key.len()).max().unwrap_or(0);
            known.try_for_each(|(key, value)| writeln!(out, "{key:<width$}  {}", cell(value)))
        }
        (_, value) => writeln!(out, "{}", cell(value)),
    }
}

/// Many values: a line for each, in columns.
pub(super) fn rows(
    out: &mut dyn Write,
    format: Format,
    rows: &[Value],
    columns: &[&str],
) -> Result<()> {
    match format {
        Format::Json => return writeln!(out, "{:#}", Value::Array(rows.to_vec())),
        Format::Name => {
            let first = columns.first().copied().unwrap_or("name");
            return rows.iter().try_for_each(|row| writeln!(out, "{}", cell(&row[first])));
        }
        Format::Table => {}
    }
    let heads: Vec<String> = columns.iter().map(|column| column.to_uppercase()).collect();
    // A long cell would push the following columns off the screen in every line. No column follows
    // the last.
    let last = columns.len().saturating_sub(1);
    let shown = |row: &Value, at: usize, column: &str| match at == last {
        true => cell(&row[column]),
        false => shortened(&cell(&row[column])),
    };
    let line = |row: &Value| {
        columns.iter().enumerate().map(|(at, column)| shown(row, at, column)).collect()
    };
    let cells: Vec<Vec<String>> = rows.iter().map(line).collect();
    let width = |at: usize| {
        cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in std::iter::once(&heads).chain(&cells) {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(text, width)| format!("{text:<width$}", width = *width))
            .collect();
        writeln!(out, "{}", line.join("  ").trim_end())?;
    }
    Ok(())
}

/// How many characters of a name are shown.
const LONGEST: usize = 60;

/// A name without its middle, if it is too long for a table: the ends say most.
pub(super) fn shortened(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LONGEST {
        return name.to_owned();
    }
    let (start, end) = (&letters[..LONGEST / 2], &letters[letters.len() + 1 - LONGEST / 2..]);
    start.iter().chain(&['…']).chain(end).collect()
}

/// A bar of forty characters: done, moving, stuck. With all numbers zero it is full if `done`.
pub(super) fn bar(done: bool, ok: u64, moving: u64, stuck: u64) -> String {
    let total = (ok + moving + stuck).max(1);
    let part = |number: u64| usize::try_from(number * 40 / total).unwrap_or(0);
    let (ok, stuck) = (if done && ok + moving + stuck == 0 { 40 } else { part(ok) }, part(stuck));
    format!(
        "[{}{}{}]",
        "#".repeat(ok),
        "!".repeat(stuck),
        "·".repeat(40_usize.saturating_sub(ok + stuck))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_shortened_in_its_middle() {
        for short in ["", "s:f", &"ä".repeat(60)] {
            assert_eq!(shortened(short), short);
        }
        let long = format!("s:{}.root", "ä".repeat(500));
        let shown = shortened(&long);
        assert_eq!(shown.chars().count(), 60);
        assert!(shown.starts_with("s:ä") && shown.contains('…') && shown.ends_with(".root"));
    }

    #[test]
    fn a_bar_always_has_the_same_length() {
        for (ok, moving, stuck) in [(0, 0, 0), (1, 2, 3), (10, 0, 0), (0, 0, 7), (999, 1, 0)] {
            for done in [true, false] {
                assert_eq!(bar(done, ok, moving, stuck).chars().count(), 42);
            }
        }
        assert_eq!(bar(true, 0, 0, 0), format!("[{}]", "#".repeat(40)));
        assert_eq!(bar(false, 0, 0, 0), format!("[{}]", "·".repeat(40)), "nothing is begun");
    }

    #[test]
    fn long_cells_do_not_widen_tables_and_are_complete_in_json() {
        let long = "A|".repeat(1_500);
        let list = [
            serde_json::json!({"id": "1", "on": long, "copies": 1}),
            serde_json::json!({"id": "2", "on": "B", "copies": 2}),
        ];
        for (format, columns, whole) in [
            (Format::Table, ["id", "on", "copies"], false),
            (Format::Table, ["id", "copies", "on"], true),
            (Format::Json, ["id", "on", "copies"], true),
            (Format::Name, ["on", "id", "copies"], true),
        ] {
            let mut out = Vec::new();
            rows(&mut out, format, &list, &columns).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.contains(&long), whole, "{format:?} {columns:?}");
            assert!(whole || text.lines().all(|line| line.chars().count() < 80), "{text}");
        }
    }
}
