//! Concludes a transaction: retrieves failed values, schedules retries, records revisions, statuses
//! and the transaction itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Service;
use super::process::Work;
use crate::engine::{Error, Shared};
use crate::execute::Surroundings;
use crate::graph::Graph;
use crate::hash::HashSet;
use crate::journal::{Desired, Doubt, Entry, Part, Recovered, RevisionChange, ScheduledRetry};
use crate::key::{Key, KeyId};
use crate::record::{KeyError, TransactionRecord};
use crate::refresh::Findings;
use crate::registry::Registry;
use crate::state::{Operation, ValueState};
use crate::time::later;
use crate::walk::Walked;

impl Service {
    /// Retrieves failed values, schedules retries, and removes deleted values.
    pub(super) async fn settle(
        &mut self,
        work: &Work,
        surroundings: &Surroundings,
        mut walked: Walked,
        findings: &mut Findings,
    ) -> Walked {
        let failed = failed_bases(&self.inside.lock().graph, &walked);
        if !failed.is_empty() {
            self.refresh_some(surroundings, &failed, findings).await;
        }
        if self.conduct.verify {
            let problems = self.verify(surroundings, &walked).await;
            walked.errors.extend(problems);
        }
        self.plan_retries(work, surroundings, &walked);
        walked
    }

    fn plan_retries(&mut self, work: &Work, surroundings: &Surroundings, walked: &Walked) {
        let mut groups: BTreeMap<(std::time::Duration, u32), BTreeSet<Key>> = BTreeMap::new();
        {
            let graph = &self.inside.lock().graph;
            for (base, attempt) in &walked.failed {
                let Some(node) = graph.node(*base) else {
                    continue;
                };
                let retrying = |id: KeyId| graph.state(id) == ValueState::Retrying;
                if !retrying(*base) && !node.derived.iter().copied().any(retrying) {
                    continue;
                }
                let Some(delay) = node.last.retry.and_then(|retry| retry.delay(*attempt)) else {
                    continue;
                };
                groups.entry((delay, *attempt)).or_default().insert(graph.key(*base).clone());
            }
        }
        let (now, seq) = (surroundings.clock.now(), surroundings.seq);
        for ((delay, attempt), keys) in groups {
            let reverts = {
                let graph = &self.inside.lock().graph;
                let reverts =
                    |key: &&Key| graph.find(key).is_some_and(|(_, node)| node.last.revert);
                keys.iter().filter(reverts).cloned().collect()
            };
            self.retries.push(ScheduledRetry {
                due: later(now, delay),
                retry_for: work.retry_for.unwrap_or(seq),
                failed_in: seq,
                attempt,
                keys: keys.into_iter().collect(),
                reverts,
            });
        }
    }

    /// Retrieves the changed values and compares them with the expected ones.
    async fn verify(&mut self, surroundings: &Surroundings, walked: &Walked) -> Vec<KeyError> {
        let touched: BTreeSet<Key> = {
            let graph = &self.inside.lock().graph;
            let base = |key: &Key| graph.id(key).map(|id| graph.key(graph.base_of(id)).clone());
            walked
                .operations
                .iter()
                .filter(|one| !one.flags.noop)
                .filter_map(|one| base(&one.key))
                .collect()
        };
        let registry = Arc::clone(&surroundings.registry);
        let descriptors: HashSet<_> =
            touched.iter().filter_map(|key| registry.for_key(key)).collect();
        let mut problems = Vec::new();
        for descriptor in registry.in_retrieve_order().filter(|id| descriptors.contains(id)) {
            let Some(look) = self.look(surroundings, descriptor, None, &mut Vec::new()).await
            else {
                continue;
            };
            let found: BTreeMap<&Key, _> =
                look.found.iter().map(|one| (&one.key, &one.value)).collect();
            let graph = &self.inside.lock().graph;
            for key in touched.iter().filter(|key| registry.for_key(key) == Some(descriptor)) {
                let node = graph.find(key).map(|(_, node)| node);
                let expected = node.filter(|node| node.state == ValueState::Configured);
                let gone = node.is_none_or(|node| {
                    matches!(node.state, ValueState::Removed | ValueState::Pending)
                });
                let problem = match (expected.and_then(|node| node.value.as_ref()), found.get(key))
                {
                    (Some(_), None) => "value is not configured",
                    (Some(value), Some(found))
                        if !registry.get(descriptor).equivalent(key, value, found) =>
                    {
                        "value is not equivalent"
                    }
                    (None, Some(_)) if gone => "value is not removed",
                    _ => continue,
                };
                let op = node.map_or(Operation::Undefined, |node| node.last.operation);
                problems.push(KeyError { key: key.clone(), op, error: problem.to_owned() });
            }
        }
        problems
    }

    /// Records the transaction and notifies watchers.
    pub(super) fn conclude(
        &mut self,
        begun: Arc<TransactionRecord>,
        complete: impl FnOnce(&mut TransactionRecord),
        failed: Vec<(KeyId, u32)>,
        earlier: Vec<KeyId>,
    ) -> Result<Arc<TransactionRecord>, Error> {
        let (mut changes, mut parts, mut revisions) = (Vec::new(), Vec::new(), None);
        let record;
        {
            let mut guard = self.inside.lock();
            let Shared { graph, history, stats, next_retry, registry, .. } = &mut *guard;
            history.end(begun.seq);
            // Copied only if a reader holds it right now.
            let mut completed = Arc::unwrap_or_clone(begun);
            complete(&mut completed);
            record = Arc::new(completed);
            let mut touched = graph.take_touched();
            touched.extend(earlier);
            self.inside.watchers.tell(graph, || {
                let failed = failed.into_iter().map(|(base, _)| base);
                let bases = touched.iter().copied().chain(failed).map(|id| graph.base_of(id));
                bases.filter(|id| graph.node(*id).is_some()).collect()
            });
            let gone: Vec<KeyId> = touched
                .iter()
                .copied()
                .filter(|id| graph.state(*id) == ValueState::Removed)
                .collect();
            for id in gone {
                graph.remove(id);
            }
            for id in touched.iter().copied() {
                graph.prune_derived(id);
            }
            touched.extend(graph.take_touched());
            touched.sort_unstable();
            touched.dedup();
            if self.journal.is_some() {
                changes = desires(graph, &touched);
                changes.extend(taken_over(graph, &record));
                parts = doubts(graph, registry, &touched, &mut self.doubted);
            }
            history.revise(graph, &touched, record.seq, record.stop);
            if std::mem::take(&mut self.restarted) {
                history.adopt(graph, record.seq, record.stop);
            }
            if self.journal.is_some() {
                revisions = history.take_changes(registry);
            }
            history.add(Arc::clone(&record), record.stop);
            graph.sweep();
            stats.finished(&record);
            *next_retry = self.retries.iter().map(|retry| retry.due).min();
        }
        if let Some(log) = &mut self.log {
            log.after(&record);
        }
        self.remember(&record, changes, parts, revisions)?;
        Ok(record)
    }

    fn remember(
        &mut self,
        record: &Arc<TransactionRecord>,
        changes: Vec<(Key, Option<Desired>)>,
        parts: Vec<(Key, Option<Part>)>,
        revisions: Option<Vec<RevisionChange>>,
    ) -> Result<(), Error> {
        if self.journal.is_none() {
            return Ok(());
        }
        let entry = Entry::Commit {
            seq: record.seq,
            changes,
            parts,
            retries: self.retries.clone(),
            record: revisions.is_some().then(|| Arc::clone(record)),
            revisions,
        };
        self.note(&entry, false)?;
        self.compact();
        Ok(())
    }

    /// Compacts the journal if that is worth it: the state and the kept history stay.
    fn compact(&mut self) {
        let Some(journal) = self.journal.as_mut().filter(|one| one.wants_compaction()) else {
            return;
        };
        let shared = self.inside.lock();
        let snapshot = Recovered {
            next_seq: shared.next_seq,
            desired: all_desires(&shared.graph),
            retries: self.retries.clone(),
            parts: all_doubts(&shared.graph, &shared.registry, &self.doubted),
            gaps: shared.history.gaps().to_vec(),
            since: Some(shared.history.start()),
            ..Recovered::default()
        };
        let registry = Arc::clone(&shared.registry);
        let history = shared.history.frozen();
        drop(shared);
        let first = std::iter::once(Entry::Snapshot(Box::new(snapshot)));
        journal.compact(&mut first.chain(history.rollups(&registry)));
    }
}

/// The base values that failed.
fn failed_bases(graph: &Graph, walked: &Walked) -> HashSet<KeyId> {
    let failing = |id: KeyId| graph.state(id).is_failure();
    walked
        .failed
        .iter()
        .map(|(base, _)| *base)
        .filter(|base| {
            failing(*base)
                || graph.node(*base).is_some_and(|node| node.derived.iter().copied().any(failing))
        })
        .collect()
}

fn desire(graph: &Graph, id: KeyId) -> Option<Desired> {
    let node = graph.node(id)?;
    let value = node.last.requested.clone()?;
    Some(Desired { value, labels: node.labels.as_deref().cloned(), retry: node.last.retry })
}

fn desires(graph: &Graph, touched: &[KeyId]) -> Vec<(Key, Option<Desired>)> {
    let bases =
        touched.iter().copied().filter(|id| graph.node(*id).is_none_or(|node| node.base.is_none()));
    bases.map(|id| (graph.key(id).clone(), desire(graph, id))).collect()
}

/// The values that a transaction deleted and whose keys now follow from a base.
fn taken_over(graph: &Graph, record: &TransactionRecord) -> Vec<(Key, Option<Desired>)> {
    let deleted = record.values.iter().filter(|input| input.value.is_none());
    let derived = |key: &Key| graph.find(key).is_some_and(|(_, node)| node.base.is_some());
    deleted.filter(|input| derived(&input.key)).map(|input| (input.key.clone(), None)).collect()
}

fn all_desires(graph: &Graph) -> BTreeMap<Key, Desired> {
    graph
        .nodes()
        .filter(|(_, _, node)| node.base.is_none())
        .filter_map(|(key, id, _)| Some((key.clone(), desire(graph, id)?)))
        .collect()
}

/// How a derived value may differ from what its base implies.
fn doubt(graph: &Graph, id: KeyId) -> Option<Part> {
    let node = graph.node(id).filter(|node| node.descriptor.is_some())?;
    let base = node.base.filter(|_| !node.is_out_of_sight())?;
    let created = node.error.as_ref().is_some_and(|error| error.operation == Operation::Create);
    let doubt = match (node.available, node.uncertain) {
        // The last operation on the base failed before the turn of this value.
        (true, false) if graph.state(base).is_failure() => Doubt::Uncertain,
        (true, false) => return None,
        (false, true) if created => Doubt::Unfinished,
        (_, true) => Doubt::Uncertain,
        (false, false) => Doubt::Absent,
    };
    Some(Part { base: graph.key(base).clone(), doubt, value: node.value.clone() })
}

/// The doubts about the derived values of the touched values, for the journal.
fn doubts(
    graph: &Graph,
    registry: &Registry,
    touched: &[KeyId],
    doubted: &mut BTreeSet<Key>,
) -> Vec<(Key, Option<Part>)> {
    let mut parts: BTreeMap<Key, Option<Part>> = BTreeMap::new();
    for id in touched.iter().copied() {
        // The conclusion from its base, if that came first, takes precedence: a value that was
        // deleted may be one that should have been created again.
        parts.entry(graph.key(id).clone()).or_insert_with(|| doubt(graph, id));
        let Some(node) = graph.node(id).filter(|node| node.base.is_none()) else {
            continue;
        };
        let failed = node.state.is_failure();
        for derived in node.derived.iter().copied() {
            if failed || doubted.contains(graph.key(derived)) {
                parts.insert(graph.key(derived).clone(), doubt(graph, derived));
            }
        }
        // Values that should be derived from it and never had their turn.
        if let (true, Some(descriptor), Some(value)) = (failed, node.descriptor, &node.value) {
            let (base, descriptor) = (graph.key(id), registry.get(descriptor));
            for derived in descriptor.derived(base, value).into_iter().filter(|one| !one.property) {
                if registry.for_key(&derived.key).is_some() && graph.find(&derived.key).is_none() {
                    let part = Part { base: base.clone(), doubt: Doubt::Absent, value: None };
                    parts.insert(derived.key, Some(part));
                }
            }
        }
    }
    parts.retain(|key, part| match part {
        Some(_) => {
            doubted.insert(key.clone());
            true
        }
        None => doubted.remove(key),
    });
    parts.into_iter().collect()
}

fn all_doubts(graph: &Graph, registry: &Registry, doubted: &BTreeSet<Key>) -> BTreeMap<Key, Part> {
    let known = doubted.iter().filter_map(|key| graph.id(key));
    let bases: BTreeSet<KeyId> = known.map(|id| graph.base_of(id)).collect();
    let bases: Vec<KeyId> = graph
        .nodes()
        .filter(|(_, id, node)| node.state.is_failure() || bases.contains(id))
        .map(|(_, id, _)| id)
        .collect();
    let all = doubts(graph, registry, &bases, &mut doubted.clone());
    all.into_iter().filter_map(|(key, part)| Some((key, part?))).collect()
}
