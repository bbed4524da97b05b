//! `mainstay restore`: a backup into an empty store, while no server runs on it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use mainstay_server::Location;
use mainstay_server::clock::SystemClock;
use mainstay_store::objects::Objects;
use mainstay_store::{Settings, backup};

use crate::command::serve;
use crate::error::Error;
use crate::paths;

/// The largest object that is taken: whatever a store once took.
const LARGEST_OBJECT: usize = 64 << 20;

/// Fill an empty store from a backup
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay restore mainstay.backup --data-dir /var/lib/mainstay
  mainstay restore mainstay.backup --data-dir d --store etcd://10.0.0.1:2379,10.0.0.2:2379

No server may run on the store meanwhile. The file is checked to its end before anything is
written; a damaged one is refused (exit code 2), and so is a store that is not empty (1). A restore
that broke off is told from a finished one: the server does not start, and the next restore begins
anew.")]
pub(crate) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    place: Place,
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
        let path = self.file.clone();
        let checked = tokio::task::spawn_blocking(move || backup::verify(&path)).await;
        checked.map_err(|error| Error::negative(error.to_string()))??;
        if let Location::Sqlite(path) = &location {
            make_folder(path)?;
        }
        let objects = open(&location).await?;
        let restored = backup::restore(&self.file, objects.clone()).await;
        objects.close().await;
        let summary = restored?;
        let (objects, head) = (summary.objects, summary.head);
        anstream::eprintln!("{location}: {objects} objects restored, as of {}", head.time);
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

pub(crate) async fn open(location: &Location) -> Result<Arc<dyn Objects>, Error> {
    let settings = Settings { largest_object: LARGEST_OBJECT, ..Settings::default() };
    Ok(mainstay_store::open(location, &settings, SystemClock::new()).await?)
}

fn make_folder(database: &Path) -> Result<(), Error> {
    let Some(folder) = database.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::io(format!("cannot make {}", folder.display())))
}
