//! `download`: fetches files from the nearest RSE that has a correct copy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use mainstay_transfers::copy::{self, differs};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::{Access, Opened};
use mainstay_transfers::{End, Job};
use serde_json::{Value, json};

use super::files::{
    Bar, check_stop, failed, run_blocking, run_interruptible, sums_of, usable_protocols,
};
use super::{Cli, Download, Error, did};
use crate::api::Did;

impl Cli<'_> {
    pub(super) async fn download(&mut self, download: Download) -> Result<u8, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        run_interruptible(&stop, self.download_all(&download, &stop)).await
    }

    async fn download_all(
        &mut self,
        download: &Download,
        stop: &Arc<AtomicBool>,
    ) -> Result<u8, Error> {
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
            for rse in value["states"].as_object().into_iter().flatten().map(|(rse, _)| rse) {
                if !known.contains_key(rse) {
                    known.insert(
                        rse.clone(),
                        usable_protocols(&self.rse_named(rse).await?, "read")?,
                    );
                }
            }
            let wanted = Wanted::read(&value, &known);
            let (name, into) = (wanted.did.to_string(), download.into.clone());
            let (access, force) = (Arc::clone(&self.access), download.force);
            let end = Arc::clone(stop);
            match run_blocking(move || fetch(&access, &wanted, &into, force, &end)).await {
                Ok((place, from)) => {
                    writeln!(self.out, "{}", place.display())?;
                    if from.is_none() {
                        eprintln!("{name} is there already");
                    }
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    eprintln!("{name}: {error}");
                    missed += 1;
                }
            }
        }
        Ok(u8::from(missed > 0))
    }
}

/// A file to fetch, as recorded in the catalog.
struct Wanted {
    did: Did,
    bytes: i64,
    adler32: Option<String>,
    md5: Option<String>,
    /// The RSEs it can be read from, the nearest first.
    sources: Vec<End>,
    /// RSEs that have it and cannot be read from this machine.
    beyond: Vec<String>,
}

impl Wanted {
    fn read(value: &Value, known: &BTreeMap<String, Vec<Protocol>>) -> Self {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let sources = sources(value, known);
        let beyond = value["states"].as_object().into_iter().flatten().map(|(rse, _)| rse);
        let beyond = beyond.filter(|rse| sources.iter().all(|source| source.rse != **rse));
        Self {
            did: Did::new(text("scope").unwrap_or_default(), text("name").unwrap_or_default()),
            bytes: value["bytes"].as_i64().unwrap_or(0),
            adler32: text("adler32"),
            md5: text("md5"),
            beyond: beyond.cloned().collect(),
            sources,
        }
    }

    /// Whether a local file has the same content.
    fn is_at(&self, place: &Path, stop: &AtomicBool) -> Result<bool, Error> {
        let (adler32, md5) = (self.adler32.as_deref(), self.md5.as_deref());
        let Ok(found) = std::fs::metadata(place) else { return Ok(false) };
        if !found.is_file() || (adler32.is_none() && md5.is_none()) {
            return Ok(false);
        }
        if i64::try_from(found.len()) != Ok(self.bytes) {
            return Ok(false);
        }
        let file = std::fs::File::open(place).map_err(failed(place))?;
        Ok(differs(&sums_of(file, place, stop)?, self.bytes, adler32, md5).is_none())
    }

    /// The error for a file that cannot be fetched, with the reason for each RSE.
    fn missed(&self, mut why: Vec<String>) -> Error {
        let none = |rse: &String| format!("{rse}: it has no protocol to read by from here");
        why.extend(self.beyond.iter().map(none));
        Error::Failed(match why.is_empty() {
            true => "no RSE that can be read now has it".to_owned(),
            false => why.join("; "),
        })
    }
}

/// The RSEs a file can be read from, the nearest first.
fn sources(value: &Value, known: &BTreeMap<String, Vec<Protocol>>) -> Vec<End> {
    let mut all: Vec<(i64, End)> = Vec::new();
    for (name, one) in value["pfns"].as_object().into_iter().flatten() {
        let rse = one["rse"].as_str().unwrap_or_default();
        let ways = known.get(rse).map(Vec::as_slice).unwrap_or_default();
        let found = ways.iter().find_map(|way| Some((way, way.path_of(name)?)));
        if let Some((protocol, path)) = found {
            let end = End { rse: rse.to_owned(), protocol: Arc::new(protocol.clone()), path };
            all.push((one["priority"].as_i64().unwrap_or(i64::MAX), end));
        }
    }
    all.sort_by_key(|(priority, _)| *priority);
    all.into_iter().map(|(_, end)| end).collect()
}

/// Fetches one file into a folder, from the first source with a correct copy. Returns its path, and
/// the RSE unless the file was there already. A failure leaves no new folders behind.
fn fetch(
    access: &Access,
    wanted: &Wanted,
    into: &Path,
    force: bool,
    stop: &AtomicBool,
) -> Result<(PathBuf, Option<String>), Error> {
    check_stop(stop)?;
    let path = wanted.did.name.trim_start_matches('/').to_owned();
    if !mainstay_transfers::protocol::stays_below(&path) {
        return Err(Error::Answer("its name leads out of the download folder".to_owned()));
    }
    let into = into.join(&wanted.did.scope);
    let place = into.join(&path);
    if place.symlink_metadata().is_ok() {
        if wanted.is_at(&place, stop)? {
            return Ok((place, None));
        }
        if !force {
            return Err(Error::Failed(format!(
                "{} is there with another content; --force replaces it",
                place.display()
            )));
        }
    }
    let before = place.ancestors().skip(1).find(|folder| folder.exists()).map(Path::to_owned);
    std::fs::create_dir_all(&into).map_err(failed(&into))?;
    let fetched = fetch_to(access, wanted, &into, path, stop);
    if fetched.is_err() {
        let made = place.ancestors().skip(1).take_while(|one| Some(*one) != before.as_deref());
        // A folder that is not empty stays, and so do its parents.
        for folder in made {
            if std::fs::remove_dir(folder).is_err() && folder.exists() {
                break;
            }
        }
    }
    fetched.map(|rse| (place, Some(rse)))
}

/// Fetches one file to a path below a folder; returns the RSE it came from.
fn fetch_to(
    access: &Access,
    wanted: &Wanted,
    into: &Path,
    path: String,
    stop: &AtomicBool,
) -> Result<String, Error> {
    let whole = std::path::absolute(into).map_err(failed(into))?;
    let prefix = json!(whole.display().to_string());
    let body = serde_json::Map::from_iter([("prefix".to_owned(), prefix)]);
    let protocol =
        Protocol::read("file", &body).map_err(|error| Error::Usage(error.to_string()))?;
    let here = End { rse: "here".to_owned(), protocol: Arc::new(protocol), path };
    let mut why = Vec::new();
    for source in &wanted.sources {
        let job = Job {
            request: 0,
            attempt: i64::from(std::process::id()),
            did: wanted.did.clone(),
            bytes: wanted.bytes,
            adler32: wanted.adler32.clone(),
            md5: wanted.md5.clone(),
            source: source.clone(),
            destination: here.clone(),
        };
        match copy_shown(access, &job, stop) {
            Ok(()) => return Ok(source.rse.clone()),
            Err(copy::Error::Cancelled) => return Err(Error::Interrupted),
            Err(
                copy::Error::Source { rse, why: reason }
                | copy::Error::Differs { rse, why: reason, .. },
            ) => why.push(format!("{rse}: {reason}")),
            Err(error) => why.push(format!("{}: {error}", source.rse)),
        }
    }
    Err(wanted.missed(why))
}

/// Copies a file and shows the progress.
fn copy_shown(access: &Access, job: &Job, stop: &AtomicBool) -> Result<(), copy::Error> {
    let moved = AtomicI64::new(0);
    let mut bar = Bar::new(&job.did.name, u64::try_from(job.bytes).unwrap_or(0));
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let stop = || stop.load(Ordering::Acquire);
            copy::copy(&mut Opened::new(access), job, &moved, &stop)
        });
        while !copying.is_finished() {
            let more = moved.load(Ordering::Acquire) - i64::try_from(bar.done).unwrap_or(0);
            bar.add(u64::try_from(more).unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        copying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
