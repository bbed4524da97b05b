//! Bearer tokens: opaque random strings, of which only the SHA-256 is kept.
//!
//! The store has them; a feed keeps a map of all of them in memory, so that a request costs one
//! hash and one lookup. A request that creates or revokes a token is answered once the map shows it, hence a
//! new token works and a revoked one fails from that answer on. A token that the map does not show
//! is looked for in the store, where another server may have put it. A token has an end that can
//! be waited for: it is revoked, or its time is over. Enter at [`Tokens::load`].

mod joining;
#[cfg(test)]
mod tests;
mod wish;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use mainstay_store::clock::Clock;
use mainstay_store::object::{Action, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Change, Error as StoreError, Objects, Write};
use parking_lot::{Mutex, RwLock};
use rustls::crypto::aws_lc_rs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::identity::{Claims, Role, User};
use crate::internal;

pub use self::joining::Use;
pub use self::wish::{Unlimited, Uses, Wish};

pub(crate) const PREFIX: &str = "mst_";
/// A text shorter than this behind the prefix is not taken for a token where tokens are hidden.
pub(crate) const SHORTEST: usize = 20;
/// How often expired tokens are removed, at least. The time of day is looked at anew each time, for
/// it may jump.
const SWEEP: Duration = Duration::from_secs(60);
/// How long the administrator's own token is good, and what must be left of it.
const OWN_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
const OWN_LEFT: Duration = Duration::from_secs(60 * 24 * 3600);
/// How long a change waits until the feed shows it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no such token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The wish contradicts itself. Do not retry.
    #[error("{0}")]
    Wish(String),
    /// All its joins were used. Do not retry: a new token is needed.
    #[error(
        "the join token was used already; create another with `mainstay token create --role node`"
    )]
    Spent,
    /// It was revoked or has expired. Do not retry: a new token is needed.
    #[error("the token was revoked or has expired")]
    Ended,
    /// There is no token of that id. Do not retry.
    #[error("there is no token \"{0}\"")]
    Unknown(String),
    /// No randomness was to be had. Retry later.
    #[error("the machine gave no randomness")]
    Random,
    /// The change is stored, but this server's own view of the tokens lags behind. Look again later.
    #[error("the token was stored, but this server has not seen it within {}s; list tokens and try again", PATIENCE.as_secs())]
    Late,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The description of a token, without the token itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// By what it is revoked.
    pub id: String,
    /// How the audit log calls its bearer.
    pub name: String,
    /// The role of its bearer.
    pub role: Role,
    /// The node its bearer speaks for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// Nodes whose names begin like this join with it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_prefix: Option<String>,
    /// The zone of the nodes that join with it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone: Option<String>,
    /// How many joins it is good for; absent: any number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uses: Option<u32>,
    /// The joins that were counted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub used: Vec<Use>,
    /// Since when.
    pub created: Timestamp,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires: Option<Timestamp>,
}

/// A new token: the only moment it can be seen.
#[derive(Clone, Debug, Serialize)]
pub struct Created {
    /// The token.
    pub token: String,
    /// Its description.
    #[serde(flatten)]
    pub description: Description,
}

type Hash = [u8; 32];

#[derive(Debug)]
struct Entry {
    description: Description,
    user: Arc<User>,
    /// Cancelled when the token is revoked or expires.
    end: CancellationToken,
}

/// All tokens of a cluster.
#[derive(Debug)]
pub(crate) struct Tokens {
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    resource: Resource,
    entries: RwLock<HashMap<Hash, Entry>>,
    seen: watch::Sender<Revision>,
    /// The ends of tokens that were found in the store before the feed showed them.
    early: Mutex<HashMap<Hash, CancellationToken>>,
    /// The token of the administrator's kubeconfig, which is kept from expiring.
    own: Mutex<Option<Hash>>,
    /// Told when the next to expire may be another.
    changed: Notify,
}

impl Tokens {
    /// Reads them all. They stay current only while [`Tokens::follow`] runs.
    pub(crate) async fn load(
        objects: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, StoreError> {
        let tokens = Self {
            objects,
            clock,
            resource: internal::resource("tokens"),
            entries: RwLock::default(),
            seen: watch::Sender::new(Revision::ZERO),
            early: Mutex::default(),
            own: Mutex::default(),
            changed: Notify::new(),
        };
        tokens.reload().await?;
        Ok(Arc::new(tokens))
    }

    async fn reload(&self) -> Result<Revision, StoreError> {
        let all = self.objects.collection(&self.resource, At::Latest).await?;
        let found: HashMap<Hash, Entry> =
            all.range(None, None).filter_map(|record| entry(record)).collect();
        let mut entries = self.entries.write();
        let gone: Vec<Hash> =
            entries.keys().filter(|hash| !found.contains_key(*hash)).copied().collect();
        for hash in gone {
            self.drop_entry(&mut entries, &hash);
        }
        for (hash, entry) in found {
            self.put_entry(&mut entries, hash, entry);
        }
        drop(entries);
        self.seen.send_replace(all.revision());
        self.changed.notify_one();
        Ok(all.revision())
    }

    fn put_entry(&self, entries: &mut HashMap<Hash, Entry>, hash: Hash, mut entry: Entry) {
        let early = self.early().remove(&hash);
        if let Some(end) = entries.get(&hash).map(|known| known.end.clone()).or(early) {
            entry.end = end;
        }
        entries.insert(hash, entry);
    }

    fn drop_entry(&self, entries: &mut HashMap<Hash, Entry>, hash: &Hash) {
        let ends = [entries.remove(hash).map(|entry| entry.end), self.early().remove(hash)];
        ends.into_iter().flatten().for_each(|end| end.cancel());
    }

    fn early(&self) -> parking_lot::MutexGuard<'_, HashMap<Hash, CancellationToken>> {
        self.early.lock()
    }

    /// Keeps the map current, and removes expired tokens, until the store closes.
    ///
    /// Both go on side by side: removing a token must never keep the feed waiting, since whoever
    /// changes a token waits for the feed.
    pub(crate) async fn follow(&self) -> Result<(), StoreError> {
        tokio::select! {
            ended = self.feed() => ended,
            never = self.keep_swept() => match never {},
        }
    }

    async fn feed(&self) -> Result<(), StoreError> {
        let from = *self.seen.borrow();
        let apply = |events: &[Arc<Event>]| self.apply(events);
        internal::follow(&*self.objects, &self.resource, from, apply, || self.reload()).await
    }

    async fn keep_swept(&self) -> Infallible {
        let mut looked = self.clock.elapsed();
        loop {
            tokio::select! {
                () = self.clock.sleep(self.until_next_end()) => {}
                () = self.changed.notified() => {}
            }
            self.end_expired();
            let now = self.clock.elapsed();
            if now.saturating_sub(looked) >= SWEEP {
                looked = now;
                self.sweep().await;
                self.renew_own().await;
            }
        }
    }

    /// How long nothing expires, at most [`SWEEP`].
    fn until_next_end(&self) -> Duration {
        let now = self.clock.now();
        let entries = self.entries.read();
        let open = entries.values().filter(|entry| !entry.end.is_cancelled());
        let ends = open.filter_map(|entry| entry.description.expires);
        let left = ends.map(|end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
        left.min().map_or(SWEEP, |left| left.clamp(Duration::from_millis(1), SWEEP))
    }

    /// Ends what was opened with tokens whose time is over.
    fn end_expired(&self) {
        let now = self.clock.now();
        let entries = self.entries.read();
        let over = |entry: &&Entry| entry.description.expires.is_some_and(|end| end <= now);
        entries.values().filter(over).for_each(|entry| entry.end.cancel());
    }

    fn apply(&self, events: &[Arc<Event>]) {
        let mut entries = self.entries.write();
        for event in events {
            match (event.action, entry(&event.record)) {
                (Action::Deleted, _) | (_, None) => {
                    if let Some(hash) = unhex(event.record.key().name()) {
                        self.drop_entry(&mut entries, &hash);
                    }
                }
                (_, Some((hash, entry))) => self.put_entry(&mut entries, hash, entry),
            }
        }
        drop(entries);
        if let Some(last) = events.last() {
            self.seen.send_replace(last.revision());
            self.changed.notify_one();
        }
    }

    async fn sweep(&self) {
        let now = self.clock.now();
        let expired: Vec<Hash> = {
            let entries = self.entries.read();
            let old = |entry: &Entry| entry.description.expires.is_some_and(|end| end <= now);
            entries.iter().filter(|(_, entry)| old(entry)).map(|(hash, _)| *hash).collect()
        };
        for hash in expired {
            if let Err(error) = self.remove(&hash).await {
                tracing::warn!(%error, "an expired token was not removed; will try again");
            }
        }
    }

    /// The bearer of a token that the map does not show: another server may have made it just now.
    pub(crate) async fn newcomer(&self, token: &[u8]) -> Option<Arc<User>> {
        if !token.starts_with(PREFIX.as_bytes()) {
            return None;
        }
        let key = Key::new(&self.resource, None, &hex::encode(Sha256::digest(token)));
        let record = self.objects.get(&key).await.ok()??;
        self.current(&entry(&record)?.1)
    }

    /// The description of a token that is valid now.
    pub(crate) async fn describe(&self, token: &[u8]) -> Option<Description> {
        let key = Key::new(&self.resource, None, &hex::encode(Sha256::digest(token)));
        let record = self.objects.get(&key).await.ok()??;
        let (_, entry) = entry(&record)?;
        self.current(&entry).map(|_| entry.description)
    }

    /// Ends when a token is revoked or expires, for whatever stays open longer than a request.
    pub(crate) async fn end(&self, token: &[u8]) -> CancellationToken {
        let hash: Hash = Sha256::digest(token).into();
        let known = {
            let entries = self.entries.read();
            entries.get(&hash).map(|entry| entry.end.clone())
        };
        if let Some(end) = known {
            return end;
        }
        let end = self.early().entry(hash).or_default().clone();
        // It is in the books now: from here on the feed tells of its end. Before, the store does.
        if self.newcomer(token).await.is_none() {
            end.cancel();
        }
        let entries = self.entries.read();
        if let Some(entry) = entries.get(&hash) {
            self.early().remove(&hash);
            return entry.end.clone();
        }
        end
    }

    /// Keeps this token from expiring for as long as servers run: the administrator's own.
    pub(crate) async fn keep_own(&self, token: &str) {
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        *self.own.lock() = Some(hash);
        self.renew_own().await;
    }

    async fn renew_own(&self) {
        let own = *self.own.lock();
        let Some(hash) = own else { return };
        if let Err(error) = self.extend(&hash).await {
            tracing::warn!(%error, "the administrator's token was not renewed; will try again");
        }
    }

    async fn extend(&self, hash: &Hash) -> Result<(), StoreError> {
        let now = self.clock.now();
        let key = Key::new(&self.resource, None, &hex::encode(hash));
        let Some(record) = self.objects.get(&key).await? else { return Ok(()) };
        let Some(mut description) = internal::decode::<Description>(&record) else {
            return Ok(());
        };
        // Tokens of older versions never expire.
        let Some(expires) = description.expires.filter(|end| *end > now) else { return Ok(()) };
        let left = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
        let Ok(later) = now.checked_add(OWN_LIFE) else { return Ok(()) };
        if left >= OWN_LEFT {
            return Ok(());
        }
        description.expires = Some(later);
        let Ok(body) = internal::encode(&description) else { return Ok(()) };
        let change = Change::Update(record.revision(), body);
        match self.objects.write(Write { key, change, fence: None }).await {
            // Another server was faster.
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn current(&self, entry: &Entry) -> Option<Arc<User>> {
        let expired = entry.description.expires.is_some_and(|end| end <= self.clock.now());
        (!expired).then(|| entry.user.clone())
    }

    /// The bearer of this token now.
    pub(crate) fn bearer(&self, token: &[u8]) -> Option<Arc<User>> {
        let hash: Hash = Sha256::digest(token).into();
        let entries = self.entries.read();
        self.current(entries.get(&hash)?)
    }

    /// The bearer of the tokens of this name; none if their roles differ.
    pub(crate) fn of_name(&self, name: &str) -> Option<Arc<User>> {
        let now = self.clock.now();
        let entries = self.entries.read();
        let mut found = entries.values().filter(|entry| {
            let expired = entry.description.expires.is_some_and(|end| end <= now);
            !expired && entry.description.name == name
        });
        let first = found.next()?;
        found.all(|other| other.user == first.user).then(|| first.user.clone())
    }

    /// Makes a token. It works as soon as this returns.
    pub(crate) async fn create(&self, wish: Wish) -> Result<Created, Error> {
        let now = self.clock.now();
        if let Some(problem) = wish.problem() {
            return Err(Error::Wish(problem));
        }
        let (expires, uses) = (Some(wish.expires(now).map_err(Error::Wish)?), wish.counted_uses());
        let mut secret = [0; 32 + 6];
        let random = aws_lc_rs::default_provider().secure_random;
        random.fill(&mut secret).map_err(|_| Error::Random)?;
        let (secret, id) = secret.split_at(32);
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        let id = hex::encode(id);
        let Wish { role, node, node_prefix, zone, name, .. } = wish;
        let name = match (name, &node, &node_prefix) {
            (Some(name), _, _) => name,
            (None, Some(node), _) => format!("system:node:{node}"),
            (None, None, Some(prefix)) => format!("system:nodes:{prefix}"),
            (None, None, None) => format!("{role}-{id}"),
        };
        let (created, used) = (now, Vec::new());
        let description =
            Description { id, name, role, node, node_prefix, zone, uses, used, created, expires };
        let hash = hex::encode(Sha256::digest(token.as_bytes()));
        let body =
            internal::encode(&description).map_err(|error| Error::Wish(error.to_string()))?;
        let key = Key::new(&self.resource, None, &hash);
        let event = self.objects.write(Write { key, change: Change::Create(body), fence: None });
        self.wait_for(event.await?.revision()).await?;
        Ok(Created { token, description })
    }

    /// Every token there is, by id.
    pub(crate) fn list(&self) -> Vec<Description> {
        let entries = self.entries.read();
        let mut all: Vec<_> = entries.values().map(|entry| entry.description.clone()).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Makes a token worthless. It fails as soon as this returns; revoking it again is an error.
    pub(crate) async fn revoke(&self, id: &str) -> Result<(), Error> {
        let hash = {
            let entries = self.entries.read();
            entries.iter().find(|(_, entry)| entry.description.id == id).map(|(hash, _)| *hash)
        };
        let hash = hash.ok_or_else(|| Error::Unknown(id.to_owned()))?;
        match self.remove(&hash).await? {
            Some(revision) => self.wait_for(revision).await,
            None => Ok(()),
        }
    }

    /// Makes all tokens worthless with which this one node could join.
    pub(crate) async fn revoke_of_node(&self, node: &str) -> Result<(), Error> {
        let all = self.objects.collection(&self.resource, At::Latest).await?;
        let mut last = None;
        for record in all.range(None, None) {
            let Some((hash, entry)) = entry(record) else { continue };
            if entry.description.role == Role::Node
                && entry.description.node.as_deref() == Some(node)
            {
                last = self.remove(&hash).await?.or(last);
            }
        }
        match last {
            Some(revision) => self.wait_for(revision).await,
            None => Ok(()),
        }
    }

    /// Removes a token from the store; says at which revision, if it was there.
    async fn remove(&self, hash: &Hash) -> Result<Option<Revision>, StoreError> {
        let key = Key::new(&self.resource, None, &hex::encode(hash));
        let Some(record) = self.objects.get(&key).await? else {
            return Ok(None);
        };
        let change = Change::Delete(record.revision());
        match self.objects.write(Write { key, change, fence: None }).await {
            Ok(event) => Ok(Some(event.revision())),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the feed has shown a change. Never called by what drives the feed.
    async fn wait_for(&self, revision: Revision) -> Result<(), Error> {
        let mut seen = self.seen.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as we do: waiting cannot fail.
            _ = seen.wait_for(|seen| *seen >= revision) => Ok(()),
            () = self.clock.sleep(PATIENCE) => Err(Error::Late),
        }
    }
}

fn entry(record: &Record) -> Option<(Hash, Entry)> {
    let hash = unhex(record.key().name())?;
    let mut description: Description = internal::decode(record)?;
    if description.name.trim().is_empty() {
        // Older versions let one have none; an empty name must not stand for anybody.
        description.name = format!("{}-{}", description.role, description.id);
    }
    let user = Arc::new(User {
        name: description.name.as_str().into(),
        role: Some(description.role),
        node: description.node.clone(),
        claims: Claims::of_role(description.role),
    });
    Some((hash, Entry { description, user, end: CancellationToken::new() }))
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).ok()?;
    Some(hash)
}
