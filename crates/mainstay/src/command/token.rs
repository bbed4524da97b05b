//! `mainstay token`: creates, lists and revokes the tokens of users and joining nodes.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use mainstay_agent::join::string::JoinString;
use mainstay_clock::duration;
use mainstay_terminal::output::{self, Table, cell};
use serde_json::{Value, json};

use crate::client::encode;
use crate::client::{Call, JSON};
use crate::connect::Connect;
use crate::error::Error;

/// The path of the tokens.
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
  mainstay token create --role node --node worker-1 --zone a          joins once, within an hour
  mainstay token create --role node --node worker-1 --join            prints the command to run there
  mainstay token create --role node --node-prefix sim. --uses unlimited --ttl 1d")]
    Create(Box<Create>),
    /// Show all tokens (never the secret itself)
    List {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: ListFormat,
        #[command(flatten)]
        connect: Connect,
    },
    /// Revoke tokens at once
    Revoke {
        /// The ids, as `mainstay token list` shows them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        #[command(flatten)]
        connect: Connect,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// The role of the bearer. A token of role node can only join, which gives the node a certificate
    #[arg(long, value_enum)]
    role: Role,
    /// The node that joins with it (role node)
    #[arg(long, value_name = "NAME", conflicts_with = "node_prefix")]
    node: Option<String>,
    /// Nodes whose names begin like this join with it (role node)
    #[arg(long, value_name = "PREFIX")]
    node_prefix: Option<String>,
    /// The zone of the nodes that join with it [default: the one the agent names at its first join]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// How many joins the token allows: a number, or unlimited [default: 1]
    #[arg(long, value_name = "N", value_parser = uses)]
    uses: Option<Value>,
    /// The name of the bearer in the audit log
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// How long the token is valid, such as 30m, 1h or 90d [default: 1h for role node, else 90d]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Print the command that joins a node, with address, fingerprint and token, instead of the token
    /// alone
    #[arg(long)]
    join: bool,
    /// The addresses at which nodes reach the servers, for --join [default: the one this command
    /// uses]
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', requires = "join")]
    join_url: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Reads a number of joins.
fn uses(text: &str) -> Result<Value, String> {
    match (text, text.parse::<u32>()) {
        ("unlimited", _) => Ok(text.into()),
        (_, Ok(count)) if count > 0 => Ok(count.into()),
        _ => Err("it must be a number of joins, or unlimited".to_owned()),
    }
}

impl Create {
    async fn run(&self) -> Result<(), Error> {
        let joins = matches!(self.role, Role::Node);
        if joins && self.node.is_none() && self.node_prefix.is_none() {
            return Err(Error::usage(
                "a token of role node needs --node NAME or --node-prefix PREFIX",
            ));
        }
        if self.join && !joins {
            return Err(Error::usage("--join is for tokens of role node"));
        }
        let mut wish = json!({"role": self.role.word()});
        let texts = [
            ("node", &self.node),
            ("nodePrefix", &self.node_prefix),
            ("zone", &self.zone),
            ("name", &self.name),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                wish[field] = text.as_str().into();
            }
        }
        if let Some(uses) = &self.uses {
            wish["uses"] = uses.clone();
        }
        if let Some(ttl) = self.ttl {
            wish["ttlSeconds"] = ttl.as_secs().into();
        }
        let client = self.connect.client()?;
        let call = Call::send(Method::POST, TOKENS, JSON, &wish);
        let answer = client.json(call).await?;
        let token = cell(&answer["token"]);
        if !self.join {
            output::print_line(&token)?;
            return Ok(());
        }
        let authority = client.json(Call::get(super::authority::PATH)).await?;
        let servers = match self.join_url.is_empty() {
            true => vec![client.server().to_owned()],
            false => self.join_url.clone(),
        };
        if servers.iter().all(|server| is_loopback(server)) {
            anstream::eprintln!(
                "note: other machines cannot reach {}; name the server's address with --join-url",
                servers.join(",")
            );
        }
        let fingerprint = cell(&authority["current"]["fingerprint"]);
        let string = JoinString { servers, fingerprint, token };
        output::print_line(&format!("mainstay join {string}"))?;
        Ok(())
    }
}

fn is_loopback(server: &str) -> bool {
    let host = server.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    let host = host.unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
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
    /// Reading and writing, except for secrets, namespaces, nodes, leases and mainstay-system
    Editor,
    /// Reading, except for secrets
    Viewer,
    /// Joining, and nothing else
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
            Action::Create(create) => create.run().await?,
            Action::List { output, connect } => {
                let answer = connect.client()?.json(Call::get(TOKENS)).await?;
                match output {
                    ListFormat::Json => output::print(&output::json(&answer))?,
                    ListFormat::Table => output::print(&table(&answer).text())?,
                }
            }
            Action::Revoke { ids, connect } => {
                // A token must not get into messages and logs.
                if ids.iter().any(|id| id.starts_with("mst_")) {
                    return Err(Error::usage(
                        "token revoke takes the id of a token, not the token itself: `mainstay \
                         token list` shows the ids",
                    ));
                }
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
    let mut table =
        Table::new(&["ID", "NAME", "ROLE", "NODE", "ZONE", "USES", "CREATED", "EXPIRES"]);
    let items = answer["items"].as_array().or_else(|| answer.as_array());
    for token in items.into_iter().flatten() {
        let field = |name: &str| cell(&token[name]);
        let expires = match &token["expires"] {
            Value::Null => "never".to_owned(),
            time => cell(time),
        };
        let node = match &token["nodePrefix"] {
            Value::Null => field("node"),
            prefix => format!("{}*", cell(prefix)),
        };
        let used = token["used"].as_array().map_or(0, Vec::len);
        let uses = match (&token["role"], &token["uses"]) {
            (role, Value::Null) if role == "node" => "unlimited".to_owned(),
            (_, Value::Null) => String::new(),
            (_, uses) => format!("{used}/{uses}"),
        };
        table.rows.push(vec![
            field("id"),
            field("name"),
            field("role"),
            node,
            field("zone"),
            uses,
            field("created"),
            expires,
        ]);
    }
    table
}
