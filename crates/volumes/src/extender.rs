//! Who is asked about capacity: the ledger of this process, or an extender elsewhere.

mod client;
mod router;

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::{Claim, Target};
use crate::reserve::{self, Reserve};
pub use client::{Client, Error as ClientError};
pub use router::{Ledger, Reservations, router};

/// How long a broad reservation lives: long enough to choose.
pub const BROAD: Duration = Duration::from_secs(2);
/// How long a narrow reservation lives: long enough to write the replica.
pub const NARROW: Duration = Duration::from_secs(60);

/// Why the extender gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    /// How long until a reservation on one of these targets ends, as far as it is known.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target]) -> Option<Duration> {
        match self {
            Self::Ledger(ledger) => ledger.next_expiry(targets),
            Self::Client(_) => None,
        }
    }
}
