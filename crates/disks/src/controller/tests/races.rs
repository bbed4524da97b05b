//! The races of the seed, and those its lock leaves.

use std::num::NonZeroUsize;
use std::time::Duration;

use mainstay_host::sim::{Fate, SimHost};
use mainstay_store::objects::Error;
use mainstay_store::resources::{Reason, WriteOptions};

use super::rig::{Rig, settle, until};
use crate::controller::Disks;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_trigger_during_a_format_has_no_effect() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    for n in 0..100 {
        rig.host.poke("sda");
        rig.edit("sda", |device| device.spec.tags = vec![format!("t{n}")]).await;
    }
    assert_eq!(rig.host.log(), ["mkfs sda"], "a hundred events, no operation");
    assert_eq!(rig.phase("sda").await, "Formatting");
    rig.advance(60).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
    assert_eq!(rig.device("sda").await.spec.tags, ["t99"], "the edit survives the completion");
}

#[tokio::test]
async fn of_two_agents_with_one_object_one_wins() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    let second = Disks::start(rig.options.clone(), rig.parts()).await.unwrap();
    settle().await;
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.advance(60).await;
    for _ in 0..5 {
        rig.advance(1).await;
    }
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
    drop(second);
    rig.crash().await;
}

#[tokio::test]
async fn an_unwanted_disk_is_mounted_to_the_end_and_then_unmounted() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mount", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Mounting").await;
    rig.edit("sda", |device| device.spec.provision = false).await;
    assert_eq!(rig.phase("sda").await, "Mounting");
    rig.advance(60).await;
    rig.wait("sda", "Formatted").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda", "umount sda"]);
    assert!(rig.backend.registered().is_empty());
}

#[tokio::test]
async fn an_object_created_again_after_a_delete_while_formatting_takes_over_the_result() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    let before = rig.device("sda").await;
    rig.delete("sda").await;
    assert!(rig.device("sda").await.is_deleting(), "it is held back while its disk is worked on");
    rig.advance(60).await;
    until("the object is created again and mounted", || rig.host.log().len() >= 2).await;
    rig.wait("sda", "Provisioned").await;
    let after = rig.device("sda").await;
    assert_ne!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.metadata.name, before.metadata.name, "it is remembered by its disk");
    assert!(after.spec.provision, "and so is what was wanted");
    assert_eq!(after.status.failure, None);
    assert_eq!(rig.host.count("mkfs sda"), 1, "what is on it now is not erased");
}

#[tokio::test]
async fn deleting_a_provisioned_object_walks_it_through_again() {
    let rig = Rig::with(&["sda"]).await;
    rig.want("sda").await;
    rig.wait("sda", "Provisioned").await;
    let before = rig.device("sda").await;
    rig.delete("sda").await;
    rig.wait("sda", "Provisioned").await;
    let after = rig.device("sda").await;
    assert_ne!(after.metadata.uid, before.metadata.uid);
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
}

#[tokio::test]
async fn twenty_disks_go_five_at_a_time_in_order() {
    let mut rig = Rig::new().await;
    let names: Vec<String> = (0..20).map(|n| format!("sd{n:02}")).collect();
    for name in &names {
        rig.host.attach(SimHost::disk(name, 10 << 30));
        rig.host.fate(name, "mkfs", Fate::Takes(MINUTE));
    }
    rig.start().await;
    for name in &names {
        rig.want(name).await;
    }
    for _ in 0..12 {
        rig.advance(60).await;
        settle().await;
    }
    for name in &names {
        rig.wait(name, "Provisioned").await;
    }
    assert_eq!(rig.host.most_at_once(), 5);
    let formats: Vec<_> =
        rig.host.log().into_iter().filter(|line| line.starts_with("mkfs")).collect();
    let expected: Vec<_> = names.iter().map(|name| format!("mkfs {name}")).collect();
    assert_eq!(formats, expected, "first come, first served, each once");
}

#[tokio::test]
async fn one_slot_is_a_strict_sequence() {
    let mut rig = Rig::new().await;
    rig.options.slots = NonZeroUsize::MIN;
    for name in ["sda", "sdb", "sdc"] {
        rig.host.attach(SimHost::disk(name, 10 << 30));
        rig.host.fate(name, "mkfs", Fate::Takes(MINUTE));
    }
    rig.start().await;
    for name in ["sda", "sdb", "sdc"] {
        rig.want(name).await;
    }
    for _ in 0..4 {
        rig.advance(60).await;
    }
    for name in ["sda", "sdb", "sdc"] {
        rig.wait(name, "Provisioned").await;
    }
    assert_eq!(rig.host.most_at_once(), 1);
}

#[tokio::test]
async fn an_outcome_is_written_when_the_store_is_back() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.refuse_writes(|| Error::Unavailable { reason: "the store is away".to_owned() });
    rig.advance(60).await;
    let mut refused = vec![rig.store.hits()];
    for seconds in [1, 2, 4, 8] {
        rig.advance(seconds).await;
        refused.push(rig.store.hits());
    }
    assert!(refused[0] > 0 && refused[4] - refused[0] < 40, "it backs off: {refused:?}");
    assert_eq!(rig.phase("sda").await, "Formatting");
    rig.store.heal();
    for _ in 0..4 {
        rig.advance(60).await;
    }
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"]);
}

#[tokio::test]
async fn a_format_that_times_out_has_failed_even_if_it_succeeds_later() {
    let rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Hangs);
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.advance(300).await;
    rig.wait("sda", "Failed").await;
    let status = rig.device("sda").await.status;
    assert_eq!(status.failure.unwrap().reason, "OperationTimeout");
    assert!(status.operation.unwrap().lease_held);
    rig.edit("sda", |device| device.spec.retry = "1".to_owned()).await;
    rig.advance(600).await;
    assert_eq!(rig.phase("sda").await, "Failed", "in quarantine nothing leads out");
    assert_eq!(rig.host.count("mkfs sda"), 1);
    rig.host.fate("sda", "mkfs", Fate::Takes(Duration::ZERO));
    rig.host.thaw();
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 2, "reaped, then tried again as asked");
}

#[tokio::test]
async fn a_stale_writer_loses_without_effect() {
    let rig = Rig::with(&["sda"]).await;
    let stale = rig.device("sda").await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    let mut late = stale;
    late.status.provision_phase = "Formatting".to_owned();
    let written = rig.resources.replace_status_as(&late, &WriteOptions::default()).await;
    assert!(written.unwrap_err().is_conflict());
    rig.advance(60).await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.count("mkfs sda"), 1);
}

#[tokio::test]
async fn an_outcome_that_may_not_be_written_is_not_tried_for_ever() {
    let mut rig = Rig::with(&["sda"]).await;
    rig.host.fate("sda", "mkfs", Fate::Takes(MINUTE));
    rig.want("sda").await;
    rig.wait("sda", "Formatting").await;
    rig.refuse_writes(|| Error::Refused {
        reason: Reason::Forbidden,
        message: "this node may not".to_owned(),
    });
    rig.advance(60).await;
    let tried = rig.store.hits();
    assert!(tried > 0);
    for _ in 0..10 {
        rig.host.poke("sda");
        rig.advance(60).await;
    }
    assert_eq!(rig.store.hits(), tried, "a no is a no");
    assert_eq!(rig.host.log(), ["mkfs sda"], "and nothing is done twice because of it");
    rig.store.heal();
    rig.crash().await;
    rig.start().await;
    rig.wait("sda", "Provisioned").await;
    assert_eq!(rig.host.log(), ["mkfs sda", "mount sda"], "the next start takes it up");
}
