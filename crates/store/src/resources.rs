//! Objects by kind: how the server and every controller read and write objects.
//!
//! A thin shell around [`crate::strategy`]: it reads the object, lets the strategy decide, and
//! writes with compare-and-swap, again from the start after a conflict. Invariants: no object is
//! written that its kind's rules refuse, an update without a change is not written, and every write
//! of [`Resources::fenced`] is under its fence.

mod delete;
mod identities;
mod namespaces;
mod options;
mod remote_write;
#[cfg(test)]
mod tests;
mod typed;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use crate::admission::{Admission, Proposed};
use crate::apply;
use crate::cache::{Collection, Watch};
use crate::keeper::Keeper;
use crate::object::{Body, Key, Record, Resource, Revision};
use crate::objects::{self, At, Change, Fence, Objects, Scope, Write};
use crate::registry::{Kind, Registry, Typed};
use crate::remote::Remote;
use crate::select::Selection;
pub use crate::status::{Cause, Details, Error, Reason, Violation};
use crate::strategy::{self, Outcome, Stamp, Strictness};
pub use crate::strategy::{DeleteOptions, Propagation, Subresource, Validation};
pub use identities::{CountingIdentities, Identities, RandomIdentities};
use mainstay_clock::Clock;
use options::Origin;
pub use options::{Deleted, Effect, WriteOptions, Written};
pub use typed::{decode, encode};

/// How often a write is tried again after a conflict.
const TRIES: usize = 64;

/// How many generated names are tried.
const NAMES: usize = 8;

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

    /// Whether a keeper handles the writes of a kind.
    #[must_use]
    pub fn is_kept(&self, kind: &Kind) -> bool {
        self.keeper(kind).is_some()
    }

    fn keeper(&self, kind: &Kind) -> Option<&Arc<dyn Keeper>> {
        self.keepers.get(kind.resource())
    }

    /// The remote server, for writes that can be handed over as they are. An apply needs the
    /// fields' owners here, and dry runs are not handed over.
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

    /// The same, but every write is refused once another holder took the lease over.
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
        self.watch_selected(kind, namespace, name, Selection::default(), from).await
    }

    /// The same for the objects that a selection matches: an object that begins to match is added,
    /// one that no longer matches is deleted.
    ///
    /// # Errors
    /// As [`Resources::watch`].
    pub async fn watch_selected(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: Option<&str>,
        selection: Selection,
        from: Revision,
    ) -> Result<Watch, Error> {
        let scope = Scope {
            resource: kind.resource().clone(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            selection,
        };
        let watch = self.objects.watch(scope, from).await;
        watch.map_err(|error| Error::from_store(kind, "", error))
    }

    /// Creates an object. Called twice, the second call finds [`Reason::AlreadyExists`], unless
    /// the name is generated.
    ///
    /// # Errors
    /// Violations of the kind's rules, [`Reason::NotFound`] for a namespace that is not there,
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
            return self.create_remotely(remote, kind, namespace, object).await;
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
    /// Violations of the kind's rules; [`Reason::NotFound`]; [`Reason::Conflict`].
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
            return self.replace_remotely(remote, kind, key, subresource, object).await;
        }
        // The object is needed once more only after a conflict; one that names its
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
    /// after a conflict. An edit that pins a `resourceVersion` is stale then.
    ///
    /// # Errors
    /// Errors of `edit`, violations of the kind's rules; [`Reason::NotFound`]; [`Reason::Conflict`].
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
    /// Violations of the kind's rules; [`Reason::Conflict`] naming the fields that others hold, unless forced.
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
                Ok(remote_write::Edited { differs: object != old, object })
            };
            return self.modify_remotely(remote, kind, key, subresource, edit).await;
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
}

/// Whether a write was refused only because the object changed meanwhile.
fn is_race(error: &Error) -> bool {
    error.is_conflict() && error.message.ends_with(crate::status::STALE)
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

/// An error of the store, where no kind is known.
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
