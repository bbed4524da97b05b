//! Lists running and waiting transfers for people, with the reason for each wait.

use mainstay_catalog::{Tx, values};
use mainstay_transfers::store::SupportedProtocols;

use super::waiting::{self, Waiting};
use super::{Verdict, World, running};
use crate::api::{Did, Micros, RequestState};
use crate::error::Result;
use crate::rule::Settings;

/// A request in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a request")]
pub struct Shown {
    pub did: Did,
    pub source: Option<String>,
    pub destination: String,
    pub bytes: i64,
    pub moved: i64,
    pub activity: String,
    pub worker: Option<String>,
    /// When it started.
    pub since: Option<Micros>,
    /// Why it waits, if it does.
    pub why: Option<String>,
    pub error: Option<String>,
}

/// Lists running requests, and waiting ones with the reason, including those that have ended and
/// wait for the finisher: at most `most` of each.
pub fn show(
    tx: &mut Tx<'_>,
    most: i64,
    settings: &Settings,
    now: Micros,
) -> Result<(Vec<Shown>, Vec<Shown>)> {
    let rses = crate::rse::all(tx)?;
    let name = |id: Option<i64>| {
        id.and_then(|id| rses.iter().find(|rse| rse.id == id)).map(|rse| rse.name.clone())
    };
    let rows = tx.query(
        "SELECT d.scope, d.name, q.source_rse_id, q.dest_rse_id, q.bytes, q.moved, q.activity, q.worker, q.submitted_at
         FROM requests q JOIN dids d ON d.id = q.did_id WHERE q.state = 'S' ORDER BY q.submitted_at, q.id LIMIT ?1",
        values![most],
    )?;
    let mut moving = Vec::with_capacity(rows.len());
    for row in &rows {
        moving.push(Shown {
            did: Did::new(row.text(0)?, row.text(1)?),
            source: name(row.opt_int(2)?),
            destination: name(row.opt_int(3)?).unwrap_or_default(),
            bytes: row.int(4)?,
            moved: row.int(5)?,
            activity: row.text(6)?.to_owned(),
            worker: row.opt_text(7)?,
            since: row.opt_int(8)?,
            why: None,
            error: None,
        });
    }
    let ended = waiting::ended(tx, most)?;
    let queued = waiting::first(tx, most.saturating_sub(ended.len() as i64))?;
    let (load, _) = running(tx)?;
    let mut world = World::read(tx, &rses, &SupportedProtocols::Ours, load, settings)?;
    world.read_replicas(tx, queued.iter().map(|one| one.file).collect())?;
    let waits = |one: &Waiting, source: Option<String>, why: String| Shown {
        did: one.did.clone(),
        source,
        destination: name(Some(one.destination)).unwrap_or_default(),
        bytes: one.bytes,
        moved: 0,
        activity: one.activity.clone(),
        worker: None,
        since: None,
        why: Some(why),
        error: one.error.clone(),
    };
    let judged = ended.iter().map(|(one, how)| {
        let why = match (how, &one.error) {
            (RequestState::Done, _) => "it is done and waits to be judged".to_owned(),
            (RequestState::NoSources, None) => {
                "there is no replica to copy from, and it waits to be judged".to_owned()
            }
            (how, error) => {
                let why = error.as_deref().unwrap_or_else(|| how.name());
                format!("it failed ({why}) and waits to be judged")
            }
        };
        waits(one, name(one.last_source), why)
    });
    let next = queued.iter().map(|one| {
        let (source, why) = match world.judge(one, now) {
            Verdict::Go(from, _) => (name(Some(from)), "it is next for a worker".to_owned()),
            Verdict::NoSources => (None, "there is no replica to copy from".to_owned()),
            Verdict::Wait(why) | Verdict::Full(why) => (None, why),
            Verdict::Marked => (
                None,
                "its only copy was marked for removal; that copy is checked first".to_owned(),
            ),
        };
        waits(one, source, why)
    });
    Ok((moving, judged.chain(next).collect()))
}
