//! Maintains the Node object of this node and renews its heartbeat Lease.

use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::liveness::{AGENT_READY, LEASES};
use mainstay_host::Host;
use mainstay_store::builtin::{Lease, Node, NodeAddress, NodeCondition, NodeInfo};
use mainstay_store::meta::{ConditionStatus, MicroTime, Quantity, Time};
use mainstay_store::resources::{Error, Resources, Subresource, WriteOptions};
use tokio_util::sync::CancellationToken;

use crate::{MANAGER, Options, RETRY};

/// The label that has a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// How often the Lease is renewed by default.
pub const BEAT: Duration = Duration::from_secs(10);
/// For how many intervals a renewal is good.
const GOOD_FOR: u32 = 4;
/// The conditions of the Node object are written at every so many renewals.
const REPORT_EVERY: u32 = 6;

fn write_options() -> WriteOptions {
    mainstay_controller::write::options(MANAGER)
}

/// Creates or updates the Node object. Waits for a server without a limit. Returns the zone of the
/// node: it was set when the node joined, and only operators change it.
///
/// # Errors
/// Failures that waiting does not fix.
pub async fn report(
    resources: &Resources,
    options: &Options,
    host: &dyn Host,
) -> Result<Option<String>, Error> {
    let mut retries = RETRY.retries();
    loop {
        match write(resources, options, host).await {
            Ok(zone) => {
                if options.zone.is_some() && options.zone != zone {
                    let (asked, zone) = (&options.zone, &zone);
                    tracing::warn!(
                        ?asked,
                        ?zone,
                        "--zone is ignored: the node joined in another zone"
                    );
                }
                return Ok(zone);
            }
            Err(error) => {
                let wait = retries.failed();
                tracing::warn!(%error, ?wait, "writing the Node object failed; retrying");
                resources.clock().sleep(wait).await;
            }
        }
    }
}

async fn write(
    resources: &Resources,
    options: &Options,
    host: &dyn Host,
) -> Result<Option<String>, Error> {
    let name = &options.node;
    // The server creates the object when the node joins; servers of older versions do not.
    if resources.get_as::<Node>(None, name).await?.is_none() {
        let mut node = Node::default();
        node.metadata.name.clone_from(name);
        node.metadata.labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        let zone = options.zone.clone().map(|zone| (ZONE.to_owned(), zone));
        node.metadata.labels.extend(zone);
        match resources.create_as(&node, &write_options()).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    let now = Time::new(resources.clock().now());
    let (boot, name) = (host.boot_id(), name.clone());
    resources
        .modify_as(None, &name, Some(Subresource::Status), &write_options(), |node: &mut Node| {
            node.status.node_info = Some(info(&boot));
            node.status.addresses =
                vec![NodeAddress { address: name.clone(), kind: "Hostname".to_owned() }];
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let memory = rustix::system::sysinfo();
            let total = memory.totalram * u64::from(memory.mem_unit);
            node.status
                .capacity
                .insert("cpu".to_owned(), Quantity::whole(i64::try_from(cpus).unwrap_or(1)));
            node.status.capacity.insert("memory".to_owned(), Quantity::bytes(total));
            ready(node, now);
        })
        .await
        .map(|(mut node, _)| node.metadata.labels.remove(ZONE))
}

fn info(boot_id: &str) -> NodeInfo {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    NodeInfo {
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64".to_owned(),
            "aarch64" => "arm64".to_owned(),
            other => other.to_owned(),
        },
        boot_id: boot_id.to_owned(),
        kernel_version: text(system.release()),
        kubelet_version: format!("mainstay {}", env!("CARGO_PKG_VERSION")),
        operating_system: "linux".to_owned(),
        machine_id: std::fs::read_to_string("/etc/machine-id")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        ..NodeInfo::default()
    }
}

fn ready(node: &mut Node, now: Time) {
    for kind in ["Ready", AGENT_READY] {
        let known = node.status.conditions.iter_mut().find(|condition| condition.kind == kind);
        let since = match &known {
            Some(known) if known.status == ConditionStatus::True => known.last_transition_time,
            _ => Some(now),
        };
        let condition = NodeCondition {
            last_heartbeat_time: Some(now),
            last_transition_time: since,
            message: Some("the agent is running".to_owned()),
            reason: Some(AGENT_READY.to_owned()),
            status: ConditionStatus::True,
            kind: kind.to_owned(),
        };
        match known {
            Some(known) => *known = condition,
            None => node.status.conditions.push(condition),
        }
    }
}

/// Renews the heartbeat Lease until `stop` is cancelled. A failed renewal is retried at the next interval.
pub(crate) async fn renew_lease(
    resources: Resources,
    options: Options,
    host: Arc<dyn Host>,
    stop: CancellationToken,
) {
    let mut count = 0;
    loop {
        let created = renew(&resources, &options).await.unwrap_or_else(|error| {
            tracing::warn!(node = options.node, %error, "heartbeat lease renewal failed; retrying");
            false
        });
        count += 1;
        // A server that has lost the Lease may have lost the Node object as well.
        if (count % REPORT_EVERY == 0 || created)
            && let Err(error) = write(&resources, &options, &*host).await
        {
            tracing::warn!(node = options.node, %error, "updating the Node object failed");
        }
        if stop.run_until_cancelled(resources.clock().sleep(options.heartbeat)).await.is_none() {
            return;
        }
    }
}

/// Renews the Lease. Returns whether it had to be created.
async fn renew(resources: &Resources, options: &Options) -> Result<bool, Error> {
    let node = &options.node;
    let good = i32::try_from((options.heartbeat * GOOD_FOR).as_secs().max(1)).unwrap_or(i32::MAX);
    let now = MicroTime::new(resources.clock().now());
    let mark = |lease: &mut Lease| {
        lease.spec.holder_identity = Some(node.clone());
        lease.spec.lease_duration_seconds = Some(good);
        lease.spec.renew_time = Some(now);
        lease.spec.acquire_time.get_or_insert(now);
    };
    let options = write_options();
    let renewed = resources.modify_as(Some(LEASES), node, None, &options, mark).await;
    match renewed {
        Err(error) if error.is_not_found() => {
            let mut lease = Lease::default();
            lease.metadata.name.clone_from(node);
            lease.metadata.namespace = Some(LEASES.to_owned());
            mark(&mut lease);
            resources.create_as(&lease, &options).await.map(|_| true)
        }
        other => other.map(|_| false),
    }
}
