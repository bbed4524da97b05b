//! Bearer tokens: opaque random strings, of which only the SHA-256 is kept.
//!
//! The store has them; a feed keeps a map of all of them in memory, so that a request costs one
//! hash and one lookup. Who creates or revokes a token is answered once the map shows it, hence a
//! new token works and a revoked one fails from that answer on. A token that the map does not show
//! is looked for in the store, where another server may have put it. Enter at [`Tokens::load`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use mainstay_store::clock::Clock;
use mainstay_store::object::{Action, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Change, Error as StoreError, Objects, Scope, Write};
use rustls::crypto::aws_lc_rs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::identity::{Claims, Role, User};
use crate::internal;

const PREFIX: &str = "mst_";
/// How often expired tokens are removed.
const SWEEP: Duration = Duration::from_secs(600);
/// How long a change waits until the feed shows it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no such token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The wish contradicts itself. Do not retry.
    #[error("{0}")]
    Wish(&'static str),
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

/// What a new token shall be good for.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wish {
    /// What its bearer is trusted with.
    pub role: Role,
    /// The node its bearer speaks for: needed for role node, and only there.
    #[serde(default)]
    pub node: Option<String>,
    /// A name for the audit log.
    #[serde(default)]
    pub name: Option<String>,
    /// How long it is good; for ever if absent.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

/// What is known of a token. The token itself is not among it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// By what it is revoked.
    pub id: String,
    /// How the audit log calls its bearer.
    pub name: String,
    /// What its bearer is trusted with.
    pub role: Role,
    /// The node its bearer speaks for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
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
    /// What is known of it from now on.
    #[serde(flatten)]
    pub description: Description,
}

type Hash = [u8; 32];

#[derive(Debug)]
struct Entry {
    description: Description,
    user: Arc<User>,
}

/// All tokens of a cluster.
#[derive(Debug)]
pub(crate) struct Tokens {
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    resource: Resource,
    entries: RwLock<HashMap<Hash, Entry>>,
    seen: watch::Sender<Revision>,
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
        };
        tokens.reload().await?;
        Ok(Arc::new(tokens))
    }

    async fn reload(&self) -> Result<Revision, StoreError> {
        let all = self.objects.collection(&self.resource, At::Latest).await?;
        let entries = all.range(None, None).filter_map(|record| entry(record)).collect();
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        self.seen.send_replace(all.revision());
        Ok(all.revision())
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
        let mut from = *self.seen.borrow();
        loop {
            let scope = Scope::all(&self.resource);
            let ended = match self.objects.watch(scope, from).await {
                Ok(mut changes) => loop {
                    match changes.next().await {
                        Ok(events) => self.apply(&events),
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match ended {
                StoreError::Closed => return Ok(()),
                StoreError::Expired { .. } | StoreError::TooNew { .. } => {
                    from = self.reload().await?;
                }
                error => return Err(error),
            }
        }
    }

    async fn keep_swept(&self) -> Infallible {
        loop {
            self.clock.sleep(SWEEP).await;
            self.sweep().await;
        }
    }

    fn apply(&self, events: &[Arc<Event>]) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            match (event.action, entry(&event.record)) {
                (Action::Deleted, _) | (_, None) => {
                    if let Some(hash) = unhex(event.record.key().name()) {
                        entries.remove(&hash);
                    }
                }
                (_, Some((hash, entry))) => drop(entries.insert(hash, entry)),
            }
        }
        drop(entries);
        if let Some(last) = events.last() {
            self.seen.send_replace(last.revision());
        }
    }

    async fn sweep(&self) {
        let now = self.clock.now();
        let expired: Vec<Hash> = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            let old = |entry: &Entry| entry.description.expires.is_some_and(|end| end <= now);
            entries.iter().filter(|(_, entry)| old(entry)).map(|(hash, _)| *hash).collect()
        };
        for hash in expired {
            if let Err(error) = self.remove(&hash).await {
                tracing::warn!(%error, "an expired token was not removed; will try again");
            }
        }
    }

    /// Who bears a token that the map does not show: another server may have made it just now.
    pub(crate) async fn newcomer(&self, token: &[u8]) -> Option<Arc<User>> {
        if !token.starts_with(PREFIX.as_bytes()) {
            return None;
        }
        let key = Key::new(&self.resource, None, &hex(&Sha256::digest(token)));
        let record = self.objects.get(&key).await.ok()??;
        self.current(&entry(&record)?.1)
    }

    fn current(&self, entry: &Entry) -> Option<Arc<User>> {
        let expired = entry.description.expires.is_some_and(|end| end <= self.clock.now());
        (!expired).then(|| entry.user.clone())
    }

    /// Who bears this token now.
    pub(crate) fn bearer(&self, token: &[u8]) -> Option<Arc<User>> {
        let hash: Hash = Sha256::digest(token).into();
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        self.current(entries.get(&hash)?)
    }

    /// Who bears tokens of this name; nobody if their roles differ.
    pub(crate) fn of_name(&self, name: &str) -> Option<Arc<User>> {
        let now = self.clock.now();
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
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
        match (wish.role, &wish.node) {
            (Role::Node, None) => return Err(Error::Wish("a token of role node needs a node")),
            (Role::Node, Some(node)) if node.is_empty() || node.len() > 253 => {
                return Err(Error::Wish("the node's name must have 1 to 253 characters"));
            }
            (Role::Node, Some(_)) | (_, None) => {}
            (_, Some(_)) => return Err(Error::Wish("only a token of role node has a node")),
        }
        let expires = match wish.ttl_seconds {
            Some(0) => return Err(Error::Wish("a token must live for a second at least")),
            Some(seconds) => {
                let end = now.checked_add(Duration::from_secs(seconds));
                Some(end.map_err(|_| Error::Wish("the token would live too long"))?)
            }
            None => None,
        };
        let mut secret = [0; 32 + 6];
        let random = aws_lc_rs::default_provider().secure_random;
        random.fill(&mut secret).map_err(|_| Error::Random)?;
        let (secret, id) = secret.split_at(32);
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        let id = hex(id);
        let name = match (&wish.name, &wish.node) {
            (Some(name), _) => name.clone(),
            (None, Some(node)) => format!("system:node:{node}"),
            (None, None) => format!("{}-{id}", wish.role),
        };
        let (role, node) = (wish.role, wish.node);
        let description = Description { id, name, role, node, created: now, expires };
        let hash = hex(&Sha256::digest(token.as_bytes()));
        let body = internal::encode(&description).map_err(|_| Error::Wish("not encodable"))?;
        let key = Key::new(&self.resource, None, &hash);
        let event = self.objects.write(Write { key, change: Change::Create(body), fence: None });
        self.wait_for(event.await?.revision()).await?;
        Ok(Created { token, description })
    }

    /// Every token there is, by id.
    pub(crate) fn list(&self) -> Vec<Description> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = entries.values().map(|entry| entry.description.clone()).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Makes a token worthless. It fails as soon as this returns; revoking it again is an error.
    pub(crate) async fn revoke(&self, id: &str) -> Result<(), Error> {
        let hash = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            entries.iter().find(|(_, entry)| entry.description.id == id).map(|(hash, _)| *hash)
        };
        let hash = hash.ok_or_else(|| Error::Unknown(id.to_owned()))?;
        match self.remove(&hash).await? {
            Some(revision) => self.wait_for(revision).await,
            None => Ok(()),
        }
    }

    /// Removes a token from the store; says at which revision, if it was there.
    async fn remove(&self, hash: &Hash) -> Result<Option<Revision>, StoreError> {
        let key = Key::new(&self.resource, None, &hex(hash));
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
    let description: Description = internal::decode(record)?;
    let user = Arc::new(User {
        name: description.name.as_str().into(),
        role: Some(description.role),
        node: description.node.clone(),
        claims: Claims::of_role(description.role),
    });
    Some((hash, Entry { description, user }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::cache::Retention;
    use mainstay_store::clock::ManualClock;
    use mainstay_store::memory::MemoryStore;

    fn wish(role: Role) -> Wish {
        Wish { role, node: None, name: None, ttl_seconds: None }
    }

    async fn with_tokens<F: Future<Output = ()>>(
        test: impl FnOnce(Arc<Tokens>, Arc<ManualClock>) -> F,
    ) {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
        let tokens = Tokens::load(Arc::new(objects), clock.clone()).await.unwrap();
        let following = tokens.clone();
        tokio::select! {
            ended = following.follow() => panic!("the feed ended: {ended:?}"),
            () = test(tokens, clock) => {}
        }
    }

    #[tokio::test]
    async fn a_token_made_elsewhere_works_before_it_is_heard_of() {
        with_tokens(async |tokens, clock| {
            // Nobody follows for this one.
            let other = Tokens::load(tokens.objects.clone(), clock.clone()).await.unwrap();
            let token = tokens.create(wish(Role::Editor)).await.unwrap().token;
            assert!(other.bearer(token.as_bytes()).is_none());
            let user = other.newcomer(token.as_bytes()).await.unwrap();
            assert_eq!(user.role, Some(Role::Editor));
        })
        .await;
    }

    #[tokio::test]
    async fn a_token_works_from_its_creation_until_it_is_revoked() {
        with_tokens(async |tokens, _| {
            let created = tokens.create(wish(Role::Editor)).await.unwrap();
            let user = tokens.bearer(created.token.as_bytes()).unwrap();
            assert_eq!(user.role, Some(Role::Editor));
            assert!(tokens.bearer(b"mst_something-else").is_none());
            assert!(tokens.newcomer(b"mst_something-else").await.is_none());
            assert_eq!(tokens.list().len(), 1);
            tokens.revoke(&created.description.id).await.unwrap();
            assert!(tokens.bearer(created.token.as_bytes()).is_none());
            assert!(tokens.newcomer(created.token.as_bytes()).await.is_none());
            assert!(tokens.revoke(&created.description.id).await.is_err());
        })
        .await;
    }

    #[tokio::test]
    async fn a_name_has_a_role_while_its_tokens_agree() {
        with_tokens(async |tokens, clock| {
            let named =
                |role, ttl| Wish { name: Some("ada".to_owned()), ttl_seconds: ttl, ..wish(role) };
            assert!(tokens.of_name("ada").is_none());
            tokens.create(named(Role::Viewer, None)).await.unwrap();
            tokens.create(named(Role::Viewer, None)).await.unwrap();
            assert_eq!(tokens.of_name("ada").unwrap().role, Some(Role::Viewer));
            tokens.create(named(Role::Editor, Some(60))).await.unwrap();
            assert!(tokens.of_name("ada").is_none(), "viewer or editor?");
            clock.advance(Duration::from_secs(60));
            assert_eq!(tokens.of_name("ada").unwrap().role, Some(Role::Viewer));
        })
        .await;
    }

    #[tokio::test]
    async fn a_token_expires() {
        with_tokens(async |tokens, clock| {
            let mut wish = wish(Role::Viewer);
            wish.ttl_seconds = Some(60);
            let created = tokens.create(wish).await.unwrap();
            clock.advance(Duration::from_secs(59));
            assert!(tokens.bearer(created.token.as_bytes()).is_some());
            clock.advance(Duration::from_secs(1));
            assert!(tokens.bearer(created.token.as_bytes()).is_none());
        })
        .await;
    }

    #[tokio::test]
    async fn tokens_are_made_and_revoked_after_an_expired_one_was_swept() {
        with_tokens(async |tokens, clock| {
            let viewer = tokens.create(wish(Role::Viewer)).await.unwrap();
            let short = Wish { ttl_seconds: Some(1), ..wish(Role::Viewer) };
            tokens.create(short).await.unwrap();
            while clock.sleepers() == 0 {
                tokio::task::yield_now().await;
            }
            clock.advance(SWEEP);
            while tokens.list().len() > 1 {
                tokio::task::yield_now().await;
            }
            let editor = tokens.create(wish(Role::Editor)).await.unwrap();
            assert!(tokens.bearer(editor.token.as_bytes()).is_some());
            tokens.revoke(&viewer.description.id).await.unwrap();
            assert!(tokens.bearer(viewer.token.as_bytes()).is_none());
        })
        .await;
    }

    #[tokio::test]
    async fn a_change_that_the_feed_never_shows_is_answered_in_time() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
        // Its feed is not followed.
        let tokens = Tokens::load(Arc::new(objects), clock.clone()).await.unwrap();
        let mut creating = std::pin::pin!(tokens.create(wish(Role::Viewer)));
        while clock.sleepers() == 0 {
            assert!(futures_util::poll!(&mut creating).is_pending());
            tokio::task::yield_now().await;
        }
        clock.advance(PATIENCE);
        assert!(matches!(creating.await, Err(Error::Late)));
    }

    #[tokio::test]
    async fn wishes_that_contradict_themselves_are_refused() {
        with_tokens(async |tokens, _| {
            let node = Some("n1".to_owned());
            let cases = [
                Wish { node: None, ..wish(Role::Node) },
                Wish { node: Some(String::new()), ..wish(Role::Node) },
                Wish { node, ..wish(Role::Admin) },
                Wish { ttl_seconds: Some(0), ..wish(Role::Admin) },
                Wish { ttl_seconds: Some(u64::MAX), ..wish(Role::Admin) },
            ];
            for wish in cases {
                let refused = tokens.create(wish.clone()).await;
                assert!(matches!(refused, Err(Error::Wish(_))), "{wish:?}");
            }
            assert!(tokens.list().is_empty());
        })
        .await;
    }

    #[test]
    fn only_the_hash_is_stored() {
        let hash = Sha256::digest(b"mst_x");
        assert_eq!(unhex(&hex(&hash)), Some(hash.into()));
        assert_eq!(unhex("zz"), None);
    }
}
