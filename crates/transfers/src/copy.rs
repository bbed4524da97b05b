//! Copies one file: reads it, writes it to a draft, reads the draft back, compares checksums, and
//! only then gives the file its name.
//!
//! The file survives a power failure once the caller has synced the storage: syncing many files
//! together takes hardly longer than one.

use std::cell::Cell;
use std::io::Read;
use std::sync::atomic::{AtomicI64, Ordering};

use md5::{Digest, Md5};

use super::store::{self, Opened, Plan};
use super::{Fault, Job};

/// The size of the copy buffer: small enough to stay in the processor's cache.
const BUFFER_SIZE: usize = 256 << 10;

thread_local! {
    /// The copy buffer of this thread.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The reason why a file could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source could not be read.
    #[error("source {rse}: {why}")]
    Source {
        /// The RSE.
        rse: String,
        /// The reason.
        why: String,
    },
    /// The file at the source is missing, or differs from the catalog.
    #[error("source {rse}: {why}")]
    Differs {
        /// The RSE.
        rse: String,
        /// The reason.
        why: String,
        /// The kind of fault.
        fault: Fault,
    },
    /// The destination could not be written, or the copy differs from the source.
    #[error("destination {rse}: {why}")]
    Destination {
        /// The RSE.
        rse: String,
        /// The reason.
        why: String,
    },
    /// The copy was cancelled: it is no longer needed, or its lease is lost.
    #[error("the copy was cancelled")]
    Cancelled,
}

/// The size and the checksums of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Its length.
    pub bytes: u64,
    /// The Adler-32 checksum, eight hexadecimal digits.
    pub adler32: String,
    /// The MD5 checksum, 32 hexadecimal digits, if it was requested.
    pub md5: Option<String>,
}

/// Computes the size and the checksums of a file piece by piece.
pub struct Adding {
    bytes: u64,
    adler32: simd_adler32::Adler32,
    md5: Option<Md5>,
}

impl std::fmt::Debug for Adding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Adding").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Adding {
    /// Starts a computation. MD5 is slow, so it is computed only if `md5` is set.
    #[must_use]
    pub fn new(md5: bool) -> Self {
        Self { bytes: 0, adler32: simd_adler32::Adler32::new(), md5: md5.then(Md5::new) }
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.adler32.write(piece);
        if let Some(md5) = &mut self.md5 {
            md5.update(piece);
        }
    }

    /// The size and the checksums of all pieces.
    #[must_use]
    pub fn sums(self) -> Sums {
        Sums {
            bytes: self.bytes,
            adler32: format!("{:08x}", self.adler32.finish()),
            md5: self.md5.map(|md5| hex::encode(md5.finalize())),
        }
    }
}

/// How a file differs from the size and checksums in the catalog, if it does.
#[must_use]
pub fn differs(
    sums: &Sums,
    bytes: i64,
    adler32: Option<&str>,
    md5: Option<&str>,
) -> Option<String> {
    if i64::try_from(sums.bytes) != Ok(bytes) {
        return Some(format!("size is {} bytes, expected {bytes}", sums.bytes));
    }
    let same = |found: &str, expected: &str| {
        found.trim_start_matches('0').eq_ignore_ascii_case(expected.trim_start_matches('0'))
    };
    if let Some(expected) = adler32.filter(|expected| !same(&sums.adler32, expected)) {
        return Some(format!("adler32 checksum is {}, expected {expected}", sums.adler32));
    }
    match (&sums.md5, md5) {
        (Some(found), Some(expected)) if !same(found, expected) => {
            Some(format!("md5 checksum is {found}, expected {expected}"))
        }
        _ => None,
    }
}

fn read_and_sum(
    mut from: impl Read,
    md5: bool,
    stop: &dyn Fn() -> bool,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Result<Sums, std::io::Error>, Error> {
    let mut adding = Adding::new(md5);
    let mut piece = BUFFER.take();
    piece.resize(BUFFER_SIZE, 0);
    let ended = loop {
        if stop() {
            break Err(Error::Cancelled);
        }
        match from.read(&mut piece) {
            Ok(0) => break Ok(Ok(())),
            Ok(read) => {
                adding.add(&piece[..read]);
                if let Err(error) = each(&piece[..read]) {
                    break Err(error);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Ok(Err(error)),
        }
    };
    BUFFER.set(piece);
    Ok(ended?.map(|()| adding.sums()))
}

/// Reads a file to its end and computes its size and checksums.
pub fn sums(file: impl Read, md5: bool) -> Result<Sums, std::io::Error> {
    read_and_sum(file, md5, &|| false, |_| Ok(()))
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Copies a file. `moved` counts the bytes copied so far. Returns [`Error::Cancelled`] when `stop`
/// returns true. A repeated attempt succeeds at once if an earlier one has completed the copy.
pub fn copy(
    opened: &mut Opened<'_>,
    job: &Job,
    moved: &AtomicI64,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let wrong_source = |why: String| Error::Source { rse: job.source.rse.clone(), why };
    let wrong_destination =
        |why: String| Error::Destination { rse: job.destination.rse.clone(), why };
    let differing =
        |why: String, fault: Fault| Error::Differs { rse: job.source.rse.clone(), why, fault };
    let at_source = |error: store::Error| match error {
        store::Error::Missing(_) => differing(error.to_string(), Fault::Missing),
        store::Error::NoFile(_) => differing(error.to_string(), Fault::Wrong),
        other => wrong_source(other.to_string()),
    };
    let at_destination = |error: store::Error| wrong_destination(error.to_string());
    if stop() {
        return Err(Error::Cancelled);
    }
    let from = opened.at(&job.source).map_err(at_source)?;
    let to = opened.at(&job.destination).map_err(at_destination)?;
    let (adler32, md5) = (job.adler32.as_deref(), job.md5.as_deref());
    let differs = |sums: &Sums| differs(sums, job.bytes, adler32, md5);

    // An earlier attempt may have completed the copy and died before it reported.
    if job.attempt > 1
        && let Ok((file, length)) = to.read(&job.destination.path)
        && i64::try_from(length) == Ok(job.bytes)
        && (adler32.is_some() || md5.is_some())
        && let Ok(sums) = read_and_sum(file, md5.is_some(), stop, |_| Ok(()))?
        && differs(&sums).is_none()
    {
        moved.store(job.bytes, Ordering::Release);
        return Ok(());
    }
    let (file, length) = from.read(&job.source.path).map_err(at_source)?;
    if i64::try_from(length) != Ok(job.bytes) {
        let why = format!("size is {length} bytes, expected {}", job.bytes);
        return Err(differing(why, Fault::Wrong));
    }
    let tag = format!("{}-{}", job.request, job.attempt);
    let plan = Plan { tag, bytes: length, new: false };
    let mut draft = to.write(&job.destination.path, &plan).map_err(at_destination)?;
    let read = read_and_sum(file, md5.is_some(), stop, |piece| {
        let so_far = moved.fetch_add(piece.len() as i64, Ordering::AcqRel) + piece.len() as i64;
        if so_far > job.bytes {
            let why = format!("size is more than {so_far} bytes, expected {}", job.bytes);
            return Err(differing(why, Fault::Wrong));
        }
        draft.add(piece).map_err(at_destination)
    })?;
    let sent = read.map_err(|error| wrong_source(error.to_string()))?;
    if let Some(why) = differs(&sent) {
        return Err(differing(why, Fault::Wrong));
    }
    draft.seal().map_err(at_destination)?;
    let back = draft.read_back().map_err(at_destination)?;
    let arrived = read_and_sum(back, md5.is_some(), stop, |_| Ok(()))?
        .map_err(|error| wrong_destination(error.to_string()))?;
    if arrived != sent {
        draft.reject();
        return Err(wrong_destination(
            "the copy that was read back differs from the source".to_owned(),
        ));
    }
    if stop() {
        return Err(Error::Cancelled);
    }
    draft.keep().map_err(at_destination)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::End;
    use super::super::allowed::Allowed;
    use super::super::credential::Credentials;
    use super::super::store::Access;
    use super::*;
    use crate::did::Did;
    use crate::protocol::Protocol;

    fn end(rse: &str, root: &Path) -> End {
        let Value::Object(body) = json!({"prefix": root.display().to_string()}) else {
            unreachable!()
        };
        let protocol = Protocol::read("file", &body).unwrap();
        End { rse: rse.to_owned(), protocol: Arc::new(protocol), path: "s/f".to_owned() }
    }

    fn job(from: &Path, to: &Path, content: &[u8]) -> Job {
        let mut adding = Adding::new(true);
        adding.add(content);
        let sums = adding.sums();
        Job {
            request: 1,
            attempt: 1,
            did: Did::new("s", "f"),
            bytes: content.len() as i64,
            adler32: Some(sums.adler32),
            md5: sums.md5,
            source: end("SITE-A", from),
            destination: end("SITE-B", to),
        }
    }

    fn run(job: &Job) -> Result<i64, String> {
        let moved = AtomicI64::new(0);
        let access = Access::new(Credentials::new(), Allowed::anywhere());
        let done = copy(&mut Opened::new(&access), job, &moved, &|| false);
        done.map(|()| moved.load(Ordering::Acquire)).map_err(|error| error.to_string())
    }

    fn left(at: &Path) -> usize {
        std::fs::read_dir(at.join("s")).map_or(0, Iterator::count)
    }

    #[test]
    fn a_file_that_differs_from_the_catalog_is_not_copied() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let content = b"0123456789".repeat(300_000);
        std::fs::create_dir(from.path().join("s")).unwrap();
        std::fs::write(from.path().join("s/f"), &content).unwrap();
        let good = job(from.path(), to.path(), &content);
        assert_eq!(run(&good), Ok(content.len() as i64));
        assert_eq!(std::fs::read(to.path().join("s/f")).unwrap(), content);
        // A second attempt without the source: the copy is complete already.
        std::fs::remove_file(from.path().join("s/f")).unwrap();
        let good = Job { attempt: 2, ..good };
        assert!(run(&good).is_ok());
        std::fs::remove_file(to.path().join("s/f")).unwrap();
        assert!(run(&good).unwrap_err().contains("is not there"));
        // A truncated source, and one with other content.
        std::fs::write(from.path().join("s/f"), &content[..5]).unwrap();
        assert!(
            run(&good).unwrap_err().contains("source SITE-A: size is 5 bytes, expected 3000000")
        );
        let mut lie = content.clone();
        lie[7] = b'x';
        std::fs::write(from.path().join("s/f"), &lie).unwrap();
        assert!(run(&good).unwrap_err().contains("adler32"));
        let sly = Job { adler32: None, ..good.clone() };
        assert!(run(&sly).unwrap_err().contains("md5"));
        assert_eq!(left(to.path()), 0);
    }

    #[test]
    fn a_cancelled_copy_leaves_no_files() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("s")).unwrap();
        std::fs::write(from.path().join("s/f"), b"abc").unwrap();
        let job = job(from.path(), to.path(), b"abc");
        let access = Access::new(Credentials::new(), Allowed::anywhere());
        let stopped = copy(&mut Opened::new(&access), &job, &AtomicI64::new(0), &|| true);
        assert!(matches!(stopped, Err(Error::Cancelled)));
        assert_eq!(left(to.path()), 0);
    }

    #[test]
    fn checksums_compare_without_leading_zeros_and_case() {
        let mut adding = Adding::new(false);
        adding.add(b"");
        let sums = adding.sums();
        assert_eq!(sums.adler32, "00000001");
        assert_eq!(differs(&sums, 0, Some("1"), None), None);
        assert!(differs(&sums, 0, Some("2"), None).is_some());
        assert!(differs(&sums, 1, None, None).is_some());
    }
}
