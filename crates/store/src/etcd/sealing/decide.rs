//! Decides what is done next with the data keys and values in etcd. Pure functions.

use std::sync::Arc;

use crate::object::Record;
use crate::seal::{DataKey, KeyError, KeyState, Sealer};

use super::super::roster;

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
    /// These servers cannot open the pending key yet.
    Wait(Vec<String>),
    /// This server rewrites the values that are not encrypted as new ones are.
    Rewrite,
    /// Another server does that.
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
        waiting = blind.map(|server| server.key().name().to_owned()).collect();
        if waiting.is_empty() && !servers.is_empty() {
            return Step::Activate(pending.clone());
        }
    }
    let newest = keys.iter().rfind(|key| key.state.seals());
    let unfinished = newest.is_some_and(|key| key.state == KeyState::Active);
    if !keys.is_empty() && (stale || unfinished) {
        let able = servers.iter().filter(|server| roster::rewrites(server));
        let first = able.map(|server| server.key().name()).min();
        return if first == Some(own) { Step::Rewrite } else { Step::Leave };
    }
    if waiting.is_empty() { Step::Idle } else { Step::Wait(waiting) }
}

/// The data keys as they are stored once no value is left to be rewritten: the newest key in use is
/// complete, and the others in use are retired.
pub(super) fn completed(keys: &[DataKey]) -> Vec<DataKey> {
    let Some(newest) = keys.iter().rposition(|key| key.state.seals()) else { return Vec::new() };
    let wanted = |at: usize, key: &DataKey| match (at == newest, key.state) {
        (true, _) => KeyState::Complete,
        (false, state) if state.seals() => KeyState::Retired,
        (false, state) => state,
    };
    let changed = |(at, key): (usize, &DataKey)| {
        let state = wanted(at, key);
        (state != key.state).then(|| key.clone().in_state(state))
    };
    keys.iter().enumerate().filter_map(changed).collect()
}

/// The data keys that a server stores when it starts with a key file: those that another master key
/// than the first wraps, wrapped by the first; a new one if there is none in use; or, to decrypt
/// the store, all of them retired.
pub(super) fn opening_changes(
    keys: &[DataKey],
    sealer: &Sealer,
    decrypt: bool,
) -> Result<Vec<DataKey>, KeyError> {
    let mut changes = Vec::new();
    for key in keys {
        let wrapped = match sealer.rewrap(key) {
            Ok(wrapped) => wrapped,
            // Its master key is lost; whatever was sealed with it has been rewritten.
            Err(_) if key.state == KeyState::Retired => None,
            Err(error) => return Err(error),
        };
        let retire = decrypt && key.state != KeyState::Retired;
        if wrapped.is_some() || retire {
            let key = wrapped.unwrap_or_else(|| key.clone());
            let state = if decrypt { KeyState::Retired } else { key.state };
            changes.push(key.in_state(state));
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
