//! The front door: HTTP dialects, authentication, metrics, and the server's own housekeeping.

pub mod discovery;
pub mod openapi;
pub mod table;

#[cfg(test)]
mod golden;
