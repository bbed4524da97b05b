//! What storage elsewhere wants to see before it answers: keys, passwords and tokens, by RSE.
//!
//! They come from a file of the machine that moves files. They never enter the catalog, no listing
//! shows them, and printing one for people says only what is set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// How one RSE's storage is opened.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Credential {
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
    /// S3: the token of a session, where there is one.
    pub session_token: Option<String>,
    /// S3: the region, `us-east-1` unless said.
    pub region: Option<String>,
    /// A PEM file of authorities to trust besides the machine's.
    pub ca: Option<PathBuf>,
    /// S3: files larger than this are sent in parts. S3 itself takes 5 GiB at once.
    pub single_put_bytes: Option<u64>,
}

/// The keys to all storage, by the name of the RSE.
pub type Credentials = BTreeMap<String, Credential>;

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Credential")
            .field("user", &self.user)
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// What is wrong with it, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            one if one.access_key.is_some() != one.secret_key.is_some() => {
                Some("access-key and secret-key go together")
            }
            one if one.user.is_some() != one.password.is_some() => {
                Some("user and password go together")
            }
            one if one.user.is_some() && one.token.is_some() => {
                Some("it is a user and password, or a token, not both")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_printed_and_halves_are_refused() {
        let text = |text: &str| Some(text.to_owned());
        let whole = Credential {
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
}
