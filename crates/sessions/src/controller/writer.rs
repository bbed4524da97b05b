//! Writes to the store in the background, so that no request waits for a disk.
//!
//! The actor queues what must survive a restart: statuses of applications, blocks of ports, node
//! conditions, attachments. A newer value replaces a queued one, so a slow store is written to less
//! often and the queue never grows without bound. Failed writes are queued again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::write::{options, or_gone, set_status};
use mainstay_store::builtin::{ConfigMap, Node, NodeCondition};
use mainstay_store::meta::{ConditionStatus, Time};
use mainstay_store::resources::{DeleteOptions, Error, Resources};
use mainstay_volumes::api::{ReplicatedVolumeAttachment, ReplicatedVolumeAttachmentSpec};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::COMPONENT;
use super::handle::{Handle, Input};
use crate::api::application::FINALIZER;
use crate::api::{Application, ApplicationStatus};
use crate::engine::{Key, parts};

/// The shortest time between two rounds of writes, unless one is urgent.
const INTERVAL: Duration = Duration::from_millis(250);

/// The ConfigMap that holds the gateway's ports.
const NAMESPACE: &str = "mainstay-system";
const PORTS: &str = "session-endpoints";

/// The Node condition that is true while the node takes sessions.
const CONDITION: &str = "SessionsReady";

/// The gateway's ports as they are stored: reserved blocks, and the port of each session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PersistedPorts {
    pub(super) blocks: Vec<usize>,
    pub(super) mapping: BTreeMap<String, u16>,
}

/// Writes that are queued.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    pub(super) statuses: HashMap<Key, ApplicationStatus>,
    /// Deleted applications whose finalizer is to be removed.
    pub(super) gone: Vec<Key>,
    pub(super) nodes: HashMap<Key, bool>,
    pub(super) attachments: HashMap<(String, Key), bool>,
    pub(super) reserve: Option<usize>,
    /// The first port of the range, and all blocks and mappings.
    pub(super) ports: Option<(u16, PersistedPorts)>,
}

impl PendingWrites {
    fn is_empty(&self) -> bool {
        let Self { statuses, gone, nodes, attachments, reserve, ports } = self;
        statuses.is_empty()
            && gone.is_empty()
            && nodes.is_empty()
            && attachments.is_empty()
            && reserve.is_none()
            && ports.is_none()
    }
}

/// The queue of writes. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteQueue {
    pending: Arc<Mutex<PendingWrites>>,
    bell: Arc<Notify>,
    /// Signalled when sessions wait for a block of ports.
    urgent: Arc<Notify>,
}

impl WriteQueue {
    pub(super) fn add(&self, add: impl FnOnce(&mut PendingWrites)) {
        let mut pending = self.pending.lock();
        add(&mut pending);
        if pending.reserve.is_some() {
            self.urgent.notify_one();
        }
        self.bell.notify_one();
    }
}

/// The task that writes.
#[derive(Debug)]
pub(super) struct Writer {
    resources: Resources,
    handle: Handle,
    queue: WriteQueue,
}

/// Reads the ports that an earlier run stored.
pub(super) async fn read_ports(resources: &Resources, first: u16) -> Result<PersistedPorts, Error> {
    let Some(written) = resources.get_as::<ConfigMap>(Some(NAMESPACE), PORTS).await? else {
        return Ok(PersistedPorts::default());
    };
    let text = |name: &str| written.data.get(name).map(String::as_str).unwrap_or_default();
    // Block numbers are relative to the range; the mapping holds for any range.
    let same_range = text("first") == first.to_string();
    let blocks: Vec<usize> = serde_json::from_str(text("blocks")).unwrap_or_default();
    let mapping = serde_json::from_str(text("mapping")).unwrap_or_default();
    Ok(PersistedPorts { blocks: if same_range { blocks } else { Vec::new() }, mapping })
}

impl Writer {
    pub(super) fn new(resources: Resources, handle: Handle) -> (Self, WriteQueue) {
        let queue = WriteQueue::default();
        (Self { resources, handle, queue: queue.clone() }, queue)
    }

    /// Writes until `stop` is cancelled, and then once more.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let stopped = stop.run_until_cancelled(self.queue.bell.notified()).await.is_none();
            self.write().await;
            if stopped {
                return;
            }
            tokio::select! {
                () = self.resources.clock().sleep(INTERVAL) => {}
                () = self.queue.urgent.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn write(&self) {
        let pending = std::mem::take(&mut *self.queue.pending.lock());
        if pending.is_empty() {
            return;
        }
        let PendingWrites { statuses, gone, nodes, attachments, reserve, ports } = pending;
        if let Some((first, mut ports)) = ports {
            ports.blocks.extend(reserve);
            ports.blocks.sort_unstable();
            ports.blocks.dedup();
            let written = self.write_ports(first, &ports).await;
            if let Err(error) = &written {
                tracing::warn!(%error, "gateway ports could not be stored; retrying");
                self.queue.add(|pending| {
                    pending.ports.get_or_insert((first, ports));
                    pending.reserve = pending.reserve.or(reserve);
                });
            } else if let Some(block) = reserve {
                self.handle.put(Input::Reserved(Some(block))).await;
            }
        }
        for (application, status) in statuses {
            if let Err(error) = self.write_status(&application, &status).await {
                tracing::warn!(%error, %application, "application status could not be written; retrying");
                self.queue.add(|pending| {
                    pending.statuses.entry(application).or_insert(status);
                });
            }
        }
        for application in gone {
            if let Err(error) = self.remove_finalizer(&application).await {
                tracing::warn!(%error, %application, "finalizer of a deleted application could not be removed; retrying");
                self.queue.add(|pending| pending.gone.push(application));
            }
        }
        for (node, ready) in nodes {
            if let Err(error) = self.write_node(&node, ready).await {
                tracing::warn!(%error, %node, "node condition SessionsReady could not be written; retrying");
                self.queue.add(|pending| {
                    pending.nodes.entry(node).or_insert(ready);
                });
            }
        }
        for ((volume, node), attach) in attachments {
            if let Err(error) = self.attach(&volume, &node, attach).await {
                tracing::warn!(%error, %volume, %node, "volume attachment of an instance could not be written; retrying");
                self.queue.add(|pending| {
                    pending.attachments.entry((volume, node)).or_insert(attach);
                });
            }
        }
    }

    async fn write_ports(&self, first: u16, ports: &PersistedPorts) -> Result<(), Error> {
        let fill = |map: &mut ConfigMap| {
            let json = |value: serde_json::Value| value.to_string();
            map.data.insert("first".to_owned(), first.to_string());
            map.data.insert("blocks".to_owned(), json(serde_json::json!(ports.blocks)));
            map.data.insert("mapping".to_owned(), json(serde_json::json!(ports.mapping)));
        };
        let changed =
            self.resources.modify_as(Some(NAMESPACE), PORTS, None, &options(COMPONENT), fill).await;
        match changed {
            Err(error) if error.is_not_found() => {
                let mut map = ConfigMap::default();
                map.metadata.name = PORTS.to_owned();
                map.metadata.namespace = Some(NAMESPACE.to_owned());
                fill(&mut map);
                self.resources.create_as(&map, &options(COMPONENT)).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    async fn write_status(&self, name: &Key, status: &ApplicationStatus) -> Result<(), Error> {
        let (namespace, own) = parts(name);
        let fill = |application: &mut Application| application.status.clone_from(status);
        let written = set_status(&self.resources, Some(namespace), own, COMPONENT, fill).await;
        written.map(drop)
    }

    /// Removes the finalizer of a deleted application.
    async fn remove_finalizer(&self, name: &Key) -> Result<(), Error> {
        let (namespace, own) = parts(name);
        let fill = |application: &mut Application| {
            if application.metadata.deletion_timestamp.is_some() {
                application.metadata.finalizers.retain(|name| name != FINALIZER);
            }
        };
        let written =
            self.resources.modify_as(Some(namespace), own, None, &options(COMPONENT), fill).await;
        or_gone(written).map(drop)
    }

    /// Writes whether a node takes sessions. Creates the Node if it does not exist; then, and while
    /// no agent reports the machine (no nodeInfo), condition Ready is written too.
    async fn write_node(&self, name: &Key, ready: bool) -> Result<(), Error> {
        let now = Time::new(self.resources.clock().now());
        let (status, reason, message) = match ready {
            true => (ConditionStatus::True, "Connected", "the agent is connected"),
            false => (ConditionStatus::Unknown, "Silent", "the agent is not connected"),
        };
        let kinds: &[&str] = match self.resources.get_as::<Node>(None, name).await? {
            Some(node) if node.status.node_info.is_some() => &[CONDITION],
            Some(_) => &[CONDITION, "Ready"],
            None if !ready => return Ok(()),
            None => {
                let mut node = Node::default();
                name.as_ref().clone_into(&mut node.metadata.name);
                match self.resources.create_as(&node, &options(COMPONENT)).await {
                    Err(error) if !error.is_already_exists() => return Err(error),
                    _ => &[CONDITION, "Ready"],
                }
            }
        };
        let fill = |node: &mut Node| {
            for kind in kinds {
                let known = node.status.conditions.iter_mut().find(|known| known.kind == *kind);
                let since = match &known {
                    Some(known) if known.status == status => known.last_transition_time,
                    _ => Some(now),
                };
                let condition = NodeCondition {
                    last_heartbeat_time: Some(now),
                    last_transition_time: since,
                    message: Some(message.to_owned()),
                    reason: Some(reason.to_owned()),
                    status,
                    kind: (*kind).to_owned(),
                };
                match known {
                    Some(known) => *known = condition,
                    None => node.status.conditions.push(condition),
                }
            }
        };
        set_status(&self.resources, None, name, COMPONENT, fill).await.map(drop)
    }

    async fn attach(&self, volume: &str, node: &Key, wanted: bool) -> Result<(), Error> {
        let name = format!("{volume}-{node}");
        if !wanted {
            let (delete, options) = (DeleteOptions::default(), options(COMPONENT));
            let gone = self
                .resources
                .delete_as::<ReplicatedVolumeAttachment>(None, &name, &delete, &options);
            return or_gone(gone.await).map(drop);
        }
        let mut attachment = ReplicatedVolumeAttachment {
            spec: ReplicatedVolumeAttachmentSpec {
                replicated_volume_name: volume.to_owned(),
                node_name: node.to_string(),
            },
            ..ReplicatedVolumeAttachment::default()
        };
        attachment.metadata.name = name;
        match self.resources.create_as(&attachment, &options(COMPONENT)).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }
}
