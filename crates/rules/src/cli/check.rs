//! `check`: verifies the catalog and the storage of its RSEs.

use std::io::IsTerminal;

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{Check, Cli, Error, Format, part};

/// The result of comparing storage.
struct Looked {
    findings: usize,
    notes: Vec<String>,
    at: Value,
}

impl Cli<'_> {
    pub(super) async fn check(&mut self, check: Check) -> Result<u8, Error> {
        if check.repair {
            let mended = self.value("POST", "/mainstay/check/repair", None).await?;
            eprintln!("{} counters mended", mended["mended"]);
        }
        let value = self.value("GET", "/mainstay/check", None).await?;
        let found = value["violations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let as_json = self.format == Format::Json;
        if as_json && !check.storage {
            super::table::value(self.out, self.format, &value)?;
        } else if !as_json {
            for violation in found {
                let text = |key: &str| violation[key].as_str().unwrap_or("").to_owned();
                writeln!(self.out, "{} {}", text("invariant"), text("what"))?;
            }
        }
        if !check.storage {
            return Ok(u8::from(!found.is_empty()));
        }
        if as_json {
            // Findings are written as they arrive: there may be many.
            write!(self.out, "{{\n\"violations\": {:#},\n\"storage\": [", value["violations"])?;
        }
        let looked = self.check_storage(&check).await?;
        if as_json {
            let (notes, at) = (json!(looked.notes), &looked.at);
            writeln!(self.out, "\n],\n\"notes\": {notes:#},\n\"looked_at\": {at}\n}}")?;
        }
        Ok(u8::from(!found.is_empty() || looked.findings > 0))
    }

    async fn check_storage(&mut self, check: &Check) -> Result<Looked, Error> {
        let rse =
            check.rse.as_deref().map_or_else(String::new, |text| format!("&rse={}", part(text)));
        let path = format!("/mainstay/check/storage?checksums={}{rse}", check.checksums);
        let mut pieces = self.pieces(&path).await?;
        let mut looked = Looked { findings: 0, notes: Vec::new(), at: Value::Null };
        let (mut rest, mut done) = (Vec::new(), false);
        while let Some(piece) = pieces.next().await {
            rest.extend_from_slice(&piece?);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line)
                    .map_err(|error| Error::Answer(error.to_string()))?;
                done |= self.process_line(&line, &mut looked)?;
            }
        }
        if !done {
            return Err(Error::Answer("it ended early: the comparison is incomplete".to_owned()));
        }
        let count = |key: &str| looked.at[key].as_u64().unwrap_or(0);
        eprintln!("{} replicas and {} files were checked", count("replicas"), count("files"));
        Ok(looked)
    }

    /// Processes one line; returns whether it was the last.
    fn process_line(&mut self, line: &Value, looked: &mut Looked) -> Result<bool, Error> {
        if let Some(found) = line.get("found") {
            let text = |key: &str| found[key].as_str().unwrap_or("");
            if self.format == Format::Json {
                let comma = if looked.findings > 0 { "," } else { "" };
                write!(self.out, "{comma}\n{found}")?;
            } else {
                writeln!(self.out, "{} {}", text("kind"), text("what"))?;
            }
            self.out.flush()?;
            looked.findings += 1;
        } else if let Some(note) = line["note"].as_str() {
            eprintln!("{note}");
            looked.notes.push(note.to_owned());
        } else if let Some(at) = line.get("looked_at") {
            if std::io::stderr().is_terminal() {
                eprintln!("{} replicas and {} files so far", at["replicas"], at["files"]);
            }
        } else if let Some(at) = line.get("done") {
            looked.at = at.clone();
            return Ok(true);
        }
        Ok(false)
    }
}
