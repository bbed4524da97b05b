//! Publishes sessions and instances as objects in the store's memory.
//!
//! The engine names changed sessions and instances; objects are written a little later and together, so that an object
//! that changes often is written seldom. A request is answered only after its session was written.

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

/// A session's object and its version in the store.
#[derive(Debug)]
struct PublishedSession {
    /// The object without its status, which is added as its last field.
    object: Body,
    uid: String,
    created: Revision,
    revision: Option<Revision>,
}

/// The part of an instance's object that the engine does not know.
#[derive(Debug)]
struct PublishedInstance {
    uid: String,
    revision: Option<Revision>,
}

/// An instance as it is serialized, with its fields in alphabetical order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InstanceObject<'a> {
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

/// The text before the version in a serialized object.
const VERSION_FIELD: &[u8] = b"\"resourceVersion\":\"";

/// Published objects, and the names of those that changed since.
#[derive(Debug)]
pub(super) struct Publisher {
    objects: Arc<dyn Objects>,
    sessions: Resource,
    instances: Resource,
    gateway: String,
    published: HashMap<Key, PublishedSession>,
    published_instances: HashMap<Key, PublishedInstance>,
    changed: HashSet<Key>,
    changed_instances: HashSet<Key>,
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
            published: HashMap::new(),
            published_instances: HashMap::new(),
            changed: HashSet::new(),
            changed_instances: HashSet::new(),
            gone_instances: HashSet::new(),
        }
    }

    /// Takes a session's object as its user wrote it, and returns it without its status. Called again,
    /// it replaces the object.
    pub(super) fn set_object(&mut self, session: &Key, mut object: Prepared) -> &[u8] {
        object.remove("status");
        let uid = object.get("metadata").and_then(|metadata| metadata["uid"].as_str());
        let uid = uid.unwrap_or_default().to_owned();
        let object = Body::new(&object);
        let known = self.published.remove(session);
        let (created, revision) =
            known.map_or((Revision::ZERO, None), |known| (known.created, known.revision));
        let published = self.published.entry(session.clone());
        published.or_insert(PublishedSession { object, uid, created, revision }).object.json()
    }

    /// The uid of a session's object, if it is known.
    pub(super) fn session_uid(&self, session: &Key) -> Option<String> {
        self.published.get(session).map(|published| published.uid.clone())
    }

    /// The uid of an instance's object, if it was published.
    pub(super) fn instance_uid(&self, instance: &Key) -> Option<String> {
        self.published_instances.get(instance).map(|published| published.uid.clone())
    }

    pub(super) fn forget(&mut self, session: &Key) {
        self.published.remove(session);
    }

    pub(super) fn session_changed(&mut self, session: Key) {
        self.changed.insert(session);
    }

    pub(super) fn instance_changed(&mut self, instance: Key) {
        self.changed_instances.insert(instance);
    }

    pub(super) fn instance_gone(&mut self, instance: Key) {
        self.changed_instances.remove(&instance);
        self.gone_instances.insert(instance);
    }

    /// Whether sessions changed, and whether instances did.
    pub(super) fn has_changes(&self) -> (bool, bool) {
        let instances = !self.changed_instances.is_empty() || !self.gone_instances.is_empty();
        (!self.changed.is_empty(), instances)
    }

    /// Publishes the sessions that changed.
    pub(super) async fn publish_sessions(&mut self, engine: &Engine) {
        for session in std::mem::take(&mut self.changed) {
            self.publish(engine, &session).await;
        }
    }

    /// Publishes the instances that changed.
    pub(super) async fn publish_instances(&mut self, engine: &Engine) {
        for instance in std::mem::take(&mut self.gone_instances) {
            self.remove_instance(&instance).await;
        }
        for instance in std::mem::take(&mut self.changed_instances) {
            self.publish_instance(engine, &instance).await;
        }
    }

    /// Publishes a session as it is now.
    pub(super) async fn publish(&mut self, engine: &Engine, session: &Key) -> Option<Arc<Record>> {
        self.changed.remove(session);
        let status = engine.session_status(session, &self.gateway)?;
        if !self.published.contains_key(session) {
            // A session reported by a node: its object is the one that the node was given.
            let object: Value = serde_json::from_slice(engine.session_object(session)?).ok()?;
            let Value::Object(object) = object else { return None };
            self.set_object(session, object);
        }
        let published = self.published.get_mut(session)?;
        let body = published.object.with_last("status", &status)?;
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let written = write(&*self.objects, key, published.revision, body).await?;
        published.revision = Some(written.revision());
        published.created = written.created();
        Some(written)
    }

    /// Removes a session's object, and returns it as it last was.
    pub(super) async fn remove(
        &mut self,
        session: &Key,
        last: &SessionStatus,
    ) -> Option<Arc<Record>> {
        self.changed.remove(session);
        let published = self.published.remove(session)?;
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let revision = published.revision?;
        remove(&*self.objects, key.clone(), revision).await;
        let last = published.object.with_last("status", last)?;
        Some(Arc::new(last.at(key, published.created, revision)))
    }

    async fn publish_instance(&mut self, engine: &Engine, instance: &Key) -> Option<()> {
        let (spec, status, created) = engine.instance_view(instance)?;
        let (namespace, name) = parts(instance);
        let published = self
            .published_instances
            .entry(instance.clone())
            .or_insert_with(|| PublishedInstance { uid: RandomIdentities.uid(), revision: None });
        let object = InstanceObject {
            api_version: API_VERSION,
            kind: Instance::KIND,
            metadata: Metadata {
                creation_timestamp: Time::new(created),
                labels: Labels { application: &spec.application_name },
                name,
                namespace,
                resource_version: "",
                uid: &published.uid,
            },
            spec: &spec,
            status: &status,
        };
        let json = serde_json::to_vec(&object).ok()?;
        let hole = memchr::memmem::find(&json, VERSION_FIELD)? + VERSION_FIELD.len();
        let body = Body::from_parts(json, hole)?;
        let key = object::Key::new(&self.instances, Some(namespace), name);
        let written = write(&*self.objects, key, published.revision, body).await?;
        published.revision = Some(written.revision());
        Some(())
    }

    async fn remove_instance(&mut self, instance: &Key) {
        let Some(published) = self.published_instances.remove(instance) else { return };
        let (namespace, name) = parts(instance);
        let key = object::Key::new(&self.instances, Some(namespace), name);
        if let Some(revision) = published.revision {
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
            tracing::warn!(%error, "session or instance could not be published");
            None
        }
    }
}

async fn remove(objects: &dyn Objects, key: object::Key, before: Revision) {
    let write = Write { key, change: Change::Delete(before), fence: None };
    match objects.write(write).await {
        Ok(_) | Err(objects::Error::Closed | objects::Error::NotFound { .. }) => {}
        Err(error) => {
            tracing::warn!(%error, "session or instance could not be removed from the store")
        }
    }
}
