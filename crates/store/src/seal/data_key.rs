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
//! Keys written by older versions have no state; their stores were encrypted before they were
//! served, so they count as complete.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

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

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name)| *name == text).map(|(state, _)| state)
    }

    fn name(self) -> &'static str {
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
}

/// The collection of data keys.
#[must_use]
pub fn data_keys() -> Resource {
    Resource::new(INTERNAL, "datakeys")
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
            Some(Self { id, master: text("masterKey")?.to_owned(), wrapped, state })
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

    /// The same key in another state.
    #[must_use]
    pub fn in_state(mut self, state: KeyState) -> Self {
        self.state = state;
        self
    }

    /// Where the store keeps it.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(&data_keys(), None, &self.id())
    }

    /// The object that the store keeps.
    #[must_use]
    pub fn body(&self) -> Body {
        let object = json!({
            "algorithm": "AES-256-GCM-SIV",
            "id": self.id(),
            "masterKey": self.master,
            "state": self.state.name(),
            "wrapped": STANDARD.encode(&self.wrapped),
        });
        Body::new(object.as_object().unwrap_or(&Map::new()))
    }
}
