//! The transfer queue in the catalog: taking requests with a lease, renewing leases, recording outcomes.
//!
//! A transaction that changes a request holds the row of its file. A lease that is not renewed expires,
//! and the request waits again; later reports of its former worker are ignored, and files that worker
//! has written are left to the catalog (`given_up`).

mod catalog_queue;
mod finish;
pub(crate) mod given_up;
mod show;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstay_catalog::order::{goes_with, lock_these};
use mainstay_catalog::{Column, Daemon, Tx, values};
use mainstay_transfers::choose::{self, Limit, Limits, Load, Source};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::SupportedProtocols;
use mainstay_transfers::{End, Job, JobProgress};

pub use self::catalog_queue::CatalogQueue;
pub use self::finish::{Finished, finish_each};
pub use self::show::{Shown, show};
use self::waiting::Waiting;
use crate::api::Micros;
use crate::error::Result;
use crate::expression::{Expression, Rse};
use crate::rule::Settings;
use crate::{protocol, suspect};

/// An RSE, and the protocols that workers read and write it with.
struct Site<'a> {
    rse: &'a Rse,
    read: Option<&'a Arc<Protocol>>,
    write: Option<&'a Arc<Protocol>>,
}

/// The catalog data that decisions about requests depend on.
pub(super) struct World<'a> {
    rses: &'a [Rse],
    sites: BTreeMap<i64, Site<'a>>,
    distances: BTreeMap<(i64, i64), i64>,
    limits: Limits,
    load: Load,
    /// File → available replicas: RSE and path.
    replicas: BTreeMap<i64, Vec<(i64, Option<String>)>>,
    /// (file, RSE) pairs whose replica is suspicious.
    suspects: BTreeSet<(i64, i64)>,
    /// (file, RSE) pairs whose replica is marked for removal, and may be needed again.
    marked: BTreeSet<(i64, i64)>,
}

/// The decision about a request.
pub(super) enum Verdict {
    /// It is copied from this RSE.
    Go(i64, Box<Job>),
    /// It waits, for this reason.
    Wait(String),
    /// It waits until other transfers end: a limit is reached.
    Full(String),
    /// It waits until the reaper has inspected a copy that was marked for removal.
    Marked,
    /// There is no replica to copy from.
    NoSources,
}

impl<'a> World<'a> {
    pub(super) fn read(
        tx: &mut Tx<'_>,
        rses: &'a [Rse],
        supported: &SupportedProtocols,
        load: Load,
        settings: &Settings,
    ) -> Result<Self> {
        let rows = tx.query("SELECT src_rse_id, dest_rse_id, distance FROM distances", &[])?;
        let distances = rows
            .iter()
            .map(|row| Ok(((row.int(0)?, row.int(1)?), row.int(2)?)))
            .collect::<Result<_>>()?;
        let mut limits = Limits { rses: Vec::new(), link: settings.link_transfers };
        let sql = "SELECT rse_expression, activity, direction, max_transfers FROM transfer_limits
            ORDER BY rse_expression, activity, direction";
        for row in tx.query(sql, &[])? {
            let found = Expression::parse(row.text(0)?).and_then(|parsed| parsed.resolve(rses));
            // A limit whose expression no longer matches any RSE has no effect.
            let Ok(found) = found else { continue };
            limits.rses.push(Limit {
                name: row.text(0)?.to_owned(),
                rses: found,
                activity: row.text(1)?.to_owned(),
                reads: row.text(2)? == "SOURCE",
                most: row.int(3)?,
            });
        }
        let site = |rse: &'a Rse| {
            let (read, write) =
                (supported.way(&rse.protocols, "read"), supported.way(&rse.protocols, "write"));
            (rse.id, Site { rse, read, write })
        };
        let sites = rses.iter().map(site).collect();
        let (replicas, suspects, marked) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Self { rses, sites, distances, limits, load, replicas, suspects, marked })
    }

    pub(super) fn read_replicas(&mut self, tx: &mut Tx<'_>, files: Vec<i64>) -> Result<()> {
        let sql = format!(
            "SELECT did_id, rse_id, path, state, CASE WHEN {} THEN 0 ELSE 1 END FROM replicas
             WHERE did_id IN ARRAY(?1) AND state IN ('A', 'B')",
            suspect::trusted("replicas")
        );
        for row in tx.query(&sql, values![files])? {
            if row.text(3)? == "B" {
                self.marked.insert((row.int(0)?, row.int(1)?));
                continue;
            }
            if row.flag(4)? {
                self.suspects.insert((row.int(0)?, row.int(1)?));
            }
            let replicas = self.replicas.entry(row.int(0)?).or_default();
            replicas.push((row.int(1)?, row.opt_text(2)?));
        }
        Ok(())
    }

    fn judge(&self, request: &Waiting, now: Micros) -> Verdict {
        let wait = |why: String| Verdict::Wait(why);
        let Some(Site { rse: to, write, .. }) = self.sites.get(&request.destination) else {
            return wait("its RSE is gone".to_owned());
        };
        if request.not_before > now {
            let left = (request.not_before - now) / crate::api::SECOND + 1;
            let why = request.error.as_deref().unwrap_or("no reason given");
            return wait(format!("it failed ({why}) and is tried again in {left} s"));
        }
        if write.is_none() {
            return wait(format!("{} has no protocol that a worker can write by", to.name));
        }
        if !to.write {
            return wait(format!("{} is closed for writing", to.name));
        }
        let all = self.replicas.get(&request.file).map_or(&[][..], Vec::as_slice);
        let all: Vec<_> = all.iter().filter(|one| one.0 != to.id).collect();
        if all.is_empty() {
            let mut marked = self.marked.range((request.file, i64::MIN)..=(request.file, i64::MAX));
            return match marked.any(|one| one.1 != to.id) {
                true => Verdict::Marked,
                false => Verdict::NoSources,
            };
        }
        let within = request.from.as_deref().map(|text| {
            Expression::parse(text).and_then(|parsed| parsed.resolve(self.rses)).unwrap_or_default()
        });
        let sources: Vec<Source> = all
            .iter()
            .filter(|one| within.as_ref().is_none_or(|within| within.contains(&one.0)))
            .filter_map(|one| self.sites.get(&one.0))
            .filter(|site| site.rse.read && site.read.is_some())
            .map(|Site { rse, .. }| Source {
                rse: rse.id,
                distance: self.distances.get(&(rse.id, to.id)).copied(),
                tape: rse.rse_type == "TAPE",
                busy: self.load.from(rse.id),
                failed: request.retries > 0 && request.last_source == Some(rse.id),
                suspect: self.suspects.contains(&(request.file, rse.id)),
            })
            .collect();
        let Some(best) = choose::source(&sources) else {
            let sites = all.iter().filter_map(|one| self.sites.get(&one.0));
            let names: Vec<&str> = sites.map(|site| site.rse.name.as_str()).collect();
            return wait(format!("no worker can read it from {}", names.join(", ")));
        };
        match self.limits.refuses(&self.load, best.rse, to.id, &request.activity) {
            Some(why) => Verdict::Full(why),
            None => {
                let path =
                    all.iter().find(|one| one.0 == best.rse).and_then(|one| one.1.as_deref());
                self.job(request, best.rse, path)
                    .map_or_else(Verdict::Wait, |job| Verdict::Go(best.rse, Box::new(job)))
            }
        }
    }

    fn job(&self, request: &Waiting, from: i64, path: Option<&str>) -> Result<Job, String> {
        let gone = || "its RSE is gone".to_owned();
        let Site { rse: from, read, .. } = self.sites.get(&from).ok_or_else(gone)?;
        let Site { rse: to, write, .. } = self.sites.get(&request.destination).ok_or_else(gone)?;
        let no_way = |rse: &Rse| format!("{} has no protocol that a worker supports", rse.name);
        let read = read.ok_or_else(|| no_way(from))?;
        let write = write.ok_or_else(|| no_way(to))?;
        let source = protocol::path(from, &request.did, path).map_err(|error| error.to_string())?;
        let destination = match &request.path {
            Some(path) => path.trim_start_matches('/').to_owned(),
            None if mainstay_transfers::protocol::has_place(&request.did) => {
                mainstay_transfers::protocol::hashed_path(&request.did)
            }
            None => return Err(protocol::no_place(&request.did).to_string()),
        };
        if !mainstay_transfers::protocol::stays_below(&destination) {
            return Err(format!("the path {destination:.200} leaves the folder of {}", to.name));
        }
        Ok(Job {
            request: request.id,
            attempt: 0,
            did: request.did.clone(),
            bytes: request.bytes,
            adler32: request.adler32.clone(),
            md5: request.md5.clone(),
            source: End { rse: from.name.clone(), protocol: Arc::clone(read), path: source },
            destination: End {
                rse: to.name.clone(),
                protocol: Arc::clone(write),
                path: destination,
            },
        })
    }
}

pub(super) fn hold(tx: &mut Tx<'_>, files: impl IntoIterator<Item = i64>) -> Result<()> {
    lock_these(tx, &files.into_iter().collect())?;
    Ok(())
}

/// The running transfers by source and destination, and when the first lease expires.
pub(super) fn running(tx: &mut Tx<'_>) -> Result<(Load, Option<Micros>)> {
    let sql =
        "SELECT source_rse_id, dest_rse_id, activity, COUNT(*), MIN(lease_until) FROM requests WHERE state = 'S'
         GROUP BY source_rse_id, dest_rse_id, activity";
    let (mut load, mut first) = (Load::default(), None);
    for row in tx.query(sql, &[])? {
        load.add(row.opt_int(0)?.unwrap_or(0), row.int(1)?, row.text(2)?, row.int(3)?);
        first = first.into_iter().chain(row.opt_int(4)?).min();
    }
    Ok((load, first))
}

/// Returns requests with an expired lease to the queue.
fn reclaim(tx: &mut Tx<'_>, now: Micros) -> Result<()> {
    let sql = "SELECT id, did_id FROM requests WHERE state = 'S' AND lease_until < ?1 ORDER BY id LIMIT 1000";
    let rows = tx.query(sql, values![now])?;
    if rows.is_empty() {
        return Ok(());
    }
    let files: Vec<i64> = rows.iter().map(|row| Ok(row.int(1)?)).collect::<Result<_>>()?;
    hold(tx, files)?;
    let ids: Vec<i64> = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    tx.execute(
        "UPDATE requests SET state = 'Q', worker = NULL, lease_until = NULL, moved = 0, updated_at = ?2
         WHERE id IN ARRAY(?1) AND state = 'S' AND lease_until < ?2",
        values![ids, now],
    )?;
    Ok(())
}

/// How many more requests are read than are wanted, as some may have to wait.
const SPARE: usize = 10;

/// How many requests are read at most, where many have no readable source. Where limits are reached
/// it is a small multiple of the number wanted, because the worker asks again whenever a file has
/// arrived.
const LOOKED_AT: usize = 10_000;

/// A worker's request for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the worker.
    pub worker: String,
    /// The maximum number of jobs.
    pub most: usize,
    /// The duration of the lease.
    pub lease: Micros,
    /// The protocols that the worker supports.
    pub supported: SupportedProtocols,
}

/// Leases jobs to a worker.
pub fn take(
    tx: &mut Tx<'_>,
    wanted: &Wanted,
    settings: &Settings,
    now: Micros,
) -> Result<Vec<Job>> {
    let Wanted { worker, most, lease, supported } = wanted;
    let (most, lease) = (*most, *lease);
    let (mut load, first) = running(tx)?;
    if first.is_some_and(|first| first < now) {
        reclaim(tx, now)?;
        (load, _) = running(tx)?;
    }
    let rses = crate::rse::all(tx)?;
    let written =
        rses.iter().filter(|rse| rse.write && supported.way(&rse.protocols, "write").is_some());
    let reached: Vec<i64> = written.map(|rse| rse.id).collect();
    if reached.is_empty() || most == 0 {
        return Ok(Vec::new());
    }
    let mut world = World::read(tx, &rses, supported, load, settings)?;
    let mut lines = waiting::lines(tx, &reached, most.saturating_add(SPARE), now)?;
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for line in &lines {
        *numbers.entry(line.activity.clone()).or_default() += line.len();
    }
    let shares = choose::share(most, &numbers, &settings.activity_shares);
    let mut chosen = Decided::default();
    let (mut looked_at, few) = (0, most.saturating_mul(4).saturating_add(100));
    // First each activity gets its share; then the rest is given to any activity.
    for second in [false, true] {
        for activity in numbers.keys() {
            let mut left = match second {
                true => most - chosen.jobs.len(),
                false => shares.get(activity).copied().unwrap_or(0),
            };
            while left > 0 && looked_at < if chosen.full { few } else { LOOKED_AT } {
                let open = |line: &waiting::Line| {
                    line.activity == *activity
                        && !world.limits.closes(&world.load, line.to, activity)
                };
                let some = waiting::next(tx, &mut lines, left + SPARE, open, now)?;
                if some.is_empty() {
                    break;
                }
                looked_at += some.len();
                let some = waiting::read(tx, &some)?;
                world.read_replicas(tx, some.iter().map(|one| one.file).collect())?;
                left -= decide(&mut world, &some, left, now, &mut chosen);
            }
        }
    }
    if !chosen.hopeless.is_empty() {
        give_up(tx, &chosen.hopeless, now)?;
    }
    if chosen.marked {
        tx.wake(Daemon::Reaper);
    }
    let jobs = lease_out(tx, chosen.jobs, worker, lease, now)?;
    for job in &jobs {
        note_path(tx, &rses, job)?;
    }
    Ok(jobs)
}

/// Stores the path of the new file with its replica, on an RSE that does not derive paths.
fn note_path(tx: &mut Tx<'_>, rses: &[Rse], job: &Job) -> Result<()> {
    let free = rses.iter().find(|rse| rse.name == job.destination.rse && !rse.deterministic);
    let Some(rse) = free else { return Ok(()) };
    tx.later(
        "UPDATE replicas SET path = ?3 WHERE rse_id = ?1 AND path IS NULL
         AND did_id = (SELECT q.did_id FROM requests q WHERE q.id = ?2)",
        values![rse.id, job.request, &job.destination.path],
    )?;
    Ok(())
}

/// A job, its file, and the number of its source RSE.
type Chosen = (Job, i64, i64);

/// The chosen jobs, and the requests that cannot be done, each with its file.
#[derive(Default)]
struct Decided {
    jobs: Vec<Chosen>,
    hopeless: Vec<(i64, i64)>,
    /// A request waits because a limit is reached.
    full: bool,
    /// A request waits for a copy that was marked for removal.
    marked: bool,
}

/// Chooses up to `most` among waiting requests of one activity. Returns how many.
fn decide(
    world: &mut World<'_>,
    some: &[Waiting],
    most: usize,
    now: Micros,
    into: &mut Decided,
) -> usize {
    let mut number = 0;
    for request in some {
        if number == most {
            break;
        }
        match world.judge(request, now) {
            Verdict::Go(from, job) => {
                world.load.add(from, request.destination, &request.activity, 1);
                into.jobs.push((*job, request.file, from));
                number += 1;
            }
            Verdict::NoSources => into.hopeless.push((request.id, request.file)),
            Verdict::Wait(_) => {}
            Verdict::Full(_) => into.full = true,
            Verdict::Marked => into.marked = true,
        }
    }
    number
}

/// Ends requests without any source; the finisher updates their rules.
fn give_up(tx: &mut Tx<'_>, requests: &[(i64, i64)], now: Micros) -> Result<()> {
    hold(tx, requests.iter().map(|one| one.1))?;
    let ids: Vec<i64> = requests.iter().map(|one| one.0).collect();
    tx.execute(
        "UPDATE requests SET state = 'N', err_msg = 'there is no replica to copy from', updated_at = ?2
         WHERE id IN ARRAY(?1) AND state = 'Q' AND NOT EXISTS (SELECT 1 FROM replicas p WHERE p.did_id = requests.did_id
         AND p.rse_id <> requests.dest_rse_id AND p.state IN ('A', 'B'))",
        values![ids, now],
    )?;
    tx.wake(Daemon::Finisher);
    Ok(())
}

fn lease_out(
    tx: &mut Tx<'_>,
    jobs: Vec<Chosen>,
    worker: &str,
    lease: Micros,
    now: Micros,
) -> Result<Vec<Job>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    hold(tx, jobs.iter().map(|one| one.1))?;
    tx.clear(&["w_pairs"])?;
    tx.load(
        "w_pairs",
        &[
            ("did", Column::ints(jobs.iter().map(|one| one.0.request))),
            ("rse", Column::ints(jobs.iter().map(|one| one.2))),
        ],
    )?;
    let these = goes_with(tx, ("", "requests", &["id"]), ("w_pairs", &["did"]));
    let sql = format!(
        "UPDATE requests SET state = 'S', worker = ?1, lease_until = ?2, attempt = attempt + 1, moved = 0, err_msg = NULL,
         submitted_at = ?3, updated_at = ?3, source_rse_id = (SELECT w.rse FROM w_pairs w WHERE w.did = requests.id)
         WHERE {these} AND state = 'Q' RETURNING id, attempt"
    );
    let rows = tx.query(&sql, values![worker, now.saturating_add(lease), now])?;
    let ours: BTreeMap<i64, i64> =
        rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect::<Result<_>>()?;
    let job = |(job, _, _): Chosen| {
        let attempt = *ours.get(&job.request)?;
        Some(Job { attempt, ..job })
    };
    Ok(jobs.into_iter().filter_map(job).collect())
}

/// Renews the leases that a worker still has, and records its progress. Returns the requests it has
/// lost.
pub fn renew(
    tx: &mut Tx<'_>,
    worker: &str,
    held: &[JobProgress],
    lease: Micros,
    now: Micros,
) -> Result<Vec<i64>> {
    let ids: Vec<i64> = held.iter().map(|one| one.request).collect();
    let rows = tx.query(
        "SELECT id, did_id, attempt FROM requests WHERE id IN ARRAY(?1) AND worker = ?2 AND state = 'S'",
        values![ids.clone(), worker],
    )?;
    let files: Vec<i64> = rows.iter().map(|row| Ok(row.int(1)?)).collect::<Result<_>>()?;
    hold(tx, files)?;
    let moved: BTreeMap<i64, &JobProgress> = held.iter().map(|one| (one.request, one)).collect();
    let mut kept = BTreeSet::new();
    for row in &rows {
        let (request, attempt) = (row.int(0)?, row.int(2)?);
        let Some(one) = moved.get(&request).filter(|one| one.attempt == attempt) else {
            continue;
        };
        let changed = tx.execute(
            "UPDATE requests SET lease_until = ?4, moved = ?5, updated_at = ?6 WHERE id = ?1 AND worker = ?2 AND attempt = ?3
             AND state = 'S'",
            values![one.request, worker, one.attempt, now.saturating_add(lease), one.moved, now],
        )?;
        if changed > 0 {
            kept.insert(one.request);
        }
    }
    Ok(ids.into_iter().filter(|id| !kept.contains(id)).collect())
}
