//! `mainstay version`: of this program, and of the server when one answers.

use clap::Args;
use serde_json::{Value, json};

use crate::client::Call;
use crate::connect::Connect;
use crate::error::Error;
use crate::output::{self, cell};

/// Show the version of this program and of the server
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Only this program; ask no server
    #[arg(long)]
    client: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<VersionFormat>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum VersionFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

impl Version {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let own = env!("CARGO_PKG_VERSION");
        let asked = if self.client { None } else { Some(self.server().await) };
        let server = asked.as_ref().and_then(|answer| answer.as_ref().ok());
        match self.output {
            Some(format) => {
                let mut value = json!({"clientVersion": {"gitVersion": format!("v{own}")}});
                if let Some(server) = server {
                    value["serverVersion"] = server.clone();
                }
                output::print(&match format {
                    VersionFormat::Json => output::json(&value),
                    VersionFormat::Yaml => output::yaml(&value),
                })?;
            }
            None => {
                output::print_line(&format!("Client: v{own}"))?;
                if let Some(server) = server {
                    output::print_line(&format!("Server: {}", cell(&server["gitVersion"])))?;
                }
            }
        }
        match asked {
            Some(Err(error)) => Err(error),
            _ => Ok(0),
        }
    }

    async fn server(&self) -> Result<Value, Error> {
        Ok(self.connect.client()?.json(Call::get("/version")).await?)
    }
}
