//! `mainstay bench placement`: the pure engine on one core, and volumes on a live server.

use std::sync::Arc;

use clap::Args;
use mainstay_clock::{Clock, SystemClock};
use mainstay_placement::bench;
use mainstay_terminal::output::{self, Shape};
use mainstay_terminal::report::{Row, table};
use mainstay_volumes::bench::Load;
use serde_json::json;

use super::server::ServerProcess;
use crate::connect::Connect;
use crate::error::Error;

/// Decide places by the pure engine, then apply volumes to a server and wait until all are placed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench placement                       the engine, and 1,000 volumes on 100 nodes
  mainstay bench placement --volumes 0 -o json   only the engine")]
pub(crate) struct Placement {
    /// Volumes to apply to the live server; 0 starts none
    #[arg(long, default_value_t = 1_000)]
    volumes: usize,
    /// Nodes of the live server
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(3..=1000))]
    nodes: u32,
    /// Where the live server keeps objects: sqlite, memory, or any --store URL
    #[arg(long, default_value = "sqlite", value_name = "STORE")]
    store: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
    #[command(flatten)]
    connect: Connect,
}

impl Placement {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let clock = SystemClock::new();
        let mut rows: Vec<Row> = bench::run(&|| clock.elapsed())
            .into_iter()
            .map(|row| {
                let mut shown = Row::new(row.case, "pure", row.size);
                shown.rate = Some(row.rate.round());
                shown.unit = Some(row.unit.into());
                shown.p50_ms = Some(row.p50_ms);
                shown.p99_ms = Some(row.p99_ms);
                shown
            })
            .collect();
        if self.volumes > 0 {
            rows.push(self.live(&clock).await?);
        }
        match self.output {
            Shape::Table => output::print(&table(&rows).text())?,
            Shape::Json => output::print_line(&output::json(&json!(rows)))?,
        }
        Ok(0)
    }

    async fn live(&self, clock: &Arc<SystemClock>) -> Result<Row, Error> {
        let store = match self.store.as_str() {
            "sqlite" => "",
            "memory" => "memory:",
            url => url,
        };
        let server = ServerProcess::start(store).await?;
        let kubeconfig = Some(server.kubeconfig().display().to_string());
        let connect = Connect {
            kubeconfig,
            context: None,
            server: None,
            token: None,
            ..self.connect.clone()
        };
        let client = connect.client()?;
        let load = Load { volumes: self.volumes, nodes: self.nodes };
        let mut row = load.run(&client, &**clock, &self.store).await?;
        row.rss_mb = server.rss_mb();
        server.stop().await?;
        Ok(row)
    }
}
