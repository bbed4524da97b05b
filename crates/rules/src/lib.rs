//! Replication rules: which copies of which files must exist, where, and who pays for them.
//!
//! Files are gathered in datasets, datasets in containers. A *rule* asks for so many copies of one
//! of them on the storage elements (RSEs) an expression takes; each copy is held by a *lock*, and
//! what is missing is asked for as a transfer. The *judge* keeps rules right while the tree below
//! them changes, transfers end and storage fails.
//!
//! Decisions are pure and stand by themselves: [`expression`] (which RSEs), [`select`] (which of
//! them), [`decide`] (what follows from what). The catalog holds the facts, on SQLite or
//! PostgreSQL; [`did`], [`replica`], [`rse`], [`account`] and [`rule`] read, decide and write
//! within one transaction. Time and randomness are arguments everywhere.

pub mod account;
pub mod api;
pub mod audit;
pub mod bench;
pub mod check;
pub mod cli;
pub mod decide;
pub mod did;
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

pub use error::{Class, Error, Refusal, Result};
pub use rule::Settings;
