//! Local folders as storage.
//!
//! A file is written under a temporary name in its folder, read back, and renamed only when it is
//! correct; readers never see an incomplete file. A temporary name contains the name of the file,
//! the request and the attempt, so that the next worker removes the draft of a killed one. Many
//! files are synced to disk together ([`Store::sync`]): one by one it takes longer than copying.
//!
//! The folder itself is created when its protocol is registered ([`Folder::make`]), never when it
//! is used: if it is missing, a disk may not be mounted. Then its files are not lost, and writing
//! them elsewhere would be wrong. It stays open after its first use, for a few files at most: see
//! [`store::Opened`].
//!
//! Below a storage root ([`super::allowed`]) no symbolic link on the path to the folder is
//! followed. Links inside the folder are followed as long as they stay inside: their target is
//! resolved first, and then opened component by component without following any link.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use md5::{Digest, Md5};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::allowed::{Allowed, Opening, Refused};
use super::store::{self, Drafts, Error, Found, Plan, Store};
use super::walk;
use crate::protocol::{Protocol, stays_below};

/// A folder with the files of an RSE.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    opening: Opening,
    opened: OnceLock<OwnedFd>,
}

/// Opens a folder only to reach its content.
const TRAVERSE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file for reading, without blocking on a named pipe or device.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a file only to read its metadata.
const METADATA_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The location of a file: its folder, held open, and its name there.
#[derive(Debug)]
struct Place {
    folder: OwnedFd,
    name: String,
    /// Whether the folder was just created, so that it is empty.
    new: bool,
    /// Its path in messages.
    shown: PathBuf,
}

impl Folder {
    /// The folder of a protocol, if it is allowed.
    pub fn open(protocol: &Protocol, allowed: &Allowed) -> Result<Self, Refused> {
        let parts = protocol.prefix.split('/').filter(|part| !["", "."].contains(part));
        let root = Path::new("/").join(parts.collect::<PathBuf>());
        let opening = allowed.folder(&root)?;
        Ok(Self { root, opening, opened: OnceLock::new() })
    }

    /// Creates the folder; an existing one is not changed.
    pub fn make(&self) -> Result<(), Error> {
        match &self.opening {
            Opening::Path => std::fs::create_dir_all(&self.root).map_err(Error::at(&self.root)),
            Opening::Below(root, rest) => self.open_below(root, rest, true).map(drop),
        }
    }

    /// The whole path of a file, for messages.
    fn shown(&self, path: &str) -> Result<PathBuf, Error> {
        match stays_below(path) {
            true => Ok(self.root.join(path)),
            false => Err(Error::Leaves(path.to_owned())),
        }
    }

    /// Opens the folder of a file, and creates it first if `make` is set.
    fn place(&self, path: &str, make: bool) -> Result<Place, Error> {
        let shown = self.shown(path)?;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = match descend(self.root()?, above, make) {
            Err(error) if needs_stepping(error) => {
                step_down(self.root()?, &self.real(above)?, make)
            }
            found => found,
        };
        let (folder, new) = found.map_err(|error| Error::at(&shown)(error.into()))?;
        Ok(Place { folder, name: name.to_owned(), new, shown })
    }

    fn root(&self) -> Result<&OwnedFd, Error> {
        if let Some(root) = self.opened.get() {
            return Ok(root);
        }
        let root = match &self.opening {
            Opening::Below(root, rest) => self.open_below(root, rest, false)?,
            Opening::Path => match rustix::fs::open(&self.root, TRAVERSE, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Err(self.is_missing()),
                other => other.map_err(|error| Error::at(&self.root)(error.into()))?,
            },
        };
        Ok(self.opened.get_or_init(|| root))
    }

    fn is_missing(&self) -> Error {
        Error::NoFolder(self.root.display().to_string())
    }

    /// Opens the folder from a storage root without following a link.
    fn open_below(&self, root: &Path, rest: &str, make: bool) -> Result<OwnedFd, Error> {
        let failed = |error: Errno| match error {
            Errno::NOENT => self.is_missing(),
            // The errors for a symbolic link when links are not followed.
            Errno::LOOP | Errno::NOTDIR => Error::Linked(self.root.display().to_string()),
            error => Error::at(&self.root)(error.into()),
        };
        let root = rustix::fs::open(root, TRAVERSE | OFlags::NOFOLLOW, Mode::empty());
        let root = root.map_err(failed)?;
        if !make {
            let path = if rest.is_empty() { "." } else { rest };
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match rustix::fs::openat2(&root, path, TRAVERSE, Mode::empty(), within) {
                Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
                opened => return opened.map_err(failed),
            }
        }
        step_down(&root, rest, make).map(|(folder, _)| folder).map_err(failed)
    }

    /// Resolves symbolic links in a path below the folder, as far as it exists; fails if the result
    /// is outside of the folder.
    fn real(&self, path: &str) -> Result<String, Error> {
        let place = self.root.join(path);
        let leaves = || Error::Leaves(place.display().to_string());
        let root = self.root.canonicalize().map_err(Error::at(&self.root))?;
        for there in place.ancestors() {
            let (Ok(real), Ok(rest)) = (there.canonicalize(), place.strip_prefix(there)) else {
                continue;
            };
            let within = real.strip_prefix(&root).map_err(|_| leaves())?;
            let whole: PathBuf = within.components().chain(rest.components()).collect();
            return whole.to_str().map(str::to_owned).ok_or_else(leaves);
        }
        Err(leaves())
    }

    /// Opens the target of symbolic links, if it is within the folder.
    fn open_real(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        let place = self.root.join(path);
        let real = self.real(path)?;
        place.canonicalize().map_err(Error::at(&place))?;
        let (above, name) = real.rsplit_once('/').unwrap_or(("", &real));
        let name = if name.is_empty() { "." } else { name };
        let opened = step_down(self.root()?, above, false).and_then(|(folder, _)| {
            rustix::fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
        });
        opened.map_err(|error| Error::at(&place)(error.into()))
    }

    /// Opens an existing file, and returns its metadata.
    fn open_file(&self, path: &str, flags: OFlags) -> Result<(File, std::fs::Metadata), Error> {
        let place = self.shown(path)?;
        let what = || Error::at(&place);
        let file = match below(self.root()?, path, flags) {
            Err(error) if needs_stepping(error) => self.open_real(path, flags)?,
            opened => opened.map_err(std::io::Error::from).map_err(what())?,
        };
        let file = File::from(file);
        let found = file.metadata().map_err(what())?;
        if !found.is_file() {
            return Err(Error::NoFile(place.display().to_string()));
        }
        Ok((file, found))
    }

    /// The temporary name of a file that is being written.
    fn temporary(name: &str, tag: &str) -> String {
        format!(".{}.{tag}.part", stem(name))
    }
}

/// Longer names are shortened in temporary names, which may have at most 255 bytes.
const LONGEST_UNSHORTENED: usize = 190;

/// The name of a file as it appears in temporary names, shortened if it is too long.
#[must_use]
pub fn stem(name: &str) -> String {
    if name.len() <= LONGEST_UNSHORTENED {
        return name.to_owned();
    }
    let digest = hex::encode(Md5::digest(name.as_bytes()));
    format!("{}~{digest}", &name[..name.floor_char_boundary(LONGEST_UNSHORTENED - 40)])
}

/// Whether the path must be opened component by component: it has a link that may lead outside, or
/// the kernel does not support `openat2`.
fn needs_stepping(error: Errno) -> bool {
    matches!(error, Errno::XDEV | Errno::LOOP | Errno::NOSYS | Errno::PERM | Errno::AGAIN)
}

/// Opens a path below a folder; fails if it leads outside.
fn below(folder: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(folder, path, flags, Mode::empty(), within)
}

/// Opens a folder below another, creating it if `make` is set; returns whether it was created.
fn descend(root: &OwnedFd, path: &str, make: bool) -> Result<(OwnedFd, bool), Errno> {
    match below(root, path, TRAVERSE) {
        Err(Errno::NOENT) if make && !path.is_empty() => {
            let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
            let (above, _) = descend(root, above, true)?;
            let new = make_in(&above, last)?;
            Ok((below(&above, last, TRAVERSE)?, new))
        }
        other => other.map(|folder| (folder, false)),
    }
}

/// Creates a folder in another; returns whether it did not exist.
fn make_in(above: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o775)) {
        Err(Errno::EXIST) => Ok(false),
        made => made.map(|()| true),
    }
}

/// Opens a folder below another component by component without following a link, creating missing
/// ones if `make` is set; returns whether the last one was created.
fn step_down(root: &OwnedFd, path: &str, make: bool) -> Result<(OwnedFd, bool), Errno> {
    let flags = TRAVERSE | OFlags::NOFOLLOW;
    let mut at = rustix::fs::openat(root, ".", flags, Mode::empty())?;
    let mut new = false;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if name == ".." {
            return Err(Errno::XDEV);
        }
        new = false;
        let next = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if make => {
                new = make_in(&at, name)?;
                rustix::fs::openat(&at, name, flags, Mode::empty())
            }
            other => other,
        };
        at = next?;
    }
    Ok((at, new))
}

impl Place {
    fn fails(&self) -> impl FnOnce(Errno) -> Error {
        |error| Error::at(&self.shown)(error.into())
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => other.map_err(self.fails()),
        }
    }

    /// Removes the drafts of earlier attempts.
    fn remove_old_drafts(&self) -> Result<(), Error> {
        let start = format!(".{}.", stem(&self.name));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.folder, ".", flags, Mode::empty());
        for entry in listed.and_then(Dir::new).map_err(self.fails())? {
            let entry = entry.map_err(self.fails())?;
            let found = entry.file_name().to_string_lossy();
            let tag = found.strip_prefix(&start).and_then(|rest| rest.strip_suffix(".part"));
            if tag.is_some_and(|tag| tag.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
            {
                self.remove(&found)?;
            }
        }
        Ok(())
    }
}

impl Store for Folder {
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let (file, found) = self.open_file(path, READ)?;
        Ok((Box::new(file), found.len()))
    }

    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn store::Draft>, Error> {
        let place = self.place(path, true)?;
        if !plan.new && !place.new {
            place.remove_old_drafts()?;
        }
        let temporary = Self::temporary(&place.name, &plan.tag);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o664);
        let file = rustix::fs::openat(&place.folder, &temporary, flags | OFlags::CLOEXEC, mode);
        let file = File::from(file.map_err(place.fails())?);
        Ok(Box::new(Draft { file, temporary, place, new: plan.new, kept: false }))
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        match self.place(path, false) {
            Err(Error::Missing(_)) => Ok(()),
            found => {
                let place = found?;
                place.remove_old_drafts()?;
                place.remove(&place.name)
            }
        }
    }

    fn sync(&self) -> Result<(), Error> {
        let what = || Error::at(&self.root);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(self.root()?, ".", flags, Mode::empty());
        root.and_then(rustix::fs::syncfs).map_err(std::io::Error::from).map_err(what())
    }

    fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error> {
        self.root()?;
        let look = |path: &&str| {
            let (_, found) = self.open_file(path, METADATA_ONLY)?;
            let changed = walk::later(
                (found.mtime(), found.mtime_nsec()),
                (found.ctime(), found.ctime_nsec()),
            );
            Ok(Found { path: (*path).to_owned(), bytes: found.len(), changed })
        };
        Ok(paths.iter().map(look).collect())
    }

    fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        walk::files(self.root()?, &self.root, each)
    }

    fn drafts(&self) -> Drafts {
        Drafts::Tagged
    }

    fn links(&self, most: usize) -> Result<Vec<(String, String)>, Error> {
        walk::links(self.root()?, &self.root, most)
    }
}

/// A file that is being written.
#[derive(Debug)]
struct Draft {
    file: File,
    temporary: String,
    place: Place,
    new: bool,
    kept: bool,
}

impl store::Draft for Draft {
    fn add(&mut self, piece: &[u8]) -> Result<(), Error> {
        self.file.write_all(piece).map_err(Error::at(&self.place.shown))
    }

    fn seal(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn read_back(&self) -> Result<Box<dyn Read + Send>, Error> {
        let file = self.file.try_clone().map_err(Error::at(&self.place.shown))?;
        Ok(Box::new(DraftReader { file, at: 0 }))
    }

    /// Does nothing: the draft has only its temporary name, and is removed when it is dropped.
    fn reject(&mut self) {}

    fn keep(mut self: Box<Self>) -> Result<(), Error> {
        let Place { folder, name, .. } = &self.place;
        if self.new {
            // A hard link fails if the name exists already.
            let named = rustix::fs::linkat(folder, &self.temporary, folder, name, AtFlags::empty());
            return named.map_err(self.place.fails());
        }
        let named = rustix::fs::renameat(folder, &self.temporary, folder, name);
        named.map_err(self.place.fails())?;
        self.kept = true;
        Ok(())
    }
}

/// Reads a draft from its beginning, with a position of its own.
struct DraftReader {
    file: File,
    at: u64,
}

impl Read for DraftReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // If this fails, the next attempt removes it.
            let _ = self.place.remove(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests;
