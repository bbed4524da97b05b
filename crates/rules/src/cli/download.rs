//! Fetching files: from the nearest RSE that has them right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::{Value, json};

use super::files::{Bar, aside, failed, ways};
use super::{Cli, Download, Error, did};
use crate::api::Did;
use crate::protocol::{self, Protocol};
use crate::transfers::copy::copy;
use crate::transfers::store::Access;
use crate::transfers::{End, Job};

impl Cli<'_> {
    pub(super) async fn download(&mut self, download: Download) -> Result<u8, Error> {
        let (scope, name) = did(&download.did)?;
        let body = json!({
            "dids": [{"scope": scope, "name": name}], "rse_expression": download.expression,
            "ignore_availability": false, "domain": "wan",
        });
        let text = self.call("POST", "/replicas/list", Some(body)).await?;
        let mut known: BTreeMap<String, Vec<Protocol>> = BTreeMap::new();
        let mut missed = 0;
        for line in text.lines() {
            let value: Value =
                serde_json::from_str(line).map_err(|error| Error::Answer(error.to_string()))?;
            for rse in value["rses"].as_object().into_iter().flatten().map(|(rse, _)| rse) {
                if !known.contains_key(rse) {
                    known.insert(rse.clone(), ways(&self.rse_named(rse).await?, "read")?);
                }
            }
            let (sources, into) = (sources(&value, &known), download.into.clone());
            let (access, wanted) = (Arc::clone(&self.access), value.clone());
            match aside(move || fetch(&access, &wanted, &sources, &into)).await {
                Ok(place) => writeln!(self.out, "{}", place.display())?,
                Err(error) => {
                    eprintln!("{}: {error}", value["name"].as_str().unwrap_or(""));
                    missed += 1;
                }
            }
        }
        Ok(u8::from(missed > 0))
    }
}

/// Where a file can be read from here, the nearest first.
fn sources(value: &Value, known: &BTreeMap<String, Vec<Protocol>>) -> Vec<End> {
    let mut all: Vec<(i64, End)> = Vec::new();
    for (name, one) in value["pfns"].as_object().into_iter().flatten() {
        let rse = one["rse"].as_str().unwrap_or_default();
        let ways = known.get(rse).map(Vec::as_slice).unwrap_or_default();
        let found = ways.iter().find_map(|way| Some((way, way.path_of(name)?)));
        if let Some((protocol, path)) = found {
            let end = End { rse: rse.to_owned(), protocol: protocol.clone(), path };
            all.push((one["priority"].as_i64().unwrap_or(i64::MAX), end));
        }
    }
    all.sort_by_key(|(priority, _)| *priority);
    all.into_iter().map(|(_, end)| end).collect()
}

/// Fetches one file into a folder, from the first source that has it right.
fn fetch(access: &Access, value: &Value, from: &[End], into: &Path) -> Result<PathBuf, Error> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let (scope, name) = (text("scope").unwrap_or_default(), text("name").unwrap_or_default());
    let place = name.trim_start_matches('/').to_owned();
    if !protocol::stays_below(&place) {
        return Err(Error::Answer("its name leads out of the folder".to_owned()));
    }
    let bytes = value["bytes"].as_i64().unwrap_or(0);
    let into = into.join(&scope);
    std::fs::create_dir_all(&into).map_err(failed(&into))?;
    let whole = std::path::absolute(&into).map_err(failed(&into))?;
    let prefix = json!(whole.display().to_string());
    let body = serde_json::Map::from_iter([("prefix".to_owned(), prefix)]);
    let protocol =
        Protocol::read("file", &body).map_err(|error| Error::Usage(error.to_string()))?;
    let here = End { rse: "here".to_owned(), protocol, path: place.clone() };
    let mut last = Error::Usage("no RSE that has it can be read from here".to_owned());
    for source in from {
        let job = Job {
            request: 0,
            attempt: i64::from(std::process::id()),
            did: Did::new(scope.as_str(), place.as_str()),
            bytes,
            adler32: text("adler32"),
            md5: text("md5"),
            source: source.clone(),
            destination: here.clone(),
        };
        let moved = AtomicI64::new(0);
        let bar = Bar::new(&place, u64::try_from(bytes).unwrap_or(0));
        let done = std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy(access, &job, &moved, &AtomicBool::new(false)));
            let mut bar = bar;
            while !copying.is_finished() {
                let more = moved.load(Ordering::Acquire) - i64::try_from(bar.done).unwrap_or(0);
                bar.add(u64::try_from(more).unwrap_or(0));
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            copying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match done {
            Ok(()) => return Ok(into.join(&place)),
            Err(error) => last = Error::Usage(error.to_string()),
        }
    }
    Err(last)
}
