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
use mainstay_store::resources::{Identities, RandomIdentities};
use serde_json::{Map, Value, json};

use crate::api::{ApplicationSession, GROUP, Instance, SessionStatus, VERSION};
use crate::engine::{Engine, Key, parts};

/// The label that names an instance's application.
pub(super) const APPLICATION: &str = "apps.mainstay.dev/application";

/// A session's object: what its user wrote, and where it stands.
#[derive(Debug)]
struct Shown {
    object: Prepared,
    revision: Option<Revision>,
}

/// An instance's object: what does not follow from the engine.
#[derive(Debug)]
struct ShownInstance {
    uid: String,
    revision: Option<Revision>,
}

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

fn collection<T: mainstay_store::registry::Typed>() -> Resource {
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

    /// What a session's user wrote. Told again, it replaces what was written before.
    pub(super) fn know(&mut self, session: &Key, object: Prepared) {
        let revision = self.shown.get(session).and_then(|shown| shown.revision);
        self.shown.insert(session.clone(), Shown { object, revision });
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

    pub(super) fn has_news(&self) -> bool {
        !self.dirty.is_empty()
            || !self.dirty_instances.is_empty()
            || !self.gone_instances.is_empty()
    }

    /// Shows everything that changed.
    pub(super) async fn publish(&mut self, engine: &Engine) {
        for session in std::mem::take(&mut self.dirty) {
            self.show(engine, &session).await;
        }
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
            self.shown.insert(session.clone(), Shown { object, revision: None });
        }
        let shown = self.shown.get_mut(session)?;
        shown.object.insert("status".to_owned(), serde_json::to_value(status).ok()?);
        let body = Body::new(&shown.object);
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let written = write(&*self.objects, key, shown.revision, body).await?;
        shown.revision = Some(written.revision());
        Some(written)
    }

    /// Shows what a session last was, and takes its object away; that comes back.
    pub(super) async fn hide(
        &mut self,
        session: &Key,
        last: &SessionStatus,
    ) -> Option<Arc<Record>> {
        self.dirty.remove(session);
        let mut shown = self.shown.remove(session)?;
        shown.object.insert("status".to_owned(), serde_json::to_value(last).ok()?);
        let (namespace, name) = parts(session);
        let key = object::Key::new(&self.sessions, Some(namespace), name);
        let body = Body::new(&shown.object);
        let last = write(&*self.objects, key.clone(), Some(shown.revision?), body).await?;
        remove(&*self.objects, key, last.revision()).await;
        Some(last)
    }

    async fn show_instance(&mut self, engine: &Engine, instance: &Key) -> Option<()> {
        let (spec, status, created) = engine.instance_view(instance)?;
        let (namespace, name) = parts(instance);
        let shown = self
            .shown_instances
            .entry(instance.clone())
            .or_insert_with(|| ShownInstance { uid: RandomIdentities.uid(), revision: None });
        let mut object = Map::new();
        object.insert("apiVersion".to_owned(), format!("{GROUP}/{VERSION}").into());
        object.insert("kind".to_owned(), "Instance".into());
        let metadata = json!({
            "name": name,
            "namespace": namespace,
            "uid": shown.uid,
            "creationTimestamp": Time::new(created),
            "labels": {APPLICATION: spec.application_name},
        });
        object.insert("metadata".to_owned(), metadata);
        object.insert("spec".to_owned(), serde_json::to_value(&spec).ok()?);
        object.insert("status".to_owned(), serde_json::to_value(&status).ok()?);
        let key = object::Key::new(&self.instances, Some(namespace), name);
        let written = write(&*self.objects, key, shown.revision, Body::new(&object)).await?;
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
