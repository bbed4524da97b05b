//! The scribe: writes what must survive, behind everybody's back.
//!
//! The newest word about a thing replaces the one before, so a store that is slow or away is written
//! to less often and never falls behind. What could not be written is tried again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstay_store::builtin::{ConfigMap, Node, NodeCondition};
use mainstay_store::meta::{ConditionStatus, Time};
use mainstay_store::resources::{DeleteOptions, Error, Resources, Subresource, WriteOptions};
use mainstay_volumes::api::{ReplicatedVolumeAttachment, ReplicatedVolumeAttachmentSpec};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::COMPONENT;
use super::desk::{Desk, Input};
use crate::api::application::FINALIZER;
use crate::api::{Application, ApplicationStatus};
use crate::engine::{Key, parts};

/// How long the scribe rests between rounds.
const REST: Duration = Duration::from_millis(250);

/// Where ports are written down.
const NAMESPACE: &str = "mainstay-system";
const PORTS: &str = "session-endpoints";

/// The condition that says whether a node takes sessions.
const CONDITION: &str = "SessionsReady";

/// The ports of an earlier run: blocks that were reserved, and who had which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) blocks: Vec<usize>,
    pub(super) mapping: BTreeMap<String, u16>,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) statuses: HashMap<Key, ApplicationStatus>,
    pub(super) gone: Vec<Key>,
    pub(super) nodes: HashMap<Key, bool>,
    pub(super) attachments: HashMap<(String, Key), bool>,
    pub(super) reserve: Option<usize>,
    /// The first port of the range, and everything there is to know about ports.
    pub(super) ports: Option<(u16, Ports)>,
}

impl Wanted {
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

/// Where orders are left for the scribe.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    wanted: Arc<Mutex<Wanted>>,
    bell: Arc<Notify>,
    /// Somebody waits for it.
    urgent: Arc<Notify>,
}

impl Orders {
    pub(super) fn leave(&self, order: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        order(&mut wanted);
        if wanted.reserve.is_some() {
            self.urgent.notify_one();
        }
        self.bell.notify_one();
    }
}

/// The scribe.
#[derive(Debug)]
pub(super) struct Scribe {
    resources: Resources,
    desk: Desk,
    orders: Orders,
}

fn options() -> WriteOptions {
    WriteOptions { manager: COMPONENT.to_owned(), ..WriteOptions::default() }
}

/// Reads what an earlier run wrote down about ports.
pub(super) async fn recall(resources: &Resources, first: u16) -> Result<Ports, Error> {
    let Some(written) = resources.get_as::<ConfigMap>(Some(NAMESPACE), PORTS).await? else {
        return Ok(Ports::default());
    };
    let text = |name: &str| written.data.get(name).map(String::as_str).unwrap_or_default();
    // Another range has other blocks; who has which port is worth knowing all the same.
    let same_range = text("first") == first.to_string();
    let blocks: Vec<usize> = serde_json::from_str(text("blocks")).unwrap_or_default();
    let mapping = serde_json::from_str(text("mapping")).unwrap_or_default();
    Ok(Ports { blocks: if same_range { blocks } else { Vec::new() }, mapping })
}

impl Scribe {
    pub(super) fn new(resources: Resources, desk: Desk) -> (Self, Orders) {
        let orders = Orders::default();
        (Self { resources, desk, orders: orders.clone() }, orders)
    }

    /// Writes until told to stop, and then once more.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let told = stop.run_until_cancelled(self.orders.bell.notified()).await.is_none();
            self.write().await;
            if told {
                return;
            }
            tokio::select! {
                () = self.resources.clock().sleep(REST) => {}
                () = self.orders.urgent.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn write(&self) {
        let wanted = {
            let mut wanted = self.orders.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *wanted)
        };
        if wanted.is_empty() {
            return;
        }
        let Wanted { statuses, gone, nodes, attachments, reserve, ports } = wanted;
        if let Some((first, mut ports)) = ports {
            ports.blocks.extend(reserve);
            ports.blocks.sort_unstable();
            ports.blocks.dedup();
            let written = self.write_ports(first, &ports).await;
            if let Err(error) = &written {
                tracing::warn!(%error, "the gateway's ports could not be written down");
                self.orders.leave(|wanted| {
                    wanted.ports.get_or_insert((first, ports));
                    wanted.reserve = wanted.reserve.or(reserve);
                });
            } else if let Some(block) = reserve {
                self.desk.put(Input::Reserved(Some(block))).await;
            }
        }
        for (application, status) in statuses {
            if let Err(error) = self.write_status(&application, &status).await {
                tracing::warn!(%error, %application, "a status could not be written");
                self.orders.leave(|wanted| {
                    wanted.statuses.entry(application).or_insert(status);
                });
            }
        }
        for application in gone {
            if let Err(error) = self.let_go(&application).await {
                tracing::warn!(%error, %application, "an application could not be let go");
                self.orders.leave(|wanted| wanted.gone.push(application));
            }
        }
        for (node, ready) in nodes {
            if let Err(error) = self.write_node(&node, ready).await {
                tracing::warn!(%error, %node, "a node could not be written");
                self.orders.leave(|wanted| {
                    wanted.nodes.entry(node).or_insert(ready);
                });
            }
        }
        for ((volume, node), attach) in attachments {
            if let Err(error) = self.attach(&volume, &node, attach).await {
                tracing::warn!(%error, %volume, %node, "an attachment could not be written");
                self.orders.leave(|wanted| {
                    wanted.attachments.entry((volume, node)).or_insert(attach);
                });
            }
        }
    }

    async fn write_ports(&self, first: u16, ports: &Ports) -> Result<(), Error> {
        let fill = |map: &mut ConfigMap| {
            let json = |value: serde_json::Value| value.to_string();
            map.data.insert("first".to_owned(), first.to_string());
            map.data.insert("blocks".to_owned(), json(serde_json::json!(ports.blocks)));
            map.data.insert("mapping".to_owned(), json(serde_json::json!(ports.mapping)));
        };
        let changed =
            self.resources.modify_as(Some(NAMESPACE), PORTS, None, &options(), fill).await;
        match changed {
            Err(error) if error.is_not_found() => {
                let mut map = ConfigMap::default();
                map.metadata.name = PORTS.to_owned();
                map.metadata.namespace = Some(NAMESPACE.to_owned());
                fill(&mut map);
                self.resources.create_as(&map, &options()).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    async fn write_status(&self, name: &Key, status: &ApplicationStatus) -> Result<(), Error> {
        let (namespace, own) = parts(name);
        let part = Some(Subresource::Status);
        let fill = |application: &mut Application| application.status.clone_from(status);
        let written = self.resources.modify_as(Some(namespace), own, part, &options(), fill).await;
        fine_if_gone(written.map(drop))
    }

    /// Lets a deleted application go.
    async fn let_go(&self, name: &Key) -> Result<(), Error> {
        let (namespace, own) = parts(name);
        let fill = |application: &mut Application| {
            if application.metadata.deletion_timestamp.is_some() {
                application.metadata.finalizers.retain(|name| name != FINALIZER);
            }
        };
        let written = self.resources.modify_as(Some(namespace), own, None, &options(), fill).await;
        fine_if_gone(written.map(drop))
    }

    /// Says whether a node takes sessions. A node that nobody else reports is made.
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
                match self.resources.create_as(&node, &options()).await {
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
        let part = Some(Subresource::Status);
        let written = self.resources.modify_as(None, name, part, &options(), fill).await;
        fine_if_gone(written.map(drop))
    }

    async fn attach(&self, volume: &str, node: &Key, wanted: bool) -> Result<(), Error> {
        let name = format!("{volume}-{node}");
        if !wanted {
            let (delete, options) = (DeleteOptions::default(), options());
            let gone = self
                .resources
                .delete_as::<ReplicatedVolumeAttachment>(None, &name, &delete, &options);
            return fine_if_gone(gone.await.map(drop));
        }
        let mut attachment = ReplicatedVolumeAttachment {
            spec: ReplicatedVolumeAttachmentSpec {
                replicated_volume_name: volume.to_owned(),
                node_name: node.to_string(),
            },
            ..ReplicatedVolumeAttachment::default()
        };
        attachment.metadata.name = name;
        match self.resources.create_as(&attachment, &options()).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }
}

fn fine_if_gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
