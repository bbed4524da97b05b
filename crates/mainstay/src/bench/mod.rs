//! `mainstay bench`: measures speed and memory on this machine, in a closed loop.
//!
//! The load generator shares the machine with the server, so it must be cheap: requests are built
//! ahead, answers are parsed only as far as needed ([`load`]). Enter at [`Bench::run`].

#![expect(clippy::disallowed_methods, reason = "benchmarks measure real time")]

mod api;
mod disks;
mod graph;
mod load;
mod placement;
mod rules;
mod rules_rest;
mod server;
mod sessions;

use clap::{Args, Subcommand};

use crate::client;
use crate::error::Error as CommandError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the server under test cannot be started")]
    Start(#[source] std::io::Error),
    #[error("the server under test ended before it was ready: {said}")]
    NotReady { said: String },
    #[error("the connection to the server under test broke")]
    Connection(#[from] std::io::Error),
    #[error("the server under test answered {code} to {request}: {body}")]
    Refused { code: u16, request: String, body: String },
    #[error("the server under test answered something that is not HTTP/1.1")]
    NotHttp,
    #[error("the server under test counts {found} objects where {expected} were made")]
    Miscounted { found: usize, expected: usize },
    #[error("the graph under test failed")]
    Graph(#[source] mainstay_graph::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// Measure speed and memory on this machine
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Api(Box<api::Api>),
    Placement(Box<placement::Placement>),
    Graph(Box<graph::Graph>),
    Disks(Box<disks::Disks>),
    Rules(Box<rules::Rules>),
    Sessions(Box<sessions::Sessions>),
}

impl Bench {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        match &self.what {
            What::Api(api) => api.run().await,
            What::Placement(placement) => placement.run().await,
            What::Graph(graph) => graph.run().await,
            What::Disks(disks) => disks.run().await,
            What::Rules(rules) => rules.run().await,
            What::Sessions(sessions) => sessions.run().await,
        }
    }
}
