//! `mainstay plan`: shows the placement of replicas of manifests without changing anything.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mainstay_server::clock::{Clock, SystemClock};
use mainstay_volumes::plan::{Scores, plan};
use serde_json::json;

use super::world;
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

/// A table for people, or JSON for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
}

/// Show where replicas would be placed, without changing anything
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay plan -f cluster.yaml                    volumes over the nodes and groups in a file
  mainstay plan -f volume.yaml --live              a new volume over what a server has
  mainstay plan -f case.yaml --scores scores.yaml -o json

Manifests are read as they would stand in the store, status included. Exit code 3: a replica is
not placed.")]
pub(crate) struct Plan {
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
    #[command(flatten)]
    connect: Connect,
}

impl Plan {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let mut there = world::Fetched::default();
        if self.live {
            there = world::fetch(&self.connect.client()?).await?;
        }
        there.objects.extend(world::read(&self.files)?);
        let scores = match &self.scores {
            None => Scores::Ledger,
            Some(file) => Scores::read(&world::text(file)?)
                .map_err(|error| Error::usage(format!("{}: {error}", file.display())))?,
        };
        let planned = plan(there.world()?, &scores, SystemClock::new().now());
        match self.output {
            Shape::Table => output::print(&planned.table())?,
            Shape::Json => output::print_line(&output::json(&json!(planned)))?,
        }
        Ok(if planned.incomplete() { 3 } else { 0 })
    }
}
