//! `mainstay disks`: lists the disks of all nodes, and provisions, formats and releases them.

use clap::Args;
use mainstay_disks::cli;

use crate::connect::Connect;
use crate::error::Error;

/// List disks, and provision, format or release them
#[derive(Debug, Args)]
#[command(mut_args(|argument| argument.global(true)))]
pub(crate) struct Disks {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: cli::Command,
}

impl Disks {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.command.run(|| self.connect.client()).await
    }
}
