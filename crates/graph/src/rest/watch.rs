//! The status of values as a stream of lines: first the present status, then every change.
//!
//! Each line is a JSON object: the status of one value, `{"missed": N}` when the reader fell behind
//! and should read the status again, or `{}` now and then, so that a reader notices a dead connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use serde_json::json;

use crate::engine::Engine;
use crate::status::{StatusWatch, WatchEvent};

/// How many changes a reader may fall behind.
const CAPACITY: usize = 1024;

/// The longest time without a line.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// The selected values: one key, or all keys with a prefix.
pub(super) enum Selected {
    Key(String),
    Prefix(String),
}

impl Selected {
    fn accepts(&self, key: &str) -> bool {
        match self {
            Self::Key(wanted) => key == wanted,
            Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// The body of the answer. It ends when the engine stops.
pub(super) fn body(engine: &Engine, selected: Selected) -> Body {
    Body::from_stream(lines(engine, selected).map(Ok::<_, Infallible>))
}

fn lines(engine: &Engine, selected: Selected) -> impl Stream<Item = Bytes> + Send + use<> {
    let selected = Arc::new(selected);
    let filter = Arc::clone(&selected);
    // The watch begins before the present is read, so that no change falls in between.
    let watch = engine.watch(CAPACITY, move |key| filter.accepts(key));
    let first = match &*selected {
        Selected::Key(key) => vec![engine.status(key)],
        Selected::Prefix(_) => engine.statuses(|key| selected.accepts(key)),
    };
    let first: Vec<Bytes> = first.iter().map(line).collect();
    stream::iter(first).chain(stream::unfold(watch, |mut watch: StatusWatch| async move {
        let line = match tokio::time::timeout(IDLE, watch.next()).await {
            Ok(Some(WatchEvent::Status(status))) => line(&*status),
            Ok(Some(WatchEvent::Missed(count))) => line(&json!({"missed": count})),
            Ok(None) => return None,
            Err(_) => line(&json!({})),
        };
        Some((line, watch))
    }))
}

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
