//! Decides what is done next with the data keys and values in etcd. Pure functions.

use std::sync::Arc;

use crate::object::Record;
use crate::seal::{DataKey, KeyError, KeyState, Sealer};

use super::super::roster::{self, Rewrites};

/// How many values are rewritten together: fewer than etcd takes operations in a transaction.
const TOGETHER: usize = 48;
/// How many bytes of values are rewritten together; etcd takes 1.5 MiB.
const BYTES: usize = 256 << 10;

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until something changes.
    Idle,
    /// This pending key is put into use: every server can open it.
    Activate(DataKey),
    /// These servers, by machine and process, cannot open the pending key yet.
    Wait(Vec<String>),
    /// This server rewrites the values that are not encrypted as new ones are.
    Rewrite,
    /// Another server rewrites values.
    Leave,
    /// etcd refused values that were to be rewritten.
    Refused,
}

/// The next step of the server named `own`. `keys` are the stored data keys, the oldest first, and
/// `servers` the records of all live servers; `stale` says whether a value was seen that is not
/// encrypted as new values are.
pub(super) fn next_step(
    keys: &[DataKey],
    servers: &[&Arc<Record>],
    own: &str,
    stale: bool,
) -> Step {
    let mut waiting = Vec::new();
    if let Some(pending) = keys.iter().rfind(|key| key.state == KeyState::Pending) {
        let id = pending.id();
        let blind = servers.iter().filter(|server| !roster::opens(server, &id));
        waiting = blind.map(|server| roster::shown(server)).collect();
        if waiting.is_empty() && !servers.is_empty() {
            return Step::Activate(pending.clone());
        }
    }
    let newest = keys.iter().rfind(|key| key.state.seals());
    let unfinished = newest.is_some_and(|key| key.state == KeyState::Active);
    let mut others = false;
    if !keys.is_empty() && (stale || unfinished) {
        // Values are encrypted by servers that are to encrypt, and decrypted by those that are to
        // decrypt: a server never finishes the opposite of its own settings.
        let wanted = if newest.is_some() { Rewrites::Encrypts } else { Rewrites::Decrypts };
        let able = servers.iter().filter(|server| roster::rewrites(server) == wanted);
        let first = able.map(|server| server.key().name()).min();
        if first == Some(own) {
            return Step::Rewrite;
        }
        others = first.is_some();
    }
    match (waiting.is_empty(), others) {
        (false, _) => Step::Wait(waiting),
        (true, true) => Step::Leave,
        (true, false) => Step::Idle,
    }
}

/// The servers that turned encryption off and still run, by machine and process, if no data key is in
/// use and this server, by its settings, would turn encryption on again. It does not, so that two
/// servers with different settings never undo each other's work.
pub(super) fn turned_off_by(
    keys: &[DataKey],
    servers: &[&Arc<Record>],
    decrypt: bool,
) -> Vec<String> {
    if decrypt || keys.iter().any(|key| key.state != KeyState::Retired) {
        return Vec::new();
    }
    let decrypting = |server: &&&Arc<Record>| roster::rewrites(server) == Rewrites::Decrypts;
    servers.iter().filter(decrypting).map(|server| roster::shown(server)).collect()
}

/// The meaning of a pass that rewrote values, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Values are encrypted with the data key, as expected.
    Encrypted,
    /// A store that was encrypted as a whole held values that were not: a warning.
    Repaired,
    /// Values are in the clear: a warning.
    Decrypted,
}

/// The meaning of a pass that rewrote values, `encrypted` or in the clear, with these data keys.
pub(super) fn outcome(encrypted: bool, keys: &[DataKey]) -> Outcome {
    let any = |state| keys.iter().any(|key| key.state == state);
    match (encrypted, any(KeyState::Complete) && !any(KeyState::Active)) {
        (false, _) => Outcome::Decrypted,
        (true, true) => Outcome::Repaired,
        (true, false) => Outcome::Encrypted,
    }
}

/// The data keys as they are stored once no value is left to be rewritten: the newest key in use is
/// complete, and the others in use are retired.
pub(super) fn completed(keys: &[DataKey], sealer: &Sealer) -> Result<Vec<DataKey>, KeyError> {
    let newest = keys.iter().rposition(|key| key.state.seals());
    let Some(newest) = newest else { return Ok(Vec::new()) };
    let wanted = |at: usize, key: &DataKey| match (at == newest, key.state) {
        (true, _) => KeyState::Complete,
        (false, state) if state.seals() => KeyState::Retired,
        (false, state) => state,
    };
    let changed = |(at, key): (usize, &DataKey)| {
        let state = wanted(at, key);
        (state != key.state).then(|| sealer.in_state(key, state))
    };
    keys.iter().enumerate().filter_map(changed).collect()
}

/// The data keys that a server stores when it starts with a key file: those that another master key
/// than the first wraps, wrapped by the first; those of older versions, bound to their state; a new
/// one if there is none in use; or, to decrypt the store, all of them retired. A complete key of an
/// older version is active again: a pass must show that every value is sealed before values in the
/// clear are refused.
pub(super) fn opening_changes(
    keys: &[DataKey],
    sealer: &Sealer,
    decrypt: bool,
) -> Result<Vec<DataKey>, KeyError> {
    let mut changes = Vec::new();
    for key in keys {
        let state = match key.state {
            _ if decrypt => KeyState::Retired,
            KeyState::Complete if !key.is_bound() => KeyState::Active,
            state => state,
        };
        if sealer.is_first(key.master()) && key.is_bound() && state == key.state {
            continue;
        }
        match sealer.in_state(key, state) {
            Ok(changed) => changes.push(changed),
            // Its master key is lost; whatever was sealed with it has been rewritten.
            Err(_) if key.state == KeyState::Retired => {}
            Err(error) => return Err(error),
        }
    }
    if !decrypt && keys.iter().all(|key| key.state == KeyState::Retired) {
        changes.extend(sealer.new_data_key(KeyState::Pending)?);
    }
    Ok(changes)
}

/// Parts values into groups that one transaction takes.
pub(super) fn groups<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let more = size(&item);
        match groups.last_mut() {
            Some(group) if group.len() < TOGETHER && bytes + more <= BYTES => {
                bytes += more;
                group.push(item);
            }
            _ => {
                bytes = more;
                groups.push(vec![item]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests;
