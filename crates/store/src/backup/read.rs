//! Reading a backup: line by line, trusting nothing.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::object::{Body, Key, Resource};

use super::{Error, FORMAT, Head, LAST, OBJECT, Place, Summary, hex, last_line};

/// The longest line that is read.
const LONGEST: u64 = 64 << 20;

/// One object of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it was.
    pub key: Key,
    /// What it was.
    pub body: Body,
}

/// A backup being read. Only once [`Reader::next_entry`] has returned `None` is it known to be
/// whole and undamaged.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    head: Head,
    line: Vec<u8>,
    lines: u64,
    objects: u64,
    digest: Sha256,
    last: Option<Key>,
    ended: Option<String>,
}

/// What is known of a backup of whatever format.
#[derive(Deserialize)]
struct Label {
    mainstay: String,
    format: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// [`Error`] if it is not the first line of a backup this version reads.
    pub fn new(mut source: R) -> Result<Self, Error> {
        const START: &[u8] = b"{\"mainstay\":\"backup\"";
        let mut line = Vec::new();
        source.by_ref().take(4096).read_until(b'\n', &mut line)?;
        if !line.starts_with(START) {
            let begun = !line.is_empty() && START.starts_with(&line);
            return Err(if begun { Error::CutShort { objects: 0 } } else { Error::Foreign });
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            return Err(Error::CutShort { objects: 0 });
        }
        let label: Label = serde_json::from_slice(&line).map_err(|_| Error::Foreign)?;
        if label.mainstay != "backup" {
            return Err(Error::Foreign);
        }
        if label.format > FORMAT {
            return Err(Error::Newer { found: label.format });
        }
        let damaged = Error::Damaged { line: 1, what: "it does not say what is needed" };
        let head: Head = serde_json::from_slice(&line).map_err(|_| damaged)?;
        let mut digest = Sha256::new();
        digest.update(&line);
        digest.update(b"\n");
        Ok(Self { source, head, line, lines: 1, objects: 0, digest, last: None, ended: None })
    }

    /// The next object, or `None` if there are no more and all is well.
    ///
    /// # Errors
    /// [`Error`] if the backup is not as it was written.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        if self.ended.is_some() {
            return Ok(None);
        }
        self.lines += 1;
        self.line.clear();
        self.source.by_ref().take(LONGEST).read_until(b'\n', &mut self.line)?;
        if self.line.last() != Some(&b'\n') {
            let cut = Error::CutShort { objects: self.objects };
            return Err(if self.line.len() as u64 == LONGEST {
                self.damaged("too long")
            } else {
                cut
            });
        }
        if self.line.starts_with(LAST) {
            return self.end().map(|()| None);
        }
        self.digest.update(&self.line);
        self.objects += 1;
        let entry = parse(&self.line).ok_or_else(|| self.damaged("no object"))?;
        if self.last.as_ref().is_some_and(|last| *last >= entry.key) {
            return Err(self.damaged("an object out of order"));
        }
        self.last = Some(entry.key.clone());
        Ok(Some(entry))
    }

    /// What the backup holds, once all of it was read.
    ///
    /// # Errors
    /// As [`Reader::next_entry`].
    pub fn finish(mut self) -> Result<Summary, Error> {
        while self.next_entry()?.is_some() {}
        let sha256 = self.ended.unwrap_or_default();
        Ok(Summary { head: self.head, objects: self.objects, sha256 })
    }

    /// What the first line said.
    pub fn head(&self) -> &Head {
        &self.head
    }

    fn end(&mut self) -> Result<(), Error> {
        let sha256 = hex(self.digest.clone());
        if self.line != last_line(self.objects, &sha256) {
            return Err(self.damaged("the count or the checksum does not fit what comes before"));
        }
        if !self.source.fill_buf()?.is_empty() {
            return Err(self.damaged("something follows its end"));
        }
        self.ended = Some(sha256);
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { line: self.lines, what }
    }
}

/// An object's line; `None` if it is something else.
fn parse(line: &[u8]) -> Option<Entry> {
    let line = line.strip_suffix(b"}\n")?;
    let at = line.windows(OBJECT.len()).position(|window| window == OBJECT)?;
    let mut place = line[..at].to_vec();
    place.push(b'}');
    let place: Place<'_> = serde_json::from_slice(&place).ok()?;
    if place.resource.is_empty() || place.resource.contains('/') || place.path.is_empty() {
        return None;
    }
    let body = Body::from_parts(line[at + OBJECT.len()..].to_vec(), place.hole)?;
    // No line of a file spans two lines of text.
    if body.json().contains(&b'\n') {
        return None;
    }
    let key = Key::from_stored(Resource::from_stored(&place.resource), &place.path);
    Some(Entry { key, body })
}

/// Reads a backup from its first line to its last, and keeps nothing.
///
/// # Errors
/// [`Error`] if it is not whole and undamaged.
pub fn verify(path: &Path) -> Result<Summary, Error> {
    open(path)?.finish()
}

pub(super) fn open(path: &Path) -> Result<Reader<BufReader<File>>, Error> {
    Reader::new(BufReader::with_capacity(256 << 10, File::open(path)?))
}
