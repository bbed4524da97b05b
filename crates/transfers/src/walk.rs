//! Lists the files and links in a local folder recursively.
//!
//! One folder is open on each level, and its entries are read as the kernel returns them: memory
//! use is one buffer per level, however many files there are. Symbolic links are not followed.
//! Entries that are neither files nor folders are skipped, and so are entries that disappear
//! meanwhile. A folder that cannot be read is reported, and the others are still listed.

use std::ffi::CStr;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::store::{Error, Found};
use crate::did::{Micros, SECOND};

/// The deepest level that is listed: each level keeps a folder open.
const DEEPEST: usize = 256;

const LISTED: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The later of two moments, each in seconds and nanoseconds.
pub(super) fn later(one: (i64, i64), other: (i64, i64)) -> Micros {
    let (seconds, nanoseconds) = one.max(other);
    seconds.saturating_mul(SECOND).saturating_add(nanoseconds / 1_000)
}

/// The time of a file's last change, of its content or its names.
fn changed(stat: &Stat) -> Micros {
    later(
        (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
    )
}

/// One folder on the way down.
struct Level {
    folder: Dir,
    /// Its path below the root; empty for the root.
    path: String,
}

/// A file or a symbolic link.
struct Visited<'a> {
    kind: FileType,
    folder: &'a Dir,
    name: &'a CStr,
    path: String,
}

/// Called for every file and link, and with the error of every entry that cannot be read.
type Each<'a> = dyn FnMut(Result<Visited<'_>, Error>) -> Result<ControlFlow<()>, Errno> + 'a;

/// Visits the files and links in a folder and below it.
fn visit(root: &OwnedFd, shown: &Path, each: &mut Each<'_>) -> Result<(), Error> {
    let at = |path: &str, error: Errno| Error::at(&shown.join(path))(error.into());
    let open = rustix::fs::openat(root, c".", LISTED, Mode::empty()).and_then(Dir::new);
    let first = open.map_err(|error| at("", error))?;
    let mut levels = vec![Level { folder: first, path: String::new() }];
    loop {
        let depth = levels.len();
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let Some(entry) = level.folder.read() else {
            levels.pop();
            continue;
        };
        let entry = match entry {
            Ok(entry) if [c".", c".."].contains(&entry.file_name()) => continue,
            Ok(entry) => entry,
            Err(error) => {
                let error = at(&level.path, error);
                levels.pop();
                match each(Err(error)) {
                    Ok(ControlFlow::Break(())) => return Ok(()),
                    _ => continue,
                }
            }
        };
        let name = entry.file_name();
        let path = match level.path.as_str() {
            "" => name.to_string_lossy().into_owned(),
            above => format!("{above}/{}", name.to_string_lossy()),
        };
        let done = match kind(&level.folder, &entry) {
            Ok(FileType::Directory) if depth >= DEEPEST => Err(Errno::NAMETOOLONG),
            Ok(FileType::Directory) => descend(&level.folder, name).map(|folder| {
                levels.push(Level { folder, path: path.clone() });
                ControlFlow::Continue(())
            }),
            Ok(kind @ (FileType::RegularFile | FileType::Symlink)) => {
                let folder = &level.folder;
                each(Ok(Visited { kind, folder, name, path: path.clone() }))
            }
            Ok(_) => Ok(ControlFlow::Continue(())),
            Err(error) => Err(error),
        };
        let done = match done {
            // It was removed or replaced meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => each(Err(at(&path, error))),
            done => done,
        };
        if let Ok(ControlFlow::Break(())) = done {
            return Ok(());
        }
    }
}

/// The type of an entry; not every file system returns it in the listing.
fn kind(folder: &Dir, entry: &DirEntry) -> Result<FileType, Errno> {
    match entry.file_type() {
        FileType::Unknown => {
            let stat =
                rustix::fs::statat(folder.fd()?, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        known => Ok(known),
    }
}

fn descend(folder: &Dir, name: &CStr) -> Result<Dir, Errno> {
    Dir::new(rustix::fs::openat(folder.fd()?, name, LISTED, Mode::empty())?)
}

/// Calls `each` for every file in a folder and below it, and with the error of every entry that
/// cannot be read.
pub(super) fn files(
    root: &OwnedFd,
    shown: &Path,
    each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
) -> Result<(), Error> {
    visit(root, shown, &mut |visited| {
        let visited = match visited {
            Ok(visited) if visited.kind == FileType::RegularFile => visited,
            Ok(_) => return Ok(ControlFlow::Continue(())),
            Err(error) => return Ok(each(Err(error))),
        };
        let folder = visited.folder.fd()?;
        let stat = rustix::fs::statat(folder, visited.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(ControlFlow::Continue(()));
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(each(Ok(Found { path: visited.path, bytes, changed: changed(&stat) })))
    })
}

/// At most `most` symbolic links in a folder that point into it, each with the path of its target,
/// which is empty for the folder itself.
pub(super) fn links(
    root: &OwnedFd,
    shown: &Path,
    most: usize,
) -> Result<Vec<(String, String)>, Error> {
    let real = shown.canonicalize().map_err(Error::at(shown))?;
    let mut found = Vec::new();
    visit(root, shown, &mut |visited| {
        if let Ok(Visited { kind: FileType::Symlink, path, .. }) = visited
            && let Ok(end) = shown.join(&path).canonicalize()
            && let Ok(within) = end.strip_prefix(&real)
            && let Some(within) = within.to_str()
        {
            found.push((path, within.to_owned()));
        }
        Ok(if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use super::*;

    fn opened(root: &Path) -> OwnedFd {
        rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    fn found(root: &Path) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        let each = &mut |found: Result<Found, Error>| {
            let found = found.unwrap();
            all.insert(found.path, found.bytes);
            ControlFlow::Continue(())
        };
        files(&opened(root), root, each).unwrap();
        all
    }

    #[test]
    fn every_file_is_found_once_and_no_link_is_followed() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = root.path();
        std::fs::write(other.path().join("secret"), "x").unwrap();
        std::fs::create_dir_all(root.join("a/b/c")).unwrap();
        for (path, content) in [("top", "1"), ("a/.f.7-1.part", "12"), ("a/b/c/f", "123")] {
            std::fs::write(root.join(path), content).unwrap();
        }
        symlink(other.path(), root.join("out")).unwrap();
        symlink(other.path().join("secret"), root.join("a/leaf")).unwrap();
        symlink("..", root.join("a/up")).unwrap();
        symlink("b/c", root.join("a/near")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        let expected = [("top", 1), ("a/.f.7-1.part", 2), ("a/b/c/f", 3)];
        assert_eq!(found(root), expected.map(|(path, bytes)| (path.to_owned(), bytes)).into());
        let mut within = links(&opened(root), root, 10).unwrap();
        within.sort();
        let expected = [("a/near", "a/b/c"), ("a/up", "")];
        assert_eq!(within, expected.map(|(link, to)| (link.to_owned(), to.to_owned())));
        assert_eq!(links(&opened(root), root, 1).unwrap().len(), 1);
    }

    #[test]
    fn listing_stops_when_the_callback_breaks() {
        let root = tempfile::tempdir().unwrap();
        for at in 0..10 {
            std::fs::write(root.path().join(at.to_string()), "").unwrap();
        }
        let mut seen = 0;
        let each = &mut |_| {
            seen += 1;
            if seen < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        files(&opened(root.path()), root.path(), each).unwrap();
        assert_eq!(seen, 3);
    }
}
