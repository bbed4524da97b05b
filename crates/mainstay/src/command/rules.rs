//! `mainstay rules`: the commands of the rule engine, through a server or directly on a catalog.

use std::io::Write;

use clap::Args;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use http::Method;
use mainstay_rucio::{Local, Service};
use mainstay_rules::cli::{self, Answer, Format, Pieces, Remote};
use mainstay_rules::logins::Logins;
use mainstay_rules::{Environment, Settings};
use mainstay_transfers::allowed::Allowed;
use serde_json::Value;

use crate::client::{Call, Client, JSON};
use crate::connect::Connect;
use crate::credentials::{Bounds, FileBounds, Keys, local_file};
use crate::error::Error;
use mainstay_server::engines::{SURFACE, open_catalog};

/// Replication rules: which copies of which files must exist, where, and why
#[derive(Debug, Args)]
#[command(
    mut_args(|argument| if argument.is_positional() { argument } else { argument.global(true) }),
    after_help = "Examples:
  mainstay rules rse add SITE-A
  mainstay rules did add user.alice:ds1
  mainstay rules add user.alice:ds1 --copies 2 -e 'tier=1'
  mainstay rules explain RULE
  mainstay rules check --catalog /var/lib/mainstay/catalog.db"
)]
pub(crate) struct Rules {
    /// Work on this catalog in this process instead of asking a server: a file, or postgres://…
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: cli::Command,
}

impl Rules {
    pub(crate) async fn run(self) -> Result<u8, Error> {
        let mut out = anstream::stdout();
        // Uploads and downloads use the permissions of the current user.
        let access = self.keys.access(None, Allowed::anywhere())?;
        let Some(address) = &self.catalog else {
            let remote = Server(self.connect.client()?);
            let done = cli::run(self.command, &remote, access, self.output, &mut out).await;
            return told(done, &mut out);
        };
        let keys = self.keys.file(None).map(std::path::Path::to_owned);
        let private = [local_file(Some(address)), keys];
        let catalog = open_catalog(address).await?;
        let service = Service {
            catalog: catalog.clone(),
            settings: Settings::default(),
            around: Environment::system(),
            // The reaper and the storage check use the folders and endpoints of the catalog.
            access: self
                .keys
                .access(None, self.bounds.allowed(&FileBounds::default(), &private)?)?,
            logins: Logins::default(),
        };
        let local = Local::new(service);
        let done = cli::run(self.command, &local, access, self.output, &mut out).await;
        // Notify servers on the same catalog of new work.
        catalog.notify_servers().await;
        told(done, &mut out)
    }
}

fn told(done: Result<u8, cli::Error>, out: &mut impl Write) -> Result<u8, Error> {
    out.flush()?;
    done.map_err(Error::from)
}

/// A server known by its kubeconfig.
pub(crate) struct Server(pub(crate) Client);

impl Remote for Server {
    fn send<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> BoxFuture<'a, Result<Answer, cli::Error>> {
        async move {
            let method = Method::from_bytes(method.as_bytes())
                .map_err(|error| cli::Error::Usage(error.to_string()))?;
            let path = format!("{SURFACE}{path}");
            let call = match &body {
                None => Call::without_body(method, path),
                Some(body) => Call::send(method, path, JSON, body),
            };
            let answer = self.0.send(&call).await.map_err(unreachable)?;
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            Ok(Answer { status: answer.code.as_u16(), body })
        }
        .boxed()
    }

    fn stream<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Pieces, cli::Error>> {
        async move {
            let call = Call::without_body(Method::GET, format!("{SURFACE}{path}"));
            let (stream, timeout) =
                (self.0.open(&call).await.map_err(unreachable)?, self.0.timeout());
            let status = stream.code().as_u16();
            let body = stream::unfold(stream, move |mut stream| async move {
                let piece = stream.piece_within(timeout).await.map_err(unreachable);
                piece.transpose().map(|piece| (piece, stream))
            });
            Ok(Pieces { status, body: body.boxed() })
        }
        .boxed()
    }
}

impl mainstay_transfers::remote_queue::Server for Server {
    fn post<'a>(
        &'a self,
        path: &'a str,
        body: Value,
    ) -> BoxFuture<'a, Result<(u16, String), String>> {
        async move {
            let Answer { status, body } =
                self.send("POST", path, Some(body)).await.map_err(|error| error.to_string())?;
            Ok((status, body))
        }
        .boxed()
    }
}

fn unreachable(error: crate::client::Error) -> cli::Error {
    cli::Error::Unreachable(Error::from(error).with_causes())
}
