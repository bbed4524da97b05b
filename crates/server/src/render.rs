//! Objects as clients want them: as they are, as a table, or their metadata alone.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_store::object::{Record, Revision};
use mainstay_store::registry::Kind;
use mainstay_store::status::Error;
use serde_json::{Map, Value, json};

use crate::negotiate::Form;
use crate::query::Query;
use crate::table::{self, Include};

/// How many objects are turned into rows before others get a turn.
const TURN: usize = 256;

/// The metadata of a page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) revision: Revision,
    pub(crate) token: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl Page {
    fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// The part of each object that a table carries along.
///
/// # Errors
/// 400 if it cannot be read.
pub(crate) fn include(query: &Query<'_>) -> Result<Include, Error> {
    match query.include_object.as_deref() {
        None | Some("Metadata") => Ok(Include::Metadata),
        Some("Object") => Ok(Include::Object),
        Some("None") => Ok(Include::None),
        Some(other) => Err(Error::bad_request(format!(
            "unrecognized includeObject value {other:?}: must be None, Metadata or Object"
        ))),
    }
}

/// The beginning of a list, up to its first item.
pub(crate) fn list_head(
    kind: &Kind,
    revision: Revision,
    token: Option<&str>,
    remaining: Option<usize>,
) -> Vec<u8> {
    let token = token.map(str::to_owned);
    let metadata = Page { revision, token, remaining }.metadata();
    format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        kind.kind,
        kind.api_version(),
    )
    .into_bytes()
}

/// A list of objects as they are.
pub(crate) fn plain_list(mut head: Vec<u8>, records: &[Arc<Record>]) -> Vec<u8> {
    let size: usize = records.iter().map(|record| record.json().len() + 1).sum();
    head.reserve_exact(size + 2);
    for (at, record) in records.iter().enumerate() {
        if at > 0 {
            head.push(b',');
        }
        head.extend_from_slice(record.json());
    }
    head.extend_from_slice(b"]}");
    head
}

/// A list of objects as a table, or of their metadata.
pub(crate) async fn list(
    kind: &Kind,
    records: &[Arc<Record>],
    page: &Page,
    form: Form,
    query: &Query<'_>,
    now: Timestamp,
) -> Result<Bytes, Error> {
    let mut items = Vec::with_capacity(records.len());
    let include = include(query)?;
    for turn in records.chunks(TURN) {
        items.extend(turn.iter().map(|record| match form {
            Form::Table(version) => table::row(kind, &record.object(), include, version, now),
            Form::Metadata(version) => metadata(record.object(), version),
            Form::Plain => Value::Object(record.object()),
        }));
        tokio::task::yield_now().await;
    }
    let (name, version, what) = match form {
        Form::Table(version) => ("Table", version, "rows"),
        Form::Metadata(version) => ("PartialObjectMetadataList", version, "items"),
        Form::Plain => (kind.kind, "v1", "items"),
    };
    let mut body = json!({
        "kind": name,
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": page.metadata(),
    });
    if name == "Table" {
        body["columnDefinitions"] = table::columns(kind);
    }
    body[what] = Value::Array(items);
    Ok(body.to_string().into())
}

/// One object.
pub(crate) fn one(
    kind: &Kind,
    record: &Record,
    form: Form,
    query: &Query<'_>,
    now: Timestamp,
) -> Result<Bytes, Error> {
    match form {
        Form::Plain if query.pretty => {
            let pretty = serde_json::to_vec_pretty(&record.object());
            Ok(pretty.map_or_else(|_| record.json().clone(), Bytes::from))
        }
        Form::Plain => Ok(record.json().clone()),
        Form::Metadata(version) => Ok(metadata(record.object(), version).to_string().into()),
        Form::Table(version) => {
            let row = table::row(kind, &record.object(), include(query)?, version, now);
            let table = json!({
                "kind": "Table",
                "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": {"resourceVersion": record.revision().to_string()},
                "columnDefinitions": table::columns(kind),
                "rows": [row],
            });
            Ok(table.to_string().into())
        }
    }
}

/// The same answer about one object, in whichever form, without its version.
pub(crate) fn without_version(body: Bytes, pretty: bool) -> Bytes {
    fn forget(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
    }
    let Ok(mut answer) = serde_json::from_slice::<Value>(&body) else { return body };
    forget(&mut answer);
    let rows = answer.get_mut("rows").and_then(Value::as_array_mut);
    for row in rows.into_iter().flatten() {
        row.get_mut("object").into_iter().for_each(forget);
    }
    if pretty { format!("{answer:#}").into() } else { answer.to_string().into() }
}

/// The metadata of an object, as an object of its own.
pub(crate) fn metadata(mut object: Map<String, Value>, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.remove("metadata").unwrap_or_default(),
    })
}
