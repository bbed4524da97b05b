//! Objects by kind: the one way in and out for the server and for every controller.
//!
//! A thin shell around [`crate::strategy`]: it reads what is there, lets the strategy decide, and
//! writes with compare-and-swap, again from the start if somebody else was faster. What always
//! holds: nothing is written that its kind's rules refuse, a write that changes nothing writes
//! nothing, and every write of [`Resources::fenced`] is under its fence.

mod elsewhere;
#[cfg(test)]
mod tests;
mod typed;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use crate::admission::{Admission, Proposed};
use crate::apply::{self, Writer};
use crate::cache::{Collection, Watch};
use crate::clock::Clock;
use crate::keeper::Keeper;
use crate::object::{Body, Key, Record, Resource, Revision};
use crate::objects::{self, At, Change, Fence, Objects, Scope, Write};
use crate::registry::{Kind, Registry, Typed};
use crate::remote::Remote;
use crate::select::Selection;
pub use crate::status::{Cause, Details, Error, Reason, Violation};
use crate::strategy::{self, Deletion, Outcome, Stamp, Strictness};
pub use crate::strategy::{DeleteOptions, Propagation, Subresource, Validation};
pub use typed::{decode, encode};

/// How often a write is tried again when somebody else was faster.
const TRIES: usize = 64;

/// How many generated names are tried.
const NAMES: usize = 8;

/// Where new identities come from.
pub trait Identities: Send + Sync + fmt::Debug {
    /// An identity nobody ever had.
    fn uid(&self) -> String;

    /// A random ending for a name: five characters that cannot spell a word.
    fn name_suffix(&self) -> String;
}

/// Identities as they should be: unpredictable.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIdentities;

impl Identities for RandomIdentities {
    #[expect(clippy::disallowed_methods, reason = "this is where identities are made")]
    fn uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    #[expect(clippy::disallowed_methods, reason = "this is where identities are made")]
    fn name_suffix(&self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut random = uuid::Uuid::new_v4().as_u128();
        let mut suffix = String::with_capacity(5);
        for _ in 0..5 {
            let at = usize::try_from(random % 27).unwrap_or(0);
            suffix.push(char::from(ALPHABET[at]));
            random /= 27;
        }
        suffix
    }
}

/// Identities for tests: they count.
#[derive(Debug, Default)]
pub struct CountingIdentities {
    next: std::sync::atomic::AtomicU64,
}

impl CountingIdentities {
    fn count(&self) -> u64 {
        self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Identities for CountingIdentities {
    fn uid(&self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.count())
    }

    fn name_suffix(&self) -> String {
        format!("{:05}", self.count() % 100_000)
    }
}

/// How a write is done.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Everything but the writing.
    pub dry_run: bool,
    /// What is done about unknown fields.
    pub validation: Validation,
    /// Who writes, for `metadata.managedFields`; nobody is noted if it is empty.
    pub manager: String,
    /// Whether an applier takes over what others hold.
    pub force: bool,
    /// Paths of fields that occurred twice in the body.
    pub duplicates: Vec<String>,
    /// The lease under which it is written; wins over that of [`Resources::fenced`].
    pub fence: Option<Fence>,
    /// Judges the write on the object as it would be stored; without one, everything is admitted.
    pub admission: Option<Arc<dyn Admission>>,
}

impl WriteOptions {
    fn writer(&self, subresource: Option<Subresource>, now: jiff::Timestamp) -> Writer<'_> {
        Writer { manager: &self.manager, subresource, now }
    }

    async fn touch(&self, stored: &Map<String, Value>) -> Result<(), Error> {
        match &self.admission {
            None => Ok(()),
            Some(admission) => admission.touch(stored).await,
        }
    }

    async fn admit(
        &self,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) -> Result<(), Error> {
        match &self.admission {
            None => Ok(()),
            Some(admission) => admission.admit(Proposed { old, new }).await,
        }
    }
}

/// How a write came about, which decides who is noted as the holder of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Whoever writes holds what changed.
    Update,
    /// The configuration says it already.
    Apply,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object is new.
    Created,
    /// The object changed.
    Changed,
    /// The object was so already: nothing was written.
    Unchanged,
    /// The last finalizer went, and the object with it.
    Removed,
}

/// A write that went well.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as it is now.
    pub record: Arc<Record>,
    /// What the client should be told.
    pub warnings: Vec<String>,
    /// What happened.
    pub effect: Effect,
}

/// A deletion that went well.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone; this is what it last was.
    Removed(Arc<Record>),
    /// Finalizers hold it back; it goes when they are gone.
    Marked(Arc<Record>),
}

impl Deleted {
    /// The object.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        match self {
            Self::Removed(record) | Self::Marked(record) => record,
        }
    }
}

/// Objects by kind.
#[derive(Clone, Debug)]
pub struct Resources {
    objects: Arc<dyn Objects>,
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    identities: Arc<dyn Identities>,
    fence: Option<Fence>,
    keepers: Arc<HashMap<Resource, Arc<dyn Keeper>>>,
}

impl Resources {
    /// Objects of the kinds in `registry`, kept in `objects`.
    #[must_use]
    pub fn new(
        objects: Arc<dyn Objects>,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        identities: Arc<dyn Identities>,
    ) -> Self {
        Self { objects, registry, clock, identities, fence: None, keepers: Arc::default() }
    }

    /// The same, but writes of these collections go to their keepers.
    #[must_use]
    pub fn kept(&self, keepers: HashMap<Resource, Arc<dyn Keeper>>) -> Self {
        Self { keepers: Arc::new(keepers), ..self.clone() }
    }

    /// Whether somebody keeps the objects of a kind.
    #[must_use]
    pub fn is_kept(&self, kind: &Kind) -> bool {
        self.keeper(kind).is_some()
    }

    fn keeper(&self, kind: &Kind) -> Option<&Arc<dyn Keeper>> {
        self.keepers.get(kind.resource())
    }

    /// Whoever keeps the objects elsewhere, for what can be handed over as it is. An apply needs
    /// the fields' owners here, and what is tried out is not handed over.
    fn remote(&self, options: &WriteOptions, origin: Origin) -> Option<&dyn Remote> {
        let plain = origin == Origin::Update && !options.dry_run && options.fence.is_none();
        let judged_there = self.fence.is_none() && options.admission.is_none();
        self.objects.remote().filter(|_| plain && judged_there)
    }

    /// The store below.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// The kinds.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The time.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The same, but every write is refused once somebody else took the lease over.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// The lease under which everything is written, if any.
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// One object as it is now.
    ///
    /// # Errors
    /// [`Reason::NotFound`].
    pub async fn get(&self, kind: &Kind, key: &Key) -> Result<Arc<Record>, Error> {
        let found = self.objects.get(key).await;
        found
            .map_err(|error| Error::from_store(kind, key.name(), error))?
            .ok_or_else(|| Error::not_found(kind, key.name()))
    }

    /// As [`Resources::get`], also of an object that is gone and whose keeper still shows it.
    ///
    /// # Errors
    /// [`Reason::NotFound`].
    pub async fn read(&self, kind: &Kind, key: &Key) -> Result<Arc<Record>, Error> {
        match self.get(kind, key).await {
            Err(error) if error.is_not_found() => {
                let recalled = self.keeper(kind).and_then(|keeper| keeper.recall(key));
                recalled.ok_or(error)
            }
            other => other,
        }
    }

    /// The objects of a kind.
    ///
    /// # Errors
    /// [`Reason::Expired`] or [`Reason::Timeout`] if that state cannot be had.
    pub async fn list(&self, kind: &Kind, at: At) -> Result<Collection, Error> {
        let listed = self.objects.collection(kind.resource(), at).await;
        listed.map_err(|error| Error::from_store(kind, "", error))
    }

    /// Every change of objects of a kind after `from`, of one namespace or name if given.
    ///
    /// # Errors
    /// [`Reason::Expired`] or [`Reason::Timeout`] if that state cannot be had.
    pub async fn watch(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: Option<&str>,
        from: Revision,
    ) -> Result<Watch, Error> {
        let scope = Scope {
            resource: kind.resource().clone(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            selection: Selection::default(),
        };
        let watch = self.objects.watch(scope, from).await;
        watch.map_err(|error| Error::from_store(kind, "", error))
    }

    /// Creates an object. Called twice, the second call finds [`Reason::AlreadyExists`], unless
    /// the name is generated.
    ///
    /// # Errors
    /// Whatever the kind's rules say, [`Reason::NotFound`] for a namespace that is not there,
    /// [`Reason::Forbidden`] for one that is being deleted.
    pub async fn create(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        object: Map<String, Value>,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        self.create_by(kind, namespace, object, options, Origin::Update).await
    }

    async fn create_by(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        object: Map<String, Value>,
        options: &WriteOptions,
        origin: Origin,
    ) -> Result<Written, Error> {
        if let Some(remote) = self.remote(options, origin) {
            return self.create_there(remote, kind, namespace, object).await;
        }
        let strictness =
            Strictness { validation: options.validation, duplicates: &options.duplicates };
        let generates = needs_name(&object);
        let mut spare = generates.then(|| object.clone());
        let mut given = Some(object);
        let mut tries = NAMES;
        loop {
            tries -= 1;
            let again = spare.as_ref().filter(|_| tries > 0).cloned();
            let Some(object) = given.take().or_else(|| spare.take()) else {
                return Err(Error::internal("no object to create"));
            };
            let stamp = Stamp {
                now: self.clock.now(),
                uid: self.identities.uid(),
                name_suffix: if generates { self.identities.name_suffix() } else { String::new() },
            };
            let mut prepared =
                strategy::prepare_create(kind, namespace, object, &stamp, strictness)?;
            if origin == Origin::Update && !self.is_kept(kind) {
                let writer = options.writer(None, stamp.now);
                apply::track(kind, None, &mut prepared.object, &prepared.filled, writer);
            }
            options.admit(None, Some(&prepared.object)).await?;
            if kind.namespaced {
                self.check_namespace(kind, namespace.unwrap_or_default(), &prepared.name).await?;
            }
            let key = kind.key(namespace, &prepared.name);
            let written = match self.keeper(kind) {
                Some(keeper) if !options.dry_run => keeper.create(key, prepared.object).await,
                keeper => {
                    if let Some(refusal) = keeper.and_then(|keeper| keeper.read_only()) {
                        return Err(refusal);
                    }
                    let body = Body::new(&prepared.object);
                    if options.dry_run {
                        self.pretend_to_create(kind, key, &body).await
                    } else {
                        self.write(kind, key, Change::Create(body), options).await
                    }
                }
            };
            match written {
                Ok(record) => {
                    return Ok(Written {
                        record,
                        warnings: prepared.warnings,
                        effect: Effect::Created,
                    });
                }
                Err(error) if error.is_already_exists() && prepared.generated => {
                    if again.is_none() {
                        return Err(Error::name_not_generated(kind, &prepared.name));
                    }
                    spare = again;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces an object, or a part of it. An object without `resourceVersion` replaces whatever
    /// is there. Called twice, the second call changes nothing.
    ///
    /// # Errors
    /// Whatever the kind's rules say; [`Reason::NotFound`]; [`Reason::Conflict`].
    pub async fn replace(
        &self,
        kind: &Kind,
        key: &Key,
        object: Map<String, Value>,
        subresource: Option<Subresource>,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        if names_version(&object)
            && let Some(remote) = self.remote(options, Origin::Update)
        {
            return self.replace_there(remote, kind, key, subresource, object).await;
        }
        // The object is needed once more only if somebody else is faster; one that names its
        // version is stale then.
        let mut object = Some(object);
        let pinned = object.as_ref().is_some_and(names_version);
        self.modify(kind, key, subresource, options, move |_| {
            let given = if pinned { object.take() } else { object.clone() };
            given.ok_or_else(|| Error::stale(kind, key.name()))
        })
        .await
    }

    /// Reads an object, lets `edit` make the next one of it, and writes that; again from the start
    /// if somebody else was faster. An edit that pins a `resourceVersion` is stale then.
    ///
    /// # Errors
    /// Whatever `edit` or the kind's rules say; [`Reason::NotFound`]; [`Reason::Conflict`].
    pub async fn modify(
        &self,
        kind: &Kind,
        key: &Key,
        subresource: Option<Subresource>,
        options: &WriteOptions,
        edit: impl FnMut(&Map<String, Value>) -> Result<Map<String, Value>, Error> + Send,
    ) -> Result<Written, Error> {
        self.modify_by(kind, key, subresource, options, Origin::Update, edit).await
    }

    /// Applies a configuration on behalf of `options.manager`: creates the object if it is not
    /// there, and otherwise makes it say what the configuration says. Called twice, the second
    /// call changes nothing.
    ///
    /// # Errors
    /// Whatever the kind's rules say; [`Reason::Conflict`] naming the fields that others hold, unless forced.
    pub async fn apply(
        &self,
        kind: &Kind,
        key: &Key,
        mut config: Map<String, Value>,
        subresource: Option<Subresource>,
        options: &WriteOptions,
    ) -> Result<Written, Error> {
        let strictness =
            Strictness { validation: options.validation, duplicates: &options.duplicates };
        let warnings = strategy::prepare_apply(kind, key, &mut config, strictness)?;
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let writer = options.writer(subresource, self.clock.now());
            let edit = |live: &Map<String, Value>| {
                apply::apply(kind, Some(live), &config, writer, options.force)
            };
            let applied =
                self.modify_by(kind, key, subresource, options, Origin::Apply, edit).await;
            let written = match applied {
                Err(error) if error.is_not_found() && subresource.is_none() => {
                    let uid = metadata_text(&config, "uid");
                    if !uid.is_empty() {
                        let why = format!(
                            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                        );
                        return Err(Error::conflict(kind, key.name(), &why));
                    }
                    let object = apply::apply(kind, None, &config, writer, options.force)?;
                    let namespace = key.namespace();
                    self.create_by(kind, namespace, object, options, Origin::Apply).await
                }
                other => other,
            };
            match written {
                Err(error) if error.is_already_exists() && tries > 0 => {}
                Err(error) => return Err(error),
                Ok(mut written) => {
                    written.warnings.splice(0..0, warnings);
                    return Ok(written);
                }
            }
        }
    }

    async fn modify_by(
        &self,
        kind: &Kind,
        key: &Key,
        subresource: Option<Subresource>,
        options: &WriteOptions,
        origin: Origin,
        mut edit: impl FnMut(&Map<String, Value>) -> Result<Map<String, Value>, Error> + Send,
    ) -> Result<Written, Error> {
        if let Some(remote) = self.remote(options, origin) {
            let edit = |record: &Record| {
                let old = record.object();
                let object = edit(&old)?;
                Ok(elsewhere::Edited { differs: object != old, object })
            };
            return self.modify_there(remote, kind, key, subresource, edit).await;
        }
        let strictness =
            Strictness { validation: options.validation, duplicates: &options.duplicates };
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let record = self.get(kind, key).await?;
            let old = record.object();
            options.touch(&old).await?;
            let new = edit(&old)?;
            let mut update =
                strategy::prepare_update(kind, key, &old, new, subresource, strictness)?;
            if let (Outcome::Write(object), Origin::Update, false) =
                (&mut update.outcome, origin, self.is_kept(kind))
            {
                let writer = options.writer(subresource, self.clock.now());
                apply::track(kind, Some(&old), object, &update.filled, writer);
                if *object == old {
                    update.outcome = Outcome::Unchanged;
                }
            }
            let next = match &update.outcome {
                Outcome::Write(object) | Outcome::Remove(object) => object,
                Outcome::Unchanged => &old,
            };
            options.admit(Some(&old), Some(next)).await?;
            let keeper = self.keeper(kind).filter(|_| !options.dry_run);
            let (change, body, effect) = match update.outcome {
                Outcome::Write(object) if let Some(keeper) = keeper => {
                    let record = match keeper.update(key.clone(), record, object).await {
                        Err(error) if is_race(&error) && tries > 0 => continue,
                        written => written?,
                    };
                    let warnings = update.warnings;
                    return Ok(Written { record, warnings, effect: Effect::Changed });
                }
                Outcome::Remove(_) if let Some(keeper) = keeper => {
                    let record = keeper.remove(key.clone(), record).await?;
                    let warnings = update.warnings;
                    return Ok(Written { record, warnings, effect: Effect::Removed });
                }
                Outcome::Unchanged => {
                    return Ok(Written {
                        record,
                        warnings: update.warnings,
                        effect: Effect::Unchanged,
                    });
                }
                Outcome::Write(_)
                    if let Some(refusal) = self.keeper(kind).and_then(|it| it.read_only()) =>
                {
                    return Err(refusal);
                }
                Outcome::Write(object) => {
                    let body = Body::new(&object);
                    let change = Change::Update(record.revision(), body.clone());
                    (change, body, Effect::Changed)
                }
                Outcome::Remove(object) => {
                    let change = Change::Delete(record.revision());
                    (change, Body::new(&object), Effect::Removed)
                }
            };
            let written = if options.dry_run {
                Ok(Arc::new(body.at(key.clone(), record.created(), record.revision())))
            } else {
                self.write(kind, key.clone(), change, options).await
            };
            match written {
                Ok(record) => {
                    let record = match effect {
                        Effect::Removed => {
                            Arc::new(body.at(key.clone(), record.created(), record.revision()))
                        }
                        _ => record,
                    };
                    return Ok(Written { record, warnings: update.warnings, effect });
                }
                Err(error) if is_race(&error) && tries > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes an object, or marks it as being deleted if finalizers hold it back. Called twice,
    /// the second call finds it marked, or [`Reason::NotFound`].
    ///
    /// # Errors
    /// [`Reason::NotFound`]; [`Reason::Conflict`] if a precondition does not hold.
    pub async fn delete(
        &self,
        kind: &Kind,
        key: &Key,
        delete: &DeleteOptions,
        options: &WriteOptions,
    ) -> Result<Deleted, Error> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let record = self.get(kind, key).await?;
            let old = record.object();
            options.touch(&old).await?;
            options.admit(Some(&old), None).await?;
            let now = self.clock.now();
            let keeper = self.keeper(kind).filter(|_| !options.dry_run);
            let written = match strategy::prepare_delete(kind, key, &old, delete, now)? {
                Deletion::AlreadyMarked => return Ok(Deleted::Marked(record)),
                Deletion::Remove if options.dry_run => return Ok(Deleted::Removed(record)),
                Deletion::Remove if let Some(keeper) = keeper => {
                    return keeper.remove(key.clone(), record).await.map(Deleted::Removed);
                }
                Deletion::Mark(object) if let Some(keeper) = keeper => {
                    return keeper.update(key.clone(), record, object).await.map(Deleted::Marked);
                }
                Deletion::Remove => {
                    let change = Change::Delete(record.revision());
                    let written = self.write(kind, key.clone(), change, options).await;
                    written.map(Deleted::Removed)
                }
                Deletion::Mark(object) => {
                    let body = Body::new(&object);
                    if options.dry_run {
                        let marked = body.at(key.clone(), record.created(), record.revision());
                        return Ok(Deleted::Marked(Arc::new(marked)));
                    }
                    let change = Change::Update(record.revision(), body);
                    let written = self.write(kind, key.clone(), change, options).await;
                    written.map(Deleted::Marked)
                }
            };
            match written {
                Err(error) if is_race(&error) && tries > 0 => {}
                other => return other,
            }
        }
    }

    /// The kind of a Rust type.
    ///
    /// # Errors
    /// [`Reason::InternalError`] if it is not registered.
    pub fn kind_of<T: Typed>(&self) -> Result<&Arc<Kind>, Error> {
        self.registry
            .of::<T>()
            .ok_or_else(|| Error::internal(format!("the kind {} is not registered", T::KIND)))
    }

    async fn write(
        &self,
        kind: &Kind,
        key: Key,
        change: Change,
        options: &WriteOptions,
    ) -> Result<Arc<Record>, Error> {
        let name = key.name().to_owned();
        let write =
            Write { key, change, fence: options.fence.clone().or_else(|| self.fence.clone()) };
        match self.objects.write(write).await {
            Ok(event) => Ok(event.record.clone()),
            Err(error) => Err(Error::from_store(kind, &name, error)),
        }
    }

    async fn pretend_to_create(
        &self,
        kind: &Kind,
        key: Key,
        body: &Body,
    ) -> Result<Arc<Record>, Error> {
        match self.objects.get(&key).await {
            Ok(None) => Ok(Arc::new(body.at(key, Revision::ZERO, Revision::ZERO))),
            Ok(Some(_)) => Err(Error::already_exists(kind, key.name())),
            Err(error) => Err(Error::from_store(kind, key.name(), error)),
        }
    }

    /// Checks that objects may be created in a namespace.
    async fn check_namespace(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Error> {
        let Some(spaces) = self.registry.find("", "v1", "namespaces") else {
            return Ok(());
        };
        let key = spaces.key(None, namespace);
        let found = self.objects.get(&key).await;
        let found = found.map_err(|error| Error::from_store(spaces, namespace, error))?;
        let record = found.ok_or_else(|| Error::not_found(spaces, namespace))?;
        if is_record_marked(&record) {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = Error::forbidden(kind, name, &why);
            error.details.causes.push(Cause {
                reason: "NamespaceTerminating",
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
            return Err(error);
        }
        Ok(())
    }
}

/// Whether a refusal only says that somebody else was faster.
fn is_race(error: &Error) -> bool {
    error.is_conflict() && error.message.ends_with(crate::status::STALE)
}

fn is_record_marked(record: &Record) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Shell {
        metadata: Metadata,
    }
    serde_json::from_slice::<Shell>(record.json())
        .is_ok_and(|shell| shell.metadata.deletion_timestamp.is_some())
}

fn metadata_text<'a>(object: &'a Map<String, Value>, name: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn names_version(object: &Map<String, Value>) -> bool {
    !metadata_text(object, "resourceVersion").is_empty()
}

fn needs_name(object: &Map<String, Value>) -> bool {
    metadata_text(object, "name").is_empty() && !metadata_text(object, "generateName").is_empty()
}

/// What the store said, where no kind is known.
impl From<objects::Error> for Error {
    fn from(error: objects::Error) -> Self {
        let reason = match &error {
            objects::Error::AlreadyExists { .. } => Reason::AlreadyExists,
            objects::Error::NotFound { .. } => Reason::NotFound,
            objects::Error::Conflict { .. } | objects::Error::Fenced { .. } => Reason::Conflict,
            objects::Error::Expired { .. } => Reason::Expired,
            objects::Error::TooNew { .. } => Reason::Timeout,
            objects::Error::TooLarge { .. } => Reason::RequestEntityTooLarge,
            objects::Error::Busy { .. } => Reason::TooManyRequests,
            objects::Error::Full { .. } => Reason::InsufficientStorage,
            objects::Error::Refused { reason, .. } => *reason,
            objects::Error::Unavailable { .. } | objects::Error::Closed => {
                Reason::ServiceUnavailable
            }
        };
        Self::new(reason, error.to_string())
    }
}
