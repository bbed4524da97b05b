//! Parts of a backup besides the objects: the data of another engine, as lines of text.
//!
//! The owner of a part defines its lines: JSON, one value a line, none beginning with `{"lines":`
//! or `{"failed":`. This module counts them and adds the checksum. If a part cannot be read to its
//! end, the file ends with a line `{"failed": REASON}`, which every reader refuses.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use serde_json::{Value, json};
use sha2::Digest;

use super::{Chunks, FAILED, LAST_OF_PART, hex, last_line};

/// One part, as it is at the moment of the backup.
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Facts that a reader needs before the lines.
    pub about: Value,
    /// Pieces of whole lines. An error ends the backup, which then cannot be restored.
    pub lines: BoxStream<'static, Result<Bytes, String>>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Data besides the objects that belongs into every backup.
pub trait PartSource: Send + Sync + std::fmt::Debug {
    /// Fixes the moment to be shown and holds writes back, for a second at most, until the objects'
    /// moment is fixed too.
    fn hold(&self) -> BoxFuture<'_, Result<Box<dyn HeldPart>, String>>;

    /// Looks for damage. One sentence for each finding.
    ///
    /// # Errors
    /// Why it could not be looked at.
    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, String>>;
}

/// A part whose moment is fixed. Dropping it lets writes go on and gives the part up.
pub trait HeldPart: Send {
    /// The objects' moment is fixed as well: writes go on, and the part can be read.
    fn release(self: Box<Self>) -> Part;
}

/// Why a part was not read or not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// A line is not what it should be.
    #[error("{0}")]
    Damaged(String),
    /// It needs a newer Mainstay.
    #[error("{0}")]
    Newer(String),
    /// The target of the restore failed.
    #[error("{0}")]
    Failed(String),
}

/// Takes the parts of a backup that is read: to check them, or to restore them.
pub trait Parts: Send {
    /// Before anything is restored, objects included. `restore` names the restore, and is the same
    /// when one that broke off is done again. Checks do nothing here.
    ///
    /// # Errors
    /// [`PartError::Failed`] if parts cannot be restored.
    fn prepare(&mut self, restore: &str) -> Result<(), PartError> {
        let _ = restore;
        Ok(())
    }

    /// A part begins.
    ///
    /// # Errors
    /// [`PartError`] if it cannot be taken.
    fn begin(&mut self, name: &str, about: &Value) -> Result<(), PartError>;

    /// The next line of the part, without its end.
    ///
    /// # Errors
    /// [`PartError`] if it cannot be taken.
    fn line(&mut self, line: &[u8]) -> Result<(), PartError>;

    /// The part is whole.
    ///
    /// # Errors
    /// [`PartError`] if something is missing in it.
    fn end(&mut self) -> Result<(), PartError>;

    /// The file is whole and all objects are restored.
    ///
    /// # Errors
    /// [`PartError::Failed`] if what was restored cannot be put to use.
    fn finish(&mut self) -> Result<(), PartError> {
        Ok(())
    }
}

impl Chunks {
    fn begin_part(&mut self, name: &str, about: &Value) -> Bytes {
        self.lines = 0;
        let line = format!("{{\"part\":{},\"about\":{about}}}\n", json!(name));
        self.digest.update(&line);
        line.into()
    }

    fn add_lines(&mut self, piece: &[u8]) {
        self.lines += piece.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        self.digest.update(piece);
    }

    fn end_part(&mut self) -> Bytes {
        let line = last_line(LAST_OF_PART, self.lines, &hex(self.digest.clone()));
        self.digest.update(&line);
        line.into()
    }
}

/// The last line of a backup that could not be completed.
fn failure(why: &str) -> Bytes {
    let mut line = FAILED.to_vec();
    line.extend_from_slice(format!("{}}}\n", json!(why)).as_bytes());
    line.into()
}

/// A whole backup, piece by piece: the objects, then each part. The error of a part is its last
/// line: an aborted stream could not carry the reason.
pub fn stream(
    mut chunks: Chunks,
    parts: Vec<Part>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    if let Some(head) = &mut chunks.head {
        head.parts = parts.iter().map(|part| part.name.to_owned()).collect();
    }
    let start = (chunks, parts.into_iter(), None::<BoxStream<'static, Result<Bytes, String>>>);
    stream::try_unfold(start, |(mut chunks, mut rest, mut open)| async move {
        if let Some(piece) = chunks.next() {
            return Ok(Some((piece, (chunks, rest, open))));
        }
        let piece = match &mut open {
            Some(lines) => match lines.next().await {
                Some(Ok(piece)) => {
                    chunks.add_lines(&piece);
                    piece
                }
                Some(Err(error)) => {
                    tracing::error!(error, "backup failed; its last line has the reason");
                    (open, rest) = (None, Vec::new().into_iter());
                    failure(&error)
                }
                None => {
                    open = None;
                    chunks.end_part()
                }
            },
            None => match rest.next() {
                Some(part) => {
                    open = Some(part.lines);
                    chunks.begin_part(part.name, &part.about)
                }
                None => return Ok(None),
            },
        };
        Ok(Some((piece, (chunks, rest, open))))
    })
}
