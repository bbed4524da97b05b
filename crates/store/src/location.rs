//! Where objects are kept, as an operator writes it, and opening it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::cache::Retention;
use crate::clock::Clock;
use crate::etcd::{self, Address, AddressError, EtcdStore};
use crate::memory::MemoryStore;
use crate::objects::{At, Change, Objects, Write};
use crate::seal::{KeyError, data_keys};
use crate::sqlite::{self, OpenError, SqliteStore};
use crate::value::Codec;

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

/// How a store is to behave, whichever it is.
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
        /// What was asked for.
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
    /// This backend does not encrypt.
    #[error(
        "encryption at rest is for SQLite only: leave --store-key out and encrypt the disks of etcd's members"
    )]
    NotEncrypted,
    /// etcd could not be reached, or did not let us in.
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
            if let Err(error) = encrypt(&store, path, settings).await {
                store.close().await;
                return Err(error);
            }
            Ok(Arc::new(store))
        }
        Location::Etcd(_) if settings.codec.sealer().has_keys() => Err(Error::NotEncrypted),
        Location::Etcd(address) => {
            Ok(Arc::new(EtcdStore::open_with(&address, settings, clock).await?))
        }
        Location::Unknown(url) => Err(Error::Unknown { url }),
    }
}

/// Brings every value to what the keys ask for: sealed with a data key of the first master key, or
/// in the clear. Does nothing where nothing is to be done; what was interrupted is gone on with.
async fn encrypt(store: &SqliteStore, path: PathBuf, settings: &Settings) -> Result<(), Error> {
    let sealer = settings.codec.sealer();
    if !sealer.has_keys() {
        return Ok(());
    }
    let failed = |reason: String| Error::Sealing { reason };
    if settings.decrypt {
        sealer.stop();
    } else if let Some((key, body)) = sealer.new_data_key()? {
        let object = serde_json::from_slice(body.json()).map_err(|e| failed(e.to_string()))?;
        let write = Write { key, change: Change::Create(body), fence: None };
        store.write(write).await.map_err(|error| failed(error.to_string()))?;
        sealer.learn(&object)?;
    }
    let codec = settings.codec.clone();
    let rewritten = tokio::task::spawn_blocking(move || sqlite::rewrite(&path, &codec)).await;
    let rewritten =
        rewritten.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    if rewritten > 0 {
        tracing::info!(values = rewritten, encrypted = sealer.seals(), "store values rewritten");
    }
    let keys = store.collection(&data_keys(), At::Latest).await;
    let keys = keys.map_err(|error| failed(error.to_string()))?;
    for record in keys.range(None, None) {
        if sealer.is_superseded(record.key().name()) {
            let change = Change::Delete(record.revision());
            let write = Write { key: record.key().clone(), change, fence: None };
            store.write(write).await.map_err(|error| failed(error.to_string()))?;
        }
    }
    Ok(())
}
