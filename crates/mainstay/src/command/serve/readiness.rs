//! Whether the rule engine's database works.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_rules::Catalog;
use mainstay_server::Check;

/// The database of a catalog.
#[derive(Debug)]
pub(super) struct Database(pub(super) Catalog);

impl Check for Database {
    /// Asks for one row. The reason is left to the log: it may name the database's user and host.
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            let asked = self.0.read(|tx| tx.number("SELECT 1", &[])).await;
            asked.map(drop).map_err(|error| {
                tracing::debug!(%error, "the catalog's database failed");
                format!("the {} database of the rule engine does not answer", self.0.backend())
            })
        }
        .boxed()
    }
}
