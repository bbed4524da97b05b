//! Sessions and instances as objects in the store's memory.
//!
//! The engine says what changed; objects are written a little later and together, so that what
//! changes often is written seldom. Whoever is answered is answered after their own object was
//! written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mainstay_store::keeper::Prepared;
use mainstay_store::meta::Time;
use mainstay_store::object::{self, Body, Record, Resource, Revision};
use mainstay_store::objects::{self, Change, Objects, Write};
use mainstay_store::registry::Typed;
use mainstay_store::resources::{Identities, RandomIdentities};
use serde::Serialize;
use serde_json::Value;

use crate::api::{ApplicationSession, Instance, InstanceSpec, InstanceStatus, SessionStatus};
use crate::engine::{Engine, Key, parts};

/// A session's object: what its user wrote, and where it stands.
#[derive(Debug)]
struct Shown {
    /// All but the status, which comes last.
    object: Body,
    uid: String,
    created: Revision,
    revision: Option<Revision>,
}

/// An instance's object: what does not follow from the engine.
#[derive(Debug)]
struct ShownInstance {
    uid: String,
    revision: Option<Revision>,
}

/// An instance as it is written, with its fields in the order of the alphabet.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shape<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    spec: &'a InstanceSpec,
    status: &'a InstanceStatus,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    creation_timestamp: Time,
    labels: Labels<'a>,
    name: &'a str,
    namespace: &'a str,
    resource_version: &'a str,
    uid: &'a str,
}

/// The label that names an instance's application.
#[derive(Serialize)]
struct Labels<'a> {
    #[serde(rename = "apps.mainstay.dev/application")]
    application: &'a str,
}

const API_VERSION: &str = "apps.mainstay.dev/v1";

/// What stands before the version of an object.
const VERSION_FIELD: &[u8] = b"\"resourceVersion\":\"";

/// What is shown, and what has to be shown anew.
#[derive(Debug)]
pub(super) struct Publisher {
    objects: Arc<dyn Objects>,
    sessions: Resource,
    instances: Resource,
    gateway: String,
    shown: HashMap<Key, Shown>,
    shown_instances: HashMap<Key, ShownInstance>,
    dirty: HashSet<Key>,
    dirty_instances: HashSet<Key>,
    gone_instances: HashSet<Key>,
}

fn collection<T: Typed>() -> Resource {
    Resource::new(T::GROUP, T::PLURAL)
}

impl Publisher {
    pub(super) fn new(objects: Arc<dyn Objects>, gateway: String) -> Self {
        Self {
            objects,
            sessions: collection::<ApplicationSession>(),
            instances: collection::<Instance>(),
            gateway,
            shown: HashMap::new(),
            shown_instances: HashMap::new(),
            dirty: HashSet::new(),
            dirty_instances: HashSet::new(),
            gone_instances: HashSet::new(),
        }
    }

    /// What a session's user wrote, as it will be shown without its status. Told again, it replaces
    /// what was written before.
    pub(super) fn know(&mut self, session: &Key, mut object: Prepared) -> &[u8] {
        object.remove("status");
        let uid = object.get("metadata").and_then(|metadata| metadata["uid"].as_str());
        let uid = uid.unwrap_or_default().to_owned();
        let object = Body::new(&object);
        let known = self.shown.remove(session);
        let (created, revision) =
            known.map_or((Revision::ZERO, None), |known| (known.created, known.revision));
        let shown = self.shown.entry(session.clone());
        shown.or_insert(Shown { object, uid, created, revision }).object.json()
    }

    /// The identity of a session's object, if it is known.
    pub(super) fn session_uid(&self, session: &Key) -> Option<String> {
        self.shown.get(session).map(|shown| shown.uid.clone())
    }

    /// The identity of an instance's object, if it was shown.
    pub(super) fn instance_uid(&self, instance: &Key) -> Option<String> {
        self.shown_instances.get(instance).map(|shown| shown.uid.clone())
    }

    pub(super) fn forget(&mut self, session: &Key) {
        self.shown.remove(session);
    }

    pub(super) fn session_changed(&mut self, session: Key) {
        self.dirty.insert(session);
    }

    pub(super) fn instance_changed(&mut self, instance: Key) {
        self.dirty_instances.insert(instance);
    }

    pub(super) fn instance_gone(&mut self, instance: Key) {
        self.dirty_instances.remove(&instance);
        self.gone_instances.insert(instance);
    }

    /// Whether sessions changed, and whether instances did.
    pub(super) fn has_news(&self) -> (bool, bool) {
        let instances = !self.dirty_instances.is_empty() || !self.gone_instances.is_empty();
        (!self.dirty.is_empty(), instances)
    }

    /// Shows the sessions that changed.
    pub(super) async fn publish_sessions(&mut self, engine: &Engine) {
        for session in std::mem::take(&mut self.dirty) {
            self.show(engine, &session).await;
        }
    }

    /// Shows the instances that changed.
    pub(super) async fn publish_instances(&mut self, engine: &Engine) {
        for instance in std::mem::take(&mut self.gone_instances) {
            self.hide_instance(&instance).await;
        }
        for instance in std::mem::take(&mut self.dirty_instances) {
            self.show_instance(engine, &instance).await;
        }
    }

    /// Shows a session as it is now.
    pub(super) async fn show(&mut self, engine: &Engine, session: &Key) -> Option<Arc<Record>> {
        self.dirty.remove(session);
        let status = engine.session_status(session, &self.gateway)?;
        if !self.shown.contains_key(session) {
            // A session that a node brought along: its object is what the node was told.
            let object: Value = serde_json::from_slice(engine.session_object(session)?).ok()?;
            let Value::Object(object) = object else { return None };
            self.know(session, object);
        }
        let shown = self.shown.get_mut(session)?;
        let body = shown.object.with_last("status", &status)?;
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let written = write(&*self.objects, key, shown.revision, body).await?;
        shown.revision = Some(written.revision());
        shown.created = written.created();
        Some(written)
    }

    /// Takes a session's object away; what it last was comes back.
    pub(super) async fn hide(
        &mut self,
        session: &Key,
        last: &SessionStatus,
    ) -> Option<Arc<Record>> {
        self.dirty.remove(session);
        let shown = self.shown.remove(session)?;
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let revision = shown.revision?;
        remove(&*self.objects, key.clone(), revision).await;
        let last = shown.object.with_last("status", last)?;
        Some(Arc::new(last.at(key, shown.created, revision)))
    }

    async fn show_instance(&mut self, engine: &Engine, instance: &Key) -> Option<()> {
        let (spec, status, created) = engine.instance_view(instance)?;
        let (namespace, name) = parts(instance);
        let shown = self
            .shown_instances
            .entry(instance.clone())
            .or_insert_with(|| ShownInstance { uid: RandomIdentities.uid(), revision: None });
        let object = Shape {
            api_version: API_VERSION,
            kind: Instance::KIND,
            metadata: Metadata {
                creation_timestamp: Time::new(created),
                labels: Labels { application: &spec.application_name },
                name,
                namespace,
                resource_version: "",
                uid: &shown.uid,
            },
            spec: &spec,
            status: &status,
        };
        let json = serde_json::to_vec(&object).ok()?;
        let hole = memchr::memmem::find(&json, VERSION_FIELD)? + VERSION_FIELD.len();
        let body = Body::from_parts(json, hole)?;
        let key = object::Key::new(&self.instances, Some(namespace), name);
        let written = write(&*self.objects, key, shown.revision, body).await?;
        shown.revision = Some(written.revision());
        Some(())
    }

    async fn hide_instance(&mut self, instance: &Key) {
        let Some(shown) = self.shown_instances.remove(instance) else { return };
        let (namespace, name) = parts(instance);
        let key = object::Key::new(&self.instances, Some(namespace), name);
        if let Some(revision) = shown.revision {
            remove(&*self.objects, key, revision).await;
        }
    }
}

async fn write(
    objects: &dyn Objects,
    key: object::Key,
    before: Option<Revision>,
    body: Body,
) -> Option<Arc<Record>> {
    let change = match before {
        Some(revision) => Change::Update(revision, body),
        None => Change::Create(body),
    };
    match objects.write(Write { key, change, fence: None }).await {
        Ok(event) => Some(event.record.clone()),
        Err(objects::Error::Closed) => None,
        Err(error) => {
            tracing::warn!(%error, "an object could not be shown");
            None
        }
    }
}

async fn remove(objects: &dyn Objects, key: object::Key, before: Revision) {
    let write = Write { key, change: Change::Delete(before), fence: None };
    match objects.write(write).await {
        Ok(_) | Err(objects::Error::Closed | objects::Error::NotFound { .. }) => {}
        Err(error) => tracing::warn!(%error, "an object could not be taken away"),
    }
}
