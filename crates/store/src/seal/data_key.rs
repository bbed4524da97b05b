//! Data keys as the store keeps them: wrapped by a master key, with a state.
//!
//! A data key moves through its states in one direction:
//!
//! * *Pending*: it is in the store, and no value is sealed with it yet. Every server that runs must
//!   show that it can open the key before it is used (etcd; a SQLite database has one server).
//! * *Active*: new values are sealed with the newest active key; older values are being rewritten.
//! * *Complete*: as active, and a pass over the store found no value that is not sealed with it.
//! * *Retired*: no new value is sealed with it. On etcd it stays in the store for good, about 200
//!   bytes, so that a value that was sealed with it at the last moment can always be opened.
//!
//! The state of a key and its number, which orders keys, are authenticated with the master key: the
//! key is *bound* to them. Keys written by older versions are not bound. Some have no state; their
//! stores were encrypted before they were served, so they count as complete.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::check::INTERNAL;
use crate::object::{Body, Key, Resource};

use super::master::KeyError;

pub(super) const ID_LEN: usize = 8;

/// The id of a data key.
pub(super) type Id = [u8; ID_LEN];

/// How far a data key has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// In the store, not used yet.
    Pending,
    /// New values are sealed with it; older ones are being rewritten.
    Active,
    /// Every value is sealed with it.
    Complete,
    /// Only opens values.
    Retired,
}

impl KeyState {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Pending, "Pending"),
        (Self::Active, "Active"),
        (Self::Complete, "Complete"),
        (Self::Retired, "Retired"),
    ];

    /// Every state.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(state, _)| state)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name)| *name == text).map(|(state, _)| state)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    /// Whether new values may be sealed with a key in this state.
    #[must_use]
    pub fn seals(self) -> bool {
        matches!(self, Self::Active | Self::Complete)
    }
}

/// A data key, wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKey {
    pub(super) id: Id,
    pub(super) master: String,
    pub(super) wrapped: Vec<u8>,
    /// How far it has come.
    pub state: KeyState,
    /// Its place in the order of keys: higher than that of every key before it.
    pub(super) number: u64,
    /// Whether the state and the number are authenticated.
    pub(super) bound: bool,
}

/// The format of records whose state and number are authenticated.
const BOUND: u64 = 2;

/// The collection of data keys.
#[must_use]
pub fn data_keys() -> Resource {
    Resource::new(INTERNAL, "datakeys")
}

/// Whether this is the collection of data keys.
pub(crate) fn is_data_keys(resource: &Resource) -> bool {
    resource.as_str().strip_suffix(INTERNAL) == Some("datakeys.")
}

impl DataKey {
    /// Reads a data key as the store keeps it.
    ///
    /// # Errors
    /// [`KeyError::Damaged`].
    pub fn parse(object: &Map<String, Value>) -> Result<Self, KeyError> {
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let parsed = || {
            let mut id = Id::default();
            hex::decode_to_slice(text("id")?, &mut id).ok()?;
            let wrapped = STANDARD.decode(text("wrapped")?).ok()?;
            let state = match text("state") {
                Some(state) => KeyState::parse(state)?,
                None => KeyState::Complete,
            };
            let number = |name: &str| object.get(name).and_then(Value::as_u64);
            let bound = match number("format") {
                None => false,
                Some(BOUND) => true,
                Some(_) => return None,
            };
            let master = text("masterKey")?.to_owned();
            let number = number("number").unwrap_or_default();
            Some(Self { id, master, wrapped, state, number, bound })
        };
        let damaged = || KeyError::Damaged { id: text("id").unwrap_or_default().to_owned() };
        parsed().ok_or_else(damaged)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(self.id)
    }

    /// The name of the master key that wraps it.
    #[must_use]
    pub fn master(&self) -> &str {
        &self.master
    }

    /// Whether its state and its number are authenticated. Those of older versions are not.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Its place in the order of keys: higher than that of every key before it, or 0 for keys of
    /// older versions, which are ordered by their creation.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the store keeps it.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(&data_keys(), None, &self.id())
    }

    /// The object that the store keeps.
    #[must_use]
    pub fn body(&self) -> Body {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
        put("algorithm", "AES-256-GCM-SIV".into());
        put("id", self.id().into());
        put("masterKey", self.master.as_str().into());
        put("state", self.state.name().into());
        put("wrapped", STANDARD.encode(&self.wrapped).into());
        if self.bound {
            put("format", BOUND.into());
            put("number", self.number.into());
        }
        Body::new(&object)
    }
}
