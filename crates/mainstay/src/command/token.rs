//! `mainstay token`: give out, list and take back the tokens that people and agents log in with.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use crate::client::watch::encode;
use crate::client::{Call, JSON};
use crate::connect::Connect;
use crate::duration;
use crate::error::Error;
use crate::output::{self, Table, cell};

/// Where the server keeps its tokens.
const TOKENS: &str = "/mainstay/v1/tokens";

/// Create, list and revoke tokens
#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a new token. It is shown once; the server keeps only its hash
    #[command(after_help = "Examples:
  mainstay token create --role viewer --ttl 8h
  mainstay token create --role node --node worker-1 --ttl 1h")]
    Create {
        /// What the bearer may do
        #[arg(long, value_enum)]
        role: Role,
        /// The node an agent's token is for (role node)
        #[arg(long, value_name = "NAME", required_if_eq("role", "node"))]
        node: Option<String>,
        /// How the audit log shall call the bearer
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// How long it is good; for ever when not given
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        ttl: Option<Duration>,
        #[command(flatten)]
        connect: Connect,
    },
    /// Show all tokens (never the secret itself)
    List {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: ListFormat,
        #[command(flatten)]
        connect: Connect,
    },
    /// Make tokens worthless at once
    Revoke {
        /// The ids, as `mainstay token list` shows them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        connect: Connect,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    /// A table
    #[default]
    Table,
    /// JSON, as the server gives it
    Json,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    /// Everything
    Admin,
    /// Reading and writing objects, but no tokens
    Editor,
    /// Reading
    Viewer,
    /// What an agent needs, for one node only
    Node,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Editor => "editor",
            Self::Viewer => "viewer",
            Self::Node => "node",
        }
    }
}

impl Token {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        match &self.action {
            Action::Create { role, node, name, ttl, connect } => {
                let mut wish = json!({"role": role.word()});
                if let Some(node) = node {
                    wish["node"] = node.as_str().into();
                }
                if let Some(name) = name {
                    wish["name"] = name.as_str().into();
                }
                if let Some(ttl) = ttl {
                    wish["ttlSeconds"] = ttl.as_secs().into();
                }
                let call = Call::send(Method::POST, TOKENS, JSON, &wish);
                let answer = connect.client()?.json(call).await?;
                output::print_line(&cell(&answer["token"]))?;
            }
            Action::List { output, connect } => {
                let answer = connect.client()?.json(Call::get(TOKENS)).await?;
                match output {
                    ListFormat::Json => output::print(&output::json(&answer))?,
                    ListFormat::Table => output::print(&table(&answer).text())?,
                }
            }
            Action::Revoke { ids, connect } => {
                let client = connect.client()?;
                for id in ids {
                    let path = format!("{TOKENS}/{}", encode(id));
                    client.bytes(Call::send(Method::DELETE, path, JSON, &json!({}))).await?;
                    output::print_line(&format!("token {id:?} revoked"))?;
                }
            }
        }
        Ok(0)
    }
}

fn table(answer: &Value) -> Table {
    let mut table = Table::new(&["ID", "NAME", "ROLE", "NODE", "CREATED", "EXPIRES"]);
    let items = answer["items"].as_array().or_else(|| answer.as_array());
    for token in items.into_iter().flatten() {
        let field = |name: &str| cell(&token[name]);
        let expires = match &token["expires"] {
            Value::Null => "never".to_owned(),
            time => cell(time),
        };
        table.rows.push(vec![
            field("id"),
            field("name"),
            field("role"),
            field("node"),
            field("created"),
            expires,
        ]);
    }
    table
}
