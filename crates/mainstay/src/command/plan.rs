//! `mainstay plan`: shows the placement of replicas of manifests without changing anything.

use clap::Args;
use mainstay_clock::{Clock, SystemClock};
use mainstay_volumes::cli;

use crate::connect::Connect;
use crate::error::Error;

/// Show where replicas would be placed, without changing anything
#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    plan: cli::PlanArgs,
    #[command(flatten)]
    connect: Connect,
}

impl Plan {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.plan.is_live().then(|| self.connect.client()).transpose()?;
        Ok(self.plan.run(client.as_deref(), SystemClock::new().now()).await?)
    }
}
