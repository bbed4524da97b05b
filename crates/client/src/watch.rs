//! Watches: [`list`] reads a collection, [`Follow`] reads it and then every change to it.

use std::collections::VecDeque;
use std::time::Duration;

use mainstay_clock::{Backoff, Retries};
use serde::Deserialize;
use serde_json::Value;

use crate::call::Call;
use crate::client::Client;
use crate::error::Error;
use crate::query::{encode, with_query};
use crate::status::Status;
use crate::stream::Stream;

/// After how many seconds the server is asked to end a watch.
const WATCH_SECONDS: u64 = 600;
/// How long a watch may be silent: a server that did not end it by then is gone.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// How many times in a row a broken watch is opened again before following fails.
const TRIES: u32 = 8;
/// The pauses between those tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_millis(6400));

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// The object is new.
    Added,
    /// The object has changed.
    Modified,
    /// The object is gone.
    Deleted,
    /// No change; the object holds a version to resume from.
    Bookmark,
    /// The watch failed; the object is a `Status`.
    Error,
}

impl EventType {
    /// The word of the dialect.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

/// One change.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// The kind of change.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The object after it, or as it last was.
    pub object: Value,
}

/// The result of [`Follow::next`].
#[derive(Debug)]
pub enum Change {
    /// The whole list: first, and again when the server no longer had the changes since.
    Listed(Value),
    /// One change to it.
    Event(Event),
}

/// A list, and then every change to it, across ended watches and short outages.
#[derive(Debug)]
pub struct Follow<'a> {
    client: &'a Client,
    path: String,
    query: String,
    accept: &'static str,
    version: Option<String>,
    watch: Option<Stream>,
    ready: VecDeque<Change>,
    retries: Retries,
}

impl<'a> Follow<'a> {
    /// Follows the collection at `path`; `query` holds selectors, encoded (`a=b&c=d`).
    #[must_use]
    pub fn new(client: &'a Client, path: String, query: String, accept: &'static str) -> Self {
        Self {
            client,
            path,
            query,
            accept,
            version: None,
            watch: None,
            ready: VecDeque::new(),
            retries: PAUSES.retries(),
        }
    }

    /// The next change. It never ends by itself. Safe to cancel.
    ///
    /// # Errors
    /// [`Error`] if the first list failed, the server refused, or it was away for too long.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            match self.step().await {
                Ok(()) => self.retries.reset(),
                Err(error) if error.status().is_some_and(Status::is_expired) => {
                    self.version = None;
                    self.watch = None;
                }
                Err(error) => {
                    // The first list is not retried, so that a wrong address is reported at once.
                    let begun = self.version.is_some() || self.retries.failures() > 0;
                    let pause = self.retries.failed();
                    if !begun || !error.is_transient() || self.retries.failures() > TRIES {
                        return Err(error);
                    }
                    self.watch = None;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        let Some(version) = self.version.clone() else {
            let list = list(self.client, &self.path, &self.query, self.accept).await?;
            self.version = Some(version_of(&list).unwrap_or_default());
            self.ready.push_back(Change::Listed(list));
            return Ok(());
        };
        let watch = match &mut self.watch {
            Some(watch) => watch,
            None => {
                let call = self.watch_from(&version);
                self.watch.insert(self.client.stream(&call).await?)
            }
        };
        let Some(line) = watch.line_within(SILENCE).await? else {
            self.watch = None;
            return Ok(());
        };
        let event: Event = serde_json::from_slice(&line).map_err(|error| Error::Malformed {
            path: self.path.clone(),
            why: format!("an event of the watch cannot be read: {error}"),
        })?;
        if event.kind == EventType::Error {
            return Err(Status::from_event(event.object).into());
        }
        if let Some(version) = version_of(&event.object) {
            self.version = Some(version);
        }
        if event.kind != EventType::Bookmark {
            self.ready.push_back(Change::Event(event));
        }
        Ok(())
    }

    fn watch_from(&self, version: &str) -> Call {
        let watch = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            encode(version)
        );
        Call::get(with_query(&self.path, &[&self.query, &watch])).accept(self.accept)
    }
}

/// A whole collection, read in pages. A list that expires while it is read is read again at once.
///
/// # Errors
/// As [`Client::json`].
pub async fn list(
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
            Some(whole) => append(whole, &mut answer),
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

/// Moves the items (or the rows, of a table) of a page to the end of the list.
fn append(list: &mut Value, page: &mut Value) {
    for field in ["items", "rows"] {
        if let Some(more) = page[field].as_array_mut() {
            let more = std::mem::take(more);
            if let Some(known) = list[field].as_array_mut() {
                known.extend(more);
            }
        }
    }
}

/// The version of a list or object, or of the object in the first row of a table.
fn version_of(value: &Value) -> Option<String> {
    let own = value["metadata"]["resourceVersion"].as_str();
    let row = value["rows"][0]["object"]["metadata"]["resourceVersion"].as_str();
    own.filter(|version| !version.is_empty()).or(row).map(str::to_owned)
}
