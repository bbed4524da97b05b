//! Continue tokens: where the next page of a list begins.
//!
//! A token is bound to the list it came from (collection and namespace) and carries a tag made
//! with a secret of the cluster, so that it can be neither forged nor carried to another list.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mainstay_store::object::{Resource, Revision};
use mainstay_store::status::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const TAG: usize = 16;

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The revision all pages show; none if consistency was given up.
    #[serde(rename = "r")]
    revision: Option<u64>,
    /// The path of the last object of the page before.
    #[serde(rename = "a")]
    pub(crate) after: String,
    /// How many objects come after that one, where it is known.
    #[serde(rename = "n")]
    pub(crate) remaining: Option<usize>,
    #[serde(rename = "s")]
    scope: String,
}

impl Cursor {
    pub(crate) fn new(
        revision: Option<Revision>,
        after: &str,
        remaining: Option<usize>,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Self {
        let revision = revision.map(|revision| revision.0);
        Self { revision, after: after.to_owned(), remaining, scope: scope(resource, namespace) }
    }

    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision.map(Revision)
    }
}

fn scope(resource: &Resource, namespace: Option<&str>) -> String {
    format!("{resource}/{}", namespace.unwrap_or(""))
}

/// Signs and checks tokens.
#[derive(Clone, Debug)]
pub(crate) struct Seal {
    secret: [u8; 32],
}

impl Seal {
    /// A seal from something only servers of this cluster know.
    pub(crate) fn new(secret: &str) -> Self {
        let digest = Sha256::new().chain_update("mainstay continue ").chain_update(secret);
        Self { secret: digest.finalize().into() }
    }

    fn tag(&self, payload: &[u8]) -> [u8; 32] {
        let inner = Sha256::new().chain_update(self.secret).chain_update(payload).finalize();
        Sha256::new().chain_update(self.secret).chain_update(inner).finalize().into()
    }

    /// The token for a cursor.
    pub(crate) fn token(&self, cursor: &Cursor) -> String {
        let mut bytes = serde_json::to_vec(cursor).unwrap_or_default();
        let tag = self.tag(&bytes);
        bytes.extend_from_slice(&tag[..TAG]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The cursor of a token.
    ///
    /// # Errors
    /// 400 if the token is not one of ours for this list.
    pub(crate) fn open(
        &self,
        token: &str,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Cursor, Error> {
        let wrong = |why| Error::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong("it is not base64"))?;
        let (payload, tag) = bytes
            .len()
            .checked_sub(TAG)
            .and_then(|end| bytes.split_at_checked(end))
            .ok_or_else(|| wrong("it is too short"))?;
        let expected = self.tag(payload);
        let differs = expected.iter().zip(tag).fold(0, |all, (a, b)| all | (a ^ b));
        if differs != 0 {
            return Err(wrong("it was not made by this server"));
        }
        let cursor: Cursor =
            serde_json::from_slice(payload).map_err(|_| wrong("it was made by another version"))?;
        if cursor.scope != scope(resource, namespace) {
            return Err(wrong("it belongs to another list"));
        }
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_works_for_its_own_list_and_no_other() {
        let (seal, other_seal) = (Seal::new("a"), Seal::new("b"));
        let (maps, nodes) = (Resource::new("", "configmaps"), Resource::new("", "nodes"));
        let cursor = Cursor::new(Some(Revision(7)), "a/b", Some(3), &maps, Some("a"));
        let token = seal.token(&cursor);
        assert_eq!(seal.open(&token, &maps, Some("a")).unwrap(), cursor);
        assert!(seal.open(&token, &maps, Some("b")).is_err());
        assert!(seal.open(&token, &maps, None).is_err());
        assert!(seal.open(&token, &nodes, Some("a")).is_err());
        assert!(other_seal.open(&token, &maps, Some("a")).is_err());
    }

    #[test]
    fn no_change_to_a_token_goes_unseen() {
        let seal = Seal::new("a");
        let maps = Resource::new("", "configmaps");
        let token = seal.token(&Cursor::new(Some(Revision(7)), "a/b", None, &maps, None));
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            let forged = URL_SAFE_NO_PAD.encode(forged);
            assert!(seal.open(&forged, &maps, None).is_err(), "byte {at}");
        }
        for garbage in ["", "x", "!!!", "AAAA", &"A".repeat(1000)] {
            assert!(seal.open(garbage, &maps, None).is_err(), "{garbage:?}");
        }
    }
}
