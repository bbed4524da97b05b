//! Nodes that only pretend: each has a line of its own to the server, and a simulated runtime.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::clock::Clock;
use mainstay_store::kubernetes::Access;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::instances::{Delays, Simulated};
use crate::link::{Link, Revisions, Speaker};

/// How many nodes dial within a second.
const DIALS_A_SECOND: u32 = 500;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers, the preferred one first.
    pub servers: Vec<String>,
    /// Who we are.
    pub access: Access,
    /// The beginning of their names: they are called `NAME.0`, `NAME.1` …
    pub name: String,
    /// How many.
    pub nodes: u32,
    /// How long things take there.
    pub delays: Delays,
    /// Thousandths of a processor that each has.
    pub cpu_milli: u64,
    /// Bytes that each has.
    pub memory_bytes: u64,
    /// The zone they are in.
    pub zone: Option<String>,
}

/// Running simulated nodes.
#[derive(Debug)]
pub struct Simulation {
    stop: CancellationToken,
    lines: JoinSet<()>,
}

impl Simulation {
    /// Lets them dial, a few at a time.
    #[must_use]
    pub fn start(options: Options, clock: &Arc<dyn Clock>) -> Self {
        let stop = CancellationToken::new();
        let mut lines = JoinSet::new();
        let Options { servers, access, name, nodes, delays, cpu_milli, memory_bytes, zone } =
            options;
        for number in 0..nodes {
            let node = format!("{name}.{number}");
            let mut labels = vec![("kubernetes.io/hostname".to_owned(), node.clone())];
            labels
                .extend(zone.clone().map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)));
            let speaker = Speaker {
                node,
                boot_id: String::new(),
                cpu_milli,
                memory_bytes,
                labels: labels.into_iter().collect(),
                address: "127.0.0.1".to_owned(),
            };
            let (runtime, events) = Simulated::new(delays, clock.clone());
            let access = access.clone();
            let link = Link {
                servers: servers.clone(),
                credentials: Arc::new(move || access.clone()),
                speaker,
                runtime: Arc::new(runtime),
                events,
                revisions: Revisions::Counted(1),
                clock: clock.clone(),
            };
            let (stop, clock) = (stop.clone(), clock.clone());
            let wait = Duration::from_secs(1) / DIALS_A_SECOND * number;
            lines.spawn(async move {
                if stop.run_until_cancelled(clock.sleep(wait)).await.is_some() {
                    link.keep(stop).await;
                }
            });
        }
        Self { stop, lines }
    }

    /// Hangs up everywhere.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        while self.lines.join_next().await.is_some() {}
    }
}
