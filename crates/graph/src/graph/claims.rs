//! Bases from which a key follows that belongs to another value.
//!
//! A key has one owner: a value of its own, or the base that derived it first. Other bases from which
//! it follows are remembered; when the owner goes, the value is created for one of them. A remembered
//! base may have changed since, so it is asked again before anything is created.

use super::Graph;
use crate::key::{Key, KeyId};

impl Graph {
    /// Remembers that a key follows from a base that does not own it.
    pub(crate) fn claim(&mut self, key: &Key, base: &Key) {
        self.claims.entry(key.clone()).or_default().insert(base.clone());
    }

    /// The existing bases from which a key may follow besides its owner.
    pub(crate) fn claimants(&self, id: KeyId) -> Vec<KeyId> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        let bases = self.claims.get(self.key(id)).into_iter().flatten();
        bases.filter_map(|base| self.id(base)).filter(|base| self.is_available(*base)).collect()
    }

    /// Forgets bases that are gone.
    pub(super) fn forget_claims(&mut self) {
        let mut claims = std::mem::take(&mut self.claims);
        claims.retain(|_, bases| {
            bases.retain(|base| self.find(base).is_some());
            !bases.is_empty()
        });
        self.claims = claims;
    }
}
