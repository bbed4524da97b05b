//! `mainstay sessions`: opens, closes and lists sessions, and shows the pools of applications.

use clap::Args;
use mainstay_sessions::cli;

use crate::connect::Connect;
use crate::error::Error;

/// Open, close and list sessions of applications, and show their pools
#[derive(Debug, Args)]
#[command(mut_args(|argument| argument.global(true)))]
pub(crate) struct Sessions {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: cli::Command,
}

impl Sessions {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let request_timeout = self.connect.request_timeout.max(self.command.shortest_timeout());
        let client = Connect { request_timeout, ..self.connect.clone() }.client()?;
        Ok(self.command.run(&client, client.namespace()).await?)
    }
}
