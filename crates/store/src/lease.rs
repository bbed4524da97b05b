//! Leases: one holder at a time, and a token by which writes of a former holder are refused.
//!
//! A lease is two internal objects. The *lease* says who holds it and until when; it is renewed
//! often. The *fence* is touched only when the lease changes hands, and its revision is the
//! holder's token: it only grows, and a write made under [`Fence`] is refused by the store once the
//! fence has moved. So a holder that was paused past its time can no longer write, even if it still
//! believes to hold the lease.
//!
//! Taking over moves the lease first and the fence second, each by compare-and-swap from what was
//! read before. A contender that stalls between the two finds the fence moved by the contender that
//! took over in the meantime, and gives up.
//!
//! A holder's name belongs to one process at a time: a contender that finds its own name there is
//! the same holder after a restart, and takes over at once.
//!
//! Contenders judge expiry by how long *they* have seen the lease unchanged, by their own steady
//! clock: the clocks of two machines need not agree.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::object::{Body, Key, Record, Resource, Revision};
use crate::objects::{Change, Error, Fence, Objects, Scope, Write};

const GROUP: &str = "internal.mainstay.dev";

/// A contender's view of a lease that another holder has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    revision: Revision,
    since: Duration,
    ttl: Duration,
}

/// The stored half that is renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Tenure {
    holder: String,
    ttl_ms: u64,
    /// The address of the holder, for servers that forward to it.
    address: String,
    released: bool,
}

/// A lease as one contender sees it. Keep it for as long as you contend.
#[derive(Debug)]
pub struct Lease {
    objects: Arc<dyn Objects>,
    lease: Key,
    fence: Key,
    tenure: Tenure,
    held: Option<Held>,
    sighting: Option<Sighting>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    lease: Revision,
    fence: Fence,
}

/// How an attempt to hold a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Held now; writes may be made under this fence until the time to live has passed since the
    /// attempt *began*.
    Held(Fence),
    /// Another holder has it; try again after this long, or when it changes.
    Other {
        /// Its holder.
        holder: String,
        /// Where the holder said it can be reached.
        address: String,
        /// How long until it would be up for taking, if it is not renewed.
        retry_in: Duration,
    },
}

impl Lease {
    /// A contender for `name`. It does not write before [`Lease::claim`].
    #[must_use]
    pub fn new(
        objects: Arc<dyn Objects>,
        name: &str,
        holder: &str,
        address: &str,
        ttl: Duration,
    ) -> Self {
        let (lease, fence) = keys(name);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let (holder, address) = (holder.to_owned(), address.to_owned());
        let tenure = Tenure { holder, ttl_ms, address, released: false };
        Self { objects, lease, fence, tenure, held: None, sighting: None }
    }

    /// Takes the lease if it is free, renews it if it is ours. `elapsed` reads the caller's
    /// monotonic clock: an answer counts as seen when it arrived, not when it was requested, since
    /// the lease may have been renewed in between. Calling it again while holding renews.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Fenced`] cannot occur. After an error the lease may or
    /// may not have been renewed: count the tenure from the last success.
    pub async fn claim(
        &mut self,
        elapsed: impl Fn() -> Duration + Send + Sync,
    ) -> Result<Claim, Error> {
        match self.try_claim(&elapsed).await {
            Err(Error::Conflict { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {
                self.held = None;
                self.look(&elapsed).await
            }
            outcome => outcome,
        }
    }

    /// Gives the lease up, so that another need not wait. Does nothing when it is not held.
    ///
    /// # Errors
    /// Errors of the store, except that another holder took it already.
    pub async fn release(&mut self) -> Result<(), Error> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let released = Tenure { released: true, ..self.tenure.clone() };
        match self.put(&self.lease, Some(held.lease), &encode(&released)).await {
            Ok(_) | Err(Error::Conflict { .. } | Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn try_claim(
        &mut self,
        elapsed: &(impl Fn() -> Duration + Sync),
    ) -> Result<Claim, Error> {
        if let Some(held) = &self.held {
            let lease = self.put(&self.lease, Some(held.lease), &encode(&self.tenure)).await?;
            let fence = held.fence.clone();
            self.held = Some(Held { lease: lease.revision(), fence: fence.clone() });
            return Ok(Claim::Held(fence));
        }
        let current = self.objects.get(&self.lease).await?;
        if let Some(record) = &current
            && let Some(other) = self.occupied(record, elapsed())
        {
            return Ok(other);
        }
        let fence = self.objects.get(&self.fence).await?.map(|record| record.revision());
        let before = current.map(|record| record.revision());
        let lease = self.put(&self.lease, before, &encode(&self.tenure)).await?;
        let token = self.put(&self.fence, fence, &encode(&self.tenure)).await?;
        let fence = Fence { key: self.fence.clone(), token: token.revision() };
        self.held = Some(Held { lease: lease.revision(), fence: fence.clone() });
        self.sighting = None;
        Ok(Claim::Held(fence))
    }

    /// Another contender was faster; returns who, as far as it can be seen.
    async fn look(&mut self, elapsed: &(impl Fn() -> Duration + Sync)) -> Result<Claim, Error> {
        let record = self.objects.get(&self.lease).await?;
        let seen = record.and_then(|record| self.occupied(&record, elapsed()));
        Ok(seen.unwrap_or(Claim::Other {
            holder: String::new(),
            address: String::new(),
            retry_in: Duration::ZERO,
        }))
    }

    /// The holder in the way, if there is one.
    fn occupied(&mut self, record: &Record, elapsed: Duration) -> Option<Claim> {
        let tenure: Tenure = decode(record)?;
        if tenure.released || tenure.holder == self.tenure.holder {
            return None;
        }
        let ttl = Duration::from_millis(tenure.ttl_ms);
        let sighting = match self.sighting.take() {
            Some(seen) if seen.revision == record.revision() => seen,
            _ => Sighting { revision: record.revision(), since: elapsed, ttl },
        };
        let gone = elapsed.saturating_sub(sighting.since);
        let retry_in = sighting.ttl.saturating_sub(gone);
        self.sighting = Some(sighting);
        let Tenure { holder, address, .. } = tenure;
        (!retry_in.is_zero()).then_some(Claim::Other { holder, address, retry_in })
    }

    async fn put(
        &self,
        key: &Key,
        before: Option<Revision>,
        object: &Map<String, Value>,
    ) -> Result<Arc<Record>, Error> {
        let body = Body::new(object);
        let change = match before {
            Some(revision) => Change::Update(revision, body),
            None => Change::Create(body),
        };
        let event = self.objects.write(Write { key: key.clone(), change, fence: None }).await?;
        Ok(event.record.clone())
    }
}

/// Where the present holder of a lease can be reached, if there is one.
///
/// # Errors
/// Errors of the store.
pub async fn holder(objects: &dyn Objects, name: &str) -> Result<Option<(String, String)>, Error> {
    let record = objects.get(&keys(name).0).await?;
    let tenure = record.and_then(|record| decode(&record)).filter(|tenure| !tenure.released);
    Ok(tenure.map(|tenure| (tenure.holder, tenure.address)))
}

/// The scope to watch for a lease being taken, renewed or given up.
#[must_use]
pub fn scope(name: &str) -> Scope {
    let key = keys(name).0;
    Scope { name: Some(key.name().to_owned()), ..Scope::all(key.resource()) }
}

fn keys(name: &str) -> (Key, Key) {
    let key = |plural| Key::new(&Resource::new(GROUP, plural), None, name);
    (key("leases"), key("fences"))
}

fn encode(tenure: &Tenure) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("tenure".into(), json!(tenure));
    object
}

fn decode(record: &Record) -> Option<Tenure> {
    serde_json::from_value(record.object().remove("tenure")?).ok()
}
