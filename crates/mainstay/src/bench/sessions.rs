//! `mainstay bench sessions`: opening and closing sessions under load.
//!
//! Three processes on the same cores: a server, an agent that simulates many nodes, and this
//! one with the clients; HTTPS everywhere, the gateway on. Clients work in a closed loop. Idle
//! instances are spread over all nodes and taken longest idle first, so that consecutive sessions
//! go to different nodes; how evenly, and how many messages went to nodes, is printed to stderr.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use mainstay_client::Dialer;
use mainstay_clock::{Clock, SystemClock, duration};
use mainstay_terminal::report::{Format, Row, print};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Error;
use super::load::{Connection, Template};
use super::server::ServerProcess;
use crate::client::{Call, Client, JSON};
use crate::connect::Connect;
use crate::error::Error as CommandError;

const APPLICATION: &str = "bench";
const SESSIONS: &str = "/apis/apps.mainstay.dev/v1/namespaces/default/applicationsessions";

/// Open and close sessions on simulated nodes, and report the speed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench sessions
  mainstay bench sessions --only warm-delay,cold --time 10s
  mainstay bench sessions -o json > sessions.json")]
pub(crate) struct Sessions {
    /// Measure only these cases
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CASES")]
    only: Vec<Case>,
    /// How long each timed case lasts
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration::parse)]
    time: Duration,
    /// Clients of the warm cases
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Clients of the cold case
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    cold_clients: u16,
    /// Nodes of the idle case
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    idle_nodes: u32,
    /// Instances of the idle case
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    idle_instances: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

/// The cases, in the order in which they are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Instances placed in batches on 5,000 nodes, the engine alone
    Placement,
    /// Open and close on warm instances, 100 nodes, 3 ms for each
    WarmDelay,
    /// Open and close on warm instances, 1,000 nodes, no delay
    Warm,
    /// Every session gets a new instance that takes 40 ms to start, 1,000 nodes
    Cold,
    /// Memory and processor of a server whose nodes and instances are idle
    Idle,
}

impl Sessions {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        let clock = SystemClock::new();
        let mut rows = Vec::new();
        for &case in Case::value_variants() {
            if !self.only.is_empty() && !self.only.contains(&case) {
                continue;
            }
            let row = match case {
                Case::Placement => mainstay_sessions::bench::placement(&|| clock.elapsed()),
                Case::WarmDelay => {
                    let nodes = Nodes { count: 100, start: "0ms", session: "3ms" };
                    self.opened("warm open + close, 3 ms", &nodes, self.clients, 400).await?
                }
                Case::Warm => {
                    let nodes = Nodes { count: 1_000, start: "0ms", session: "0ms" };
                    self.opened("warm open + close", &nodes, self.clients, 1_000).await?
                }
                Case::Cold => {
                    let nodes = Nodes { count: 1_000, start: "40ms", session: "0ms" };
                    self.opened("cold open + close, 40 ms", &nodes, self.cold_clients, 0).await?
                }
                Case::Idle => self.idle().await?,
            };
            rows.push(row);
        }
        print(&rows, self.output)?;
        Ok(0)
    }

    /// Sessions opened and closed; `warm` instances are kept idle, or none at all.
    async fn opened(
        &self,
        case: &'static str,
        nodes: &Nodes,
        clients: u16,
        warm: u32,
    ) -> Result<Row, CommandError> {
        anstream::eprintln!("{case}: {} nodes, {clients} clients …", nodes.count);
        let under = Under::start(&self.connect, nodes).await?;
        under.apply(warm, warm > 0).await?;
        under.until("idleInstances", i64::from(warm)).await?;
        let before = under.metrics().await?;
        let end = Instant::now() + self.time;
        let number = Arc::new(AtomicUsize::new(0));
        let mut working = JoinSet::new();
        for _ in 0..clients {
            let connection = Connection::open(&under.dialer).await?;
            let (template, number) = (under.template.clone(), number.clone());
            working.spawn(client(connection, template, number, end, warm == 0));
        }
        let start = Instant::now();
        let mut all = Measured::default();
        while let Some(done) = working.join_next().await {
            all.add(
                done.map_err(|error| std::io::Error::other(error.to_string()))
                    .map_err(Error::from)??,
            );
        }
        let took = start.elapsed().as_secs_f64();
        let after = under.metrics().await?;
        all.tell(nodes.count, &before, &after);
        let size = usize::try_from(nodes.count).unwrap_or(0);
        let row = Row::new(case, "sqlite", size).rate(all.micros.len(), took, "sessions/s");
        let row = Row { rss_mb: under.server.rss_mb(), ..row.latencies(all.micros) };
        under.stop().await?;
        Ok(row)
    }

    async fn idle(&self) -> Result<Row, CommandError> {
        let (count, instances) = (self.idle_nodes, self.idle_instances);
        anstream::eprintln!("idle: {count} nodes, {instances} instances …");
        let nodes = Nodes { count, start: "0ms", session: "0ms" };
        let under = Under::start(&self.connect, &nodes).await?;
        under.apply(instances, true).await?;
        under.until("idleInstances", i64::from(instances)).await?;
        // Let the server write its pending changes before measuring.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (before, start) = (under.server.cpu_seconds(), Instant::now());
        tokio::time::sleep(self.time.max(Duration::from_secs(20))).await;
        let used = under.server.cpu_seconds().zip(before).map(|(after, before)| after - before);
        let share = used.map(|used| used / start.elapsed().as_secs_f64() * 100.0);
        let row = Row::new("idle", "sqlite", usize::try_from(instances).unwrap_or(0));
        let row = Row {
            rate: share.map(|share| (share * 100.0).round() / 100.0),
            unit: Some("% of a core".into()),
            rss_mb: under.server.rss_mb(),
            ..row
        };
        under.stop().await?;
        Ok(row)
    }
}

/// The names of the simulated nodes.
struct Nodes {
    count: u32,
    start: &'static str,
    session: &'static str,
}

/// The measurements of the clients.
#[derive(Debug, Default)]
struct Measured {
    /// How long opening took, in microseconds.
    micros: Vec<u32>,
    busy: usize,
    nodes: HashMap<String, usize>,
}

impl Measured {
    fn add(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.busy += other.busy;
        for (node, count) in other.nodes {
            *self.nodes.entry(node).or_default() += count;
        }
    }

    /// Prints how evenly sessions were spread, and how many messages were sent to nodes.
    fn tell(&self, nodes: u32, before: &HashMap<String, f64>, after: &HashMap<String, f64>) {
        let most = self.nodes.values().max().copied().unwrap_or(0) as f64;
        let mean = self.micros.len() as f64 / f64::from(nodes);
        let grew = |name: &str| {
            after.get(name).copied().unwrap_or(0.0) - before.get(name).copied().unwrap_or(0.0)
        };
        let sent = grew("mainstay_sessions_messages_sent_total");
        let writes = grew("mainstay_http_connection_writes");
        let answers = (self.micros.len() * 2 + self.busy) as f64;
        anstream::eprintln!(
            "  spread over {} of {nodes} nodes, the busiest had {:.1} times the mean; refused as busy: {}; \
             {:.1} messages to nodes a session, {:.2} messages and answers a write",
            self.nodes.len(),
            most / mean.max(1e-9),
            self.busy,
            sent / (self.micros.len() as f64).max(1.0),
            (sent + answers) / writes.max(1.0),
        );
    }
}

/// Opens and closes sessions until the time is over.
async fn client(
    mut connection: Connection,
    template: Template,
    number: Arc<AtomicUsize>,
    end: Instant,
    wait: bool,
) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let mode = if wait { "Wait" } else { "FailFast" };
    while Instant::now() < end {
        let name = format!("s{}", number.fetch_add(1, Ordering::Relaxed));
        let body = json!({
            "apiVersion": "apps.mainstay.dev/v1",
            "kind": "ApplicationSession",
            "metadata": {"name": name},
            "spec": {"applicationName": APPLICATION, "openMode": mode},
        });
        let open = template.request("POST", SESSIONS, &body.to_string());
        let start = Instant::now();
        let answer = match connection.ask(&open).await {
            Ok(answer) => answer,
            Err(Error::Refused { code: 503, .. }) => {
                measured.busy += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        measured.micros.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        if let Some(node) = node_of(answer) {
            *measured.nodes.entry(node).or_default() += 1;
        }
        let close = template.request("DELETE", &format!("{SESSIONS}/{name}"), "");
        connection.ask(&close).await?;
    }
    Ok(measured)
}

fn node_of(answer: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"\"nodeName\":\"";
    let at = memchr::memmem::find(answer, MARK)? + MARK.len();
    let end = memchr::memchr(b'"', &answer[at..])?;
    Some(String::from_utf8_lossy(&answer[at..at + end]).into_owned())
}

/// The server and the nodes under test.
struct Under {
    server: ServerProcess,
    agent: Child,
    client: Client,
    dialer: Arc<Dialer>,
    template: Template,
}

impl Under {
    async fn start(connect: &Connect, nodes: &Nodes) -> Result<Self, CommandError> {
        let server = ServerProcess::start("").await?;
        let connect = Connect {
            kubeconfig: Some(server.kubeconfig().display().to_string()),
            context: None,
            server: None,
            token: None,
            ..connect.clone()
        };
        let target = connect.target()?;
        let dialer = Arc::new(target.dialer()?);
        let template = Template::new(&dialer, target.token.as_deref());
        let client = connect.client()?;
        let wish = json!({"role": "node", "nodePrefix": "sim.", "uses": "unlimited", "ttlSeconds": 86_400});
        let token = client
            .json(Call::send(http::Method::POST, "/mainstay/v1/tokens".to_owned(), JSON, &wish))
            .await?;
        let token = token["token"].as_str().unwrap_or_default().to_owned();
        let program = std::env::current_exe().map_err(Error::Start)?;
        let agent = Command::new(program)
            .args([
                "agent",
                "--server",
                dialer.address().url(),
                "--token",
                &token,
                "--node-name",
                "sim",
            ])
            .arg("--ca-cert")
            .arg(server.kubeconfig().with_file_name("ca.crt"))
            .args(["--simulate", &nodes.count.to_string()])
            .args(["--start-delay", nodes.start, "--session-delay", nodes.session])
            .args(["--log", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::Start)?;
        let under = Self { server, agent, client, dialer, template };
        under.joined(nodes.count).await?;
        Ok(under)
    }

    /// Waits until all nodes have joined.
    async fn joined(&self, count: u32) -> Result<(), CommandError> {
        loop {
            let metrics = self.metrics().await?;
            let nodes = metrics.get("mainstay_sessions_nodes").copied().unwrap_or(0.0);
            if nodes >= f64::from(count) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The application: so many idle instances that are used again, or one for every session.
    async fn apply(&self, warm: u32, reuse: bool) -> Result<(), CommandError> {
        let object = json!({
            "apiVersion": "apps.mainstay.dev/v1",
            "kind": "Application",
            "metadata": {"name": APPLICATION},
            "spec": {
                "command": ["simulated"],
                "ports": [{"name": "play"}],
                "reuseInstances": reuse,
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                "scalingPolicy": {
                    "minimumInstance": warm,
                    "maximumInstance": 200_000,
                    "burst": 10_000,
                    "idleSessionNumThreshold": {"low": 0, "high": warm},
                },
            },
        });
        let path = "/apis/apps.mainstay.dev/v1/namespaces/default/applications".to_owned();
        self.client.json(Call::send(http::Method::POST, path, JSON, &object)).await?;
        Ok(())
    }

    /// Waits until a number in the application's status has this value.
    async fn until(&self, field: &str, wanted: i64) -> Result<(), CommandError> {
        let path =
            format!("/apis/apps.mainstay.dev/v1/namespaces/default/applications/{APPLICATION}");
        loop {
            let object: Value = self.client.json(Call::get(path.clone())).await?;
            let status = &object["status"];
            if status["observedGeneration"].is_i64() && status[field].as_i64() == Some(wanted) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn metrics(&self) -> Result<HashMap<String, f64>, CommandError> {
        let text = self.client.bytes(Call::get("/metrics")).await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let numbers = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(numbers.collect())
    }

    async fn stop(mut self) -> Result<(), CommandError> {
        self.agent.kill().await.map_err(Error::from)?;
        self.server.stop().await?;
        Ok(())
    }
}
