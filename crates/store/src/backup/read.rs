//! Reads a backup line by line, and checks every line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::object::{Body, Key, Resource};

use super::part::{PartError, Parts};
use super::{
    Error, FAILED, FORMAT, Head, LAST, LAST_OF_PART, OBJECT, PART, PartSummary, Place, Summary,
    hex, last_line,
};

/// The longest line that is read.
const LONGEST: u64 = 64 << 20;

/// One object of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it was.
    pub key: Key,
    /// The object.
    pub body: Body,
}

/// The next item of a backup.
#[derive(Debug)]
pub enum Item<'a> {
    /// An object.
    Object(Entry),
    /// A part begins; what is said about it.
    Part(&'a str, &'a Value),
    /// A line of the part, without its end.
    Line(&'a [u8]),
    /// The part is whole.
    EndOfPart,
}

/// Where a backup is read from, as often as need be.
#[derive(Clone)]
pub struct Source(Arc<dyn Fn() -> Result<Box<dyn BufRead + Send>, Error> + Send + Sync>);

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl Source {
    /// A source that is opened with `open` each time.
    pub fn new(
        open: impl Fn() -> Result<Box<dyn BufRead + Send>, Error> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    /// A file that is not encrypted.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        let path = path.to_owned();
        Self::new(move || Ok(Box::new(BufReader::with_capacity(256 << 10, File::open(&path)?))))
    }

    pub(super) fn open(&self) -> Result<Reader<Box<dyn BufRead + Send>>, Error> {
        Reader::new((self.0)()?)
    }
}

/// A backup being read. Only once [`Reader::next_item`] has returned `None` is it known to be
/// whole and undamaged.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    head: Head,
    line: Vec<u8>,
    lines: u64,
    objects: u64,
    parts: Vec<PartSummary>,
    digest: Sha256,
    last: Option<Key>,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Objects,
    /// Before a part, or the end.
    Between,
    /// Within the last part there is.
    Within,
    /// At the end; the sum of all but the last line.
    Ended(String),
}

/// The first line of a part.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartLine {
    part: String,
    about: Value,
}

/// The last line of a backup that could not be completed.
#[derive(Deserialize)]
struct Failure {
    failed: String,
}

/// The part of the first line that every format has.
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
        let damaged = Error::Damaged { line: 1, what: "required fields are missing".into() };
        let head: Head = serde_json::from_slice(&line).map_err(|_| damaged)?;
        let mut digest = Sha256::new();
        digest.update(&line);
        digest.update(b"\n");
        let (parts, stage) = (Vec::new(), Stage::Objects);
        Ok(Self { source, head, line, lines: 1, objects: 0, parts, digest, last: None, stage })
    }

    /// The next object, or `None` if there are no more and what follows them is well too.
    ///
    /// # Errors
    /// [`Error`] if the backup is not as it was written.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            match self.next_item()? {
                Some(Item::Object(entry)) => return Ok(Some(entry)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next item; `None` once everything was read and the checksums match.
    ///
    /// # Errors
    /// [`Error`] if the backup is not as it was written.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Error> {
        if matches!(self.stage, Stage::Ended(_)) {
            return Ok(None);
        }
        self.read_line()?;
        match self.stage {
            Stage::Objects if self.line.starts_with(LAST) => {
                self.seal(LAST, self.objects)?;
                self.next_item()
            }
            Stage::Objects => self.object().map(|entry| Some(Item::Object(entry))),
            Stage::Within if self.line.starts_with(FAILED) => {
                let failure: Failure = serde_json::from_slice(&self.line)
                    .map_err(|_| self.damaged("an unreadable reason of a failure"))?;
                Err(Error::Incomplete(failure.failed))
            }
            Stage::Within if self.line.starts_with(LAST_OF_PART) => {
                let lines = self.parts.last().map_or(0, |part| part.lines);
                self.seal(LAST_OF_PART, lines)?;
                Ok(Some(Item::EndOfPart))
            }
            Stage::Within => {
                self.digest.update(&self.line);
                if let Some(part) = self.parts.last_mut() {
                    part.lines += 1;
                }
                Ok(Some(Item::Line(self.line.strip_suffix(b"\n").unwrap_or(&self.line))))
            }
            Stage::Between => self.begin_part(),
            Stage::Ended(_) => Ok(None),
        }
    }

    /// The contents of the backup, once all of it was read.
    ///
    /// # Errors
    /// As [`Reader::next_item`].
    pub fn finish(mut self) -> Result<Summary, Error> {
        while self.next_item()?.is_some() {}
        let Stage::Ended(sha256) = self.stage else { return Err(Error::Changed) };
        Ok(Summary { head: self.head, objects: self.objects, parts: self.parts, sha256 })
    }

    /// The first line.
    pub fn head(&self) -> &Head {
        &self.head
    }

    fn read_line(&mut self) -> Result<(), Error> {
        self.lines += 1;
        self.line.clear();
        self.source.by_ref().take(LONGEST).read_until(b'\n', &mut self.line)?;
        if self.line.last() == Some(&b'\n') {
            return Ok(());
        }
        Err(match self.line.len() as u64 {
            LONGEST => self.damaged("too long"),
            _ => Error::CutShort { objects: self.objects },
        })
    }

    fn object(&mut self) -> Result<Entry, Error> {
        self.digest.update(&self.line);
        self.objects += 1;
        let entry = parse(&self.line).ok_or_else(|| self.damaged("no object"))?;
        if self.last.as_ref().is_some_and(|last| *last >= entry.key) {
            return Err(self.damaged("an object out of order"));
        }
        self.last = Some(entry.key.clone());
        Ok(entry)
    }

    fn begin_part(&mut self) -> Result<Option<Item<'_>>, Error> {
        let begun = self.line.starts_with(PART).then(|| serde_json::from_slice(&self.line));
        let Some(Ok(PartLine { part, about })) = begun else {
            return Err(self.damaged("no part begins here"));
        };
        if self.head.parts.get(self.parts.len()) != Some(&part) {
            return Err(self.damaged("a part that the first line does not have here"));
        }
        self.digest.update(&self.line);
        self.parts.push(PartSummary { name: part, about, lines: 0 });
        self.stage = Stage::Within;
        Ok(self.parts.last().map(|part| Item::Part(&part.name, &part.about)))
    }

    /// Compares the line after a section with the lines that were read.
    fn seal(&mut self, start: &[u8], count: u64) -> Result<(), Error> {
        let sha256 = hex(self.digest.clone());
        if self.line != last_line(start, count, &sha256) {
            return Err(self.damaged("the count or the checksum does not match the lines before"));
        }
        self.digest.update(&self.line);
        self.stage = Stage::Between;
        if self.parts.len() < self.head.parts.len() {
            return Ok(());
        }
        if !self.source.fill_buf()?.is_empty() {
            return Err(self.damaged("there is text after its end"));
        }
        self.stage = Stage::Ended(sha256);
        Ok(())
    }

    fn damaged(&self, what: impl Into<Cow<'static, str>>) -> Error {
        Error::Damaged { line: self.lines, what: what.into() }
    }

    /// The same for errors of the code that takes a part.
    fn refused(&self, error: PartError) -> Error {
        match error {
            PartError::Damaged(what) => self.damaged(what),
            PartError::Newer(what) => {
                let part = self.parts.last().map_or_else(String::new, |part| part.name.clone());
                Error::NewerPart { part, what }
            }
            PartError::Failed(what) => Error::Part(what),
        }
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

/// Reads a backup from its first line to its last, and keeps nothing. Parts are counted, not looked
/// into.
///
/// # Errors
/// [`Error`] if it is not whole and undamaged.
pub fn verify(path: &Path) -> Result<Summary, Error> {
    Source::file(path).open()?.finish()
}

/// Reads a backup from its first line to its last, has `parts` look into its parts, and keeps
/// nothing.
///
/// # Errors
/// [`Error`] if it is not whole and undamaged.
pub fn check(source: &Source, parts: &mut dyn Parts) -> Result<Summary, Error> {
    let mut reader = source.open()?;
    read_all(&mut reader, parts, |_| true)?;
    reader.finish()
}

/// Reads to the end: hands objects to `object`, until it returns false, and parts to `parts`. True
/// if the end was reached.
///
/// # Errors
/// As [`Reader::next_item`], or what `parts` says.
pub fn read_all<R: BufRead>(
    reader: &mut Reader<R>,
    parts: &mut dyn Parts,
    mut object: impl FnMut(Entry) -> bool,
) -> Result<bool, Error> {
    loop {
        let taken = match reader.next_item()? {
            None => return Ok(true),
            Some(Item::Object(entry)) => match object(entry) {
                true => Ok(()),
                false => return Ok(false),
            },
            Some(Item::Part(name, about)) => parts.begin(name, about),
            Some(Item::Line(line)) => parts.line(line),
            Some(Item::EndOfPart) => parts.end(),
        };
        taken.map_err(|error| reader.refused(error))?;
    }
}
