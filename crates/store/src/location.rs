//! The location of a store as an operator writes it (`--store`), and opening it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::cache::{Collection, Retention};
use crate::etcd::{self, Address, AddressError, EtcdStore};
use crate::memory::MemoryStore;
use crate::objects::{At, Change, Objects, Write};
use crate::seal::{DataKey, KeyError, KeyState, Sealer, data_keys};
use crate::sqlite::{self, OpenError, SqliteStore};
use crate::value::Codec;
use mainstay_clock::Clock;

/// A backend and its place: what `--store` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// `memory:` keeps nothing.
    Memory,
    /// `sqlite:PATH`, or just a path: one file.
    Sqlite(PathBuf),
    /// `etcd://HOST:PORT,…`: a cluster, shared by several servers.
    Etcd(Address),
    /// A URL of a scheme that no backend serves.
    Unknown(String),
}

impl FromStr for Location {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "memory:" || text == "memory" {
            return Ok(Self::Memory);
        }
        if let Some(path) = text.strip_prefix("sqlite:") {
            return Ok(Self::Sqlite(path.strip_prefix("//").unwrap_or(path).into()));
        }
        if let Some(address) = text.strip_prefix("etcd://") {
            return Address::parse(address).map(Self::Etcd);
        }
        Ok(if text.contains("://") {
            Self::Unknown(text.into())
        } else {
            Self::Sqlite(text.into())
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Etcd(address) => write!(f, "etcd://{}", address.endpoints.join(",")),
            Self::Unknown(url) => f.write_str(url),
        }
    }
}

/// Settings of a store, for every backend.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much history is kept.
    pub retention: Retention,
    /// The largest object accepted, in bytes.
    pub largest_object: usize,
    /// How values are written to the medium.
    pub codec: Codec,
    /// Whether encrypted values are written in the clear again.
    pub decrypt: bool,
    /// Whether the store is only looked at: nothing is encrypted or decrypted, and an etcd with
    /// damaged values is opened all the same.
    pub inspect: bool,
    /// Whether a new database may take the place of one that is known to have been there.
    pub new_database: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            largest_object: 1536 * 1024,
            codec: Codec::default(),
            decrypt: false,
            inspect: false,
            new_database: false,
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No backend serves such a URL.
    #[error(
        "no store is called \"{url}\": give a file's path, sqlite:PATH, etcd://HOST:PORT or memory:"
    )]
    Unknown {
        /// The URL that was given.
        url: String,
    },
    /// The database could not be opened.
    #[error(transparent)]
    Sqlite(#[from] OpenError),
    /// Its keys cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It could not be encrypted or decrypted.
    #[error("the store could not be encrypted or decrypted: {reason}")]
    Sealing {
        /// Why.
        reason: String,
    },
    /// etcd could not be reached, or refused the login.
    #[error(transparent)]
    Etcd(#[from] etcd::OpenError),
}

/// Opens the store at `location`, making it if it is not there yet.
///
/// # Errors
/// [`Error`]; nothing was changed.
pub async fn open(
    location: &Location,
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Objects>, Error> {
    let Settings { retention, largest_object, .. } = settings.clone();
    match location.clone() {
        Location::Memory => Ok(Arc::new(MemoryStore::new(0, retention, largest_object, clock))),
        Location::Sqlite(path) => {
            let (opening, file) = (settings.clone(), path.clone());
            let open = move || SqliteStore::open_with(&file, &opening, clock);
            let opened = tokio::task::spawn_blocking(open).await;
            let store =
                opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
            if !settings.inspect
                && let Err(error) = encrypt(&store, path, settings).await
            {
                store.close().await;
                return Err(error);
            }
            Ok(Arc::new(store))
        }
        Location::Etcd(address) => {
            Ok(Arc::new(EtcdStore::open_with(&address, settings, clock).await?))
        }
        Location::Unknown(url) => Err(Error::Unknown { url }),
    }
}

/// Brings every value to what the key file asks for: sealed with a data key of the first master
/// key, or in the clear. Does nothing if that is so already; finishes what was interrupted.
async fn encrypt(store: &SqliteStore, path: PathBuf, settings: &Settings) -> Result<(), Error> {
    let sealer = settings.codec.sealer();
    if !sealer.has_keys() {
        return Ok(());
    }
    let failed = |reason: String| Error::Sealing { reason };
    if settings.decrypt {
        sealer.stop();
    } else if !sealed_with_first(store, sealer).await?
        && let Some(new) = sealer.new_data_key(KeyState::Complete)?
    {
        let write = Write { key: new.key(), change: Change::Create(new.body()), fence: None };
        let event = store.write(write).await.map_err(|error| failed(error.to_string()))?;
        sealer.learn(&event.record.object(), event.record.created())?;
    }
    let codec = settings.codec.clone();
    let rewritten = tokio::task::spawn_blocking(move || sqlite::rewrite(&path, &codec)).await;
    let rewritten =
        rewritten.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    if rewritten > 0 {
        tracing::info!(values = rewritten, encrypted = sealer.seals(), "store values rewritten");
    }
    for record in data_key_records(store).await?.range(None, None) {
        let key = DataKey::parse(&record.object())?;
        let change = if sealer.is_superseded(&key.id()) {
            Change::Delete(record.revision())
        } else if key.state == KeyState::Active {
            let complete = sealer.in_state(&key, KeyState::Complete)?;
            Change::Update(record.revision(), complete.body())
        } else {
            continue;
        };
        let write = Write { key: record.key().clone(), change, fence: None };
        store.write(write).await.map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Whether new values are sealed with a data key that the first master key wraps.
async fn sealed_with_first(store: &SqliteStore, sealer: &Sealer) -> Result<bool, Error> {
    for record in data_key_records(store).await?.range(None, None) {
        let key = DataKey::parse(&record.object())?;
        if !sealer.is_superseded(&key.id()) {
            return Ok(sealer.is_first(key.master()));
        }
    }
    Ok(false)
}

async fn data_key_records(store: &SqliteStore) -> Result<Collection, Error> {
    let keys = store.collection(&data_keys(), At::Latest).await;
    keys.map_err(|error| Error::Sealing { reason: error.to_string() })
}
