//! `mainstay node`: removes nodes from the cluster.

use clap::{Args, Subcommand};
use http::Method;
use mainstay_terminal::output;
use serde_json::{Value, json};

use crate::client::encode;
use crate::client::{Call, JSON};
use crate::connect::Connect;
use crate::error::Error;

/// Remove nodes, or revoke their certificates
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Delete nodes and revoke their certificates and join tokens; open connections are cut
    Rm(Names),
    /// Revoke the certificates and join tokens of nodes, but keep their Node objects
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
            let mut done = if remove { "removed".to_owned() } else { "revoked".to_owned() };
            if remove {
                let path = format!("/api/v1/nodes/{named}");
                match client.bytes(Call::send(Method::DELETE, path, JSON, &json!({}))).await {
                    // A simulated node has no object.
                    Err(error) if error.is_not_found() => {}
                    deleted => {
                        if let Some(held) = held(&deleted?) {
                            done = held;
                        }
                    }
                }
            }
            let path = format!("/mainstay/v1/nodes/{named}/revoke");
            client.bytes(Call::send(Method::POST, path, JSON, &json!({}))).await?;
            output::print_line(&format!("node {name:?} {done}"))?;
        }
        Ok(0)
    }
}

/// Reports finalizers that delay the deletion: the server then answers with the Node itself.
fn held(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let metadata = answer.get("metadata").filter(|_| answer["kind"] == "Node")?;
    metadata.get("deletionTimestamp")?;
    let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
    let names: Vec<_> = finalizers.filter_map(Value::as_str).collect();
    Some(format!(
        "revoked; its Node object is still being deleted and goes when its finalizers are removed: {}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_finalizers_is_not_reported_as_removed() {
        let gone = json!({"kind": "Status", "metadata": {}, "status": "Success"});
        assert_eq!(held(gone.to_string().as_bytes()), None);
        let metadata = json!({"deletionTimestamp": "2026-11-16T00:00:00Z", "finalizers": ["a/b"]});
        let marked = json!({"kind": "Node", "metadata": metadata});
        let words = held(marked.to_string().as_bytes()).unwrap();
        assert!(words.contains("still being deleted") && words.ends_with(": a/b"), "{words}");
    }
}
