//! The rule catalog as a part of a server's backup.

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use mainstay_catalog::Catalog;
use mainstay_catalog::dump::{Dump, PendingDump};
use mainstay_store::backup::{HeldPart, Part, PartSource};

/// The name of the part.
pub const CATALOG: &str = "catalog";

/// The catalog of a running server.
#[derive(Debug)]
pub(super) struct CatalogPart(pub(super) Catalog);

struct Fixed(PendingDump);

impl PartSource for CatalogPart {
    fn hold(&self) -> BoxFuture<'_, Result<Box<dyn HeldPart>, String>> {
        async {
            let held = self.0.hold_for_dump().await.map_err(|error| error.to_string())?;
            Ok(Box::new(Fixed(held)) as Box<dyn HeldPart>)
        }
        .boxed()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, String>> {
        async {
            let wrong = mainstay_rules::check::verify(&self.0).await;
            wrong.map_err(|error| format!("the rule catalog cannot be checked: {error}"))
        }
        .boxed()
    }
}

impl HeldPart for Fixed {
    fn release(self: Box<Self>) -> Part {
        let Dump { about, mut lines } = self.0.release();
        let lines = stream::poll_fn(move |context| lines.poll_recv(context)).boxed();
        Part { name: CATALOG, about, lines }
    }
}
