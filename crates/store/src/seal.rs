//! Encryption at rest: values are sealed with data keys, and data keys with the operator's keys.
//!
//! The operator keeps *master keys* in a file outside the store, one a line, `NAME:BASE64`. The
//! store holds *data keys*, each wrapped by a master key, as objects of the collection
//! `datakeys.internal.mainstay.dev`; they alone are stored as they are. The first master key wraps
//! new data keys. So changing a master key rewrites values at leisure, and a stolen disk, or etcd,
//! gives nothing away without the file.
//!
//! A sealed value is a byte 1, the eight bytes of its data key's id, a nonce of twelve bytes, and
//! the ciphertext with its tag. The cipher is AES-256-GCM-SIV, which stays safe with random nonces
//! and even if one should ever repeat. The collection and the path are authenticated with the
//! value: it cannot be moved under another key.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand::fill;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::check::INTERNAL;
use crate::object::{Body, Key, Resource};

/// The first byte of a sealed value. Values that are not sealed begin with `{`.
pub(crate) const SEALED: u8 = 1;
const ID_LEN: usize = 8;
const HEAD_LEN: usize = 1 + ID_LEN + NONCE_LEN;
const KEY_LEN: usize = 32;

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read.
    #[error("the key file {path} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Others may read the file.
    #[error("the key file {path} may be read by others (mode {mode:o}): run `chmod 600 {path}`")]
    Open {
        /// The file.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// A line is no key.
    #[error(
        "the key file is wrong at line {line}: {reason}; each line is NAME:BASE64 of 32 bytes, as `mainstay store key new` prints it"
    )]
    Line {
        /// The line.
        line: usize,
        /// Why.
        reason: &'static str,
    },
    /// There is none.
    #[error("the key file has no key; `mainstay store key new` prints one")]
    Empty,
    /// A data key needs a master key that is not there.
    #[error("the store is encrypted with the key {master:?}, {what}")]
    Locked {
        /// The master key's name.
        master: String,
        /// What is wrong with it here.
        what: &'static str,
    },
    /// A data key cannot be read at all.
    #[error("the data key {id} in the store is damaged")]
    Damaged {
        /// Its id.
        id: String,
    },
    /// The machine gave no random numbers.
    #[error("no random numbers could be had")]
    Random,
}

/// One of the operator's keys.
struct Master {
    name: String,
    key: LessSafeKey,
}

/// The operator's keys, the one for new data keys first.
pub struct MasterKeys(Vec<Master>);

impl std::fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|master| &master.name)).finish()
    }
}

impl MasterKeys {
    /// Reads a key file, which only its owner may read.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        use std::os::unix::fs::PermissionsExt;
        let shown = path.display().to_string();
        let failed = |error: std::io::Error| {
            let (path, reason) = (shown.clone(), error.to_string());
            KeyError::Unreadable { path, reason }
        };
        let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open { path: shown, mode });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?)
    }

    /// Reads the text of a key file. Empty lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<Master> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason| KeyError::Line { line: at + 1, reason };
            let (name, encoded) = line.split_once(':').ok_or_else(|| wrong("it has no colon"))?;
            let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            if name.is_empty() || !name.chars().all(fits) {
                return Err(wrong("its name is not made of letters, digits, -, _ and ."));
            }
            if keys.iter().any(|key| key.name == name) {
                return Err(wrong("its name is there already"));
            }
            let bytes = STANDARD.decode(encoded).map_err(|_| wrong("it is not base64"))?;
            let key = cipher(&bytes).ok_or_else(|| wrong("it is not 32 bytes long"))?;
            keys.push(Master { name: name.to_owned(), key });
        }
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(Self(keys)) }
    }

    /// A new line for a key file.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn new_line(name: &str) -> Result<String, KeyError> {
        Ok(format!("{name}:{}", STANDARD.encode(random::<KEY_LEN>()?)))
    }

    fn named(&self, name: &str) -> Option<&LessSafeKey> {
        self.0.iter().find(|master| master.name == name).map(|master| &master.key)
    }

    fn first(&self) -> &Master {
        &self.0[0]
    }
}

fn cipher(key: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM_SIV, key).ok().map(LessSafeKey::new)
}

fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

type Id = [u8; ID_LEN];

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_id(text: &str) -> Option<Id> {
    let digits = (text.len() == 2 * ID_LEN).then_some(text)?;
    let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..ID_LEN).map(byte).collect();
    bytes?.try_into().ok()
}

/// The data keys of a store.
#[derive(Clone, Default)]
struct DataKeys {
    known: BTreeMap<Id, Arc<LessSafeKey>>,
    /// Seals new values; without one they are not sealed.
    current: Option<(Id, Arc<LessSafeKey>)>,
}

/// Seals values and opens them. Cheap to clone; clones share what they learn.
#[derive(Clone)]
pub struct Sealer(Arc<Inner>);

struct Inner {
    masters: Option<MasterKeys>,
    data: ArcSwap<DataKeys>,
    learning: Mutex<()>,
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

/// The collection of data keys.
#[must_use]
pub fn data_keys() -> Resource {
    Resource::new(INTERNAL, "datakeys")
}

/// Whether the values of a collection are never sealed.
fn is_plain(resource: &Resource) -> bool {
    resource.as_str().strip_suffix(INTERNAL).and_then(|rest| rest.strip_suffix('.'))
        == Some("datakeys")
}

impl Sealer {
    /// A sealer with these master keys; without any, it seals nothing.
    #[must_use]
    pub fn new(masters: Option<MasterKeys>) -> Self {
        let data = ArcSwap::from_pointee(DataKeys::default());
        Self(Arc::new(Inner { masters, data, learning: Mutex::new(()) }))
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

    fn change(&self, change: impl FnOnce(&mut DataKeys)) {
        let _one = self.0.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = DataKeys::clone(&self.0.data.load());
        change(&mut data);
        self.0.data.store(Arc::new(data));
    }

    /// Takes note of a data key found in the store.
    ///
    /// # Errors
    /// [`KeyError::Locked`] without its master key; [`KeyError::Damaged`].
    pub fn learn(&self, object: &Value) -> Result<(), KeyError> {
        let text = |name: &str| object[name].as_str().unwrap_or_default();
        let damaged = || KeyError::Damaged { id: text("id").to_owned() };
        let (id, master) = (parse_id(text("id")).ok_or_else(damaged)?, text("masterKey"));
        if self.0.data.load().known.contains_key(&id) {
            return Ok(());
        }
        let locked = |what| KeyError::Locked { master: master.to_owned(), what };
        let Some(masters) = &self.0.masters else {
            return Err(locked("give the file that has it with --store-key"));
        };
        let wrapping = masters
            .named(master)
            .ok_or_else(|| locked("which the key file does not have; put it back"))?;
        let mut wrapped = STANDARD.decode(text("wrapped")).map_err(|_| damaged())?;
        if wrapped.len() <= NONCE_LEN {
            return Err(damaged());
        }
        let (nonce, sealed) = wrapped.split_at_mut(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let opened = wrapping.open_in_place(nonce, Aad::from(wrap_context(&id, master)), sealed);
        let opened = opened
            .map_err(|_| locked("and the key of that name in the key file is another one"))?;
        let key = Arc::new(cipher(opened).ok_or_else(damaged)?);
        self.change(|data| {
            if masters.first().name == master {
                data.current = Some((id, key.clone()));
            }
            data.known.insert(id, key);
        });
        Ok(())
    }

    /// A new data key, wrapped by the first master key, if one is needed: its key and object. It is
    /// used once it is learnt.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn new_data_key(&self) -> Result<Option<(Key, Body)>, KeyError> {
        let Some(masters) = &self.0.masters else { return Ok(None) };
        if self.seals() {
            return Ok(None);
        }
        let (id, nonce) = (random::<ID_LEN>()?, random::<NONCE_LEN>()?);
        let master = masters.first();
        let mut sealed = random::<KEY_LEN>()?.to_vec();
        let context = Aad::from(wrap_context(&id, &master.name));
        master
            .key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), context, &mut sealed)
            .map_err(|_| KeyError::Random)?;
        let wrapped = STANDARD.encode([&nonce[..], &sealed].concat());
        let object = json!({
            "algorithm": "AES-256-GCM-SIV", "id": hex(&id), "masterKey": master.name, "wrapped": wrapped,
        });
        let object: Map<String, Value> = object.as_object().cloned().unwrap_or_default();
        Ok(Some((Key::new(&data_keys(), None, &hex(&id)), Body::new(&object))))
    }

    /// Stops sealing new values; sealed ones are still opened.
    pub fn stop(&self) {
        self.change(|data| data.current = None);
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
    pub(crate) fn open(&self, key: &Key, sealed: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (head, body) = sealed.split_at_checked(HEAD_LEN).ok_or("it is cut short")?;
        let (id, nonce) = head[1..].split_at(ID_LEN);
        let data = self.0.data.load();
        let known = Id::try_from(id).ok().and_then(|id| data.known.get(&id));
        let known = known.ok_or("its data key is not in the store")?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| "it is cut short")?;
        let mut value = body.to_vec();
        let opened = known.open_in_place(nonce, Aad::from(context(key)), &mut value);
        let length = opened.map_err(|_| "it is not what was written here")?.len();
        value.truncate(length);
        Ok(value)
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

    /// Whether a data key is one that no current value needs.
    #[must_use]
    pub fn is_superseded(&self, name: &str) -> bool {
        let data = self.0.data.load();
        data.current.as_ref().is_none_or(|(id, _)| hex(id) != name)
    }
}

/// What a value is bound to.
fn context(key: &Key) -> Vec<u8> {
    [key.resource().as_str().as_bytes(), b"\0", key.path().as_bytes()].concat()
}

/// What a wrapped data key is bound to.
fn wrap_context(id: &Id, master: &str) -> Vec<u8> {
    [b"datakey\0", &id[..], master.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masters(names: &[(&str, u8)]) -> MasterKeys {
        let lines: Vec<String> = names
            .iter()
            .map(|(name, byte)| format!("{name}:{}", STANDARD.encode([*byte; KEY_LEN])))
            .collect();
        MasterKeys::parse(&lines.join("\n")).unwrap()
    }

    fn object(body: &Body) -> Value {
        serde_json::from_slice(body.json()).unwrap()
    }

    /// A sealer with a data key, and the object of it.
    fn sealer(names: &[(&str, u8)]) -> (Sealer, Value) {
        let sealer = Sealer::new(Some(masters(names)));
        let (_, body) = sealer.new_data_key().unwrap().unwrap();
        sealer.learn(&object(&body)).unwrap();
        (sealer, object(&body))
    }

    fn key(name: &str) -> Key {
        Key::new(&Resource::new("", "configmaps"), Some("default"), name)
    }

    #[test]
    fn a_sealed_value_opens_under_its_key_alone() {
        let (sealer, _) = sealer(&[("a", 1)]);
        let value = b"{\"secret\":true}";
        let sealed = sealer.seal(&key("x"), value).unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(sealer.open(&key("x"), &sealed).unwrap(), value);
        assert!(sealer.open(&key("y"), &sealed).is_err(), "values cannot be swapped");
        for at in 0..sealed.len() {
            let mut wrong = sealed.clone();
            wrong[at] ^= 1;
            assert!(at == 0 || sealer.open(&key("x"), &wrong).is_err(), "byte {at}");
            assert!(sealer.open(&key("x"), &sealed[..at]).is_err(), "cut at {at}");
        }
        assert_ne!(sealer.seal(&key("x"), value).unwrap(), sealed, "every nonce is another");
    }

    #[test]
    fn a_data_key_opens_with_its_master_key_alone() {
        let (_, stored) = sealer(&[("a", 1)]);
        let refused = |sealer: Sealer| sealer.learn(&stored).unwrap_err().to_string();
        assert!(refused(Sealer::default()).contains("--store-key"));
        assert!(refused(Sealer::new(Some(masters(&[("b", 1)])))).contains("does not have"));
        assert!(refused(Sealer::new(Some(masters(&[("a", 2)])))).contains("is another one"));
        assert!(Sealer::new(Some(masters(&[("b", 2), ("a", 1)]))).learn(&stored).is_ok());
    }

    #[test]
    fn a_new_first_master_key_gets_a_data_key_of_its_own() {
        let (old, first) = sealer(&[("a", 1)]);
        let sealed = old.seal(&key("x"), b"{}").unwrap();
        assert!(old.is_current(&key("x"), &sealed) && old.new_data_key().unwrap().is_none());
        let new = Sealer::new(Some(masters(&[("b", 2), ("a", 1)])));
        new.learn(&first).unwrap();
        assert!(!new.seals());
        let (_, body) = new.new_data_key().unwrap().unwrap();
        new.learn(&object(&body)).unwrap();
        assert_eq!(new.open(&key("x"), &sealed).unwrap(), b"{}");
        assert!(!new.is_current(&key("x"), &sealed));
        assert!(new.is_superseded(first["id"].as_str().unwrap()));
        new.stop();
        assert!(new.seal(&key("x"), b"{}").is_none() && new.is_current(&key("x"), b"{}"));
    }

    #[test]
    fn key_files_are_read_line_by_line() {
        let good = MasterKeys::new_line("k1").unwrap();
        assert!(MasterKeys::parse(&format!("# keys\n\n{good}\n")).is_ok());
        for (text, expected) in [
            ("", "no key"),
            ("nonsense", "line 1: it has no colon"),
            ("a:xxx", "line 1: it is not base64"),
            ("a:AAAA", "line 1: it is not 32 bytes"),
            (":AAAA", "line 1: its name"),
            (&format!("{good}\n{good}"), "line 2: its name is there already"),
        ] {
            let error = MasterKeys::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
