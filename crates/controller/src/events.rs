//! The event recorder: writes Events about objects, which `kubectl describe` shows.
//!
//! Events are a courtesy. Recording one never waits, never fails and never holds up a reconciler:
//! it is put into a bounded channel, and a task of its own writes it. An event that does not fit is counted
//! and dropped.
//!
//! A repeated event is one Event whose `count` grows. A bounded number of events is remembered, the most
//! recent ones. Events about one object are written at a bounded rate ([`Options::per_object`]);
//! occurrences in between are added to the count by the next write.
//!
//! [`Recorder::run`] starts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use jiff::Timestamp;
use mainstay_clock::Backoff;
use mainstay_store::builtin::{Event, EventSource, ObjectReference};
use mainstay_store::meta::Time;
use mainstay_store::registry::Typed;
use mainstay_store::resources::{Error, Reason, Resources, WriteOptions};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::meter::{Meter, NoMeter};
use crate::rate::{Bucket, Flow};
use crate::task::Owned;

/// Longer messages are cut off.
const LONGEST_MESSAGE: usize = 1024;

/// How many waiting events are written together.
const BATCH: usize = 256;

/// How often writing an event is tried while the store is unavailable.
const TRIES: u32 = 5;
/// How long to wait in between.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Whether something went as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It did.
    Normal,
    /// It did not.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// How a recorder runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the reporting component.
    pub component: String,
    /// Which instance of it: the name of the server or node. May be empty.
    pub instance: String,
    /// How many events may wait to be written.
    pub waiting: usize,
    /// How many are written at once.
    pub at_once: usize,
    /// How many events, and how many objects, are remembered.
    pub remembered: usize,
    /// How often one object is written about.
    pub per_object: Flow,
    /// How fast events are written, whatever they are about; what comes faster waits.
    pub pace: Option<Flow>,
    /// Where it is counted.
    pub meter: Arc<dyn Meter>,
}

impl Options {
    /// 1,000 waiting, 32 written at once, 4,096 remembered, and for each object 25 at once, then one in five minutes.
    #[must_use]
    pub fn new(component: &str) -> Self {
        Self {
            component: component.to_owned(),
            instance: String::new(),
            waiting: 1_000,
            at_once: 32,
            remembered: 4_096,
            per_object: Flow { interval: Duration::from_secs(300), burst: 25 },
            pace: None,
            meter: Arc::new(NoMeter),
        }
    }
}

/// Points at an object, as an event does.
#[must_use]
pub fn reference<T: Typed>(object: &T) -> ObjectReference {
    let metadata = object.metadata();
    let api_version = match T::GROUP {
        "" => T::VERSION.to_owned(),
        group => format!("{group}/{}", T::VERSION),
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(T::KIND.to_owned()),
        namespace: metadata.namespace.clone(),
        name: Some(metadata.name.clone()),
        uid: Some(metadata.uid.clone()).filter(|uid| !uid.is_empty()),
        resource_version: Some(metadata.resource_version.clone()).filter(|text| !text.is_empty()),
        field_path: None,
    }
}

/// Which object: what makes two references the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    api_version: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    field_path: Option<String>,
}

impl From<&ObjectReference> for Subject {
    fn from(reference: &ObjectReference) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
            field_path: reference.field_path.clone(),
        }
    }
}

/// The content of an event: equal content is the same event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Content {
    subject: Subject,
    severity: Severity,
    reason: String,
    message: String,
}

/// One occurrence of an event.
#[derive(Debug)]
struct Utterance {
    content: Content,
    involved: ObjectReference,
    at: Timestamp,
}

/// Occurrences that are not written yet.
#[derive(Clone, Debug)]
struct Unwritten {
    involved: ObjectReference,
    times: i32,
    first: Timestamp,
    last: Timestamp,
}

/// A content that is remembered: where its Event is, and what is still to be added to it.
#[derive(Debug, Default)]
struct Known {
    written_as: Option<String>,
    unwritten: Option<Unwritten>,
}

/// A map that forgets what was used least recently.
#[derive(Debug)]
struct Recent<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    uses: u64,
    most: usize,
}

impl<K: Ord + Clone, V> Recent<K, V> {
    fn new(most: usize) -> Self {
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), uses: 0, most: most.max(1) }
    }

    /// The entry of `key`, made if it is not there; it is now the most recent one.
    fn use_or(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        let place = self.uses;
        self.uses += 1;
        if let Some((used, _)) = self.entries.get(key) {
            self.order.remove(used);
        } else if self.entries.len() == self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(place, key.clone());
        let entry = self.entries.entry(key.clone()).or_insert_with(|| (place, make()));
        entry.0 = place;
        &mut entry.1
    }
}

/// Records events. Clones are the same recorder.
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Utterance>,
    resources: Resources,
    component: Arc<str>,
    meter: Arc<dyn Meter>,
    stop: CancellationToken,
    task: Owned<()>,
}

impl Recorder {
    /// Begins to write what is recorded. Must be called within a tokio runtime.
    ///
    /// [`Recorder::shutdown`] writes what still waits; when the last clone is dropped, that is lost.
    #[must_use]
    pub fn run(options: Options, resources: &Resources) -> Self {
        let (sender, receiver) = mpsc::channel(options.waiting.max(1));
        let (component, meter) = (options.component.as_str().into(), options.meter.clone());
        let stop = CancellationToken::new();
        let writer = Writer {
            pace: options.pace.map(|flow| Mutex::new(Bucket::new(flow))),
            known: Recent::new(options.remembered),
            subjects: Recent::new(options.remembered),
            options,
            resources: resources.clone(),
            stop: stop.clone(),
        };
        let task = Owned::spawn(writer.run(receiver));
        Self { sender, resources: resources.clone(), component, meter, stop, task }
    }

    /// Records that something happened to an object. Returns at once, whatever happens.
    pub fn event(&self, about: &ObjectReference, severity: Severity, reason: &str, message: &str) {
        let content = Content {
            subject: about.into(),
            severity,
            reason: reason.to_owned(),
            message: shortened(message).to_owned(),
        };
        let at = self.resources.clock().now();
        let utterance = Utterance { content, involved: about.clone(), at };
        if self.sender.try_send(utterance).is_err() {
            self.meter.event_dropped(&self.component);
        }
    }

    /// Takes no more events, writes what still waits (once: a store that is away is not waited
    /// for), and waits until that is done. Calling it again is harmless.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.task.end().await;
    }
}

fn shortened(message: &str) -> &str {
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

/// The one task that writes.
struct Writer {
    options: Options,
    resources: Resources,
    known: Recent<Content, Known>,
    subjects: Recent<Subject, Bucket>,
    pace: Option<Mutex<Bucket>>,
    stop: CancellationToken,
}

impl Writer {
    async fn run(mut self, mut receiver: mpsc::Receiver<Utterance>) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled(), if !receiver.is_closed() => receiver.close(),
                count = receiver.recv_many(&mut batch, BATCH) => if count == 0 {
                    return;
                },
            }
            // Occurrences that came during a write are one more write; events
            // about several objects are written concurrently: a store commits them as a group.
            let contents = self.note(batch.drain(..));
            let due: Vec<_> = contents
                .into_iter()
                .filter_map(|content| Some((self.due(&content)?, content)))
                .collect();
            let this = &self;
            let written: Vec<_> = futures_util::stream::iter(due)
                .map(async |((unwritten, written_as), content)| {
                    this.keep_pace().await;
                    let written = this.put(&content, &unwritten, written_as).await;
                    (content, written)
                })
                .buffer_unordered(self.options.at_once.max(1))
                .collect()
                .await;
            for (content, written) in written {
                self.wrote(&content, written);
            }
        }
    }

    /// Waits for its turn; not at shutdown.
    async fn keep_pace(&self) {
        let Some(pace) = &self.pace else { return };
        let clock = self.resources.clock();
        let wait = pace.lock().reserve(clock.elapsed());
        if !wait.is_zero() {
            // Whether the time came or the end does not matter.
            let _ = self.stop.run_until_cancelled(clock.sleep(wait)).await;
        }
    }

    /// Adds new occurrences to the known events, and returns the events to write.
    fn note(&mut self, batch: impl Iterator<Item = Utterance>) -> BTreeSet<Content> {
        let mut contents = BTreeSet::new();
        for Utterance { content, involved, at } in batch {
            let known = self.known.use_or(&content, Known::default);
            let unwritten = known.unwritten.get_or_insert_with(|| {
                let involved = involved.clone();
                Unwritten { involved, times: 0, first: at, last: at }
            });
            unwritten.times = unwritten.times.saturating_add(1);
            unwritten.last = at;
            unwritten.involved = involved;
            contents.insert(content);
        }
        contents
    }

    /// The occurrences of an event to write now, and the name of its object if it has one.
    fn due(&mut self, content: &Content) -> Option<(Unwritten, Option<String>)> {
        let now = self.resources.clock().elapsed();
        let flow = self.options.per_object;
        let bucket = self.subjects.use_or(&content.subject, || Bucket::new(flow));
        if !bucket.take(now) {
            self.options.meter.event_dropped(&self.options.component);
            return None;
        }
        let known = self.known.use_or(content, Known::default);
        let Some(unwritten) = known.unwritten.take() else {
            // So many events came at once that this one was evicted before its turn.
            self.options.meter.event_dropped(&self.options.component);
            return None;
        };
        Some((unwritten, known.written_as.clone()))
    }

    fn wrote(&mut self, content: &Content, written: Result<String, Error>) {
        match written {
            Ok(name) => self.known.use_or(content, Known::default).written_as = Some(name),
            Err(error) => {
                let reason = &content.reason;
                tracing::warn!(%error, reason, "writing an event failed; it is lost");
                self.options.meter.event_dropped(&self.options.component);
            }
        }
    }

    /// Writes, patiently unless we are shutting down; says under which name.
    async fn put(
        &self,
        content: &Content,
        unwritten: &Unwritten,
        written_as: Option<String>,
    ) -> Result<String, Error> {
        let mut retries = RETRY.retries();
        loop {
            let error = match self.put_once(content, unwritten, written_as.as_deref()).await {
                Ok(name) => return Ok(name),
                Err(error) => error,
            };
            let passes = matches!(
                error.reason,
                Reason::ServiceUnavailable | Reason::TooManyRequests | Reason::Timeout
            );
            let wait = retries.failed();
            if !passes || retries.failures() == TRIES || self.stop.is_cancelled() {
                return Err(error);
            }
            tokio::select! {
                () = self.resources.clock().sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    async fn put_once(
        &self,
        content: &Content,
        unwritten: &Unwritten,
        written_as: Option<&str>,
    ) -> Result<String, Error> {
        let options =
            WriteOptions { manager: self.options.component.clone(), ..WriteOptions::default() };
        let namespace = unwritten.involved.namespace.as_deref().unwrap_or("default");
        if let Some(name) = written_as {
            let more = |event: &mut Event| {
                let count = event.count.unwrap_or(1).saturating_add(unwritten.times);
                event.count = Some(count);
                event.last_timestamp = Some(Time::new(unwritten.last));
            };
            let namespace = Some(namespace);
            match self.resources.modify_as(namespace, name, None, &options, more).await {
                Ok(_) => return Ok(name.to_owned()),
                // Events do not live for ever: say it anew.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(content, unwritten, namespace);
        let created = self.resources.create_as(&event, &options).await?;
        Ok(created.metadata.name)
    }

    fn event(&self, content: &Content, unwritten: &Unwritten, namespace: &str) -> Event {
        let Options { component, instance, .. } = &self.options;
        let instance = Some(instance.clone()).filter(|instance| !instance.is_empty());
        let mut event = Event {
            involved_object: unwritten.involved.clone(),
            kind: Some(content.severity.as_str().to_owned()),
            reason: Some(content.reason.clone()),
            message: Some(content.message.clone()),
            count: Some(unwritten.times),
            first_timestamp: Some(Time::new(unwritten.first)),
            last_timestamp: Some(Time::new(unwritten.last)),
            reporting_component: Some(component.clone()),
            reporting_instance: instance.clone(),
            source: Some(EventSource { component: Some(component.clone()), host: instance }),
            ..Event::default()
        };
        event.metadata.namespace = Some(namespace.to_owned());
        let name = unwritten.involved.name.as_deref().unwrap_or("object");
        event.metadata.generate_name = format!("{name}-");
        event
    }
}

#[cfg(test)]
mod tests;
