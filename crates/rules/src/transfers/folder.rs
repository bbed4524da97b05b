//! Folders of this machine as storage.
//!
//! A file is written under a temporary name beside its place, read back, and renamed only when it
//! is right; nobody ever sees half of one. Temporary names tell which file, request and attempt
//! they belong to, so that whoever comes next removes what a killed worker has left. Many files
//! are put on disk for good at once ([`Store::sync`]): one by one it takes longer than copying.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::store::{self, Error, Plan, Store};
use crate::protocol::{Protocol, stays_below};

/// A folder that holds an RSE's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder a protocol speaks of.
    #[must_use]
    pub fn open(protocol: &Protocol) -> Self {
        let prefix = protocol.prefix.trim_matches('/');
        Self { root: Path::new("/").join(prefix) }
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

    /// The temporary name of a file under way.
    fn temporary(place: &Path, tag: &str) -> PathBuf {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        place.with_file_name(format!(".{name}.{tag}.part"))
    }
}

impl Store for Folder {
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let place = self.place(path)?;
        let file = File::open(&place).map_err(Error::at(place.display().to_string()))?;
        let length = file.metadata().map_err(Error::at(place.display().to_string()))?.len();
        Ok((Box::new(file), length))
    }

    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn store::Draft>, Error> {
        let place = self.place(path)?;
        let temporary = Self::temporary(&place, &plan.tag);
        let begin = || File::create(&temporary);
        let file = match (begin(), place.parent()) {
            (Err(error), Some(folder)) if error.kind() == ErrorKind::NotFound => {
                std::fs::create_dir_all(folder).map_err(Error::at(folder.display().to_string()))?;
                begin()
            }
            (begun, _) => begun,
        };
        let file = file.map_err(Error::at(temporary.display().to_string()))?;
        Ok(Box::new(Draft { file, temporary, place, new: plan.new }))
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        self.sweep(path)?;
        remove(&self.place(path)?)
    }

    fn sweep(&self, path: &str) -> Result<(), Error> {
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

    fn sync(&self) -> Result<(), Error> {
        let what = || Error::at(self.root.display().to_string());
        let root = File::open(&self.root).map_err(what())?;
        rustix::fs::syncfs(&root).map_err(std::io::Error::from).map_err(what())
    }
}

fn remove(place: &Path) -> Result<(), Error> {
    match std::fs::remove_file(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(Error::at(place.display().to_string())),
    }
}

/// A file under way in a folder.
#[derive(Debug)]
struct Draft {
    file: File,
    temporary: PathBuf,
    place: PathBuf,
    new: bool,
}

impl store::Draft for Draft {
    fn add(&mut self, piece: &[u8]) -> Result<(), Error> {
        self.file.write_all(piece).map_err(Error::at(self.temporary.display().to_string()))
    }

    fn seal(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn read_back(&self) -> Result<Box<dyn Read + Send>, Error> {
        let file = File::open(&self.temporary);
        Ok(Box::new(file.map_err(Error::at(self.temporary.display().to_string()))?))
    }

    fn keep(self: Box<Self>) -> Result<(), Error> {
        let named = match self.new {
            // A second name can only be had where there is none yet.
            true => std::fs::hard_link(&self.temporary, &self.place),
            false => std::fs::rename(&self.temporary, &self.place),
        };
        named.map_err(Error::at(self.place.display().to_string()))
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
        Folder::open(&Protocol::read("file", &body).unwrap())
    }

    fn plan(tag: &str) -> Plan {
        Plan { tag: tag.to_owned(), bytes: 5, new: false }
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole_and_nothing_else_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = at(root.path());
        let mut draft = folder.write("a/b/f", &plan("7-1")).unwrap();
        draft.add(b"half").unwrap();
        assert!(matches!(folder.read("a/b/f"), Err(Error::Missing(_))));
        drop(draft);
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 0);
        // A worker that is killed leaves its draft; the next one removes it, and only it.
        std::mem::forget(folder.write("a/b/f", &plan("7-2")).unwrap());
        std::fs::write(root.path().join("a/b/.f.notes.part"), "mine").unwrap();
        folder.sweep("a/b/f").unwrap();
        let mut draft = folder.write("a/b/f", &plan("7-3")).unwrap();
        draft.add(b"whole").unwrap();
        draft.keep().unwrap();
        assert_eq!(folder.read("a/b/f").unwrap().1, 5);
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 2);
        folder.sync().unwrap();
        let new = Plan { new: true, ..plan("8-1") };
        let taken = folder.write("a/b/f", &new).unwrap().keep();
        assert!(matches!(taken, Err(Error::There(_))));
        assert_eq!(std::fs::read(root.path().join("a/b/f")).unwrap(), b"whole");
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
            assert!(
                matches!(folder.write(path, &plan("1-1")).map(drop), Err(Error::Leaves(_))),
                "{path}"
            );
            assert!(matches!(folder.remove(path), Err(Error::Leaves(_))), "{path}");
        }
        assert!(other.path().join("secret").exists());
    }
}
