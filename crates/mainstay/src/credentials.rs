//! The keys to storage elsewhere: a TOML file with a table for each RSE.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use mainstay_rules::transfers::credential::Credentials;
use mainstay_rules::transfers::store::Access;

use crate::error::Error;

/// Where the keys to storage are.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Keys {
    /// Read the keys to S3 and WebDAV from this TOML file: a table for each RSE, with access-key and
    /// secret-key, or user and password, or token
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CREDENTIALS")]
    credentials: Option<PathBuf>,
}

impl Keys {
    /// The way into storage with these keys, or with those of another file where none is named.
    pub(crate) fn access(&self, otherwise: Option<&Path>) -> Result<Arc<Access>, Error> {
        let file = self.credentials.as_deref().or(otherwise);
        let credentials = file.map(read).transpose()?.unwrap_or_default();
        Ok(Arc::new(Access::new(credentials)))
    }
}

fn read(file: &Path) -> Result<Credentials, Error> {
    let place = file.display();
    let failed = |error: std::io::Error| {
        Error::usage(format!("--credentials: cannot read {place}: {error}"))
    };
    let mode = std::fs::metadata(file).map_err(failed)?.mode();
    if mode & 0o077 != 0 {
        return Err(Error::usage(format!(
            "--credentials: others may read or write {place}; chmod 600 it"
        )));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    parse(&text).map_err(|error| Error::usage(format!("--credentials: {place}: {error}")))
}

fn parse(text: &str) -> Result<Credentials, String> {
    // What toml says of an error quotes the line, which may hold a secret.
    let credentials: Credentials =
        toml::from_str(text).map_err(|error| error.message().to_owned())?;
    for (rse, credential) in &credentials {
        if let Some(fault) = credential.fault() {
            return Err(format!("[{rse}]: {fault}"));
        }
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_by_rse_and_errors_quote_none() {
        let found = parse(
            "[SITE-A]\naccess-key = \"a\"\nsecret-key = \"hush\"\n[SITE-B]\nuser = \"u\"\npassword = \"hush\"\n",
        )
        .unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found["SITE-B"].user.as_deref(), Some("u"));
        for text in [
            "[SITE-A]\naccess-key = \"hush\"\n",
            "[SITE-A]\nsecret = \"hush\"\n",
            "[SITE-A]\nsecret-key = \"hush\n",
            "[SITE-A]\nuser = 7\npassword = \"hush\"",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.toml");
        std::fs::write(&file, "").unwrap();
        for (mode, taken) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&file).is_ok(), taken, "{mode:o}");
        }
    }
}
