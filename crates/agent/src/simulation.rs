//! Simulated nodes: each joins with the same token, and has a certificate, a stream to the server and a
//! simulated runtime of its own.

use std::sync::Arc;
use std::time::Duration;

use mainstay_client::{Access, Address, AddressError, Client};
use mainstay_clock::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::instances::{Delays, Simulated};
use crate::join::SimulatedIdentity;
use crate::link::{Link, Registration, Revisions};

/// How many nodes connect within a second.
const DIALS_A_SECOND: u32 = 500;
/// The shortest interval between two renewals of a certificate.
const SOONEST: Duration = Duration::from_secs(1);

/// How nodes are simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers, the preferred one first.
    pub servers: Vec<String>,
    /// A token for the prefix `NAME.`, good for as many joins as there are nodes.
    pub access: Access,
    /// The certificate authority of the servers, as PEM.
    pub ca: Option<String>,
    /// The beginning of their names: they are called `NAME.0`, `NAME.1` …
    pub name: String,
    /// How many.
    pub nodes: u32,
    /// How long commands take there.
    pub delays: Delays,
    /// Thousandths of a processor that each has.
    pub cpu_milli: u64,
    /// Bytes that each has.
    pub memory_bytes: u64,
    /// The zone they are in.
    pub zone: Option<String>,
}

/// Runs one node: joins, stays connected, and renews the certificate.
async fn simulate(
    identity: SimulatedIdentity,
    link: Link,
    arrivals: Arrivals,
    stop: CancellationToken,
    clock: Arc<dyn Clock>,
) {
    let entered = identity.enter(&*clock).await;
    arrivals.send_modify(|arrived| match &entered {
        Ok(_) => arrived.joined += 1,
        Err(error) => arrived.refused.push(error.to_string()),
    });
    let mut due = match entered {
        Ok(due) => due,
        Err(error) => return tracing::error!(%error, "a simulated node cannot join"),
    };
    let renewing = async {
        loop {
            let wait = due.duration_since(clock.now());
            clock.sleep(Duration::try_from(wait).unwrap_or_default().max(SOONEST)).await;
            match identity.enter(&*clock).await {
                Ok(next) => due = next,
                Err(error) => {
                    tracing::error!(%error, "a simulated node cannot renew its certificate")
                }
            }
        }
    };
    tokio::select! {
        () = link.run(stop) => {}
        () = renewing => {}
    }
}

/// How many nodes have come to the end of joining.
#[derive(Debug, Default)]
struct Arrived {
    joined: usize,
    /// Why the others could not join.
    refused: Vec<String>,
}

type Arrivals = Arc<watch::Sender<Arrived>>;

/// Some of the simulated nodes could not join, and trying again does not help.
#[derive(Debug, thiserror::Error)]
#[error("{count} of {nodes} simulated nodes could not join: {first}")]
pub struct NotJoined {
    count: usize,
    nodes: usize,
    first: String,
}

/// Running simulated nodes.
#[derive(Debug)]
pub struct Simulation {
    arrivals: Arrivals,
    nodes: usize,
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Simulation {
    /// Starts the nodes, a few at a time.
    ///
    /// # Errors
    /// [`AddressError`] if a server address is invalid.
    pub fn start(options: Options, clock: &Arc<dyn Clock>) -> Result<Self, AddressError> {
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        let arrivals = Arrivals::default();
        let Options { servers, access, ca, name, nodes, delays, cpu_milli, memory_bytes, zone } =
            options;
        let addresses: Result<Vec<_>, _> = servers.iter().map(|one| Address::parse(one)).collect();
        let addresses = addresses?;
        for number in 0..nodes {
            let node = format!("{name}.{number}");
            let mut labels = vec![("kubernetes.io/hostname".to_owned(), node.clone())];
            labels
                .extend(zone.clone().map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)));
            let registration = Registration {
                node,
                boot_id: String::new(),
                cpu_milli,
                memory_bytes,
                labels: labels.into_iter().collect(),
                address: "127.0.0.1".to_owned(),
            };
            let (runtime, events) = Simulated::new(delays, clock.clone());
            let client = Client::new(addresses.clone(), access.clone());
            let identity =
                SimulatedIdentity::new(client, ca.clone(), &registration.node, zone.clone());
            let link = Link {
                servers: servers.clone(),
                credentials: identity.credentials(),
                registration,
                runtime: Arc::new(runtime),
                events,
                revisions: Revisions::InMemory(1),
                clock: clock.clone(),
            };
            let (stop, clock, arrivals) = (stop.clone(), clock.clone(), arrivals.clone());
            let wait = Duration::from_secs(1) / DIALS_A_SECOND * number;
            running.spawn(async move {
                if stop.run_until_cancelled(clock.sleep(wait)).await.is_some() {
                    let node = simulate(identity, link, arrivals, stop.clone(), clock);
                    stop.run_until_cancelled(node).await;
                }
            });
        }
        Ok(Self { arrivals, nodes: nodes as usize, stop, running })
    }

    /// Waits until every node has joined. Nodes wait for a server for as long as it takes.
    ///
    /// # Errors
    /// [`NotJoined`] once all others have joined, if some were refused.
    pub async fn joined(&self) -> Result<(), NotJoined> {
        let mut arrivals = self.arrivals.subscribe();
        let all = |arrived: &Arrived| arrived.joined + arrived.refused.len() >= self.nodes;
        // The sender is ours, hence not gone.
        let Ok(arrived) = arrivals.wait_for(all).await else { return Ok(()) };
        match arrived.refused.first() {
            None => Ok(()),
            Some(first) => Err(NotJoined {
                count: arrived.refused.len(),
                nodes: self.nodes,
                first: first.clone(),
            }),
        }
    }

    /// Disconnects every node.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }
}
