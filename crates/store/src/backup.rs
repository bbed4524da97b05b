//! Backups: everything a store keeps, as one file that every backend can write and read.
//!
//! The file is text. Its first line says what it is; then comes a line for each object, in the
//! order of collections and paths, and a line with their number and the SHA-256 of everything
//! before. Parts that others bring along (the rule catalog) follow in the same way: a line that
//! names the part, its lines, and their number with the SHA-256 of everything before. The first
//! line lists the parts, so a file that was cut short, even between two parts, is recognised before
//! anything is restored, and so is a file of a newer format.
//!
//! Objects are written byte for byte, but without their versions, which the store that takes them
//! assigns. Objects that concern one run of one cluster (such as leases) are left out.
//!
//! Format 1 is the same without parts.
//!
//! Enter at [`stream`] to write, at [`check`] to read, and at [`restore_from`] to restore.

mod part;
mod read;
mod restore;

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::check::INTERNAL;
use crate::object::{Key, Record, Resource};
use crate::objects;
use crate::snapshot::Snapshot;

pub use part::{HeldPart, Part, PartError, PartSource, Parts, stream};
pub use read::{Entry, Item, Reader, Source, check, read_all, verify};
pub use restore::{
    Filled, fill_from, is_untouched, may_take, restore, restore_from, unfinished, unfinished_in,
};

/// The newest format this version writes and reads.
pub const FORMAT: u64 = 2;
/// About how many bytes are made at once.
const CHUNK: usize = 64 << 10;

/// Why a backup was not read or not restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("the backup cannot be read")]
    Io(#[from] std::io::Error),
    /// It is something else.
    #[error("this is not a backup made by mainstay")]
    Foreign,
    /// It was written by a newer Mainstay.
    #[error(
        "the backup has format {found}, but this version reads up to {FORMAT}: use a newer mainstay"
    )]
    Newer {
        /// Its format.
        found: u64,
    },
    /// It ends too early.
    #[error(
        "the backup is cut short after {objects} objects: it was not written or copied to its end"
    )]
    CutShort {
        /// How many objects were whole.
        objects: u64,
    },
    /// It could not be completed when it was made.
    #[error("the backup is incomplete: {0}")]
    Incomplete(String),
    /// It is not as it was written.
    #[error("the backup is damaged at line {line}: {what}")]
    Damaged {
        /// Where.
        line: u64,
        /// The format that was found.
        what: Cow<'static, str>,
    },
    /// A part of it was written by a newer Mainstay, or by one with more parts.
    #[error("part {part} of the backup cannot be read: {what}; use a newer mainstay")]
    NewerPart {
        /// The part.
        part: String,
        /// The part that is newer.
        what: String,
    },
    /// It is encrypted, and the key at hand does not open it.
    #[error("{0}")]
    Sealed(String),
    /// A part could not be restored.
    #[error("{0}")]
    Part(String),
    /// It is not what it was when it was checked.
    #[error("the backup changed while it was restored")]
    Changed,
    /// The store is not empty. It was not changed.
    #[error(
        "the store is not empty: it has {objects} objects, {first} among them; restore into an empty one"
    )]
    NotEmpty {
        /// How many there are.
        objects: usize,
        /// One of them.
        first: Key,
    },
    /// The store did not take it. The next attempt removes the objects restored so far.
    #[error("writing the backup to the store failed")]
    Store(#[from] objects::Error),
}

/// The first line of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    mainstay: String,
    format: u64,
    /// The revision of the store it was taken from.
    pub revision: u64,
    /// When it was taken.
    pub time: Timestamp,
    /// By which version of Mainstay.
    pub version: String,
    /// Its parts besides the objects, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

/// The contents of a whole backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its first line.
    pub head: Head,
    /// How many objects it has.
    pub objects: u64,
    /// How many lines each part has, and what is said about it.
    pub parts: Vec<PartSummary>,
    /// The SHA-256 of all but the last line, in hexadecimal digits.
    pub sha256: String,
}

/// The contents of a part of a whole backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    /// Its name.
    pub name: String,
    /// Its entry in the first line.
    pub about: serde_json::Value,
    /// How many lines it has.
    pub lines: u64,
}

/// The objects of a backup in the making: yields the file piece by piece, each made when it is asked for.
#[derive(Debug)]
pub struct Chunks {
    snapshot: Snapshot,
    head: Option<Head>,
    /// The collection that is being written, and the path of its last object written.
    collection: usize,
    after: Option<Key>,
    objects: u64,
    digest: Sha256,
    ended: bool,
    /// How many lines the part that is being written has so far.
    lines: u64,
}

impl Chunks {
    /// A backup of `snapshot`, taken at `time`.
    #[must_use]
    pub fn new(snapshot: Snapshot, time: Timestamp) -> Self {
        let head = Head {
            mainstay: "backup".to_owned(),
            format: FORMAT,
            revision: snapshot.revision.0,
            time,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parts: Vec::new(),
        };
        Self {
            snapshot,
            head: Some(head),
            collection: 0,
            after: None,
            objects: 0,
            digest: Sha256::new(),
            ended: false,
            lines: 0,
        }
    }

    /// Writes objects until the piece is long enough. False once there are no more.
    fn fill(&mut self, piece: &mut Vec<u8>) -> bool {
        while let Some((resource, collection)) = self.snapshot.collections.get(self.collection) {
            if !is_left_out(resource) {
                let after = self.after.take();
                for record in collection.range(None, after.as_ref().map(Key::path)) {
                    line(record, piece);
                    self.objects += 1;
                    if piece.len() >= CHUNK {
                        self.after = Some(record.key().clone());
                        return true;
                    }
                }
            }
            self.collection += 1;
        }
        false
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut piece = Vec::with_capacity(CHUNK + CHUNK / 4);
        if let Some(head) = self.head.take() {
            serde_json::to_writer(&mut piece, &head).expect("a head always encodes");
            piece.push(b'\n');
        }
        self.ended = !self.fill(&mut piece);
        self.digest.update(&piece);
        if self.ended {
            let last = last_line(LAST, self.objects, &hex(self.digest.clone()));
            self.digest.update(&last);
            piece.extend_from_slice(&last);
        }
        Some(piece.into())
    }
}

/// The line after the objects, or after the lines of a part.
fn last_line(start: &[u8], count: u64, sha256: &str) -> Vec<u8> {
    let mut line = start.to_vec();
    line.extend_from_slice(format!("{count},\"sha256\":\"{sha256}\"}}\n").as_bytes());
    line
}

/// The beginning of the line after those of the objects.
const LAST: &[u8] = b"{\"objects\":";
/// The beginning of the first line of a part.
const PART: &[u8] = b"{\"part\":";
/// The beginning of the line after those of a part.
const LAST_OF_PART: &[u8] = b"{\"lines\":";
/// The beginning of the last line of a backup that could not be completed.
const FAILED: &[u8] = b"{\"failed\":";
/// Separates the fields of a line from its object. It cannot occur before: within a text its quotes
/// would be escaped.
const OBJECT: &[u8] = b",\"object\":";

/// The fields of a line before its object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place<'a> {
    #[serde(borrow)]
    resource: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    path: std::borrow::Cow<'a, str>,
    /// Where in the object its version is missing.
    hole: usize,
}

fn line(record: &Record, piece: &mut Vec<u8>) {
    let (key, body) = (record.key(), record.body());
    let place = Place {
        resource: key.resource().as_str().into(),
        path: key.path().into(),
        hole: body.hole(),
    };
    serde_json::to_writer(&mut *piece, &place).expect("a place always encodes");
    piece.pop();
    piece.extend_from_slice(OBJECT);
    piece.extend_from_slice(body.json());
    piece.extend_from_slice(b"}\n");
}

/// Collections that concern one run of one cluster, or one attempt to restore.
fn is_left_out(resource: &Resource) -> bool {
    let plural = resource.as_str().strip_suffix(INTERNAL).and_then(|rest| rest.strip_suffix('.'));
    matches!(plural, Some("leases" | "fences" | "ticks" | "servers" | "restores" | "datakeys"))
}

fn hex(digest: Sha256) -> String {
    hex::encode(digest.finalize())
}
