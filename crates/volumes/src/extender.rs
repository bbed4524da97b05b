//! Who is asked about capacity: the ledger of this process, or an extender elsewhere.

mod client;
mod router;

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::resources::Resources;

use crate::ledger::{self, Claim, Target};
use crate::reserve::{self, Reserve};
pub use client::{Client, Error as ClientError};
pub use router::{Ledger, router};

/// How long a broad reservation lives: long enough to choose.
pub const BROAD: Duration = Duration::from_secs(2);
/// How long a narrow reservation lives: long enough to write the replica.
pub const NARROW: Duration = Duration::from_secs(60);

/// Why the extender gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else was faster. Decide again.
    #[error("the space has been taken meanwhile")]
    Full,
    /// The ledger failed.
    #[error(transparent)]
    Ledger(reserve::Error),
    /// The extender elsewhere failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What is asked about a replica.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it claims.
    pub claim: Claim,
    /// Under which id an extender elsewhere keeps it.
    pub reservation_id: String,
}

/// Who is asked about capacity.
#[derive(Clone, Debug)]
pub enum Extender {
    /// The ledger of this process.
    Ledger(Arc<Reserve>),
    /// An extender elsewhere.
    Client(Arc<Client>),
}

impl Extender {
    /// A score for each target, in their order; 0 excludes.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn filter_and_score(
        &self,
        request: &Request,
        targets: &[Target],
    ) -> Result<Vec<i64>, Error> {
        match self {
            Self::Ledger(ledger) => {
                Ok(ledger.filter_and_score(&request.claim, targets, BROAD, false))
            }
            Self::Client(client) => {
                let size = ledger::backing_size(request.claim.size, request.claim.replicated, 1);
                Ok(client.filter_and_score(&request.reservation_id, size, targets, BROAD).await?)
            }
        }
    }

    /// Keeps the reservation on one target.
    ///
    /// # Errors
    /// [`Error::Full`] if somebody else was faster, others if there is no answer.
    pub async fn narrow_reservation(
        &self,
        resources: &Resources,
        request: &Request,
        target: &Target,
    ) -> Result<(), Error> {
        match self {
            Self::Ledger(ledger) => {
                let holder = &request.claim.holder;
                match ledger.narrow(resources, holder, target, NARROW).await {
                    Ok(()) => Ok(()),
                    Err(reserve::Error::Ledger(ledger::Error::Full)) => Err(Error::Full),
                    Err(error) => Err(Error::Ledger(error)),
                }
            }
            Self::Client(client) => {
                Ok(client.narrow_reservation(&request.reservation_id, target, NARROW).await?)
            }
        }
    }

    /// Gives a narrowed reservation back. An extender elsewhere lets it expire.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release(&self, resources: &Resources, request: &Request) -> Result<(), Error> {
        match self {
            Self::Ledger(ledger) => {
                ledger.release(resources, &request.claim.holder).await.map_err(Error::Ledger)
            }
            Self::Client(_) => Ok(()),
        }
    }

    /// How long until a reservation on one of these targets ends, as far as it is known.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target]) -> Option<Duration> {
        match self {
            Self::Ledger(ledger) => ledger.next_expiry(targets),
            Self::Client(_) => None,
        }
    }
}
