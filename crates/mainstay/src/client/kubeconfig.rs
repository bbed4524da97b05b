//! Reads the address of the server and the credentials from kubeconfig files.
//!
//! Files are merged as kubectl merges them: the first to name a thing wins. Paths inside a file
//! are relative to that file. [`Kubeconfig::target`] turns a context into a [`Target`] with all files
//! read; this module opens no connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
pub(crate) use mainstay_client::tls::Trust;
use mainstay_client::tls::{self, Identity};
use mainstay_client::{Access, Address, Dialer};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;

/// Why a kubeconfig cannot be used. Do not retry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a kubeconfig", path.display())]
    Parse { path: PathBuf, source: Box<serde_saphyr::Error> },
    #[error("the kubeconfig has no {what} named {name:?}; it has: {known}")]
    Unknown { what: &'static str, name: String, known: String },
    #[error("the kubeconfig has no current context; choose one with --context: {known}")]
    NoContext { known: String },
    #[error(transparent)]
    Address(#[from] mainstay_client::AddressError),
    #[error("{field} in the kubeconfig is not base64")]
    Base64 { field: &'static str },
    #[error("{field} in the kubeconfig holds no usable PEM")]
    Pem { field: &'static str, source: rustls_pki_types::pem::Error },
    #[error("{field} in the kubeconfig holds no certificate")]
    Empty { field: &'static str },
    #[error("user {user:?} has a client certificate but no key, or a key but no certificate")]
    HalfIdentity { user: String },
    #[error(
        "user {user:?} logs in with {method}, which mainstay does not support; \
         use a token or a client certificate"
    )]
    Login { user: String, method: &'static str },
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    contexts: Option<Vec<NamedContext>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<serde_json::Value>,
    auth_provider: Option<serde_json::Value>,
    username: Option<String>,
}

/// An entry of a file, and the folder its relative paths start from.
#[derive(Debug, Clone)]
struct Located<T> {
    folder: PathBuf,
    value: T,
}

/// One or several kubeconfig files, merged.
#[derive(Debug, Default)]
pub(crate) struct Kubeconfig {
    current_context: Option<String>,
    clusters: Vec<(String, Located<Cluster>)>,
    contexts: Vec<(String, Context)>,
    users: Vec<(String, Located<User>)>,
}

/// One server, with the credentials of one user.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) server: Address,
    pub(crate) trust: Trust,
    pub(crate) identity: Option<Identity>,
    pub(crate) token: Option<String>,
    pub(crate) namespace: Option<String>,
}

/// Flags that take precedence over the files.
#[derive(Debug, Default, Clone)]
pub(crate) struct Overrides {
    pub(crate) context: Option<String>,
    pub(crate) server: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) insecure: bool,
}

impl Kubeconfig {
    /// Reads and merges `paths`. A missing file is an error only when it is the only one.
    pub(crate) fn load(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut merged = Self::default();
        for path in paths {
            match fs::read_to_string(path) {
                Ok(text) => merged.merge(path, &text)?,
                Err(source) if source.kind() == std::io::ErrorKind::NotFound && paths.len() > 1 => {
                }
                Err(source) => {
                    let path = path.clone();
                    return Err(Error::Read { path, source });
                }
            }
        }
        Ok(merged)
    }

    fn merge(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let file: File = serde_saphyr::from_str(text)
            .map_err(|source| Error::Parse { path: path.to_owned(), source: Box::new(source) })?;
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        if self.current_context.is_none() {
            self.current_context = file.current_context.filter(|name| !name.is_empty());
        }
        for NamedCluster { name, cluster } in file.clusters.unwrap_or_default() {
            let value = cluster;
            let folder = folder.clone();
            add(&mut self.clusters, name, Located { folder, value });
        }
        for NamedContext { name, context } in file.contexts.unwrap_or_default() {
            add(&mut self.contexts, name, context);
        }
        for NamedUser { name, user } in file.users.unwrap_or_default() {
            let value = user.unwrap_or_default();
            let folder = folder.clone();
            add(&mut self.users, name, Located { folder, value });
        }
        Ok(())
    }

    /// The server and the user of the chosen (or current) context.
    pub(crate) fn target(&self, overrides: &Overrides) -> Result<Target, Error> {
        let context = self.context(overrides.context.as_deref())?;
        let cluster = find("cluster", &self.clusters, &context.cluster)?;
        let server = overrides.server.clone().unwrap_or_else(|| cluster.value.server.clone());
        let user = match &overrides.token {
            Some(_) => None,
            None if context.user.is_empty() => None,
            None => Some(find("user", &self.users, &context.user)?),
        };
        let (identity, token) = match user {
            Some(user) => (identity(&context.user, user)?, token(&context.user, user)?),
            None => (None, overrides.token.clone()),
        };
        Ok(Target {
            server: address(&server)?.expecting(cluster.value.tls_server_name.clone()),
            trust: trust(cluster, overrides.insecure)?,
            identity,
            token,
            namespace: context.namespace.clone().filter(|name| !name.is_empty()),
        })
    }

    fn context(&self, chosen: Option<&str>) -> Result<&Context, Error> {
        match chosen.or(self.current_context.as_deref()) {
            Some(name) => find("context", &self.contexts, name),
            None => Err(Error::NoContext { known: names(&self.contexts) }),
        }
    }
}

impl Target {
    /// A server without any kubeconfig: only `--server` and perhaps `--token` are given.
    pub(crate) fn bare(overrides: &Overrides, server: &str) -> Result<Self, Error> {
        Ok(Self {
            server: address(server)?,
            trust: if overrides.insecure { Trust::Nothing } else { Trust::System },
            identity: None,
            token: overrides.token.clone(),
            namespace: None,
        })
    }

    /// The credentials, ready for use.
    pub(crate) fn access(&self) -> Result<Access, mainstay_client::Error> {
        let secure = self.server.is_secure();
        let config = secure.then(|| tls::config(&self.trust, self.identity.as_ref()));
        let tls = config.transpose()?.map(Arc::new);
        Ok(Access { tls, token: self.token.clone() })
    }

    /// Opens connections to the server, for benchmarks that speak HTTP themselves.
    pub(crate) fn dialer(&self) -> Result<Dialer, mainstay_client::Error> {
        Ok(Dialer::new(self.server.clone(), self.access()?.tls, super::CONNECT_TIMEOUT))
    }
}

fn add<T>(list: &mut Vec<(String, T)>, name: String, value: T) {
    if !list.iter().any(|(known, _)| *known == name) {
        list.push((name, value));
    }
}

fn names<T>(list: &[(String, T)]) -> String {
    let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn find<'a, T>(what: &'static str, list: &'a [(String, T)], name: &str) -> Result<&'a T, Error> {
    list.iter()
        .find_map(|(known, value)| (known == name).then_some(value))
        .ok_or_else(|| Error::Unknown { what, name: name.to_owned(), known: names(list) })
}

fn address(server: &str) -> Result<Address, Error> {
    Ok(Address::parse(server)?)
}

fn trust(cluster: &Located<Cluster>, insecure: bool) -> Result<Trust, Error> {
    let Located { folder, value } = cluster;
    if insecure || value.insecure_skip_tls_verify {
        return Ok(Trust::Nothing);
    }
    let pem = material(
        "certificate-authority-data",
        value.certificate_authority_data.as_deref(),
        value.certificate_authority.as_deref(),
        folder,
    )?;
    Ok(match pem {
        Some(pem) => Trust::Authorities(certificates("certificate-authority", &pem)?),
        None => Trust::System,
    })
}

fn identity(name: &str, user: &Located<User>) -> Result<Option<Identity>, Error> {
    let Located { folder, value } = user;
    let certificate = material(
        "client-certificate-data",
        value.client_certificate_data.as_deref(),
        value.client_certificate.as_deref(),
        folder,
    )?;
    let key = material(
        "client-key-data",
        value.client_key_data.as_deref(),
        value.client_key.as_deref(),
        folder,
    )?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Identity {
            certificates: certificates("client-certificate", &certificate)?,
            key: PrivateKeyDer::from_pem_slice(&key)
                .map_err(|source| Error::Pem { field: "client-key", source })?,
        })),
        (None, None) => Ok(None),
        _ => Err(Error::HalfIdentity { user: name.to_owned() }),
    }
}

fn token(name: &str, user: &Located<User>) -> Result<Option<String>, Error> {
    let Located { folder, value } = user;
    let token = match (&value.token, &value.token_file) {
        (Some(token), _) if !token.is_empty() => Some(token.clone()),
        (_, Some(path)) => {
            let path = folder.join(path);
            let text = fs::read_to_string(&path).map_err(|source| Error::Read { path, source })?;
            Some(text.trim().to_owned())
        }
        _ => None,
    };
    let certified = value.client_certificate.is_some() || value.client_certificate_data.is_some();
    if token.is_some() || certified {
        return Ok(token);
    }
    let refuse = |method| Err(Error::Login { user: name.to_owned(), method });
    match value {
        User { exec: Some(_), .. } => refuse("a command (exec)"),
        User { auth_provider: Some(_), .. } => refuse("an auth-provider"),
        User { username: Some(_), .. } => refuse("a user name and password"),
        _ => Ok(None),
    }
}

fn material(
    field: &'static str,
    data: Option<&str>,
    path: Option<&Path>,
    folder: &Path,
) -> Result<Option<Vec<u8>>, Error> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let bytes = STANDARD.decode(data.trim()).map_err(|_| Error::Base64 { field })?;
        return Ok(Some(bytes));
    }
    match path.filter(|path| !path.as_os_str().is_empty()) {
        None => Ok(None),
        Some(path) => {
            let path = folder.join(path);
            let bytes = fs::read(&path).map_err(|source| Error::Read { path, source })?;
            Ok(Some(bytes))
        }
    }
}

fn certificates(field: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let list = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| Error::Pem { field, source })?;
    if list.is_empty() { Err(Error::Empty { field }) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r"
apiVersion: v1
kind: Config
current-context: here
clusters:
- {name: near, cluster: {server: 'https://127.0.0.1:7443/'}}
- {name: far, cluster: {server: 'https://example.org', insecure-skip-tls-verify: true}}
contexts:
- {name: here, context: {cluster: near, user: me, namespace: work}}
- {name: there, context: {cluster: far, user: cloud}}
users:
- {name: me, user: {token: secret}}
- {name: cloud, user: {exec: {command: login}}}
";

    fn merged(texts: &[&str]) -> Kubeconfig {
        let mut config = Kubeconfig::default();
        for text in texts {
            config.merge(Path::new("/etc/mainstay/kubeconfig"), text).unwrap();
        }
        config
    }

    #[test]
    fn the_current_context_names_server_user_and_namespace() {
        let target = merged(&[ONE]).target(&Overrides::default()).unwrap();
        assert_eq!(target.server.url(), "https://127.0.0.1:7443");
        assert_eq!(target.token.as_deref(), Some("secret"));
        assert_eq!(target.namespace.as_deref(), Some("work"));
        assert!(matches!(target.trust, Trust::System));
    }

    #[test]
    fn the_first_file_to_name_a_thing_wins() {
        let second = ONE.replace("secret", "other").replace("current-context: here", "");
        let target = merged(&[ONE, &second]).target(&Overrides::default()).unwrap();
        assert_eq!(target.token.as_deref(), Some("secret"));
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let overrides = Overrides {
            context: Some("there".to_owned()),
            server: Some("https://localhost:1".to_owned()),
            token: Some("given".to_owned()),
            insecure: false,
        };
        let target = merged(&[ONE]).target(&overrides).unwrap();
        assert_eq!(target.server.url(), "https://localhost:1");
        assert_eq!(target.token.as_deref(), Some("given"));
        assert!(matches!(target.trust, Trust::Nothing));
    }

    #[test]
    fn errors_name_the_entry_that_cannot_be_used() {
        let cases = [
            (Some("nowhere"), None, "no context named \"nowhere\"; it has: here, there"),
            (Some("there"), None, "a command (exec)"),
            (None, Some("nonsense"), "is not the address of a server"),
        ];
        for (context, server, expected) in cases {
            let overrides = Overrides {
                context: context.map(str::to_owned),
                server: server.map(str::to_owned),
                ..Overrides::default()
            };
            let error = merged(&[ONE]).target(&overrides).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
