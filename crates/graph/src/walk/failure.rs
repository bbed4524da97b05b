//! Handles failures: the state of the value, the course of the transaction, the dependents.

use std::sync::Arc;

use super::{Abandoned, How, Outcome, Phase, Walk};
use crate::descriptor::{InvalidValue, OperationError};
use crate::graph::{Failure, Graph};
use crate::key::KeyId;
use crate::record::KeyError;
use crate::state::{Operation, Origin, ValueState};
use crate::transaction::TransactionType;
use crate::value::Value;

impl Walk {
    /// Whether this transaction has already failed on the value.
    pub(super) fn failed_already(&self, graph: &Graph, id: KeyId) -> bool {
        !self.reverting()
            && graph.node(id).is_some_and(|node| {
                node.last.transaction == self.settings.seq
                    && (node.state.is_failure() || node.state == ValueState::Unimplemented)
                    && self.log.mentions(id)
            })
    }

    /// Skips a value that failed, but keeps it wanted. If it still exists, it blocks the values that
    /// need it deleted.
    pub(super) fn fail_again(
        &self,
        graph: &mut Graph,
        id: KeyId,
        new: Option<Value>,
        how: How,
    ) -> Outcome {
        let gone = new.is_none();
        if how.base.is_none() && how.origin == Origin::North {
            let kind = self.settings.kind;
            let last = &mut graph.write(id).last;
            last.requested = new;
            if kind == TransactionType::NBTransaction {
                last.retry = self.settings.retry;
            }
        }
        let failed = graph.state(id).is_failure();
        if failed && (gone || self.counts(graph, id)) { Err(Abandoned) } else { Ok(()) }
    }

    /// Whether an error on this value counts for the transaction.
    pub(super) fn counts(&self, graph: &Graph, id: KeyId) -> bool {
        self.list.place(graph.base_of(id)).is_some_and(|place| self.done[place])
    }

    /// Stops the transaction, if it reverts on failure.
    pub(super) fn stop(&mut self) {
        if self.settings.reverts && self.phase == Phase::Forward {
            self.phase = Phase::Stopped;
            self.undone = 0;
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.mending == 0 && self.phase == Phase::Stopped
    }

    /// Records a failure. The caller has already set the rest of the node.
    pub(super) fn fail(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        operation: Operation,
        error: &OperationError,
        how: How,
    ) -> Arc<Failure> {
        let counts = self.counts(graph, id);
        let base = graph.base_of(id);
        let is_retriable = error.retriable().unwrap_or_else(|| {
            let descriptor = graph.node(id).and_then(|node| node.descriptor);
            descriptor.is_none_or(|id| self.settings.registry.get(id).is_retriable(error))
        });
        let attempt = if self.list.place(base).is_some() { self.settings.attempt + 1 } else { 1 };
        let given_up = self.settings.reverts && counts && !how.revert;
        let retry = graph.node(id).and_then(|node| node.last.retry).filter(|_| !given_up);
        let retrying = is_retriable && retry.is_some_and(|retry| retry.delay(attempt).is_some());
        let failure = Arc::new(Failure {
            operation,
            message: error.chain(),
            retriable: is_retriable,
            fields: Vec::new(),
        });
        let node = graph.write(id);
        // A derived value may exist although the retrieval did not find its base.
        let doubtful = node.base.is_some() && (node.uncertain || node.state == ValueState::Missing);
        node.state = if retrying { ValueState::Retrying } else { ValueState::Failed };
        node.error = Some(Arc::clone(&failure));
        node.uncertain = operation != Operation::Create || doubtful;
        self.failed.push((base, attempt));
        self.errors.push(KeyError {
            key: graph.key(id).clone(),
            op: operation,
            error: failure.message.clone(),
        });
        if counts {
            self.stop();
        }
        failure
    }

    /// Marks a value as not valid.
    pub(super) fn invalidate(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        operation: Operation,
        problem: InvalidValue,
    ) {
        let failure = Failure {
            operation,
            message: problem.reason,
            retriable: false,
            fields: problem.fields,
        };
        self.errors.push(KeyError {
            key: graph.key(id).clone(),
            op: operation,
            error: failure.message.clone(),
        });
        let node = graph.write(id);
        node.state = ValueState::Invalid;
        node.error = Some(Arc::new(failure));
        if self.counts(graph, id) {
            self.stop();
        }
    }
}
