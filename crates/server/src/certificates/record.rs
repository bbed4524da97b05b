//! What is recorded of a node, and how it changes. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How many certificates of a node may be good at once; the oldest ones go first.
const MOST: usize = 32;
/// Certificates that no record lists live no longer than this.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// What is recorded of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeRecord {
    /// The zone it joined in, where it has no Node object to say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Only listed certificates are good.
    pub(crate) closed: bool,
    /// When it was revoked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<Timestamp>,
    /// Its certificates, the newest last.
    pub(crate) certificates: Vec<Issued>,
}

/// A certificate that was given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Issued {
    /// Its serial number, in hexadecimal.
    pub(crate) serial: String,
    /// The SHA-256 of the public key, in hexadecimal.
    pub(crate) key: String,
    /// The name of the authority that signed it.
    pub(crate) authority: String,
    /// The identity of the Node object it was given to, if there was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) uid: Option<String>,
    /// When it ends.
    pub(crate) expires: Timestamp,
}

/// Why a node may have a certificate.
#[derive(Clone, Debug)]
pub(crate) enum Grounds {
    /// A join token that was made at this time.
    Token(Timestamp),
    /// The certificate of this serial number, which it renews.
    Certificate(String),
}

/// Why a node may not have a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The token is older than the node's revocation.
    #[error("the node was revoked after this token was made; create another token")]
    OldToken,
    /// The certificate does not count any more.
    #[error("the certificate was revoked; join again with a new token")]
    Revoked,
}

impl NodeRecord {
    /// Whether a certificate of this serial number is good.
    pub(crate) fn takes(&self, serial: &str) -> bool {
        !self.closed || self.certificates.iter().any(|issued| issued.serial == serial)
    }

    /// Whether the node joined, and was not revoked since.
    pub(crate) fn joined(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// The record with one more certificate.
    pub(super) fn with(
        &self,
        grounds: &Grounds,
        issued: &Issued,
        zone: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        match grounds {
            Grounds::Token(made) if self.revoked.is_some_and(|revoked| revoked >= *made) => {
                return Err(Refusal::OldToken);
            }
            Grounds::Certificate(serial) if !self.takes(serial) => return Err(Refusal::Revoked),
            Grounds::Token(_) | Grounds::Certificate(_) => {}
        }
        let mut next = self.clone();
        if matches!(grounds, Grounds::Token(_)) {
            next.zone = zone.map(str::to_owned);
        }
        next.certificates.retain(|known| known.expires > now);
        let excess = (next.certificates.len() + 1).saturating_sub(MOST);
        next.certificates.drain(..excess);
        next.certificates.push(issued.clone());
        Ok(next)
    }

    /// The record without the certificates that are `gone`, or that nobody listed.
    pub(super) fn revoked(&self, gone: impl Fn(&Issued) -> bool, now: Timestamp) -> Self {
        let certificates: Vec<_> =
            self.certificates.iter().filter(|issued| !gone(issued)).cloned().collect();
        // A node that joined anew since keeps what it has, and its tokens.
        let revoked = if certificates.is_empty() { Some(now) } else { self.revoked };
        let zone = self.zone.clone().filter(|_| !certificates.is_empty());
        Self { zone, closed: true, revoked, certificates }
    }

    /// Whether nothing it could refuse is good any more.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let end = self.revoked.and_then(|revoked| revoked.checked_add(LONGEST).ok());
        self.certificates.is_empty() && end.is_some_and(|end| end <= now)
    }
}
