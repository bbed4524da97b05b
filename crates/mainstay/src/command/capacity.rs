//! `mainstay capacity`: shows the free space by class, zone and node.

use clap::Args;
use mainstay_server::clock::{Clock, SystemClock};
use mainstay_volumes::api::Quantity;
use mainstay_volumes::capacity::capacity;
use serde_json::json;

use super::plan::Shape;
use super::world;
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

/// Show free space: the largest volume of each class, how many of a size fit, and the space left
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay capacity                                the largest volume that still fits
  mainstay capacity --size 100Gi                   and how many of 100 GiB do
  mainstay capacity --class fast -o json")]
pub(crate) struct Capacity {
    /// Count volumes of this size
    #[arg(long, value_name = "SIZE")]
    size: Option<Quantity>,
    /// Show only this class
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
    #[command(flatten)]
    connect: Connect,
}

impl Capacity {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let size = self.size.map(|size| u64::try_from(size.value()).unwrap_or_default());
        if size == Some(0) {
            return Err(Error::usage("--size must be greater than 0"));
        }
        let there = world::fetch(&self.connect.client()?).await?;
        let now = SystemClock::new().now();
        let found = capacity(there.world()?, self.class.as_deref(), size, now);
        match self.output {
            Shape::Table => output::print(&found.table())?,
            Shape::Json => output::print_line(&output::json(&json!(found)))?,
        }
        Ok(0)
    }
}
