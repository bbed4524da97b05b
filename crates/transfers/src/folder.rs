//! Folders of this machine as storage.
//!
//! A file is written under a temporary name beside its place, read back, and renamed only when it
//! is right; nobody ever sees half of one. Temporary names tell which file, request and attempt
//! they belong to, so that whoever comes next removes what a killed worker has left. Many files
//! are put on disk for good at once ([`Store::sync`]): one by one it takes longer than copying.
//!
//! The folder itself is made when it is named ([`Folder::make`]) and not when it is used: where it
//! is not there, a disk may not be mounted, and then its files are neither gone nor to be written
//! anywhere else. It is held open once it was used, for a few files at most: see
//! [`store::Opened`].
//!
//! Below a storage root ([`super::allowed`]) no link is followed on the way to the folder. Links
//! inside the folder are followed as long as they stay inside: where they lead is found out first,
//! and then opened component by component without following any link.

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

/// A folder that holds an RSE's files.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    opening: Opening,
    opened: OnceLock<OwnedFd>,
}

/// What is only passed through.
const PASSED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Whoever put something else than a file there must not make a worker wait for it.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// What is only looked at.
const LOOKED_AT: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A place for a file: its folder, held open, and its name there.
#[derive(Debug)]
struct Place {
    folder: OwnedFd,
    name: String,
    /// The folder was made for it: there is nothing in it.
    new: bool,
    /// What people know it by.
    shown: PathBuf,
}

impl Folder {
    /// The folder a protocol speaks of, if it may be used.
    pub fn open(protocol: &Protocol, allowed: &Allowed) -> Result<Self, Refused> {
        let parts = protocol.prefix.split('/').filter(|part| !["", "."].contains(part));
        let root = Path::new("/").join(parts.collect::<PathBuf>());
        let opening = allowed.folder(&root)?;
        Ok(Self { root, opening, opened: OnceLock::new() })
    }

    /// Makes the folder; one that is there stays as it is.
    pub fn make(&self) -> Result<(), Error> {
        match &self.opening {
            Opening::Path => std::fs::create_dir_all(&self.root).map_err(Error::at(&self.root)),
            Opening::Below(root, rest) => self.open_below(root, rest, true).map(drop),
        }
    }

    /// Where a path leads, as people know it.
    fn shown(&self, path: &str) -> Result<PathBuf, Error> {
        match stays_below(path) {
            true => Ok(self.root.join(path)),
            false => Err(Error::Leaves(path.to_owned())),
        }
    }

    /// Finds the place of a file, and makes the way to it where that is wanted.
    fn place(&self, path: &str, make: bool) -> Result<Place, Error> {
        let shown = self.shown(path)?;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = match descend(self.root()?, above, make) {
            Err(error) if is_odd(error) => step_down(self.root()?, &self.real(above)?, make),
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
            Opening::Path => match rustix::fs::open(&self.root, PASSED, Mode::empty()) {
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
            // What a link is to a step that follows none.
            Errno::LOOP | Errno::NOTDIR => Error::Linked(self.root.display().to_string()),
            error => Error::at(&self.root)(error.into()),
        };
        let root = rustix::fs::open(root, PASSED | OFlags::NOFOLLOW, Mode::empty());
        let root = root.map_err(failed)?;
        if !make {
            let path = if rest.is_empty() { "." } else { rest };
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match rustix::fs::openat2(&root, path, PASSED, Mode::empty(), within) {
                Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
                opened => return opened.map_err(failed),
            }
        }
        step_down(&root, rest, make).map(|(folder, _)| folder).map_err(failed)
    }

    /// Where links on a way below the folder lead, as far as they are there; fails when that is
    /// outside.
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

    /// Opens the file that links lead to, if that is within the folder.
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

    /// Opens a file that is there, and says how it is.
    fn reach(&self, path: &str, flags: OFlags) -> Result<(File, std::fs::Metadata), Error> {
        let place = self.shown(path)?;
        let what = || Error::at(&place);
        let file = match below(self.root()?, path, flags) {
            Err(error) if is_odd(error) => self.open_real(path, flags)?,
            opened => opened.map_err(std::io::Error::from).map_err(what())?,
        };
        let file = File::from(file);
        let found = file.metadata().map_err(what())?;
        if !found.is_file() {
            return Err(Error::NoFile(place.display().to_string()));
        }
        Ok((file, found))
    }

    /// The temporary name of a file under way.
    fn temporary(name: &str, tag: &str) -> String {
        format!(".{}.{tag}.part", stem(name))
    }
}

/// How long a name may be that is whole in temporary names: these may have 255 bytes.
const WHOLE: usize = 190;

/// The name of a draft without its tag, shortened where the whole would be too long.
#[must_use]
pub fn stem(name: &str) -> String {
    if name.len() <= WHOLE {
        return name.to_owned();
    }
    let digest = hex::encode(Md5::digest(name.as_bytes()));
    format!("{}~{digest}", &name[..name.floor_char_boundary(WHOLE - 40)])
}

/// A link that may lead out, or a system that cannot say: the way is looked at piece by piece.
fn is_odd(error: Errno) -> bool {
    matches!(error, Errno::XDEV | Errno::LOOP | Errno::NOSYS | Errno::PERM | Errno::AGAIN)
}

/// Opens what is below a folder, and nothing else.
fn below(folder: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(folder, path, flags, Mode::empty(), within)
}

/// Opens a folder below another, and says whether it had to be made.
fn descend(root: &OwnedFd, path: &str, make: bool) -> Result<(OwnedFd, bool), Errno> {
    match below(root, path, PASSED) {
        Err(Errno::NOENT) if make && !path.is_empty() => {
            let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
            let (above, _) = descend(root, above, true)?;
            let new = make_in(&above, last)?;
            Ok((below(&above, last, PASSED)?, new))
        }
        other => other.map(|folder| (folder, false)),
    }
}

/// Makes a folder in another, and says whether it was not there.
fn make_in(above: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o775)) {
        Err(Errno::EXIST) => Ok(false),
        made => made.map(|()| true),
    }
}

/// Opens a folder below another component by component, follows no link, makes what is missing
/// where that is wanted, and says whether the last had to be made.
fn step_down(root: &OwnedFd, path: &str, make: bool) -> Result<(OwnedFd, bool), Errno> {
    let flags = PASSED | OFlags::NOFOLLOW;
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

    /// Removes what earlier attempts have left.
    fn sweep(&self) -> Result<(), Error> {
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
        let (file, found) = self.reach(path, READ)?;
        Ok((Box::new(file), found.len()))
    }

    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn store::Draft>, Error> {
        let place = self.place(path, true)?;
        if !plan.new && !place.new {
            place.sweep()?;
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
                place.sweep()?;
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
            let (_, found) = self.reach(path, LOOKED_AT)?;
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

/// A file under way in a folder.
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
        Ok(Box::new(Back { file, at: 0 }))
    }

    /// It has no name yet that others know.
    fn reject(&mut self) {}

    fn keep(mut self: Box<Self>) -> Result<(), Error> {
        let Place { folder, name, .. } = &self.place;
        if self.new {
            // A second name can only be had where there is none yet.
            let named = rustix::fs::linkat(folder, &self.temporary, folder, name, AtFlags::empty());
            return named.map_err(self.place.fails());
        }
        let named = rustix::fs::renameat(folder, &self.temporary, folder, name);
        named.map_err(self.place.fails())?;
        self.kept = true;
        Ok(())
    }
}

/// A draft from its beginning, whatever was written to it.
struct Back {
    file: File,
    at: u64,
}

impl Read for Back {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // Whoever comes next removes it as well.
            let _ = self.place.remove(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests;
