//! Answers dry runs: decides about a spec that was not written, by the code that decides about the real
//! one, and stops before the first effect.

use super::observe::View;
use super::reconcile::Reconciler;
use crate::api::{BlockDevice, BlockDeviceSpec, DRY_RUN_ANNOTATION, DryRun};
use crate::facts;
use crate::phase::Phase;
use crate::report;

/// How many changes of phase without an operation a rehearsal follows: Failed → Unprovisioned → Formatted.
const STEPS: usize = 3;

impl Reconciler {
    /// Writes the answer to a new dry run into `next`, the next state of `device`.
    pub(super) async fn answer_dry_run(
        &self,
        next: &mut BlockDevice,
        device: &BlockDevice,
        view: &View,
    ) {
        let Some(request) = device.metadata.annotations.get(DRY_RUN_ANNOTATION) else { return };
        let answered = next.status.dry_run.as_ref().is_some_and(|last| last.request == *request);
        if answered || view.disk.is_none() {
            return;
        }
        let answer = match rehearsed_spec(&device.spec, request) {
            Ok(spec) => self.rehearse(BlockDevice { spec, ..device.clone() }, view, request).await,
            Err(why) => DryRun {
                request: request.clone(),
                decision: format!("the annotation {DRY_RUN_ANNOTATION} has no valid spec: {why}"),
                ..DryRun::default()
            },
        };
        next.status.dry_run = Some(answer);
    }

    /// Decides about an object until an operation would begin or nothing more would change.
    async fn rehearse(&self, mut asked: BlockDevice, view: &View, request: &str) -> DryRun {
        let from = asked.phase();
        let mut step = 0;
        loop {
            if facts::has_stray_acknowledgement(&self.observer.recalled(&asked)) {
                asked.spec.acknowledge_data_loss.clear();
            }
            let facts = self.observer.facts(&asked, view).await;
            let (next, decision, verdict) = self.decide(&asked, view, facts).await;
            step += 1;
            let settled = next.phase() == asked.phase()
                || decision.operation().is_some()
                || next.phase() == Some(Phase::Failed);
            if settled || step == STEPS {
                return report::dry_run(request, from, &next, &decision, verdict.as_ref());
            }
            asked = next;
        }
    }
}

/// The spec that a request for a dry run is about.
fn rehearsed_spec(now: &BlockDeviceSpec, request: &str) -> Result<BlockDeviceSpec, String> {
    if let Some((_, spec)) = request.split_once(':').filter(|(_, spec)| spec.starts_with('{')) {
        return serde_json::from_str(spec).map_err(|error| error.to_string());
    }
    let mut spec = now.clone();
    spec.file_system.force_formatted = true;
    request.clone_into(&mut spec.file_system.format_request);
    Ok(spec)
}
