//! Writes the files that the first clients of a server need: `ca.crt`, and the administrator's
//! `kubeconfig`.

use std::io;
use std::path::Path;

use super::Error;
use crate::files;
use crate::identity::Role;
use crate::tls::Authority;
use crate::tokens::{Tokens, Wish};

/// Writes the files, unless the token in those that are there still works.
pub(super) async fn write_files(
    dir: &Path,
    url: &str,
    authority: &Authority,
    plain: bool,
    tokens: &Tokens,
) -> Result<(), Error> {
    let there = std::fs::read_to_string(dir.join("kubeconfig")).unwrap_or_default();
    let token = match files::token_in(&there) {
        Some(token) if tokens.bearer(token.as_bytes()).is_some() => token.to_owned(),
        _ => {
            let wish = Wish { name: Some("admin".to_owned()), ..Wish::of(Role::Admin) };
            tokens.create(wish).await?.token
        }
    };
    tokens.keep_own(&token).await;
    write_with(dir, url, authority, plain, &token)
}

/// Writes the files anew after the authority was exchanged; the token stays.
pub(super) fn rewrite_files(
    dir: &Path,
    url: &str,
    authority: &Authority,
    plain: bool,
) -> Result<(), Error> {
    let there = std::fs::read_to_string(dir.join("kubeconfig")).unwrap_or_default();
    match files::token_in(&there) {
        Some(token) => write_with(dir, url, authority, plain, token),
        // Not written yet: the start of the server writes it.
        None => Ok(()),
    }
}

fn write_with(
    dir: &Path,
    url: &str,
    authority: &Authority,
    plain: bool,
    token: &str,
) -> Result<(), Error> {
    let write = |name: &str, mode, text: &str| {
        let path = dir.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        match files::write_whole(&path, mode, text) {
            // A server on a full disk still serves reads and deletions.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::error!(path = %path.display(), "the disk is full; a client file was not updated");
                Ok(())
            }
            written => written.map_err(|source| Error::File { path, source }),
        }
    };
    let bundle = authority.bundle();
    write("ca.crt", 0o644, &bundle)?;
    let authority = (!plain).then_some(bundle.as_str());
    write("kubeconfig", 0o600, &files::kubeconfig(url, authority, token))
}
