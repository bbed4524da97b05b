//! Access to storage: the credentials (a TOML file with a table for each RSE), and the folders and
//! endpoints that the operator allows.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use mainstay_transfers::allowed::Allowed;
use mainstay_transfers::credential::Credentials;
use mainstay_transfers::store::Access;

use crate::error::Error;

/// The flag that names the file of storage credentials.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Keys {
    /// Read the credentials for S3 and WebDAV from this TOML file: a table for each RSE, with endpoint, the
    /// only server they are sent to, and access-key and secret-key, or user and password, or token
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CREDENTIALS")]
    credentials: Option<PathBuf>,
}

impl Keys {
    /// Access to the allowed storage with these credentials, or with those of `other` if the flag is
    /// not given.
    pub(crate) fn access(
        &self,
        otherwise: Option<&Path>,
        allowed: Allowed,
    ) -> Result<Arc<Access>, Error> {
        let credentials = self.file(otherwise).map(read).transpose()?.unwrap_or_default();
        Ok(Arc::new(Access::new(credentials, allowed)))
    }

    /// The file of credentials.
    pub(crate) fn file<'a>(&'a self, otherwise: Option<&'a Path>) -> Option<&'a Path> {
        self.credentials.as_deref().or(otherwise)
    }
}

/// The storage that may be used.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Bounds {
    /// Use folders of `file` storage elements below DIR only; may be given several times. Without it
    /// no folder is read, written or deleted
    #[arg(long, value_name = "DIR")]
    storage_root: Vec<PathBuf>,
    /// Connect to this S3 or WebDAV endpoint only; may be given several times. Without it all are
    /// allowed except loopback, link-local, metadata and multicast addresses
    #[arg(long, value_name = "HOST[:PORT]")]
    storage_endpoint: Vec<String>,
}

impl Bounds {
    /// The storage that the flags allow, or else the configuration file. Roots neither lie inside nor
    /// contain one of the `private` places.
    pub(crate) fn allowed(
        &self,
        otherwise: &FileBounds,
        private: &[Option<PathBuf>],
    ) -> Result<Allowed, Error> {
        fn either<'a, T>(said: &'a [T], otherwise: &'a [T]) -> &'a [T] {
            if said.is_empty() { otherwise } else { said }
        }
        let roots = either(&self.storage_root, &otherwise.storage_root);
        let endpoints = either(&self.storage_endpoint, &otherwise.storage_endpoint);
        let private: Vec<PathBuf> = private.iter().flatten().cloned().collect();
        let allowed = Allowed::new(roots, endpoints, &private);
        allowed.map_err(|error| Error::usage(error.to_string()))
    }
}

/// [`Bounds`] in the configuration file.
#[derive(Debug, Default)]
pub(crate) struct FileBounds {
    pub(crate) storage_root: Vec<PathBuf>,
    pub(crate) storage_endpoint: Vec<String>,
}

/// The file of a catalog or store, where it is one.
pub(crate) fn local_file(url: Option<&str>) -> Option<PathBuf> {
    let url = url?;
    let path = url.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
    match path {
        Some(path) => Some(PathBuf::from(path)),
        None if url.contains("://") || url == "memory:" => None,
        None => Some(PathBuf::from(url)),
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
    // The message of the toml crate quotes the line, which may hold a secret.
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
    fn credentials_are_read_by_rse_and_errors_do_not_quote_them() {
        let found = parse(
            "[SITE-A]\nendpoint = \"s3://a\"\naccess-key = \"a\"\nsecret-key = \"hush\"\n\
             [SITE-B]\nendpoint = \"davs://b:1\"\nuser = \"u\"\npassword = \"hush\"\n",
        )
        .unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found["SITE-B"].user.as_deref(), Some("u"));
        for text in [
            "[SITE-A]\naccess-key = \"hush\"\n",
            "[SITE-A]\nsecret = \"hush\"\n",
            "[SITE-A]\nsecret-key = \"hush\n",
            "[SITE-A]\nuser = 7\npassword = \"hush\"",
            "[SITE-A]\ntoken = \"hush\"",
            "[SITE-A]\nendpoint = \"dav://a\"\ntoken = \"hush\"",
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
