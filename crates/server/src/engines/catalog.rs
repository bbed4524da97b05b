//! The rule catalog that a data folder belongs to: a lost or exchanged one is refused, and so is a
//! second server on one file. A refused one is left as it was: no file and no table is made.

use std::path::Path;

use mainstay_catalog::{Catalog, opening};
use mainstay_rules::{Environment, account};
use mainstay_store::identity::{self, Decision, Marker, decide};
use mainstay_store::sqlite::lock::Lock;

use super::Error;

/// Opens a catalog, and makes the account `root` if it is not there.
///
/// # Errors
/// [`Error::Engine`] with the reason of the database.
pub async fn open(address: &str) -> Result<Catalog, Error> {
    with_root(Catalog::open(address).await.map_err(Error::engine)?).await
}

async fn with_root(catalog: Catalog) -> Result<Catalog, Error> {
    let now = Environment::system().now();
    let root = catalog.write(move |tx| account::add_root(tx, now));
    root.await.map_err(Error::engine)?;
    Ok(catalog)
}

/// Refuses the catalog at `address` if this folder belongs to another one, or if it is lost or
/// damaged. Changes nothing.
pub(super) async fn inspect(data_dir: &Path, address: &str, meant: bool) -> Result<(), Error> {
    let marker = match Marker::read(data_dir) {
        Err(identity::Error::Marker { .. }) if meant => Marker::default(),
        read => read.map_err(crate::Error::from)?,
    };
    // Compared first: the number of commits of another catalog means nothing.
    let file = Catalog::file(address);
    if let Some(found @ Some(_)) = file.and_then(|file| opening::identity_of(&file).ok()) {
        decided(data_dir, address, &marker, found, meant)?;
    }
    let peeked = Catalog::peek(address).await.map_err(Error::engine)?;
    decided(data_dir, address, &marker, peeked.identity, meant).map(drop)
}

/// The identity that the catalog keeps; none if it is to be given one.
fn decided(
    data_dir: &Path,
    address: &str,
    marker: &Marker,
    found: Option<String>,
    meant: bool,
) -> Result<Option<String>, Error> {
    // A catalog always has its own accounts and versions: one without an identity is a new one.
    match decide(marker.catalog.as_deref(), found.as_deref(), true, meant) {
        Decision::Keep(identity) => Ok(Some(identity)),
        Decision::Give => Ok(None),
        decision => {
            let named = |id: Option<String>| format!("catalog {}", id.unwrap_or_default());
            let place = match Catalog::file(address) {
                Some(file) => format!("the rule catalog {}", file.display()),
                // The address may hold a password.
                None => "the rule catalog in PostgreSQL".to_owned(),
            };
            let (found, expected) = (named(found), named(marker.catalog.clone()));
            let refused = identity::refusal(data_dir, place, &decision, found, expected);
            Err(crate::Error::from(refused).into())
        }
    }
}

/// Opens the catalog at `address` for a server, once the store of its folder is open: the folder is
/// its own then. The lock lasts for as long as the server.
pub(super) async fn open_own(
    data_dir: &Path,
    address: &str,
    meant: bool,
) -> Result<(Catalog, Option<Lock>), Error> {
    let lock = match Catalog::file(address) {
        Some(path) => Some(Lock::on_file(&path).map_err(|error| {
            let hint = "; several servers share a catalog in PostgreSQL (--catalog postgres://…)";
            Error::Engine(format!("the rule catalog {error}{hint}"))
        })?),
        None => None,
    };
    let opened = match meant {
        true => Catalog::open_fresh(address).await,
        false => Catalog::open(address).await,
    };
    let catalog = with_root(opened.map_err(Error::engine)?).await?;
    let marker = Marker::read(data_dir).map_err(crate::Error::from)?;
    let found = catalog.identity().await.map_err(Error::engine)?;
    let identity = match decided(data_dir, address, &marker, found, meant)? {
        Some(identity) => identity,
        None => catalog.give_identity(Environment::system().seed()).await.map_err(Error::engine)?,
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
