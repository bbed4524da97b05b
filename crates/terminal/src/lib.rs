//! The output of commands: tables for people, JSON and YAML for programs, errors with exit codes.
//!
//! The commands of the engines (`cli.rs` of each) and the binary print through [`output`], fail with
//! an [`Error`], and report measurements as [`report::Row`]s. Data goes to stdout, messages to stderr.

pub mod error;
pub mod output;
pub mod report;

pub use error::{Error, with_causes};
