//! `mainstay explain placement`: explains the placement of a replica, candidate by candidate.

use clap::{Args, Subcommand};
use mainstay_clock::{Clock, SystemClock};
use mainstay_sessions::cli::Place;
use mainstay_terminal::output::Shape;

use crate::connect::Connect;
use crate::error::Error;

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
        let (kind, name) = self.volume.split_once('/').unwrap_or(("rv", &self.volume));
        let client = || self.connect.client();
        match kind.to_ascii_lowercase().as_str() {
            "rv" | "replicatedvolume" | "replicatedvolumes" => {
                let now = SystemClock::new().now();
                let (client, replica, shape) = (client()?, self.replica, self.output);
                Ok(mainstay_volumes::cli::explain(&client, name, replica, shape, now).await?)
            }
            "app" | "application" | "applications" => {
                let client = client()?;
                let namespace = self.place.of(client.namespace());
                Ok(mainstay_sessions::cli::explain(&client, namespace, name, self.output).await?)
            }
            _ => Err(Error::usage(
                "placement is explained for volumes and applications only: name rv/NAME or app/NAME",
            )),
        }
    }
}
