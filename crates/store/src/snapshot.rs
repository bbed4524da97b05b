//! Everything a store keeps at one moment, and how much that is.
//!
//! A [`Snapshot`] shares its objects with the store, so taking one costs next to nothing however
//! much there is, and writers go on meanwhile. It never changes and never expires.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cache::Collection;
use crate::object::{Resource, Revision};
use crate::seal::{DataKey, KeyState, data_keys};

/// Every collection of a store at one revision.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The revision it shows.
    pub revision: Revision,
    /// The oldest revision from which every collection could still be watched.
    pub oldest: Revision,
    /// The collections that are not empty, in the order of their names.
    pub collections: Vec<(Resource, Collection)>,
}

/// The medium that holds objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Memory: objects are lost with the process.
    Memory,
    /// This file, and those beside it.
    Sqlite(PathBuf),
    /// The cluster with these endpoints.
    Etcd(String),
    /// These servers of the Kubernetes dialect.
    Kubernetes(String),
}

/// How much a store keeps, for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// `memory`, `sqlite`, `etcd` or `kubernetes`.
    pub backend: &'static str,
    /// Where it is.
    pub location: String,
    /// The newest revision.
    pub revision: u64,
    /// The oldest revision that can still be watched from.
    pub oldest_revision: u64,
    /// How many objects there are.
    pub objects: usize,
    /// How many bytes they take as JSON.
    pub bytes: usize,
    /// The same for each collection.
    pub collections: Vec<Share>,
    /// The files of the database, if it has any.
    pub files: Vec<FileSize>,
    /// The operator's key that every stored value is encrypted with, by way of a data key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_with: Option<String>,
    /// How far encryption at rest has come, if it is on or being turned on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

/// How far encryption at rest has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    /// The operator's key that wraps the newest data key.
    pub master_key: String,
    /// The newest data key.
    pub data_key: String,
    /// How far its use has come.
    pub state: EncryptionState,
}

/// How far the use of the newest data key has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum EncryptionState {
    /// It is used once every server has shown that it can open it.
    WaitingForServers,
    /// New values are encrypted with it, older ones are being rewritten.
    Rewriting,
    /// Every value is encrypted with it.
    Complete,
}

/// The size of one collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The collection.
    pub resource: String,
    /// How many objects it has.
    pub objects: usize,
    /// How many bytes they take as JSON.
    pub bytes: usize,
}

/// The size of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// The file's name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

impl Snapshot {
    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.collections.iter().map(|(_, collection)| collection.len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.collections.is_empty()
    }
}

impl Stats {
    /// Counts a snapshot of what is kept in `medium`, and looks at the files. Takes a while for
    /// many objects, and may wait for the disk.
    #[must_use]
    pub fn of(snapshot: &Snapshot, medium: &Medium) -> Self {
        let share = |(resource, collection): &(Resource, Collection)| Share {
            resource: resource.to_string(),
            objects: collection.len(),
            bytes: collection.range(None, None).map(|record| record.json().len()).sum(),
        };
        let collections: Vec<_> = snapshot.collections.iter().map(share).collect();
        let (backend, location, files) = match medium {
            Medium::Memory => ("memory", String::new(), Vec::new()),
            Medium::Sqlite(path) => ("sqlite", path.display().to_string(), files(path)),
            Medium::Etcd(endpoints) => ("etcd", endpoints.clone(), Vec::new()),
            Medium::Kubernetes(servers) => ("kubernetes", servers.clone(), Vec::new()),
        };
        let encryption = encryption(snapshot);
        let complete = encryption.as_ref().filter(|it| it.state == EncryptionState::Complete);
        Self {
            backend,
            location,
            revision: snapshot.revision.0,
            oldest_revision: snapshot.oldest.0,
            objects: collections.iter().map(|share| share.objects).sum(),
            bytes: collections.iter().map(|share| share.bytes).sum(),
            collections,
            files,
            encrypted_with: complete.map(|it| it.master_key.clone()),
            encryption,
        }
    }
}

/// The state of the newest data key that is not retired.
fn encryption(snapshot: &Snapshot) -> Option<Encryption> {
    let (_, keys) = snapshot.collections.iter().find(|(resource, _)| *resource == data_keys())?;
    let keys = keys.range(None, None);
    let keys =
        keys.filter_map(|record| Some((record.created(), DataKey::parse(&record.object()).ok()?)));
    let (_, newest) = keys
        .filter(|(_, key)| key.state != KeyState::Retired)
        .max_by_key(|(created, key)| (*created, key.id()))?;
    let state = match newest.state {
        KeyState::Pending => EncryptionState::WaitingForServers,
        KeyState::Active => EncryptionState::Rewriting,
        KeyState::Complete => EncryptionState::Complete,
        KeyState::Retired => return None,
    };
    Some(Encryption { master_key: newest.master().to_owned(), data_key: newest.id(), state })
}

/// The database and its write-ahead log, as far as they are there.
fn files(path: &Path) -> Vec<FileSize> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let sized = |ending: &str| {
        let name = format!("{name}{ending}");
        let bytes = std::fs::metadata(path.with_file_name(&name)).ok()?.len();
        Some(FileSize { name, bytes })
    };
    ["", "-wal"].into_iter().filter_map(sized).collect()
}
