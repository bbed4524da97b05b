//! `mainstay agent`: look after the disks of this node until told to end.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mainstay_agent::{Agent as Running, Options};
use mainstay_disks::Rate;
use mainstay_disks::config::Config;
use mainstay_disks::host::linux::Roots;
use mainstay_server::clock::SystemClock;
use tokio::signal::unix::{SignalKind, signal};

use super::serve::Log;
use crate::error::Error;

/// What the agent says on stderr once it looks after its disks.
const READY: &str = "mainstay agent is ready";

/// Run the agent of this node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay token create --role node --node worker-1 --ttl 1h        on the server: a token to join with
  mainstay agent --server https://server:7443 --token TOKEN --ca-cert ca.crt --node-name worker-1 \\
    --zone a --state-dir /var/lib/mainstay-agent                    on the node

The token is needed once: the agent is given a certificate for its own node, and renews it.
Disks are never erased unasked: see `mainstay disks format --help`.")]
pub(crate) struct Agent {
    /// The servers, the preferred one first
    #[arg(
        long,
        value_name = "URL[,URL]",
        value_delimiter = ',',
        required = true,
        env = "MAINSTAY_SERVER"
    )]
    server: Vec<String>,
    /// A token of role node, to join with
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The certificate authority of the servers, as their data folder has it in ca.crt
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// The name of this node
    #[arg(long, value_name = "NAME")]
    node_name: String,
    /// The zone this node is in
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Where what must survive is kept; made if it is not there
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Where filesystems are mounted [default: mounts in the state folder]
    #[arg(long, value_name = "DIR")]
    mount_root: Option<PathBuf>,
    /// Look after these disks only, as /dev/sd*; may be given several times
    #[arg(long, value_name = "GLOB")]
    devices: Vec<String>,
    /// Take loop devices that --devices matches for disks
    #[arg(long)]
    allow_loop: bool,
    /// How many operations on disks run at once
    #[arg(
        long,
        value_name = "N",
        default_value = "5",
        env = "MAINSTAY_MAX_CONCURRENT_DISK_OPERATIONS"
    )]
    max_concurrent_disk_operations: NonZeroUsize,
    /// How many operations on disks may start, as 10/min [default: no limit]
    #[arg(long, value_name = "N/min", value_parser = rate)]
    disk_operation_rate: Option<Rate>,
    /// Serve metrics here, as http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Where sysfs is
    #[arg(long, value_name = "DIR", default_value = "/sys", hide = true)]
    sysfs_root: PathBuf,
    /// Where procfs is
    #[arg(long, value_name = "DIR", default_value = "/proc", hide = true)]
    proc_root: PathBuf,
    /// Where device nodes are
    #[arg(long, value_name = "DIR", default_value = "/dev", hide = true)]
    dev_root: PathBuf,
    /// Where udev's database is
    #[arg(long, value_name = "DIR", default_value = "/run/udev", hide = true)]
    udev_root: PathBuf,
    #[command(flatten)]
    log: Log,
}

/// Reads `N/min`, `N/s` or `N/h`.
fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("{text:?} is not a rate, as 10/min");
    let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
    let seconds = match unit {
        "s" | "sec" => 1,
        "min" | "m" => 60,
        "h" | "hour" => 3600,
        _ => return Err(wrong()),
    };
    let starts = count.parse().map_err(|_| wrong())?;
    Ok(Rate { starts, within: Duration::from_secs(seconds) })
}

/// What the environment says where the cluster's configuration is silent.
fn defaults() -> Config {
    let variables = [
        ("filters.yaml", "MAINSTAY_DISK_FILTERS"),
        ("autoprovision.yaml", "MAINSTAY_DISK_AUTOPROVISION"),
    ];
    let set = variables
        .into_iter()
        .filter_map(|(key, name)| Some((key.to_owned(), std::env::var(name).ok()?)));
    let (config, errors) = Config::read(&set.collect(), &Config::default());
    for error in errors {
        anstream::eprintln!("warning: the environment: {error}");
    }
    config
}

impl Agent {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.log.start()?;
        let failed = || Error::io("cannot listen for signals");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed())?;
        let mut told = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let options = self.options()?;
        let agent = tokio::select! {
            agent = Running::start(options, SystemClock::new()) => {
                agent.map_err(|error| Error::negative(chain(&error)))?
            }
            () = told() => return Ok(0),
        };
        let server = self.serve_metrics(&agent).await?;
        anstream::eprintln!("{READY}: node {}", self.node_name);
        told().await;
        anstream::eprintln!("ending …");
        if let Some(server) = server {
            server.abort();
        }
        tokio::select! {
            () = agent.shutdown() => Ok(0),
            () = told() => Err(Error::negative("ended at once, without waiting for what was under way")),
        }
    }

    fn options(&self) -> Result<Options, Error> {
        let ca = self.ca_cert.as_ref().map(|file| {
            std::fs::read_to_string(file)
                .map_err(|error| Error::usage(format!("--ca-cert {}: {error}", file.display())))
        });
        if self.allow_loop && self.devices.is_empty() {
            let text = "--allow-loop needs --devices: only loop devices that are named are taken";
            return Err(Error::usage(text));
        }
        Ok(Options {
            servers: self.server.clone(),
            token: self.token.clone(),
            ca: ca.transpose()?,
            node: self.node_name.clone(),
            zone: self.zone.clone(),
            mount_root: self.mount_root.clone().unwrap_or_else(|| self.state_dir.join("mounts")),
            state_dir: self.state_dir.clone(),
            devices: self.devices.clone(),
            allow_loop: self.allow_loop,
            slots: self.max_concurrent_disk_operations,
            rate: self.disk_operation_rate,
            roots: Roots {
                sys: self.sysfs_root.clone(),
                proc: self.proc_root.clone(),
                dev: self.dev_root.clone(),
                udev: self.udev_root.clone(),
            },
            defaults: defaults(),
        })
    }

    async fn serve_metrics(
        &self,
        agent: &Running,
    ) -> Result<Option<tokio::task::JoinHandle<()>>, Error> {
        let Some(address) = self.metrics_listen else { return Ok(None) };
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(Error::io(format!("cannot listen on {address}")))?;
        let metrics = agent.metrics().clone();
        let router = axum::Router::new().route(
            "/metrics",
            axum::routing::get(move || {
                let text = metrics.text();
                async move { text }
            }),
        );
        Ok(Some(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "metrics are not served any more");
            }
        })))
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let ten = rate("10/min").unwrap();
        assert_eq!((ten.starts.get(), ten.within.as_secs()), (10, 60));
        for wrong in ["", "10", "0/min", "x/min", "10/fortnight"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
