//! `mainstay serve`: run a server in the foreground until it is told to end.
//!
//! What a flag says wins over its environment variable, that over the configuration file, and
//! that over the default.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use clap::Args;
use mainstay_rucio as rest;
use mainstay_rules::Settings;
use mainstay_rules::judge::{Judge, Machine, Managed};
use mainstay_rules::logins::Logins;
use mainstay_rules::queue::Own;
use mainstay_server::clock::SystemClock;
use mainstay_server::registry::{Registry, builtin};
use mainstay_server::{Location, Options, Role, Running, Server, User};
use mainstay_sessions::controller::Sessions;
use mainstay_store::sqlite::lock::Lock;
use mainstay_transfers::store::Access;
use mainstay_transfers::worker::{LEASE, Worker};
use mainstay_volumes::controller::{self, Volumes};
use mainstay_volumes::extender::{Client, Ledger};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::sessions::Gate;
use crate::catalog_part::CatalogPart;
use crate::client::kubeconfig::Trust;
use crate::client::tls;
use crate::credentials::{Bounds, FileBounds, Keys, local_file};
use crate::duration;
use crate::error::Error;
use crate::store_key::StoreKey;
use crate::{paths, rules_login};

mod audit;
mod catalog;
mod readiness;
mod sessions;

/// Where a server listens when nobody says otherwise.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7443);

/// What the server says on stderr once it answers requests; the address follows.
pub(crate) const READY: &str = "mainstay is ready at";

/// How many files a server moves at once when nobody says otherwise.
const MOVED_AT_ONCE: u32 = 4;

/// The parts a server can be restricted to with `--only`.
const PARTS: [&str; 4] = ["api", "volumes", "rules", "sessions"];

/// Run a server
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay serve --data-dir /var/lib/mainstay --listen 0.0.0.0:7443
  mainstay serve --data-dir d --listen 127.0.0.1:0 --store memory:
  mainstay serve --config /etc/mainstay.toml

The configuration file is TOML with the names of the flags:
  data-dir = \"/var/lib/mainstay\"
  listen = \"0.0.0.0:7443\"
  credentials = \"/etc/mainstay-keys.toml\"
  storage-root = [\"/srv/storage\"]
  [limits]
  connections = 4096
  in-flight = 512

The first start makes a certificate authority and writes DIR/kubeconfig (for the administrator),
DIR/ca.crt and DIR/rucio.cfg (for Rucio's own client). The server is ready when /readyz answers 200. SIGTERM and SIGINT end it in order.")]
pub(crate) struct Serve {
    /// Where the server keeps its files; made if it is not there
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:7443]
    #[arg(long, value_name = "ADDR:PORT", env = "MAINSTAY_LISTEN")]
    listen: Option<SocketAddr>,
    /// Where objects are kept: a path or sqlite:PATH, memory:, or etcd://HOST:PORT,… [default:
    /// objects.db in the data folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_STORE")]
    store: Option<String>,
    #[command(flatten)]
    store_key: StoreKey,
    /// Write what is encrypted in the clear again, before serving; the key file is needed for that
    #[arg(long)]
    store_decrypt: bool,
    /// Where the rule engine keeps its catalog: a path or sqlite://PATH, or postgres://…, which
    /// several servers may share [default: catalog.db in the data folder]
    #[arg(long, value_name = "URL", env = "MAINSTAY_CATALOG")]
    catalog: Option<String>,
    /// Run only these parts [possible: api, volumes, rules, sessions]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// Ask this scheduler extender about capacity (http://HOST:PORT or https://HOST:PORT) instead
    /// of the own ledger
    #[arg(long, value_name = "URL", env = "SCHEDULER_EXTENDER_URL")]
    extender_url: Option<String>,
    /// Trust the certificate authorities in this PEM file for an extender with HTTPS [default:
    /// those of this machine]
    #[arg(long, value_name = "FILE")]
    extender_ca: Option<PathBuf>,
    /// The address of the gateway through which sessions are reached [default: where the server
    /// listens]
    #[arg(long, value_name = "ADDR")]
    gateway_address: Option<IpAddr>,
    /// The address that sessions show, if it is another than that of the gateway
    #[arg(long, value_name = "NAME")]
    gateway_advertise: Option<String>,
    /// The ports of the gateway: a range, or none for no gateway [default: 30000-32767]
    #[arg(long, value_name = "FIRST-LAST")]
    gateway_ports: Option<String>,
    /// A node whose agent was not heard for so long is lost, and its sessions move [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    node_timeout: Option<Duration>,
    /// How many files this server moves at once; 0 leaves them to others [default: 4]
    #[arg(long, value_name = "N")]
    transfer_workers: Option<u32>,
    #[command(flatten)]
    audit: audit::Flags,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    bounds: Bounds,
    /// Begin anew, or take the store as it is, though the data folder remembers another
    #[arg(long)]
    new_cluster: bool,
    /// A further name or address that the server's certificate is made out to; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// Serve without TLS; only on a loopback address
    #[arg(long)]
    plain_http: bool,
    /// How long the certificate of a node is good
    #[arg(long, value_name = "TIME", value_parser = duration::parse, hide = true)]
    node_certificate_life: Option<Duration>,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    log: Log,
}

/// What the server says on stderr.
#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// What to log: error, warn, info, debug, trace, or a filter such as mainstay_server=debug
    #[arg(long = "log", value_name = "FILTER", env = "MAINSTAY_LOG", default_value = "info")]
    filter: String,
}

impl Log {
    pub(crate) fn of(filter: &str) -> Self {
        Self { filter: filter.to_owned() }
    }

    pub(crate) fn start(&self) -> Result<(), Error> {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.filter)
            .map_err(|error| Error::usage(format!("--log {:?}: {error}", self.filter)))?;
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init();
        Ok(())
    }
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    data_dir: Option<PathBuf>,
    listen: Option<SocketAddr>,
    store: Option<String>,
    store_key: Option<PathBuf>,
    catalog: Option<String>,
    only: Option<Vec<String>>,
    extender_url: Option<String>,
    extender_ca: Option<PathBuf>,
    transfer_workers: Option<u32>,
    gateway_address: Option<IpAddr>,
    gateway_advertise: Option<String>,
    gateway_ports: Option<String>,
    node_timeout: Option<String>,
    credentials: Option<PathBuf>,
    audit_policy: Option<PathBuf>,
    audit_sinks: Vec<String>,
    storage_root: Vec<PathBuf>,
    storage_endpoint: Vec<String>,
    tls_san: Vec<String>,
    plain_http: bool,
    limits: FileLimits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct FileLimits {
    connections: Option<usize>,
    connections_per_address: Option<usize>,
    in_flight: Option<usize>,
    unauthenticated: Option<usize>,
    watches: Option<usize>,
    bodies: Option<usize>,
    body_bytes: Option<usize>,
    body_memory: Option<usize>,
    answer_memory: Option<usize>,
    unauthenticated_body_memory: Option<usize>,
    body_rate: Option<u32>,
    events: Option<usize>,
}

impl FileLimits {
    /// Puts what the file says in the place of the defaults.
    fn apply(self, limits: &mut mainstay_server::Limits) {
        let put = |place: &mut usize, said: Option<usize>| *place = said.unwrap_or(*place);
        put(&mut limits.connections, self.connections);
        limits.connections_per_address = self.connections_per_address;
        put(&mut limits.in_flight, self.in_flight);
        put(&mut limits.strangers, self.unauthenticated);
        put(&mut limits.watches, self.watches);
        put(&mut limits.bodies, self.bodies);
        put(&mut limits.body, self.body_bytes);
        put(&mut limits.body_memory, self.body_memory);
        put(&mut limits.answer_memory, self.answer_memory);
        put(&mut limits.stranger_body_memory, self.unauthenticated_body_memory);
        limits.body_rate = self.body_rate.unwrap_or(limits.body_rate);
        put(&mut limits.events, self.events);
    }
}

impl File {
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let place = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("cannot read {place}: {error}")))?;
        Self::parse(&text).map_err(|error| Error::usage(format!("{place}: {error}")))
    }
}

impl Serve {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.log.start()?;
        let file = match &self.config {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let only = self.only.as_ref().or(file.only.as_ref());
        let wanted = |name: &str| only.is_none_or(|only| only.iter().any(|part| part == name));
        let parts = Parts {
            volumes: wanted("volumes"),
            extender_url: self.extender_url.clone().or_else(|| file.extender_url.clone()),
            extender_ca: self.extender_ca.clone().or_else(|| file.extender_ca.clone()),
            rules: wanted("rules"),
            catalog: self.catalog.clone().or_else(|| file.catalog.clone()),
            transfer_workers: self
                .transfer_workers
                .or(file.transfer_workers)
                .unwrap_or(MOVED_AT_ONCE),
            sessions: wanted("sessions"),
            node_timeout: match (self.node_timeout, &file.node_timeout) {
                (Some(time), _) => Some(time),
                (None, Some(text)) => Some(
                    duration::parse(text)
                        .map_err(|error| Error::usage(format!("node-timeout {text:?}: {error}")))?,
                ),
                (None, None) => None,
            },
            gateway: Gate {
                address: self.gateway_address.or(file.gateway_address),
                advertise: self.gateway_advertise.clone().or(file.gateway_advertise.clone()),
                ports: sessions::ports(
                    self.gateway_ports.as_deref().or(file.gateway_ports.as_deref()),
                )?,
            },
            access: self.access(&file)?,
        };
        let options = self.options(file)?;
        let mut signals = Signals::new()?;
        let (running, engines) = signals.unless_told(start(options, parts)).await?;
        let (url, kubeconfig) = (running.url(), running.kubeconfig().display());
        anstream::eprintln!("{READY} {url} (kubeconfig: {kubeconfig})");
        until_told(running, engines, signals).await
    }

    /// The way into storage. Files of the server itself are out of reach of the rule engine's
    /// accounts.
    fn access(&self, file: &File) -> Result<Arc<Access>, Error> {
        let credentials = file.credentials.as_deref();
        let store = self.store.as_ref().or(file.store.as_ref());
        let catalog = self.catalog.as_ref().or(file.catalog.as_ref());
        let mut private = vec![
            self.data_dir.clone().or_else(|| file.data_dir.clone()).or_else(paths::data_dir),
            local_file(store.map(String::as_str)),
            local_file(catalog.map(String::as_str)),
            self.keys.file(credentials).map(Path::to_owned),
            self.config.clone(),
            self.store_key.file(file.store_key.as_deref()).map(Path::to_owned),
        ];
        let audit = self.audit.files(file.audit_policy.as_deref(), &file.audit_sinks);
        private.extend(audit.into_iter().map(Some));
        let said = FileBounds {
            storage_root: file.storage_root.clone(),
            storage_endpoint: file.storage_endpoint.clone(),
        };
        self.keys.access(credentials, self.bounds.allowed(&said, &private)?)
    }

    fn options(&self, file: File) -> Result<Options, Error> {
        let data_dir = self.data_dir.clone().or(file.data_dir).or_else(paths::data_dir);
        let Some(data_dir) = data_dir else {
            return Err(Error::usage("say where to keep data: --data-dir DIR"));
        };
        check_parts(self.only.as_deref().or(file.only.as_deref()))?;
        let listen = self.listen.or(file.listen).unwrap_or(DEFAULT_LISTEN);
        let mut options = options(listen, data_dir)?;
        if let Some(store) = self.store.as_ref().or(file.store.as_ref()) {
            options.store = location(store)?;
        }
        options.audit = self.audit.settings(file.audit_policy.as_deref(), &file.audit_sinks)?;
        options.settings.codec = self.store_key.codec(file.store_key.as_deref())?;
        options.settings.decrypt = self.store_decrypt;
        if self.store_decrypt && !options.settings.codec.sealer().has_keys() {
            return Err(Error::usage("--store-decrypt needs the keys: give --store-key FILE too"));
        }
        options.new_cluster = self.new_cluster;
        options.tls_names = match self.tls_san.is_empty() {
            true => file.tls_san,
            false => self.tls_san.clone(),
        };
        options.plain_http = self.plain_http || file.plain_http;
        if options.plain_http && !listen.ip().is_loopback() {
            return Err(Error::usage(format!(
                "--plain-http is only for a loopback address such as 127.0.0.1, not {}",
                listen.ip()
            )));
        }
        let limits = &mut options.limits;
        file.limits.apply(limits);
        limits.node_certificate = self.node_certificate_life.unwrap_or(limits.node_certificate);
        Ok(options)
    }
}

/// A server of all kinds there are, with nothing else out of the ordinary.
pub(crate) fn options(listen: SocketAddr, data_dir: PathBuf) -> Result<Options, Error> {
    let kinds = builtin()
        .into_iter()
        .chain(mainstay_volumes::kinds())
        .chain(mainstay_disks::kinds())
        .chain(mainstay_sessions::kinds());
    let registry = Registry::new(kinds).map_err(|error| Error::negative(error.to_string()))?;
    Ok(Options::new(listen, data_dir, Arc::new(registry), SystemClock::new()))
}

/// What `--store` means.
pub(crate) fn location(store: &str) -> Result<Location, Error> {
    match store.parse() {
        Ok(Location::Unknown(url)) => Err(Error::usage(format!(
            "--store: no store is called {url:?}; give a file's path, sqlite:PATH, memory: or etcd://HOST:PORT"
        ))),
        Ok(location) => Ok(location),
        Err(error) => Err(Error::usage(format!("--store: {error}"))),
    }
}

fn check_parts(only: Option<&[String]>) -> Result<(), Error> {
    for part in only.unwrap_or_default() {
        if !PARTS.contains(&part.as_str()) {
            let known = PARTS.join(", ");
            return Err(Error::usage(format!(
                "--only: there is no part {part:?}; there is: {known}"
            )));
        }
    }
    Ok(())
}

/// Which engines run beside the API.
#[derive(Debug)]
pub(crate) struct Parts {
    volumes: bool,
    extender_url: Option<String>,
    extender_ca: Option<PathBuf>,
    rules: bool,
    catalog: Option<String>,
    transfer_workers: u32,
    sessions: bool,
    gateway: Gate,
    node_timeout: Option<Duration>,
    access: Arc<Access>,
}

impl Parts {
    /// All of them, with nothing from outside but storage.
    pub(crate) fn all(access: Arc<Access>) -> Self {
        Self {
            volumes: true,
            extender_url: None,
            extender_ca: None,
            rules: true,
            catalog: None,
            transfer_workers: MOVED_AT_ONCE,
            sessions: true,
            node_timeout: None,
            gateway: Gate { address: None, advertise: None, ports: Some(sessions::PORTS) },
            access,
        }
    }
}

impl Parts {
    /// The extender elsewhere, if there is one.
    fn extender(&self, options: &Options) -> Result<Option<Client>, Error> {
        let Some(url) = &self.extender_url else { return Ok(None) };
        let trust = match url.starts_with("https:") {
            true => Some(Arc::new(self.trust()?)),
            false => None,
        };
        let client = Client::new(url, trust, options.clock.clone());
        client.map(Some).map_err(|error| Error::usage(format!("--extender-url: {error}")))
    }

    fn trust(&self) -> Result<rustls::ClientConfig, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::usage(format!("--extender-ca: {error}"));
        let trust = match &self.extender_ca {
            None => Trust::System,
            Some(file) => {
                let found = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
                let found: Result<Vec<_>, _> = found.collect();
                Trust::Authorities(found.map_err(|error| wrong(&error))?)
            }
        };
        tls::config(&trust, None).map_err(|error| wrong(&error))
    }
}

/// The engines of a running server.
#[derive(Debug)]
pub(crate) struct Engines {
    volumes: Option<Volumes>,
    rules: Option<Judge>,
    transfers: Option<Worker>,
    sessions: Option<Sessions>,
    _catalog_lock: Option<Lock>,
}

impl Engines {
    async fn shut_down(self) {
        if let Some(sessions) = self.sessions {
            sessions.shutdown().await;
        }
        if let Some(volumes) = self.volumes {
            volumes.shutdown().await;
        }
        // Last: their database may be one that does not answer.
        if let Some(transfers) = self.transfers {
            transfers.stop().await;
        }
        if let Some(judge) = self.rules {
            judge.stop().await;
        }
    }
}

/// Starts a server and its engines. The extender's routes answer once the ledger is there.
pub(crate) async fn start(mut options: Options, parts: Parts) -> Result<(Running, Engines), Error> {
    let extender = parts.extender(&options)?;
    let ledger = Arc::new(std::sync::OnceLock::new());
    if parts.volumes {
        let routes = options.routes.take().unwrap_or_default();
        let extender = mainstay_volumes::extender::router(ledger.clone());
        let guarded = extender.layer(axum::middleware::from_fn(may_reserve));
        options.routes = Some(routes.merge(guarded));
    }
    let mut catalog_lock = None;
    let catalog = match parts.rules {
        false => None,
        true => match rules(&options, &parts).await {
            Err(error) if catalog::is_full(&options.data_dir) => {
                tracing::error!(%error, "the disk is full; the rule engine is off until a restart");
                None
            }
            opened => {
                let (service, lock) = opened?;
                catalog_lock = lock;
                let surface = rest::mounted(super::rules::SURFACE, service.clone(), caller)
                    .layer(axum::middleware::from_fn(audit::rules));
                let routes = options.routes.take().unwrap_or_default();
                options.routes = Some(routes.merge(surface));
                options.own_users.push(super::rules::SURFACE);
                options.parts.push(Arc::new(CatalogPart(service.catalog.clone())));
                let check = readiness::Database(service.catalog.clone());
                options.checks.push(("catalog", Arc::new(check)));
                Some(service)
            }
        },
    };
    options.engines_follow = true;
    let desk = parts.sessions.then(|| sessions::mount(&mut options));
    let (data_dir, plain) = (options.data_dir.clone(), options.plain_http);
    let running = Server::start(options).await?;
    if let Some(service) = &catalog {
        let authority =
            std::path::absolute(data_dir.join("ca.crt")).map_err(Error::io("no folder"))?;
        let authority = (!plain).then_some(authority.as_path());
        match rules_login::write(service, &data_dir, running.url(), authority).await {
            Err(error) if catalog::is_full(&data_dir) => {
                tracing::error!(%error, "the disk is full; rucio.cfg is as it was");
            }
            written => drop(written?),
        }
    }
    let mut engines = Engines {
        volumes: None,
        rules: None,
        transfers: None,
        sessions: None,
        _catalog_lock: catalog_lock,
    };
    if parts.volumes {
        let resources = running.resources();
        let address = running.local_addr().to_string();
        let settings = controller::Options { extender, ..controller::Options::of_run(&address) };
        let volumes = Volumes::start(resources, settings, running.election()).await;
        let volumes = volumes.map_err(|error| Error::negative(error.to_string()))?;
        // The slot is empty: this is the only place that fills it.
        let _ = ledger.set(Ledger::new(volumes.reserve().clone(), resources.clone()));
        engines.volumes = Some(volumes);
    }
    if let Some((desk, inbox)) = desk {
        let settings = sessions::settings(parts.node_timeout);
        let started = sessions::start(&running, &parts.gateway, settings, &desk, inbox).await;
        engines.sessions = Some(started?);
    }
    if let Some(service) = catalog {
        let own = Own {
            catalog: service.catalog.clone(),
            settings: service.settings.clone(),
            around: Arc::clone(&service.around),
            worker: format!("server-{}", service.catalog.origin()),
            lease: LEASE,
        };
        let most = usize::try_from(parts.transfer_workers).unwrap_or(usize::MAX);
        let rest::Service { catalog, settings, around, access, .. } = service;
        engines.transfers = Some(Worker::start(Arc::new(own), Arc::clone(&access), most));
        engines.rules = Some(Judge::start(catalog, settings, around, Arc::new(Managed(access))));
    }
    running.set_ready();
    Ok((running, engines))
}

/// Whoever may only look may not reserve.
async fn may_reserve(request: Request, next: Next) -> Response {
    let role = request.extensions().get::<Arc<User>>().and_then(|user| user.role);
    let writes = matches!(role, Some(Role::Admin | Role::Editor));
    if request.method() != Method::GET && !writes {
        let error = serde_json::json!({"error": "only admins and editors may reserve space"});
        return (StatusCode::FORBIDDEN, axum::Json(error)).into_response();
    }
    next.run(request).await
}

/// The rule engine on its catalog, which is ours alone if it is a file.
async fn rules(options: &Options, parts: &Parts) -> Result<(rest::Service, Option<Lock>), Error> {
    let data_dir = &options.data_dir;
    let mut folder = std::fs::DirBuilder::new();
    let folder = folder.recursive(true).mode(0o700);
    folder.create(data_dir).map_err(Error::io(format!("cannot make {}", data_dir.display())))?;
    let address =
        parts.catalog.clone().unwrap_or_else(|| data_dir.join("catalog.db").display().to_string());
    let (catalog, lock) = catalog::open(data_dir, &address, options.new_cluster).await?;
    let (settings, access) = (Settings::default(), Arc::clone(&parts.access));
    let logins = Logins::default();
    Ok((rest::Service { catalog, settings, around: Arc::new(Machine), access, logins }, lock))
}

/// Whom a user of the server is to the rule engine. An administrator is `root`, or whom the request
/// names; an editor is the account of the same name; all others only look.
fn caller(extensions: &http::Extensions, headers: &http::HeaderMap) -> Option<rest::Caller> {
    let user = extensions.get::<Arc<User>>()?;
    let privileged = user.role == Some(Role::Admin);
    let named = headers.get("x-rucio-account").and_then(|value| value.to_str().ok());
    let account = match named {
        Some(account) if privileged => account,
        None if privileged => "root",
        _ => user.name.as_ref(),
    };
    // An account has a name.
    if account.is_empty() {
        return None;
    }
    let read_only = !matches!(user.role, Some(Role::Admin | Role::Editor));
    Some(rest::Caller { account: account.to_owned(), privileged, read_only })
}

/// How long engines have to come to an end: a database that hangs must not keep a server that is told
/// to end. What it never answered is undone there.
const ENGINES_END: Duration = Duration::from_secs(10);

/// SIGINT and SIGTERM, caught from when this is made: a signal that arrives while the server starts,
/// or right after it is ready, ends it in order too.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Error> {
        let failed = || Error::io("cannot listen for signals");
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed())?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed())?,
        })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The outcome of starting, unless a signal arrives before.
    pub(crate) async fn unless_told<T>(
        &mut self,
        starting: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            started = starting => started,
            () = self.told() => Err(Error::negative("ended by a signal before it was ready")),
        }
    }
}

/// Serves until SIGINT or SIGTERM, then ends in order; a second signal ends at once.
pub(crate) async fn until_told(
    running: Running,
    engines: Engines,
    mut signals: Signals,
) -> Result<u8, Error> {
    let handle = running.handle();
    let mut ended = std::pin::pin!(running.wait());
    tokio::select! {
        () = &mut ended => return Err(Error::negative("the server ended by itself")),
        () = signals.told() => {}
    }
    anstream::eprintln!("ending …");
    let all = async {
        let in_order = tokio::time::timeout(ENGINES_END, engines.shut_down()).await.is_ok();
        handle.shut_down();
        ended.await;
        match in_order {
            true => Ok(0),
            false => Err(Error::negative(
                "ended, but not all that was under way had come to an end: its database does not answer",
            )),
        }
    };
    tokio::select! {
        ended = all => ended,
        () = signals.told() => Err(Error::negative("ended at once, without waiting for what was under way")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_names_of_the_flags_and_no_others() {
        let file = File::parse(
            "listen = \"127.0.0.1:1\"\nplain-http = true\n[limits]\nwatches = 5\nbody-rate = 7\n",
        )
        .unwrap();
        assert_eq!(file.listen.unwrap().port(), 1);
        assert!(file.plain_http);
        assert_eq!(file.limits.watches, Some(5));
        let mut limits = mainstay_server::Limits::default();
        let usual = limits.clone();
        file.limits.apply(&mut limits);
        assert_eq!((limits.watches, limits.body_rate), (5, 7));
        assert_eq!((limits.in_flight, limits.bodies), (usual.in_flight, usual.bodies));
        for (text, named) in [
            ("lisen = 1", "lisen"),
            ("[limits]\nwatchers = 1", "watchers"),
            ("listen = \"here\"", "listen"),
        ] {
            let error = File::parse(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn every_kind_has_a_row_in_the_table_of_access() {
        let options = options("127.0.0.1:0".parse().unwrap(), PathBuf::new()).unwrap();
        let missing = mainstay_server::authorize::uncovered(&options.registry);
        assert_eq!(missing, Vec::<String>::new(), "add rows to authorize/table.rs");
    }

    #[test]
    fn parts_that_are_not_there_are_refused() {
        assert!(check_parts(Some(&["api".to_owned()])).is_ok());
        assert!(check_parts(Some(&["volumes".to_owned(), "rules".to_owned()])).is_ok());
        assert!(check_parts(Some(&["everything".to_owned()])).is_err());
        assert!(check_parts(None).is_ok());
    }
}
