//! Handles `/mainstay`, which Rucio does not have: explanations, judge daemons run by hand, the catalog
//! check, and the queue for transfer tools.

use std::sync::Arc;

use mainstay_catalog::Daemon;
use mainstay_rules::api::{Did, RequestState, SECOND};
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::expression::{Expression, Operator};
use mainstay_rules::judge::{Managed, Pass};
use mainstay_rules::queue;
use mainstay_rules::rule::{read, repair, transfer, update};
use mainstay_transfers::store::SupportedProtocols;
use mainstay_transfers::{JobProgress, Outcome};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::{Call, Reply, number, text};

/// The daemon of this name.
pub(super) fn daemon(name: &str) -> Option<Daemon> {
    Some(match name {
        "evaluator" => Daemon::Evaluator,
        "repairer" => Daemon::Repairer,
        "cleaner" => Daemon::Cleaner,
        "injector" => Daemon::Injector,
        "finisher" => Daemon::Finisher,
        "reaper" => Daemon::Reaper,
        _ => return None,
    })
}

pub(super) async fn expression(call: &Call) -> Result<Reply> {
    let text = call.arg("expression").unwrap_or("").to_owned();
    let value = call
        .read(move |tx| {
            let rses = mainstay_rules::rse::all(tx)?;
            let (found, terms) = Expression::parse(&text)?.explain(&rses);
            let names = |ids: &std::collections::BTreeSet<i64>| {
                rses.iter().filter(|rse| ids.contains(&rse.id)).map(|rse| rse.name.clone()).collect::<Vec<_>>()
            };
            let terms: Vec<Value> = terms
                .iter()
                .map(|term| {
                    let operator = term.operator.map(|operator| match operator {
                        Operator::Union => "|",
                        Operator::Intersection => "&",
                        Operator::Difference => "\\",
                    });
                    json!({"term": term.term, "operator": operator, "matched": names(&term.matched), "after": names(&term.after)})
                })
                .collect();
            Ok(json!({"expression": text, "rses": names(&found), "terms": terms}))
        })
        .await?;
    Ok(Reply::Json(value))
}

pub(super) async fn explain(call: &Call, id: &str) -> Result<Reply> {
    let (id, file) = (id.to_owned(), call.arg("file").map(str::to_owned));
    let value = call
        .read(move |tx| {
            let rule = read::rule(tx, &id)?;
            let within = |text: &String| {
                Did::parse(text).unwrap_or_else(|| Did::new(rule.did.scope.clone(), text.clone()))
            };
            let file = file.as_ref().map(within);
            Ok(mainstay_rules::explain::explain(tx, &rule, file.as_ref(), 100)?.to_json())
        })
        .await?;
    Ok(Reply::Json(value))
}

pub(super) async fn repair_now(call: &Call, id: &str) -> Result<Reply> {
    let (id, now, seed) = (id.to_owned(), call.now(), call.service.around.seed());
    let found = id.clone();
    let rule = call.read(move |tx| read::rule(tx, &found)).await?;
    call.owner_or_privileged("repair a rule", &rule.account)?;
    // A repair by hand does not wait for the retry delay.
    let mut settings = call.service.settings.clone();
    settings.retry_delays = vec![0];
    let state = call
        .write(move |tx| {
            repair::repair_rule(tx, rule.id, &settings, &mut SmallRng::seed_from_u64(seed), now)
        })
        .await?;
    Ok(Reply::Json(json!({"id": id, "state": state})))
}

pub(super) async fn judge(call: &Call, name: &str) -> Result<Reply> {
    call.privileged("run the judge")?;
    let daemon = daemon(name).ok_or_else(|| {
        refuse(
            Class::InvalidObject,
            "The daemons of the judge are evaluator, repairer, cleaner, injector, finisher and reaper",
        )
    })?;
    if !call.body.is_null() {
        call.object()?;
    }
    let now = match text(&call.body, "now")?.or_else(|| call.arg("now")) {
        None => call.now(),
        Some(text) => update::read_time(text).ok_or_else(|| {
            refuse(Class::InvalidObject, "now should be a time such as 2026-11-15T22:00:00Z")
        })?,
    };
    let service = call.service.clone();
    let storage = Arc::new(Managed(Arc::clone(&service.access)));
    let pass = Pass { storage, ..Pass::new(now, service.around.seed()) };
    let done = tokio::task::spawn_blocking(move || {
        mainstay_rules::judge::pass(&service.catalog, daemon, &service.settings, &pass)
    })
    .await
    .map_err(|error| mainstay_rules::Error::Internal(error.to_string()))??;
    Ok(Reply::Json(json!({"done": done.done, "failed": done.failed, "more": done.more})))
}

pub(super) async fn check(call: &Call) -> Result<Reply> {
    call.privileged("check the catalog")?;
    let found = call.read(|tx| mainstay_rules::check::check(tx, 100)).await?;
    let shown = found.iter().map(|found| json!({"invariant": found.invariant, "what": found.what}));
    Ok(Reply::Json(json!({"violations": shown.collect::<Vec<_>>()})))
}

pub(super) async fn mend(call: &Call) -> Result<Reply> {
    call.privileged("repair the catalog")?;
    let now = call.now();
    let mended = call.write(move |tx| mainstay_rules::check::repair(tx, now)).await?;
    Ok(Reply::Json(json!({"mended": mended})))
}

/// Records a transfer tool's report on a request; the finisher daemon applies it.
pub(super) async fn report(call: &Call) -> Result<Reply> {
    call.privileged("report transfers")?;
    let did = Did::new(call.text("scope")?, call.text("name")?);
    let (rse, state) = (call.text("rse")?, call.text("state")?);
    let state = RequestState::read(&state).filter(|state| state.is_end()).ok_or_else(|| {
        refuse(Class::InvalidObject, "state is how a request ended, like DONE or FAILED")
    })?;
    let error = text(&call.body, "error")?.map(str::to_owned);
    let now = call.now();
    let found = call
        .write(move |tx| {
            let unit = mainstay_rules::replica::unit(tx, &did, &rse)?;
            transfer::report(tx, unit, state, error.as_deref(), now)
        })
        .await?;
    Ok(Reply::Json(json!({"found": found})))
}

/// The name of the calling worker, and its lease in seconds.
fn worker(call: &Call) -> Result<(String, i64)> {
    call.privileged("move files")?;
    let worker = call.text("worker")?;
    if worker.is_empty() || worker.len() > 100 {
        return Err(refuse(Class::InvalidObject, "worker is a name of at most 100 letters"));
    }
    let lease = number(&call.body, "lease")?.unwrap_or(60);
    if !(1..=86_400).contains(&lease) {
        return Err(refuse(Class::InvalidObject, "lease is 1 to 86400 seconds"));
    }
    Ok((worker, lease * SECOND))
}

fn list<T: serde::de::DeserializeOwned>(call: &Call, key: &str) -> Result<Vec<T>> {
    serde_json::from_value(call.field(key)?.clone())
        .map_err(|error| refuse(Class::InvalidObject, format!("{key}: invalid list: {error}")))
}

/// The schemes that a transfer tool supports; by default those of Mainstay's own workers.
fn supported(call: &Call) -> Result<SupportedProtocols> {
    if call.body.get("schemes").is_none_or(Value::is_null) {
        return Ok(SupportedProtocols::Ours);
    }
    Ok(SupportedProtocols::Schemes(list::<String>(call, "schemes")?.into_iter().collect()))
}

/// Gives requests to a transfer tool under a lease.
pub(super) async fn take(call: &Call) -> Result<Reply> {
    let (worker, lease) = worker(call)?;
    let most = number(&call.body, "most")?.unwrap_or(1).min(1_000);
    let most = usize::try_from(most)
        .map_err(|_| refuse(Class::InvalidObject, "most is a number of files"))?;
    let wanted = queue::Wanted { worker, most, lease, supported: supported(call)? };
    let (settings, now) = (call.service.settings.clone(), call.now());
    let jobs = call.write(move |tx| queue::take(tx, &wanted, &settings, now)).await?;
    let shown = jobs.iter().map(|job| {
        let mut value = json!(job);
        value["source"]["pfn"] = json!(job.source.protocol.name(&job.source.path));
        value["destination"]["pfn"] = json!(job.destination.protocol.name(&job.destination.path));
        value
    });
    Ok(Reply::Json(json!({"jobs": shown.collect::<Vec<_>>()})))
}

pub(super) async fn renew(call: &Call) -> Result<Reply> {
    let (worker, lease) = worker(call)?;
    let held: Vec<JobProgress> = list(call, "held")?;
    let now = call.now();
    let lost = call.write(move |tx| queue::renew(tx, &worker, &held, lease, now)).await?;
    Ok(Reply::Json(json!({"lost": lost})))
}

pub(super) async fn finish(call: &Call) -> Result<Reply> {
    let (worker, _) = worker(call)?;
    let outcomes: Vec<Outcome> = list(call, "outcomes")?;
    let (catalog, now) = (call.service.catalog.clone(), call.now());
    let finished =
        tokio::task::spawn_blocking(move || queue::finish_each(&catalog, &worker, &outcomes, now))
            .await
            .map_err(|error| mainstay_rules::Error::Internal(error.to_string()))??;
    Ok(Reply::Json(json!({"unwanted": finished.unwanted, "lost": finished.lost})))
}

/// Lists running transfers with their rate, and waiting ones with the reason.
pub(super) async fn moving(call: &Call) -> Result<Reply> {
    let most = match call.arg("most") {
        None => 100,
        Some(text) => {
            let most = text.parse().ok().filter(|most| *most >= 0);
            most.ok_or_else(|| refuse(Class::InvalidObject, "most is a number of files"))?
        }
    };
    let (settings, now) = (call.service.settings.clone(), call.now());
    let (moving, waiting) = call.read(move |tx| queue::show(tx, most, &settings, now)).await?;
    let shown = |one: &queue::Shown| {
        let took = one.since.map(|since| now.saturating_sub(since));
        let rate =
            took.filter(|took| *took > 0).map(|took| one.moved.saturating_mul(SECOND) / took);
        json!({
            "scope": one.did.scope, "name": one.did.name, "source": one.source, "destination": one.destination,
            "bytes": one.bytes, "moved": one.moved, "bytes_per_second": rate, "activity": one.activity,
            "worker": one.worker, "why": one.why,
        })
    };
    let all = |list: &[queue::Shown]| list.iter().map(shown).collect::<Vec<_>>();
    Ok(Reply::Json(json!({"moving": all(&moving), "waiting": all(&waiting)})))
}
