//! `mainstay explain placement`: explains the placement of a replica, candidate by candidate.

use clap::{Args, Subcommand};
use mainstay_server::clock::{Clock, SystemClock};
use mainstay_volumes::explain::explain;
use serde_json::json;

use super::plan::Shape;
use super::sessions::Place;
use super::world;
use crate::client::Call;
use crate::client::encode;
use crate::connect::Connect;
use crate::error::Error;
use crate::output::{self, Table};

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

/// Explain the placement of the replicas of a volume, or of the next instance of an application
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay explain placement app/game              every node, and why an instance could or could not go there
  mainstay explain placement rv/data               every replica of the volume `data`
  mainstay explain placement rv/data --replica 1   only data-1
  mainstay explain placement rv/data -o json")]
struct Placement {
    /// The volume or the application: rv/NAME, app/NAME
    #[arg(value_name = "rv/NAME")]
    volume: String,
    /// Explain only this replica
    #[arg(long, value_name = "N")]
    replica: Option<u8>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
    #[command(flatten)]
    place: Place,
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
        if let Some((kind, name)) = self.volume.split_once('/')
            && ["app", "application", "applications"].contains(&kind.to_ascii_lowercase().as_str())
        {
            return self.instances(name).await;
        }
        let name = match self.volume.split_once('/') {
            None => self.volume.as_str(),
            Some((kind, name)) => {
                let kind = kind.to_ascii_lowercase();
                if !["rv", "replicatedvolume", "replicatedvolumes"].contains(&kind.as_str()) {
                    return Err(Error::usage(
                        "placement is explained for volumes and applications only: name rv/NAME or app/NAME",
                    ));
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

    /// Every node, with the reason if an instance cannot be placed there.
    async fn instances(&self, name: &str) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let namespace = encode(self.place.of(&client));
        let name = encode(name);
        let object =
            format!("/apis/apps.mainstay.dev/v1/namespaces/{namespace}/applications/{name}");
        client.json(Call::get(object)).await?;
        let path = format!("/mainstay/v1/namespaces/{namespace}/applications/{name}/placement");
        let considered = client.json(Call::get(path)).await?;
        if self.output == Shape::Json {
            output::print_line(&output::json(&considered))?;
            return Ok(0);
        }
        let mut table = Table::new(&["NODE", "CPU LEFT", "MEMORY LEFT", "PREFERRED", "VERDICT"]);
        for one in considered.as_array().into_iter().flatten() {
            let because = one["because"].as_str().unwrap_or_default();
            table.rows.push(vec![
                output::cell(&one["node"]),
                format!("{}m", output::cell(&one["left"]["cpu"])),
                output::cell(&one["left"]["memory"]),
                if one["preferred"] == true { "yes" } else { "" }.to_owned(),
                if because.is_empty() { "fits" } else { because }.to_owned(),
            ]);
        }
        output::print(&table.text())?;
        Ok(0)
    }
}
