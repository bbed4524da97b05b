//! Replication rules: which copies of which files must exist, where, and who pays for them.
//!
//! Files are grouped in datasets, datasets in containers. A *rule* requests a number of copies of
//! one of them on the storage elements (RSEs) that match an expression; each copy is held by a
//! *lock*, and missing copies are requested as transfers. The *judge* keeps rules satisfied while
//! the tree below them changes, transfers end and storage fails.
//!
//! Decisions are pure functions in their own modules: [`expression`] (the RSEs that match),
//! [`select`] (the RSEs that are chosen), [`decide`] (states of locks, replicas and rules). The
//! catalog holds the data, on SQLite or PostgreSQL; [`did`], [`replica`], [`rse`], [`account`] and
//! [`rule`] read, decide and write within one transaction. Time and randomness are arguments
//! everywhere.

pub mod account;
pub mod api;
pub mod audit;
pub mod bench;
pub mod check;
pub mod cli;
pub mod decide;
pub mod did;
mod environment;
pub mod error;
pub mod explain;
pub mod expression;
pub mod identity;
pub mod judge;
pub mod logins;
pub mod protocol;
pub mod queue;
pub mod reap;
pub mod replica;
pub mod rse;
pub mod rule;
pub mod select;
pub mod suspect;

pub use environment::Environment;
pub use error::{Class, Error, Refusal, Result};
pub use rule::Settings;
