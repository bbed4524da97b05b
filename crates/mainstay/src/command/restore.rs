//! `mainstay restore`: a backup into an empty store, while no server runs on it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use mainstay_rules::catalog::load::{self, State};
use mainstay_server::Location;
use mainstay_server::clock::SystemClock;
use mainstay_store::Settings;
use mainstay_store::backup::{self, Parts};
use mainstay_store::identity::{self, Marker};
use mainstay_store::objects::Objects;
use mainstay_store::resources::{Identities, RandomIdentities};
use mainstay_store::value::Codec;

use crate::backup_seal::Unseal;
use crate::catalog_part::{Checking, Restoring};
use crate::command::serve;
use crate::error::Error;
use crate::paths;

/// The largest object that is taken: whatever a store once took.
const LARGEST_OBJECT: usize = 64 << 20;

/// Fill an empty store and an empty rule catalog from a backup
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay restore mainstay.backup --data-dir /var/lib/mainstay
  mainstay restore mainstay.backup --data-dir d --store etcd://10.0.0.1:2379,10.0.0.2:2379
  mainstay restore mainstay.backup --data-dir d --catalog postgres://mainstay@db/catalog
  mainstay restore mainstay.backup --data-dir d --identity key.txt

No server may run on the store or the catalog meanwhile. The file is checked to its end before
anything is written; a damaged one is refused (exit code 2), and so is a store or catalog that is
not empty (1). A restore that broke off is told from a finished one: the server does not start, and
the next restore begins anew.")]
pub(crate) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    keys: Unseal,
}

/// Where a store is that no server runs on.
#[derive(Debug, Clone, Args)]
struct Place {
    /// Where the server keeps its files; made if it is not there
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Where objects are kept, as `mainstay serve` takes it [default: objects.db in the data folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_STORE")]
    store: Option<String>,
    /// Where the rule catalog is kept, as `mainstay serve` takes it [default: catalog.db in the data
    /// folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_CATALOG")]
    catalog: Option<String>,
}

impl Place {
    /// Where the catalog goes, which must be empty or half restored.
    async fn catalog(&self, data_dir: Option<&Path>) -> Result<String, Error> {
        let address = match (&self.catalog, data_dir) {
            (Some(address), _) => address.clone(),
            (None, Some(data_dir)) => data_dir.join("catalog.db").display().to_string(),
            (None, None) => {
                let say = "the backup has a rule catalog; say where it goes: --data-dir DIR or --catalog URL";
                return Err(Error::usage(say));
            }
        };
        let asked = address.clone();
        let state = tokio::task::spawn_blocking(move || load::state(&asked)).await;
        let state = state.map_err(|error| Error::negative(error.to_string()))?;
        match state.map_err(|error| Error::negative(error.to_string()))? {
            State::Empty | State::Unfinished => Ok(address),
            State::Used(table) => Err(Error::negative(format!(
                "the catalog is not empty: its table {table} has rows; restore into an empty one"
            ))),
        }
    }
}

impl Restore {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let file = self.file.display();
        match std::fs::metadata(&self.file) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(Error::usage(format!("{file} is not a file"))),
            Err(error) => return Err(Error::usage(format!("cannot read {file}: {error}"))),
        }
        let data_dir = self.place.data_dir.clone().or_else(paths::data_dir);
        let location = located(data_dir.as_deref(), self.place.store.as_deref())?;
        if location == Location::Memory {
            return Err(Error::usage("--store: memory keeps nothing; restore into another store"));
        }
        // A file that is refused must not leave so much as an empty database behind.
        let source = self.keys.source(&self.file);
        let checked = source.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let mut parts = Checking::default();
            backup::check(&checked, &mut parts).map(|summary| (summary, parts))
        });
        let (summary, parts) =
            checked.await.map_err(|error| Error::negative(error.to_string()))??;
        if let Location::Sqlite(path) = &location
            && path.exists()
        {
            // A database that a server runs on is told before anything else.
            open(&location, true, Codec::default()).await?.close().await;
        }
        let catalog = match parts.counted() {
            Some(_) => Some(self.place.catalog(data_dir.as_deref()).await?),
            None => None,
        };
        if let Some(folder) = &data_dir {
            make_folder(folder)?;
        }
        if let Location::Sqlite(path) = &location
            && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        {
            make_folder(folder)?;
        }
        let objects = open(&location, true, Codec::default()).await?;
        let into: Box<dyn Parts> = match catalog {
            Some(address) => Box::new(Restoring::into(address)),
            None => Box::new(Checking::default()),
        };
        let restored = async {
            let restored = backup::restore_from(source, &summary, objects.clone(), into).await?;
            remember(data_dir.as_deref(), &*objects).await?;
            Ok::<_, Error>(restored)
        };
        let restored = restored.await;
        objects.close().await;
        let summary = restored?;
        let (objects, head) = (summary.objects, summary.head);
        let rows = parts
            .counted()
            .map_or_else(String::new, |(rows, _)| format!(" and a rule catalog of {rows} rows"));
        anstream::eprintln!("{location}: {objects} objects{rows} restored, as of {}", head.time);
        Ok(0)
    }
}

/// The store that `--store` names, or the one in the data folder.
pub(crate) fn located(data_dir: Option<&Path>, store: Option<&str>) -> Result<Location, Error> {
    match (store, data_dir) {
        (Some(store), _) => serve::location(store),
        (None, Some(data_dir)) => Ok(Location::Sqlite(data_dir.join("objects.db"))),
        (None, None) => Err(Error::usage("say where the store is: --data-dir DIR or --store URL")),
    }
}

/// Has the data folder remember the restored cluster, so that a server starts on it. Which catalog
/// belongs to it the next start finds out.
async fn remember(data_dir: Option<&Path>, objects: &dyn Objects) -> Result<(), Error> {
    let cluster = Some(identity::give(objects, &RandomIdentities.uid()).await?);
    let Some(data_dir) = data_dir.filter(|folder| folder.is_dir()) else { return Ok(()) };
    let marker = Marker { cluster, catalog: None };
    Ok(marker.write(data_dir).map_err(mainstay_server::Error::from)?)
}

/// Opens a store that no server runs on. Where `fresh` is set, a new database may take the place of
/// one that is known to have been there.
pub(crate) async fn open(
    location: &Location,
    fresh: bool,
    codec: Codec,
) -> Result<Arc<dyn Objects>, Error> {
    let settings = Settings {
        largest_object: LARGEST_OBJECT,
        new_database: fresh,
        codec,
        ..Settings::default()
    };
    Ok(mainstay_store::open(location, &settings, SystemClock::new()).await?)
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::io(format!("cannot make {}", folder.display())))
}
