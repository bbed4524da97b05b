//! Encryption at rest on etcd: stores data keys, puts them into use, and rewrites values.
//!
//! Data keys are objects like others, in a collection that is never sealed. They are read before
//! everything else is listed, and the feed takes over every change of them before it reads the
//! values that follow. Two servers never disagree on a key for longer than their feeds differ:
//!
//! * A new data key is *pending* until the record of every live server says that it can open the
//!   key ([`roster`]). The transaction that makes it active fails if another server has registered
//!   since, and a server that registers later sees the key before its first write. So values are
//!   never sealed with a key that a server in the cluster does not have, and a server without the
//!   key file writes nothing in the clear to an encrypted store.
//! * Keys are created, activated, completed and retired on the condition that no data key changed
//!   meanwhile. Retired keys stay, so that each value can be opened, whenever it was written.
//! * Values are rewritten a few at a time, each on the condition that it has not changed, by the
//!   server with the smallest name among those whose settings ask for it: with a key file to
//!   encrypt, with `--store-decrypt` to decrypt. A rewritten value keeps the version
//!   of its object ([`layout`](super::layout)). Values that show up under an older key later,
//!   because their writer's feed was behind, are rewritten by another pass.
//! * A server with a key file writes in the clear only on the condition that no data key has changed
//!   since it looked, so no value in the clear follows the activation of a data key. Once a pass has
//!   found none and the key is complete, a value in the clear was written by another program: it is
//!   reported as damaged and not served.
//!
//! All of it can be interrupted at any point: the next pass, of any server, finds what is left.

mod conditions;
mod decide;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, State};
use crate::object::{Key, Record, Revision};
use crate::objects::Error;
use crate::seal::{DataKey, KeyError, KeyState, data_keys, not_encrypted, under_way};

use super::client::{self, Client};
use super::layout::{Layout, Stored};
use super::proto::{
    Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, TxnRequest,
    TxnResponse,
};
use super::roster::{self, Roster};
use super::unchanged;
use super::version::{end, number, version};

pub(super) use conditions::condition_in_the_clear;
use conditions::{no_key_changed, no_server_since};
use decide::{Outcome, Step, groups, next_step, opening_changes, turned_off_by};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// How many values are read at a time.
const PAGE: i64 = 200;
/// How many data keys one transaction writes.
const KEYS_TOGETHER: usize = 64;
/// How long to wait before a failed step is repeated, or another server's work is looked at again.
const PAUSE: Duration = Duration::from_millis(250);
/// How long to wait before values are tried again that etcd refused.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// How long an opening store waits for the other servers to open a new data key.
const OPENING: Duration = Duration::from_secs(3);
/// How long the cache may take to show a transaction.
const LAG: Duration = Duration::from_secs(5);

/// Findings of the feed and of lists for the task that keeps values encrypted.
#[derive(Debug, Default)]
pub(super) struct Signals {
    stale: AtomicBool,
    wake: Notify,
}

impl Signals {
    /// A value is not encrypted as new values are.
    pub(super) fn note_stale(&self) {
        if !self.stale.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// A data key was stored or changed; `current` says whether another one seals new values now.
    pub(super) fn keys_changed(&self, current: bool) {
        if current {
            self.stale.store(true, Ordering::Release);
        }
        self.wake.notify_one();
    }
}

/// Reads every data key in etcd. Keys that cannot be opened are kept in mind by the sealer.
pub(super) async fn learn_all(client: &Client, layout: &Layout) -> Result<(), client::Error> {
    let (mut key, range_end) = layout.range(&data_keys());
    loop {
        let request = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit: PAGE,
            ..RangeRequest::default()
        };
        let page: RangeResponse = client.read_patiently(RANGE, request).await?;
        for kv in &page.kvs {
            let Some(key) = layout.decode(&kv.key) else { continue };
            if let Ok(stored) = layout.read(&key, &kv.value) {
                learn(layout, &key, kv, &stored);
            }
        }
        match page.kvs.last() {
            Some(last) if page.more => {
                key = last.key.clone();
                key.push(0);
            }
            _ => return Ok(()),
        }
    }
}

/// Takes over a data key that was read from etcd.
pub(super) fn learn(layout: &Layout, key: &Key, kv: &KeyValue, stored: &Stored) {
    let object = stored.record(kv, key.clone()).object();
    let before = layout.sealer().error_of(key.name());
    let learnt = layout.sealer().learn(&object, version(kv.create_revision, 0));
    let Err(error) = learnt else { return };
    let retired = DataKey::parse(&object).is_ok_and(|key| key.state == KeyState::Retired);
    if retired {
        // No value needs it, unless one is damaged, which is then reported by itself.
        tracing::debug!(id = key.name(), %error, "retired data key in etcd cannot be opened");
    } else if before.as_ref() != Some(&error) {
        tracing::warn!(id = key.name(), %error, "data key in etcd cannot be opened by this server");
    }
}

/// How far a store that is opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Starting,
    /// New values are written as the settings ask for.
    Settled,
    /// Other servers cannot open the data key yet.
    Waiting,
}

/// The task that keeps values encrypted.
#[derive(Debug)]
pub(super) struct Sealing {
    client: Arc<Client>,
    layout: Layout,
    cache: Arc<Cache>,
    roster: Arc<Roster>,
    signals: Arc<Signals>,
    stop: CancellationToken,
    decrypt: bool,
    progress: watch::Sender<Progress>,
}

/// The result of a pass over all values.
#[derive(Debug, Default)]
struct Pass {
    rewritten: u64,
    /// Values that changed at the same time.
    contended: u64,
    /// Values that etcd did not take.
    refused: u64,
}

/// A value that is to be rewritten.
#[derive(Debug)]
struct Rewrite {
    key: Vec<u8>,
    since: i64,
    value: Vec<u8>,
}

impl Sealing {
    pub(super) fn new(
        (client, layout, cache): (Arc<Client>, Layout, Arc<Cache>),
        roster: Arc<Roster>,
        signals: Arc<Signals>,
        stop: CancellationToken,
        decrypt: bool,
    ) -> Arc<Self> {
        let progress = watch::Sender::new(Progress::Starting);
        Arc::new(Self { client, layout, cache, roster, signals, stop, decrypt, progress })
    }

    /// Waits until new values are encrypted, or decrypted, as the settings ask for, or until other
    /// servers that cannot open the data key are known to stand in the way.
    pub(super) async fn settled(&self, within: Duration) -> Result<(), Error> {
        let mut progress = self.progress.subscribe();
        let settled = progress.wait_for(|progress| *progress == Progress::Settled);
        if tokio::time::timeout(OPENING, settled).await.is_ok() {
            return Ok(());
        }
        let decided = progress.wait_for(|progress| *progress != Progress::Starting);
        match tokio::time::timeout(within, decided).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Unavailable {
                reason: format!("the data keys could not be stored in etcd within {within:?}"),
            }),
        }
    }

    /// Keeps values encrypted until the store is closed.
    pub(super) async fn run(self: Arc<Self>) {
        if !self.layout.sealer().has_keys() {
            return;
        }
        let working = async {
            let mut reported = None;
            while let Err(error) = self.prepare().await {
                let error = error.to_string();
                if reported.as_ref() != Some(&error) {
                    tracing::warn!(error, "storing data keys in etcd failed; retrying");
                    reported = Some(error);
                }
                tokio::time::sleep(PAUSE).await;
            }
            self.keep_encrypted().await;
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = working => {}
        }
    }

    /// Once for each start: wraps data keys with the first master key, and turns encryption on or
    /// off as the settings ask for.
    async fn prepare(&self) -> Result<(), Error> {
        loop {
            let made = self.roster.admission().await?;
            let state = self.cache.load();
            let keys = stored_keys(&state).map_err(key_error)?;
            let servers: Vec<&Arc<Record>> = state.members(&roster::records()).collect();
            let by = turned_off_by(&keys, &servers, self.decrypt);
            if !by.is_empty() {
                tracing::warn!(
                    servers = ?by,
                    "encryption stays off, because these servers run with --store-decrypt: stop \
                     them, then restart this server to turn encryption on"
                );
                self.progress.send_replace(Progress::Waiting);
                return Ok(());
            }
            if !self.decrypt && !keys.is_empty() && all_retired(&keys) {
                tracing::warn!(
                    "encryption of this etcd was turned off; this server turns it on again, \
                     because it was started with --store-key without --store-decrypt"
                );
            }
            let changes = opening_changes(&keys, self.layout.sealer(), self.decrypt);
            let mut changes = changes.map_err(key_error)?;
            changes.truncate(KEYS_TOGETHER);
            if changes.is_empty() {
                return Ok(());
            }
            for key in &changes {
                tracing::info!(
                    id = key.id(), master = key.master(), state = ?key.state, "storing a data key"
                );
            }
            if !self.put(&state, made, &changes, None).await? {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn keep_encrypted(&self) {
        let mut usable = Vec::new();
        let (mut last, mut reported) = (Vec::new(), Vec::new());
        let (mut sealed, mut failed) = (false, None);
        loop {
            let seals = self.layout.sealer().seals();
            if sealed && !seals && !self.decrypt {
                tracing::warn!(
                    "another server turned the encryption of this etcd off (--store-decrypt); new \
                     values are written in the clear"
                );
            }
            sealed = seals;
            if self.decrypt || seals {
                self.progress.send_replace(Progress::Settled);
            }
            let now_usable = self.layout.sealer().usable();
            if now_usable != usable {
                usable = now_usable;
                self.roster.renew();
            }
            let (mut pause, mut waiting) = (None, Vec::new());
            let step = self.step().await;
            if step.is_ok() {
                failed = None;
            }
            match step {
                Ok(Step::Idle) => {}
                Ok(Step::Activate(_)) => continue,
                Ok(Step::Wait(servers)) => (pause, waiting) = (Some(PAUSE), servers),
                Ok(Step::Leave | Step::Rewrite) => pause = Some(PAUSE),
                Ok(Step::Refused) => pause = Some(LONG_PAUSE),
                Err(error) => {
                    let error = error.to_string();
                    if failed.as_ref() != Some(&error) {
                        tracing::warn!(error, "encrypting values in etcd failed; retrying");
                    }
                    failed = Some(error);
                    pause = Some(PAUSE);
                }
            }
            if waiting == last && waiting != reported {
                self.report(&waiting);
                reported.clone_from(&waiting);
            }
            last = waiting;
            match pause {
                None => self.signals.wake.notified().await,
                Some(pause) => {
                    let woken = self.signals.wake.notified();
                    // Either is reason enough to look again.
                    let _ = tokio::time::timeout(pause, woken).await;
                }
            }
        }
    }

    /// Reports servers that cannot open the pending data key.
    fn report(&self, waiting: &[String]) {
        if waiting.is_empty() {
            return;
        }
        tracing::warn!(
            servers = ?waiting,
            "the new data key is not used yet, because these servers cannot open it: restart them \
             with the same --store-key file"
        );
        self.progress.send_replace(Progress::Waiting);
    }

    /// Does the next thing that is to be done, and says what it was.
    async fn step(&self) -> Result<Step, Error> {
        let made = self.roster.admission().await?;
        let state = self.cache.load();
        let keys = stored_keys(&state).map_err(key_error)?;
        let servers: Vec<&Arc<Record>> = state.members(&roster::records()).collect();
        let stale = self.signals.stale.load(Ordering::Acquire);
        let step = next_step(&keys, &servers, self.roster.name(), stale);
        match &step {
            Step::Activate(key) => {
                let key = self.layout.sealer().in_state(key, KeyState::Active);
                let key = key.map_err(key_error)?;
                let no_newcomer = no_server_since(&self.layout, &state);
                let changes = std::slice::from_ref(&key);
                if self.put(&state, made, changes, Some(no_newcomer)).await? {
                    tracing::info!(
                        id = key.id(),
                        master = key.master(),
                        "new values are encrypted with a new data key"
                    );
                } else {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Step::Rewrite => return self.rewrite_all(&state, made, &keys).await,
            Step::Idle | Step::Leave | Step::Wait(_) | Step::Refused => {}
        }
        Ok(step)
    }

    /// Rewrites every value that is not encrypted as new values are; if none is left, notes that.
    async fn rewrite_all(
        &self,
        state: &State,
        made: Revision,
        keys: &[DataKey],
    ) -> Result<Step, Error> {
        self.signals.stale.store(false, Ordering::Release);
        let pass = match self.pass().await {
            Ok(pass) if pass.refused == 0 && pass.contended == 0 => pass,
            unfinished => {
                self.signals.stale.store(true, Ordering::Release);
                let refused = unfinished?.refused > 0;
                return Ok(if refused { Step::Refused } else { Step::Rewrite });
            }
        };
        if pass.rewritten > 0 {
            report_rewritten(pass.rewritten, self.layout.sealer().seals(), keys);
        }
        if self.signals.stale.load(Ordering::Acquire) {
            return Ok(Step::Rewrite);
        }
        let changes = decide::completed(keys, self.layout.sealer()).map_err(key_error)?;
        if !changes.is_empty() && !self.put(state, made, &changes, None).await? {
            return Ok(Step::Rewrite);
        }
        Ok(Step::Idle)
    }

    /// One pass over all values.
    async fn pass(&self) -> Result<Pass, Error> {
        let mut pass = Pass::default();
        let mut key = self.layout.start();
        loop {
            let request = RangeRequest {
                key,
                range_end: self.layout.end(),
                limit: PAGE,
                ..RangeRequest::default()
            };
            let page: RangeResponse =
                self.client.read_patiently(RANGE, request).await.map_err(unavailable)?;
            let clear = condition_in_the_clear(&self.layout, &self.cache.load());
            let stale: Vec<Rewrite> = page.kvs.iter().filter_map(|kv| self.stale(kv)).collect();
            for group in groups(stale, |rewrite| rewrite.value.len()) {
                self.rewrite(group, clear.as_ref(), &mut pass).await?;
            }
            match page.kvs.last() {
                Some(last) if page.more => {
                    key = last.key.clone();
                    key.push(0);
                }
                _ => return Ok(pass),
            }
        }
    }

    /// How to rewrite a value, if it is not encrypted as new values are. A value that cannot be
    /// read stays as it is; the feed reports it.
    fn stale(&self, kv: &KeyValue) -> Option<Rewrite> {
        let key = self.layout.decode(&kv.key)?;
        if !self.layout.is_stale(&key, &kv.value) {
            return None;
        }
        let value = self.layout.rewrite(&key, kv).ok()?;
        Some(Rewrite { key: kv.key.clone(), since: kv.mod_revision, value })
    }

    /// Rewrites some values together or, if one of them has changed or is too large, one by one.
    async fn rewrite(
        &self,
        group: Vec<Rewrite>,
        clear: Option<&Compare>,
        pass: &mut Pass,
    ) -> Result<(), Error> {
        match self.try_rewrite(&group, clear).await {
            Ok(true) => {
                pass.rewritten += u64::try_from(group.len()).unwrap_or_default();
                return Ok(());
            }
            Ok(false) | Err(client::Error::TooLarge) => {}
            Err(error) => return Err(unavailable(error)),
        }
        for one in &group {
            match self.try_rewrite(std::slice::from_ref(one), clear).await {
                Ok(true) => pass.rewritten += 1,
                Ok(false) => pass.contended += 1,
                Err(client::Error::TooLarge) => {
                    let key = String::from_utf8_lossy(&one.key);
                    tracing::error!(%key, "value is too large for etcd once encrypted; it stays as it is");
                    pass.refused += 1;
                }
                Err(error) => return Err(unavailable(error)),
            }
        }
        Ok(())
    }

    async fn try_rewrite(
        &self,
        group: &[Rewrite],
        clear: Option<&Compare>,
    ) -> Result<bool, client::Error> {
        let put = |one: &Rewrite| {
            let (key, value) = (one.key.clone(), one.value.clone());
            RequestOp { request: Some(Request::Put(PutRequest { key, value })) }
        };
        let request = TxnRequest {
            compare: group
                .iter()
                .map(|one| unchanged(one.key.clone(), one.since))
                .chain(clear.cloned())
                .collect(),
            success: group.iter().map(put).collect(),
            failure: Vec::new(),
        };
        let answer: TxnResponse = self.client.write(TXN, request).await?;
        Ok(answer.succeeded)
    }

    /// Stores data keys, if none has changed since `state` and `also` holds; says whether it did.
    async fn put(
        &self,
        state: &State,
        admitted: Revision,
        keys: &[DataKey],
        also: Option<Compare>,
    ) -> Result<bool, Error> {
        let no_key_changed = no_key_changed(&self.layout, state);
        let (admitted, _) = self.roster.condition(admitted);
        let put = |(place, key): (u8, &DataKey)| {
            let at = key.key();
            let value = self.layout.write(&at, &key.body(), place);
            let put = PutRequest { key: self.layout.encode(&at), value };
            RequestOp { request: Some(Request::Put(put)) }
        };
        let request = TxnRequest {
            compare: [no_key_changed, admitted].into_iter().chain(also).collect(),
            success: (0..=u8::MAX).zip(keys).map(put).collect(),
            failure: Vec::new(),
        };
        let answer: TxnResponse = self.client.write(TXN, request).await.map_err(unavailable)?;
        if answer.succeeded {
            let at = answer.header.map_or(0, |header| header.revision);
            let late = |_| Error::Unavailable { reason: "etcd does not report changes".to_owned() };
            tokio::time::timeout(LAG, self.cache.reached(end(at))).await.map_err(late)?;
        }
        Ok(answer.succeeded)
    }

    /// Stores a new data key, which is used once every server can open it; returns its id.
    pub(super) async fn rekey(&self) -> Result<String, Error> {
        let made = self.roster.admission().await?;
        let state = self.cache.load();
        let keys = stored_keys(&state).map_err(key_error)?;
        if keys.iter().any(|key| matches!(key.state, KeyState::Pending | KeyState::Active)) {
            return Err(under_way());
        }
        // A data key that was removed from etcd still seals values here, until this key replaces it.
        if !keys.iter().any(|key| key.state.seals()) && !self.layout.sealer().seals() {
            return Err(not_encrypted());
        }
        let new = self.layout.sealer().new_data_key(KeyState::Pending).map_err(key_error)?;
        let new = new.ok_or_else(not_encrypted)?;
        match self.put(&state, made, std::slice::from_ref(&new), None).await? {
            true => Ok(new.id()),
            false => Err(under_way()),
        }
    }
}

/// Logs a pass that rewrote values.
fn report_rewritten(values: u64, encrypted: bool, keys: &[DataKey]) {
    match decide::outcome(encrypted, keys) {
        Outcome::Decrypted => {
            tracing::warn!(values, "values in etcd were decrypted and are in the clear");
        }
        Outcome::Repaired => tracing::warn!(
            values,
            "an encrypted etcd held values in the clear or under an older data key; they are \
             encrypted now: check who writes to etcd"
        ),
        Outcome::Encrypted => tracing::info!(values, "values in etcd encrypted with the data key"),
    }
}

/// The data keys of a state, the oldest first.
fn stored_keys(state: &State) -> Result<Vec<DataKey>, KeyError> {
    let read = |record: &Arc<Record>| {
        DataKey::parse(&record.object()).map(|key| (number(record.created()), key))
    };
    let keys: Result<Vec<(i64, DataKey)>, KeyError> =
        state.members(&data_keys()).map(read).collect();
    let mut keys = keys?;
    keys.sort_by_key(|(created, key)| (key.number(), *created, key.id()));
    Ok(keys.into_iter().map(|(_, key)| key).collect())
}

fn all_retired(keys: &[DataKey]) -> bool {
    keys.iter().all(|key| key.state == KeyState::Retired)
}

fn key_error(error: KeyError) -> Error {
    Error::Unavailable { reason: error.to_string() }
}

fn unavailable(error: client::Error) -> Error {
    Error::Unavailable { reason: error.to_string() }
}
