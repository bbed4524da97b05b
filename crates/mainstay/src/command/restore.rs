//! `mainstay restore`: restores a backup into an empty store that no server uses.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use mainstay_catalog::load::{self, State};
use mainstay_clock::SystemClock;
use mainstay_server::Location;
use mainstay_store::Settings;
use mainstay_store::backup::{self, Parts};
use mainstay_store::identity::{self, Marker};
use mainstay_store::objects::Objects;
use mainstay_store::resources::{Identities, RandomIdentities};
use mainstay_store::value::Codec;

use crate::backup_seal::Unseal;
use crate::catalog_part::{Checking, Restoring, Step, Stop};
use crate::command::serve;
use crate::error::Error;
use crate::paths;

/// The largest object that is restored: as large as any store accepts.
const LARGEST_OBJECT: usize = 64 << 20;

/// Restore a backup into an empty store and an empty rule catalog
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay restore mainstay.backup --data-dir /var/lib/mainstay
  mainstay restore mainstay.backup --data-dir d --store etcd://10.0.0.1:2379,10.0.0.2:2379
  mainstay restore mainstay.backup --data-dir d --catalog postgres://mainstay@db/catalog
  mainstay restore mainstay.backup --data-dir d --identity key.txt

No server may run on the store or the catalog meanwhile. The file is checked to its end before
anything is written; a damaged one is refused (exit code 2), and so is a store or catalog that is
not empty (1). An interrupted restore is recognised: the server does not start, and
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

/// The location of a store that no server uses.
#[derive(Debug, Clone, Args)]
struct Place {
    /// The data folder of the server; created if it does not exist [default: the one of
    /// `mainstay serve`, unless --store names a store elsewhere]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The store of the objects, as for `mainstay serve` [default: objects.db in the data folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_STORE")]
    store: Option<String>,
    /// The rule catalog, as for `mainstay serve` [default: catalog.db in the data folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_CATALOG")]
    catalog: Option<String>,
}

impl Place {
    /// The data folder that is restored into, if any. A store elsewhere has its own identity, which
    /// must not replace that of the server in the default folder.
    fn data_dir(&self, default: Option<PathBuf>) -> Option<PathBuf> {
        match (&self.data_dir, &self.store) {
            (Some(given), _) => Some(given.clone()),
            (None, Some(_)) => None,
            (None, None) => default,
        }
    }

    /// The catalog to restore into. It must be empty, half restored, or filled by the restore of this
    /// name that was interrupted later.
    async fn catalog(
        &self,
        data_dir: Option<&Path>,
        restore: Option<String>,
    ) -> Result<String, Error> {
        let address = match (&self.catalog, data_dir) {
            (Some(address), _) => address.clone(),
            (None, Some(data_dir)) => data_dir.join("catalog.db").display().to_string(),
            (None, None) => {
                let say = "the backup has a rule catalog; say where it goes: --data-dir DIR or --catalog URL";
                return Err(Error::usage(say));
            }
        };
        let asked = address.clone();
        let state =
            tokio::task::spawn_blocking(move || load::state(&asked, restore.as_deref())).await;
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
        self.restore(Stop::default()).await
    }

    /// Each step is durable before the next one, and a restore that was interrupted after any of them
    /// can be repeated: until the last one the data folder, the store or both are marked.
    async fn restore(&self, stop: Stop) -> Result<u8, Error> {
        let file = self.file.display();
        match std::fs::metadata(&self.file) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(Error::usage(format!("{file} is not a file"))),
            Err(error) => return Err(Error::usage(format!("cannot read {file}: {error}"))),
        }
        let data_dir = self.place.data_dir(paths::data_dir());
        let location = located(data_dir.as_deref(), self.place.store.as_deref())?;
        if location == Location::Memory {
            return Err(Error::usage(
                "--store: a memory store is lost when the process ends; restore into another store",
            ));
        }
        // If the file is refused, not even an empty database is left behind.
        let source = self.keys.source(&self.file);
        let checked = source.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let mut parts = Checking::default();
            backup::check(&checked, &mut parts).map(|summary| (summary, parts))
        });
        let (summary, parts) =
            checked.await.map_err(|error| Error::negative(error.to_string()))??;
        // First of all, refuse a store that is not empty or that a server uses.
        let unfinished = left_by(&location).await?;
        let catalog = match parts.counted() {
            Some(_) => Some(self.place.catalog(data_dir.as_deref(), unfinished).await?),
            None => None,
        };
        make_folders(data_dir.as_deref(), &location)?;
        if let Some(folder) = &data_dir {
            Marker::begin_restore(folder).map_err(mainstay_server::Error::from)?;
        }
        stopped(stop, Step::FolderMarked)?;
        let into: Box<dyn Parts> = match catalog {
            Some(address) => Box::new(Restoring::into(address, stop)),
            None => Box::new(Checking::default()),
        };
        let objects = open(&location, true, Codec::default()).await?;
        let restored = async {
            stopped(stop, Step::StoreOpened)?;
            let filled = backup::fill_from(source, &summary, objects.clone(), into).await?;
            remember(data_dir.as_deref(), &*objects).await?;
            stopped(stop, Step::Remembered)?;
            Ok::<_, Error>(filled.complete(&*objects).await?)
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
        (None, None) => {
            Err(Error::usage("no store given; name one with --data-dir DIR or --store URL"))
        }
    }
}

/// Stores the identity of the restored cluster in the data folder, so that a server starts on it.
async fn remember(data_dir: Option<&Path>, objects: &dyn Objects) -> Result<(), Error> {
    let cluster = identity::give(objects, &RandomIdentities.uid()).await?;
    let Some(data_dir) = data_dir else { return Ok(()) };
    Ok(Marker::end_restore(data_dir, cluster).map_err(mainstay_server::Error::from)?)
}

/// The name of a restore that was interrupted in the store; refuses a store that is not empty.
async fn left_by(location: &Location) -> Result<Option<String>, Error> {
    if let Location::Sqlite(path) = location
        && !std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
    {
        return Ok(None);
    }
    let objects = open(location, true, Codec::default()).await?;
    let left = backup::may_take(&*objects).await;
    objects.close().await;
    Ok(left?)
}

fn stopped(stop: Stop, step: Step) -> Result<(), Error> {
    stop.after(step).map_err(|error| Error::negative(error.to_string()))
}

fn make_folders(data_dir: Option<&Path>, location: &Location) -> Result<(), Error> {
    data_dir.map_or(Ok(()), make_folder)?;
    match location {
        Location::Sqlite(path) => match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => make_folder(folder),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Opens a store that no server uses. With `fresh`, a new database may replace one that the data
/// folder remembers.
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/backup-v2");

    #[test]
    fn a_store_elsewhere_leaves_the_default_data_folder_alone() {
        let path = |text: &str| Some(PathBuf::from(text));
        for (given, store, expected) in [
            (None, None, path("default")),
            (None, Some("other.db"), None),
            (path("d"), None, path("d")),
            (path("d"), Some("etcd://10.0.0.1:2379"), path("d")),
        ] {
            let place = Place { data_dir: given, store: store.map(str::to_owned), catalog: None };
            assert_eq!(place.data_dir(path("default")), expected, "{place:?}");
        }
    }

    fn into(folder: &Path) -> Restore {
        use clap::Parser as _;
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            restore: Restore,
        }
        let folder = folder.display().to_string();
        Line::parse_from(["restore", GOLDEN, "--data-dir", &folder]).restore
    }

    /// Whether a server refuses to start in this folder because of the restore.
    async fn is_refused(folder: &Path) -> bool {
        let location = Location::Sqlite(folder.join("objects.db"));
        if Marker::read(folder).unwrap().restoring {
            return true;
        }
        let objects = open(&location, false, Codec::default()).await.unwrap();
        let unfinished = backup::unfinished(&*objects).await.unwrap();
        objects.close().await;
        unfinished
    }

    #[tokio::test]
    async fn an_interrupted_restore_is_detected_and_can_be_repeated() {
        let steps = [
            Step::FolderMarked,
            Step::StoreOpened,
            Step::CatalogMarked,
            Step::CatalogBegun,
            Step::CatalogFilled,
            Step::CatalogFinished,
            Step::Remembered,
        ];
        for step in steps {
            let folder = tempfile::tempdir().unwrap();
            let restore = into(folder.path());
            // A second attempt may stop as well, at the same step or at another.
            for again in [step, step, Step::CatalogFinished, Step::FolderMarked] {
                restore.restore(Stop(Some(again))).await.unwrap_err();
                assert!(is_refused(folder.path()).await, "{step:?}, then {again:?}");
            }
            restore.restore(Stop::default()).await.unwrap();
            assert!(!is_refused(folder.path()).await, "{step:?}");
            let said = restore.restore(Stop::default()).await.unwrap_err().to_string();
            assert!(said.contains("not empty"), "{step:?}: {said}");
            assert!(!is_refused(folder.path()).await, "a refusal changes nothing: {step:?}");
        }
    }

    #[tokio::test]
    async fn a_catalog_of_another_restore_is_never_emptied() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        into(one.path()).restore(Stop(Some(Step::CatalogFinished))).await.unwrap_err();
        into(other.path()).restore(Stop::default()).await.unwrap();
        let catalog = |folder: &Path| folder.join("catalog.db");
        std::fs::copy(catalog(other.path()), catalog(one.path())).unwrap();
        for beside in ["-wal", "-shm"] {
            drop(std::fs::remove_file(one.path().join(format!("catalog.db{beside}"))));
        }
        let said = into(one.path()).restore(Stop::default()).await.unwrap_err().to_string();
        assert!(said.contains("the catalog is not empty"), "{said}");
    }
}
