//! Rules and their locks.
//!
//! There is one file for each operation on a rule, named as in the design: [`add`]
//! (`add_replication_rule`), [`delete`] (`delete_replication_rule`), [`evaluate`] (the effects of
//! attaching and detaching), [`transfer`] (`successful_transfer`, `failed_transfer`), [`repair`],
//! [`inject`], [`update`] (also move and reduce). They share [`place`] (adds locks to files),
//! [`unlock`] (removes them) and [`state`] (the state of a rule from its locks).

pub mod add;
pub mod delete;
pub mod evaluate;
pub mod inject;
pub mod message;
pub(crate) mod place;
pub mod read;
pub mod repair;
pub(crate) mod state;
pub mod transfer;
pub(crate) mod unlock;
pub mod update;

use std::collections::BTreeMap;

use crate::api::{Micros, SECOND};

/// Settings of rules and the judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A rule with at least this many locks is left to the injector.
    pub bulk: i64,
    /// How many files the injector, the evaluator and deletion process in one transaction.
    pub step: i64,
    /// How long a rule is stuck before the repairer processes it.
    pub repair_age: Micros,
    /// How long a rule may be stuck before it is suspended.
    pub suspend_after: Micros,
    /// How long the repairer waits before it retries a lock in place, by day.
    pub retry_delays: Vec<Micros>,
    /// How long a soft-deleted rule remains.
    pub soft_delete: Micros,
    /// How often a failed transfer is retried.
    pub transfer_retries: i64,
    /// How long the first retry of a transfer waits; the n-th one waits n² times as long.
    pub transfer_backoff: Micros,
    /// How many transfers from one RSE to another may run at once.
    pub link_transfers: i64,
    /// The share of transfers of each activity; 1 by default.
    pub activity_shares: BTreeMap<String, u32>,
    /// The reaper pauses while this many data identifiers wait for the evaluator.
    pub reaper_backlog: i64,
}

impl Default for Settings {
    fn default() -> Self {
        let hour = 3600 * SECOND;
        Self {
            bulk: 10_000,
            step: 2_000,
            repair_age: 1800 * SECOND,
            suspend_after: 14 * 24 * hour,
            retry_delays: vec![2 * hour, 4 * hour, 6 * hour, 8 * hour],
            soft_delete: hour,
            transfer_retries: 3,
            transfer_backoff: 15 * SECOND,
            link_transfers: 4_000,
            activity_shares: BTreeMap::from([
                ("Express".to_owned(), 4),
                ("Recovery".to_owned(), 2),
            ]),
            reaper_backlog: 1_000,
        }
    }
}
