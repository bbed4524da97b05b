//! An answer that is read while it arrives: piece by piece, or line by line.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::dial::Connection;
use crate::error::Error;

/// The longest line that is read.
const LONGEST_LINE: usize = 32 << 20;

/// The body of an answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    pub(crate) code: StatusCode,
    pub(crate) server: String,
    pub(crate) path: String,
    pub(crate) body: Incoming,
    pub(crate) lines: Lines,
    pub(crate) _connection: Connection,
}

impl Stream {
    /// The status code of the answer.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        self.code
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Broken`] if the connection broke before the end of the answer.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.body.frame().await {
            let broken = |source| Error::Broken { server: self.server.clone(), source };
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// [`Stream::piece`], which must arrive in time.
    ///
    /// # Errors
    /// [`Error::Timeout`], or as [`Stream::piece`].
    pub async fn piece_within(&mut self, timeout: Duration) -> Result<Option<Bytes>, Error> {
        match tokio::time::timeout(timeout, self.piece()).await {
            Ok(piece) => piece,
            Err(_) => Err(Error::Timeout { server: self.server.clone(), timeout }),
        }
    }

    /// The next line that is not empty, without its end; `None` at the end. The line must arrive in
    /// time. Safe to cancel: no byte is lost.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Malformed`] if the line is too long, or as [`Stream::piece`].
    pub async fn line_within(&mut self, timeout: Duration) -> Result<Option<BytesMut>, Error> {
        let lines = async {
            loop {
                if let Some(line) = self.lines.next() {
                    return Ok(Some(line));
                }
                if self.lines.pending() > LONGEST_LINE {
                    let why = format!("a line is longer than {} MiB", LONGEST_LINE >> 20);
                    return Err(Error::Malformed { path: self.path.clone(), why });
                }
                match self.piece().await? {
                    Some(piece) => self.lines.push(&piece),
                    None => return Ok(None),
                }
            }
        };
        match tokio::time::timeout(timeout, lines).await {
            Ok(line) => line,
            Err(_) => Err(Error::Timeout { server: self.server.clone(), timeout }),
        }
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// How many bytes at the front are known to hold no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, data: &Bytes) {
        self.buffer.extend_from_slice(data);
    }

    fn pending(&self) -> usize {
        self.buffer.len()
    }

    fn next(&mut self) -> Option<BytesMut> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
            let Some(found) = found else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + found);
            self.buffer.advance(1);
            self.searched = 0;
            if !line.is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_arrive(
            lines in prop::collection::vec("[a-z]{1,8}", 0..8),
            cuts in prop::collection::vec(1..5usize, 0..40),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut bytes = text.as_bytes();
            let mut reader = Lines::default();
            let mut read = Vec::new();
            let mut cuts = cuts.into_iter();
            while !bytes.is_empty() {
                let cut = cuts.next().unwrap_or(bytes.len()).min(bytes.len());
                let (now, later) = bytes.split_at(cut);
                reader.push(&Bytes::copy_from_slice(now));
                bytes = later;
                while let Some(line) = reader.next() {
                    read.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            prop_assert_eq!(read, lines);
            prop_assert_eq!(reader.pending(), 0);
        }
    }
}
