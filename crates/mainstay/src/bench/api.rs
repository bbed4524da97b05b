//! `mainstay bench api`: the Kubernetes dialect under load, over TLS, in a closed loop.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum as _};
use mainstay_clock::duration;
use mainstay_terminal::report::{Format, Row, print};
use memchr::memmem;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Error;
use super::load::{Connection, STAMP, Template, stamp};
use super::server::ServerProcess;
use crate::connect::Connect;
use crate::error::Error as CommandError;
use mainstay_client::Dialer;

const NAMESPACE: &str = "bench";
const PAGE: usize = 500;
const EVENT_PERIOD: Duration = Duration::from_millis(10);
/// How many writes of the watch case may be under way at once.
const WRITERS: usize = 16;

/// Create, get, list, update, apply and watch ConfigMaps, and report the speed
///
/// Starts servers of its own, one for each backend, unless one is named with --kubeconfig or
/// --server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench api                          SQLite, then memory
  mainstay bench api -o json > bench.json     for programs
  mainstay bench api --kubeconfig FILE        a server that already runs")]
pub(crate) struct Api {
    /// Backends to measure: sqlite, memory, or any --store URL
    #[arg(long, value_delimiter = ',', default_value = "sqlite,memory", value_name = "LIST")]
    store: Vec<String>,
    /// Concurrent connections
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Objects to create
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    objects: u32,
    /// Size of each object's JSON as sent, in bytes
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(200..=1_000_000))]
    size: u32,
    /// Watchers of the watch case
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    watchers: u16,
    /// How long each timed case lasts
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    time: Duration,
    /// Measure only these cases; objects are always created
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CASES")]
    only: Vec<Case>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

impl Api {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        let mut rows = Vec::new();
        // An environment variable names a server for everyday use; only a flag names one to load.
        let named = std::env::args().any(|argument| {
            argument.starts_with("--kubeconfig")
                || argument.starts_with("--server")
                || argument == "-s"
        });
        if named {
            rows.extend(self.measure(&self.connect, "running", None).await?);
        } else {
            for store in &self.store {
                let url = match store.as_str() {
                    "sqlite" => "",
                    "memory" => "memory:",
                    url => url,
                };
                let mut server = ServerProcess::start(url).await?;
                let connect = Connect {
                    kubeconfig: Some(server.kubeconfig().display().to_string()),
                    context: None,
                    server: None,
                    token: None,
                    ..self.connect.clone()
                };
                rows.extend(self.measure(&connect, store, Some(&mut server)).await?);
                server.stop().await?;
            }
        }
        print(&rows, self.output)?;
        Ok(0)
    }

    async fn measure(
        &self,
        connect: &Connect,
        backend: &str,
        mut server: Option<&mut ServerProcess>,
    ) -> Result<Vec<Row>, CommandError> {
        let mut load = self.load(connect, backend)?;
        load.prepare().await?;
        let mut rows = Vec::new();
        for &case in Case::value_variants() {
            if case != Case::Create && !self.wants(case) {
                continue;
            }
            let row = match case {
                Case::Restart => {
                    let Some(server) = server.as_mut().filter(|_| backend != "memory") else {
                        continue;
                    };
                    anstream::eprintln!("{backend}: {} …", case.name());
                    let took = server.restart().await?;
                    load = self.load(connect, backend)?;
                    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
                    let row = Row::new(case.name(), backend, load.count_once().await?);
                    Row { rss_mb: server.rss_mb(), ..row.latencies(vec![micros]) }
                }
                case => {
                    anstream::eprintln!("{backend}: {} …", case.name());
                    load.measure(case, server.as_deref()).await?
                }
            };
            if self.wants(case) {
                rows.push(row);
            }
        }
        load.clean_up().await?;
        Ok(rows)
    }

    fn wants(&self, case: Case) -> bool {
        self.only.is_empty() || self.only.contains(&case)
    }

    fn load<'a>(&'a self, connect: &Connect, backend: &'a str) -> Result<Load<'a>, CommandError> {
        let target = connect.target()?;
        let dialer = Arc::new(target.dialer()?);
        let template = Template::new(&dialer, target.token.as_deref());
        Ok(Load { api: self, dialer, template, backend })
    }
}

/// The cases, in the order in which they are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// New objects
    Create,
    /// Resident memory with them
    Memory,
    /// One object at a time
    Get,
    /// The whole collection in pages
    List,
    /// Whole objects replaced
    Update,
    /// Whole objects applied (server-side apply)
    Apply,
    /// Four gets to one update
    Mixed,
    /// Events to many watchers
    Watch,
    /// From the start of a killed server's process until it is ready
    Restart,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Memory => "memory",
            Self::Get => "get",
            Self::List => "list",
            Self::Update => "update",
            Self::Apply => "apply",
            Self::Mixed => "mixed",
            Self::Watch => "watch",
            Self::Restart => "restart",
        }
    }

    /// Whether the `turn`-th request of a case writes: all, none, or every fifth.
    fn writes(self, turn: usize) -> bool {
        match self {
            Self::Update | Self::Apply => true,
            Self::Mixed => turn.is_multiple_of(5),
            _ => false,
        }
    }
}

/// The result of one connection.
type Work = Result<(usize, Vec<u32>), Error>;

struct Load<'a> {
    api: &'a Api,
    dialer: Arc<Dialer>,
    template: Template,
    backend: &'a str,
}

fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

fn name(number: usize) -> String {
    format!("bench-{number:07}")
}

/// A ConfigMap whose JSON is `size` bytes long and carries a mark.
fn configmap(name: &str, mark: &str, size: usize) -> String {
    let body = |filler: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"app":"bench"}}}},"data":{{"sent":"{mark}","filler":"{filler}"}}}}"#
        )
    };
    let filler = size.saturating_sub(body("").len());
    body(&"x".repeat(filler))
}

/// A cheap, repeatable pseudo-random choice.
fn next_random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap_or_default()
}

fn since(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX)
}

impl Load<'_> {
    fn objects(&self) -> usize {
        self.api.objects as usize
    }

    fn size(&self) -> usize {
        self.api.size as usize
    }

    async fn measure(&self, case: Case, server: Option<&ServerProcess>) -> Result<Row, Error> {
        match case {
            Case::Create => self.create().await,
            Case::List => self.list().await,
            Case::Watch => self.watch().await,
            Case::Get | Case::Update | Case::Apply | Case::Mixed => self.timed(case).await,
            Case::Memory | Case::Restart => Ok(Row {
                rss_mb: server.and_then(ServerProcess::rss_mb),
                ..Row::new(case.name(), self.backend, self.objects())
            }),
        }
    }

    async fn prepare(&self) -> Result<(), Error> {
        let mut connection = Connection::open(&self.dialer).await?;
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{NAMESPACE}"}}}}"#
        );
        let request = self.template.request("POST", "/api/v1/namespaces", &body);
        connection.ask(&request).await?;
        Ok(())
    }

    async fn clean_up(&self) -> Result<(), Error> {
        let mut connection = Connection::open(&self.dialer).await?;
        let path = format!("/api/v1/namespaces/{NAMESPACE}");
        connection.ask(&self.template.request("DELETE", &path, "")).await?;
        Ok(())
    }

    /// Runs `work` on every connection at once, all opened before the clock starts.
    async fn together<F>(
        &self,
        connections: usize,
        work: impl Fn(usize, Connection) -> F,
    ) -> Result<(usize, Vec<u32>, f64), Error>
    where
        F: Future<Output = Work> + Send + 'static,
    {
        let mut ready = Vec::new();
        for _ in 0..connections {
            ready.push(Connection::open(&self.dialer).await?);
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (number, connection) in ready.into_iter().enumerate() {
            tasks.spawn(work(number, connection));
        }
        let mut count = 0;
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (more, late) = done.map_err(std::io::Error::other)??;
            count += more;
            latencies.extend(late);
        }
        Ok((count, latencies, start.elapsed().as_secs_f64()))
    }

    async fn create(&self) -> Result<Row, Error> {
        let connections = usize::from(self.api.connections);
        let (objects, size) = (self.objects(), self.size());
        let next = Arc::new(AtomicUsize::new(0));
        let (count, latencies, seconds) = self
            .together(connections, |_, mut connection| {
                let (next, template) = (Arc::clone(&next), self.template.clone());
                async move {
                    let mut latencies = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= objects {
                            return Ok((latencies.len(), latencies));
                        }
                        let body = configmap(&name(number), "0", size);
                        let request = template.request("POST", &collection(), &body);
                        let start = Instant::now();
                        connection.ask(&request).await?;
                        latencies.push(since(start));
                    }
                }
            })
            .await?;
        let row = Row::new("create", self.backend, objects);
        Ok(row.rate(count, seconds, "objects/s").latencies(latencies))
    }

    /// Gets, updates, applies, or some of each, of objects chosen at random.
    async fn timed(&self, case: Case) -> Result<Row, Error> {
        let connections = usize::from(self.api.connections);
        let (objects, size) = (self.objects(), self.size());
        let time = self.api.time;
        let (count, latencies, seconds) = self
            .together(connections, |number, mut connection| {
                let template = self.template.clone();
                async move {
                    let mut latencies = Vec::new();
                    let mut random = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1);
                    let end = Instant::now() + time;
                    let mut start = Instant::now();
                    while start < end {
                        // Each connection writes objects of its own; any may be read.
                        let chosen = next_random(&mut random) % objects;
                        let request = if case.writes(latencies.len()) {
                            let own = (chosen / connections * connections + number) % objects;
                            let mark = latencies.len().to_string();
                            let body = configmap(&name(own), &mark, size);
                            let path = format!("{}/{}", collection(), name(own));
                            match case {
                                Case::Apply => template.request(
                                    "PATCH",
                                    &format!("{path}?fieldManager=bench&force=true"),
                                    &body,
                                ),
                                _ => template.request("PUT", &path, &body),
                            }
                        } else {
                            template.request(
                                "GET",
                                &format!("{}/{}", collection(), name(chosen)),
                                "",
                            )
                        };
                        start = Instant::now();
                        connection.ask(&request).await?;
                        latencies.push(since(start));
                    }
                    Ok((latencies.len(), latencies))
                }
            })
            .await?;
        let row = Row::new(case.name(), self.backend, objects);
        Ok(row.rate(count, seconds, "requests/s").latencies(latencies))
    }

    async fn list(&self) -> Result<Row, Error> {
        let connections = usize::from(self.api.connections);
        let time = self.api.time;
        let found = self.count_once().await?;
        if found != self.objects() {
            return Err(Error::Miscounted { found, expected: self.objects() });
        }
        let (count, latencies, seconds) = self
            .together(connections, |_, mut connection| {
                let template = self.template.clone();
                async move {
                    let mut latencies = Vec::new();
                    let mut count = 0;
                    let mut token = String::new();
                    let end = Instant::now() + time;
                    let mut start = Instant::now();
                    while start < end {
                        let request = page(&template, &token);
                        start = Instant::now();
                        let body = connection.ask(&request).await?;
                        latencies.push(since(start));
                        count += memmem::find_iter(body, STAMP).count();
                        token = continue_token(body);
                    }
                    Ok((count, latencies))
                }
            })
            .await?;
        let row = Row::new("list", self.backend, self.objects());
        Ok(row.rate(count, seconds, "objects/s").latencies(latencies))
    }

    /// Reads the whole collection with a real parser, so that the cheap one can be trusted.
    async fn count_once(&self) -> Result<usize, Error> {
        let mut connection = Connection::open(&self.dialer).await?;
        let (mut count, mut token) = (0, String::new());
        loop {
            let body = connection.ask(&page(&self.template, &token)).await?;
            let list: serde_json::Value =
                serde_json::from_slice(body).map_err(|_| Error::NotHttp)?;
            let items = list["items"].as_array().map(Vec::len).unwrap_or_default();
            let cheap = memmem::find_iter(body, STAMP).count();
            token = continue_token(body);
            let agrees = cheap == items
                && list["metadata"]["continue"].as_str().unwrap_or_default() == token;
            count += items;
            if !agrees {
                return Err(Error::Miscounted { found: cheap, expected: items });
            }
            if token.is_empty() {
                return Ok(count);
            }
        }
    }

    /// One event each period to many watchers: from when it is due until each has read it.
    ///
    /// Writes begin when they are due, whether or not earlier ones were answered: a server that
    /// falls behind shows in the latencies, not in a lower rate.
    async fn watch(&self) -> Result<Row, Error> {
        let watchers = usize::from(self.api.watchers);
        let periods = self.api.time.as_millis() / EVENT_PERIOD.as_millis();
        let each = usize::try_from(periods).unwrap_or(usize::MAX).div_ceil(WRITERS).max(1);
        let events = each * WRITERS;
        let mut writers = Vec::with_capacity(WRITERS);
        let mut version = String::new();
        for number in 0..WRITERS {
            let mut writer = Connection::open(&self.dialer).await?;
            let body = configmap(&beacon(number), "0", self.size());
            let created = writer.ask(&self.template.request("POST", &collection(), &body)).await?;
            let created: serde_json::Value =
                serde_json::from_slice(created).map_err(|_| Error::NotHttp)?;
            created["metadata"]["resourceVersion"].as_str().unwrap_or("0").clone_into(&mut version);
            writers.push(writer);
        }

        let start = Instant::now();
        let ready = Arc::new(Barrier::new(watchers + 1));
        let mut tasks: JoinSet<Result<Vec<u32>, Error>> = JoinSet::new();
        for _ in 0..watchers {
            let mut connection = Connection::open(&self.dialer).await?;
            let path = format!("{}?watch=true&resourceVersion={version}", collection());
            connection.watch(&self.template.request("GET", &path, "")).await?;
            let ready = Arc::clone(&ready);
            tasks.spawn(async move {
                ready.wait().await;
                let mut late = Vec::with_capacity(events);
                connection.stamps(events, start, &mut late).await?;
                Ok(late)
            });
        }
        ready.wait().await;
        let began = Instant::now();
        for (number, mut writer) in writers.into_iter().enumerate() {
            let (template, size) = (self.template.clone(), self.size());
            let first = began + EVENT_PERIOD * u32::try_from(number).unwrap_or(0);
            tasks.spawn(async move {
                let path = format!("{}/{}", collection(), beacon(number));
                let period = EVENT_PERIOD * u32::try_from(WRITERS).unwrap_or(1);
                let mut tick = tokio::time::interval_at(first, period);
                for _ in 0..each {
                    let due = tick.tick().await;
                    let body = configmap(&beacon(number), &stamp(due - start), size);
                    writer.ask(&template.request("PUT", &path, &body)).await?;
                }
                Ok(Vec::new())
            });
        }
        let mut latencies = Vec::with_capacity(watchers * events);
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done.map_err(std::io::Error::other)??);
        }
        let row = Row::new("watch", self.backend, watchers);
        let count = latencies.len();
        Ok(row.rate(count, began.elapsed().as_secs_f64(), "events/s").latencies(latencies))
    }
}

/// The object that a writer of the watch case changes.
fn beacon(number: usize) -> String {
    format!("beacon-{number}")
}

fn page(template: &Template, token: &str) -> Vec<u8> {
    let path = match token {
        "" => format!("{}?limit={PAGE}", collection()),
        token => format!("{}?limit={PAGE}&continue={}", collection(), crate::client::encode(token)),
    };
    template.request("GET", &path, "")
}

/// The continue token of a list, found without parsing it.
fn continue_token(body: &[u8]) -> String {
    const MARK: &[u8] = b"\"continue\":\"";
    let near = |part: &[u8]| {
        let at = memmem::find(part, MARK)? + MARK.len();
        let length = part[at..].iter().position(|&byte| byte == b'"')?;
        String::from_utf8(part[at..at + length].to_vec()).ok()
    };
    let edge = body.len().min(2048);
    near(&body[..edge]).or_else(|| near(&body[body.len() - edge..])).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_large_as_asked() {
        for size in [300, 500, 4096] {
            let text = configmap(&name(7), "0", size);
            assert_eq!(text.len(), size);
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            assert_eq!(memmem::find_iter(text.as_bytes(), STAMP).count(), 1);
        }
    }

    #[test]
    fn the_continue_token_is_found_at_either_end() {
        let filler = "x".repeat(5000);
        let first = format!(
            r#"{{"metadata":{{"continue":"abc","resourceVersion":"1"}},"items":["{filler}"]}}"#
        );
        let last = format!(r#"{{"items":["{filler}"],"metadata":{{"continue":"abc"}}}}"#);
        let none = format!(r#"{{"items":["{filler}"],"metadata":{{}}}}"#);
        assert_eq!(continue_token(first.as_bytes()), "abc");
        assert_eq!(continue_token(last.as_bytes()), "abc");
        assert_eq!(continue_token(none.as_bytes()), "");
    }
}
