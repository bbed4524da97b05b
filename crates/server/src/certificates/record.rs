//! The record of a node's certificates, and how it changes. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How many certificates of a node may be good at once; the oldest ones go first.
const MOST: usize = 32;
/// How many deleted Node objects of the same name are remembered.
const MOST_DELETED: usize = 8;
/// Certificates that no record lists live no longer than this.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The record of a node.
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
    /// The identities of the last Node objects whose deletion revoked it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) deleted: Vec<String>,
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

    /// Whether a token that was made at this time lets the node in: only one that is younger than
    /// the last revocation.
    pub(crate) fn takes_token(&self, made: Timestamp) -> Result<(), Refusal> {
        match self.revoked {
            Some(revoked) if revoked >= made => Err(Refusal::OldToken),
            _ => Ok(()),
        }
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
            Grounds::Token(made) => self.takes_token(*made)?,
            Grounds::Certificate(serial) if !self.takes(serial) => return Err(Refusal::Revoked),
            Grounds::Certificate(_) => {}
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

    /// The record without any certificate; tokens made until now do not count either. `uid` is
    /// that of the Node object whose deletion is the reason, if it is.
    pub(super) fn revoked(&self, uid: Option<&str>, now: Timestamp) -> Self {
        let next = match uid {
            Some(uid) => self.remembering(uid),
            None => self.clone(),
        };
        // Clocks of several servers differ: a later revocation never lets older tokens in again.
        let revoked = Some(self.revoked.map_or(now, |before| before.max(now)));
        Self { zone: None, closed: true, revoked, certificates: Vec::new(), ..next }
    }

    /// The record after a Node object is gone; `None` if that changes nothing. A deletion that is
    /// on record takes only what was given to that object: the node may have joined anew since.
    /// Any other deletion takes everything, for what was given since may rest on an old token.
    pub(super) fn without_node(&self, uid: &str, now: Timestamp) -> Option<Self> {
        if !self.deleted.iter().any(|known| known == uid) {
            return Some(self.revoked(Some(uid), now));
        }
        let given = |issued: &Issued| issued.uid.as_deref() == Some(uid);
        self.certificates.iter().any(given).then(|| {
            let mut next = self.clone();
            next.certificates.retain(|issued| !given(issued));
            next
        })
    }

    /// The record with a Node object whose deletion needs nothing more.
    pub(super) fn remembering(&self, uid: &str) -> Self {
        let mut next = self.clone();
        next.deleted.retain(|known| known != uid);
        next.deleted.push(uid.to_owned());
        let excess = next.deleted.len().saturating_sub(MOST_DELETED);
        next.deleted.drain(..excess);
        next
    }

    /// Whether nothing it could refuse is good any more.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let end = self.revoked.and_then(|revoked| revoked.checked_add(LONGEST).ok());
        self.certificates.is_empty() && end.is_some_and(|end| end <= now)
    }
}
