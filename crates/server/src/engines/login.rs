//! `rucio.cfg` in the data folder: how Rucio's own client finds this server and logs in.
//!
//! The first start makes a user for the account `root` with a password that is kept nowhere else.
//! Later starts keep them and only write the server's address anew. A server that shares its catalog
//! with others makes a user of its own, so that none takes away another's password.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mainstay_rucio::{Service, auth};
use mainstay_rules::identity::{self, Identity};

use super::{Error, SURFACE};

/// A user and its password.
#[derive(Debug, PartialEq, Eq)]
struct User {
    name: String,
    password: String,
}

impl User {
    /// The user that an earlier start has written.
    fn read(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
        };
        Some(Self { name: value("username")?, password: value("password")? })
    }

    fn shown(&self, url: &str, authority: Option<&Path>) -> String {
        let host = format!("{url}{}", SURFACE);
        let trust = authority.map(|file| format!("ca_cert = {}\n", file.display()));
        format!(
            "[client]\nrucio_host = {host}\nauth_host = {host}\nauth_type = userpass\nusername = {}\n\
             password = {}\naccount = root\n{}request_retries = 3\n",
            self.name,
            self.password,
            trust.unwrap_or_default()
        )
    }
}

/// Whether the catalog lets this user in.
async fn is_known(service: &Service, user: &User) -> Result<bool, Error> {
    let name = user.name.clone();
    let found = service.catalog.read(move |tx| identity::login(tx, &name, Some("root"))).await;
    let found = found.map_err(Error::engine)?;
    let password = user.password.clone();
    let judged = tokio::task::spawn_blocking(move || {
        found.is_some_and(|(hash, _)| identity::is_password(&password, &hash))
    });
    judged.await.map_err(Error::engine)
}

/// Makes a user for the account `root`.
async fn new_user(service: &Service) -> Result<User, Error> {
    let password = auth::new_password(service);
    let hashed = password.clone();
    let hash = tokio::task::spawn_blocking(move || identity::hash_password(&hashed))
        .await
        .map_err(Error::engine)?
        .map_err(Error::engine)?;
    let (now, seed) = (service.around.now(), service.around.seed());
    let made = service.catalog.write(move |tx| -> mainstay_rules::Result<_> {
        let taken = identity::accounts(tx, "root", "USERPASS")?;
        let name =
            if taken.is_empty() { "root".to_owned() } else { format!("root-{:06x}", seed >> 40) };
        let new = Identity { identity: name.clone(), kind: "USERPASS".to_owned(), email: None };
        identity::add(tx, "root", &new, Some(&hash), taken.is_empty(), now)?;
        Ok(name)
    });
    let name = made.await.map_err(Error::engine)?;
    Ok(User { name, password })
}

/// Writes the file for a server that is reached at `url`; only its owner may read it.
pub(super) async fn write(
    service: &Service,
    data_dir: &Path,
    url: &str,
    authority: Option<&Path>,
) -> Result<PathBuf, Error> {
    let path = data_dir.join("rucio.cfg");
    let old = std::fs::read_to_string(&path).ok().as_deref().and_then(User::read);
    let user = match old {
        Some(user) if is_known(service, &user).await? => user,
        _ => new_user(service).await?,
    };
    let failed = || Error::file(format!("cannot write {}", path.display()));
    let fresh = data_dir.join(".rucio.cfg.new");
    // A file that an interrupted start has left may have other permissions.
    let _ = std::fs::remove_file(&fresh);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .map_err(failed())?;
    file.write_all(user.shown(url, authority).as_bytes()).map_err(failed())?;
    file.sync_all().map_err(failed())?;
    std::fs::rename(&fresh, &path).map_err(failed())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_login_is_read_back() {
        let user = User { name: "root-1".to_owned(), password: "a word".to_owned() };
        let text = user.shown("https://127.0.0.1:7443", Some(Path::new("/d/ca.crt")));
        assert!(text.contains("rucio_host = https://127.0.0.1:7443/rucio\n"), "{text}");
        assert!(text.contains("ca_cert = /d/ca.crt\n"), "{text}");
        assert_eq!(User::read(&text), Some(user));
        assert_eq!(User::read("[client]\nusername = a\n"), None);
    }
}
