#![doc = include_str!("../README.md")]
//!
//! ## Where to enter
//!
//! [`Builder`] makes an engine, [`Engine`] is the handle to use it, [`Service`] does the work, and
//! [`Descriptor`] is the trait to implement. Inside, `walk` decides what is done, `graph` holds
//! what is known, `worker` carries transactions through, and `refresh` compares with the south.

#![warn(missing_docs)]

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod descriptor;
pub mod engine;
mod erased;
mod execute;
mod graph;
#[cfg(feature = "grpc")]
pub mod grpc;
mod hash;
pub mod health;
pub mod history;
pub mod journal;
mod key;
mod ledger;
pub mod log;
mod metadata;
mod picture;
#[cfg(feature = "prost")]
pub mod proto;
pub mod record;
mod refresh;
pub mod registry;
#[cfg(feature = "rest")]
pub mod rest;
#[cfg(feature = "scenario")]
pub mod scenario;
mod selector;
mod state;
pub mod stats;
pub mod status;
mod time;
pub mod transaction;
mod value;
mod walk;
mod worker;

pub use descriptor::{
    Abilities, AnyOf, Context, Dependency, Derived, Descriptor, InvalidValue, Known, Model,
    OperationError, PatternModel, PrefixModel, Retrieved, UserLabels, ValueOf,
};
pub use engine::{Builder, Engine, Error, Options, View};
pub use erased::BoxedDescriptor;
pub use health::Health;
pub use history::Limits;
pub use journal::FileJournal;
pub use key::{Key, KeySet};
pub use mainstay_clock::{Clock, ManualClock, SystemClock};
pub use metadata::{Handle, MetadataIndexes, MetadataType};
pub use picture::Picture;
pub use record::{KeyError, OperationRecord, TransactionRecord};
pub use selector::KeySelector;
pub use state::{Operation, Origin, ValueState};
pub use status::{StatusWatch, ValueStatus, WatchEvent};
pub use transaction::{Notification, OnFailure, Resync, Retry, Transaction, TransactionType};
pub use value::{Metadata, Value, ValueType};
pub use worker::Service;
