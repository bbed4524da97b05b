//! `mainstay explain placement`: why a replica is where it is, candidate by candidate.

use clap::{Args, Subcommand};
use mainstay_server::clock::{Clock, SystemClock};
use mainstay_volumes::explain::explain;
use serde_json::json;

use super::plan::Shape;
use super::world;
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

/// Explain a decision
#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Placement(Box<Placement>),
}

/// Why the replicas of a volume are where they are, or why they are nowhere
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay explain placement rv/data               every replica of the volume `data`
  mainstay explain placement rv/data --replica 1   only data-1
  mainstay explain placement rv/data -o json")]
struct Placement {
    /// The volume: rv/NAME
    #[arg(value_name = "rv/NAME")]
    volume: String,
    /// Only this replica
    #[arg(long, value_name = "N")]
    replica: Option<u8>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
    #[command(flatten)]
    connect: Connect,
}

impl Explain {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let What::Placement(placement) = &self.what;
        placement.run().await
    }
}

impl Placement {
    async fn run(&self) -> Result<u8, Error> {
        let name = match self.volume.split_once('/') {
            None => self.volume.as_str(),
            Some((kind, name)) => {
                let kind = kind.to_ascii_lowercase();
                if !["rv", "replicatedvolume", "replicatedvolumes"].contains(&kind.as_str()) {
                    return Err(Error::usage("only volumes are placed: give rv/NAME"));
                }
                name
            }
        };
        let there = world::fetch(&self.connect.client()?).await?;
        let now = SystemClock::new().now();
        let explained = explain(there.world()?, name, self.replica, now)
            .map_err(|error| Error::negative(error.to_string()))?;
        match self.output {
            Shape::Table => output::print(&explained.table())?,
            Shape::Json => output::print_line(&output::json(&json!(explained)))?,
        }
        Ok(0)
    }
}
