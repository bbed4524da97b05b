//! The scheduler extender, which knows free space: the ledger of this process, or an external one.

mod client;
mod router;

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::{Claim, Target};
use crate::reserve::{self, ReservationStore};
pub use client::{Client, Error as ClientError};
pub use router::{LedgerService, ReservationList, router};

/// The lifetime of a broad reservation: the time to choose a place.
pub const BROAD: Duration = Duration::from_secs(2);
/// The lifetime of a narrow reservation: the time to write the replica.
pub const NARROW: Duration = Duration::from_secs(60);

/// Why the extender could not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger failed.
    #[error(transparent)]
    Ledger(reserve::Error),
    /// The external extender failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A request about a replica.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its claim.
    pub claim: Claim,
    /// The id of the reservation at an external extender.
    pub reservation_id: String,
}

/// The source of free space.
#[derive(Clone, Debug)]
pub enum Extender {
    /// The ledger of this process.
    Ledger(Arc<ReservationStore>),
    /// An external extender.
    Client(Arc<Client>),
}

impl Extender {
    /// The time until a reservation on one of these targets expires, if it is known.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target]) -> Option<Duration> {
        match self {
            Self::Ledger(ledger) => ledger.next_expiry(targets),
            Self::Client(_) => None,
        }
    }
}
