//! Waiting requests, in the order in which they are to be processed.
//!
//! There may be very many, most of them for RSEs that no worker here reaches. Therefore they are
//! selected by destination and activity, of which there are few, and never skipped one by one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use mainstay_catalog::order::goes_with;
use mainstay_catalog::{Column, Row, Tx, values};

use crate::api::{Did, Micros, RequestState};
use crate::error::Result;

/// A waiting request.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) id: i64,
    pub(super) file: i64,
    pub(super) destination: i64,
    pub(super) bytes: i64,
    pub(super) activity: String,
    pub(super) retries: i64,
    pub(super) last_source: Option<i64>,
    pub(super) not_before: Micros,
    pub(super) did: Did,
    pub(super) adler32: Option<String>,
    pub(super) md5: Option<String>,
    pub(super) from: Option<String>,
    pub(super) path: Option<String>,
    pub(super) error: Option<String>,
}

const WAITING: &str = "SELECT q.id, q.did_id, q.dest_rse_id, q.bytes, q.activity, q.retry_count, q.source_rse_id, q.not_before,
    d.scope, d.name, d.adler32, d.md5, u.source_replica_expression, p.path, q.err_msg, q.state FROM requests q JOIN dids d ON d.id = q.did_id
    LEFT JOIN rules u ON u.id = q.rule_id LEFT JOIN replicas p ON p.did_id = q.did_id AND p.rse_id = q.dest_rse_id";

fn waiting(row: &Row) -> Result<Waiting> {
    Ok(Waiting {
        id: row.int(0)?,
        file: row.int(1)?,
        destination: row.int(2)?,
        bytes: row.int(3)?,
        activity: row.text(4)?.to_owned(),
        retries: row.opt_int(5)?.unwrap_or(0),
        last_source: row.opt_int(6)?,
        not_before: row.int(7)?,
        did: Did::new(row.text(8)?, row.text(9)?),
        adler32: row.opt_text(10)?,
        md5: row.opt_text(11)?,
        from: row.opt_text(12)?,
        path: row.opt_text(13)?,
        error: row.opt_text(14)?,
    })
}

/// Every destination and activity with waiting requests.
const QUEUES: &str = "WITH RECURSIVE d(dest) AS (SELECT (SELECT dest_rse_id FROM requests WHERE state = 'Q' ORDER BY dest_rse_id LIMIT 1) UNION ALL
        SELECT (SELECT MIN(q.dest_rse_id) FROM requests q WHERE q.state = 'Q' AND q.dest_rse_id > d.dest) FROM d
        WHERE d.dest IS NOT NULL),
    a(dest, activity) AS (SELECT d.dest, (SELECT MIN(q.activity) FROM requests q WHERE q.state = 'Q'
        AND q.dest_rse_id = d.dest) FROM d WHERE d.dest IS NOT NULL UNION ALL
        SELECT a.dest, (SELECT MIN(q.activity) FROM requests q WHERE q.state = 'Q' AND q.dest_rse_id = a.dest
        AND q.activity > a.activity) FROM a WHERE a.activity IS NOT NULL)
    SELECT dest, activity FROM a WHERE activity IS NOT NULL";

/// The waiting requests of one activity to one RSE, and how far they have been read.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) to: i64,
    pub(super) activity: String,
    /// Requests that were read ahead, the next first: priority and number.
    ready: VecDeque<(Reverse<i64>, i64)>,
    /// The last request that was read.
    last: Option<(i64, i64)>,
    /// There are no more requests in the catalog.
    ended: bool,
}

/// All queues to these destinations, with their first requests.
pub(super) fn lines(
    tx: &mut Tx<'_>,
    reached: &[i64],
    page: usize,
    now: Micros,
) -> Result<Vec<Line>> {
    let mut found = Vec::new();
    for queue in tx.query(QUEUES, &[])? {
        let (to, activity) = (queue.int(0)?, queue.text(1)?.to_owned());
        if !reached.contains(&to) {
            continue;
        }
        let mut line = Line { to, activity, ready: VecDeque::new(), last: None, ended: false };
        line.read_on(tx, page, now)?;
        found.push(line);
    }
    Ok(found)
}

impl Line {
    /// The number of requests that were read ahead.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    fn read_on(&mut self, tx: &mut Tx<'_>, page: usize, now: Micros) -> Result<()> {
        let limit = i64::try_from(page).unwrap_or(i64::MAX);
        let mut params = values![self.to, &self.activity, now, limit].to_vec();
        let behind = match self.last {
            None => "",
            Some((priority, id)) => {
                params.extend(values![priority, id].iter().cloned());
                "AND priority <= ?5 AND (priority < ?5 OR id > ?6)"
            }
        };
        let rows = tx.query(
            &format!(
                "SELECT priority, id FROM requests WHERE state = 'Q' AND dest_rse_id = ?1 AND activity = ?2
                 AND not_before <= ?3 {behind} ORDER BY priority DESC, id LIMIT ?4"
            ),
            &params,
        )?;
        self.ended = rows.len() < page;
        for row in &rows {
            let (priority, id) = (row.int(0)?, row.int(1)?);
            self.ready.push_back((Reverse(priority), id));
            self.last = Some((priority, id));
        }
        Ok(())
    }
}

/// Takes the next requests of an activity, up to `most`, from the queues that are `open`.
pub(super) fn next(
    tx: &mut Tx<'_>,
    lines: &mut [Line],
    most: usize,
    open: impl Fn(&Line) -> bool,
    now: Micros,
) -> Result<Vec<i64>> {
    let mut ids = Vec::new();
    let mut lines: Vec<&mut Line> = lines.iter_mut().filter(|line| open(line)).collect();
    while ids.len() < most {
        for line in lines.iter_mut().filter(|line| line.ready.is_empty() && !line.ended) {
            line.read_on(tx, most, now)?;
        }
        let foremost = lines.iter_mut().filter(|line| !line.ready.is_empty());
        let Some(line) = foremost.min_by_key(|line| line.ready.front().copied()) else { break };
        ids.extend(line.ready.pop_front().map(|(_, id)| id));
    }
    Ok(ids)
}

/// The details of these requests, in this order, without those that no longer wait.
pub(super) fn read(tx: &mut Tx<'_>, ids: &[i64]) -> Result<Vec<Waiting>> {
    tx.clear(&["w_ids"])?;
    tx.load("w_ids", &[("id", Column::ints(ids.iter().copied()))])?;
    let these = goes_with(tx, ("q.", "requests", &["id"]), ("w_ids", &["id"]));
    let sql = format!("{WAITING} WHERE {these} AND q.state = 'Q'");
    let rows = tx.query(&sql, &[])?;
    let mut found = BTreeMap::new();
    for row in &rows {
        let one = waiting(row)?;
        found.insert(one.id, one);
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

/// The first waiting requests of all queues.
pub(super) fn first(tx: &mut Tx<'_>, most: i64) -> Result<Vec<Waiting>> {
    let sql = format!("{WAITING} WHERE q.state = 'Q' ORDER BY q.priority DESC, q.id LIMIT ?1");
    tx.query(&sql, values![most])?.iter().map(waiting).collect()
}

/// The first requests that have ended and wait for the finisher, each with its state.
pub(super) fn ended(tx: &mut Tx<'_>, most: i64) -> Result<Vec<(Waiting, RequestState)>> {
    let sql = format!(
        "{WAITING} WHERE q.state IN ('D', 'F', 'L', 'N', 'O', 'A', 'M') ORDER BY q.id LIMIT ?1"
    );
    let rows = tx.query(&sql, values![most])?;
    rows.iter().map(|row| Ok((waiting(row)?, row.state(15)?))).collect()
}
