//! Decides about an operation that was interrupted: the agent was killed, or the machine
//! rebooted, while a lock phase stood. Pure.
//!
//! The token that was written with the lock says what was to be done to which disk; what is seen now
//! says how far it got. No destructive operation runs again unless the disk is certainly the same.

use mainstay_host::Disk;

use crate::api::{Identity, OperationStatus};
use crate::phase::{Mount, Phase, Record};
use crate::{gate, identity};

/// How often an operation is begun before it is given up.
pub const ATTEMPTS: u32 = 3;

/// The state of an interrupted operation.
#[derive(Clone, Debug)]
pub struct Interrupted<'a> {
    /// The lock phase.
    pub phase: Phase,
    /// The token written with it.
    pub token: Option<&'a OperationStatus>,
    /// This boot of the machine.
    pub boot_id: &'a str,
    /// The disk of the object, if it is there.
    pub disk: Option<&'a Disk>,
    /// The disk is in use: perhaps by the interrupted operation itself.
    pub busy: bool,
    /// Where the disk is mounted.
    pub mount: Mount,
    /// Its record at the backend.
    pub record: Record,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was done: only the word is missing.
    Accept,
    /// Begin it again.
    Run,
    /// Wait until the disk is free, then decide again.
    Wait,
    /// Give it up.
    Fail {
        /// Why, in one word.
        reason: &'static str,
        /// Why.
        message: String,
    },
}

fn fail(reason: &'static str, message: impl Into<String>) -> Action {
    Action::Fail { reason, message: message.into() }
}

/// Decides.
#[must_use]
pub fn recover(seen: &Interrupted<'_>) -> Action {
    let Some(token) = seen.token else {
        return fail(
            "NoToken",
            "a lock phase without an operation: it is not known which one was started",
        );
    };
    match seen.phase {
        Phase::Formatting => format(seen, token),
        Phase::Mounting if seen.mount == Mount::Right => Action::Accept,
        Phase::Unmounting if seen.mount == Mount::Nowhere => Action::Accept,
        Phase::Provisioning if matches!(seen.record, Record::Equal) => Action::Accept,
        Phase::Mounting | Phase::Provisioning => match differs(seen, token) {
            Some((reason, message)) => fail(reason, message),
            None => again(seen, token),
        },
        Phase::Unmounting => again(seen, token),
        // It waits for replicas for as long as they take; restarts meanwhile are no crashes.
        Phase::Unprovisioning => Action::Run,
        _ => fail("NoLock", format!("{} is no lock phase", seen.phase)),
    }
}

fn again(seen: &Interrupted<'_>, token: &OperationStatus) -> Action {
    if token.attempt >= ATTEMPTS {
        let message = format!("{} was interrupted {} times", token.kind, token.attempt);
        return fail("CrashLoop", message);
    }
    if seen.busy { Action::Wait } else { Action::Run }
}

fn format(seen: &Interrupted<'_>, token: &OperationStatus) -> Action {
    if let Some((reason, message)) = differs(seen, token) {
        return fail(reason, message);
    }
    if seen.busy {
        return Action::Wait;
    }
    let Some(disk) = seen.disk else {
        return fail("DeviceGone", "the disk is not there any more");
    };
    let contents = &disk.contents;
    if let Some(why) = &contents.unreadable {
        return fail("Unreadable", format!("the disk cannot be read: {why}"));
    }
    let finished = contents.only().is_some_and(|found| {
        !token.target_fs_uuid.is_empty() && found.uuid == token.target_fs_uuid
    });
    if finished {
        return Action::Accept;
    }
    let ours = |name: &str, uuid: &str| {
        uuid == token.target_fs_uuid || token.acknowledged.contains(&gate::entry(name, uuid))
    };
    let foreign: Vec<_> = contents
        .signatures
        .iter()
        .filter(|found| !ours(&found.name, &found.uuid))
        .map(|found| found.name.clone())
        .collect();
    if !foreign.is_empty() {
        let found = foreign.join(", ");
        return fail("ForeignSignature", format!("{found} appeared on the disk meanwhile"));
    }
    again(seen, token)
}

/// How the disk differs from the one the operation was bound to.
#[must_use]
pub fn differs(seen: &Interrupted<'_>, token: &OperationStatus) -> Option<(&'static str, String)> {
    let Some(disk) = seen.disk else {
        return Some(("DeviceGone", format!("{} is not there any more", token.device.path)));
    };
    let bound = &token.device;
    if bound.size_bytes != disk.size {
        let text = format!("{} has {} bytes, not {}", disk.path, disk.size, bound.size_bytes);
        return Some(("IdentityChanged", text));
    }
    if token.boot_id == seen.boot_id {
        let attached =
            (bound.number.as_str(), bound.diskseq) == (disk.number.as_str(), disk.diskseq);
        if !attached {
            let text = format!("another disk was attached as {} meanwhile", disk.path);
            return Some(("IdentityChanged", text));
        }
        return None;
    }
    // Formatting changes the UUID: it tells nothing about whether this is the same disk.
    let bare = |identity: &Identity| Identity { uuid: String::new(), ..identity.clone() };
    let found = crate::identity::of(disk);
    let unformatted = identity::same(&bare(&bound.identity), &bare(&found));
    let finished = !token.target_fs_uuid.is_empty() && found.uuid == token.target_fs_uuid;
    if unformatted || finished {
        return None;
    }
    Some(("IdentityChanged", format!("{} is another disk than before the reboot", disk.path)))
}

#[cfg(test)]
mod tests;
