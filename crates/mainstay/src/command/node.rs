//! `mainstay node`: take nodes out of the cluster.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::json;

use crate::client::watch::encode;
use crate::client::{Call, JSON};
use crate::connect::Connect;
use crate::error::Error;
use crate::output;

/// Remove nodes, or take their certificates away
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Delete nodes and revoke their certificates and join tokens; open connections are cut
    Rm(Names),
    /// Revoke the certificates and join tokens of nodes, and leave their Node objects
    #[command(after_help = "Examples:
  mainstay node revoke worker-1                                     its certificate was stolen
  mainstay token create --role node --node worker-1 --join          lets it join anew")]
    Revoke(Names),
}

#[derive(Debug, Args)]
struct Names {
    /// The nodes
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

impl Node {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let (remove, Names { names, connect }) = match &self.action {
            Action::Rm(names) => (true, names),
            Action::Revoke(names) => (false, names),
        };
        let client = connect.client()?;
        for name in names {
            let named = encode(name);
            if remove {
                let path = format!("/api/v1/nodes/{named}");
                match client.bytes(Call::send(Method::DELETE, path, JSON, &json!({}))).await {
                    // A node that only pretends has no object.
                    Err(error) if error.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
            let path = format!("/mainstay/v1/nodes/{named}/revoke");
            client.bytes(Call::send(Method::POST, path, JSON, &json!({}))).await?;
            let done = if remove { "removed" } else { "revoked" };
            output::print_line(&format!("node {name:?} {done}"))?;
        }
        Ok(0)
    }
}
