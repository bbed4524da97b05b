//! Processes one transaction.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Service;
use super::prepare::items;
use crate::descriptor::SharedContext;
use crate::engine::{Error, Shared};
use crate::execute::{Executor, Stray, Surroundings};
use crate::graph::Graph;
use crate::hash::HashSet;
use crate::journal::{Desired, Entry, PlannedPart};
use crate::key::{Key, KeyId};
use crate::picture::Picture;
use crate::record::{Flags, InputValue, OperationRecord, TransactionRecord};
use crate::refresh::Findings;
use crate::registry::Registry;
use crate::state::{Operation, ValueState};
use crate::transaction::{Notification, Resync, Retry, Transaction, TransactionType, Wanted};
use crate::value::{Metadata, Value};
use crate::walk::{Conflicts, Derivations, List, Settings, Step, Walk, Walked};

/// Where the values of a transaction come from.
pub(super) enum Source {
    North(BTreeMap<Key, Wanted>),
    South(BTreeMap<Key, (Option<Value>, Option<Metadata>)>),
    /// Values that are known already.
    Again(Vec<Key>),
}

/// The plan's share of an execution.
struct Foreseen {
    /// The calls and their order, if calls may run ahead.
    conflicts: Option<Conflicts>,
    /// The derived values whose change the journal records.
    parts: HashSet<Key>,
    derivations: Arc<Derivations>,
}

/// A transaction of any kind.
pub(super) struct Work {
    pub(super) kind: TransactionType,
    pub(super) source: Source,
    pub(super) resync: Resync,
    pub(super) reverts: bool,
    pub(super) retry: Option<Retry>,
    pub(super) retry_for: Option<u64>,
    pub(super) attempt: u32,
    pub(super) description: String,
    pub(super) timeout: Option<Duration>,
    /// Whether it continues after a restart, with reverts that failed before it.
    pub(super) resumes: bool,
    /// Where to put a picture of the graph as it was retrieved.
    pub(super) retrieved: Option<Arc<OnceLock<Picture>>>,
}

impl Work {
    pub(super) fn north(transaction: Transaction) -> Self {
        Self {
            kind: TransactionType::NBTransaction,
            reverts: transaction.reverts(),
            source: Source::North(transaction.values),
            resync: transaction.resync,
            retry: transaction.retry,
            retry_for: None,
            attempt: 0,
            description: transaction.description,
            timeout: transaction.operation_timeout,
            resumes: false,
            retrieved: transaction.retrieved,
        }
    }

    pub(super) fn south(notification: Notification) -> Self {
        let mut work = Self::again(TransactionType::SBNotification, Vec::new());
        work.source = Source::South(notification.values);
        work
    }

    pub(super) fn again(kind: TransactionType, keys: Vec<Key>) -> Self {
        Self {
            kind,
            source: Source::Again(keys),
            resync: Resync::NotResync,
            reverts: false,
            retry: None,
            retry_for: None,
            attempt: 0,
            description: String::new(),
            timeout: None,
            resumes: false,
            retrieved: None,
        }
    }
}

impl Service {
    pub(super) fn surroundings(&self, work: &Work, seq: u64) -> Surroundings {
        let shared = SharedContext {
            transaction: seq,
            attempt: work.attempt,
            deadline: None,
            cancellation: self.stopping.clone(),
            indexes: self.inside.indexes.clone(),
        };
        let registry = Arc::clone(&self.inside.lock().registry);
        Surroundings::new(shared, registry, Arc::clone(&self.inside.clock), work.timeout)
    }

    fn settings(&self, work: &Work, surroundings: &Surroundings, executing: bool) -> Settings {
        Settings {
            journalled: self.journal.is_some(),
            seq: surroundings.seq,
            kind: work.kind,
            retry: work.retry,
            keeps_retry: work.resync == Resync::DownstreamResync,
            reverts: work.reverts,
            attempt: work.attempt,
            resync: work.resync != Resync::NotResync,
            repeats: work.resumes || work.kind == TransactionType::RetryFailedOps,
            registry: Arc::clone(&surroundings.registry),
            indexes: executing.then(|| surroundings.indexes.clone()),
        }
    }

    /// Plans a transaction without executing it.
    pub(super) async fn plan_only(&mut self, transaction: Transaction) -> Vec<OperationRecord> {
        let work = Work::north(transaction);
        let seq = self.inside.lock().next_seq;
        let surroundings = self.surroundings(&work, seq);
        let mut findings = Findings::default();
        let looks = if work.resync.refreshes() {
            self.looks(&surroundings, &work).await
        } else {
            Vec::new()
        };
        let mut shared = self.inside.lock();
        shared.graph.begin_trial();
        {
            let Shared { graph, history, .. } = &mut *shared;
            let remembered = |key: &Key| history.origin(key);
            for look in looks {
                let mut refresh = crate::refresh::Refresh {
                    graph,
                    registry: &surroundings.registry,
                    indexes: None,
                    remembered: &remembered,
                    findings: &mut findings,
                };
                refresh.apply(look.descriptor, look.found, &look.known, None);
            }
            findings.settle(graph);
        }
        let (items, _) = items(&mut shared, &work);
        let settings = self.settings(&work, &surroundings, false);
        let list = List::new(&shared.graph, &surroundings.registry, items);
        let walked = simulate(&mut shared.graph, settings, list, false);
        shared.graph.end_trial();
        shared.graph.sweep();
        walked.operations
    }

    async fn looks(
        &mut self,
        surroundings: &Surroundings,
        work: &Work,
    ) -> Vec<super::prepare::Look> {
        let first = match &work.source {
            Source::North(values) if !self.looked => Some(values),
            _ => None,
        };
        let mut looks = Vec::new();
        for descriptor in surroundings.registry.in_retrieve_order() {
            looks.extend(self.look(surroundings, descriptor, first, &mut Vec::new()).await);
        }
        looks
    }

    /// Executes a transaction.
    pub(super) async fn process(&mut self, work: Work) -> Result<Arc<TransactionRecord>, Error> {
        self.inside.accepting()?;
        let start = self.now();
        let seq = {
            let mut shared = self.inside.lock();
            let seq = shared.next_seq;
            shared.next_seq += 1;
            seq
        };
        let surroundings = self.surroundings(&work, seq);
        let mut findings = Findings::default();
        if work.resync.refreshes() {
            self.refresh_all(&surroundings, &work, &mut findings).await;
        }
        if let Some(retrieved) = &work.retrieved {
            let shared = self.inside.lock();
            retrieved.get_or_init(|| Picture::current(&shared.graph, &shared.registry, start));
        }
        let (list, plan, values, idle) = {
            let mut shared = self.inside.lock();
            let (items, values) = items(&mut shared, &work);
            let settings = self.settings(&work, &surroundings, false);
            let graph = &mut shared.graph;
            let list = List::new(graph, &surroundings.registry, items);
            graph.begin_trial();
            let plan = simulate(graph, settings, Arc::clone(&list), self.conduct.parallel > 1);
            // A resync that finds everything as wanted has nothing to execute.
            let idle = work.resync != Resync::NotResync
                && work.retry.is_none()
                && plan.operations.is_empty()
                && plan.warnings.is_empty()
                && !graph.is_changed();
            graph.end_trial();
            (list, plan, values, idle)
        };
        let record = Arc::new(TransactionRecord {
            pre_record: true,
            seq,
            kind: work.kind,
            resync: work.resync,
            description: work.description.clone(),
            retry_for: work.retry_for,
            attempt: work.attempt,
            start,
            stop: start,
            values,
            planned: plan.operations,
            executed: Vec::new(),
            errors: Vec::new(),
            reverted: false,
            ahead: Vec::new(),
            warnings: Vec::new(),
        });
        let parts = plan.parts.iter().map(|part| part.key.clone()).collect();
        self.announce(&work, &surroundings, &record, plan.parts)?;
        let conflicts = plan.conflicts.filter(|_| {
            let mut planned = record.planned.iter();
            planned.all(|operation| is_implemented(&surroundings.registry, operation))
        });
        let foreseen = Foreseen { conflicts, parts, derivations: plan.derivations };
        let walked = match idle {
            true => Walked::default(),
            false => self.execute(&work, &surroundings, list, foreseen, &mut findings).await,
        };
        let walked = self.settle(&work, &surroundings, walked, &mut findings).await;
        let stop = self.now();
        let complete = move |record: &mut TransactionRecord| {
            record.pre_record = false;
            record.executed = walked.operations;
            record.errors = walked.errors;
            record.reverted = walked.reverted;
            record.warnings = walked.warnings;
            record.warnings.append(&mut findings.warnings);
            record.ahead = findings.ahead;
            record.stop = stop;
        };
        self.conclude(record, complete, walked.failed, findings.touched)
    }

    /// Writes the plan to log and journal before the first operation. It is flushed at once only if a
    /// retrieval would not show what was done: after a crash of the machine that loses the plan, the
    /// transaction never happened, and a resync removes its traces.
    fn announce(
        &mut self,
        work: &Work,
        surroundings: &Surroundings,
        record: &Arc<TransactionRecord>,
        parts: Vec<PlannedPart>,
    ) -> Result<(), Error> {
        if let Some(log) = &mut self.log {
            log.before(record);
        }
        {
            let mut shared = self.inside.lock();
            if !record.planned.is_empty() {
                shared.history.begin(Arc::clone(record));
            }
        }
        if self.journal.is_some() && !record.planned.is_empty() {
            let changes = match &work.source {
                Source::North(values) => {
                    record.values.iter().filter_map(|input| wish(work, values, input)).collect()
                }
                // A retry or a notification leaves the wanted values and their options as they are.
                Source::Again(_) | Source::South(_) => Vec::new(),
            };
            let retrievable =
                record.planned.iter().all(|one| is_retrievable(&surroundings.registry, one));
            let durable = !parts.is_empty() || !retrievable;
            let entry = Entry::Begin { seq: record.seq, reverts: work.reverts, changes, parts };
            let noted = self.note(&entry, durable);
            if noted.is_err() {
                self.inside.lock().history.end(record.seq);
            }
            return noted;
        }
        Ok(())
    }

    async fn execute(
        &mut self,
        work: &Work,
        surroundings: &Surroundings,
        list: Arc<List>,
        foreseen: Foreseen,
        findings: &mut Findings,
    ) -> Walked {
        let settings = self.settings(work, surroundings, true);
        let Foreseen { conflicts, parts, derivations } = foreseen;
        // A value that is not valid changes the course of the walk: then no call runs ahead.
        let acceptable = conflicts.is_none() || {
            let graph = &self.inside.lock().graph;
            list.items().iter().all(|item| {
                let key = graph.key(item.id);
                let descriptor = surroundings.registry.for_key(key).zip(item.value.as_ref());
                descriptor.is_none_or(|(id, value)| {
                    surroundings.registry.get(id).validate(key, value).is_ok()
                })
            })
        };
        let mut walk = Walk::new(settings, list).with_derivations(derivations);
        let conflicts = conflicts.filter(|_| acceptable);
        if conflicts.is_some() {
            walk = walk.with_conflicts();
        }
        let mut journal = self.journal.take();
        let mut executor = Executor::new(
            surroundings.clone(),
            journal.as_mut(),
            parts,
            self.conduct.parallel,
            conflicts,
        );
        let (mut answer, mut called) = (None, None);
        loop {
            let step = {
                let Shared { graph, stats, .. } = &mut *self.inside.lock();
                if let Some((descriptor, operation, took, well)) = called.take() {
                    stats.called(descriptor, operation, took, well);
                }
                walk.step(graph, answer.take())
            };
            match step {
                Step::Call(call) => {
                    let began = self.inside.clock.elapsed();
                    let (operation, descriptor) = (call.operation, call.descriptor);
                    let result = executor.call(call).await;
                    let took = self.inside.clock.elapsed().saturating_sub(began);
                    called = Some((descriptor, operation, took, result.is_ok()));
                    if let Err(error) = &result
                        && executor.looks_ahead()
                        && (work.reverts || executor.has_followers())
                    {
                        let rest = {
                            let graph = &mut self.inside.lock().graph;
                            walk.foresee(graph, Err(error.clone()))
                        };
                        let strays = executor.replan(rest).await;
                        self.take_back(surroundings, &mut executor, strays, findings).await;
                    }
                    answer = Some(result);
                }
                Step::Refresh(failed) => {
                    self.refresh_some(surroundings, &failed, findings).await;
                    let shared = &mut *self.inside.lock();
                    let touched = shared.graph.take_touched();
                    let now = surroundings.clock.now();
                    shared.history.revise(&shared.graph, &touched, surroundings.seq, now);
                    findings.touched.extend(touched);
                }
                Step::Done => break,
            }
        }
        let strays = executor.replan(None).await;
        self.take_back(surroundings, &mut executor, strays, findings).await;
        drop(executor);
        self.journal = journal;
        walk.finish()
    }

    /// Undoes, last first, the calls that ran ahead and were never reached.
    async fn take_back(
        &mut self,
        surroundings: &Surroundings,
        executor: &mut Executor<'_>,
        strays: Vec<Stray>,
        findings: &mut Findings,
    ) {
        let mut done: Vec<OperationRecord> = Vec::new();
        let mut undone: Vec<OperationRecord> = Vec::new();
        let mut doubtful: HashSet<KeyId> = HashSet::default();
        for Stray { call, answer } in strays {
            let (id, before) = {
                let mut shared = self.inside.lock();
                let id = shared.graph.intern(&call.key);
                (id, shared.graph.state(id))
            };
            let after = match call.operation {
                Operation::Delete => ValueState::Removed,
                _ => ValueState::Configured,
            };
            let mut forward = record_of(&call, before, after, false);
            let failed = match answer {
                Err(error) => Some((&mut forward, error)),
                Ok(metadata) => {
                    let back = opposite(&call, metadata);
                    undone.push(record_of(&back, after, before, true));
                    match executor.call(back).await {
                        Ok(metadata) => {
                            self.restore_metadata(surroundings, id, metadata);
                            None
                        }
                        Err(error) => undone.last_mut().map(|record| (record, error)),
                    }
                }
            };
            if let Some((record, error)) = failed {
                record.new_error = Some(error.chain().into());
                record.new_state = ValueState::Failed;
                let graph = &mut self.inside.lock().graph;
                if graph.node(id).is_some() {
                    graph.write(id).uncertain = true;
                }
                doubtful.insert(graph.base_of(id));
            }
            done.push(forward);
        }
        if !doubtful.is_empty() {
            self.refresh_some(surroundings, &doubtful, findings).await;
        }
        findings.ahead.extend(done.into_iter().rev().chain(undone));
    }

    fn restore_metadata(&self, surroundings: &Surroundings, id: KeyId, metadata: Option<Metadata>) {
        let graph = &mut self.inside.lock().graph;
        let key = graph.key(id).clone();
        let node = graph.node(id).filter(|node| node.base.is_none());
        let kept = match (node, metadata) {
            (Some(_), Some(metadata)) => {
                graph.write(id).metadata = Some(metadata.clone());
                Some(metadata)
            }
            (Some(node), None) => node.metadata.clone(),
            (None, _) => None,
        };
        let Some(descriptor) = surroundings.registry.for_key(&key) else {
            return;
        };
        let descriptor = surroundings.registry.get(descriptor);
        let Some(index) = descriptor.metadata_index() else {
            return;
        };
        match kept {
            Some(metadata) => surroundings.indexes.put(index, descriptor.label(&key), metadata),
            None => surroundings.indexes.remove(index, &descriptor.label(&key)),
        }
    }
}

/// The call that undoes another.
fn opposite(call: &crate::walk::Call, metadata: Option<Metadata>) -> crate::walk::Call {
    crate::walk::Call {
        operation: match call.operation {
            Operation::Create => Operation::Delete,
            Operation::Delete => Operation::Create,
            operation => operation,
        },
        old: call.new.clone(),
        new: call.old.clone(),
        metadata: metadata.or(call.metadata.clone()),
        revert: true,
        ..call.clone()
    }
}

/// Whether a retrieval shows the effect of a planned operation.
fn is_retrievable(registry: &Registry, operation: &OperationRecord) -> bool {
    let effective = !operation.flags.noop && !operation.flags.property;
    let descriptor = registry.for_key(&operation.key).filter(|_| effective);
    descriptor.is_none_or(|id| registry.get(id).abilities().retrieve)
}

/// Whether the descriptor implements a planned operation; if not, the execution will differ.
fn is_implemented(registry: &Registry, operation: &OperationRecord) -> bool {
    let descriptor = registry.for_key(&operation.key);
    let abilities = descriptor
        .filter(|_| !operation.flags.noop && !operation.flags.property)
        .map(|id| registry.get(id).abilities());
    abilities.is_none_or(|abilities| match operation.operation {
        Operation::Create => abilities.create,
        Operation::Delete => abilities.delete,
        _ => true,
    })
}

fn record_of(
    call: &crate::walk::Call,
    before: ValueState,
    after: ValueState,
    revert: bool,
) -> OperationRecord {
    OperationRecord {
        operation: call.operation,
        key: call.key.clone(),
        prev_state: before,
        new_state: after,
        prev_value: call.old.clone(),
        new_value: call.new.clone(),
        prev_error: None,
        new_error: None,
        flags: Flags { derived: call.base.is_some(), revert, ..Flags::default() },
    }
}

/// The journal's entry for a given value.
fn wish(
    work: &Work,
    values: &BTreeMap<Key, Wanted>,
    input: &InputValue,
) -> Option<(Key, Option<Desired>)> {
    if input.origin != crate::state::Origin::North {
        return None;
    }
    let labels = values.get(&input.key).and_then(|wanted| wanted.labels.as_deref().cloned());
    let desired = input.value.clone().map(|value| Desired { value, labels, retry: work.retry });
    Some((input.key.clone(), desired))
}

/// Walks the graph as if every operation succeeded.
fn simulate(graph: &mut Graph, settings: Settings, list: Arc<List>, conflicts: bool) -> Walked {
    let mut walk = Walk::new(settings, list);
    if conflicts {
        walk = walk.with_conflicts();
    }
    let mut answer = None;
    while let Step::Call(_) = walk.step(graph, answer.take()) {
        answer = Some(Ok(None));
    }
    walk.finish()
}
