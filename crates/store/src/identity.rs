//! The identity of the cluster that a store belongs to, so that a lost or exchanged store is not
//! served by mistake.
//!
//! The first start gives the store an identity, an object of its own. A marker in the data folder
//! of each server remembers it, and that of the rule catalog. A store that is empty, or that
//! belongs to another cluster, is then recognised, and refused unless the operator confirms it
//! (`--new-cluster`).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::backup;
use crate::check::INTERNAL;
use crate::object::{Body, Key, Resource};
use crate::objects::{Change, Error as StoreError, Objects, Write};

/// The marker's name in the data folder.
pub const MARKER: &str = "cluster.json";

/// The identities that a data folder remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The identity of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The identity of the rule catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalog: Option<String>,
    /// A restore began and did not end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restoring: bool,
}

/// Why a store is not to be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It holds nothing, and should.
    #[error(
        "{place} is missing or empty, but {} says that it belongs to {expected}: put it back, \
         restore a backup with `mainstay restore`, or begin anew with --new-cluster",
        .marker.display()
    )]
    Lost {
        /// The store or the catalog.
        place: String,
        /// The marker.
        marker: PathBuf,
        /// The identity it should have.
        expected: String,
    },
    /// A restore broke off before the store was marked.
    #[error(
        "a restore into {} did not finish: run `mainstay restore` again, or begin anew with \
         --new-cluster",
        .folder.display()
    )]
    Restoring {
        /// The data folder.
        folder: PathBuf,
    },
    /// It belongs to another cluster.
    #[error(
        "{place} belongs to {found}, but {} says that it should belong to {expected}: check \
         where it is kept, or say that it is meant with --new-cluster",
        .marker.display()
    )]
    Foreign {
        /// The store or the catalog.
        place: String,
        /// The marker.
        marker: PathBuf,
        /// The identity it has.
        found: String,
        /// The identity it should have.
        expected: String,
    },
    /// The marker is not as it was written.
    #[error("{} is damaged: {what}; remove it if the store is the right one", .marker.display())]
    Marker {
        /// The marker.
        marker: PathBuf,
        /// The problem.
        what: String,
    },
    /// The marker could not be read or written.
    #[error("cannot read or write {}", .marker.display())]
    Io {
        /// The marker.
        marker: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The decision about a store at the start of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is the right one, or the first one: remember this identity.
    Keep(String),
    /// It has no identity: give it one.
    Give,
    /// It is empty.
    Lost,
    /// It belongs to another cluster, or to none that is known.
    Foreign,
}

/// Decides about a store with the identity `found`, which holds something or not, when the marker
/// remembers `expected`. `meant` is the operator's confirmation that the store is the right one.
#[must_use]
pub fn decide(expected: Option<&str>, found: Option<&str>, empty: bool, meant: bool) -> Decision {
    match (expected, found) {
        (None, Some(found)) => Decision::Keep(found.to_owned()),
        (Some(expected), Some(found)) if expected == found || meant => {
            Decision::Keep(found.to_owned())
        }
        (None, None) => Decision::Give,
        (Some(_), None) if meant => Decision::Give,
        (Some(_), None) if empty => Decision::Lost,
        (Some(_), _) => Decision::Foreign,
    }
}

impl Marker {
    /// Reads the marker of a data folder; an empty one if there is none.
    ///
    /// # Errors
    /// [`Error::Marker`], [`Error::Io`].
    pub fn read(data_dir: &Path) -> Result<Self, Error> {
        let marker = data_dir.join(MARKER);
        match std::fs::read(&marker) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| Error::Marker { marker, what: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Io { marker, source }),
        }
    }

    /// Writes the marker whole and durably, unless it says the same already. A full disk is no
    /// reason not to start: then it is written the next time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, data_dir: &Path) -> Result<(), Error> {
        if Self::read(data_dir).is_ok_and(|there| there == *self) {
            return Ok(());
        }
        match self.replace(data_dir) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(
                    "no disk space for the cluster marker; a lost store will not be noticed"
                );
                Ok(())
            }
            written => {
                written.map_err(|source| Error::Io { marker: data_dir.join(MARKER), source })
            }
        }
    }

    /// Notes durably that a restore begins. The identities from before stay until it ends.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin_restore(data_dir: &Path) -> Result<(), Error> {
        let marker = Self { restoring: true, ..Self::read(data_dir).unwrap_or_default() };
        let noted = marker.replace(data_dir);
        noted.map_err(|source| Error::Io { marker: data_dir.join(MARKER), source })
    }

    /// Remembers the restored cluster: a server may start. Which catalog belongs to it the next
    /// start finds out.
    ///
    /// # Errors
    /// [`Error::Io`], also if there is no space.
    pub fn end_restore(data_dir: &Path, cluster: String) -> Result<(), Error> {
        let marker = Self { cluster: Some(cluster), ..Self::default() };
        let noted = marker.replace(data_dir);
        noted.map_err(|source| Error::Io { marker: data_dir.join(MARKER), source })
    }

    fn replace(&self, data_dir: &Path) -> io::Result<()> {
        let next = data_dir.join(format!("{MARKER}.next"));
        let mut file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&next, data_dir.join(MARKER))?;
        File::open(data_dir)?.sync_all()
    }

    /// Decides about the store at `place`, gives it an identity if it has none (`fresh`), and
    /// remembers it. Calling it again changes nothing.
    ///
    /// # Errors
    /// [`Error`]; neither the store nor the marker was changed, unless writing itself failed.
    pub async fn settle(
        mut self,
        data_dir: &Path,
        place: &str,
        objects: &dyn Objects,
        fresh: &str,
        meant: bool,
    ) -> Result<(), Error> {
        if self.restoring && !meant {
            return Err(Error::Restoring { folder: data_dir.to_owned() });
        }
        self.restoring = false;
        let found = of(objects).await?;
        let empty = found.is_none() && backup::is_untouched(&objects.snapshot().await?);
        let identity = match decide(self.cluster.as_deref(), found.as_deref(), empty, meant) {
            Decision::Keep(identity) => identity,
            Decision::Give => match give(objects, fresh).await {
                Err(StoreError::Full { .. }) => {
                    tracing::warn!("no space for the identity of the cluster; it gets one later");
                    return Ok(());
                }
                given => given?,
            },
            decision => return Err(self.refusal(data_dir, place, &decision, found)),
        };
        self.cluster = Some(identity);
        self.write(data_dir)
    }

    /// Refuses a store whose database is not there, before an empty one is made in its place.
    ///
    /// # Errors
    /// [`Error::Lost`], or [`Error::Restoring`].
    pub fn expects(&self, data_dir: &Path, database: &Path) -> Result<(), Error> {
        if self.restoring {
            return Err(Error::Restoring { folder: data_dir.to_owned() });
        }
        let there = std::fs::metadata(database).is_ok_and(|found| found.len() > 0);
        if there || self.cluster.is_none() {
            return Ok(());
        }
        let place = database.display().to_string();
        Err(self.refusal(data_dir, &place, &Decision::Lost, None))
    }

    fn refusal(
        &self,
        data_dir: &Path,
        place: &str,
        decision: &Decision,
        found: Option<String>,
    ) -> Error {
        let cluster = |id: &str| format!("cluster {id}");
        let expected = cluster(self.cluster.as_deref().unwrap_or_default());
        let found =
            found.map_or_else(|| "a cluster without an identity".to_owned(), |id| cluster(&id));
        refusal(data_dir, place.to_owned(), decision, found, expected)
    }
}

/// The error for a store that is lost or foreign.
#[must_use]
pub fn refusal(
    data_dir: &Path,
    place: String,
    decision: &Decision,
    found: String,
    expected: String,
) -> Error {
    let marker = data_dir.join(MARKER);
    if *decision == Decision::Lost {
        return Error::Lost { place, marker, expected };
    }
    Error::Foreign { place, marker, found, expected }
}

fn key() -> Key {
    Key::new(&Resource::new(INTERNAL, "identities"), None, "cluster")
}

/// The identity of a store, if it has one.
///
/// # Errors
/// Errors of the store.
pub async fn of(objects: &dyn Objects) -> Result<Option<String>, StoreError> {
    let record = objects.get(&key()).await?;
    let uuid = |object: Map<String, Value>| Some(object.get("uuid")?.as_str()?.to_owned());
    Ok(record.and_then(|record| uuid(record.object())))
}

/// Gives a store the identity `fresh`, unless another server was faster; returns the one it has.
///
/// # Errors
/// Errors of the store.
pub async fn give(objects: &dyn Objects, fresh: &str) -> Result<String, StoreError> {
    if let Some(there) = of(objects).await? {
        return Ok(there);
    }
    let mut object = Map::new();
    object.insert("uuid".to_owned(), fresh.into());
    let change = Change::Create(Body::new(&object));
    match objects.write(Write { key: key(), change, fence: None }).await {
        Err(StoreError::AlreadyExists { .. }) => {}
        written => drop(written?),
    }
    Ok(of(objects).await?.unwrap_or_else(|| fresh.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_remembered_store_is_served_unless_another_is_confirmed() {
        let keep = |id: &str| Decision::Keep(id.to_owned());
        let cases = [
            // (remembered, found, empty, meant) → decision
            ((None, None, true, false), Decision::Give),
            ((None, None, false, false), Decision::Give),
            ((None, Some("a"), false, false), keep("a")),
            ((Some("a"), Some("a"), false, false), keep("a")),
            ((Some("a"), Some("a"), false, true), keep("a")),
            ((Some("a"), None, true, false), Decision::Lost),
            ((Some("a"), None, false, false), Decision::Foreign),
            ((Some("a"), Some("b"), false, false), Decision::Foreign),
            ((Some("a"), None, true, true), Decision::Give),
            ((Some("a"), None, false, true), Decision::Give),
            ((Some("a"), Some("b"), false, true), keep("b")),
        ];
        for ((expected, found, empty, meant), decision) in cases {
            assert_eq!(decide(expected, found, empty, meant), decision, "{expected:?} {found:?}");
        }
    }

    #[test]
    fn a_marker_is_read_as_it_was_written_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Marker::read(folder.path()).unwrap(), Marker::default());
        let marker =
            Marker { cluster: Some("a".into()), catalog: Some("b".into()), restoring: false };
        marker.write(folder.path()).unwrap();
        assert_eq!(Marker::read(folder.path()).unwrap(), marker);
        Marker::begin_restore(folder.path()).unwrap();
        let begun = Marker::read(folder.path()).unwrap();
        assert_eq!(begun, Marker { restoring: true, ..marker });
        let refused = begun.expects(folder.path(), Path::new("/nowhere"));
        assert!(matches!(refused, Err(Error::Restoring { .. })));
        std::fs::write(folder.path().join(MARKER), "{").unwrap();
        assert!(matches!(Marker::read(folder.path()), Err(Error::Marker { .. })));
    }
}
