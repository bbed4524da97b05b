//! Files for people: the CA's certificate and a kubeconfig, so that `kubectl` works at once.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The address a client on this machine uses for a server that listens on `listen`.
pub(crate) fn url(listen: SocketAddr, plain: bool) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if plain { "http" } else { "https" };
    format!("{scheme}://{}", SocketAddr::new(ip, listen.port()))
}

/// A kubeconfig for one user of one server.
pub(crate) fn kubeconfig(url: &str, authority: Option<&str>, token: &str) -> String {
    let authority = authority.map_or_else(String::new, |pem| {
        format!("\n    certificate-authority-data: {}", STANDARD.encode(pem))
    });
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: mainstay
  cluster:
    server: {url}{authority}
users:
- name: admin
  user:
    token: {token}
contexts:
- name: mainstay
  context:
    cluster: mainstay
    user: admin
current-context: mainstay
"
    )
}

/// The token in a kubeconfig that [`kubeconfig`] made.
pub(crate) fn token_in(kubeconfig: &str) -> Option<&str> {
    kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "))
}

/// Makes a folder that is ours alone, if it is not there; one that is there is closed to others.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
        let folder = path.display();
        tracing::warn!(%folder, "data folder was open to other users; its mode is 0700 now");
    }
    Ok(())
}

/// Writes a file so that nobody ever sees half of it.
pub(crate) fn write_whole(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let next = Path::new(&next);
    match fs::remove_file(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(next)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(next, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_on_this_machine_gets_an_address_it_can_reach() {
        let cases = [
            ("0.0.0.0:6443", false, "https://127.0.0.1:6443"),
            ("[::]:6443", false, "https://[::1]:6443"),
            ("192.0.2.7:1", false, "https://192.0.2.7:1"),
            ("127.0.0.1:80", true, "http://127.0.0.1:80"),
        ];
        for (listen, plain, expected) in cases {
            assert_eq!(url(listen.parse().unwrap(), plain), expected);
        }
    }

    #[test]
    fn a_kubeconfig_is_yaml_and_gives_its_token_back() {
        let text = kubeconfig("https://127.0.0.1:1", Some("PEM"), "mst_x");
        assert_eq!(token_in(&text), Some("mst_x"));
        let parsed: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed["clusters"][0]["cluster"]["certificate-authority-data"], "UEVN");
        assert_eq!(parsed["users"][0]["user"]["token"], "mst_x");
    }

    #[test]
    fn files_are_whole_and_private_and_may_be_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        for text in ["one", "two"] {
            write_whole(&path, 0o600, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
