//! Credentials of storage services: keys, passwords and tokens, by RSE.
//!
//! They come from a file on the machine that copies files. They are never stored in the catalog, no
//! listing shows them, and `Debug` prints no secret.
//!
//! A credential is bound to one server: scheme, host and port. Accounts of the catalog can point an
//! RSE at a server of their own, which must not receive the secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Url;
use serde::Deserialize;

/// The credential of one RSE's storage.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Credential {
    /// The only server that is sent a secret of this credential: `SCHEME://HOST[:PORT]`, with the
    /// scheme of the RSE's protocol.
    pub endpoint: Option<String>,
    /// Whether secrets are sent without encryption, to an endpoint of `dav`, `http` or `s3+http`.
    pub insecure: bool,
    /// WebDAV: the user.
    pub user: Option<String>,
    /// WebDAV: the user's password.
    pub password: Option<String>,
    /// WebDAV: a bearer token instead.
    pub token: Option<String>,
    /// S3: the access key.
    pub access_key: Option<String>,
    /// S3: the secret key.
    pub secret_key: Option<String>,
    /// S3: the session token, if there is one.
    pub session_token: Option<String>,
    /// S3: the region, by default `us-east-1`.
    pub region: Option<String>,
    /// A PEM file of authorities to trust besides the machine's.
    pub ca: Option<PathBuf>,
    /// S3: files larger than this are sent in parts. The limit of S3 itself is 5 GiB.
    pub single_put_bytes: Option<u64>,
}

/// The credentials of all storage, by the name of the RSE.
pub type Credentials = BTreeMap<String, Credential>;

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Credential")
            .field("endpoint", &self.endpoint)
            .field("insecure", &self.insecure)
            .field("user", &self.user)
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

/// Whether a protocol's scheme stands for HTTPS, for HTTP, or for neither.
pub(super) fn is_encrypted(scheme: &str) -> Option<bool> {
    match scheme {
        "s3" | "s3+https" | "davs" | "https" => Some(true),
        "s3+http" | "dav" | "http" => Some(false),
        _ => None,
    }
}

/// The server that an endpoint of the file of credentials names.
fn server(endpoint: &str) -> Option<Url> {
    let (scheme, rest) = endpoint.split_once("://")?;
    let scheme = if is_encrypted(scheme)? { "https" } else { "http" };
    let url = Url::parse(&format!("{scheme}://{rest}")).ok()?;
    let only_host = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let no_user = url.username().is_empty() && url.password().is_none();
    (only_host && no_user && url.has_host()).then_some(url)
}

impl Credential {
    /// Whether it holds a secret.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.password.is_some() || self.token.is_some() || self.secret_key.is_some()
    }

    /// Whether its secrets may be sent to the server at `url`: only to its own endpoint, and only
    /// encrypted unless `insecure` is set.
    #[must_use]
    pub fn is_for(&self, url: &Url) -> bool {
        let bound = self.endpoint.as_deref().and_then(server);
        let encrypted = url.scheme() == "https" || self.insecure;
        !self.has_secret() || encrypted && bound.is_some_and(|own| own.origin() == url.origin())
    }

    /// The first error in the credential, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let fault = match self {
            one if one.access_key.is_some() != one.secret_key.is_some() => {
                "access-key and secret-key go together"
            }
            one if one.user.is_some() != one.password.is_some() => "user and password go together",
            one if one.user.is_some() && one.token.is_some() => {
                "user and token exclude each other: set user and password, or token"
            }
            one if one.has_secret() => return one.fault_of_endpoint(),
            _ => return None,
        };
        Some(fault.to_owned())
    }

    fn fault_of_endpoint(&self) -> Option<String> {
        let Some(endpoint) = &self.endpoint else {
            let add = "endpoint is missing: add the only server that may receive this secret, as \
                       the RSE's protocol names it, such as endpoint = \"davs://HOST:PORT\" or \
                       endpoint = \"s3://HOST\"";
            return Some(add.to_owned());
        };
        match server(endpoint) {
            None => Some(format!(
                "endpoint {endpoint:?}: expected SCHEME://HOST[:PORT] with the scheme davs, https, \
                 s3, dav, http or s3+http"
            )),
            Some(url) if url.scheme() == "http" && !self.insecure => Some(format!(
                "endpoint {endpoint:?} is not encrypted: use davs, https or s3, or add insecure = \
                 true to send this secret in the clear"
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_secrets_and_incomplete_credentials_are_refused() {
        let text = |text: &str| Some(text.to_owned());
        let whole = Credential {
            endpoint: text("davs://host"),
            user: text("me"),
            password: text("hush"),
            access_key: text("key"),
            secret_key: text("hush"),
            token: None,
            session_token: text("hush"),
            ..Credential::default()
        };
        assert!(!format!("{whole:?}").contains("hush"));
        assert_eq!(whole.fault(), None);
        assert!(Credential { secret_key: None, ..whole.clone() }.fault().is_some());
        assert!(Credential { password: None, ..whole.clone() }.fault().is_some());
        assert!(Credential { token: text("hush"), ..whole }.fault().is_some());
    }

    #[test]
    fn secrets_are_sent_to_one_server_only_and_unencrypted_only_if_insecure_is_set() {
        let of = |endpoint: Option<&str>, insecure| Credential {
            endpoint: endpoint.map(str::to_owned),
            insecure,
            token: Some("hush".to_owned()),
            ..Credential::default()
        };
        let url = |text: &str| Url::parse(text).unwrap();
        for (endpoint, insecure, fault) in [
            (Some("davs://site.org:2880"), false, None),
            (Some("s3://site.org"), false, None),
            (Some("https://[::1]:7"), false, None),
            (Some("dav://site.org"), true, None),
            (Some("dav://site.org"), false, Some("insecure = true")),
            (Some("s3+http://site.org"), false, Some("insecure = true")),
            (Some("site.org"), false, Some("expected SCHEME://")),
            (Some("ftp://site.org"), false, Some("expected SCHEME://")),
            (Some("davs://site.org/path"), false, Some("expected SCHEME://")),
            (Some("davs://me@site.org"), false, Some("expected SCHEME://")),
            (Some("davs://"), false, Some("expected SCHEME://")),
            (None, false, Some("endpoint = ")),
            (None, true, Some("endpoint = ")),
        ] {
            let found = of(endpoint, insecure).fault();
            let right = match (&found, fault) {
                (Some(found), Some(fault)) => found.contains(fault) && !found.contains("hush"),
                (found, fault) => found.is_none() && fault.is_none(),
            };
            assert!(right, "{endpoint:?}: {found:?}");
        }
        let own = of(Some("davs://Site.org:443"), true);
        assert!(own.is_for(&url("https://site.org/a/b")));
        for other in ["https://site.org:444", "http://site.org:443", "https://evil.org"] {
            assert!(!own.is_for(&url(other)), "{other}");
        }
        let plain = of(Some("dav://site.org"), true);
        assert!(plain.is_for(&url("http://site.org:80")));
        assert!(!plain.is_for(&url("https://site.org:80")));
        assert!(!of(Some("dav://site.org"), false).is_for(&url("http://site.org")));
        assert!(!of(None, true).is_for(&url("https://site.org")));
        let open = Credential { region: Some("eu".to_owned()), ..Credential::default() };
        assert!(open.is_for(&url("http://anywhere")) && open.fault().is_none());
    }
}
