//! Tests of TLS to a real PostgreSQL: `sslmode` decides how its certificate is verified.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use mainstay_catalog::Catalog;
use mainstay_catalog::private_postgres::PrivatePostgres;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::world::postgres;

/// An authority and its certificate for `localhost`.
pub(crate) struct Certified {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn certified() -> Certified {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap();
    Certified { authority: certificate.pem(), certificate: own.pem(), key: key.serialize_pem() }
}

#[test]
fn sslmode_decides_how_the_certificate_is_verified() {
    let Some(other) = postgres() else { return };
    // The database's own user must own the key.
    let owner = std::fs::metadata(other.folder()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        path.display().to_string()
    };
    let (ours, theirs) = (certified(), certified());
    let authority = file("ca.pem", &ours.authority, 0o644);
    let stranger = file("stranger.pem", &theirs.authority, 0o644);
    let certificate = file("server.pem", &ours.certificate, 0o644);
    let key = file("server.key", &ours.key, 0o600);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let server = PrivatePostgres::start(&[
        "fsync=off",
        "listen_addresses=127.0.0.1",
        &format!("port={port}"),
        "ssl=on",
        &format!("ssl_cert_file={certificate}"),
        &format!("ssl_key_file={key}"),
    ]);
    let server = server.unwrap();
    for (host, mode, authorities, outcome) in [
        ("localhost", "disable", None, Ok(0)),
        ("localhost", "prefer", None, Ok(1)),
        ("127.0.0.1", "require", None, Ok(1)),
        ("localhost", "verify-full", Some(&authority), Ok(1)),
        ("127.0.0.1", "verify-ca", Some(&authority), Ok(1)),
        ("127.0.0.1", "require", Some(&authority), Ok(1)),
        ("127.0.0.1", "verify-full", Some(&authority), Err("not valid for name")),
        ("localhost", "verify-full", Some(&stranger), Err("invalid peer certificate")),
        ("localhost", "verify-ca", Some(&stranger), Err("invalid peer certificate")),
        ("localhost", "require", Some(&stranger), Err("invalid peer certificate")),
    ] {
        let authorities =
            authorities.map(|file| format!("&sslrootcert={file}")).unwrap_or_default();
        let address =
            format!("postgres://mainstay@{host}:{port}/postgres?sslmode={mode}{authorities}");
        let sql =
            "SELECT CASE WHEN ssl THEN 1 ELSE 0 END FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let found = Catalog::open_blocking(&address)
            .and_then(|catalog| catalog.read_blocking(|tx| tx.number(sql, &[])));
        match (found, outcome) {
            (Ok(encrypted), Ok(wanted)) => assert_eq!(encrypted, wanted, "{host} {mode}"),
            (Err(error), Err(why)) => {
                assert!(error.to_string().contains(why), "{host} {mode}: {error}");
            }
            (found, _) => panic!("{host} {mode}: {found:?}"),
        }
    }
    drop(server);
}
