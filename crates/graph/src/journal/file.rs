//! A journal in one file of records, each `length checksum entry`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{Entry, Error, Journal};

const HEAD: usize = 8;
/// Below this size a journal is not compacted.
const SMALL: u64 = 1 << 20;

/// A journal in a file. Only one process may have it open.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    file: File,
    length: u64,
    compacted: u64,
    buffer: Vec<u8>,
}

impl FileJournal {
    /// Opens a journal, or creates an empty one. A torn record at its end is cut off.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, read or truncated.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io("open"))?;
        let mut journal = Self { path, file, length: 0, compacted: 0, buffer: Vec::new() };
        let bytes = journal.read_all()?;
        let whole = entries(&bytes).last().map_or(0, |(end, _)| end);
        journal.length = whole as u64;
        journal.compacted = journal.length;
        journal.file.set_len(journal.length).map_err(io("repair"))?;
        journal.file.seek(SeekFrom::End(0)).map_err(io("read"))?;
        Ok(journal)
    }

    fn read_all(&mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0)).map_err(io("read"))?;
        self.file.read_to_end(&mut bytes).map_err(io("read"))?;
        Ok(bytes)
    }
}

impl Journal for FileJournal {
    fn load(&mut self) -> Result<Vec<Entry>, Error> {
        let bytes = self.read_all()?;
        self.file.seek(SeekFrom::End(0)).map_err(io("read"))?;
        Ok(entries(&bytes).map(|(_, entry)| entry).collect())
    }

    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), Error> {
        self.buffer.clear();
        encode(entry, &mut self.buffer)?;
        if let Err(error) = self.file.write_all(&self.buffer) {
            // A partial entry would hide all entries after it.
            self.file.set_len(self.length).map_err(io("repair"))?;
            self.file.seek(SeekFrom::End(0)).map_err(io("repair"))?;
            return Err(io("write")(error));
        }
        self.length += self.buffer.len() as u64;
        if durable {
            self.file.sync_data().map_err(io("flush"))?;
        }
        Ok(())
    }

    fn wants_compaction(&self) -> bool {
        self.length > SMALL && self.length > self.compacted.saturating_mul(3)
    }

    fn compact(&mut self, snapshot: &Entry) -> Result<(), Error> {
        let mut bytes = Vec::new();
        encode(snapshot, &mut bytes)?;
        let next = self.path.with_extension("next");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&next)
            .map_err(io("compact"))?;
        file.write_all(&bytes).map_err(io("compact"))?;
        file.sync_all().map_err(io("compact"))?;
        std::fs::rename(&next, &self.path).map_err(io("compact"))?;
        sync_folder(&self.path)?;
        self.file = file;
        self.length = bytes.len() as u64;
        self.compacted = self.length;
        Ok(())
    }
}

fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(io("compact"))?;
    folder.sync_all().map_err(io("compact"))
}

fn io(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { action, source }
}

fn encode(entry: &Entry, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    out.extend([0; HEAD]);
    serde_json::to_writer(&mut *out, entry).map_err(Error::Encoding)?;
    let body = &out[start + HEAD..];
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let checksum = crc32(body);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// The whole entries at the beginning of `bytes`, each with where it ends.
fn entries(bytes: &[u8]) -> impl Iterator<Item = (usize, Entry)> {
    let mut position = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(position..position + HEAD)?;
        let (length, checksum) = head.split_at(4);
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let checksum = u32::from_le_bytes(checksum.try_into().ok()?);
        let start = position + HEAD;
        let body = bytes.get(start..start.checked_add(length)?)?;
        if crc32(body) != checksum {
            return None;
        }
        let entry = serde_json::from_slice(body).ok()?;
        position = start + length;
        Some((position, entry))
    })
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0_u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut word = index as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { 0xEDB8_8320 ^ (word >> 1) } else { word >> 1 };
            bit += 1;
        }
        table[index] = word;
        index += 1;
    }
    table
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0_u32, |word, byte| TABLE[usize::from(byte ^ (word & 0xFF) as u8)] ^ (word >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
