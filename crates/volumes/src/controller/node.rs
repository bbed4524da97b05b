//! Nodes: says which are silent, from the Leases their agents renew.
//!
//! A node without a Lease has no agent, and is whatever somebody says it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_store::builtin::Node;
use mainstay_store::resources::Error;

use super::{Shared, set_status};
use crate::heartbeat::{GOOD_FOR, Pulses, Verdict, judge, settle};

/// Where agents keep their heartbeats.
pub(super) const LEASES: &str = "kube-node-lease";

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let this = shared.clone();
    let pulses = Arc::new(Mutex::new(Pulses::default()));
    controller
        .watch(&shared.views.leases, |lease| [lease.metadata.name.clone()])
        .watch_if(
            &shared.views.nodes,
            |old, new| old.is_none() && new.is_some(),
            |node| [node.metadata.name.clone()],
        )
        .run(move |context, name| reconcile(this.clone(), pulses.clone(), context, name))
}

async fn reconcile(
    shared: Shared,
    pulses: Arc<Mutex<Pulses>>,
    context: Context,
    name: String,
) -> Result<Outcome, Error> {
    let clock = context.resources.clock().clone();
    let (now, time) = (clock.elapsed(), clock.now());
    let lease = shared.views.leases.find(Some(LEASES), &name);
    let heard = {
        let mut pulses = pulses.lock().unwrap_or_else(PoisonError::into_inner);
        match &lease {
            Some(lease) => pulses.hear(&name, lease.spec.renew_time, now),
            None => {
                pulses.forget(&name);
                return Ok(Outcome::Done);
            }
        }
    };
    let good_for = lease.and_then(|lease| lease.spec.lease_duration_seconds);
    let good_for = good_for.and_then(|seconds| u64::try_from(seconds).ok());
    let verdict = judge(heard, good_for.map_or(GOOD_FOR, Duration::from_secs), now);
    let differs = shared
        .views
        .nodes
        .find(None, &name)
        .is_some_and(|node| settle(&mut (*node).clone(), verdict, time));
    if differs {
        let write = |node: &mut Node| {
            settle(node, verdict, time);
        };
        set_status(&context.resources, &name, "mainstay-node-monitor", write).await?;
        tracing::info!(node = name, ?verdict, "a node is judged by its heartbeats");
    }
    Ok(match verdict {
        Verdict::Alive { until } => Outcome::After(until.saturating_sub(now)),
        Verdict::Silent => Outcome::Done,
    })
}
