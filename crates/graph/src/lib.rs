//! A transaction engine: it applies values in dependency order, keeps them applied, and explains
//! itself.
//!
//! You teach it what your values are with [`Descriptor`]s: how to create, change, delete and find
//! them, what they depend on, what is derived from them. Then you say what you want, as
//! [`Transaction`]s. The engine keeps a graph of all values. From it it works out which operations
//! are needed and in which order, plans them, carries them out, takes them back or tries again when
//! one fails, lets values wait for what they need, and after a restart compares what is wanted with
//! what is there.
//!
//! Where to enter: [`Builder`] makes an engine, [`Engine`] is the handle to use it, [`descriptor`] is
//! what you implement. Inside, [`walk`] decides what is done, [`graph`] holds what is known,
//! [`worker`] carries transactions through, and [`refresh`] compares with the south. *North* is who
//! wants something, *south* is where it is done.
//!
//! What always holds: a value is created after everything it depends on and deleted before it;
//! what is planned is what is done when nothing fails; nothing is executed before its plan is
//! written down; the engine reads no clock and does no input or output of its own accord, except
//! through what it was given.

pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod descriptor;
pub mod engine;
mod erased;
mod execute;
mod graph;
#[cfg(feature = "grpc")]
pub mod grpc;
mod hash;
pub mod history;
pub mod journal;
mod key;
pub mod log;
mod metadata;
mod picture;
pub mod record;
mod refresh;
pub mod registry;
#[cfg(feature = "rest")]
pub mod rest;
#[cfg(feature = "scenario")]
pub mod scenario;
mod state;
pub mod stats;
pub mod status;
pub mod transaction;
mod value;
mod walk;
mod worker;

pub use clock::{Clock, ManualClock, SystemClock};
pub use descriptor::{
    Abilities, AnyOf, Context, Dependency, Derived, Descriptor, InvalidValue, Known, Model,
    OperationError, PrefixModel, Retrieved, UserLabels, ValueOf,
};
pub use engine::{Builder, Engine, Error, Options, View};
pub use history::Limits;
pub use journal::FileJournal;
pub use key::{Key, KeySet};
pub use metadata::MetadataIndexes;
pub use picture::Picture;
pub use record::{KeyError, OperationRecord, TransactionRecord};
pub use state::{Operation, Origin, ValueState};
pub use status::{StatusWatch, ValueStatus, WatchEvent};
pub use transaction::{Notification, OnFailure, Resync, Retry, Transaction, TransactionType};
pub use value::{Metadata, Value, ValueType};
pub use worker::Service;
