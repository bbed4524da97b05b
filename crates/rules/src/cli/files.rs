//! Commands that move files in and out, and show what is moving.
//!
//! Upload and download reach the storage from this machine, by the protocols of the RSE; the bytes
//! do not pass through the server. A file gets its name only when it is whole, and is registered
//! only when it is there.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::{Value, json};

use super::{Cli, Download, Error, Format, Upload, did, did_path, part, table};
use crate::api::Did;
use crate::protocol::{self, Protocol};
use crate::transfers::copy::{Adding, Sums, copy};
use crate::transfers::store::{self, Access, Plan, Store};
use crate::transfers::{End, Job};

/// How much is read at a time.
const PIECE: usize = 1 << 20;

fn failed(what: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |error| Error::Usage(format!("{}: {error}", what.display()))
}

/// Progress on a terminal: one line that is written over.
struct Bar {
    name: String,
    whole: u64,
    done: u64,
    shown: Option<u64>,
}

impl Bar {
    fn new(name: &str, whole: u64) -> Self {
        let shown = std::io::stderr().is_terminal().then_some(101);
        Self { name: name.to_owned(), whole, done: 0, shown }
    }

    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let part = self.done.saturating_mul(100).checked_div(self.whole).unwrap_or(100);
        if self.shown.is_some_and(|shown| shown != part) {
            self.shown = Some(part);
            let full = usize::try_from(part.min(100) / 4).unwrap_or(0);
            let (full, rest) = ("#".repeat(full), " ".repeat(25 - full.min(25)));
            eprint!("\r{} [{full}{rest}] {part} %", self.name);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }
}

fn stored(error: store::Error) -> Error {
    Error::Usage(error.to_string())
}

/// Runs what waits for disks and networks where waiting is allowed.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Usage(error.to_string()))?
}

impl Cli<'_> {
    /// The protocols by which an RSE is written or read from here, the best first, and whether
    /// names follow from hashes there.
    async fn ways(&self, rse: &str, operation: &str) -> Result<(Vec<Protocol>, bool), Error> {
        let found = self.value("GET", &format!("/rses/{}", part(rse)), None).await?;
        let list = found["protocols"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut ways: Vec<(i64, Protocol)> = Vec::new();
        for one in list {
            let (Some(scheme), Some(body)) = (one["scheme"].as_str(), one.as_object()) else {
                continue;
            };
            let read = Protocol::read(scheme, body);
            let protocol = read.map_err(|error| Error::Answer(error.to_string()))?;
            if let Some(rank) = protocol.rank("wan", operation)
                && store::is_known(&protocol)
            {
                ways.push((rank, protocol));
            }
        }
        ways.sort_by_key(|(rank, _)| *rank);
        let ways = ways.into_iter().map(|(_, protocol)| protocol).collect();
        Ok((ways, found["deterministic"].as_bool().unwrap_or(true)))
    }

    pub(super) async fn upload(&mut self, upload: Upload) -> Result<u8, Error> {
        let (ways, deterministic) = self.ways(&upload.rse, "write").await?;
        let rse = &upload.rse;
        let protocol = ways.into_iter().next().ok_or_else(|| {
            Error::Usage(format!(
                "{rse} has no protocol to write by from here; give it one: mainstay rules rse protocol {rse} file:///FOLDER"
            ))
        })?;
        for file in &upload.files {
            let name = match &upload.name {
                Some(name) if upload.files.len() == 1 => name.clone(),
                Some(_) => {
                    return Err(Error::Usage("--name is for a single file".to_owned()));
                }
                None => file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            };
            let name = Did::new(upload.scope.clone(), name);
            name.check().map_err(|error| Error::Usage(error.to_string()))?;
            self.upload_one(&upload.rse, &protocol, deterministic, file, &name).await?;
            writeln!(self.out, "{name}")?;
        }
        if let Some(dataset) = &upload.dataset {
            let children: Vec<Value> = upload
                .files
                .iter()
                .filter_map(|file| file.file_name())
                .map(|name| match &upload.name {
                    Some(name) => json!({"scope": upload.scope, "name": name}),
                    None => json!({"scope": upload.scope, "name": name.to_string_lossy()}),
                })
                .collect();
            let path = did_path(dataset, "/dids")?;
            self.done("POST", &path, Some(json!({"dids": children}))).await?;
        }
        Ok(0)
    }

    async fn upload_one(
        &mut self,
        rse: &str,
        protocol: &Protocol,
        deterministic: bool,
        from: &Path,
        name: &Did,
    ) -> Result<(), Error> {
        let path = protocol::hashed_path(name);
        let (access, at, way) = (Arc::clone(&self.access), rse.to_owned(), protocol.clone());
        let (place, local, shown) = (path.clone(), from.to_owned(), name.name.clone());
        let (store, sums, made) = aside(move || {
            let store = access.open(&at, &way).map_err(stored)?;
            let (sums, made) = put(&*store, &place, &local, &shown)?;
            Ok((store, sums, made))
        })
        .await?;
        let said = (!deterministic).then(|| protocol.name(&path));
        let body = json!({
            "rse": rse,
            "files": [{
                "scope": name.scope, "name": name.name, "bytes": sums.bytes, "adler32": sums.adler32, "md5": sums.md5,
                "pfn": said,
            }],
        });
        let registered = self.call("POST", "/replicas", Some(body)).await;
        // What was there before stays: it may be somebody's.
        if registered.is_err() && made {
            aside(move || store.remove(&path).map_err(stored)).await?;
        }
        registered.map(drop)
    }

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
                    known.insert(rse.clone(), self.ways(rse, "read").await?.0);
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

    pub(super) async fn transfers(&mut self, most: u32) -> Result<u8, Error> {
        let value = self.value("GET", &format!("/mainstay/transfers?most={most}"), None).await?;
        if self.format == Format::Json {
            table::value(self.out, self.format, &value)?;
            return Ok(0);
        }
        let list = |key: &str| value[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let columns =
            ["name", "source", "destination", "bytes", "moved", "bytes_per_second", "worker"];
        table::rows(self.out, self.format, list("moving"), &columns)?;
        if !list("waiting").is_empty() {
            writeln!(self.out)?;
            let columns = ["name", "destination", "bytes", "activity", "why"];
            table::rows(self.out, self.format, list("waiting"), &columns)?;
        }
        Ok(0)
    }
}

fn add_up(mut from: impl Read, what: &Path) -> Result<Sums, Error> {
    let mut adding = Adding::new(true);
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).map_err(failed(what))? {
            0 => return Ok(adding.sums()),
            read => adding.add(&piece[..read]),
        }
    }
}

/// Puts a file on storage; gives what it adds up to, and whether it was not there before. Done
/// again after it died half-way, it finds what is there.
fn put(store: &dyn Store, path: &str, from: &Path, name: &str) -> Result<(Sums, bool), Error> {
    let mut file = std::fs::File::open(from).map_err(failed(from))?;
    let length = file.metadata().map_err(failed(from))?.len();
    let plan = Plan { tag: format!("0-{}", std::process::id()), bytes: length, new: true };
    let mut draft = store.write(path, &plan).map_err(stored)?;
    let mut bar = Bar::new(name, length);
    let mut adding = Adding::new(true);
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(failed(from))?;
        if read == 0 {
            break;
        }
        adding.add(&piece[..read]);
        draft.add(&piece[..read]).map_err(stored)?;
        bar.add(read as u64);
    }
    drop(bar);
    let sums = adding.sums();
    let kept = match draft.seal().and_then(|()| draft.read_back()) {
        Ok(back) => match add_up(back, from)? == sums {
            true => draft.keep(),
            false => {
                return Err(Error::Usage(format!(
                    "what was written to {path} reads back different"
                )));
            }
        },
        Err(error) => Err(error),
    };
    match kept {
        // Nothing that is there already is ever written over.
        Err(store::Error::There(what)) => {
            let (there, _) = store.read(path).map_err(stored)?;
            match add_up(there, from)? == sums {
                true => Ok((sums, false)),
                false => Err(stored(store::Error::There(what))),
            }
        }
        Err(error) => Err(stored(error)),
        Ok(()) => store.sync().map(|()| (sums, true)).map_err(stored),
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
