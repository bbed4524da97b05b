//! A journal in one file, locked against a second opener.
//!
//! The lock is on the file itself, so that it ends with the process and cannot be left behind.
//! Compaction replaces the file: the new one is locked before it gets the name, and an opener that
//! locked the old one finds that the name belongs to another file and starts over.
//!
//! After an error of the file system no more entries are accepted: a flush that failed may have
//! dropped data that a second flush would not report.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{self, Content, Piece};
use super::inspect::Problem;
use super::{Entry, Error, Journal};

/// Below this size a journal is not compacted.
const SMALL: u64 = 1 << 20;
/// The name of the journal in a folder.
const NAME: &str = "journal";
/// How often opening starts over because the file was replaced meanwhile.
const ATTEMPTS: usize = 16;

/// A journal in a file. Only one process may have it open.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    file: File,
    length: u64,
    /// The number of entries in the file.
    count: u64,
    /// The size from which compaction is worth it.
    compact_at: u64,
    buffer: Vec<u8>,
    /// The entries as they were found, until they are loaded.
    found: Option<Vec<Entry>>,
    notices: Vec<String>,
    /// Whether the file system returned an error.
    broken: bool,
}

impl FileJournal {
    /// Opens a journal, or creates one that holds the entry of an empty state. A folder stands for
    /// the file `journal` in it. A record at the end that a crash left incomplete is cut off;
    /// [`Journal::notices`] reports it.
    ///
    /// # Errors
    /// Fails if another process uses the file, if it is damaged, empty or holds entries of a newer version,
    /// and if it cannot be opened, read or truncated. A file that is not accepted is not changed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = file_of(path.into());
        let mut file = open_or_create(&path)?;
        let bytes = read_all(&mut file, &path)?;
        let mut pieces = format::pieces(&bytes);
        let mut notices = Vec::new();
        let mut length = bytes.len() as u64;
        if let Some(torn) = pieces.pop_if(|piece| matches!(piece.content, Content::Torn)) {
            length = torn.offset as u64;
            notices.push(format!(
                "{}: cut off {} bytes of an incomplete entry at byte {}",
                path.display(),
                torn.length,
                torn.offset
            ));
        }
        let snapshot = leading_snapshot(&pieces);
        let found = entries(&path, pieces)?;
        if length < bytes.len() as u64 {
            file.set_len(length).map_err(io("repair", &path))?;
            file.sync_all().map_err(io("repair", &path))?;
        }
        file.seek(SeekFrom::End(0)).map_err(io("read", &path))?;
        // A compaction that did not finish left it behind.
        let _ = std::fs::remove_file(next(&path));
        Ok(Self {
            file,
            length,
            count: found.len() as u64,
            compact_at: compact_at(snapshot),
            buffer: Vec::new(),
            found: Some(found),
            notices,
            broken: false,
            path,
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self) -> Result<(), Error> {
        if let Err(error) = self.file.write_all(&self.buffer) {
            self.broken = true;
            // A partial entry is cut off here or, if that fails too, by the next opener.
            if self.file.set_len(self.length).is_ok() {
                let _ = self.file.sync_all();
            }
            return Err(io("write", &self.path)(error));
        }
        self.length += self.buffer.len() as u64;
        self.count += 1;
        Ok(())
    }

    fn usable(&self) -> Result<(), Error> {
        match self.broken {
            true => Err(Error::Broken { path: self.path.clone() }),
            false => Ok(()),
        }
    }
}

impl Journal for FileJournal {
    fn load(&mut self) -> Result<Vec<Entry>, Error> {
        if let Some(found) = self.found.take() {
            return Ok(found);
        }
        let bytes = read_all(&mut self.file, &self.path)?;
        self.file.seek(SeekFrom::End(0)).map_err(io("read", &self.path))?;
        entries(&self.path, format::pieces(&bytes))
    }

    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), Error> {
        self.usable()?;
        self.found = None;
        self.buffer.clear();
        format::encode(entry, self.count, &mut self.buffer)?;
        self.write()?;
        if durable { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.usable()?;
        self.file.sync_data().map_err(|error| {
            self.broken = true;
            io("flush", &self.path)(error)
        })
    }

    fn wants_compaction(&self) -> bool {
        self.length > self.compact_at
    }

    fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) -> Result<(), Error> {
        self.usable()?;
        match replace(&self.path, entries) {
            Ok(Replaced { file, length, count, folder }) => {
                self.file = file;
                self.length = length;
                self.count = count;
                self.compact_at = compact_at(length);
                self.broken = folder.is_err();
                folder
            }
            Err(error) => {
                self.compact_at = self.length + self.length.max(SMALL) / 2;
                let _ = std::fs::remove_file(next(&self.path));
                Err(error)
            }
        }
    }

    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }
}

/// The file that a path stands for.
pub(super) fn file_of(path: PathBuf) -> PathBuf {
    if path.is_dir() { path.join(NAME) } else { path }
}

fn compact_at(compacted: u64) -> u64 {
    compacted.saturating_mul(3).max(SMALL)
}

/// The size of the snapshot at the beginning.
fn leading_snapshot(pieces: &[Piece]) -> u64 {
    let snapshot = |piece: &&Piece| {
        matches!(&piece.content, Content::Entry(entry)
            if matches!(**entry, Entry::Snapshot(_) | Entry::Past(_)))
    };
    pieces.iter().take_while(snapshot).map(|piece| piece.length as u64).sum()
}

/// The entries of a sound journal.
fn entries(path: &Path, pieces: Vec<Piece>) -> Result<Vec<Entry>, Error> {
    let after = |offset: usize, pieces: &[Piece]| {
        let later = pieces.iter().filter(|piece| piece.offset > offset);
        later.filter(|piece| matches!(piece.content, Content::Entry(_))).count()
    };
    if !pieces.iter().any(|piece| !matches!(piece.content, Content::Damaged)) {
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        return Err(Error::Empty { path: path.to_owned(), bytes });
    }
    for piece in &pieces {
        let (path, offset) = (path.to_owned(), piece.offset as u64);
        match &piece.content {
            Content::Entry(_) => {}
            Content::Missing { .. } | Content::Misplaced { .. } => {
                let problem = super::inspect::problem(&piece.content).unwrap_or(Problem::Damaged);
                return Err(Error::Disordered { path, offset, problem });
            }
            Content::Unknown { kind, error } => {
                let (kind, reason) = (kind.clone(), error.clone());
                return Err(Error::Unknown { path, offset, kind, reason });
            }
            Content::Damaged | Content::Torn => {
                let (bytes, follow) = (piece.length, after(piece.offset, &pieces));
                return Err(Error::Damaged { path, offset, bytes, follow });
            }
        }
    }
    let entry = |piece: Piece| match piece.content {
        Content::Entry(entry) => Some(*entry),
        _ => None,
    };
    Ok(pieces.into_iter().filter_map(entry).collect())
}

/// Opens and locks the file of a journal that exists.
pub(super) fn open_locked(path: &Path) -> Result<File, Error> {
    for _ in 0..ATTEMPTS {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(io("open", path))?;
        lock(&file, path)?;
        if is_still(&file, path)? {
            return Ok(file);
        }
    }
    Err(Error::Locked { path: path.to_owned() })
}

/// Opens and locks the file of a journal. A new file gets its name once its first entry is flushed,
/// so that a journal without an entry is never the work of a crash.
fn open_or_create(path: &Path) -> Result<File, Error> {
    for _ in 0..ATTEMPTS {
        match path.try_exists() {
            Ok(true) => return open_locked(path),
            Ok(false) => {}
            Err(error) => return Err(io("open", path)(error)),
        }
        let next = open_next(path)?;
        // Another process may have created the journal meanwhile.
        if is_still(&next, &self::next(path))? && !path.exists() {
            let Replaced { file, folder, .. } = fill(next, path, &mut std::iter::once(empty()))?;
            return folder.map(|()| file);
        }
    }
    Err(Error::Locked { path: path.to_owned() })
}

/// The only entry of a journal that was never used.
pub(super) fn empty() -> Entry {
    Entry::Snapshot(Box::default())
}

/// How often, and how far apart, a lock is tried. A program that a former owner is just starting
/// shares its lock until it runs.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

fn lock(file: &File, path: &Path) -> Result<(), Error> {
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(source)) => return Err(io("lock", path)(source)),
        }
    }
    Err(Error::Locked { path: path.to_owned() })
}

/// Whether the name still belongs to the open file.
fn is_still(file: &File, path: &Path) -> Result<bool, Error> {
    let own = file.metadata().map_err(io("open", path))?;
    Ok(std::fs::metadata(path)
        .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())))
}

fn read_all(file: &mut File, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(io("read", path))?;
    file.read_to_end(&mut bytes).map_err(io("read", path))?;
    Ok(bytes)
}

/// The name under which the successor of a journal is written.
fn next(path: &Path) -> PathBuf {
    path.with_extension("next")
}

/// A journal file that has taken the place of another.
pub(super) struct Replaced {
    /// The file, locked and at its end.
    file: File,
    length: u64,
    count: u64,
    /// Whether the new name is durable.
    pub(super) folder: Result<(), Error>,
}

/// Replaces the file of a journal, atomically and durably. On an error the old file stands.
pub(super) fn replace(
    path: &Path,
    entries: &mut dyn Iterator<Item = Entry>,
) -> Result<Replaced, Error> {
    fill(open_next(path)?, path, entries)
}

/// Opens and locks the successor of a journal.
fn open_next(path: &Path) -> Result<File, Error> {
    let next = next(path);
    let mut options = OpenOptions::new();
    // It is emptied only under the lock.
    let opened = options.read(true).write(true).create(true).truncate(false).open(&next);
    let file = opened.map_err(io("write the successor of", path))?;
    lock(&file, &next)?;
    Ok(file)
}

/// Writes the successor of a journal and gives it the name of the journal.
fn fill(
    file: File,
    path: &Path,
    entries: &mut dyn Iterator<Item = Entry>,
) -> Result<Replaced, Error> {
    let failed = io("write the successor of", path);
    file.set_len(0).map_err(&failed)?;
    let mut writer = BufWriter::with_capacity(1 << 16, file);
    let (mut buffer, mut length, mut count) = (Vec::new(), 0, 0);
    for entry in entries {
        buffer.clear();
        format::encode(&entry, count, &mut buffer)?;
        writer.write_all(&buffer).map_err(&failed)?;
        length += buffer.len() as u64;
        count += 1;
    }
    let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(&failed)?;
    std::fs::rename(next(path), path).map_err(&failed)?;
    Ok(Replaced { file, length, count, folder: sync_folder(path) })
}

pub(super) fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let opened = File::open(folder).map_err(io("flush the folder of", path))?;
    opened.sync_all().map_err(io("flush the folder of", path))
}

pub(super) fn io<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_owned(), source }
}
