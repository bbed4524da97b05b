//! The certificates of nodes: which were given out, which are still good, and who is cut off.
//!
//! The store has one record for each node: the serial numbers of its certificates, and whether the
//! record is closed. A certificate is good while its serial number is listed, or while the record
//! is not closed: older versions gave out certificates that no record lists. Revoking empties the
//! list and closes the record for good, in one write; joining adds to the list, in one write. So
//! the two never miss each other, whatever the clocks of the servers say.
//!
//! A feed keeps all records in memory. They are looked at when a connection shakes hands; every
//! open connection has a flag ([`Session`]) that is set when its certificate is revoked, which is
//! all that a request looks at, and the connection is closed. A request to delete a Node revokes
//! before the Node is touched, and again before it is answered ([`crate::node_api::delete`]); Nodes that
//! vanish in another way are followed. Enter at [`Certificates::load`].

mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::clock::Clock;
use mainstay_store::object::{Action, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Change, Error as StoreError, Objects, Scope, Write};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::connection::Pulse;
use crate::internal;

pub(crate) use self::record::{Grounds, Issued, NodeRecord, Refusal};

/// How often a change is tried while others change the same record.
const ATTEMPTS: u32 = 100;
/// How long a change waits until this server's own view of the records shows it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often records of nodes that are gone are looked through.
const SWEEP: Duration = Duration::from_secs(24 * 3600);

/// Why a certificate is not given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The node may not have one. Do not retry.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A connection that showed a node's certificate.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) node: String,
    pub(crate) serial: String,
    /// The name of the authority that signed the certificate.
    pub(crate) authority: String,
    revoked: AtomicBool,
    /// Cancelled when the certificate is revoked.
    ended: CancellationToken,
    pulse: Arc<Pulse>,
}

impl Session {
    /// Whether the certificate still counts: one load, asked by every request.
    pub(crate) fn good(&self) -> bool {
        !self.revoked.load(Relaxed)
    }

    /// Cancelled when the certificate is revoked: answers that are still under way end then.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Refuses all further requests, ends the answers that are under way with the reason, and closes the
    /// connection, which has until the next sweep to deliver them.
    fn cut(&self) {
        self.revoked.store(true, Relaxed);
        self.ended.cancel();
        self.pulse.condemn();
    }
}

/// The certificates of all nodes.
#[derive(Debug)]
pub(crate) struct Certificates {
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    resource: Resource,
    nodes: Resource,
    records: RwLock<HashMap<String, NodeRecord>>,
    sessions: Mutex<HashMap<String, Vec<Weak<Session>>>>,
    seen: watch::Sender<Revision>,
}

impl Certificates {
    /// Reads all records. They stay current only while [`Certificates::follow`] runs.
    pub(crate) async fn load(
        objects: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, StoreError> {
        let certificates = Self {
            objects,
            clock,
            resource: internal::resource("nodecertificates"),
            nodes: Resource::new("", "nodes"),
            records: RwLock::default(),
            sessions: Mutex::default(),
            seen: watch::Sender::new(Revision::ZERO),
        };
        certificates.reload().await?;
        Ok(Arc::new(certificates))
    }

    async fn reload(&self) -> Result<Revision, StoreError> {
        let all = self.objects.collection(&self.resource, At::Latest).await?;
        let found = all
            .range(None, None)
            .filter_map(|record| Some((record.key().name().to_owned(), internal::decode(record)?)));
        *self.records.write() = found.collect();
        self.cut_bad(None);
        self.seen.send_replace(all.revision());
        Ok(all.revision())
    }

    /// Keeps the records current until the store closes.
    pub(crate) async fn follow(&self) -> Result<(), StoreError> {
        let from = *self.seen.borrow();
        let apply = |events: &[Arc<Event>]| self.apply(events);
        internal::follow(&*self.objects, &self.resource, from, apply, || self.reload()).await
    }

    fn apply(&self, events: &[Arc<Event>]) {
        for event in events {
            let name = event.record.key().name();
            let record = match event.action {
                Action::Deleted => None,
                Action::Added | Action::Modified => internal::decode(&event.record),
            };
            {
                let mut records = self.records.write();
                match record {
                    Some(record) => records.insert(name.to_owned(), record),
                    None => records.remove(name),
                };
            }
            self.cut_bad(Some(name));
        }
        if let Some(last) = events.last() {
            self.seen.send_replace(last.revision());
        }
    }

    /// Whether a certificate is good.
    pub(crate) fn good(&self, node: &str, serial: &str) -> bool {
        let records = self.records.read();
        records.get(node).is_none_or(|record| record.takes(serial))
    }

    /// Every record, by node.
    pub(crate) fn records(&self) -> HashMap<String, NodeRecord> {
        self.records.read().clone()
    }

    fn sessions(&self) -> parking_lot::MutexGuard<'_, HashMap<String, Vec<Weak<Session>>>> {
        self.sessions.lock()
    }

    /// Notes a connection that showed a good certificate. It is cut once that is revoked.
    pub(crate) fn enter(
        &self,
        node: &str,
        serial: String,
        authority: String,
        pulse: &Arc<Pulse>,
    ) -> Arc<Session> {
        let (revoked, pulse) = (AtomicBool::new(false), pulse.clone());
        let (node, ended) = (node.to_owned(), CancellationToken::new());
        let session = Arc::new(Session { node, serial, authority, revoked, ended, pulse });
        let mut sessions = self.sessions();
        let of_node = sessions.entry(session.node.clone()).or_default();
        of_node.retain(|known| known.strong_count() > 0);
        of_node.push(Arc::downgrade(&session));
        drop(sessions);
        // It may have been revoked since the handshake, and the feed did not know of it then.
        if !self.good(&session.node, &session.serial) {
            session.cut();
        }
        session
    }

    fn cut_bad(&self, node: Option<&str>) {
        self.cut_if(node, |session| !self.good(&session.node, &session.serial));
    }

    /// Cuts the connections whose certificates this authority did not sign.
    pub(crate) fn cut_others(&self, authority: &str) {
        self.cut_if(None, |session| session.authority != authority);
    }

    fn cut_if(&self, node: Option<&str>, bad: impl Fn(&Session) -> bool) {
        let mut sessions = self.sessions();
        sessions.retain(|name, known| {
            known.retain(|session| session.strong_count() > 0);
            if node.is_none_or(|node| node == name) {
                known.iter().filter_map(Weak::upgrade).filter(|one| bad(one)).for_each(|one| {
                    tracing::info!(
                        node = name,
                        serial = one.serial,
                        "closing a connection whose certificate was revoked"
                    );
                    one.cut();
                });
            }
            !known.is_empty()
        });
    }

    async fn stored(&self, key: &Key) -> Result<(Option<Arc<Record>>, NodeRecord), StoreError> {
        let record = self.objects.get(key).await?;
        let known = record.as_ref().and_then(|record| internal::decode(record));
        Ok((record, known.unwrap_or_default()))
    }

    /// The record of a node, read from the store.
    pub(crate) async fn of_node(&self, node: &str) -> Result<NodeRecord, StoreError> {
        let key = Key::new(&self.resource, None, node);
        Ok(self.stored(&key).await?.1)
    }

    /// Changes the record of a node, as often as it takes. `change` returns `None` for a record
    /// that is as it should be.
    async fn change<E: From<StoreError>>(
        &self,
        node: &str,
        change: impl Fn(&NodeRecord) -> Result<Option<NodeRecord>, E>,
    ) -> Result<Option<Revision>, E> {
        let key = Key::new(&self.resource, None, node);
        for _ in 0..ATTEMPTS {
            let (record, known) = self.stored(&key).await?;
            let Some(next) = change(&known)? else { return Ok(None) };
            let body = internal::encode(&next).map_err(|error| StoreError::Unavailable {
                reason: format!("the certificates of node {node} cannot be encoded: {error}"),
            })?;
            let change = match &record {
                Some(record) => Change::Update(record.revision(), body),
                None => Change::Create(body),
            };
            match self.objects.write(Write { key: key.clone(), change, fence: None }).await {
                Ok(event) => return Ok(Some(event.revision())),
                Err(
                    StoreError::Conflict { .. }
                    | StoreError::AlreadyExists { .. }
                    | StoreError::NotFound { .. },
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Busy { waiting: ATTEMPTS as usize }.into())
    }

    /// Records a certificate before it is given out.
    pub(crate) async fn issue(
        &self,
        node: &str,
        grounds: &Grounds,
        issued: &Issued,
        zone: Option<&str>,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let written = self.change(node, |known| -> Result<_, Error> {
            Ok(Some(known.with(grounds, issued, zone, now)?))
        });
        if let Some(revision) = written.await? {
            self.wait_for(revision).await;
        }
        Ok(())
    }

    /// Revokes every certificate of a node, whether it is recorded or not, and bars the tokens that
    /// were made until now. `uid` is that of the Node object that is deleted, if one is. Revoking
    /// again changes nothing but the time.
    pub(crate) async fn revoke(&self, node: &str, uid: Option<&str>) -> Result<(), StoreError> {
        let change = |known: &NodeRecord| Ok(Some(known.revoked(uid, self.clock.now())));
        if let Some(revision) = self.change::<StoreError>(node, change).await? {
            self.wait_for(revision).await;
        }
        Ok(())
    }

    /// Notes a Node object that is taken back because its join was refused: its deletion revokes
    /// nothing that was given on other grounds.
    pub(crate) async fn disown(&self, node: &str, uid: &str) -> Result<(), StoreError> {
        let change = |known: &NodeRecord| Ok(Some(known.remembering(uid)));
        self.change::<StoreError>(node, change).await.map(drop)
    }

    /// Waits for the feed, which only says so later if it takes too long: what is stored counts.
    async fn wait_for(&self, revision: Revision) {
        let mut seen = self.seen.subscribe();
        tokio::select! {
            _ = seen.wait_for(|seen| *seen >= revision) => {}
            () = self.clock.sleep(PATIENCE) => {
                tracing::warn!("the records of node certificates lag behind the store");
            }
        }
    }

    /// Revokes the certificates of Nodes that are deleted, until the store closes.
    pub(crate) async fn follow_nodes(&self) -> Result<(), StoreError> {
        loop {
            let all = self.objects.collection(&self.nodes, At::Latest).await?;
            self.reconcile(&all).await?;
            let ended = match self.objects.watch(Scope::all(&self.nodes), all.revision()).await {
                Ok(mut changes) => loop {
                    match changes.next().await {
                        Ok(events) => self.deleted(&events).await?,
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match ended {
                StoreError::Closed => return Ok(()),
                StoreError::Expired { .. } | StoreError::TooNew { .. } => {}
                error => return Err(error),
            }
        }
    }

    /// Revokes what was given to Nodes that are no longer there.
    async fn reconcile(&self, nodes: &mainstay_store::cache::Collection) -> Result<(), StoreError> {
        let uids: HashMap<String, String> = nodes
            .range(None, None)
            .map(|record| (record.key().name().to_owned(), uid(record)))
            .collect();
        for (node, record) in self.records() {
            let given = record.certificates.iter().filter_map(|issued| issued.uid.as_ref());
            let gone: BTreeSet<_> = given.filter(|uid| Some(*uid) != uids.get(&node)).collect();
            for uid in gone {
                self.gone(&node, uid).await?;
            }
        }
        Ok(())
    }

    async fn deleted(&self, events: &[Arc<Event>]) -> Result<(), StoreError> {
        for event in events.iter().filter(|event| event.action == Action::Deleted) {
            self.gone(event.record.key().name(), &uid(&event.record)).await?;
        }
        Ok(())
    }

    /// Revokes what the deletion of a Node object takes, unless that was done before it.
    async fn gone(&self, node: &str, uid: &str) -> Result<(), StoreError> {
        let change = |known: &NodeRecord| Ok(known.without_node(uid, self.clock.now()));
        self.change::<StoreError>(node, change).await.map(drop)
    }

    /// Forgets nodes that were revoked so long ago that none of their certificates is good.
    pub(crate) async fn keep_swept(&self) -> Result<(), StoreError> {
        loop {
            let now = self.clock.now();
            for (node, _) in self.records().into_iter().filter(|(_, record)| record.is_over(now)) {
                let key = Key::new(&self.resource, None, &node);
                let (Some(record), known) = self.stored(&key).await? else { continue };
                if !known.is_over(now) {
                    continue;
                }
                let change = Change::Delete(record.revision());
                match self.objects.write(Write { key, change, fence: None }).await {
                    Ok(_) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                    Err(StoreError::Closed) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            self.clock.sleep(SWEEP).await;
        }
    }
}

/// The identity of a stored object.
pub(crate) fn uid(record: &Record) -> String {
    let object = record.object();
    let uid = object.get("metadata").and_then(|metadata| metadata.get("uid"));
    uid.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// When a certificate that was given out now is over.
pub(crate) fn expiry(now: Timestamp, life: Duration) -> Timestamp {
    now.checked_add(life).unwrap_or(Timestamp::MAX)
}
