//! The results of measurements: rows for programs, a table for people.

use std::borrow::Cow;

use serde::Serialize;

use crate::output::{self, Table};

/// One measurement. `None` where it does not apply.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub case: Cow<'static, str>,
    pub backend: String,
    pub size: usize,
    pub rate: Option<f64>,
    pub unit: Option<Cow<'static, str>>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub rss_mb: Option<f64>,
}

impl Row {
    pub fn new(case: &'static str, backend: &str, size: usize) -> Self {
        Self {
            case: Cow::Borrowed(case),
            backend: backend.to_owned(),
            size,
            rate: None,
            unit: None,
            p50_ms: None,
            p99_ms: None,
            rss_mb: None,
        }
    }

    pub fn rate(mut self, count: usize, seconds: f64, unit: &'static str) -> Self {
        self.rate = Some(rounded(count as f64 / seconds.max(1e-9)));
        self.unit = Some(Cow::Borrowed(unit));
        self
    }

    /// Latencies in microseconds, in any order.
    pub fn latencies(mut self, mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        self.p50_ms = percentile(&micros, 50);
        self.p99_ms = percentile(&micros, 99);
        self
    }
}

/// The smallest value that `percent` of all values do not exceed, in milliseconds.
fn percentile(sorted_micros: &[u32], percent: usize) -> Option<f64> {
    let rank = (sorted_micros.len() * percent).div_ceil(100).max(1);
    let micros = sorted_micros.get(rank - 1)?;
    Some(rounded(f64::from(*micros) / 1000.0))
}

fn rounded(value: f64) -> f64 {
    let scale = if value.abs() >= 100.0 { 1.0 } else { 1000.0 };
    (value * scale).round() / scale
}

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// A table
    #[default]
    Table,
    /// A list of rows
    Json,
    /// A table for a Markdown page
    Markdown,
}

/// Prints the rows.
pub fn print(rows: &[Row], format: Format) -> std::io::Result<()> {
    let text = match format {
        Format::Table => table(rows).text(),
        Format::Markdown => table(rows).markdown(),
        Format::Json => {
            let lines: Vec<String> =
                rows.iter().map(|row| serde_json::json!(row).to_string()).collect();
            format!("[{}]\n", lines.join(",\n "))
        }
    };
    output::print(&text)
}

/// The rows side by side.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["CASE", "BACKEND", "SIZE", "RATE", "P50", "P99", "MEMORY"]);
    for row in rows {
        let number = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{}{unit}", grouped(value)),
            None => "–".to_owned(),
        };
        let unit = row.unit.as_ref().map(|unit| format!(" {unit}")).unwrap_or_default();
        table.rows.push(vec![
            row.case.to_string(),
            row.backend.clone(),
            grouped(row.size as f64),
            number(row.rate, &unit),
            number(row.p50_ms, " ms"),
            number(row.p99_ms, " ms"),
            number(row.rss_mb, " MB"),
        ]);
    }
    table
}

/// `12345.0` → `12,345`; small numbers keep two places.
fn grouped(value: f64) -> String {
    if value.fract() != 0.0 && value < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let cases: [(&[u32], usize, Option<f64>); 5] = [
            (&[], 50, None),
            (&[1000], 99, Some(1.0)),
            (&[1000, 2000], 50, Some(1.0)),
            (&[1000, 2000, 3000], 50, Some(2.0)),
            (&[1000, 2000, 3000], 99, Some(3.0)),
        ];
        for (values, percent, expected) in cases {
            assert_eq!(percentile(values, percent), expected);
        }
    }

    #[test]
    fn numbers_are_readable() {
        for (value, expected) in [(0.0, "0"), (12_345.0, "12,345"), (1.257, "1.26"), (999.0, "999")]
        {
            assert_eq!(grouped(value), expected);
        }
    }

    #[test]
    fn json_has_every_field() {
        let row = serde_json::to_value(Row::new("memory", "sqlite", 1)).unwrap();
        let names: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            ["backend", "case", "p50_ms", "p99_ms", "rate", "rss_mb", "size", "unit"]
        );
    }
}
