//! `mainstay logs`: what an instance wrote to its output.

use clap::Args;

use super::sessions::Place;
use crate::client::Call;
use crate::client::encode;
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

/// Print the output of an instance
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay get inst                        the instances there are
  mainstay logs game-x7k2m9q4              all that is kept of its output
  mainstay logs game-x7k2m9q4 --tail 20 -f the last lines, and those to come")]
pub(crate) struct Logs {
    /// The instance
    #[arg(value_name = "INSTANCE")]
    instance: String,
    /// Only so many lines from the end
    #[arg(long, value_name = "N")]
    tail: Option<u64>,
    /// Stay, and print what is still to come
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
            encode(self.place.of(&client)),
            encode(name),
            self.tail.unwrap_or(0),
            self.follow,
        );
        let mut pieces = client.stream(&Call::get(path)).await?;
        while let Some(piece) = pieces.piece().await? {
            output::print(&String::from_utf8_lossy(&piece))?;
        }
        Ok(0)
    }
}
