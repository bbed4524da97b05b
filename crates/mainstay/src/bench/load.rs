//! The load generator: does as little work as possible between two requests.

use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::Error;
use crate::client::{APPLY_PATCH, JSON};
use mainstay_client::{Dialer, Transport};

/// One kept-alive HTTP/1.1 connection.
pub(super) struct Connection {
    stream: Box<dyn Transport>,
    buffer: Vec<u8>,
    filled: usize,
    decoded: Vec<u8>,
}

/// The constant part of requests, so that only paths and bodies are made for each.
#[derive(Debug, Clone)]
pub(super) struct Template {
    prefix: String,
    host: String,
    authorization: String,
}

impl Template {
    pub(super) fn new(dialer: &Dialer, token: Option<&str>) -> Self {
        Self {
            prefix: dialer.address().prefix().to_owned(),
            host: dialer.address().authority().to_owned(),
            authorization: token
                .map(|token| format!("Authorization: Bearer {token}\r\n"))
                .unwrap_or_default(),
        }
    }

    /// A request with its body: an object, or for PATCH a configuration to be applied. It has a
    /// user agent like every client, because the server records the writer of each field.
    pub(super) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let Self { prefix, host, authorization } = self;
        let content = match body {
            "" => String::new(),
            _ => {
                let kind = if method == "PATCH" { APPLY_PATCH } else { JSON };
                format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len())
            }
        };
        format!(
            "{method} {prefix}{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: mainstay-bench\r\n\
             Accept: application/json\r\n{authorization}{content}\r\n{body}"
        )
        .into_bytes()
    }
}

/// How the end of a body is known.
#[derive(Debug, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    code: u16,
    end: usize,
    length: Length,
}

/// The head of an answer, once it is whole.
fn head(bytes: &[u8]) -> Result<Option<Head>, Error> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Error::NotHttp)?;
    let mut lines = text.split("\r\n");
    let code = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|line| line.get(..3)?.parse().ok())
        .ok_or(Error::NotHttp)?;
    let mut length = Length::Known(0);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Error::NotHttp)?;
        if name.eq_ignore_ascii_case("content-length") {
            length = Length::Known(value.trim().parse().map_err(|_| Error::NotHttp)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            length = Length::Chunked;
        }
    }
    Ok(Some(Head { code, end: end + 4, length }))
}

/// Takes whole chunks off `bytes` into `body`: how many bytes were taken, and whether it was all.
fn chunks(bytes: &[u8], body: &mut Vec<u8>) -> Result<(usize, bool), Error> {
    let mut taken = 0;
    loop {
        let rest = &bytes[taken..];
        let Some(line) = memmem::find(rest, b"\r\n") else {
            return Ok((taken, false));
        };
        let size = std::str::from_utf8(&rest[..line])
            .ok()
            .and_then(|text| usize::from_str_radix(text.trim(), 16).ok())
            .ok_or(Error::NotHttp)?;
        let end = line + 2 + size;
        if rest.len() < end + 2 {
            return Ok((taken, false));
        }
        body.extend_from_slice(&rest[line + 2..end]);
        taken += end + 2;
        if size == 0 {
            return Ok((taken, true));
        }
    }
}

impl Connection {
    pub(super) async fn open(dialer: &Dialer) -> Result<Self, Error> {
        Ok(Self {
            stream: dialer.open().await?,
            buffer: vec![0; 64 << 10],
            filled: 0,
            decoded: Vec::new(),
        })
    }

    /// Sends a request and reads the whole answer; anything but success is an error.
    pub(super) async fn ask(&mut self, request: &[u8]) -> Result<&[u8], Error> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let head = self.head().await?;
        let code = head.code;
        let body: &[u8] = match head.length {
            Length::Known(length) => {
                let end = head.end + length;
                while self.filled < end {
                    self.read().await?;
                }
                self.filled = 0;
                &self.buffer[head.end..end]
            }
            Length::Chunked => {
                self.decoded.clear();
                let mut start = head.end;
                loop {
                    let (taken, done) =
                        chunks(&self.buffer[start..self.filled], &mut self.decoded)?;
                    start += taken;
                    if done {
                        break;
                    }
                    self.read().await?;
                }
                self.filled = 0;
                &self.decoded
            }
        };
        if (200..300).contains(&code) {
            return Ok(body);
        }
        Err(refused(code, request, body))
    }

    async fn head(&mut self) -> Result<Head, Error> {
        self.filled = 0;
        loop {
            self.read().await?;
            if let Some(head) = head(&self.buffer[..self.filled])? {
                return Ok(head);
            }
        }
    }

    async fn read(&mut self) -> Result<(), Error> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..]).await? {
            0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            read => {
                self.filled += read;
                Ok(())
            }
        }
    }

    /// Sends a watch request and waits for its head: from then on the watch is under way.
    pub(super) async fn watch(&mut self, request: &[u8]) -> Result<(), Error> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let head = self.head().await?;
        if head.code != 200 {
            return Err(refused(head.code, request, &self.buffer[head.end..self.filled]));
        }
        self.buffer.copy_within(head.end..self.filled, 0);
        self.filled -= head.end;
        Ok(())
    }

    /// Reads events until `count` stamps have come; notes how late each was, in microseconds.
    pub(super) async fn stamps(
        &mut self,
        count: usize,
        start: Instant,
        late: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let mut seen = 0;
        loop {
            let now = micros(start.elapsed());
            let used = stamps(&self.buffer[..self.filled], |stamp| {
                late.push(u32::try_from(now.saturating_sub(stamp)).unwrap_or(u32::MAX));
                seen += 1;
            });
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
            if seen >= count {
                return Ok(());
            }
            self.read().await?;
        }
    }
}

fn refused(code: u16, request: &[u8], body: &[u8]) -> Error {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(300).collect();
    Error::Refused { code, request: text(line), body: text(body) }
}

/// The prefix of the time of sending inside an object.
pub(super) const STAMP: &str = "\"sent\":\"";
const STAMP_DIGITS: usize = 16;

/// A moment as it is written into objects: microseconds since the start, of fixed width.
pub(super) fn stamp(moment: Duration) -> String {
    format!("{:0width$}", micros(moment), width = STAMP_DIGITS)
}

fn micros(moment: Duration) -> u64 {
    u64::try_from(moment.as_micros()).unwrap_or(u64::MAX)
}

/// Finds every whole stamp; returns the number of bytes that need not be searched again.
fn stamps(bytes: &[u8], mut found: impl FnMut(u64)) -> usize {
    let whole = STAMP.len() + STAMP_DIGITS;
    let mut used = 0;
    for at in memmem::find_iter(bytes, STAMP) {
        let Some(digits) = bytes.get(at + STAMP.len()..at + whole) else {
            return at;
        };
        let text = std::str::from_utf8(digits).unwrap_or_default();
        if let Ok(micros) = text.parse() {
            found(micros);
        }
        used = at + whole;
    }
    used.max(bytes.len().saturating_sub(STAMP.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn response_heads_are_parsed() {
        let known = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
        let expected = Head { code: 201, end: known.len() - 2, length: Length::Known(2) };
        assert_eq!(head(known).unwrap(), Some(expected));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(head(chunked).unwrap().unwrap().length, Length::Chunked);
        assert_eq!(head(b"HTTP/1.1 200 OK\r\n").unwrap(), None);
        assert!(head(b"HTTP/2 200\r\n\r\n").is_err());
    }

    #[test]
    fn chunks_are_joined() {
        let mut body = Vec::new();
        let text = b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        assert_eq!(chunks(text, &mut body).unwrap(), (text.len(), true));
        assert_eq!(body, b"abcd");
        assert_eq!(chunks(b"3\r\nab", &mut Vec::new()).unwrap(), (0, false));
    }

    proptest! {
        #[test]
        fn no_stamp_is_lost_or_seen_twice_however_bytes_arrive(
            times in prop::collection::vec(0..1_000_000u64, 0..8),
            cuts in prop::collection::vec(1..30usize, 0..64),
        ) {
            let text: String = times.iter().map(|time| format!("{{{STAMP}{time:016}\"}}\n")).collect();
            let mut bytes = text.as_bytes();
            let mut pending: Vec<u8> = Vec::new();
            let mut seen = Vec::new();
            let mut cuts = cuts.into_iter();
            while !bytes.is_empty() {
                let cut = cuts.next().unwrap_or(bytes.len()).min(bytes.len());
                pending.extend_from_slice(&bytes[..cut]);
                bytes = &bytes[cut..];
                let used = stamps(&pending, |time| seen.push(time));
                pending.drain(..used);
            }
            prop_assert_eq!(seen, times);
        }
    }
}
