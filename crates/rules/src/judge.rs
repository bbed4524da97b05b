//! The judge: six daemons that keep rules satisfied while data, transfers and storage change.
//!
//! [`pass`] is one pass of one daemon: it finds work and does each piece in its own transaction, so
//! it may be stopped at any time and run again, by several servers at once. A pass takes no hint
//! about events; it reads the pending work from the catalog. [`Judge`] runs all six daemons in a
//! server.

#![expect(clippy::disallowed_methods, reason = "measures how long its own work takes")]

mod run;

use std::sync::Arc;
use std::time::Duration;

use mainstay_catalog::{Catalog, Daemon, Tx, values};
use mainstay_transfers::copy;
use mainstay_transfers::store::{self, Access};
use rand::SeedableRng;
use rand::rngs::SmallRng;
pub use run::{Judge, beat};
use tokio::time::Instant;

use crate::api::{Micros, RequestState, SECOND};
use crate::error::Result;
use crate::expression::Rse;
use crate::queue::given_up;
use crate::rule::delete::{self, Deleted};
use crate::rule::evaluate::{Evaluated, evaluate_attach, evaluate_detach};
use crate::rule::inject::{self, Injected};
use crate::rule::{Settings, repair, transfer};
use crate::{protocol, reap, suspect};

/// Storage as the reaper uses it.
pub trait Storage: Send + Sync + std::fmt::Debug {
    /// Removes one file; after an error the replica stays marked, to be retried.
    fn remove(&self, rse: &Rse, doomed: &reap::Doomed) -> std::result::Result<(), String>;

    /// Inspects the file of a replica; an error means that its state is unknown.
    fn look(&self, rse: &Rse, needed: &reap::Needed) -> std::result::Result<Found, String>;

    /// Whether a file of the right size is there, without reading it.
    fn is_there(&self, rse: &Rse, needed: &reap::Needed) -> std::result::Result<bool, String>;
}

/// The result of inspecting the file of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The file, as recorded in the catalog.
    Right,
    /// Another content.
    Wrong,
    /// No file.
    Nothing,
}

/// Storage that is reached through the protocols of RSEs. The files of an RSE without protocols are
/// managed elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Managed(pub Arc<Access>);

impl Storage for Managed {
    fn remove(&self, rse: &Rse, doomed: &reap::Doomed) -> std::result::Result<(), String> {
        let Some(best) = protocol::best(rse, "wan", "delete") else { return Ok(()) };
        // A replica without a known path was never written.
        let Ok(path) = protocol::path(rse, &doomed.did, doomed.path.as_deref()) else {
            return Ok(());
        };
        let way = store::way(&rse.protocols, "delete").unwrap_or(best);
        let removed = self.0.open(&rse.name, way).and_then(|store| store.remove(&path));
        removed.map_err(|error| error.to_string())
    }

    fn look(&self, rse: &Rse, needed: &reap::Needed) -> std::result::Result<Found, String> {
        let reap::Needed { bytes, adler32, md5, .. } = needed;
        if store::way(&rse.protocols, "read").is_none()
            && protocol::best(rse, "wan", "delete").is_none()
        {
            // The reaper removes no files here, so it still exists.
            return Ok(Found::Right);
        }
        let Some((file, _)) = self.open(rse, &needed.doomed)? else { return Ok(Found::Nothing) };
        let sums = copy::sums(file, md5.is_some()).map_err(|error| error.to_string())?;
        let differs = copy::differs(&sums, *bytes, adler32.as_deref(), md5.as_deref());
        Ok(if differs.is_some() { Found::Wrong } else { Found::Right })
    }

    fn is_there(&self, rse: &Rse, needed: &reap::Needed) -> std::result::Result<bool, String> {
        let opened = self.open(rse, &needed.doomed)?;
        Ok(opened.is_some_and(|(_, length)| i64::try_from(length) == Ok(needed.bytes)))
    }
}

/// A file that can be read, and its length.
type Readable = (Box<dyn std::io::Read + Send>, u64);

impl Managed {
    /// Opens the file of a replica; none if there is no file or it cannot be read from here.
    fn open(
        &self,
        rse: &Rse,
        doomed: &reap::Doomed,
    ) -> std::result::Result<Option<Readable>, String> {
        let Some(way) = store::way(&rse.protocols, "read") else { return Ok(None) };
        let Ok(path) = protocol::path(rse, &doomed.did, doomed.path.as_deref()) else {
            return Ok(None);
        };
        match self.0.open(&rse.name, way).and_then(|store| store.read(&path)) {
            Err(store::Error::Missing(_) | store::Error::NoFile(_)) => Ok(None),
            opened => opened.map(Some).map_err(|error| error.to_string()),
        }
    }
}

/// The parameters of one pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The current time.
    pub now: Micros,
    /// The seed of its random choices.
    pub seed: u64,
    /// This server's shard of the work: its index and the number of shards.
    pub shard: (i64, i64),
    /// The storage that files are removed from.
    pub storage: Arc<dyn Storage>,
}

impl Pass {
    /// A pass over everything at `now`, on storage that needs no keys.
    #[must_use]
    pub fn new(now: Micros, seed: u64) -> Self {
        Self { now, seed, shard: (0, 1), storage: Arc::new(Managed::default()) }
    }
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Pieces of work done.
    pub done: usize,
    /// Pieces postponed because of an error.
    pub failed: usize,
    /// Whether there is probably more work.
    pub more: bool,
}

/// How many pieces of work one pass takes.
const BATCH: usize = 100;

/// How many files the reaper claims at once.
const REMOVED_AT_ONCE: usize = 50;

/// Runs one pass of a daemon.
pub fn pass(catalog: &Catalog, daemon: Daemon, settings: &Settings, pass: &Pass) -> Result<Done> {
    match daemon {
        Daemon::Evaluator => evaluator(catalog, settings, pass),
        Daemon::Repairer => repairer(catalog, settings, pass),
        Daemon::Cleaner => cleaner(catalog, settings, pass),
        Daemon::Injector => injector(catalog, settings, pass),
        Daemon::Finisher => finisher(catalog, settings, pass),
        Daemon::Reaper => reaper(catalog, settings, pass),
    }
}

fn work(catalog: &Catalog, found: Vec<i64>, mut each: impl FnMut(i64) -> Result<bool>) -> Done {
    let mut done = Done { more: found.len() >= BATCH, ..Done::default() };
    for id in found {
        match each(id) {
            Ok(changed) => done.done += usize::from(changed),
            Err(error) => {
                tracing::warn!(id, %error, backend = catalog.backend(), "judge work failed; retrying later");
                done.failed += 1;
            }
        }
    }
    // Failed work is not retried at once.
    done.more &= done.done > 0;
    done
}

fn ids(tx: &mut Tx<'_>, sql: &str, params: &[mainstay_catalog::Value]) -> Result<Vec<i64>> {
    tx.query(sql, params)?.iter().map(|row| Ok(row.int(0)?)).collect()
}

fn evaluator(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now) = (pass.shard, pass.now);
    let waiting = catalog.read_blocking(move |tx| -> Result<_> {
        let sql = "SELECT id, did_id, rule_evaluation_action FROM updated_dids WHERE not_before <= ?1 AND did_id % ?2 = ?3
            ORDER BY id LIMIT 100";
        let rows = tx.query(sql, values![now, shard.1, shard.0])?;
        let waits = rows.iter().map(|row| Ok((row.int(0)?, (row.int(1)?, row.text(2)? == "D"))));
        waits.collect::<Result<Vec<_>>>()
    })?;
    let found = waiting.iter().map(|(id, _)| *id).collect();
    let waiting: std::collections::BTreeMap<i64, (i64, bool)> = waiting.into_iter().collect();
    Ok(work(catalog, found, |id| {
        let (did, detach) = waiting[&id];
        let mut round = 0;
        loop {
            let seed = pass.seed ^ (did as u64) ^ round;
            let evaluated = catalog.write_blocking(|tx| match detach {
                true => evaluate_detach(tx, did, settings, now),
                false => {
                    evaluate_attach(tx, did, settings, &mut SmallRng::seed_from_u64(seed), now)
                }
            });
            match evaluated {
                Ok(Evaluated::Whole) => return Ok(true),
                Ok(Evaluated::More) => round += 1,
                Err(error) => {
                    let later = now.saturating_add(60 * SECOND);
                    let sql = "UPDATE updated_dids SET not_before = ?2 WHERE id = ?1";
                    catalog.write_blocking(|tx| tx.execute(sql, values![id, later]))?;
                    return Err(error);
                }
            }
        }
    }))
}

fn repairer(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now, due) = (pass.shard, pass.now, pass.now.saturating_sub(settings.repair_age));
    let found = catalog.read_blocking(move |tx| {
        ids(
            tx,
            "SELECT id FROM rules WHERE state = 'S' AND repair_at <= ?1 AND deleted_at IS NULL
             AND (expires_at IS NULL OR expires_at >= ?2 OR locked = 1) AND id % ?3 = ?4 ORDER BY repair_at, id LIMIT 100",
            values![due, now, shard.1, shard.0],
        )
    })?;
    Ok(work(catalog, found, |id| {
        let mut rng = SmallRng::seed_from_u64(pass.seed ^ (id as u64));
        let seed = rand::RngExt::random::<u64>(&mut rng);
        catalog.write_blocking(|tx| {
            repair::repair_rule(tx, id, settings, &mut SmallRng::seed_from_u64(seed), now)
        })?;
        Ok(true)
    }))
}

fn cleaner(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now) = (pass.shard, pass.now);
    let expired = catalog.read_blocking(move |tx| {
        let sql = "SELECT id FROM dids WHERE expired_at < ?1 AND did_type <> 'F' AND id % ?2 = ?3 ORDER BY id LIMIT 100";
        ids(tx, sql, values![now, shard.1, shard.0])
    })?;
    let expired_dids = work(catalog, expired, |id| {
        catalog.write_blocking(|tx| crate::did::remove_expired(tx, id, now))
    });
    let found = catalog.read_blocking(move |tx| {
        ids(
            tx,
            "SELECT id FROM rules WHERE (deleted_at IS NOT NULL OR (expires_at < ?1 AND locked = 0 AND child_rule_id IS NULL))
             AND id % ?2 = ?3 ORDER BY id LIMIT 100",
            values![now, shard.1, shard.0],
        )
    })?;
    let mut cleaned = work(catalog, found, |id| {
        while catalog.write_blocking(|tx| delete::clean(tx, id, settings, now))? == Deleted::More {}
        Ok(true)
    });
    // Collections that were removed only in part wait for their rules, which are gone now.
    cleaned.more |= expired_dids.more
        || (expired_dids.failed == 0 && cleaned.done > 0 && expired_dids.done > 0);
    cleaned.done += expired_dids.done;
    cleaned.failed += expired_dids.failed;
    Ok(cleaned)
}

/// Does one step of each rule to be injected, so that no rule waits for a large one.
fn injector(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now) = (pass.shard, pass.now);
    let mut done = Done::default();
    let mut after = 0;
    loop {
        let found = catalog.read_blocking(move |tx| {
            ids(
                tx,
                "SELECT id FROM rules WHERE state = 'I' AND created_at <= ?1 AND repair_at <= ?1 AND deleted_at IS NULL
                 AND id % ?2 = ?3 AND id > ?4 ORDER BY id LIMIT 100",
                values![now, shard.1, shard.0, after],
            )
        })?;
        let last = found.last().copied().filter(|_| found.len() >= BATCH);
        let some = work(catalog, found, |id| {
            let seed = pass.seed ^ ((id as u64) << 20);
            let step = catalog.write_blocking(|tx| {
                inject::inject(tx, id, settings, &mut SmallRng::seed_from_u64(seed), now)
            })?;
            Ok(step != Injected::NotYet)
        });
        done.done += some.done;
        done.failed += some.failed;
        let Some(last) = last else { break };
        after = last;
    }
    // The next step, and rules made by splitting a container.
    done.more = done.done > 0;
    Ok(done)
}

fn finisher(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now) = (pass.shard, pass.now);
    let ended = catalog.read_blocking(move |tx| transfer::ended(tx, shard, 1_000))?;
    let mut done = Done { more: ended.len() >= 1_000, ..Done::default() };
    let mut count = |result: Result<()>, number: usize| match result {
        Ok(()) => done.done += number,
        Err(error) => {
            tracing::warn!(%error, "finishing transfers failed; retrying later");
            done.failed += number;
        }
    };
    for (file, rse) in catalog.read_blocking(|tx| suspect::proven(tx, shard, BATCH as i64))? {
        count(catalog.write_blocking(|tx| suspect::declare_bad_if_proven(tx, &file, &rse, now)), 1);
    }
    let (well, ill): (Vec<_>, Vec<_>) =
        ended.into_iter().partition(|ended| ended.state == RequestState::Done);
    for batch in well.chunks(BATCH) {
        let units: Vec<(i64, i64)> = batch.iter().map(|ended| ended.unit).collect();
        count(
            catalog.write_blocking(|tx| transfer::successful_transfer(tx, &units, now)),
            batch.len(),
        );
    }
    let (again, over): (Vec<_>, Vec<_>) =
        ill.into_iter().partition(|ended| transfer::is_retried(ended, settings));
    if !again.is_empty() {
        count(
            catalog.write_blocking(|tx| transfer::requeue(tx, &again, settings, now)),
            again.len(),
        );
    }
    for ended in over {
        let error = ended.error.clone().unwrap_or_else(|| ended.state.name().to_owned());
        let result = catalog
            .write_blocking(|tx| transfer::failed_transfer(tx, &[ended.unit], &error, None, now));
        count(result, 1);
    }
    done.more &= done.done > 0;
    Ok(done)
}

/// Checks whether the files of marked replicas that are needed again still exist. Returns whether
/// there may be more.
fn revive(catalog: &Catalog, rse: &Rse, pass: &Pass) -> Result<bool> {
    let now = pass.now;
    let needed = catalog.read_blocking(|tx| reap::needed_again(tx, rse.id, BATCH as i64, now))?;
    let (mut there, mut fetched, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let mut unseen = Unreached::default();
    for one in &needed {
        match pass.storage.look(rse, one) {
            Ok(Found::Right) => there.push(one.doomed.file),
            Ok(_) if one.locked => fetched.push(one.doomed.file),
            // Keep it: no better copy is known, and a transfer that reads it reports the
            // difference.
            Ok(Found::Wrong) => there.push(one.doomed.file),
            Ok(Found::Nothing) => gone.push(one.doomed.file),
            Err(error) => unseen.add(&one.doomed, error),
        }
    }
    unseen.warn(rse, "inspect");
    let more = needed.len() >= BATCH && unseen.number == 0;
    for (files, is_there) in [(there, true), (fetched, false)] {
        if !files.is_empty() {
            catalog.write_blocking(|tx| reap::revive(tx, rse.id, &files, is_there, now))?;
            catalog.write_blocking(|tx| reap::repair_soon(tx, rse.id, &files))?;
        }
    }
    if !gone.is_empty() {
        catalog.write_blocking(|tx| reap::forget(tx, rse.id, &gone, now))?;
    }
    Ok(more)
}

/// Checks whether files that were missing when they were read exist again.
fn look_for(catalog: &Catalog, rse: &Rse, pass: &Pass) -> Result<()> {
    let now = pass.now;
    let missing = catalog.read_blocking(|tx| suspect::missing(tx, rse.id, BATCH as i64, now))?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut unseen = Unreached::default();
    let (mut back, mut still) = (Vec::new(), Vec::new());
    for one in &missing {
        match pass.storage.is_there(rse, one) {
            Ok(true) => back.push(one.doomed.file),
            Ok(false) => still.push(one.doomed.file),
            Err(error) => {
                unseen.add(&one.doomed, error);
                still.push(one.doomed.file);
            }
        }
    }
    unseen.warn(rse, "look for");
    catalog.write_blocking(|tx| suspect::looked_for(tx, rse.id, (&back, &still), now))
}

/// Storage failures on one RSE. Only the first is logged, with their number, as they mostly have
/// one cause.
#[derive(Default)]
struct Unreached {
    number: usize,
    first: Option<(crate::api::Did, String)>,
}

impl Unreached {
    fn add(&mut self, doomed: &reap::Doomed, error: String) {
        self.number += 1;
        self.first.get_or_insert_with(|| (doomed.did.clone(), error));
    }

    fn warn(&self, rse: &Rse, operation: &str) {
        if let Some((file, error)) = &self.first {
            let files = self.number;
            tracing::warn!(error, %file, files, rse = rse.name, operation, "storage operation failed");
        }
    }
}

fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

fn reaper(catalog: &Catalog, settings: &Settings, pass: &Pass) -> Result<Done> {
    let (shard, now, begun) = (pass.shard, pass.now, Instant::now());
    let more = catalog.write_blocking(|tx| given_up::expire(tx, shard, now))?;
    let rses = catalog.read_blocking(crate::rse::all)?;
    let mut done = Done { more, ..Done::default() };
    let shared = store::shared_places(rses.iter().map(|rse| (rse.id, &rse.protocols[..])));
    for rse in rses.iter().filter(|rse| rse.id % shard.1 == shard.0) {
        let beside = shared.get(&rse.id).map_or(&[][..], Vec::as_slice);
        let doomed = catalog.write_blocking(|tx| -> Result<_> {
            let what = reap::decide_for(tx, rse, settings)?;
            let mut doomed = match rse.delete {
                true => reap::left_over(tx, (rse.id, beside), 1_000, now)?,
                false => Vec::new(),
            };
            let new = reap::mark(tx, (rse, beside), what, 1_000, now)?;
            doomed.retain(|old| new.iter().all(|new| new.file != old.file));
            doomed.extend(new);
            Ok(doomed)
        })?;
        let full = doomed.len() >= 1_000;
        let mut removed = Vec::with_capacity(doomed.len());
        let mut unremoved = Unreached::default();
        for some in doomed.chunks(REMOVED_AT_ONCE) {
            // Another reaper may process the same replicas, and a worker may have written one
            // again.
            let claimed = Instant::now();
            let now = now.saturating_add(micros(claimed - begun));
            let ours = catalog.write_blocking(|tx| reap::claim(tx, rse.id, some, now))?;
            let mut kept = Vec::new();
            for doomed in some.iter().filter(|doomed| ours.contains(&doomed.file)) {
                let gone = match doomed.shared {
                    true => Ok(()),
                    false if claimed.elapsed() > reap::REMOVING => break,
                    false => pass.storage.remove(rse, doomed),
                };
                match gone {
                    Ok(()) => removed.push(doomed.file),
                    Err(error) => {
                        unremoved.add(doomed, error);
                        kept.push(doomed.file);
                    }
                }
            }
            if !kept.is_empty() {
                done.failed += kept.len();
                catalog.write_blocking(|tx| reap::unclaim(tx, rse.id, &kept))?;
            }
        }
        unremoved.warn(rse, "delete");
        done.more |= revive(catalog, rse, pass)?;
        look_for(catalog, rse, pass)?;
        for batch in removed.chunks(BATCH) {
            let gone = catalog.write_blocking(|tx| reap::forget(tx, rse.id, batch, now))?;
            catalog.write_blocking(|tx| reap::repair_soon(tx, rse.id, batch))?;
            done.done += usize::try_from(gone).unwrap_or(usize::MAX);
        }
        done.more |= full && done.failed == 0;
    }
    Ok(done)
}
