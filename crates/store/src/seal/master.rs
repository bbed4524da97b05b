//! The operator's keys: reading a key file, and wrapping data keys with its keys.

use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand::fill;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::data_key::{DataKey, KeyState};

pub(super) const KEY_LEN: usize = 32;

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
    /// Other users may read the file.
    #[error("the key file {path} may be read by others (mode {mode:o}): run `chmod 600 {path}`")]
    Open {
        /// The file.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// A line is not a key.
    #[error(
        "the key file is wrong at line {line}: {reason}; each line is NAME:BASE64 of 32 bytes, as `mainstay store key new` prints it"
    )]
    Line {
        /// The line.
        line: usize,
        /// Why.
        reason: &'static str,
    },
    /// The file has no key.
    #[error("the key file has no key; `mainstay store key new` prints one")]
    Empty,
    /// A data key needs a master key that the key file does not have.
    #[error("the store is encrypted with the key {master:?}, {what}")]
    Locked {
        /// The master key's name.
        master: String,
        /// Why it cannot be used here, and what to do.
        what: &'static str,
    },
    /// A data key cannot be read at all.
    #[error("the data key {id} in the store is damaged")]
    Damaged {
        /// Its id.
        id: String,
    },
    /// The record of a data key is not as a server wrote it.
    #[error(
        "the record of data key {id} was changed by another program: its state is not authentic"
    )]
    Forged {
        /// Its id.
        id: String,
    },
    /// The operating system returned no random numbers.
    #[error("the operating system returned no random numbers")]
    Random,
}

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

    /// Reads the text of a key file. Empty lines and lines that begin with `#` are ignored.
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

    /// The name of the key that wraps new data keys.
    pub(super) fn first_name(&self) -> &str {
        &self.0[0].name
    }

    /// A new data key in this state, with this number, wrapped by the first master key.
    pub(super) fn new_data_key(&self, state: KeyState, number: u64) -> Result<DataKey, KeyError> {
        let (id, bytes) = (random()?, random::<KEY_LEN>()?.to_vec());
        let (master, wrapped, bound) = (self.first_name().to_owned(), Vec::new(), true);
        self.wrap(DataKey { id, master, wrapped, state, number, bound }, bytes)
    }

    /// The same data key in this state, wrapped by the first master key and bound to the state.
    pub(super) fn in_state(&self, key: &DataKey, state: KeyState) -> Result<DataKey, KeyError> {
        let (bytes, master) = (self.unwrap(key)?, self.first_name().to_owned());
        self.wrap(DataKey { master, state, bound: true, ..key.clone() }, bytes)
    }

    /// Wraps the bytes of a data key, whose other fields are given, with the first master key.
    pub(super) fn wrap(&self, key: DataKey, mut bytes: Vec<u8>) -> Result<DataKey, KeyError> {
        let nonce = random::<NONCE_LEN>()?;
        let context = Aad::from(wrap_context(&key));
        self.0[0]
            .key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), context, &mut bytes)
            .map_err(|_| KeyError::Random)?;
        Ok(DataKey { wrapped: [&nonce[..], &bytes].concat(), ..key })
    }

    /// Whether a data key was wrapped by one of these keys, but bound to another state than the one
    /// in its record.
    pub(super) fn is_forged(&self, key: &DataKey) -> bool {
        let opens = |state| self.unwrap(&DataKey { state, ..key.clone() }).is_ok();
        key.bound && !opens(key.state) && KeyState::all().any(opens)
    }

    /// Whether the file has a key of this name.
    pub(super) fn has(&self, master: &str) -> bool {
        self.0.iter().any(|key| key.name == master)
    }

    /// The bytes of a data key.
    pub(super) fn unwrap(&self, key: &DataKey) -> Result<Vec<u8>, KeyError> {
        let damaged = || KeyError::Damaged { id: hex::encode(key.id) };
        let locked = |what| KeyError::Locked { master: key.master.clone(), what };
        let wrapping = self
            .0
            .iter()
            .find(|master| master.name == key.master)
            .ok_or_else(|| locked("which the key file does not have; put it back"))?;
        let (nonce, sealed) = key.wrapped.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut bytes = sealed.to_vec();
        let context = Aad::from(wrap_context(key));
        let opened = wrapping.key.open_in_place(nonce, context, &mut bytes);
        let length = opened
            .map_err(|_| locked("and the key of that name in the key file is another one"))?
            .len();
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// A wrapped data key is bound to its id and to the name of its master key, and unless an older
/// version wrote it, to its state and its number.
fn wrap_context(key: &DataKey) -> Vec<u8> {
    let (id, master) = (&key.id[..], key.master.as_bytes());
    if !key.bound {
        return [b"datakey\0", id, master].concat();
    }
    let (number, state) = (key.number.to_be_bytes(), key.state.name().as_bytes());
    [b"datakey2\0", id, &number[..], state, b"\0", master].concat()
}

pub(super) fn cipher(key: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM_SIV, key).ok().map(LessSafeKey::new)
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}
