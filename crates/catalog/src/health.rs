//! Tracks whether the database of a catalog works, for `/readyz` and for later writes.
//!
//! Damage is remembered as long as the process runs: after the first damaged page every write is
//! refused, because writing could spread the damage. A full or failing disk is forgotten as soon as
//! a commit works again.

use parking_lot::Mutex;

use super::engine::Mode;
use super::{Backend, Catalog, blocking};
use crate::error::{Error, Result, TxError};
use crate::values;

/// The known trouble with the database of a catalog.
#[derive(Debug)]
pub(super) struct Health {
    /// The name of the database in messages, without users and hosts.
    place: String,
    trouble: Mutex<Trouble>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Trouble {
    #[default]
    None,
    /// The last commit found no space, or the disk failed.
    Failing,
    Damaged(String),
}

impl Health {
    pub(super) fn new(place: String) -> Self {
        Self { place, trouble: Mutex::default() }
    }

    fn trouble(&self) -> Trouble {
        self.trouble.lock().clone()
    }

    /// Fails if the database is known to be damaged.
    pub(super) fn undamaged(&self) -> Result<()> {
        match self.trouble() {
            Trouble::Damaged(what) => Err(Error::Damaged { place: self.place.clone(), what }),
            _ => Ok(()),
        }
    }

    /// Records the outcome of a transaction, and adds the place to its error.
    pub(super) fn note<T, E: TxError>(&self, writes: bool, done: Result<T, E>) -> Result<T, E> {
        let place = || self.place.clone();
        let failed = match &done {
            Ok(_) if writes => {
                self.recovered();
                None
            }
            Ok(_) => None,
            Err(error) => error.catalog(),
        };
        let (error, trouble) = match failed {
            Some(Error::Damaged { what, .. }) => {
                let error = Error::Damaged { place: place(), what: what.clone() };
                (error, Trouble::Damaged(what.clone()))
            }
            Some(Error::Full { .. }) => (Error::Full { place: place() }, Trouble::Failing),
            Some(Error::Disk { what, .. }) => {
                (Error::Disk { place: place(), what: what.clone() }, Trouble::Failing)
            }
            _ => return done,
        };
        let mut known = self.trouble.lock();
        if *known != trouble && !matches!(*known, Trouble::Damaged(_)) {
            tracing::error!(%error, "rule catalog failed");
            *known = trouble;
        }
        Err(error.into())
    }

    fn recovered(&self) {
        let mut known = self.trouble.lock();
        if *known == Trouble::Failing {
            *known = Trouble::None;
            tracing::info!(catalog = self.place, "commits to the rule catalog work again");
        }
    }
}

impl Catalog {
    /// Checks that the database answers and, as far as is known, accepts writes. After a failed
    /// commit, this tries one that changes no data.
    ///
    /// # Errors
    /// The reason why the database cannot be used.
    pub async fn ready(&self) -> Result<()> {
        self.inner.health.undamaged()?;
        if self.inner.health.trouble() == Trouble::Failing {
            let same = "UPDATE versions SET value = value WHERE name = ?1";
            return self.write(|tx| tx.execute(same, values!["rses"]).map(drop)).await;
        }
        self.ping().await
    }

    /// Queries one row, without retries.
    async fn ping(&self) -> Result<()> {
        let catalog = self.clone();
        blocking(move || match &catalog.inner.backend {
            Backend::Sqlite { .. } => catalog.read_blocking(|tx| tx.number("SELECT 1", &[])),
            Backend::Postgres { pool, .. } => {
                catalog.once_on_postgres(pool, Mode::Read, &|tx| tx.number("SELECT 1", &[]))
            }
        })
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_forgotten_by_the_next_commit_and_damage_is_not() {
        let health = Health::new("c.db".to_owned());
        let full = health.note::<(), Error>(true, Err(Error::Full { place: String::new() }));
        assert!(full.unwrap_err().to_string().contains("c.db"));
        assert_eq!(health.trouble(), Trouble::Failing);
        health.note::<(), Error>(false, Ok(())).unwrap();
        assert_eq!(health.trouble(), Trouble::Failing, "a read does not prove that writes work");
        health.note::<(), Error>(true, Ok(())).unwrap();
        assert_eq!(health.trouble(), Trouble::None);
        let damaged = || Err(Error::Damaged { place: String::new(), what: "page 7".to_owned() });
        let message = health.note::<(), Error>(false, damaged()).unwrap_err().to_string();
        assert!(message.contains("c.db") && message.contains("page 7"), "{message}");
        health.note::<(), Error>(true, Ok(())).unwrap();
        assert!(health.undamaged().is_err());
    }
}
