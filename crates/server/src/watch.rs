//! Watches: the changes of a collection as lines of JSON, for as long as the client likes.
//!
//! A watch is a cursor into the store's history; nothing is queued for it. A client that is slow
//! falls behind in that history, and gets 410 once the history no longer reaches back far enough.
//! With selectors an object may enter or leave what a client sees without being made or removed:
//! [`Selection::action`] decides what the client is told.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::StatusCode;
use mainstay_store::cache::{Collection, Watch};
use mainstay_store::clock::Clock;
use mainstay_store::object::{Action, Event, Record, Revision};
use mainstay_store::objects::{self, At};
use mainstay_store::registry::Kind;
use mainstay_store::select::Selection;
use mainstay_store::status::{Error, Reason, Violation};
use serde_json::{Value, json};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::list::{parse_version, selection};
use crate::negotiate::Form;
use crate::query::{Query, number};
use crate::render;
use crate::reply::{self, Body, Reply};
use crate::service::App;
use crate::table::{self, Include};
use crate::write::invalid_options;

/// How many objects an initial list sends at once.
const TURN: usize = 256;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// Begin with the objects that are there, in this state.
    initial: Option<At>,
    /// Begin after this revision; the newest if there is none.
    after: Option<Revision>,
    /// Say when the objects that were there are through.
    marked: bool,
}

/// Decides where a watch begins.
fn start(query: &Query<'_>) -> Result<Start, Error> {
    let mut violations = Vec::new();
    const MATCH: &str = "resourceVersionMatch";
    let rule = query.resource_version_match.as_deref();
    match (query.send_initial_events, rule) {
        (Some(_), Some("NotOlderThan")) | (None, None) => {}
        (Some(_), _) => {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            violations.push(Violation::forbidden(MATCH, why));
        }
        (None, Some(_)) => {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            violations.push(Violation::forbidden(MATCH, why));
        }
    }
    if let Some(rule) = rule.filter(|rule| *rule != "NotOlderThan") {
        let rule = Value::from(rule);
        violations.push(Violation::not_supported(MATCH, &rule, &["NotOlderThan"]));
    }
    if rule.is_some() && query.continuation.is_some() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        violations.push(Violation::forbidden(MATCH, why));
    }
    if !violations.is_empty() {
        return Err(invalid_options("ListOptions", violations));
    }
    let version = query.resource_version.as_deref().map(parse_version).transpose()?;
    let version = version.filter(|version| *version != Revision::ZERO);
    Ok(match (query.send_initial_events, version) {
        (Some(true), version) => Start {
            initial: Some(version.map_or(At::Latest, At::NotOlderThan)),
            after: None,
            marked: query.allow_watch_bookmarks,
        },
        (Some(false), None) => Start { initial: None, after: None, marked: false },
        (None, None) => Start { initial: Some(At::Latest), after: None, marked: false },
        (_, Some(version)) => Start { initial: None, after: Some(version), marked: false },
    })
}

/// Answers a watch.
pub(crate) async fn watch(
    app: &App,
    kind: &Arc<Kind>,
    namespace: Option<&str>,
    name: Option<&str>,
    query: &Query<'_>,
    form: Form,
) -> Result<Reply, Error> {
    let begin = start(query)?;
    let selection = selection(kind, query)?;
    let include = render::include(query)?;
    let asked = number::<u64>("timeoutSeconds", query.timeout_seconds.as_deref())?;
    let lines =
        Lines { kind: kind.clone(), form, include, headed: false, clock: app.clock.clone() };
    let fields = query.field_selector.as_deref();
    let target = (namespace, name.or(selection.name()));
    let opened = open(app, kind, target, fields, &selection, begin).await;
    let (initial, source) = match opened {
        Ok(opened) => opened,
        Err(error) if error.reason == Reason::Expired => {
            let line = error_line(&error);
            return Ok(reply::json(StatusCode::OK, Body::stream(stream::iter([line]))));
        }
        Err(error) => return Err(error),
    };
    let now = app.clock.elapsed();
    let length = match asked {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.min(86_400)),
        _ => app.limits.watch.mul_f64(1.0 + app.jitter()),
    };
    let deadline = now + length;
    let interval = app.limits.bookmark;
    let bookmark =
        query.allow_watch_bookmarks.then(|| now + interval.mul_f64(0.9 + 0.2 * app.jitter()));
    let mut feed = Feed {
        initial: initial.map(|collection| Initial {
            collection,
            namespace: namespace.map(str::to_owned),
            name: name.or(selection.name()).map(str::to_owned),
            after: None,
            marked: begin.marked,
        }),
        source,
        selection,
        lines,
        clock: app.clock.clone(),
        stop: Box::pin(app.stop.clone().cancelled_owned()),
        deadline,
        interval,
        bookmark,
        timer: Box::pin(std::future::pending()),
        ended: false,
    };
    feed.set_timer();
    let lines = stream::unfold(Box::new(feed), async |mut feed| {
        feed.next().await.map(|lines| (lines, feed))
    });
    Ok(reply::json(StatusCode::OK, Body::stream(lines)))
}

async fn open(
    app: &App,
    kind: &Kind,
    (namespace, name): (Option<&str>, Option<&str>),
    fields: Option<&str>,
    selection: &Selection,
    begin: Start,
) -> Result<(Option<Collection>, Watch), Error> {
    let resources = &app.resources;
    let mut initial = match begin.initial {
        Some(at) => Some(resources.list(kind, at).await?),
        None => None,
    };
    if let (Some(collection), Some(name)) = (&mut initial, name)
        && (namespace.is_some() || !kind.namespaced)
    {
        let only = collection.get(&kind.key(namespace, name)).cloned();
        *collection = Collection::new(collection.revision(), only);
    }
    if let Some(whole) = &initial
        && let Some(own) = app.owners.narrow(resources, kind, fields, whole).await
    {
        initial = Some(own);
    }
    let after = match (&initial, begin.after) {
        (Some(collection), _) => collection.revision(),
        (None, Some(after)) => after,
        (None, None) => resources.objects().revision(kind.resource()),
    };
    // The store finds the changes of one field value without a look by every watch.
    let by_field = Selection { fields: selection.fields.clone(), ..Selection::default() };
    let source = resources.watch_selected(kind, namespace, name, by_field, after).await?;
    Ok((initial, source))
}

struct Initial {
    collection: Collection,
    namespace: Option<String>,
    name: Option<String>,
    after: Option<String>,
    marked: bool,
}

/// One watch under way.
struct Feed {
    initial: Option<Initial>,
    source: Watch,
    selection: Selection,
    lines: Lines,
    clock: Arc<dyn Clock>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    deadline: Duration,
    interval: Duration,
    /// When the next bookmark is due, if the client wants any.
    bookmark: Option<Duration>,
    timer: BoxFuture<'static, ()>,
    ended: bool,
}

impl Feed {
    fn set_timer(&mut self) {
        let until = self.bookmark.map_or(self.deadline, |bookmark| bookmark.min(self.deadline));
        self.timer = self.clock.sleep(until.saturating_sub(self.clock.elapsed()));
    }

    /// The next lines, or none if the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.ended {
                return None;
            }
            if self.initial.is_some() {
                let lines = self.initial_lines();
                if !lines.is_empty() {
                    return Some(lines);
                }
                tokio::task::yield_now().await;
                continue;
            }
            let lines = tokio::select! {
                biased;
                () = &mut self.stop => return None,
                events = self.source.next() => self.changes(events),
                () = &mut self.timer => self.due(),
            };
            if !lines.is_empty() {
                return Some(lines);
            }
        }
    }

    fn initial_lines(&mut self) -> Bytes {
        let Some(mut initial) = self.initial.take() else {
            return Bytes::new();
        };
        let mut out = Vec::new();
        let (mut looked, mut last) = (0, None);
        let range =
            initial.collection.range(initial.namespace.as_deref(), initial.after.as_deref());
        for record in range.take(TURN) {
            looked += 1;
            last = Some(record.key().path());
            let named = initial.name.as_deref().is_none_or(|name| record.key().name() == name);
            if named && self.selection.matches(record) {
                self.lines.write(&mut out, Action::Added, record);
            }
        }
        initial.after = last.map(str::to_owned);
        if looked == TURN {
            self.initial = Some(initial);
        } else if initial.marked {
            self.lines.bookmark(&mut out, initial.collection.revision(), true);
        }
        out.into()
    }

    fn changes(&mut self, events: Result<Vec<Arc<Event>>, objects::Error>) -> Bytes {
        match events {
            Ok(events) => self.lines(&events),
            Err(objects::Error::Closed) => {
                self.ended = true;
                Bytes::new()
            }
            Err(error) => {
                self.ended = true;
                error_line(&Error::from_store(&self.lines.kind, "", error))
            }
        }
    }

    fn lines(&mut self, events: &[Arc<Event>]) -> Bytes {
        let plain = self.lines.form == Form::Plain;
        if plain
            && let [event] = events
            && self.selection.is_everything()
        {
            return event.line().clone();
        }
        let mut out = Vec::new();
        for event in events {
            let Some(action) = self.selection.action(event) else {
                continue;
            };
            match (&event.previous, action) {
                (_, action) if plain && action == event.action => {
                    out.extend_from_slice(event.line());
                }
                (Some(previous), Action::Deleted) if event.action != Action::Deleted => {
                    let gone = previous.at(event.revision());
                    self.lines.write(&mut out, action, &gone);
                }
                _ => self.lines.write(&mut out, action, &event.record),
            }
        }
        out.into()
    }

    /// The purpose of the timer: a bookmark, the end, or both.
    fn due(&mut self) -> Bytes {
        let now = self.clock.elapsed();
        // Whatever is there already comes first: a bookmark promises that it was seen.
        let mut out = match self.source.ready() {
            Ok(events) if events.is_empty() => Vec::new(),
            ready => self.changes(ready).to_vec(),
        };
        if self.ended {
            return out.into();
        }
        if self.bookmark.is_some() {
            let position = self.source.position();
            self.lines.bookmark(&mut out, position, false);
            self.bookmark = Some(now + self.interval);
        }
        self.ended = now >= self.deadline;
        if !self.ended {
            self.set_timer();
        }
        out.into()
    }
}

/// Writes lines in the form the client asked for.
struct Lines {
    kind: Arc<Kind>,
    form: Form,
    include: Include,
    /// Whether the columns of the table were sent: they come with the first row only.
    headed: bool,
    clock: Arc<dyn Clock>,
}

impl Lines {
    fn write(&mut self, out: &mut Vec<u8>, action: Action, record: &Record) {
        let word = match action {
            Action::Added => "ADDED",
            Action::Modified => "MODIFIED",
            Action::Deleted => "DELETED",
        };
        match self.form {
            Form::Plain => {
                out.extend_from_slice(b"{\"type\":\"");
                out.extend_from_slice(word.as_bytes());
                out.extend_from_slice(b"\",\"object\":");
                out.extend_from_slice(record.json());
                out.extend_from_slice(b"}\n");
            }
            Form::Metadata(version) => {
                line(out, word, &render::metadata(record.object(), version));
            }
            Form::Table(version) => {
                let now = self.clock.now();
                let row = table::row(&self.kind, &record.object(), self.include, version, now);
                let table = self.table(version, record.revision(), Some(row));
                line(out, word, &table);
            }
        }
    }

    fn table(&mut self, version: &str, revision: Revision, row: Option<Value>) -> Value {
        let columns = if std::mem::replace(&mut self.headed, true) {
            Value::Null
        } else {
            table::columns(&self.kind)
        };
        json!({
            "kind": "Table",
            "apiVersion": format!("meta.k8s.io/{version}"),
            "metadata": {"resourceVersion": revision.to_string()},
            "columnDefinitions": columns,
            "rows": Vec::from_iter(row),
        })
    }

    fn bookmark(&mut self, out: &mut Vec<u8>, revision: Revision, end_of_initial: bool) {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if end_of_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form {
            Form::Plain => json!({
                "kind": self.kind.kind,
                "apiVersion": self.kind.api_version(),
                "metadata": metadata,
            }),
            Form::Metadata(version) => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": metadata,
            }),
            Form::Table(version) => {
                let mut table = self.table(version, revision, None);
                table["metadata"] = metadata;
                table
            }
        };
        line(out, "BOOKMARK", &object);
    }
}

fn line(out: &mut Vec<u8>, word: &str, object: &Value) {
    let line = format!("{{\"type\":\"{word}\",\"object\":{object}}}\n");
    out.extend_from_slice(line.as_bytes());
}

/// The last line of a watch that ends with an error.
pub(crate) fn error_line(error: &Error) -> Bytes {
    let mut out = Vec::new();
    line(&mut out, "ERROR", &reply::status(error));
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::object::{Body, Key, Resource};
    use mainstay_store::registry::{Registry, builtin};

    #[test]
    fn a_watch_begins_where_kubernetes_says() {
        let latest = Some(At::Latest);
        let seven = Some(Revision(7));
        let start_at = |initial, after, marked| Ok(Start { initial, after, marked });
        let not_older = "resourceVersionMatch=NotOlderThan";
        let cases = [
            (String::new(), start_at(latest, None, false)),
            ("resourceVersion=0".to_owned(), start_at(latest, None, false)),
            ("resourceVersion=7".to_owned(), start_at(None, seven, false)),
            (
                format!("sendInitialEvents=true&allowWatchBookmarks=true&{not_older}"),
                start_at(latest, None, true),
            ),
            (format!("sendInitialEvents=true&{not_older}"), start_at(latest, None, false)),
            (
                format!("sendInitialEvents=true&resourceVersion=7&{not_older}"),
                start_at(Some(At::NotOlderThan(Revision(7))), None, false),
            ),
            (format!("sendInitialEvents=false&{not_older}"), start_at(None, None, false)),
            (
                format!("sendInitialEvents=false&resourceVersion=7&{not_older}"),
                start_at(None, seven, false),
            ),
            ("sendInitialEvents=true".to_owned(), Err(Reason::Invalid)),
            ("sendInitialEvents=true&resourceVersionMatch=Exact".to_owned(), Err(Reason::Invalid)),
            (not_older.to_owned(), Err(Reason::Invalid)),
            (format!("sendInitialEvents=true&continue=x&{not_older}"), Err(Reason::Invalid)),
            ("resourceVersion=x".to_owned(), Err(Reason::BadRequest)),
        ];
        for (text, expected) in cases {
            let query = Query::parse(Some(&text)).unwrap();
            assert_eq!(start(&query).map_err(|error| error.reason), expected, "{text}");
        }
    }

    #[test]
    fn objects_enter_and_leave_what_a_selector_shows() {
        let registry = Registry::new(builtin()).unwrap();
        let kind = registry.find("", "v1", "configmaps").unwrap();
        let selection = Selection::parse(kind, "color=red", "").unwrap();
        let key = Key::new(&Resource::new("", "configmaps"), Some("a"), "b");
        let record = |color: &str| {
            let object = json!({"metadata": {"name": "b", "labels": {"color": color}}});
            let body = Body::new(object.as_object().unwrap());
            Arc::new(body.at(key.clone(), Revision(5), Revision(5)))
        };
        use Action::{Added, Deleted, Modified};
        let cases = [
            (Added, None, "red", Some(Added)),
            (Added, None, "blue", None),
            (Modified, Some("red"), "red", Some(Modified)),
            (Modified, Some("blue"), "red", Some(Added)),
            (Modified, Some("red"), "blue", Some(Deleted)),
            (Modified, Some("blue"), "blue", None),
            (Deleted, Some("red"), "red", Some(Deleted)),
            (Deleted, Some("blue"), "blue", None),
        ];
        for (action, before, now, expected) in cases {
            let event = Event::new(action, record(now), before.map(record));
            assert_eq!(selection.action(&event), expected, "{action:?} {before:?} {now}");
        }
    }
}
