//! The HTTP client of the Kubernetes dialect.
//!
//! One [`Client`] speaks to one or several servers as one user. It keeps connections alive, goes on
//! to the next server when one cannot be reached, bounds every wait and every answer, and takes new
//! credentials ([`Client::set_access`]) without a restart. [`Call`] describes a request; an answer is
//! read whole ([`Client::send`], [`Client::bytes`], [`Client::json`]) or as a [`Stream`] of pieces or
//! lines. [`watch::Follow`] keeps a list current over broken connections and restarted servers.
//!
//! The client knows no kinds. [`tls`] is the only place that decides which server certificates are
//! accepted. The only crate of the project used here is `mainstay-clock`.

mod address;
mod call;
mod client;
mod dial;
mod error;
mod query;
mod status;
mod stream;
pub mod tls;
pub mod watch;

pub use address::{Address, AddressError};
pub use call::{APPLY_PATCH, Call, JSON, JSON_PATCH, MERGE_PATCH};
pub use client::{Access, Answer, Client, Options};
pub use dial::{Connection, Dialer, Transport};
pub use error::Error;
pub use query::{encode, with_query};
pub use status::{Cause, Details, Status};
pub use stream::Stream;
