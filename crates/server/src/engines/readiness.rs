//! Whether the rule engine's database works.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_catalog::{Catalog, Error};

use crate::readiness::Check;

/// The database of a catalog.
#[derive(Debug)]
pub(super) struct Database(pub(super) Catalog);

impl Check for Database {
    /// Queries one row, or tries a commit where the last one failed.
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            self.0.ready().await.map_err(|error| match error {
                Error::Damaged { .. }
                | Error::Deleted { .. }
                | Error::Replaced { .. }
                | Error::Full { .. }
                | Error::Disk { .. } => error.to_string(),
                error => format!("{}: {error}", self.asks()),
            })
        }
        .boxed()
    }

    fn asks(&self) -> &'static str {
        match self.0.backend() {
            "postgres" => "PostgreSQL",
            _ => "SQLite",
        }
    }
}
