//! Writes a decision into the status: phases, tokens, conditions and messages. Pure.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::conditions::{self, Report};
use mainstay_host::{Class, Disk, MountLine, Space};
use mainstay_store::meta::Time;

use crate::api::{
    BlockDevice, Capacity, Details, DeviceRef, DryRun, Failure, FormatRecord, FoundSignature,
    OperationStatus, RuleStatus, State,
};
use crate::backend::Unready;
use crate::gate::Verdict;
use crate::identity;
use crate::phase::{Facts, Fault, Input, Operation, Phase, Retrigger};
use crate::table::{Decision, Effect, Next};

/// The details that accompany a decision.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The message.
    pub message: String,
    /// Why it failed, in one word, where that is known better than by the row.
    pub reason: Option<String>,
    /// The UUID of what was made or adopted.
    pub uuid: Option<String>,
    /// The operation was given up but could not be ended.
    pub lease_held: bool,
    /// The refusal of the gate.
    pub refusal: Option<String>,
}

/// How long an operation may take; `None` if it waits for others.
#[must_use]
pub fn limit(operation: Operation, size: u64) -> Option<Duration> {
    match operation {
        Operation::Format => {
            let by_size = Duration::from_secs(60 + (size >> 30));
            Some(by_size.max(Duration::from_secs(300)))
        }
        Operation::Mount | Operation::Unmount | Operation::Sync => Some(Duration::from_secs(60)),
        Operation::Register => Some(Duration::from_secs(300)),
        Operation::Deregister => None,
    }
}

/// Whether the pool of a registered disk takes replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does, as far as is known.
    Ready,
    /// It does not.
    Unready(Unready),
    /// An operation owns the disk; its end decides.
    Unknown,
}

/// Judges whether the pool of a registered disk takes replicas: by the phase, and within Provisioned by
/// whether the disk answers.
#[must_use]
pub fn unready(
    device: &BlockDevice,
    disk: Option<&Disk>,
    space: Option<&Result<Space, String>>,
) -> Readiness {
    let no = |reason: &str, message: String| {
        Readiness::Unready(Unready { reason: reason.to_owned(), message })
    };
    let Some(phase) = device.phase().filter(|phase| !phase.is_lock()) else {
        return Readiness::Unknown;
    };
    match (phase, &device.status.failure) {
        (Phase::Failed, Some(failure)) => no(&failure.reason, failure.message.clone()),
        (Phase::Provisioned, _) if !device.wanted() => Readiness::Unknown,
        (Phase::Provisioned, _) => {
            let Some(disk) = disk.filter(|_| device.status.state != State::Inactive) else {
                return no("DiskMissing", "the disk is not attached".to_owned());
            };
            if let Some(why) = &disk.contents.unreadable {
                return no("DiskUnreadable", format!("{} cannot be read: {why}", disk.path));
            }
            space.and_then(unreadable).map_or(Readiness::Ready, Readiness::Unready)
        }
        _ => no("NotProvisioned", format!("the disk is {phase}, not Provisioned")),
    }
}

/// Why a pool whose space cannot be read takes no replicas.
#[must_use]
pub fn unreadable(space: &Result<Space, String>) -> Option<Unready> {
    let why = space.as_ref().err()?;
    let message = format!("the free space of the pool cannot be read: {why}");
    Some(Unready { reason: "DiskUnreadable".to_owned(), message })
}

/// A fault in words.
#[must_use]
pub fn fault(fault: Fault, device: &BlockDevice, disk: &Disk) -> String {
    let (path, recorded) = (&disk.path, device.recorded_uuid());
    match fault {
        Fault::FilesystemChanged => {
            let found = disk.contents.signatures.iter();
            let found = found.map(|found| format!("{} {}", found.name, found.uuid));
            let found = found.map(|text| text.trim().to_owned()).collect::<Vec<_>>().join(", ");
            format!("{path} has {found}, but the pool was made with UUID {recorded}")
        }
        Fault::FilesystemMissing => {
            format!("the filesystem or physical volume with UUID {recorded} is gone from {path}")
        }
        Fault::ReadOnly => format!("the filesystem of {path} is mounted for reading only"),
    }
}

/// Binds an operation to a disk.
#[must_use]
pub fn bind(disk: &Disk) -> DeviceRef {
    DeviceRef {
        number: disk.number.clone(),
        diskseq: disk.diskseq,
        path: disk.path.clone(),
        size_bytes: disk.size,
        identity: identity::of(disk),
    }
}

/// Says what the disk is.
pub fn describe(device: &mut BlockDevice, disk: &Disk, mounts: &[MountLine]) {
    let status = &mut device.status;
    let corrupted = status.device_status.file_system.corrupted;
    status.state = State::Active;
    let identity = identity::of(disk);
    let found = disk.contents.only();
    let filesystem = disk.contents.of_class(Class::Filesystem);
    let table = disk.contents.of_class(Class::PartitionTable);
    let mount = mounts.iter().find(|line| line.number == disk.number);
    let device_status = &mut status.device_status;
    device_status.dev_path.clone_from(&disk.path);
    device_status.partitioned = disk.is_partitioned();
    device_status.capacity =
        Capacity { size_bytes: disk.size, physical_block_size_bytes: disk.physical_block };
    device_status.details = Details {
        device_type: "disk".to_owned(),
        drive_type: disk.drive.as_str().to_owned(),
        uuid: identity.uuid,
        pt_uuid: table.map(|found| found.uuid.clone()).unwrap_or_default(),
        part_uuid: String::new(),
        is_removable: disk.removable,
        storage_controller: disk.controller.clone(),
        bus_path: identity.bus_path,
        model: identity.model,
        vendor: identity.vendor,
        serial_number: identity.serial,
        numa_node_id: disk.numa,
        wwn: identity.wwn,
        label: found.map(|found| found.label.clone()).unwrap_or_default(),
    };
    let file_system = &mut device_status.file_system;
    file_system.kind = filesystem.map(|found| found.name.clone()).unwrap_or_default();
    file_system.mount_point = mount.map(|line| line.point.clone()).unwrap_or_default();
    file_system.is_read_only = mount.is_some_and(|line| line.read_only);
    file_system.corrupted = corrupted;
    let signatures = disk.contents.signatures.iter().map(|found| FoundSignature {
        name: found.name.clone(),
        uuid: found.uuid.clone(),
        offset: found.offset,
    });
    status.signatures = signatures.collect();
}

/// Writes a decision down.
pub fn settle(
    device: &mut BlockDevice,
    decision: &Decision,
    facts: &Facts,
    account: &Account,
    now: Timestamp,
) {
    let before = device.phase();
    decision.next.as_str().clone_into(&mut device.status.provision_phase);
    device.status.observed_generation = device.metadata.generation;
    for effect in decision.row.effects {
        apply(device, *effect, facts, account, now);
    }
    if let Input::Ended(_) = facts.input
        && !decision.next.is_lock()
    {
        let kept = account.lease_held.then(|| device.status.operation.take()).flatten();
        device.status.operation = kept.map(|token| OperationStatus { lease_held: true, ..token });
    }
    if decision.next == Phase::Failed && before != Some(Phase::Failed) {
        fail(device, before, decision, account, now);
    }
    agree(device, now);
    judge(device, decision, facts, account, now);
}

/// Makes the conditions agree with the phase, which is the single truth.
fn agree(device: &mut BlockDevice, now: Timestamp) {
    let Some(phase) = device.phase() else { return };
    let failure = device.status.failure.as_ref().filter(|_| phase == Phase::Failed);
    let (reason, message) = match failure {
        Some(failure) => (failure.reason.clone(), failure.message.clone()),
        None => ("NotProvisioned".to_owned(), format!("the disk is {phase}")),
    };
    let list = &mut device.status.conditions;
    let provisioned = matches!(phase, Phase::Provisioned | Phase::Unprovisioning);
    match (provisioned, conditions::is_true(list, "Provisioned", None)) {
        (true, false) if phase == Phase::Provisioned => {
            let report = Report::new("Provisioned", truth(true), "Provisioned");
            conditions::set(list, &report.message("the pool is registered").timed(), now);
        }
        (false, true) => {
            let report = Report::new("Provisioned", truth(false), &reason);
            conditions::set(list, &report.message(message).timed(), now);
        }
        _ => {}
    }
    let unmounted = [Phase::Unprovisioned, Phase::Formatting, Phase::Formatted, Phase::Mounting];
    if unmounted.contains(&phase) && conditions::is_true(list, "Mounted", None) {
        let report = Report::new("Mounted", truth(false), "NotMounted");
        conditions::set(list, &report.message(format!("the disk is {phase}")).timed(), now);
    }
}

fn apply(
    device: &mut BlockDevice,
    effect: Effect,
    facts: &Facts,
    account: &Account,
    now: Timestamp,
) {
    let mut say = |kind: &str, status: bool, reason: &str, message: &str| {
        let report = Report::new(kind, truth(status), reason).message(message).timed();
        conditions::set(&mut device.status.conditions, &report, now);
    };
    let message = account.message.as_str();
    match effect {
        Effect::Formatted => {
            say("Formatted", true, "Formatted", message);
            let request =
                device.status.operation.as_ref().map(|token| token.format_request.clone());
            let request = request.unwrap_or_else(|| device.spec.file_system.format_request.clone());
            let uuid = account.uuid.clone().unwrap_or_default();
            device.status.formatted =
                Some(FormatRecord { uuid, request, adopted: false, at: Some(Time::new(now)) });
            device.status.device_status.file_system.corrupted = false;
        }
        Effect::Adopted => {
            let uuid = account.uuid.clone().unwrap_or_default();
            let at = Some(Time::new(now));
            let record = device.status.formatted.get_or_insert_with(|| FormatRecord {
                adopted: true,
                at,
                ..FormatRecord::default()
            });
            record.uuid = uuid;
            device.status.device_status.file_system.corrupted = false;
        }
        Effect::NotFormatted => say("Formatted", false, "FormatFailed", message),
        Effect::Forgotten => {
            if let Some(record) = &mut device.status.formatted {
                record.uuid.clear();
            }
        }
        Effect::Damaged => device.status.device_status.file_system.corrupted = true,
        Effect::Mounted => {
            say("Mounted", true, "Mounted", message);
            device.status.device_status.file_system.corrupted = false;
        }
        Effect::NotMounted => say("Mounted", false, "NotMounted", message),
        Effect::Provisioned => {
            say("Provisioned", true, "Provisioned", message);
            if let (Some(uuid), Some(record)) = (&account.uuid, &mut device.status.formatted) {
                record.uuid.clone_from(uuid);
            }
            device.status.tags.clone_from(&device.spec.tags);
        }
        Effect::NotProvisioned => {
            say("Provisioned", false, "NotProvisioned", message);
            device.status.tags.clear();
        }
        Effect::Cleared => {
            if facts.retrigger == Retrigger::Force {
                device.status.formatted = None;
            }
            device.status.failure = None;
            device.status.operation = None;
            say("Failed", false, "Retried", "tried again on request");
        }
        Effect::Refused
        | Effect::NeedsFormat
        | Effect::Partitioned
        | Effect::Corrupted
        | Effect::InUse
        | Effect::Displaced
        | Effect::MountedElsewhere
        | Effect::Later
        | Effect::Faulty
        | Effect::Discard => {}
    }
}

fn truth(status: bool) -> mainstay_store::meta::ConditionStatus {
    use mainstay_store::meta::ConditionStatus::{False, True};
    if status { True } else { False }
}

fn fail(
    device: &mut BlockDevice,
    before: Option<Phase>,
    decision: &Decision,
    account: &Account,
    now: Timestamp,
) {
    let row = match decision.row.next {
        Next::Failed(reason) => reason,
        _ => "Failed",
    };
    let reason = account.reason.clone().unwrap_or_else(|| row.to_owned());
    let said = account.refusal.as_ref().unwrap_or(&account.message);
    let message = format!("{said}. {}", advice(&reason));
    let filesystem = &device.spec.file_system;
    device.status.failure = Some(Failure {
        reason: reason.clone(),
        message: message.clone(),
        from_phase: before.map(|phase| phase.to_string()).unwrap_or_default(),
        observed_generation: device.metadata.generation,
        retry: device.spec.retry.clone(),
        repaired: filesystem.repaired,
        force_formatted: filesystem.force_formatted,
        format_request: filesystem.format_request.clone(),
        at: Some(Time::new(now)),
    });
    let report = Report::new("Failed", truth(true), &reason).message(message).timed();
    conditions::set(&mut device.status.conditions, &report, now);
}

/// The remedy for a failure.
#[must_use]
pub fn advice(reason: &str) -> &'static str {
    match reason {
        "Refused" => {
            "Nothing was written. Clear what stands in the way (or acknowledge it in spec.acknowledgeDataLoss), then set spec.retry to a new value"
        }
        "Corrupted" => {
            "Repair it and set spec.fileSystem.repaired, or set spec.fileSystem.forceFormatted (with a new formatRequest) to format it again"
        }
        "OperationTimeout" => {
            "See why the disk does not answer; then set spec.retry to a new value. A disk whose operation cannot be ended stays locked until it ends"
        }
        "InUse" => {
            "Set spec.provision to false, so that the pool is emptied and removed first; then set spec.retry to a new value"
        }
        "Busy" => "End what uses it, then set spec.retry to a new value",
        "IdentityChanged" | "DeviceGone" | "ForeignSignature" => {
            "Nothing was done to the disk that is there now. See that the right disk is attached, then set spec.retry to a new value"
        }
        "CrashLoop" => "See why the agent keeps ending, then set spec.retry to a new value",
        "FilesystemChanged" => {
            "The pool takes no new replicas. To use the recorded filesystem, attach the disk that has it and set spec.retry to a new value; to give the pool up, set spec.provision to false and spec.retry to a new value"
        }
        "FilesystemMissing" => {
            "The pool takes no new replicas. Repair the filesystem and set spec.retry to a new value; to give the pool up, set spec.provision to false and spec.retry to a new value"
        }
        "ReadOnly" => {
            "The pool takes no new replicas. The kernel's log has the cause; repair the filesystem, mount it for writing (or unmount it) and set spec.retry to a new value; to give the pool up, set spec.provision to false and spec.retry to a new value"
        }
        "UnknownPhase" => {
            "Set spec.retry to a new value: the phase is then taken from what can be seen"
        }
        _ => {
            "Once the cause is gone, set spec.retry to a new value, or delete the object to begin anew"
        }
    }
}

/// The conditions that follow from what is seen, rather than from what was done.
fn judge(
    device: &mut BlockDevice,
    decision: &Decision,
    facts: &Facts,
    account: &Account,
    now: Timestamp,
) {
    let mounted_at = device.status.device_status.file_system.mount_point.clone();
    let list = &mut device.status.conditions;
    let mut hold = |kind: &str, said: Option<(&str, String)>| match said {
        Some((reason, message)) => {
            let report = Report::new(kind, truth(true), reason).message(message);
            conditions::set(list, &report, now);
        }
        None => drop(conditions::remove(list, kind)),
    };
    if device.status.device_status.file_system.corrupted {
        let message = "the filesystem cannot be mounted; repair it or format it again";
        hold("Corrupted", Some(("BadSuperblock", message.to_owned())));
    } else {
        hold("Corrupted", None);
    }
    if facts.input != Input::Look {
        return;
    }
    let effects = decision.row.effects;
    let needs = if effects.contains(&Effect::NeedsFormat) {
        let message =
            "there is no usable filesystem on the disk; set spec.fileSystem.forceFormatted";
        Some(("NeedsFormat", message.to_owned()))
    } else if effects.contains(&Effect::Partitioned) {
        let message =
            "the disk has partitions, which are not used; format it to use the whole disk";
        Some(("PartitionedUnsupported", message.to_owned()))
    } else {
        None
    };
    hold("NeedsFormat", needs);
    if decision.next != Phase::Failed {
        let refused = if effects.contains(&Effect::InUse) {
            Some(("InUse", "the disk is in use; unprovision it before formatting it".to_owned()))
        } else if effects.contains(&Effect::Displaced) {
            let message = "the disk is mounted elsewhere, or under another mount, while its pool is in use; remove that mount by hand, or unprovision the disk";
            Some(("MountInUse", message.to_owned()))
        } else if effects.contains(&Effect::MountedElsewhere) {
            let message = format!(
                "another program has mounted the disk at {mounted_at}; unmount it, or use --adopt (spec.fileSystem.adopt: NAME:UUID) to make the filesystem a pool with its data"
            );
            Some(("MountedElsewhere", message))
        } else {
            account.refusal.clone().map(|why| ("Refused", why))
        };
        hold("Refused", refused);
    } else if let Some(why) = &account.refusal {
        hold("Refused", Some(("Refused", why.clone())));
    }
}

/// Says (or no longer says) that other disks claim to be this one.
pub fn duplicates(device: &mut BlockDevice, others: &[String], now: Timestamp) {
    let list = &mut device.status.conditions;
    if others.is_empty() {
        conditions::remove(list, "Duplicate");
        return;
    }
    let message = format!(
        "{} claims to be the same disk; nothing destructive is done to either",
        others.join(", ")
    );
    let report = Report::new("Duplicate", truth(true), "Duplicate").message(message);
    conditions::set(list, &report, now);
}

/// The answer to a dry run: `next` is the object as the last decision would leave it, `from` the phase it
/// has now.
#[must_use]
pub fn dry_run(
    request: &str,
    from: Option<Phase>,
    next: &BlockDevice,
    decision: &Decision,
    verdict: Option<&Verdict>,
) -> DryRun {
    let findings = verdict.map_or(&[][..], |verdict| verdict.findings.as_slice());
    let rules = findings.iter().map(|finding| RuleStatus {
        rule: finding.rule,
        asks: finding.asks.to_owned(),
        refusal: finding.refusal.clone(),
    });
    let refused = verdict.is_some_and(|verdict| !verdict.passes());
    let begins = decision.operation().filter(|_| !refused);
    let blocked = next.status.conditions.iter().find(|condition| {
        let blocks = ["Failed", "Refused", "NeedsFormat", "Corrupted"];
        blocks.contains(&condition.kind.as_str()) && condition.status == truth(true)
    });
    let blocked = blocked.filter(|_| begins.is_none());
    let from = from.map_or("unknown", Phase::as_str);
    let to = decision.next;
    let text = match (begins, blocked) {
        (Some(operation), _) => format!("{from} → {to}: {operation} would begin"),
        (None, Some(why)) => format!("{from} → {to}: {}", why.message),
        (None, None) if from == to.as_str() => format!("{from}: nothing would be done"),
        (None, None) => format!("{from} → {to}: {}", decision.row.guard),
    };
    DryRun {
        request: request.to_owned(),
        passes: !refused && blocked.is_none(),
        decision: text,
        rules: rules.collect(),
    }
}
