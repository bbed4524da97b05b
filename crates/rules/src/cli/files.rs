//! Commands that move files in and out, and show what is moving.
//!
//! Upload and download reach the storage from this machine, by the protocols of the RSE; the bytes
//! do not pass through the server. A file gets its name only when it is whole, and is registered
//! only when it is there.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::{Value, json};

use super::{Cli, Download, Error, Format, Upload, did, did_path, part, table};
use crate::api::Did;
use crate::protocol::{self, Protocol};
use crate::transfers::copy::{Adding, Sums, copy};
use crate::transfers::store::{self, Folder};
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

/// The path in a physical name such as `file://localhost:0/data/x`.
fn local(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("file://")?;
    rest.find('/').map(|at| &rest[at..])
}

impl Cli<'_> {
    /// The protocol by which an RSE is written or read from here, and whether names follow from
    /// hashes there.
    async fn way(&self, rse: &str, operation: &str) -> Result<(Protocol, bool), Error> {
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
        let way = ways.into_iter().next().ok_or_else(|| {
            Error::Usage(format!(
                "{rse} has no protocol to {operation} by from here; give it one: mainstay rules rse protocol {rse} file:///FOLDER"
            ))
        })?;
        Ok((way.1, found["deterministic"].as_bool().unwrap_or(true)))
    }

    pub(super) async fn upload(&mut self, upload: Upload) -> Result<u8, Error> {
        let (protocol, deterministic) = self.way(&upload.rse, "write").await?;
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
        let folder = Folder::open(protocol).map_err(|error| Error::Usage(error.to_string()))?;
        let stored = |error: store::Error| Error::Usage(error.to_string());
        let mut file = std::fs::File::open(from).map_err(failed(from))?;
        let length = file.metadata().map_err(failed(from))?.len();
        let mut bar = Bar::new(&name.name, length);
        let mut draft =
            folder.write(&path, &format!("0-{}", std::process::id())).map_err(stored)?;
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
        let back = add_up(draft.read_back().map_err(stored)?, from)?;
        if back != sums {
            return Err(Error::Usage(format!("what was written to {rse} reads back different")));
        }
        // Nothing that is there already is ever written over.
        draft.keep_new().map_err(stored)?;
        let said = (!deterministic).then(|| protocol.name(&path));
        let body = json!({
            "rse": rse,
            "files": [{
                "scope": name.scope, "name": name.name, "bytes": sums.bytes, "adler32": sums.adler32, "md5": sums.md5,
                "pfn": said,
            }],
        });
        let registered = self.call("POST", "/replicas", Some(body)).await;
        if registered.is_err() {
            folder.remove(&path).map_err(stored)?;
        }
        registered.map(drop)
    }

    pub(super) async fn download(&mut self, download: Download) -> Result<u8, Error> {
        let (scope, name) = did(&download.did)?;
        let body = json!({
            "dids": [{"scope": scope, "name": name}], "schemes": ["file"], "rse_expression": download.expression,
            "ignore_availability": false, "domain": "wan",
        });
        let text = self.call("POST", "/replicas/list", Some(body)).await?;
        let mut missed = 0;
        for line in text.lines() {
            let value: Value =
                serde_json::from_str(line).map_err(|error| Error::Answer(error.to_string()))?;
            match fetch(&value, &download.into) {
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

/// Fetches one file into a folder, from the first source that has it right.
fn fetch(value: &Value, into: &Path) -> Result<PathBuf, Error> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let (scope, name) = (text("scope").unwrap_or_default(), text("name").unwrap_or_default());
    if !protocol::stays_below(name.trim_start_matches('/')) {
        return Err(Error::Answer("its name leads out of the folder".to_owned()));
    }
    let bytes = value["bytes"].as_i64().unwrap_or(0);
    let into = into.join(&scope);
    std::fs::create_dir_all(&into).map_err(failed(&into))?;
    let whole = std::path::absolute(&into).map_err(failed(&into))?;
    let end = |rse: &str, folder: &Path, path: &str| {
        let body = serde_json::Map::from_iter([(
            "prefix".to_owned(),
            json!(folder.display().to_string()),
        )]);
        let protocol =
            Protocol::read("file", &body).map_err(|error| Error::Usage(error.to_string()))?;
        Ok::<_, Error>(End { rse: rse.to_owned(), protocol, path: path.to_owned() })
    };
    let place = name.trim_start_matches('/').to_owned();
    let mut last = Error::Usage("no RSE that has it can be read from here".to_owned());
    for name in value["pfns"].as_object().into_iter().flatten().map(|(name, _)| name) {
        let Some(path) = local(name) else { continue };
        let job = Job {
            request: 0,
            attempt: i64::from(std::process::id()),
            did: Did::new(scope.as_str(), place.as_str()),
            bytes,
            adler32: text("adler32"),
            md5: text("md5"),
            source: end("source", Path::new("/"), path.trim_start_matches('/'))?,
            destination: end("here", &whole, &place)?,
        };
        let moved = AtomicI64::new(0);
        let bar = Bar::new(&place, u64::try_from(bytes).unwrap_or(0));
        let done = std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy(&job, &moved, &AtomicBool::new(false)));
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
