//! The front door: HTTP dialects, authentication, metrics, and the server's own housekeeping.
//!
//! [`Options`] say how a server is to be, [`Server::start`] makes it so, [`Running`] is it. A
//! request comes in through `listen` (sockets, TLS, how long a connection may take) and goes to
//! `service`, which finds out who asks (`tokens`, `tls`), whether they may (`authorize`), and who
//! answers: `list`, `watch` and `write` for objects, `documents` for what describes the API,
//! `token_api` for tokens, `store_api` for operators, `health` for the rest. Objects are never decoded to be served: the
//! store has them as the bytes a client receives.

mod admit;
mod answers;
pub mod audit;
mod authority_api;
pub mod authorize;
mod body;
pub mod build_info;
mod certificates;
mod connection;
mod cursor;
pub mod discovery;
mod documents;
mod encoding;
pub mod engines;
mod events;
mod fairness;
mod files;
mod frames;
mod garbage;
mod gate;
mod heads;
mod health;
mod identity;
mod impersonate;
mod internal;
mod join_api;
#[cfg(any(test, feature = "fuzzing"))]
pub mod laws;
mod list;
mod listen;
mod metrics;
mod namespaces;
mod negotiate;
mod node_api;
pub mod openapi;
mod options;
mod owners;
mod patch;
mod path;
mod protobuf;
mod query;
mod readiness;
mod render;
mod reply;
mod reviews;
mod server;
mod service;
mod store_api;
mod store_watch;
pub mod table;

pub mod tls;
mod token_api;
mod tokens;
mod turns;
mod watch;
mod write;

pub use audit::AuditNote;
pub use engines::{Engines, Service};
pub use identity::{Claims, Role, SERVERS, User};
pub use mainstay_store::{Location, clock, registry};
pub use options::{Limits, Options};
pub use readiness::Check;
pub use server::{Error, Handle, Prepared, Running, Server};
pub use tokens::{Created, Description, Unlimited, Use, Uses, Wish};

#[cfg(test)]
mod golden;
