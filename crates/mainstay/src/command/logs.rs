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
        let path = |tail: u64, follow: bool| {
            let (namespace, name) = (encode(self.place.of(client.namespace())), encode(name));
            format!(
                "/mainstay/v1/namespaces/{namespace}/instances/{name}/log?tail={tail}&follow={follow}"
            )
        };
        let asked = Call::get(path(self.tail.unwrap_or(0), self.follow));
        let mut pieces = client.stream(&asked).await?;
        loop {
            match pieces.piece().await {
                Ok(Some(piece)) => output::print(&String::from_utf8_lossy(&piece))?,
                Ok(None) => return Ok(0),
                Err(error) => {
                    // An answer that breaks off cannot tell why; the answer to the next request can.
                    let next = client.stream(&Call::get(path(1, false))).await;
                    return Err(self.incomplete(&error, next.err().as_ref()));
                }
            }
        }
    }

    fn incomplete(&self, error: &client::Error, next: Option<&client::Error>) -> Error {
        let instance = &self.instance;
        let cause = match next.and_then(client::Error::status) {
            Some(status) if status.code == 401 => {
                "the token was revoked or has expired; use another one".to_owned()
            }
            Some(status) => status.to_string(),
            None => format!(
                "{}; the node disconnected, or the output was read too slowly; try again, perhaps \
                 with --tail",
                error.explained()
            ),
        };
        Error::negative(format!("the log of instance {instance} is incomplete: {cause}"))
    }
}
