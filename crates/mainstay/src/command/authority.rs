//! `mainstay authority`: shows and exchanges the certificate authority of the cluster.

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use mainstay_terminal::output::{self, Table, cell};
use serde_json::{Value, json};

use crate::client::{Call, JSON};
use crate::connect::Connect;
use crate::error::Error;

/// The path of the authority.
pub(crate) const PATH: &str = "/mainstay/v1/authority";

/// Show the certificate authority, or exchange it without downtime
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay authority rotate      makes a new authority; both are trusted, nodes renew by themselves
  mainstay authority show        which nodes still have certificates of the old one only
  mainstay authority finish      drops the old one

Between rotate and finish give people the new ca.crt or kubeconfig from the server's data folder.")]
pub(crate) struct Authority {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the authorities that are trusted
    Show {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
        #[command(flatten)]
        connect: Connect,
    },
    /// Make a new authority and trust both, until `finish`
    Rotate {
        #[command(flatten)]
        connect: Connect,
    },
    /// Trust the new authority only
    Finish {
        /// Finish although nodes have certificates of the old authority only; they must join again
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        connect: Connect,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    #[default]
    Table,
    /// JSON, as the server gives it
    Json,
}

impl Authority {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let (answer, format) = match &self.action {
            Action::Show { output, connect } => {
                (connect.client()?.json(Call::get(PATH)).await?, *output)
            }
            Action::Rotate { connect } => {
                let call = Call::send(Method::POST, format!("{PATH}/rotate"), JSON, &json!({}));
                (connect.client()?.json(call).await?, Format::Table)
            }
            Action::Finish { force, connect } => {
                let path = format!("{PATH}/finish?force={force}");
                let call = Call::send(Method::POST, path, JSON, &json!({}));
                (connect.client()?.json(call).await?, Format::Table)
            }
        };
        match format {
            Format::Json => output::print(&output::json(&answer))?,
            Format::Table => {
                output::print(&table(&answer).text())?;
                let behind: Vec<_> =
                    answer["nodesOfPrevious"].as_array().into_iter().flatten().map(cell).collect();
                if !behind.is_empty() {
                    let known = match self.action {
                        Action::Finish { .. } => "nodes that must join again",
                        _ => "nodes with certificates of the previous authority only",
                    };
                    anstream::eprintln!("{known}: {}", behind.join(", "));
                }
            }
        }
        Ok(0)
    }
}

fn table(answer: &Value) -> Table {
    let mut table = Table::new(&["AUTHORITY", "FINGERPRINT", "NOT BEFORE", "NOT AFTER", "USE"]);
    for (part, role) in [("current", "signs nodes"), ("previous", "trusted until finish")] {
        let one = &answer[part];
        if !one.is_null() {
            let field = |name: &str| cell(&one[name]);
            table.rows.push(vec![
                field("name"),
                field("fingerprint"),
                field("notBefore"),
                field("notAfter"),
                role.to_owned(),
            ]);
        }
    }
    table
}
