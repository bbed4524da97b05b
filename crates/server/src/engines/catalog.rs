//! The rule catalog that a data folder belongs to: a lost or exchanged one is refused, and so is a
//! second server on one file.

use std::path::Path;

use mainstay_catalog::Catalog;
use mainstay_rules::account;
use mainstay_rules::judge::{Machine, Surroundings};
use mainstay_store::identity::{self, Decision, Marker, decide};
use mainstay_store::sqlite::lock::Lock;

use super::Error;

/// Opens a catalog, and makes the account `root` if it is not there.
///
/// # Errors
/// [`Error::Engine`] with the reason of the database.
pub async fn open(address: &str) -> Result<Catalog, Error> {
    let catalog = Catalog::open(address).await.map_err(Error::engine)?;
    let now = Machine.now();
    let root = catalog.write(move |tx| account::add_root(tx, now));
    root.await.map_err(Error::engine)?;
    Ok(catalog)
}

/// Opens the catalog at `address` for a server. The lock lasts for as long as the server.
pub(super) async fn open_own(
    data_dir: &Path,
    address: &str,
    meant: bool,
) -> Result<(Catalog, Option<Lock>), Error> {
    let lock = match Catalog::file(address) {
        Some(path) => Some(Lock::on_file(&path).map_err(|error| {
            let hint = "; several servers share a catalog in PostgreSQL (--catalog postgres://…)";
            Error::Engine(format!("{error}{hint}"))
        })?),
        None => None,
    };
    let catalog = open(address).await?;
    let marker = match Marker::read(data_dir) {
        Err(identity::Error::Marker { .. }) if meant => Marker::default(),
        read => read.map_err(crate::Error::from)?,
    };
    let found = catalog.identity().await.map_err(Error::engine)?;
    // A catalog always has its own accounts and versions: one without an identity is a new one.
    let decision = decide(marker.catalog.as_deref(), found.as_deref(), true, meant);
    let identity = match decision {
        Decision::Keep(identity) => identity,
        Decision::Give => catalog.give_identity(Machine.seed()).await.map_err(Error::engine)?,
        decision => {
            let named = |id: Option<String>| format!("catalog {}", id.unwrap_or_default());
            let place = format!("the rule catalog {address}");
            let (found, expected) = (named(found), named(marker.catalog));
            let refused = identity::refusal(data_dir, place, &decision, found, expected);
            return Err(crate::Error::from(refused).into());
        }
    };
    let marker = Marker { catalog: Some(identity), ..marker };
    marker.write(data_dir).map_err(crate::Error::from)?;
    Ok((catalog, lock))
}

/// Whether the disk of the data folder has no space left. A server starts on it all the same: it
/// serves reads, and takes deletions.
pub(super) fn is_full(data_dir: &Path) -> bool {
    rustix::fs::statvfs(data_dir).is_ok_and(|fs| fs.f_bavail * fs.f_frsize < 1 << 20)
}
