//! Integration tests of the rule engine and its REST API, on SQLite and on a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod allowed;
mod answers;
mod bound_keys;
mod bulk;
mod cases;
mod checker;
mod concurrency;
mod defects;
mod described;
mod disks;
mod dumped;
mod elsewhere;
mod given_up;
mod hostile;
mod judge;
mod large;
mod last_copy;
mod laws;
mod methods;
mod moving;
mod named;
mod permissions;
mod services;
mod storage;
mod storage_told;
mod surface;
mod tls;
mod uploads;
mod world;
mod wrong;
