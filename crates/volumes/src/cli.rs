//! The commands of the engine: `mainstay plan`, `mainstay capacity` and `mainstay explain placement rv/NAME`.
//!
//! The binary mounts the arguments, chooses the server and passes a client. The decisions are those
//! of the controllers, taken on the objects of a server or of files.

mod fetch;

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use mainstay_client::Client;
use mainstay_terminal::Error;
use mainstay_terminal::output::{self, Shape};
use serde_json::json;

use crate::api::Quantity;
use crate::plan::{Scores, plan};

/// The arguments of `mainstay plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay plan -f cluster.yaml                    volumes over the nodes and groups in a file
  mainstay plan -f volume.yaml --live              a new volume over what a server has
  mainstay plan -f case.yaml --scores scores.yaml -o json

Manifests are read as they would stand in the store, status included. Exit code 3: a replica is
not placed.")]
pub struct PlanArgs {
    /// Files with manifests, YAML or JSON; - is stdin
    #[arg(short = 'f', long = "filename", value_name = "FILE", required_unless_present = "live")]
    files: Vec<PathBuf>,
    /// Plan with the objects of a server; objects of the files are added or replace them
    #[arg(long)]
    live: bool,
    /// Scores by group or group/thinPool, or the text error or narrowError, in place of capacity
    #[arg(long, value_name = "FILE")]
    scores: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
}

impl PlanArgs {
    /// Whether the objects of a server are needed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Prints the placement of every replica in the files, and among the objects of `server` if one
    /// is given; returns the exit code. It changes nothing.
    pub async fn run(&self, server: Option<&Client>, now: Timestamp) -> Result<u8, Error> {
        let mut there = match server {
            Some(client) => fetch::fetch(client).await?,
            None => fetch::Fetched::default(),
        };
        there.objects.extend(fetch::read(&self.files)?);
        let scores = match &self.scores {
            None => Scores::Ledger,
            Some(file) => Scores::read(&fetch::text(file)?)
                .map_err(|error| Error::usage(format!("{}: {error}", file.display())))?,
        };
        let planned = plan(there.world()?, &scores, now);
        match self.output {
            Shape::Table => output::print(&planned.table())?,
            Shape::Json => output::print_line(&output::json(&json!(planned)))?,
        }
        Ok(if planned.incomplete() { 3 } else { 0 })
    }
}

/// The arguments of `mainstay capacity`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay capacity                                the largest volume that still fits
  mainstay capacity --size 100Gi                   and how many of 100 GiB do
  mainstay capacity --class fast -o json")]
pub struct CapacityArgs {
    /// Count volumes of this size
    #[arg(long, value_name = "SIZE")]
    size: Option<Quantity>,
    /// Show only this class
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
}

impl CapacityArgs {
    /// Prints the free space of a server by class, zone and node; returns the exit code.
    pub async fn run(&self, client: &Client, now: Timestamp) -> Result<u8, Error> {
        let size = self.size.map(|size| u64::try_from(size.value()).unwrap_or_default());
        if size == Some(0) {
            return Err(Error::usage("--size must be greater than 0"));
        }
        let there = fetch::fetch(client).await?;
        let found = crate::capacity::capacity(there.world()?, self.class.as_deref(), size, now);
        match self.output {
            Shape::Table => output::print(&found.table())?,
            Shape::Json => output::print_line(&output::json(&json!(found)))?,
        }
        Ok(0)
    }
}

/// Prints why the replicas of a volume are placed as they are, or only the replica with one id;
/// returns the exit code.
pub async fn explain(
    client: &Client,
    volume: &str,
    replica: Option<u8>,
    shape: Shape,
    now: Timestamp,
) -> Result<u8, Error> {
    let there = fetch::fetch(client).await?;
    let explained = crate::explain::explain(there.world()?, volume, replica, now)
        .map_err(|error| Error::negative(error.to_string()))?;
    match shape {
        Shape::Table => output::print(&explained.table())?,
        Shape::Json => output::print_line(&output::json(&json!(explained)))?,
    }
    Ok(0)
}
