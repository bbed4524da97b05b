//! Acknowledgements of data loss, and dry runs of the changes that carry them.

use std::time::Duration;

use mainstay_host::Class;
use mainstay_host::sim::Fate;

use super::rig::Rig;
use crate::api::{BlockDevice, DRY_RUN_ANNOTATION, DryRun};

/// Asks for a disk to be formatted, acknowledging the loss of these signatures.
async fn format(rig: &Rig, request: &str, entries: &[&str]) {
    rig.edit("sda", |device| {
        device.spec.file_system.force_formatted = true;
        device.spec.file_system.format_request = request.to_owned();
        device.spec.acknowledge_data_loss = entries.iter().map(|&entry| entry.into()).collect();
    })
    .await;
}

/// The answer to a dry run of the spec that `edit` makes.
async fn rehearse(rig: &Rig, word: &str, edit: impl Fn(&mut BlockDevice) + Send + Sync) -> DryRun {
    rig.edit("sda", |device| {
        let mut asked = device.clone();
        edit(&mut asked);
        let spec = serde_json::to_string(&asked.spec).unwrap();
        let value = format!("{word}:{spec}");
        device.metadata.annotations.insert(DRY_RUN_ANNOTATION.to_owned(), value);
    })
    .await;
    let answer = rig.device("sda").await.status.dry_run.unwrap();
    assert!(answer.request.starts_with(word), "{answer:?}");
    answer
}

fn refusal(device: &BlockDevice) -> String {
    let refused = mainstay_controller::conditions::get(&device.status.conditions, "Refused");
    refused.map(|condition| condition.message.clone()).unwrap_or_default()
}

#[tokio::test]
async fn formatting_is_refused_until_exactly_the_signatures_are_acknowledged() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::PartitionTable, "gpt", "p1");
    rig.want("sda").await;
    rig.wait("sda", "Failed").await;
    let failure = rig.device("sda").await.status.failure.unwrap();
    assert_eq!(failure.reason, "Refused");
    assert!(failure.message.contains("[gpt:p1]"), "{}", failure.message);
    for (retry, entry) in [("1", "ext4:p1"), ("2", "gpt"), ("3", "gpt:p2")] {
        rig.edit("sda", |device| {
            device.spec.acknowledge_data_loss = vec![entry.to_owned()];
            device.spec.retry = retry.to_owned();
        })
        .await;
        rig.wait("sda", "Failed").await;
        assert_eq!(rig.device("sda").await.status.failure.unwrap().retry, retry);
        assert!(rig.host.log().is_empty(), "nothing was written");
    }
    rig.edit("sda", |device| {
        device.spec.acknowledge_data_loss = vec!["gpt:p1".to_owned()];
        device.spec.retry = "4".to_owned();
    })
    .await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["wipe sda", "mkfs sda", "mount sda"]);
}

#[tokio::test]
async fn an_acknowledgement_is_used_up_by_one_format() {
    let rig = Rig::with(&["sda"]).await;
    // A table without a UUID: its name alone would fit the next one, too.
    rig.host.write_signature("sda", Class::PartitionTable, "dos", "");
    format(&rig, "1", &["dos"]).await;
    rig.wait("sda", "Formatted").await;
    assert!(rig.device("sda").await.spec.acknowledge_data_loss.is_empty(), "it was used up");
    rig.host.write_signature("sda", Class::PartitionTable, "dos", "");
    rig.edit("sda", |device| device.spec.file_system.format_request = "2".to_owned()).await;
    rig.wait("sda", "Failed").await;
    assert!(refusal(&rig.device("sda").await).contains("acknowledged nothing"));
    assert_eq!(rig.host.count("mkfs sda"), 1);
}

#[tokio::test]
async fn a_pool_taken_out_of_use_is_not_formatted_by_an_old_acknowledgement() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "u1");
    rig.edit("sda", |device| device.spec.provision = true).await;
    format(&rig, "", &["ext4:u1"]).await;
    rig.wait("sda", "Provisioned").await;
    rig.edit("sda", |device| device.spec.provision = false).await;
    rig.wait("sda", "Formatted").await;
    rig.edit("sda", |device| device.spec.file_system.format_request = "2".to_owned()).await;
    let device = rig.device("sda").await;
    assert_eq!(device.status.provision_phase, "Formatted");
    assert!(refusal(&device).contains("acknowledged nothing"), "{}", refusal(&device));
    assert_eq!(rig.host.count("mkfs sda"), 1);
}

#[tokio::test]
async fn a_format_that_fails_has_used_its_acknowledgement_up() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "u1");
    rig.host.fate("sda", "wipe", Fate::Fails("input/output error".to_owned()));
    format(&rig, "1", &["ext4:u1"]).await;
    rig.wait("sda", "Failed").await;
    rig.host.fate("sda", "wipe", Fate::Takes(Duration::ZERO));
    rig.edit("sda", |device| device.spec.retry = "1".to_owned()).await;
    rig.wait("sda", "Failed").await;
    assert!(refusal(&rig.device("sda").await).contains("acknowledged nothing"));
    assert_eq!(rig.host.count("mkfs sda"), 0);
}

#[tokio::test]
async fn an_acknowledgement_without_a_format_request_is_removed() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::PartitionTable, "dos", "");
    rig.edit("sda", |device| device.spec.acknowledge_data_loss = vec!["dos".to_owned()]).await;
    assert!(rig.device("sda").await.spec.acknowledge_data_loss.is_empty());
    rig.want("sda").await;
    rig.wait("sda", "Failed").await;
    assert!(rig.host.log().is_empty(), "nothing was written");
}

#[tokio::test]
async fn a_dry_run_decides_as_the_real_change_does_and_changes_nothing() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.write_signature("sda", Class::Filesystem, "ext4", "u");
    let forced = |device: &mut BlockDevice| {
        device.spec.file_system.force_formatted = true;
        device.spec.file_system.format_request = "1".to_owned();
    };
    let answer = rehearse(&rig, "a", forced).await;
    assert_eq!((answer.passes, answer.rules.is_empty()), (false, false));
    assert!(answer.rules[3].refusal.as_ref().unwrap().contains("ext4:u"));
    let answer = rehearse(&rig, "b", |device| {
        forced(device);
        device.spec.acknowledge_data_loss = vec!["ext4:u".to_owned()];
    })
    .await;
    assert!(answer.passes && answer.decision.contains("Format would begin"), "{answer:?}");
    // An acknowledgement without a request has no effect in either.
    let answer = rehearse(&rig, "c", |device| {
        device.spec.acknowledge_data_loss = vec!["ext4:u".to_owned()];
    })
    .await;
    assert_eq!(answer.decision, "Unprovisioned: nothing would be done");
    assert!(rig.host.log().is_empty());
    assert!(rig.device("sda").await.spec.acknowledge_data_loss.is_empty());
}

#[tokio::test]
async fn a_dry_run_without_a_spec_rehearses_a_format() {
    let rig = Rig::with(&["sda"]).await;
    rig.edit("sda", |device| {
        let key = DRY_RUN_ANNOTATION.to_owned();
        device.metadata.annotations.insert(key, "1".to_owned());
    })
    .await;
    let answer = rig.device("sda").await.status.dry_run.unwrap();
    assert!(answer.passes && answer.decision.contains("Format would begin"), "{answer:?}");
    assert!(rig.host.log().is_empty());
}
