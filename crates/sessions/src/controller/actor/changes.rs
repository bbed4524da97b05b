//! Changes of applications, nodes, replicas and Secrets in the store, as input of the engine.
//!
//! Subscriptions only record keys; the actor reads the current objects from the reflectors when it
//! gets to them. A burst of changes to one object is thus processed once.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use mainstay_controller::reflector::{Reflector, Subscription};
use mainstay_store::builtin::Node;
use mainstay_store::meta::ObjectMeta;
use mainstay_store::object;
use mainstay_store::registry::Typed;
use mainstay_store::resources::Resources;
use mainstay_volumes::api::ReplicatedVolumeReplica;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::Reflectors;
use super::Actor;
use crate::api::{Application, ApplicationSpec};
use crate::engine::{Key, key, parts};
use crate::secrets::{needed, resolve};

/// The keys of changed objects that the actor has not processed yet.
#[derive(Debug, Default)]
pub(in super::super) struct Changes {
    changed: Mutex<Changed>,
    pub(super) bell: Notify,
}

#[derive(Debug, Default)]
struct Changed {
    applications: BTreeSet<object::Key>,
    nodes: BTreeSet<object::Key>,
    secrets: BTreeSet<object::Key>,
    /// Volumes with changed replicas.
    volumes: BTreeSet<String>,
}

impl Changes {
    fn note(&self, note: impl FnOnce(&mut Changed)) {
        note(&mut self.changed.lock());
        self.bell.notify_one();
    }

    /// Records every change of the four collections until the subscriptions are dropped.
    pub(in super::super) fn follow_all(self: &Arc<Self>, reflectors: &Reflectors) -> Subscriptions {
        [
            self.follow(&reflectors.applications, |changed| &mut changed.applications),
            self.follow(&reflectors.nodes, |changed| &mut changed.nodes),
            self.follow_replicas(&reflectors.replicas),
            self.follow(&reflectors.secrets, |changed| &mut changed.secrets),
        ]
    }

    fn follow<T: Typed>(
        self: &Arc<Self>,
        reflector: &Reflector<T>,
        set: fn(&mut Changed) -> &mut BTreeSet<object::Key>,
    ) -> Subscription {
        let changes = Arc::clone(self);
        reflector.subscribe(move |change| {
            changes.note(|changed| {
                set(changed).insert(change.key.clone());
            });
        })
    }

    fn follow_replicas(
        self: &Arc<Self>,
        reflector: &Reflector<ReplicatedVolumeReplica>,
    ) -> Subscription {
        let changes = Arc::clone(self);
        reflector.subscribe(move |change| {
            let both = change.old.iter().chain(&change.new);
            let volumes = both.map(|replica| replica.spec.replicated_volume_name.clone());
            changes.note(|changed| changed.volumes.extend(volumes));
        })
    }
}

/// The subscriptions that record changes; dropping them ends the recording.
pub(in super::super) type Subscriptions = [Subscription; 4];

/// The index of replicas by the name of their volume.
const BY_VOLUME: &str = "volume";

/// A reflector of replicas in which [`nodes_with_replica`] finds those of one volume by index.
pub(in super::super) fn reflect_replicas(
    resources: &Resources,
) -> Reflector<ReplicatedVolumeReplica> {
    let volume = |replica: &ReplicatedVolumeReplica| [replica.spec.replicated_volume_name.clone()];
    Reflector::of(resources).index(BY_VOLUME, volume).start()
}

/// The nodes that have a replica of a volume.
pub(in super::super) fn nodes_with_replica(
    replicas: &Reflector<ReplicatedVolumeReplica>,
    volume: &str,
) -> HashSet<Key> {
    let replicas = replicas.by_index(BY_VOLUME, volume);
    let placed = replicas.iter().filter(|replica| !replica.spec.node_name.is_empty());
    placed.map(|replica| replica.spec.node_name.as_str().into()).collect()
}

impl Actor {
    /// Gives changed volumes, nodes, Secrets and applications to the engine.
    pub(super) async fn process_changes(&mut self) {
        let changed = std::mem::take(&mut *self.parts.changes.changed.lock());
        let now = self.now();
        for volume in changed.volumes {
            let nodes = nodes_with_replica(&self.parts.reflectors.replicas, &volume);
            self.parts.engine.replicas(&volume, nodes);
        }
        for node in changed.nodes {
            let known: Option<Arc<Node>> = self.parts.reflectors.nodes.get(&node);
            let cordoned =
                known.as_ref().is_some_and(|known| known.spec.unschedulable == Some(true));
            let labels = known.map(|known| known.metadata.labels.clone());
            let name: Key = node.name().into();
            self.parts.engine.label(&name, labels, now);
            self.parts.engine.cordon(&name, cordoned, now);
        }
        let users = self.users_of(&changed.secrets);
        for application in changed.applications.into_iter().chain(users) {
            let name = key(application.namespace().unwrap_or_default(), application.name());
            match self.parts.reflectors.applications.get(&application) {
                Some(known) if known.metadata.deletion_timestamp.is_none() => {
                    let generation = known.metadata.generation.unwrap_or(0);
                    let spec = Arc::new(known.spec.clone());
                    let missing = self.look_up_secrets(&name, &spec);
                    if missing.is_some() {
                        self.parts.engine.set_missing(&name, missing.clone(), now);
                    }
                    self.parts.engine.application(&name, spec, generation, now);
                    self.parts.engine.set_missing(&name, missing, now);
                }
                _ => {
                    self.secrets.remove(&name);
                    self.parts.engine.set_missing(&name, None, now);
                    self.parts.engine.delete_application(&name, now);
                }
            }
        }
        self.perform(now).await;
    }

    /// Applications whose instances need one of these Secrets.
    fn users_of(&self, secrets: &BTreeSet<object::Key>) -> Vec<object::Key> {
        if secrets.is_empty() {
            return Vec::new();
        }
        let uses = |application: &Arc<Application>| {
            let namespace = application.metadata.namespace.as_deref();
            let needed = needed(&application.spec);
            secrets
                .iter()
                .any(|secret| secret.namespace() == namespace && needed.contains(secret.name()))
        };
        let all = self.parts.reflectors.applications.list();
        let key = |application: &Arc<Application>| {
            let resource = object::Resource::new(Application::GROUP, Application::PLURAL);
            let ObjectMeta { namespace, name, .. } = &application.metadata;
            object::Key::new(&resource, namespace.as_deref(), name)
        };
        all.iter().filter(|one| uses(one)).map(key).collect()
    }

    /// Stores the Secret values that instances of an application start with. Returns a message if
    /// one is missing.
    fn look_up_secrets(&mut self, application: &Key, spec: &ApplicationSpec) -> Option<String> {
        let (namespace, _) = parts(application);
        let secrets = &self.parts.reflectors.secrets;
        let found = resolve(spec, |name| secrets.find(Some(namespace), name));
        match found {
            Ok(values) => {
                self.secrets.insert(application.clone(), values);
                None
            }
            Err(missing) => {
                self.secrets.remove(application);
                Some(missing)
            }
        }
    }
}
