//! Rules: how many copies of what must be where, and the locks that follow.
//!
//! One file for each thing that happens to a rule, named as the design names it: [`add`]
//! (`add_replication_rule`), [`delete`] (`delete_replication_rule`), [`evaluate`] (what attaching
//! and detaching entail), [`transfer`] (`successful_transfer`, `failed_transfer`), [`repair`],
//! [`inject`], [`update`] (also move and reduce). They share [`place`] (files get locks),
//! [`unlock`] (files lose them) and [`state`] (what a rule's locks make of it).

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

/// Numbers that steer rules and the judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A rule of so many locks is left to the injector.
    pub bulk: i64,
    /// The injector, the evaluator and deletion take so many files in one transaction.
    pub step: i64,
    /// How long a rule is stuck before the repairer looks at it.
    pub repair_age: Micros,
    /// How long a rule may be stuck before it is suspended.
    pub suspend_after: Micros,
    /// How long the repairer waits before a lock is tried again in place, by day.
    pub retry_delays: Vec<Micros>,
    /// How long a softly deleted rule lives on.
    pub soft_delete: Micros,
    /// How often a failed transfer is queued again.
    pub transfer_retries: i64,
    /// How long a failed transfer waits at first; later ones wait for the square of their number
    /// times as long.
    pub transfer_backoff: Micros,
    /// How many transfers from one RSE to another may be taken by workers at once.
    pub link_transfers: i64,
    /// How much of the transfers each activity may claim, 1 unless it says otherwise.
    pub activity_shares: BTreeMap<String, u32>,
    /// The reaper stops while so many data identifiers wait for the evaluator.
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
