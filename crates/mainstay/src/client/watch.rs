//! Watching: one stream of events ([`Watch`]), and a list that is kept current ([`Follow`]).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;

use super::status::Status;
use super::{Call, Client, Error};

/// The longest event that is read.
const LONGEST_EVENT: usize = 32 << 20;
/// How many times in a row a broken watch is opened again before it is given up.
const PATIENCE: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl EventType {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) kind: EventType,
    pub(crate) object: Value,
}

/// The events of one request; ends when the server ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    body: Incoming,
    lines: Lines,
}

impl Watch {
    async fn open(client: &Client, call: &Call) -> Result<Self, Error> {
        let body = client.stream(call).await?;
        let lines = Lines::default();
        Ok(Self { body, lines })
    }

    /// The next event, or `None` when the server has ended the watch.
    async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(line) = self.lines.next() {
                return serde_json::from_slice(&line).map(Some).map_err(malformed);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::Broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.lines.push(&data);
                    }
                }
            }
            if self.lines.pending() > LONGEST_EVENT {
                return Err(malformed("an event is too long"));
            }
        }
    }
}

fn malformed(why: impl ToString) -> Error {
    Error::Malformed { path: "a watch".to_owned(), why: why.to_string() }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    buffer: BytesMut,
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

/// What [`Follow::next`] gives.
#[derive(Debug)]
pub(crate) enum Change {
    /// The whole list, first, and again when the server had forgotten where we were.
    Listed(Value),
    Event(Event),
}

/// A list, and then every change to it, across ended watches and short outages.
#[derive(Debug)]
pub(crate) struct Follow<'a> {
    client: &'a Client,
    path: String,
    query: String,
    accept: &'static str,
    version: Option<String>,
    watch: Option<Watch>,
    ready: VecDeque<Change>,
    failures: u32,
}

impl<'a> Follow<'a> {
    /// Follows the collection at `path`; `query` holds selectors, encoded (`a=b&c=d`).
    pub(crate) fn new(
        client: &'a Client,
        path: String,
        query: String,
        accept: &'static str,
    ) -> Self {
        Self {
            client,
            path,
            query,
            accept,
            version: None,
            watch: None,
            ready: VecDeque::new(),
            failures: 0,
        }
    }

    /// The next change. Never ends by itself; an error means that following is over.
    pub(crate) async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            match self.step().await {
                Ok(()) => self.failures = 0,
                Err(error) if error.status().is_some_and(Status::is_expired) => {
                    self.version = None;
                    self.watch = None;
                }
                Err(error) => {
                    self.failures += 1;
                    // The first list is not retried: a wrong address must be said at once.
                    let begun = self.version.is_some() || self.failures > 1;
                    if !begun || !error.is_transient() || self.failures > PATIENCE {
                        return Err(error);
                    }
                    self.watch = None;
                    let pause = Duration::from_millis(100) * 2u32.pow(self.failures.min(6));
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        let Some(version) = self.version.clone() else {
            let list = self.list().await?;
            self.version = Some(version_of(&list).unwrap_or_default());
            self.ready.push_back(Change::Listed(list));
            return Ok(());
        };
        let watch = match &mut self.watch {
            Some(watch) => watch,
            None => {
                let path = with_query(
                    &self.path,
                    &[
                        &self.query,
                        &format!(
                            "watch=true&allowWatchBookmarks=true&timeoutSeconds=600&resourceVersion={}",
                            encode(&version)
                        ),
                    ],
                );
                let call = Call::get(path).accept(self.accept);
                self.watch.insert(Watch::open(self.client, &call).await?)
            }
        };
        match watch.next().await? {
            None => self.watch = None,
            Some(event) if event.kind == EventType::Error => {
                return Err(Status::from_event(event.object).into());
            }
            Some(event) => {
                if let Some(version) = version_of(&event.object) {
                    self.version = Some(version);
                }
                if event.kind != EventType::Bookmark {
                    self.ready.push_back(Change::Event(event));
                }
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Value, Error> {
        list(self.client, &self.path, &self.query, self.accept).await
    }
}

/// A whole collection, read in pages. A list that expires under way is read again at once.
pub(crate) async fn list(
    client: &Client,
    path: &str,
    query: &str,
    accept: &'static str,
) -> Result<Value, Error> {
    let mut whole: Option<Value> = None;
    let mut token = String::new();
    loop {
        let page = match token.as_str() {
            "" => with_query(path, &[query, "limit=500"]),
            token => {
                let rest = format!("limit=500&continue={}", encode(token));
                with_query(path, &[query, &rest])
            }
        };
        let answer = client.json(Call::get(page).accept(accept)).await;
        let mut answer = match answer {
            Err(error) if whole.is_some() && error.status().is_some_and(Status::is_expired) => {
                let all = Call::get(with_query(path, &[query])).accept(accept);
                return client.json(all).await;
            }
            answer => answer?,
        };
        token = answer["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        match &mut whole {
            None => whole = Some(answer),
            Some(whole) => {
                for field in ["items", "rows"] {
                    if let Some(more) = answer[field].as_array_mut() {
                        let more = std::mem::take(more);
                        if let Some(known) = whole[field].as_array_mut() {
                            known.extend(more);
                        }
                    }
                }
            }
        }
        if token.is_empty() {
            let mut whole = whole.unwrap_or_default();
            if let Some(metadata) = whole["metadata"].as_object_mut() {
                metadata.remove("continue");
                metadata.remove("remainingItemCount");
            }
            return Ok(whole);
        }
    }
}

/// The version of a list or object, or of the object in the first row of a table.
fn version_of(value: &Value) -> Option<String> {
    let own = value["metadata"]["resourceVersion"].as_str();
    let row = value["rows"][0]["object"]["metadata"]["resourceVersion"].as_str();
    own.filter(|version| !version.is_empty()).or(row).map(str::to_owned)
}

/// `path?a&b`, leaving out what is empty.
pub(crate) fn with_query(path: &str, parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
}

/// Percent-encodes one value of a query or one segment of a path.
pub(crate) fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
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
            let mut bytes: &[u8] = &lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect::<Vec<_>>();
            let mut reader = Lines::default();
            let mut read = Vec::new();
            let mut cuts = cuts.into_iter();
            while !bytes.is_empty() {
                let (now, later) = bytes.split_at(cuts.next().unwrap_or(bytes.len()).min(bytes.len()));
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

    #[test]
    fn queries_are_encoded_and_empty_parts_left_out() {
        assert_eq!(with_query("/api", &["", "a=1", ""]), "/api?a=1");
        assert_eq!(with_query("/api", &["", ""]), "/api");
        assert_eq!(encode("a=b,c in (d)"), "a%3Db%2Cc%20in%20%28d%29");
    }
}
