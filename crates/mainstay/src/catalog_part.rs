//! The rule catalog as a part of a backup file: checked, and restored.

use mainstay_catalog::Error;
use mainstay_catalog::load::{Lines, Loader};
use mainstay_server::engines::CATALOG;
use mainstay_store::backup::{PartError, Parts};
use serde_json::Value;

fn refused(error: Error) -> PartError {
    match error {
        Error::Backup(what) => PartError::Damaged(what),
        newer @ Error::NewerSchema { .. } => PartError::Newer(newer.to_string()),
        other => PartError::Failed(format!("the catalog was not restored: {other}")),
    }
}

fn unknown(name: &str) -> PartError {
    PartError::Newer(format!("this version knows no part {name:?}"))
}

/// Checks every line of a catalog without storing it.
#[derive(Debug, Default)]
pub(crate) struct Checking {
    lines: Option<Lines>,
}

impl Checking {
    /// The number of rows and of tables; `None` without a catalog.
    pub(crate) fn counted(&self) -> Option<(u64, usize)> {
        self.lines.as_ref().map(|lines| (lines.rows.values().sum(), lines.rows.len()))
    }
}

impl Parts for Checking {
    fn begin(&mut self, name: &str, about: &Value) -> Result<(), PartError> {
        if name != CATALOG {
            return Err(unknown(name));
        }
        self.lines = Some(Lines::new(about).map_err(refused)?);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), PartError> {
        self.lines.as_mut().map_or(Ok(()), |lines| lines.take(line)).map_err(refused)
    }

    fn end(&mut self) -> Result<(), PartError> {
        self.lines.as_ref().map_or(Ok(()), Lines::end).map_err(refused)
    }
}

/// Restores a catalog into an empty one.
#[derive(Debug)]
pub(crate) struct Restoring {
    address: String,
    loader: Option<Loader>,
    stop: Stop,
}

/// The step after which a test interrupts a restore.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stop(pub(crate) Option<Step>);

/// The steps of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    FolderMarked,
    StoreOpened,
    CatalogMarked,
    CatalogBegun,
    CatalogFilled,
    CatalogFinished,
    Remembered,
}

impl Stop {
    /// This step was done.
    pub(crate) fn after(self, step: Step) -> Result<(), PartError> {
        if self.0 == Some(step) {
            return Err(PartError::Failed(format!("stopped after {step:?}")));
        }
        Ok(())
    }
}

impl Restoring {
    /// Into the catalog at `address`.
    pub(crate) fn into(address: String, stop: Stop) -> Self {
        Self { address, loader: None, stop }
    }

    fn loading(
        &mut self,
        work: impl FnOnce(&mut Loader) -> Result<(), Error>,
    ) -> Result<(), PartError> {
        self.loader.as_mut().map_or(Ok(()), work).map_err(refused)
    }
}

impl Parts for Restoring {
    fn prepare(&mut self, restore: &str) -> Result<(), PartError> {
        self.loader = Some(Loader::start(&self.address, restore).map_err(refused)?);
        self.stop.after(Step::CatalogMarked)
    }

    fn begin(&mut self, name: &str, about: &Value) -> Result<(), PartError> {
        if name != CATALOG {
            return Err(unknown(name));
        }
        self.loading(|loader| loader.begin(about))?;
        self.stop.after(Step::CatalogBegun)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), PartError> {
        self.loading(|loader| loader.take(line))
    }

    fn end(&mut self) -> Result<(), PartError> {
        self.loading(Loader::end)?;
        self.stop.after(Step::CatalogFilled)
    }

    fn finish(&mut self) -> Result<(), PartError> {
        self.loading(Loader::finish)?;
        self.stop.after(Step::CatalogFinished)
    }
}
