//! Writing: create, update, patch, delete, of one object or of many.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use mainstay_store::object::{Key, Record, Revision};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{
    Admission, Deleted, Effect, Resources, Subresource, WriteOptions, Written,
};
use mainstay_store::status::{Cause, Details, Error, Reason, Violation};
use mainstay_store::strategy::{DeleteOptions, Propagation, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::audit::DryRun;
use crate::body::{self, Incoming};
use crate::gate::Who;
use crate::list;
use crate::namespaces;
use crate::negotiate::{self, Form, Format};
use crate::node_api;
use crate::patch::Patch;
use crate::query::{Query, number};
use crate::render;
use crate::reply::{self, Reply};
use crate::service::App;
use crate::turns::{self, Turn};

/// One attempt to write, as far as it is known before the body is read.
pub(crate) struct Writing<'a> {
    pub(crate) app: &'a App,
    pub(crate) kind: &'a Arc<Kind>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) subresource: Option<Subresource>,
    pub(crate) query: &'a Query<'a>,
    pub(crate) form: Form,
    pub(crate) who: &'a Who,
    /// Judges what is written, if the user may not write every object of the kind.
    pub(crate) admission: Option<Arc<dyn Admission>>,
    /// Set once all was read and a keeper decides how long the answer takes.
    pub(crate) patient: Arc<AtomicBool>,
}

/// A change that was read and is to be made.
enum Work {
    Create(Map<String, Value>),
    Replace(Map<String, Value>),
    /// With the most bytes that it may copy.
    Patch(Patch, usize),
    Apply(Map<String, Value>),
}

/// Where a change is made.
struct Place<'a> {
    resources: &'a Resources,
    kind: &'a Kind,
    namespace: Option<&'a str>,
    /// The object, unless it is to be created.
    key: Option<&'a Key>,
    part: Option<Subresource>,
}

impl Work {
    async fn run(self, place: Place<'_>, options: &WriteOptions) -> Result<Written, Error> {
        let Place { resources, kind, namespace, key, part } = place;
        let key = || key.ok_or_else(|| Error::internal("a change without an object"));
        match self {
            Self::Create(object) => resources.create(kind, namespace, object, options).await,
            Self::Replace(object) => resources.replace(kind, key()?, object, part, options).await,
            Self::Apply(object) => resources.apply(kind, key()?, object, part, options).await,
            Self::Patch(patch, limit) => {
                let edit = |old: &Map<String, Value>| patch.apply(old, limit);
                resources.modify(kind, key()?, part, options, edit).await
            }
        }
    }
}

impl Writing<'_> {
    /// Creates an object, and notes its name for the audit log.
    pub(crate) async fn create(
        &self,
        parts: &Parts,
        incoming: Incoming,
        name: &mut String,
    ) -> Result<Reply, Error> {
        let mut options = self.options("CreateOptions", parts)?;
        let format = negotiate::object_format(content_type(parts))?;
        let bytes = body::read(parts, incoming, self.app.limits.body).await?;
        let turn = self.app.turns.take(self.who, bytes.len()).await;
        let decoded = turns::parse(format, bytes).await?;
        options.duplicates = decoded.duplicates;
        let kept = self.app.resources.is_kept(self.kind);
        self.patient.store(kept, Relaxed);
        let written = self.run(turn, Work::Create(decoded.object), None, options).await?;
        written.record.key().name().clone_into(name);
        self.written(StatusCode::CREATED, written)
    }

    /// Replaces an object or a part of it.
    pub(crate) async fn update(
        &self,
        parts: &Parts,
        incoming: Incoming,
        key: &Key,
    ) -> Result<Reply, Error> {
        let mut options = self.options("UpdateOptions", parts)?;
        let format = negotiate::object_format(content_type(parts))?;
        let bytes = body::read(parts, incoming, self.app.limits.body).await?;
        let turn = self.turn(bytes.len(), key).await?;
        let decoded = turns::parse(format, bytes).await?;
        options.duplicates = decoded.duplicates;
        let written = self.run(turn, Work::Replace(decoded.object), Some(key), options).await?;
        self.written(StatusCode::OK, written)
    }

    /// Changes a part of an object.
    pub(crate) async fn patch(
        &self,
        parts: &Parts,
        incoming: Incoming,
        key: &Key,
    ) -> Result<Reply, Error> {
        let options = self.options("PatchOptions", parts)?;
        let format = negotiate::patch_format(content_type(parts), self.kind.is_well_known())?;
        let bytes = body::read(parts, incoming, self.app.limits.body).await?;
        check_force(self.query, format)?;
        let mut turn = self.turn(bytes.len(), key).await?;
        if format == Format::Apply {
            return self.apply(bytes, key, turn, options).await;
        }
        let patch = match turn.is_large() {
            false => Patch::read(format, &bytes, &self.kind.schema)?,
            true => {
                let kind = self.kind.clone();
                let read = move || Patch::read(format, &bytes, &kind.schema);
                tokio::task::spawn_blocking(read).await.map_err(Error::internal)??
            }
        };
        if !turn.is_large() && patch.is_heavy() {
            // Its share would keep other requests waiting while it waits itself.
            drop(turn);
            turn = self.app.turns.take(self.who, usize::MAX).await;
        }
        let limit = self.app.limits.body;
        let written = self.run(turn, Work::Patch(patch, limit), Some(key), options).await?;
        self.written(StatusCode::OK, written)
    }

    /// Applies a configuration: server-side apply.
    async fn apply(
        &self,
        bytes: Bytes,
        key: &Key,
        turn: Turn,
        mut options: WriteOptions,
    ) -> Result<Reply, Error> {
        let decoded = turns::parse(Format::Apply, bytes).await?;
        options.duplicates = decoded.duplicates;
        options.force = self.query.force == Some(true);
        let written = self.run(turn, Work::Apply(decoded.object), Some(key), options).await?;
        let created = written.effect == Effect::Created;
        let code = if created { StatusCode::CREATED } else { StatusCode::OK };
        self.written(code, written)
    }

    /// The turn of a change: it weighs as much as what is sent, or what is stored if that is larger.
    async fn turn(&self, sent: usize, key: &Key) -> Result<Turn, Error> {
        let stored = self.app.resources.objects().get(key).await;
        let stored = stored.map_err(|error| Error::from_store(self.kind, key.name(), error))?;
        let stored = stored.map_or(0, |record| record.json().len());
        Ok(self.app.turns.take(self.who, sent.max(stored)).await)
    }

    /// Does the work: right here, or on a thread of its own if it is large.
    async fn run(
        &self,
        turn: Turn,
        work: Work,
        key: Option<&Key>,
        options: WriteOptions,
    ) -> Result<Written, Error> {
        let (resources, kind, part) = (&self.app.resources, self.kind, self.subresource);
        // A keeper may let a request wait for long: others have their turns meanwhile.
        let kept = resources.is_kept(kind);
        if kept || !turn.is_large() {
            let turn = Some(turn).filter(|_| !kept);
            let place = Place { resources, kind, namespace: self.namespace, key, part };
            let written = work.run(place, &options).await;
            drop(turn);
            return written;
        }
        let (resources, kind) = (resources.clone(), kind.clone());
        let (namespace, key) = (self.namespace.map(str::to_owned), key.cloned());
        let written = async move {
            let (namespace, key) = (namespace.as_deref(), key.as_ref());
            let place = Place { resources: &resources, kind: &kind, namespace, key, part };
            work.run(place, &options).await
        };
        turns::beside(turn, written).await
    }

    /// Deletes an object.
    pub(crate) async fn delete(
        &self,
        parts: &Parts,
        incoming: Incoming,
        key: &Key,
    ) -> Result<Reply, Error> {
        let bytes = body::read_small(parts, incoming, &self.app.limits).await?;
        let (delete, mut options) = delete_options(parts, &bytes, self.query)?;
        options.admission.clone_from(&self.admission);
        if (self.kind.group, self.kind.plural) == ("", "namespaces")
            && namespaces::ALWAYS.contains(&key.name())
        {
            let why = "this namespace may not be deleted";
            return Err(Error::forbidden(self.kind, key.name(), why));
        }
        let deleted = self.remove(key, &delete, &options).await?;
        let mut reply = match deleted {
            Deleted::Marked(record) => self.object(StatusCode::OK, &record)?,
            Deleted::Removed(record) => {
                let object = record.object();
                let uid = object.get("metadata").and_then(|metadata| metadata.get("uid"));
                reply::success(&Details {
                    name: key.name().to_owned(),
                    group: self.kind.group.to_owned(),
                    kind: self.kind.plural.to_owned(),
                    uid: uid.and_then(Value::as_str).unwrap_or_default().to_owned(),
                    causes: Vec::new(),
                })
            }
        };
        if options.dry_run {
            reply.extensions_mut().insert(DryRun);
        }
        Ok(reply)
    }

    /// Deletes every object of the collection that the selectors match.
    pub(crate) async fn delete_collection(
        &self,
        parts: &Parts,
        incoming: Incoming,
    ) -> Result<Reply, Error> {
        let bytes = body::read_small(parts, incoming, &self.app.limits).await?;
        let (delete, mut options) = delete_options(parts, &bytes, self.query)?;
        options.admission.clone_from(&self.admission);
        let filter = list::selection(self.kind, self.query)?;
        let collection = self.app.resources.list(self.kind, At::Latest).await?;
        let revision = collection.revision();
        let (records, _) = list::scan(&collection, self.namespace, None, &filter, usize::MAX).await;
        let mut gone = Vec::with_capacity(records.len());
        for record in records {
            match self.remove(record.key(), &delete, &options).await {
                Ok(deleted) => gone.push(deleted.record().clone()),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let head = render::list_head(self.kind, revision, None, None);
        let list = reply::Body::whole(render::plain_list(head, &gone));
        let mut reply = reply::json(StatusCode::OK, list);
        if options.dry_run {
            reply.extensions_mut().insert(DryRun);
        }
        Ok(reply)
    }

    async fn remove(
        &self,
        key: &Key,
        delete: &DeleteOptions,
        options: &WriteOptions,
    ) -> Result<Deleted, Error> {
        if (self.kind.group, self.kind.plural) == ("", "nodes") {
            return node_api::delete(self.app, self.kind, key, delete, options).await;
        }
        self.app.resources.delete(self.kind, key, delete, options).await
    }

    fn written(&self, code: StatusCode, written: Written) -> Result<Reply, Error> {
        let mut reply = self.object(code, &written.record)?;
        reply::warn(&mut reply, &written.warnings);
        Ok(reply)
    }

    fn object(&self, code: StatusCode, record: &Arc<Record>) -> Result<Reply, Error> {
        let now = self.app.clock.now();
        let mut body = render::one(self.kind, record, self.form, self.query, now)?;
        // An object that was never written has no version to show.
        if record.revision() == Revision::ZERO {
            body = render::without_version(body, self.query.pretty);
        }
        Ok(reply::json(code, reply::Body::whole(body)))
    }

    fn options(&self, kind: &str, parts: &Parts) -> Result<WriteOptions, Error> {
        let options = write_options(kind, self.query, parts)?;
        Ok(WriteOptions { admission: self.admission.clone(), ..options })
    }
}

fn content_type(parts: &Parts) -> Option<&str> {
    // A header that is no text is a format nobody knows.
    parts.headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"))
}

/// A refusal of parameters, as Kubernetes words it.
pub(crate) fn invalid_options(kind: &str, violations: Vec<Violation>) -> Error {
    let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let list = if all.len() == 1 { all.concat() } else { format!("[{}]", all.join(", ")) };
    let message = format!("{kind}.meta.k8s.io \"\" is invalid: {list}");
    let mut error = Error::new(Reason::Invalid, message);
    error.details.group = "meta.k8s.io".to_owned();
    error.details.kind = kind.to_owned();
    error.details.causes = violations
        .into_iter()
        .map(|violation| Cause {
            reason: violation.class.as_str(),
            message: violation.message,
            field: violation.field,
        })
        .collect();
    error
}

/// Insisting is for appliers, who also have to say who they are.
fn check_force(query: &Query<'_>, format: Format) -> Result<(), Error> {
    let mut violations = Vec::new();
    if format != Format::Apply && query.force.is_some() {
        violations.push(Violation::forbidden("force", "may not be specified for non-apply patch"));
    }
    if format == Format::Apply && query.field_manager.is_none() {
        violations.push(Violation::required("fieldManager", "is required for apply patch"));
    }
    if violations.is_empty() { Ok(()) } else { Err(invalid_options("PatchOptions", violations)) }
}

/// The manager of a write that names none: the name of the client's program.
fn user_agent(parts: &Parts) -> &str {
    let agent = parts.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    let name = agent.and_then(|agent| agent.split('/').next()).unwrap_or_default();
    let end = name.char_indices().nth(128).map_or(name.len(), |(end, _)| end);
    &name[..end]
}

fn write_options(kind: &str, query: &Query<'_>, parts: &Parts) -> Result<WriteOptions, Error> {
    let mut violations = Vec::new();
    let dry_run = dry_run(query.dry_run.iter().map(AsRef::as_ref), &mut violations);
    let validation = match query.field_validation.as_deref() {
        None | Some("Warn") => Validation::Warn,
        Some("Strict") => Validation::Strict,
        Some("Ignore") => Validation::Ignore,
        Some(other) => {
            let known = ["", "Ignore", "Strict", "Warn"];
            let other = Value::from(other);
            violations.push(Violation::not_supported("fieldValidation", &other, &known));
            Validation::Warn
        }
    };
    let manager = query.field_manager.as_deref().unwrap_or_default();
    if manager.len() > 128 {
        violations.push(Violation::too_long("fieldManager", 128));
    }
    if manager.chars().any(char::is_control) {
        let why = "should only contain printable characters";
        violations.push(Violation::invalid("fieldManager", &Value::from(manager), why));
    }
    if !violations.is_empty() {
        return Err(invalid_options(kind, violations));
    }
    let manager = if manager.is_empty() { user_agent(parts) } else { manager };
    Ok(WriteOptions { dry_run, validation, manager: manager.to_owned(), ..WriteOptions::default() })
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, violations: &mut Vec<Violation>) -> bool {
    let mut dry_run = false;
    for value in values {
        if value == "All" {
            dry_run = true;
        } else {
            violations.push(Violation::not_supported("dryRun", &Value::from(value), &["All"]));
        }
    }
    dry_run
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SentDeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<SentPreconditions>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SentPreconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// The options of a deletion, from the body if there is one, else from the query.
fn delete_options(
    parts: &Parts,
    bytes: &Bytes,
    query: &Query<'_>,
) -> Result<(DeleteOptions, WriteOptions), Error> {
    let sent = if bytes.iter().all(u8::is_ascii_whitespace) {
        let grace = number::<i64>("gracePeriodSeconds", query.grace_period_seconds.as_deref())?;
        SentDeleteOptions {
            grace_period_seconds: grace,
            propagation_policy: query.propagation_policy.as_deref().map(str::to_owned),
            orphan_dependents: query.orphan_dependents,
            ..SentDeleteOptions::default()
        }
    } else {
        let format = negotiate::object_format(content_type(parts))?;
        let object = body::object(format, bytes)?.object;
        let sent = SentDeleteOptions::deserialize(Value::Object(object));
        sent.map_err(|error| Error::bad_request(format!("DeleteOptions: {error}")))?
    };
    if let Some(kind) = sent.kind.as_deref().filter(|kind| !matches!(*kind, "" | "DeleteOptions")) {
        return Err(Error::bad_request(format!("the body is a {kind}, not DeleteOptions")));
    }
    let mut violations = Vec::new();
    let given = sent.dry_run.iter().flatten().map(String::as_str);
    let dry_run = dry_run(given.chain(query.dry_run.iter().map(AsRef::as_ref)), &mut violations);
    if sent.propagation_policy.is_some() && sent.orphan_dependents.is_some() {
        let both = Value::from(sent.propagation_policy.clone());
        let why = "orphanDependents and deletionPropagation cannot be both set";
        violations.push(Violation::invalid("propagationPolicy", &both, why));
    }
    let propagation = match (sent.propagation_policy.as_deref(), sent.orphan_dependents) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
        (Some("Foreground"), _) => Some(Propagation::Foreground),
        (Some("") | None, None) | (Some(""), Some(_)) => None,
        (Some(other), _) => {
            let known = ["Background", "Foreground", "Orphan"];
            let other = Value::from(other);
            violations.push(Violation::not_supported("propagationPolicy", &other, &known));
            None
        }
    };
    if let Some(grace) = sent.grace_period_seconds.filter(|grace| *grace < 0) {
        let why = "must be greater than or equal to 0";
        violations.push(Violation::invalid("gracePeriodSeconds", &Value::from(grace), why));
    }
    if !violations.is_empty() {
        return Err(invalid_options("DeleteOptions", violations));
    }
    let preconditions = sent.preconditions.unwrap_or_default();
    let delete = DeleteOptions {
        uid: preconditions.uid,
        resource_version: preconditions.resource_version,
        grace_period_seconds: sent.grace_period_seconds,
        propagation,
    };
    Ok((delete, WriteOptions { dry_run, ..WriteOptions::default() }))
}
