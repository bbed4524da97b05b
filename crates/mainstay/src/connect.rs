//! Chooses the server of a command from flags, environment and kubeconfig files.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mainstay_clock::duration;

use crate::client::Client;
use crate::client::kubeconfig::{Kubeconfig, Overrides, Target};
use crate::error::Error;
use crate::paths;

/// Flags of every command that connects to a server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connect {
    /// Kubeconfig file(s), separated by `:`; by default the one in the data folder of Mainstay
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", hide_env_values = true)]
    pub(crate) kubeconfig: Option<String>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Address of the server (https://HOST:PORT), instead of the kubeconfig's
    #[arg(short, long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Bearer token to log in with, instead of the kubeconfig's user
    #[arg(long, env = "MAINSTAY_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Accept any server certificate (insecure)
    #[arg(long)]
    pub(crate) insecure_skip_tls_verify: bool,
    /// How long one request may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub(crate) request_timeout: Duration,
}

impl Connect {
    /// A client for the chosen server. It sends no request yet.
    pub(crate) fn client(&self) -> Result<Client, Error> {
        Ok(Client::new(self.target()?, self.request_timeout)?)
    }

    pub(crate) fn target(&self) -> Result<Target, Error> {
        let overrides = Overrides {
            context: self.context.clone(),
            server: self.server.clone(),
            token: self.token.clone(),
            insecure: self.insecure_skip_tls_verify,
        };
        let target = match (self.files(), &self.server) {
            (Some(files), _) => Kubeconfig::load(&files).and_then(|file| file.target(&overrides)),
            (None, Some(server)) => Target::bare(&overrides, server),
            (None, None) => {
                return Err(Error::usage(
                    "no kubeconfig found: start a server with `mainstay up`, \
                     or name a file with --kubeconfig",
                ));
            }
        };
        Ok(target?)
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        let named = self.kubeconfig.as_deref().filter(|text| !text.is_empty());
        if let Some(text) = named {
            return Some(std::env::split_paths(text).collect());
        }
        let own = paths::data_dir()?.join("kubeconfig");
        own.exists().then(|| vec![own])
    }
}
