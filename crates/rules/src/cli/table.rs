//! Values as tables for people.

use std::io::{Result, Write};

use serde_json::Value;

use super::Format;

/// A value in one cell.
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

/// One value: a name and a value a line.
pub(super) fn value(out: &mut dyn Write, format: Format, value: &Value) -> Result<()> {
    match (format, value) {
        (Format::Json, value) => writeln!(out, "{value:#}"),
        (_, Value::Object(map)) => {
            // What is not known takes no line of its own.
            let mut known = map.iter().filter(|(_, value)| !cell(value).is_empty());
            let width = known.clone().map(|(key, _)| key.len()).max().unwrap_or(0);
            known.try_for_each(|(key, value)| writeln!(out, "{key:<width$}  {}", cell(value)))
        }
        (_, value) => writeln!(out, "{}", cell(value)),
    }
}

/// Many values: one a line, in columns.
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
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| cell(&row[*column])).collect()).collect();
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

/// How many letters of a name are shown.
const LONGEST: usize = 60;

/// A name without its middle, where it is too long for a table: its ends tell most.
pub(super) fn shortened(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LONGEST {
        return name.to_owned();
    }
    let (start, end) = (&letters[..LONGEST / 2], &letters[letters.len() + 1 - LONGEST / 2..]);
    start.iter().chain(&['…']).chain(end).collect()
}

/// A bar of forty letters: done, on the way, stuck.
pub(super) fn bar(ok: u64, moving: u64, stuck: u64) -> String {
    let total = (ok + moving + stuck).max(1);
    let part = |number: u64| usize::try_from(number * 40 / total).unwrap_or(0);
    let (ok, stuck) = (if ok + moving + stuck == 0 { 40 } else { part(ok) }, part(stuck));
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
    fn a_long_name_keeps_its_ends() {
        for short in ["", "s:f", &"ä".repeat(60)] {
            assert_eq!(shortened(short), short);
        }
        let long = format!("s:{}.root", "ä".repeat(500));
        let shown = shortened(&long);
        assert_eq!(shown.chars().count(), 60);
        assert!(shown.starts_with("s:ä") && shown.contains('…') && shown.ends_with(".root"));
    }

    #[test]
    fn a_bar_is_always_as_long() {
        for (ok, moving, stuck) in [(0, 0, 0), (1, 2, 3), (10, 0, 0), (0, 0, 7), (999, 1, 0)] {
            assert_eq!(bar(ok, moving, stuck).chars().count(), 42);
        }
    }
}
