//! The key file that a store is encrypted with.

use std::path::{Path, PathBuf};

use clap::Args;
use mainstay_store::seal::{MasterKeys, Sealer};
use mainstay_store::value::Codec;

use crate::error::Error;

/// Where the keys are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StoreKey {
    /// Encrypt the store with the keys in this file, the first of them for what is written from now
    /// on; `mainstay store key new` prints one
    #[arg(long, value_name = "FILE", env = "MAINSTAY_STORE_KEY")]
    store_key: Option<PathBuf>,
}

impl StoreKey {
    /// The file of keys, of the flag or of the configuration.
    pub(crate) fn file<'a>(&'a self, configured: Option<&'a Path>) -> Option<&'a Path> {
        self.store_key.as_deref().or(configured)
    }

    /// How values are written: with the keys of the flag's file, or of the configuration's.
    pub(crate) fn codec(&self, configured: Option<&Path>) -> Result<Codec, Error> {
        let Some(path) = self.file(configured) else {
            return Ok(Codec::default());
        };
        let keys = MasterKeys::read(path)
            .map_err(|error| Error::usage(format!("--store-key: {error}")))?;
        Ok(Codec::sealing(Sealer::new(Some(keys))))
    }
}

/// A new line for a key file.
pub(crate) fn new_line(name: &str) -> Result<String, Error> {
    let line = MasterKeys::new_line(name).map_err(|error| Error::negative(error.to_string()))?;
    // A name that a key file would refuse is refused at once.
    MasterKeys::parse(&line).map_err(|error| Error::usage(error.to_string()))?;
    Ok(line)
}
