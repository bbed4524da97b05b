//! `upload`: puts files on an RSE and registers them.
//!
//! Everything that can be checked in advance is checked before the first byte is written: the paths
//! are files, the RSE takes writes, the dataset is open, the catalog does not have the file
//! already. A file with a replica in the catalog is never removed, even if this upload wrote it: a
//! transfer worker may find the file before it is registered here, and register it first.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mainstay_transfers::copy::{Adding, Sums, differs};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::{self, Plan, Store};
use serde_json::{Value, json};

use super::files::{
    Bar, PIECE, check_stop, failed, run_blocking, run_interruptible, stored, sums_of,
    usable_protocols,
};
use super::{Cli, Error, Upload, did, did_path, draft};
use crate::api::{Did, ReplicaState};

/// A local file and its name in the catalog.
struct Given {
    from: PathBuf,
    name: Did,
}

/// The RSE that the files go to.
struct Target {
    rse: String,
    protocol: Protocol,
    deterministic: bool,
}

/// A file as recorded in the catalog.
struct Known {
    bytes: i64,
    adler32: Option<String>,
    md5: Option<String>,
    /// The state of its replica on the RSE in question.
    state: Option<ReplicaState>,
}

impl Known {
    fn read(value: &Value, rse: &str) -> Self {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Self {
            bytes: value["bytes"].as_i64().unwrap_or(0),
            adler32: text("adler32"),
            md5: text("md5"),
            state: value["states"][rse].as_str().and_then(ReplicaState::read),
        }
    }

    /// Fails unless a file with these checksums is known to have the same content.
    fn compare(&self, name: &Did, sums: &Sums) -> Result<(), Error> {
        let (adler32, md5) = (self.adler32.as_deref(), self.md5.as_deref());
        if let Some(why) = differs(sums, self.bytes, adler32, md5) {
            let text = format!("{name} is registered with another content: the local {why}");
            return Err(Error::Failed(text));
        }
        if self.state.is_some() && adler32.is_none() && md5.is_none() {
            let text =
                format!("{name} is registered without a checksum: it may be another content");
            return Err(Error::Failed(text));
        }
        Ok(())
    }
}

/// Checks the files before any of them is uploaded.
fn given(upload: &Upload) -> Result<Vec<Given>, Error> {
    if upload.name.is_some() && upload.files.len() > 1 {
        return Err(Error::Usage("--name is for a single file".to_owned()));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::with_capacity(upload.files.len());
    for from in &upload.files {
        // Opening or reading something other than a file may block forever.
        if !std::fs::metadata(from).map_err(failed(from))?.is_file() {
            return Err(Error::Usage(format!("{} is not a file", from.display())));
        }
        let own = || from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = Did::new(upload.scope.clone(), upload.name.clone().unwrap_or_else(own));
        crate::api::check_did(&name).map_err(|error| Error::Usage(error.to_string()))?;
        if !names.insert(name.name.clone()) {
            return Err(Error::Usage(format!("two of the files would be called {name}")));
        }
        all.push(Given { from: from.clone(), name });
    }
    Ok(all)
}

impl Cli<'_> {
    pub(super) async fn upload(&mut self, upload: Upload) -> Result<u8, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        run_interruptible(&stop, self.upload_all(&upload, &stop)).await
    }

    async fn upload_all(&mut self, upload: &Upload, stop: &Arc<AtomicBool>) -> Result<u8, Error> {
        let files = given(upload)?;
        let target = self.target(&upload.rse).await?;
        if let Some(dataset) = &upload.dataset {
            self.check_dataset(dataset).await?;
        }
        let mut there = Vec::with_capacity(files.len());
        for file in &files {
            match self.upload_one(&target, file, stop).await {
                Ok(new) => {
                    writeln!(self.out, "{}", file.name)?;
                    if !new {
                        eprintln!("{} is there already on {}", file.name, target.rse);
                    }
                    there.push(&file.name);
                }
                Err(error @ (Error::Unreachable(_) | Error::Interrupted)) => return Err(error),
                Err(error) if files.len() == 1 => return Err(error),
                // One failure does not stop the other files.
                Err(error) => eprintln!("{}: {error}", file.from.display()),
            }
        }
        if let Some(dataset) = &upload.dataset {
            self.attach(dataset, &there).await?;
        }
        Ok(u8::from(there.len() < files.len()))
    }

    async fn target(&self, rse: &str) -> Result<Target, Error> {
        let found = self.rse_named(rse).await?;
        if found["availability_write"] == json!(false) {
            return Err(Error::Failed(format!(
                "{rse} is closed for writing; open it: mainstay rules rse availability {rse} write=true"
            )));
        }
        let protocol = usable_protocols(&found, "write")?.into_iter().next().ok_or_else(|| {
            Error::Usage(format!(
                "{rse} has no protocol to write by from here; give it one: mainstay rules rse protocol {rse} file:///FOLDER"
            ))
        })?;
        let deterministic = found["deterministic"].as_bool().unwrap_or(true);
        Ok(Target { rse: rse.to_owned(), protocol, deterministic })
    }

    /// Fails if files cannot be attached to the dataset.
    async fn check_dataset(&self, dataset: &str) -> Result<(), Error> {
        let found = self.value("GET", &did_path(dataset, "")?, None).await?;
        if found["type"] != json!("DATASET") {
            return Err(Error::Failed(format!("{dataset} is not a dataset")));
        }
        match found["open"] == json!(false) {
            true => Err(Error::Failed(format!("{dataset} is closed: nothing can be attached"))),
            false => Ok(()),
        }
    }

    /// Attaches the files that are not attached yet.
    async fn attach(&mut self, dataset: &str, names: &[&Did]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let (scope, name) = did(dataset)?;
        let body = json!({
            "attachments": [{"scope": scope, "name": name, "dids": names}], "ignore_duplicate": true,
        });
        self.call("POST", "/dids/attachments", Some(body)).await.map(drop)
    }

    /// The catalog's record of a file, and of its replica on an RSE in any state.
    async fn known(&self, name: &Did, rse: &str) -> Result<Option<Known>, Error> {
        let body = json!({"dids": [name], "all_states": true});
        let text = match self.call("POST", "/replicas/list", Some(body)).await {
            Err(Error::Refused { status: 404, .. }) => return Ok(None),
            answer => answer?,
        };
        for line in text.lines() {
            let value: Value =
                serde_json::from_str(line).map_err(|error| Error::Answer(error.to_string()))?;
            if value["scope"] == json!(name.scope) && value["name"] == json!(name.name) {
                return Ok(Some(Known::read(&value, rse)));
            }
        }
        Ok(None)
    }

    /// Uploads one file; returns whether it is new.
    async fn upload_one(
        &self,
        to: &Target,
        file: &Given,
        stop: &Arc<AtomicBool>,
    ) -> Result<bool, Error> {
        check_stop(stop)?;
        let (name, path) = (&file.name, mainstay_transfers::protocol::hashed_path(&file.name));
        let (way, place) = (to.protocol.clone(), path.clone());
        run_blocking(move || {
            draft::clear(&way, &place);
            Ok(())
        })
        .await?;
        if let Some(known) = self.known(name, &to.rse).await? {
            let (from, end) = (file.from.clone(), Arc::clone(stop));
            let sums = run_blocking(move || {
                let opened = std::fs::File::open(&from).map_err(failed(&from))?;
                sums_of(opened, &from, &end)
            });
            known.compare(name, &sums.await?)?;
            match known.state {
                None => {}
                Some(ReplicaState::Available) => return Ok(false),
                Some(state) => return Err(taken(name, &to.rse, state)),
            }
        }
        let (access, rse, way) = (Arc::clone(&self.access), to.rse.clone(), to.protocol.clone());
        let (place, from, shown) = (path.clone(), file.from.clone(), name.name.clone());
        let end = Arc::clone(stop);
        let (store, sums, made) = run_blocking(move || {
            let store = access.open(&rse, &way).map_err(stored)?;
            let (sums, made) = put(&*store, &place, &from, &shown, &end)?;
            Ok((store, sums, made))
        })
        .await?;
        let said = (!to.deterministic).then(|| to.protocol.name(&path));
        let body = json!({
            "rse": to.rse,
            "files": [{
                "scope": name.scope, "name": name.name, "bytes": sums.bytes, "adler32": sums.adler32, "md5": sums.md5,
                "pfn": said,
            }],
        });
        let Err(refused) = self.call("POST", "/replicas", Some(body)).await else {
            return Ok(true);
        };
        let shown = to.protocol.name(&path);
        match self.known(name, &to.rse).await {
            Ok(Some(known)) if known.state.is_some() => {
                return counted(&known, name, &to.rse, &sums);
            }
            Ok(_) if !made => {}
            Ok(_) => run_blocking(move || store.remove(&path).map_err(stored))
                .await
                .map_err(|error| Error::Failed(format!("{refused}; {shown} is left: {error}")))?,
            Err(_) if !made => {}
            Err(error) => return Err(left(&refused, &error, name, &to.rse, &shown)),
        }
        Err(refused)
    }
}

/// The error for a replica that is registered already and not available.
fn taken(name: &Did, rse: &str, state: ReplicaState) -> Error {
    let text = format!("a replica of {name} on {rse} is registered already, and is {state}");
    Error::Failed(text)
}

/// Another client registered the file first: it stays.
fn counted(known: &Known, name: &Did, rse: &str, sums: &Sums) -> Result<bool, Error> {
    known.compare(name, sums)?;
    match known.state {
        Some(ReplicaState::Available) | None => Ok(false),
        Some(state) => Err(taken(name, rse, state)),
    }
}

/// It is unknown whether the catalog has a replica of the file, so the file stays.
fn left(refused: &Error, asking: &Error, name: &Did, rse: &str, shown: &str) -> Error {
    Error::Failed(format!(
        "{refused}; {shown} is left, for it cannot be known whether it counts ({asking}): upload it again later, or remove it if {name} has no replica on {rse}"
    ))
}

/// Puts a file on storage; returns its checksums, and whether it is new. Run again after a crash,
/// it accepts the file of the first run.
fn put(
    store: &dyn Store,
    path: &str,
    from: &Path,
    name: &str,
    stop: &AtomicBool,
) -> Result<(Sums, bool), Error> {
    let mut file = std::fs::File::open(from).map_err(failed(from))?;
    let length = file.metadata().map_err(failed(from))?.len();
    let plan = Plan { tag: draft::tag(), bytes: length, new: true };
    let mut draft = store.write(path, &plan).map_err(stored)?;
    let mut bar = Bar::new(name, length);
    let mut adding = Adding::new(true);
    let mut piece = vec![0; PIECE];
    loop {
        check_stop(stop)?;
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
        Ok(back) => match sums_of(back, from, stop)? == sums {
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
        // Existing files are never overwritten.
        Err(store::Error::There(what)) => {
            let (there, _) = store.read(path).map_err(stored)?;
            match sums_of(there, from, stop)? == sums {
                true => Ok((sums, false)),
                false => Err(stored(store::Error::There(what))),
            }
        }
        Err(error) => Err(stored(error)),
        Ok(()) => store.sync().map(|()| (sums, true)).map_err(stored),
    }
}
