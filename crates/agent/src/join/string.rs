//! Join strings: `URL[,URL]#FINGERPRINT.TOKEN`, everything a node needs to join.
//!
//! The fingerprint is the SHA-256 of the servers' authority (of the certificate's DER), in
//! hexadecimal. The certificate itself is asked of a server that is not trusted yet, and only
//! believed if it has that fingerprint; the token is sent only after that.

use std::sync::Arc;

use http::Method;
use mainstay_client::tls::{self, Trust};
use mainstay_client::{Access, Address, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{BUNDLE, PATH};

/// Why a join string does not lead anywhere.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is none. Do not retry.
    #[error(
        "not a join string: it must be URL[,URL]#FINGERPRINT.TOKEN, as `mainstay token create --role node --join` prints it"
    )]
    Malformed,
    /// An address in it is none. Do not retry.
    #[error(transparent)]
    Address(#[from] mainstay_client::AddressError),
    /// No server answered. Retry later.
    #[error("no server of the join string answers: {0}")]
    Away(String),
    /// A server shows another authority. Do not retry: the connection may be intercepted.
    #[error(
        "the server at {servers} has no certificate authority with the fingerprint {expected}; the join string is of another cluster, or somebody else answers in the server's place"
    )]
    Authority {
        /// The servers.
        servers: String,
        /// The fingerprint in the join string.
        expected: String,
    },
    /// The token is not taken. Do not retry: a new join string is needed.
    #[error("the server refuses the join token: {0}")]
    Refused(String),
    /// TLS could not be set up.
    #[error("TLS could not be set up: {0}")]
    Tls(String),
}

/// A join string.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinString {
    /// The servers, the preferred one first.
    pub servers: Vec<String>,
    /// The SHA-256 of their authority's certificate, in hexadecimal.
    pub fingerprint: String,
    /// The token to join with.
    pub token: String,
}

impl std::fmt::Debug for JoinString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinString").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl std::fmt::Display for JoinString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}.{}", self.servers.join(","), self.fingerprint, self.token)
    }
}

impl std::str::FromStr for JoinString {
    type Err = Error;

    /// Reads a join string, or the whole command that it came in.
    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let text = text.strip_prefix("mainstay join ").unwrap_or(text).trim();
        let (servers, rest) = text.split_once('#').ok_or(Error::Malformed)?;
        let (fingerprint, token) = rest.split_once('.').ok_or(Error::Malformed)?;
        let hexadecimal = fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit());
        let blank = |text: &str| text.is_empty() || text.contains(char::is_whitespace);
        if fingerprint.len() != 64 || !hexadecimal || blank(token) || blank(servers) {
            return Err(Error::Malformed);
        }
        Ok(Self {
            servers: servers.split(',').map(str::to_owned).collect(),
            fingerprint: fingerprint.to_ascii_lowercase(),
            token: token.to_owned(),
        })
    }
}

/// The response of a server about a join string.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meant {
    /// The node it is for.
    #[serde(default)]
    pub node: Option<String>,
    /// How the names of the nodes begin that it is for.
    #[serde(default)]
    pub node_prefix: Option<String>,
    /// The authority of the servers, as PEM.
    #[serde(skip)]
    pub authority: String,
}

impl JoinString {
    /// Whether one of the certificates in `bundle` (PEM) is the authority that is meant; that one.
    #[must_use]
    pub fn authority_in(&self, bundle: &str) -> Option<CertificateDer<'static>> {
        let all = CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok);
        all.into_iter().find(|certificate| {
            let hash = Sha256::digest(certificate);
            let hash = hex::encode(hash);
            hash == self.fingerprint
        })
    }

    /// Asks the servers for their authority, compares it, and asks what the token is for.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn look_up(&self) -> Result<Meant, Error> {
        let servers: Result<Vec<_>, _> = self.servers.iter().map(|s| Address::parse(s)).collect();
        // Any certificate will do: the answer is compared with the fingerprint.
        let unverified = tls::config(&Trust::Nothing, None);
        let unverified = unverified.map_err(|error| Error::Tls(error.to_string()))?;
        let access = Access { tls: Some(Arc::new(unverified)), token: None };
        let client = Client::new(servers?, access);
        let bundle = client.call(Method::GET, BUNDLE, None).await;
        let bundle = bundle.map_err(|failure| Error::Away(failure.explained()))?;
        let bundle = String::from_utf8_lossy(&bundle.body).into_owned();
        let found = self.authority_in(&bundle).ok_or_else(|| Error::Authority {
            servers: self.servers.join(","),
            expected: self.fingerprint.clone(),
        })?;
        let authority = pem(&found);
        let access = super::token_access(Some(&authority), self.token.clone());
        client.set_access(access.map_err(|error| Error::Tls(error.to_string()))?);
        let answer = client.call(Method::GET, PATH, None).await;
        let answer = answer.map_err(|failure| Error::Away(failure.explained()))?;
        if answer.code != 200 {
            return Err(Error::Refused(super::message(&answer.body)));
        }
        let meant: Meant = serde_json::from_slice(&answer.body).unwrap_or_default();
        Ok(Meant { authority, ..meant })
    }
}

/// A certificate as PEM.
fn pem(certificate: &CertificateDer<'_>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in certificate.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > three.len() { '=' } else { char::from(digit) });
        }
    }
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_strings_are_read_as_they_are_written() {
        let hash = "0f".repeat(32);
        let text = format!("https://a:1,https://b:2#{hash}.mst_x.y");
        let read: JoinString = format!("mainstay join {text}\n").parse().unwrap();
        assert_eq!(read.servers, ["https://a:1", "https://b:2"]);
        assert_eq!((read.fingerprint.as_str(), read.token.as_str()), (hash.as_str(), "mst_x.y"));
        assert_eq!(read.to_string(), text);
        let wrong =
            ["", "x", "https://a#12.t", &format!("#{hash}.t"), &format!("https://a#{hash}.")];
        for wrong in wrong {
            assert!(wrong.parse::<JoinString>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn certificates_are_found_by_their_fingerprint_and_written_as_pem() {
        for length in 0..70_u8 {
            let der = CertificateDer::from((0..length).collect::<Vec<u8>>());
            let hash = hex::encode(Sha256::digest(&der));
            let string =
                JoinString { servers: Vec::new(), fingerprint: hash, token: String::new() };
            let bundle = format!("{}{}", pem(&CertificateDer::from(vec![9, 9])), pem(&der));
            assert_eq!(string.authority_in(&bundle), Some(der), "{length}");
        }
    }
}
