//! The statuses of sessions, instances and applications, as users see them.

use mainstay_store::meta::{MicroTime, Time};
use serde::{Deserialize, Serialize};

use super::{Engine, Key, parts};
use crate::api::application::DeploymentHistory;
use crate::api::{
    AccessEndPoint, ApplicationStatus, ClientSession, InstancePool, InstanceSpec, InstanceStatus,
    SessionStatus,
};
use crate::protocol::InstancePhase;

/// The largest number of clients in a session's status.
const CLIENTS_SHOWN: usize = 100;

/// The pools of an application, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationView {
    /// `namespace/name`.
    pub application: Key,
    /// The number of instances in each pool.
    pub pools: Vec<PoolSize>,
    /// The number of sessions that wait for an instance.
    pub waiting: usize,
    /// The largest allowed number of instances.
    pub maximum: i32,
}

/// A pool and the number of instances in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSize {
    /// The pool.
    pub pool: InstancePool,
    /// The number of instances in it.
    pub instances: i64,
}

const POOLS: [InstancePool; 5] = [
    InstancePool::Active,
    InstancePool::Ready,
    InstancePool::Standby,
    InstancePool::Pending,
    InstancePool::Deleting,
];

fn phase(phase: InstancePhase) -> &'static str {
    match phase {
        InstancePhase::Creating => "Creating",
        InstancePhase::Standby => "Standby",
        InstancePhase::Activating => "Activating",
        InstancePhase::Running => "Running",
        InstancePhase::Evacuating => "Evacuating",
        InstancePhase::Terminating => "Terminating",
        InstancePhase::Terminated => "Terminated",
    }
}

impl Engine {
    /// The status of a session. `gateway` is the address of its port.
    #[must_use]
    pub fn session_status(&self, name: &str, gateway: &str) -> Option<SessionStatus> {
        let session = self.sessions.get(name)?;
        let instance = session.instance.as_ref();
        let known = instance.and_then(|instance| self.instances.get(instance));
        let open = session.available.is_some() && session.state.is_live();
        let access_end_points = match session.port {
            Some((port, protocol)) if open => {
                vec![AccessEndPoint { protocol, ip_address: gateway.to_owned(), port: port.into() }]
            }
            // Without a gateway the endpoint is the instance's own address.
            None if open => known
                .iter()
                .flat_map(|instance| &instance.endpoints)
                .map(|to| AccessEndPoint {
                    protocol: if to.udp {
                        crate::api::Protocol::Udp
                    } else {
                        crate::api::Protocol::Tcp
                    },
                    ip_address: to.address.clone(),
                    port: i32::try_from(to.port).unwrap_or(0),
                })
                .collect(),
            _ => Vec::new(),
        };
        let clients = session.clients.iter().take(CLIENTS_SHOWN);
        Some(SessionStatus {
            access_end_points,
            session_status: session.state,
            client_sessions: clients
                .map(|(id, (joined, _))| ClientSession {
                    id: id.clone(),
                    join_time: Some(Time::new(*joined)),
                })
                .collect(),
            available_time: session.available.map(Time::new),
            available_time_micro: session.available.map(MicroTime::new),
            close_time: session.closed.map(Time::new),
            instance_name: instance.map(|name| parts(name).1.to_owned()).unwrap_or_default(),
            node_name: known
                .and_then(|instance| instance.node.as_ref())
                .map(ToString::to_string)
                .unwrap_or_default(),
            reason: session.reason.to_owned(),
            message: session.message.clone(),
        })
    }

    /// The object of a session as its user wrote it, without its status.
    #[must_use]
    pub fn session_object(&self, name: &str) -> Option<&[u8]> {
        self.sessions.get(name).map(|session| &*session.object)
    }

    /// The spec, status and creation time of an instance.
    #[must_use]
    pub fn instance_view(
        &self,
        name: &str,
    ) -> Option<(InstanceSpec, InstanceStatus, jiff::Timestamp)> {
        let instance = self.instances.get(name)?;
        let to = instance.endpoints.first();
        let spec = InstanceSpec {
            application_name: parts(&instance.application).1.to_owned(),
            node_name: instance.node.as_ref().map(ToString::to_string).unwrap_or_default(),
            template: instance.template.to_string(),
        };
        let session = instance.session.as_ref();
        let status = InstanceStatus {
            pool: instance.pool,
            state: phase(instance.phase).to_owned(),
            session_name: session.map(|name| parts(name).1.to_owned()).unwrap_or_default(),
            address: to.map(|to| format!("{}:{}", to.address, to.port)).unwrap_or_default(),
            ready_time: instance.ready.map(Time::new),
            reason: instance.reason.to_owned(),
            message: instance.message.clone(),
        };
        Some((spec, status, instance.created))
    }

    /// The status of an application.
    #[must_use]
    pub fn application_status(&self, name: &str) -> Option<ApplicationStatus> {
        let application = self.applications.get(name)?;
        let count = |pool| i32::try_from(application.pools.len(pool)).unwrap_or(i32::MAX);
        let history: Vec<DeploymentHistory> = application.history.iter().cloned().collect();
        Some(ApplicationStatus {
            desired_instances: i32::try_from(application.desired).unwrap_or(i32::MAX),
            total_instances: i32::try_from(application.pools.total()).unwrap_or(i32::MAX),
            pending_instances: count(InstancePool::Pending),
            deleting_instances: count(InstancePool::Deleting),
            allocated_instances: count(InstancePool::Active),
            idle_instances: count(InstancePool::Ready),
            standby_instances: count(InstancePool::Standby),
            waiting_sessions: i32::try_from(application.waiting.len()).unwrap_or(i32::MAX),
            observed_generation: Some(application.generation),
            message: application.message.clone(),
            latest_history: history.last().cloned(),
            history,
        })
    }

    /// Every application with its pools, ordered by name.
    #[must_use]
    pub fn applications(&self) -> Vec<ApplicationView> {
        let mut all: Vec<_> = self
            .applications
            .iter()
            .map(|(name, application)| ApplicationView {
                application: name.clone(),
                pools: POOLS
                    .iter()
                    .map(|pool| PoolSize { pool: *pool, instances: application.pools.len(*pool) })
                    .collect(),
                waiting: application.waiting.len(),
                maximum: application.spec.scaling_policy.maximum_instance,
            })
            .collect();
        all.sort_by(|one, other| one.application.cmp(&other.application));
        all
    }

    /// The numbers of sessions, instances and nodes.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.sessions.len(), self.instances.len(), self.nodes.len())
    }
}
