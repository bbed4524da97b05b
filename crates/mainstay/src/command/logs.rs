//! `mainstay logs`: the output of an instance.

use clap::Args;
use mainstay_sessions::cli::Place;
use mainstay_terminal::output;

use crate::client::{self, Call, encode};
use crate::connect::Connect;
use crate::error::Error;

/// Print the output of an instance
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay get inst                        list the instances
  mainstay logs game-x7k2m9q4              print all of its output that is kept
  mainstay logs game-x7k2m9q4 --tail 20 -f print the last 20 lines and follow")]
pub(crate) struct Logs {
    /// The instance
    #[arg(value_name = "INSTANCE")]
    instance: String,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<u64>,
    /// Keep printing new output as it is written
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    connect: Connect,
}

impl Logs {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let name = self.instance.rsplit('/').next().unwrap_or_default();
        let path = format!(
            "/mainstay/v1/namespaces/{}/instances/{}/log?tail={}&follow={}",
            encode(self.place.of(client.namespace())),
            encode(name),
            self.tail.unwrap_or(0),
            self.follow,
        );
        let mut pieces = client.stream(&Call::get(path)).await?;
        while let Some(piece) = pieces.piece().await.map_err(|error| self.incomplete(&error))? {
            output::print(&String::from_utf8_lossy(&piece))?;
        }
        Ok(0)
    }

    fn incomplete(&self, error: &client::Error) -> Error {
        let (instance, cause) = (&self.instance, error.explained());
        Error::negative(format!(
            "the log of instance {instance} is incomplete: {cause}; the node disconnected, or the \
             output was read too slowly; try again, perhaps with --tail"
        ))
    }
}
