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
    /// The problems of the objects that are left out because their stored value is damaged.
    pub damaged: Vec<String>,
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
    /// The problem of each object whose stored value is damaged. It is not counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// The operator's key that every stored value is encrypted with, by way of a data key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_with: Option<String>,
    /// How far encryption at rest has come, if it is on, being turned on or being turned off.
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
    /// The data key that every value was encrypted with before, while it is being replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// How many values are still encrypted, while encryption is being turned off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values_left: Option<u64>,
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
    /// Encryption is being turned off: values are being decrypted.
    Decrypting,
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

    /// Whether there are data keys and none is in use, so that sealed values are being decrypted.
    #[must_use]
    pub fn has_retired_keys_only(&self) -> bool {
        let keys = data_keys_of(self);
        // A key whose record is damaged may be in use.
        let names_key = format!("{} ", data_keys());
        let damaged = self.damaged.iter().any(|problem| problem.starts_with(&names_key));
        !damaged && !keys.is_empty() && keys.iter().all(|key| key.state == KeyState::Retired)
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
        Self {
            backend,
            location,
            revision: snapshot.revision.0,
            oldest_revision: snapshot.oldest.0,
            objects: collections.iter().map(|share| share.objects).sum(),
            bytes: collections.iter().map(|share| share.bytes).sum(),
            collections,
            files,
            damaged: snapshot.damaged.clone(),
            encrypted_with: encrypted_with(snapshot),
            encryption: encryption(snapshot),
        }
    }

    /// The same for a store in which this many values are sealed although no data key is in use.
    #[must_use]
    pub fn with_values_left(mut self, snapshot: &Snapshot, values: u64) -> Self {
        if values > 0 && self.encryption.is_none() {
            let keys = data_keys_of(snapshot);
            self.encryption = keys.last().map(|newest| Encryption {
                master_key: newest.master().to_owned(),
                data_key: newest.id(),
                state: EncryptionState::Decrypting,
                replaces: None,
                values_left: Some(values),
            });
        }
        self
    }
}

/// The data keys of a store, the oldest first.
fn data_keys_of(snapshot: &Snapshot) -> Vec<DataKey> {
    let found = snapshot.collections.iter().find(|(resource, _)| *resource == data_keys());
    let records = found.into_iter().flat_map(|(_, keys)| keys.range(None, None));
    let mut keys: Vec<_> = records
        .filter_map(|record| Some((record.created(), DataKey::parse(&record.object()).ok()?)))
        .collect();
    keys.sort_by_key(|(created, key)| (key.number(), *created, key.id()));
    keys.into_iter().map(|(_, key)| key).collect()
}

/// The master key of every value: it wraps all data keys in use, and all values are sealed.
fn encrypted_with(snapshot: &Snapshot) -> Option<String> {
    let keys = data_keys_of(snapshot);
    let in_use: Vec<&DataKey> = keys.iter().filter(|key| key.state.seals()).collect();
    let complete = in_use.iter().any(|key| key.state == KeyState::Complete);
    let master = in_use.last()?.master();
    let same = in_use.iter().all(|key| key.master() == master);
    (complete && same).then(|| master.to_owned())
}

/// The state of the newest data key that is not retired.
fn encryption(snapshot: &Snapshot) -> Option<Encryption> {
    let keys = data_keys_of(snapshot);
    let at = keys.iter().rposition(|key| key.state != KeyState::Retired)?;
    let (newest, older) = (&keys[at], &keys[..at]);
    let state = match newest.state {
        KeyState::Pending => EncryptionState::WaitingForServers,
        KeyState::Active => EncryptionState::Rewriting,
        KeyState::Complete => EncryptionState::Complete,
        KeyState::Retired => return None,
    };
    let replaced = older.iter().rfind(|key| key.state == KeyState::Complete);
    let replaces = replaced.filter(|_| newest.state != KeyState::Complete).map(DataKey::id);
    let (master_key, data_key) = (newest.master().to_owned(), newest.id());
    Some(Encryption { master_key, data_key, state, replaces, values_left: None })
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
