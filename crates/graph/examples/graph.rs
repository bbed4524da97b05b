//! The command line of the engine by itself: `graph run FILE`, `graph bench`, and the rest.

use clap::Parser;
use mainstay_graph::bench;
use mainstay_graph::cli::{self, GraphCommand};

#[derive(Debug, Parser)]
enum Command {
    #[command(flatten)]
    Graph(GraphCommand),
    /// Measure the engine
    Bench {
        /// At these sizes
        #[arg(long, value_delimiter = ',', default_values_t = bench::SIZES)]
        sizes: Vec<usize>,
        /// These workloads; all if none is named
        #[arg(long, value_delimiter = ',')]
        cases: Vec<String>,
    },
}

#[tokio::main]
async fn main() {
    let code = match Command::parse() {
        Command::Graph(command) => cli::run(command).await,
        Command::Bench { sizes, cases } => match bench::run_alone(&sizes, &cases) {
            Ok(rows) => {
                for row in rows {
                    println!("{}", serde_json::json!(row));
                }
                0
            }
            Err(error) => {
                eprintln!("error: {error}");
                1
            }
        },
    };
    std::process::exit(code);
}
