//! Recording the outcomes that workers report.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::{Daemon, Row, Tx, values};
use mainstay_transfers::Outcome;

use super::{given_up, hold};
use crate::api::{Did, Micros};
use crate::error::{Class, Error, Result};
use crate::rule::transfer;
use crate::suspect;

/// The result of recording a worker's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Requests whose file or RSE is gone: the worker removes the files it has written.
    pub unwanted: Vec<i64>,
    /// Requests that the worker did not hold, or that are about another file: their report is
    /// ignored. Files it has written for them are left to the catalog, unless they are unwanted.
    pub lost: Vec<i64>,
}

/// A request that a worker holds.
struct Running {
    file: i64,
    destination: i64,
    did: Did,
    source: Option<i64>,
    /// Whether a replica of its file is suspicious.
    suspected: bool,
}

impl Running {
    /// Parses the columns that [`finish`] selects.
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            file: row.int(1)?,
            destination: row.int(2)?,
            did: Did::new(row.text(4)?, row.text(5)?),
            source: row.opt_int(6)?,
            suspected: row.flag(7)?,
        })
    }
}

/// Records the outcomes of a worker's jobs. Returns the requests that the worker has lost.
fn finish(tx: &mut Tx<'_>, worker: &str, outcomes: &[Outcome], now: Micros) -> Result<Vec<i64>> {
    let ids: Vec<i64> = outcomes.iter().map(|one| one.request).collect();
    let rows = tx.query(
        "SELECT q.id, q.did_id, q.dest_rse_id, q.attempt, d.scope, d.name, q.source_rse_id,
         CASE WHEN EXISTS (SELECT 1 FROM suspicious_replicas s WHERE s.did_id = q.did_id) THEN 1 ELSE 0 END
         FROM requests q JOIN dids d ON d.id = q.did_id WHERE q.id IN ARRAY(?1) AND q.worker = ?2 AND q.state = 'S'",
        values![ids, worker],
    )?;
    let rses = crate::rse::all(tx)?;
    let mut held = BTreeMap::new();
    for row in &rows {
        held.insert((row.int(0)?, row.int(3)?), Running::read(row)?);
    }
    let ours = |one: &Outcome| {
        let running = held.get(&(one.request, one.attempt))?;
        let rse = rses.iter().find(|rse| rse.id == running.destination)?;
        (running.did == one.did && rse.name == one.rse).then_some(running)
    };
    let mut well = Vec::new();
    let mut ill = Vec::new();
    let mut lost = Vec::new();
    for one in outcomes {
        match (ours(one), &one.error) {
            (Some(running), None) => well.push((one, running)),
            (Some(running), Some(error)) => ill.push((one, running, error)),
            (None, _) => lost.push(one.request),
        }
    }
    let units: Vec<(i64, i64)> =
        well.iter().map(|(_, running)| (running.file, running.destination)).collect();
    transfer::finished_transfer(tx, &units, now)?;
    for (one, running) in well.iter().filter(|(_, running)| running.suspected) {
        // A later attempt may have found the finished file at the destination without reading the
        // source.
        let source = running.source.filter(|_| one.attempt == 1);
        suspect::confirm_content(tx, running.file, source, now)?;
    }
    if !ill.is_empty() {
        hold(tx, ill.iter().map(|(_, running, _)| running.file))?;
        for (one, running, error) in ill {
            if let (Some(fault), Some(source)) = (one.source_fault, running.source) {
                suspect::suspect(tx, (running.file, source), fault, error, now)?;
            }
            let (letter, error) = match one.given_up {
                true => ("Q", None),
                false => ("F", Some(crate::decide::clip(error, 255))),
            };
            tx.execute(
                "UPDATE requests SET state = ?4, err_msg = ?5, updated_at = ?6, lease_until = NULL WHERE id = ?1
                 AND worker = ?2 AND attempt = ?3 AND state = 'S'",
                values![one.request, worker, one.attempt, letter, error, now],
            )?;
        }
        tx.wake_workers();
        tx.wake(Daemon::Finisher);
    }
    Ok(lost)
}

/// Records the outcomes of a worker's jobs. Outcomes of requests that the worker has lost are
/// ignored, and files it has written for them are left to the reaper: another worker may own them
/// by now. A second call with the same outcomes changes nothing.
pub fn finish_each(
    catalog: &mainstay_catalog::Catalog,
    worker: &str,
    outcomes: &[Outcome],
    now: Micros,
) -> Result<Finished> {
    let lost = finish_or_lose(catalog, worker, outcomes, now)?;
    let ids: BTreeSet<i64> = lost.iter().copied().collect();
    let left: Vec<&Outcome> = outcomes.iter().filter(|one| ids.contains(&one.request)).collect();
    let unwanted = match left.is_empty() {
        true => Vec::new(),
        false => catalog.write_blocking(|tx| given_up::leave(tx, worker, &left, now))?,
    };
    Ok(Finished { unwanted, lost })
}

/// Calls [`finish`] for all outcomes, or one by one if one of them makes it fail.
fn finish_or_lose(
    catalog: &mainstay_catalog::Catalog,
    worker: &str,
    outcomes: &[Outcome],
    now: Micros,
) -> Result<Vec<i64>> {
    match catalog.write_blocking(|tx| finish(tx, worker, outcomes, now)) {
        Err(Error::Refused(refusal)) if refusal.class == Class::ReplicaNotFound => {}
        other => return other,
    }
    let mut lost = Vec::new();
    for one in outcomes {
        let alone = std::slice::from_ref(one);
        match catalog.write_blocking(|tx| finish(tx, worker, alone, now)) {
            Ok(more) => lost.extend(more),
            Err(Error::Refused(_)) => lost.push(one.request),
            Err(error) => return Err(error),
        }
    }
    Ok(lost)
}
