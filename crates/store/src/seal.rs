//! Encryption at rest: values are sealed with data keys, and data keys with the operator's keys.
//!
//! The operator keeps *master keys* in a file outside the store, one a line, `NAME:BASE64`. The
//! store holds *data keys*, each wrapped by a master key, as objects of the collection
//! `datakeys.internal.mainstay.dev`, which is never sealed itself. The first master key wraps new
//! data keys. A stolen disk, or a copy of etcd, cannot be read without the key file.
//!
//! A sealed value is a byte 1, the eight bytes of its data key's id, a nonce of twelve bytes, and
//! the ciphertext with its tag. The cipher is AES-256-GCM-SIV, which stays safe with random nonces
//! and even if one should ever repeat. The collection and the path are authenticated with the
//! value: it cannot be moved under another key.
//!
//! Which data key seals new values depends on the data keys in the store alone: the newest one that
//! is active ([`KeyState`]). The state of a data key, and its place in their order, are authenticated
//! with its master key: somebody who may write to the store, but has no master key, can neither turn
//! encryption off nor bring values in the clear into a store that is encrypted as a whole.

mod data_key;
mod master;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::check::INTERNAL;
use crate::object::{Key, Resource, Revision};
use crate::objects::Error;
use crate::status::Reason;

pub(crate) use data_key::is_data_keys;
pub use data_key::{DataKey, KeyState, data_keys};
pub use master::{KeyError, MasterKeys};

use data_key::{ID_LEN, Id};
use master::{cipher, random};

/// The first byte of a sealed value. Values that are not sealed begin with `{`.
pub(crate) const SEALED: u8 = 1;
const HEAD_LEN: usize = 1 + ID_LEN + NONCE_LEN;

/// Collections that are never sealed: data keys, which are wrapped, and the records with which
/// servers on etcd find each other, which hold revisions and ids of data keys only.
const NEVER_SEALED: [&str; 3] = ["datakeys", "servers", "ticks"];

/// A data key of the store, as far as this process can use it.
#[derive(Clone)]
struct Known {
    /// The key, or why it cannot be opened here.
    cipher: Result<Arc<LessSafeKey>, KeyError>,
    state: KeyState,
    number: u64,
    bound: bool,
    created: Revision,
}

/// The data keys of a store.
#[derive(Clone, Default)]
struct DataKeys {
    known: BTreeMap<Id, Known>,
    /// Whether every value is sealed, so that one in the clear was written by another program.
    complete: bool,
    /// Seals new values; without one they are not sealed.
    current: Option<(Id, Arc<LessSafeKey>)>,
}

impl DataKeys {
    fn choose_current(&mut self) {
        let sealing = self.known.iter().filter(|(_, key)| key.state.seals());
        let newest = sealing.max_by_key(|(id, key)| (key.number, key.created, **id));
        self.current = newest.and_then(|(id, key)| Some((*id, key.cipher.clone().ok()?)));
        let complete = |key: &Known| key.state == KeyState::Complete && key.bound;
        self.complete = self.current.is_some() && self.known.values().any(complete);
    }
}

/// Seals values and opens them. Cheap to clone; clones share their keys.
#[derive(Clone)]
pub struct Sealer(Arc<Inner>);

struct Inner {
    masters: Option<MasterKeys>,
    data: ArcSwap<DataKeys>,
    /// Held while `data` is replaced.
    changing: Mutex<()>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("masters", &self.0.masters).finish_non_exhaustive()
    }
}

impl Default for Sealer {
    fn default() -> Self {
        Self::new(None)
    }
}

/// Whether a stored value is sealed.
pub(crate) fn is_sealed(stored: &[u8]) -> bool {
    stored.first() == Some(&SEALED)
}

/// Whether the values of a collection are never sealed.
fn is_plain(resource: &Resource) -> bool {
    let internal = resource.as_str().strip_suffix(INTERNAL).and_then(|rest| rest.strip_suffix('.'));
    internal.is_some_and(|plural| NEVER_SEALED.contains(&plural))
}

impl Sealer {
    /// A sealer with these master keys; without any, it seals nothing.
    #[must_use]
    pub fn new(masters: Option<MasterKeys>) -> Self {
        let data = ArcSwap::from_pointee(DataKeys::default());
        Self(Arc::new(Inner { masters, data, changing: Mutex::new(()) }))
    }

    /// Whether there are master keys.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.0.masters.is_some()
    }

    /// Whether new values are sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.0.data.load().current.is_some()
    }

    /// The id of the data key that seals new values.
    #[must_use]
    pub fn current(&self) -> Option<String> {
        self.0.data.load().current.as_ref().map(|(id, _)| hex::encode(id))
    }

    fn change(&self, change: impl FnOnce(&mut DataKeys)) {
        let _one = self.0.changing.lock();
        let mut data = DataKeys::clone(&self.0.data.load());
        change(&mut data);
        data.choose_current();
        self.0.data.store(Arc::new(data));
    }

    /// Whether a value is in the clear although every value of the store is sealed: it was written
    /// by another program. Only the state of a bound data key tells.
    #[must_use]
    pub fn is_stray(&self, key: &Key, stored: &[u8]) -> bool {
        !is_sealed(stored) && self.0.data.load().complete && !is_plain(key.resource())
    }

    /// Checks that the record of a data key is as a server wrote it, as far as the master keys at hand
    /// can tell.
    ///
    /// # Errors
    /// [`KeyError::Forged`].
    pub fn verify(&self, key: &DataKey) -> Result<(), KeyError> {
        let Some(masters) = &self.0.masters else { return Ok(()) };
        let data = self.0.data.load();
        let known = data.known.get(&key.id).filter(|known| known.cipher.is_ok());
        let forged = match (masters.unwrap(key), known) {
            (Ok(_), known) => known.is_some_and(|known| known.bound) && !key.bound,
            // The right master key is at hand: it has opened the key before.
            (Err(_), Some(_)) => masters.has(&key.master),
            (Err(_), None) => masters.is_forged(key),
        };
        if forged { Err(KeyError::Forged { id: key.id() }) } else { Ok(()) }
    }

    /// Takes over a data key as it is in the store, where it was created at `created`. Calling it
    /// again with the same key takes over its state, unless that cannot be verified because its
    /// master key is not at hand.
    ///
    /// # Errors
    /// [`KeyError::Locked`] without its master key, and [`KeyError::Damaged`]; values sealed with
    /// it cannot be opened then.
    pub fn learn(&self, object: &Map<String, Value>, created: Revision) -> Result<(), KeyError> {
        let key = DataKey::parse(object)?;
        let before = self.0.data.load().known.get(&key.id).cloned();
        let known = match (self.unwrap(&key), before) {
            (Err(_), Some(before @ Known { cipher: Ok(_), .. })) => before,
            (cipher, _) => {
                let DataKey { state, number, bound, .. } = key;
                Known { cipher, state, number, bound, created }
            }
        };
        let outcome = known.cipher.clone().map(drop);
        self.change(|data| drop(data.known.insert(key.id, known)));
        outcome
    }

    /// Why the data key with this id cannot be opened, as far as is known.
    pub(crate) fn error_of(&self, id: &str) -> Option<KeyError> {
        let id = Id::try_from(hex::decode(id).ok()?).ok()?;
        self.0.data.load().known.get(&id)?.cipher.as_ref().err().cloned()
    }

    /// Notes that the data key with this id is damaged, so that values under it are reported with
    /// that reason.
    pub(crate) fn note_damaged(&self, id: &str) {
        let mut bytes = Id::default();
        if hex::decode_to_slice(id, &mut bytes).is_err() {
            return;
        }
        let cipher = Err(KeyError::Damaged { id: id.to_owned() });
        let (state, created) = (KeyState::Retired, Revision::ZERO);
        let known = Known { cipher, state, number: 0, bound: false, created };
        self.change(|data| drop(data.known.insert(bytes, known)));
    }

    fn unwrap(&self, key: &DataKey) -> Result<Arc<LessSafeKey>, KeyError> {
        let Some(masters) = &self.0.masters else { return Err(no_master_keys(key)) };
        let bytes = masters.unwrap(key)?;
        let damaged = || KeyError::Damaged { id: key.id() };
        cipher(&bytes).map(Arc::new).ok_or_else(damaged)
    }

    /// Why a data key in one of these states cannot be opened, if there is such a key.
    #[must_use]
    pub fn locked(&self, states: &[KeyState]) -> Option<KeyError> {
        let data = self.0.data.load();
        let mut keys = data.known.values().filter(|key| states.contains(&key.state));
        keys.find_map(|key| key.cipher.clone().err())
    }

    /// The ids of the data keys that this process can open and that are not retired.
    #[must_use]
    pub fn usable(&self) -> Vec<String> {
        let data = self.0.data.load();
        let usable = data
            .known
            .iter()
            .filter(|(_, key)| key.cipher.is_ok() && key.state != KeyState::Retired);
        usable.map(|(id, _)| hex::encode(id)).collect()
    }

    /// Whether `master` is the first key of the key file.
    #[must_use]
    pub fn is_first(&self, master: &str) -> bool {
        self.0.masters.as_ref().is_some_and(|masters| masters.first_name() == master)
    }

    /// A new data key in this state, wrapped by the first master key; `None` without master keys.
    /// It is used once it is in the store and learnt.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn new_data_key(&self, state: KeyState) -> Result<Option<DataKey>, KeyError> {
        let number = self.0.data.load().known.values().map(|key| key.number).max();
        let number = number.unwrap_or_default() + 1;
        self.0.masters.as_ref().map(|masters| masters.new_data_key(state, number)).transpose()
    }

    /// The same data key in this state, wrapped by the first master key and bound to the state.
    ///
    /// # Errors
    /// [`KeyError::Locked`] without the master key that wraps it now.
    pub fn in_state(&self, key: &DataKey, state: KeyState) -> Result<DataKey, KeyError> {
        match &self.0.masters {
            Some(masters) => masters.in_state(key, state),
            None => Err(no_master_keys(key)),
        }
    }

    /// Stops sealing new values; sealed ones are still opened.
    pub fn stop(&self) {
        self.change(|data| {
            data.known.values_mut().for_each(|key| key.state = KeyState::Retired);
        });
    }

    /// The sealed value; `None` if values are not sealed, or not under this key.
    pub(crate) fn seal(&self, key: &Key, value: &[u8]) -> Option<Vec<u8>> {
        let data = self.0.data.load();
        let (id, cipher) = data.current.as_ref()?;
        if is_plain(key.resource()) {
            return None;
        }
        // Without random numbers, or out of memory, the process had better stop than write in the clear.
        let nonce = random::<NONCE_LEN>().expect("random numbers");
        let mut sealed = Vec::with_capacity(HEAD_LEN + value.len() + 16);
        sealed.push(SEALED);
        sealed.extend_from_slice(id);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(value);
        let tag = cipher
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(context(key)),
                &mut sealed[HEAD_LEN..],
            )
            .expect("a value is shorter than the cipher's limit");
        sealed.extend_from_slice(tag.as_ref());
        Some(sealed)
    }

    /// The value in a sealed one.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) fn open(&self, key: &Key, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (head, body) = sealed.split_at_checked(HEAD_LEN).ok_or("it is cut short")?;
        let (id, nonce) = head[1..].split_at(ID_LEN);
        let data = self.0.data.load();
        let known = Id::try_from(id).ok().and_then(|id| data.known.get(&id));
        let known = known.ok_or("its data key is not in the store")?;
        let cipher = known.cipher.as_ref().map_err(ToString::to_string)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| "it is cut short")?;
        let mut value = body.to_vec();
        let opened = cipher.open_in_place(nonce, Aad::from(context(key)), &mut value);
        let length = opened.map_err(|_| "it is not what was written here")?.len();
        value.truncate(length);
        Ok(value)
    }

    /// Whether a stored value is sealed with a data key that is not known here.
    #[must_use]
    pub fn is_unknown(&self, stored: &[u8]) -> bool {
        let id = stored.get(1..=ID_LEN).and_then(|id| Id::try_from(id).ok());
        stored.first() == Some(&SEALED)
            && id.is_some_and(|id| !self.0.data.load().known.contains_key(&id))
    }

    /// Whether a stored value is sealed with a data key that this process does not know or cannot
    /// open.
    #[must_use]
    pub fn lacks_key_of(&self, stored: &[u8]) -> bool {
        let id = stored.get(1..=ID_LEN).and_then(|id| Id::try_from(id).ok());
        let data = self.0.data.load();
        let opens = |id: Id| data.known.get(&id).is_some_and(|key| key.cipher.is_ok());
        stored.first() == Some(&SEALED) && id.is_some_and(|id| !opens(id))
    }

    /// Whether a stored value is as a new one would be: sealed with the current data key, or not at
    /// all.
    #[must_use]
    pub fn is_current(&self, key: &Key, stored: &[u8]) -> bool {
        let data = self.0.data.load();
        match &data.current {
            Some((id, _)) if !is_plain(key.resource()) => {
                stored.first() == Some(&SEALED) && stored.get(1..=ID_LEN) == Some(&id[..])
            }
            _ => stored.first() != Some(&SEALED),
        }
    }

    /// Whether new values are sealed with another data key than this one.
    #[must_use]
    pub fn is_superseded(&self, id: &str) -> bool {
        self.current().is_none_or(|current| current != id)
    }
}

fn no_master_keys(key: &DataKey) -> KeyError {
    let what = "give the file that has it with --store-key";
    KeyError::Locked { master: key.master.clone(), what }
}

/// A value is bound to its collection and path.
fn context(key: &Key) -> Vec<u8> {
    [key.resource().as_str().as_bytes(), b"\0", key.path().as_bytes()].concat()
}

/// The answer of a store that is not encrypted.
pub(crate) fn not_encrypted() -> Error {
    Error::Refused {
        reason: Reason::Conflict,
        message: "the store is not encrypted, so it has no data key to change: start the server \
                  with --store-key FILE first"
            .to_owned(),
    }
}

/// The answer while the data key is being changed.
pub(crate) fn under_way() -> Error {
    Error::Refused {
        reason: Reason::Conflict,
        message: "the data key is being changed already: `mainstay store stats` shows when every \
                  value is encrypted with it"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
