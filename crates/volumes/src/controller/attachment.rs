//! Attachments: writes the phase of each. The volume controller decides which nodes may use a volume.

use std::sync::Arc;

use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_controller::write;
use mainstay_store::resources::{Error, Subresource};

use super::Shared;
use crate::api::{ReplicatedVolume, ReplicatedVolumeAttachment, ReplicatedVolumeReplica};
use crate::attach;
use crate::satisfy::is_scheduled;

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let (by_volume, by_replica) = (views.clone(), views.clone());
    let names = |attachments: Vec<Arc<ReplicatedVolumeAttachment>>| {
        attachments.iter().map(|attachment| attachment.metadata.name.clone()).collect::<Vec<_>>()
    };
    let this = shared.clone();
    controller
        .watch(&views.attachments, |attachment| [attachment.metadata.name.clone()])
        .watch_if(
            &views.volumes,
            |old, new| {
                let seen = |volume: &ReplicatedVolume| {
                    let status = &volume.status;
                    (status.desired_attach_to.clone(), status.actually_attached_to.clone())
                };
                old.map(seen) != new.map(seen)
            },
            move |volume| names(by_volume.attachments_of(&volume.metadata.name)),
        )
        .watch_if(
            &views.replicas,
            |old, new| {
                let seen = |replica: &ReplicatedVolumeReplica| {
                    (replica.spec.clone(), is_scheduled(replica))
                };
                old.map(seen) != new.map(seen)
            },
            move |replica| names(by_replica.attachments_of(&replica.spec.replicated_volume_name)),
        )
        .run(move |context, name| reconcile(this.clone(), context, name))
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, Error> {
    let views = &shared.views;
    let Some(attachment) = views.attachments.find(None, &name) else { return Ok(Outcome::Done) };
    let volume = views.volume(&attachment.spec.replicated_volume_name);
    let replicas = views.replicas_of(&attachment.spec.replicated_volume_name);
    let here = replicas.iter().find(|replica| {
        replica.spec.node_name == attachment.spec.node_name && is_scheduled(replica)
    });
    let status = volume.as_deref().map(|volume| &volume.status);
    let nodes = status.map(|status| (&*status.desired_attach_to, &*status.actually_attached_to));
    let (phase, message) = attach::phase(&attachment, nodes, here.map(Arc::as_ref));
    if attachment.status.phase == Some(phase) && attachment.status.message == message {
        return Ok(Outcome::Done);
    }
    let options = write::options("mainstay-attachment");
    let status = Some(Subresource::Status);
    let written = context
        .resources
        .modify_as(None, &name, status, &options, |it: &mut ReplicatedVolumeAttachment| {
            it.status.phase = Some(phase);
            it.status.message.clone_from(&message);
        })
        .await;
    write::or_gone(written).map(|_| Outcome::Done)
}
