//! `mainstay capacity`: shows the free space by class, zone and node.

use clap::Args;
use mainstay_clock::{Clock, SystemClock};
use mainstay_volumes::cli;

use crate::connect::Connect;
use crate::error::Error;

/// Show free space: the largest volume of each class, how many of a size fit, and the space left
#[derive(Debug, Args)]
pub(crate) struct Capacity {
    #[command(flatten)]
    capacity: cli::CapacityArgs,
    #[command(flatten)]
    connect: Connect,
}

impl Capacity {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        Ok(self.capacity.run(&client, SystemClock::new().now()).await?)
    }
}
