//! `mainstay bench graph`: the transaction engine alone, with descriptors that do no work.

use clap::Args;
use mainstay_graph::bench;
use mainstay_terminal::report::{Format, Row, print};

use super::Error;
use crate::error::Error as CommandError;

/// Run the graph's workloads W1 to W8, with and without history, and the journal's cost beside them
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench graph                                1,000, 10,000 and 100,000 values
  mainstay bench graph --sizes 10000 --cases W1,W8    only these
  mainstay bench graph -o json > bench.json           for programs")]
pub(crate) struct Graph {
    /// Values in each workload
    #[arg(long, value_delimiter = ',', default_values_t = bench::SIZES, value_name = "LIST")]
    sizes: Vec<usize>,
    /// Workloads to run: W1 to W8, W8x32 (32 committers), and resident
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    cases: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
}

impl Graph {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        let known = bench::CASES;
        if let Some(unknown) = self.cases.iter().find(|case| !known.contains(&case.as_str())) {
            let known = known.join(", ");
            return Err(CommandError::usage(format!(
                "there is no workload {unknown}; there is {known}"
            )));
        }
        let (sizes, cases) = (self.sizes.clone(), self.cases.clone());
        let rows = tokio::task::spawn_blocking(move || bench::run_alone(&sizes, &cases));
        let rows = match rows.await {
            Ok(rows) => rows.map_err(Error::Graph)?,
            Err(ended) => return Err(CommandError::negative(ended.to_string())),
        };
        let rows: Vec<Row> = rows
            .into_iter()
            .map(|row| {
                let mut shown = Row::new(row.case, row.backend, row.size);
                shown.rate = row.rate;
                shown.unit = Some(row.unit.into());
                shown.p50_ms = row.p50_ms;
                shown.p99_ms = row.p99_ms;
                shown.rss_mb = row.rss_mb;
                shown
            })
            .collect();
        print(&rows, self.output)?;
        Ok(0)
    }
}
