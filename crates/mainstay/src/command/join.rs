//! `mainstay join`: join a cluster with a join string, and run the agent of this node.

use clap::Args;
use mainstay_agent::join;
use mainstay_agent::join::string::{JoinString, Meant};

use super::agent::{NodeFlags, Place};
use crate::error::Error;

/// Join a cluster with a join string and run the agent of this node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay token create --role node --node worker-1 --join --join-url https://server:7443
  mainstay join 'https://server:7443#SHA256.TOKEN'                    what that prints, on the node
  mainstay join - < join-string                                       keeps it out of the list of processes

The server's certificate authority is believed only if it has the fingerprint in the string, and the
token is sent only after that. The string joins once; afterwards the node has a certificate of its
own, and `mainstay agent --state-dir DIR` (or the same command again) starts its agent.")]
pub(crate) struct Join {
    /// The join string, or - to read it from standard input
    #[arg(value_name = "STRING")]
    string: String,
    #[command(flatten)]
    node: NodeFlags,
}

impl Join {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.node.log.start()?;
        let text = match self.string.as_str() {
            "-" => std::io::read_to_string(std::io::stdin())
                .map_err(Error::io("the join string cannot be read from standard input"))?,
            text => text.to_owned(),
        };
        let string: JoinString =
            text.parse().map_err(|error: join::string::Error| Error::usage(error.to_string()))?;
        // The node joined at an earlier start: the token is used up and not needed.
        let known = join::remembered(&self.node.state_dir).filter(|known| {
            let named = self.node.node_name.as_ref().is_none_or(|name| *name == known.node);
            let trusted = known.authorities.as_deref();
            named && trusted.is_some_and(|bundle| string.authority_in(bundle).is_some())
        });
        let place = match known {
            Some(known) => {
                let (servers, token) = (string.servers, Some(string.token));
                Place { servers, token, ca: known.authorities, node: known.node }
            }
            None => {
                let meant = string.look_up().await;
                let meant = meant.map_err(|error| Error::negative(error.to_string()))?;
                self.place(string, meant)?
            }
        };
        self.node.run(place).await
    }

    fn place(&self, string: JoinString, meant: Meant) -> Result<Place, Error> {
        let JoinString { servers, token, .. } = string;
        let node = match (&self.node.node_name, meant.node, meant.node_prefix) {
            (Some(name), Some(node), _) if *name != node => {
                return Err(Error::usage(format!(
                    "--node-name {name}: the join string is for node {node}"
                )));
            }
            (Some(name), _, _) => name.clone(),
            (None, Some(node), _) => node,
            (None, None, prefix) => {
                return Err(Error::usage(format!(
                    "the join string is for nodes whose names begin with {}: choose one with --node-name",
                    prefix.unwrap_or_default()
                )));
            }
        };
        Ok(Place { servers, token: Some(token), ca: Some(meant.authority), node })
    }
}
