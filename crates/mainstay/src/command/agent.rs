//! `mainstay agent`: runs the agent, which manages the disks and instances of this node.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_agent::instances::Delays;
use mainstay_agent::simulation::{self, Simulation};
use mainstay_agent::{Agent as Running, Options, join};
use mainstay_clock::{Clock, SystemClock, duration};
use mainstay_disks::Rate;
use mainstay_disks::config::Config;
use mainstay_host::linux::Roots;
use mainstay_store::meta::Quantity;
use tokio::signal::unix::{SignalKind, signal};

use super::serve::Log;
use crate::error::Error;

/// Printed to stderr once the agent manages its disks.
const READY: &str = "mainstay agent is ready";

/// Run the agent of this node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay token create --role node --node worker-1                 on the server: a token to join with
  mainstay agent --server https://server:7443 --token-file token --ca-cert ca.crt \\
    --node-name worker-1 --zone a --state-dir /var/lib/mainstay-agent            on the node

  mainstay token create --role node --node-prefix sim. --uses unlimited
  mainstay agent --server https://server:7443 --token-file token --ca-cert ca.crt --node-name sim \\
    --simulate 100 --start-delay 40ms --session-delay 3ms           100 nodes that only pretend

The token is needed once: the agent is given a certificate for its own node, and renews it. A token
given with --token shows in the list of processes: prefer --token-file or MAINSTAY_TOKEN. `mainstay
join` needs no other flags. Once a node has joined, --state-dir alone is enough.
Disks are never erased unasked: see `mainstay disks format --help`.")]
pub(crate) struct Agent {
    /// The addresses of the servers, the preferred one first [default: those the node joined]
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', env = "MAINSTAY_SERVER")]
    server: Vec<String>,
    /// A token of role node to join with; visible in the process list, so prefer --token-file
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Read the token from this file, or from standard input if it is -
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// The certificate authority of the servers: ca.crt in their data folder [default: the one
    /// stored when the node joined]
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    #[command(flatten)]
    node: NodeFlags,
}

/// The servers, and the credentials for them.
pub(crate) struct Place {
    pub(crate) servers: Vec<String>,
    pub(crate) token: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) node: String,
}

/// The work of an agent on its node.
#[derive(Debug, Args)]
pub(crate) struct NodeFlags {
    /// The name of this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// The zone of this node; used at its first join, unless the token has one
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// The state folder; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "/var/lib/mainstay-agent")]
    pub(crate) state_dir: PathBuf,
    /// The folder below which filesystems are mounted [default: mounts in the state folder]
    #[arg(long, value_name = "DIR")]
    mount_root: Option<PathBuf>,
    /// Manage only disks that match this pattern, such as /dev/sd*; may be given several times
    #[arg(long, value_name = "GLOB")]
    devices: Vec<String>,
    /// Manage loop devices that --devices matches as disks
    #[arg(long)]
    allow_loop: bool,
    /// How many disk operations run at once
    #[arg(
        long,
        value_name = "N",
        default_value = "5",
        env = "MAINSTAY_MAX_CONCURRENT_DISK_OPERATIONS"
    )]
    max_concurrent_disk_operations: NonZeroUsize,
    /// The rate at which disk operations start, such as 10/min [default: no limit]
    #[arg(long, value_name = "N/min", value_parser = rate)]
    disk_operation_rate: Option<Rate>,
    /// Simulate this many nodes, NAME.0 and so on, each with its own connection and simulated
    /// instances; for scale tests
    #[arg(long, value_name = "N")]
    simulate: Option<u32>,
    /// How long a simulated instance takes to start
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration::parse, requires = "simulate")]
    start_delay: Duration,
    /// How long a simulated instance takes to open or close a session
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration::parse, requires = "simulate")]
    session_delay: Duration,
    /// The address at which the gateway reaches instances of this node [default: the local
    /// address of the connection to the server]
    #[arg(long, value_name = "ADDR")]
    address: Option<std::net::IpAddr>,
    /// The processors that instances may have, as 12 or 500m [default: all; simulated: 12]
    #[arg(long, value_name = "N", value_parser = amount)]
    cpu: Option<Quantity>,
    /// The memory that instances may have, as 64Gi [default: all; simulated: 64Gi]
    #[arg(long, value_name = "BYTES", value_parser = amount)]
    memory: Option<Quantity>,
    /// Serve metrics here, as http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// The heartbeat interval; a node is not ready after four missed heartbeats
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse, hide = true)]
    heartbeat: Duration,
    /// The mount point of sysfs
    #[arg(long, value_name = "DIR", default_value = "/sys", hide = true)]
    sysfs_root: PathBuf,
    /// The mount point of procfs
    #[arg(long, value_name = "DIR", default_value = "/proc", hide = true)]
    proc_root: PathBuf,
    /// The folder of device nodes
    #[arg(long, value_name = "DIR", default_value = "/dev", hide = true)]
    dev_root: PathBuf,
    /// The folder of udev's database
    #[arg(long, value_name = "DIR", default_value = "/run/udev", hide = true)]
    udev_root: PathBuf,
    #[command(flatten)]
    pub(crate) log: Log,
}

/// Reads an amount as Kubernetes writes it.
fn amount(text: &str) -> Result<Quantity, String> {
    text.parse().map_err(|_| format!("{text:?} is not an amount, as 12, 500m or 64Gi"))
}

fn whole(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
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

/// Defaults from the environment, for settings that the cluster's configuration leaves open.
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
        anstream::eprintln!("warning: invalid environment variable: {error}");
    }
    config
}

fn clock() -> Arc<dyn Clock> {
    SystemClock::new()
}

impl Agent {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.node.log.start()?;
        let known = join::remembered(&self.node.state_dir).filter(|known| {
            self.node.node_name.as_ref().is_none_or(|name| *name == known.node)
                && self.node.simulate.is_none()
        });
        let node = self.node.node_name.clone().or(known.as_ref().map(|known| known.node.clone()));
        let servers = match (self.server.is_empty(), &known) {
            (true, Some(known)) => known.servers.clone(),
            _ => self.server.clone(),
        };
        if servers.is_empty() {
            return Err(Error::usage("no server given; name one with --server https://HOST:7443"));
        }
        let Some(node) = node else {
            return Err(Error::usage("no node name given; name the node with --node-name NAME"));
        };
        let ca = self.ca()?.or_else(|| known.and_then(|known| known.authorities));
        self.node.run(Place { servers, token: self.token()?, ca, node }).await
    }

    fn token(&self) -> Result<Option<String>, Error> {
        let Some(file) = &self.token_file else { return Ok(self.token.clone()) };
        let text = match file.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(file),
        };
        let text = text
            .map_err(|error| Error::usage(format!("--token-file {}: {error}", file.display())))?;
        match text.trim() {
            "" => Err(Error::usage(format!("--token-file {}: the file is empty", file.display()))),
            token => Ok(Some(token.to_owned())),
        }
    }

    fn ca(&self) -> Result<Option<String>, Error> {
        let read = self.ca_cert.as_ref().map(|file| {
            std::fs::read_to_string(file)
                .map_err(|error| Error::usage(format!("--ca-cert {}: {error}", file.display())))
        });
        read.transpose()
    }
}

impl NodeFlags {
    /// Runs an agent until a signal ends it.
    pub(crate) async fn run(&self, place: Place) -> Result<u8, Error> {
        let failed = || Error::io("cannot listen for signals");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed())?;
        let mut signal = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        if let Some(nodes) = self.simulate {
            let node = place.node.clone();
            let simulation = Simulation::start(self.simulation(place, nodes)?, &clock())
                .map_err(|error| Error::usage(error.to_string()))?;
            let joined = tokio::select! {
                joined = simulation.joined() => Some(joined),
                () = signal() => None,
            };
            match joined {
                Some(Err(error)) => {
                    simulation.shutdown().await;
                    return Err(Error::negative(error.to_string()));
                }
                Some(Ok(())) => {
                    anstream::eprintln!("{READY}: {nodes} simulated nodes {node}.0 …");
                    signal().await;
                }
                None => {}
            }
            anstream::eprintln!("stopping …");
            simulation.shutdown().await;
            return Ok(0);
        }
        let node = place.node.clone();
        let options = self.options(place)?;
        let agent = tokio::select! {
            agent = Running::start(options, SystemClock::new()) => {
                agent.map_err(|error| Error::negative(chain(&error)))?
            }
            () = signal() => return Ok(0),
        };
        let server = self.serve_metrics(&agent).await?;
        anstream::eprintln!("{READY}: node {node}");
        signal().await;
        anstream::eprintln!("stopping …");
        if let Some(server) = server {
            server.abort();
        }
        tokio::select! {
            () = agent.shutdown() => Ok(0),
            () = signal() => Err(Error::negative("stopped at once by a second signal; work in progress was interrupted")),
        }
    }

    fn simulation(&self, place: Place, nodes: u32) -> Result<simulation::Options, Error> {
        let Place { servers, token, ca, node } = place;
        let Some(token) = token else {
            return Err(Error::usage(format!(
                "--simulate needs a token, as `mainstay token create --role node --node-prefix {node}. --uses unlimited` prints it"
            )));
        };
        let access = join::token_access(ca.as_deref(), token)
            .map_err(|error| Error::usage(error.to_string()))?;
        let memory = self.memory.unwrap_or(Quantity::bytes(64 << 30));
        Ok(simulation::Options {
            servers,
            access,
            ca,
            name: node,
            nodes,
            delays: Delays {
                start: self.start_delay,
                session: self.session_delay,
                ..Delays::default()
            },
            cpu_milli: whole(self.cpu.unwrap_or(Quantity::whole(12)).milli_value()),
            memory_bytes: whole(memory.value()),
            zone: self.zone.clone(),
        })
    }

    fn options(&self, place: Place) -> Result<Options, Error> {
        if self.allow_loop && self.devices.is_empty() {
            let text = "--allow-loop needs --devices: only loop devices that are named are taken";
            return Err(Error::usage(text));
        }
        let state_dir = self.state_dir.clone();
        let Place { servers, token, ca, node } = place;
        Ok(Options {
            servers,
            token,
            ca,
            node,
            zone: self.zone.clone(),
            mount_root: self.mount_root.clone().unwrap_or_else(|| state_dir.join("mounts")),
            state_dir,
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
            heartbeat: self.heartbeat,
            address: self.address.map(|address| address.to_string()),
            cpu_milli: self.cpu.map(|cpu| whole(cpu.milli_value())),
            memory_bytes: self.memory.map(|memory| whole(memory.value())),
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
                tracing::error!(%error, "metrics listener failed; metrics are no longer served");
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
    fn rates_are_parsed() {
        let ten = rate("10/min").unwrap();
        assert_eq!((ten.starts.get(), ten.within.as_secs()), (10, 60));
        for wrong in ["", "10", "0/min", "x/min", "10/fortnight"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
