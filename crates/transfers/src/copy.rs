//! Copies one file: reads it, writes it, reads it back, compares checksums, and only then names it.
//!
//! The named file survives a power failure once the storage was synced, which is left to the caller:
//! syncing many files together takes hardly longer than one.

use std::cell::Cell;
use std::io::Read;
use std::sync::atomic::{AtomicI64, Ordering};

use md5::{Digest, Md5};

use super::store::{self, Opened, Plan};
use super::{Fault, Job};

/// How much is moved at a time: little enough to stay near the processor.
const PIECE: usize = 256 << 10;

thread_local! {
    /// Where this thread keeps what it moves.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Why a file could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source could not be read.
    #[error("at the source {rse} {why}")]
    Source {
        /// The RSE.
        rse: String,
        /// What is wrong.
        why: String,
    },
    /// The source has another file than the catalog says, or none.
    #[error("at the source {rse} {why}")]
    Differs {
        /// The RSE.
        rse: String,
        /// What is wrong.
        why: String,
        /// The same for programs.
        fault: Fault,
    },
    /// What arrived is not what was sent.
    #[error("at the destination {rse} {why}")]
    Destination {
        /// The RSE.
        rse: String,
        /// What is wrong.
        why: String,
    },
    /// Nobody wants it any more, or somebody else is at it.
    #[error("it was given up")]
    Cancelled,
}

/// What a file adds up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Its length.
    pub bytes: u64,
    /// Eight hexadecimal digits.
    pub adler32: String,
    /// Thirty-two hexadecimal digits, where it was asked for.
    pub md5: Option<String>,
}

/// Adds up a file piece by piece.
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
    /// Begins; MD5 takes longer and is added up only where it is needed.
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

    /// What it all adds up to.
    #[must_use]
    pub fn sums(self) -> Sums {
        Sums {
            bytes: self.bytes,
            adler32: format!("{:08x}", self.adler32.finish()),
            md5: self.md5.map(|md5| hex::encode(md5.finalize())),
        }
    }
}

/// What is wrong with a file, if anything, by what the catalog says about it.
#[must_use]
pub fn differs(
    sums: &Sums,
    bytes: i64,
    adler32: Option<&str>,
    md5: Option<&str>,
) -> Option<String> {
    if i64::try_from(sums.bytes) != Ok(bytes) {
        return Some(format!("are {} bytes instead of {bytes}", sums.bytes));
    }
    let same = |found: &str, said: &str| {
        found.trim_start_matches('0').eq_ignore_ascii_case(said.trim_start_matches('0'))
    };
    if let Some(said) = adler32.filter(|said| !same(&sums.adler32, said)) {
        return Some(format!("the adler32 checksum is {} instead of {said}", sums.adler32));
    }
    match (&sums.md5, md5) {
        (Some(found), Some(said)) if !same(found, said) => {
            Some(format!("the md5 checksum is {found} instead of {said}"))
        }
        _ => None,
    }
}

fn add_up(
    mut from: impl Read,
    md5: bool,
    stop: &dyn Fn() -> bool,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Result<Sums, std::io::Error>, Error> {
    let mut adding = Adding::new(md5);
    let mut piece = ROOM.take();
    piece.resize(PIECE, 0);
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
    ROOM.set(piece);
    Ok(ended?.map(|()| adding.sums()))
}

/// What a file adds up to, read to its end.
pub fn sums(file: impl Read, md5: bool) -> Result<Sums, std::io::Error> {
    add_up(file, md5, &|| false, |_| Ok(()))
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Moves a file. `moved` tells how far it is; it gives up when `stop` says so. Done twice, the second time
/// finds it there.
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

    // Somebody may have finished it, and died before telling; not if this is the first attempt.
    if job.attempt > 1
        && let Ok((file, length)) = to.read(&job.destination.path)
        && i64::try_from(length) == Ok(job.bytes)
        && (adler32.is_some() || md5.is_some())
        && let Ok(sums) = add_up(file, md5.is_some(), stop, |_| Ok(()))?
        && differs(&sums).is_none()
    {
        moved.store(job.bytes, Ordering::Release);
        return Ok(());
    }
    let (file, length) = from.read(&job.source.path).map_err(at_source)?;
    if i64::try_from(length) != Ok(job.bytes) {
        let why = format!("are {length} bytes instead of {}", job.bytes);
        return Err(differing(why, Fault::Wrong));
    }
    let tag = format!("{}-{}", job.request, job.attempt);
    let plan = Plan { tag, bytes: length, new: false };
    let mut draft = to.write(&job.destination.path, &plan).map_err(at_destination)?;
    let read = add_up(file, md5.is_some(), stop, |piece| {
        let so_far = moved.fetch_add(piece.len() as i64, Ordering::AcqRel) + piece.len() as i64;
        if so_far > job.bytes {
            return Err(differing(format!("are more than {} bytes", job.bytes), Fault::Wrong));
        }
        draft.add(piece).map_err(at_destination)
    })?;
    let sent = read.map_err(|error| wrong_source(error.to_string()))?;
    if let Some(why) = differs(&sent) {
        return Err(differing(why, Fault::Wrong));
    }
    draft.seal().map_err(at_destination)?;
    let back = draft.read_back().map_err(at_destination)?;
    let arrived = add_up(back, md5.is_some(), stop, |_| Ok(()))?
        .map_err(|error| wrong_destination(error.to_string()))?;
    if arrived != sent {
        draft.reject();
        return Err(wrong_destination("what was written does not read back the same".to_owned()));
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
    fn what_arrives_is_what_the_catalog_says_or_nothing_does() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let content = b"0123456789".repeat(300_000);
        std::fs::create_dir(from.path().join("s")).unwrap();
        std::fs::write(from.path().join("s/f"), &content).unwrap();
        let good = job(from.path(), to.path(), &content);
        assert_eq!(run(&good), Ok(content.len() as i64));
        assert_eq!(std::fs::read(to.path().join("s/f")).unwrap(), content);
        // Again, without the source: it is there already.
        std::fs::remove_file(from.path().join("s/f")).unwrap();
        let good = Job { attempt: 2, ..good };
        assert!(run(&good).is_ok());
        std::fs::remove_file(to.path().join("s/f")).unwrap();
        assert!(run(&good).unwrap_err().contains("is not there"));
        // A source that is cut short, and one whose content is another.
        std::fs::write(from.path().join("s/f"), &content[..5]).unwrap();
        assert!(run(&good).unwrap_err().contains("5 bytes instead of 3000000"));
        let mut lie = content.clone();
        lie[7] = b'x';
        std::fs::write(from.path().join("s/f"), &lie).unwrap();
        assert!(run(&good).unwrap_err().contains("adler32"));
        let sly = Job { adler32: None, ..good.clone() };
        assert!(run(&sly).unwrap_err().contains("md5"));
        assert_eq!(left(to.path()), 0);
    }

    #[test]
    fn a_copy_that_is_given_up_leaves_nothing() {
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
