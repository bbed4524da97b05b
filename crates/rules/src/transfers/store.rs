//! The storage behind an RSE's protocol: folders of this machine.
//!
//! A file is written under a temporary name beside its place, read back, and renamed only when it
//! is right; nobody ever sees half of one. Temporary names tell which file, request and attempt
//! they belong to, so that whoever comes next removes what a killed worker has left.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::protocol::{Protocol, stays_below};

/// Why storage could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The protocol is not one that workers speak.
    #[error("no worker speaks {0}://")]
    Unknown(String),
    /// The path would leave the RSE's folder.
    #[error("the path {0:?} leaves the RSE's folder")]
    Leaves(String),
    /// The storage has no room left.
    #[error("{0} is full")]
    Full(String),
    /// The file is not there.
    #[error("{0} is not there")]
    Missing(String),
    /// Another file has this name.
    #[error("{0} is there already")]
    There(String),
    /// The storage itself failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// How it failed.
        source: std::io::Error,
    },
}

impl Error {
    fn at(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| match source.kind() {
            ErrorKind::NotFound => Self::Missing(what),
            ErrorKind::AlreadyExists => Self::There(what),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full(what),
            _ => Self::Io { what, source },
        }
    }
}

/// Whether workers can use a protocol.
#[must_use]
pub fn is_known(protocol: &Protocol) -> bool {
    protocol.scheme == "file"
}

/// A folder that holds an RSE's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder a protocol speaks of.
    pub fn open(protocol: &Protocol) -> Result<Self, Error> {
        if !is_known(protocol) {
            return Err(Error::Unknown(protocol.scheme.clone()));
        }
        let prefix = protocol.prefix.trim_matches('/');
        Ok(Self { root: Path::new("/").join(prefix) })
    }

    /// Where a file is.
    pub fn place(&self, path: &str) -> Result<PathBuf, Error> {
        if !stays_below(path) {
            return Err(Error::Leaves(path.to_owned()));
        }
        let place = self.root.join(path);
        self.stays(&place)?;
        Ok(place)
    }

    /// Fails when a link on the way leads out of the folder.
    fn stays(&self, place: &Path) -> Result<(), Error> {
        let Ok(root) = self.root.canonicalize() else { return Ok(()) };
        // What is there of the way is followed; the rest will be made of plain folders.
        let there = place.ancestors().skip(1).find_map(|part| part.canonicalize().ok());
        match there {
            Some(there) if !there.starts_with(&root) && !root.starts_with(&there) => {
                Err(Error::Leaves(place.display().to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Opens a file for reading, and says how long it is.
    pub fn read(&self, path: &str) -> Result<(File, u64), Error> {
        let place = self.place(path)?;
        let file = File::open(&place).map_err(Error::at(place.display().to_string()))?;
        let length = file.metadata().map_err(Error::at(place.display().to_string()))?.len();
        Ok((file, length))
    }

    /// The temporary name of a file under way.
    fn temporary(place: &Path, tag: &str) -> PathBuf {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        place.with_file_name(format!(".{name}.{tag}.part"))
    }

    /// Removes what earlier attempts at a file have left.
    pub fn sweep(&self, path: &str) -> Result<(), Error> {
        let place = self.place(path)?;
        let (Some(folder), Some(name)) = (place.parent(), place.file_name()) else { return Ok(()) };
        let start = format!(".{}.", name.to_string_lossy());
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let found = entry.file_name().to_string_lossy().into_owned();
            let tag = found.strip_prefix(&start).and_then(|rest| rest.strip_suffix(".part"));
            if tag.is_some_and(|tag| tag.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
            {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Begins to write a file under a temporary name.
    pub fn write(&self, path: &str, tag: &str) -> Result<Draft, Error> {
        let place = self.place(path)?;
        let temporary = Self::temporary(&place, tag);
        if let Some(folder) = place.parent() {
            make(folder).map_err(Error::at(folder.display().to_string()))?;
        }
        let what = || Error::at(temporary.display().to_string());
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)
            .map_err(what())?;
        Ok(Draft { file: Some(file), temporary, place })
    }

    /// Removes a file and what was under way to its place; one that is not there is removed.
    pub fn remove(&self, path: &str) -> Result<(), Error> {
        self.sweep(path)?;
        remove(&self.place(path)?)
    }
}

/// Makes a folder that is there after a crash as well: so is whatever holds it.
fn make(folder: &Path) -> std::io::Result<()> {
    let Some(parent) = folder.parent().filter(|_| !folder.is_dir()) else { return Ok(()) };
    make(parent)?;
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.and_then(|()| File::open(parent)?.sync_all()),
    }
}

fn remove(place: &Path) -> Result<(), Error> {
    match std::fs::remove_file(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(Error::at(place.display().to_string())),
    }
}

/// A file under way. Dropped, it is gone.
#[derive(Debug)]
pub struct Draft {
    file: Option<File>,
    temporary: PathBuf,
    place: PathBuf,
}

impl Draft {
    /// Writes more of it.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::at(self.temporary.display().to_string()))
    }

    /// Reads back what arrived.
    pub fn read_back(&self) -> Result<impl Read + use<>, Error> {
        File::open(&self.temporary).map_err(Error::at(self.temporary.display().to_string()))
    }

    /// Gives the file its name, which nothing may have yet. Then it is on disk.
    pub fn keep_new(self) -> Result<(), Error> {
        self.named(|temporary, place| std::fs::hard_link(temporary, place))
    }

    /// Gives the file its name, in place of whatever had it. Then it is on disk.
    pub fn keep(self) -> Result<(), Error> {
        self.named(|temporary, place| std::fs::rename(temporary, place))
    }

    fn named(
        mut self,
        name: impl FnOnce(&Path, &Path) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        let what = || Error::at(self.place.display().to_string());
        if let Some(file) = self.file.take() {
            file.sync_all().map_err(what())?;
        }
        name(&self.temporary, &self.place).map_err(what())?;
        let Some(folder) = self.place.parent() else { return Ok(()) };
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(what())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Kept, it is under another name; otherwise whoever comes next removes it as well.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(root: &Path) -> Folder {
        let Value::Object(body) = json!({"prefix": root.display().to_string()}) else {
            unreachable!()
        };
        Folder::open(&Protocol::read("file", &body).unwrap()).unwrap()
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole_and_nothing_else_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = at(root.path());
        let mut draft = folder.write("a/b/f", "7-1").unwrap();
        draft.add(b"half").unwrap();
        assert!(matches!(folder.read("a/b/f"), Err(Error::Missing(_))));
        drop(draft);
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 0);
        // A worker that is killed leaves its draft; the next one removes it, and only it.
        std::mem::forget(folder.write("a/b/f", "7-2").unwrap());
        std::fs::write(root.path().join("a/b/.f.notes.part"), "mine").unwrap();
        folder.sweep("a/b/f").unwrap();
        let mut draft = folder.write("a/b/f", "7-3").unwrap();
        draft.add(b"whole").unwrap();
        draft.keep().unwrap();
        assert_eq!(folder.read("a/b/f").unwrap().1, 5);
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 2);
        folder.remove("a/b/f").unwrap();
        folder.remove("a/b/f").unwrap();
        assert!(folder.read("a/b/f").is_err());
    }

    #[test]
    fn neither_a_path_nor_a_link_leads_out_of_the_folder() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join("out")).unwrap();
        let folder = at(root.path());
        for path in ["../secret", "a/../../secret", "/etc/passwd", "", "out/secret"] {
            assert!(matches!(folder.read(path), Err(Error::Leaves(_))), "{path}");
            assert!(matches!(folder.write(path, "1-1").map(drop), Err(Error::Leaves(_))), "{path}");
            assert!(matches!(folder.remove(path), Err(Error::Leaves(_))), "{path}");
        }
        assert!(other.path().join("secret").exists());
    }
}
