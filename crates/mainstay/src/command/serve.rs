//! `mainstay serve`: run a server in the foreground until it receives a signal.
//!
//! A flag wins over its environment variable, that over the configuration file, and that over the
//! default. The server and its engines are in `mainstay_server`; this is their command line.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_clock::{SystemClock, duration};
use mainstay_server::engines::{self, Gateway, RulesOptions, SessionsOptions, VolumesOptions};
use mainstay_server::{Engines, Location, Options, Service};
use mainstay_transfers::store::Access;
use mainstay_volumes::extender::Client;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::file::File;
use crate::client::kubeconfig::Trust;
use crate::client::tls;
use crate::credentials::{Bounds, FileBounds, Keys, local_file};
use crate::error::Error;
use crate::paths;
use crate::store_key::StoreKey;

mod audit;
mod file;

/// The default address of a server.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7443);

/// The line on stderr once the server answers requests; the address follows.
pub(crate) const READY: &str = "mainstay is ready at";

/// The default number of files that a server transfers at once.
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
    /// A node without a heartbeat for so long is lost, and its sessions move [default: 20s]
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

/// The log on stderr.
#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// The level of the log: error, warn, info, debug, trace, or a filter such as mainstay_server=debug
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

impl Serve {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.log.start()?;
        let file = match &self.config {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let engines = self.engines(&file)?;
        let options = self.options(file)?;
        let mut signals = Signals::new()?;
        let service = signals.unless_signalled(start(options, engines)).await?;
        let (url, kubeconfig) = (service.server().url(), service.server().kubeconfig().display());
        anstream::eprintln!("{READY} {url} (kubeconfig: {kubeconfig})");
        until_signalled(service, signals).await
    }

    /// The engines that run beside the API.
    fn engines(&self, file: &File) -> Result<Engines, Error> {
        let only = self.only.as_ref().or(file.only.as_ref());
        let wanted = |name: &str| only.is_none_or(|only| only.iter().any(|part| part == name));
        let access = self.access(file)?;
        let rules = wanted("rules").then(|| RulesOptions {
            catalog: self.catalog.clone().or_else(|| file.catalog.clone()),
            transfer_workers: self
                .transfer_workers
                .or(file.transfer_workers)
                .unwrap_or(MOVED_AT_ONCE),
            access,
        });
        let ports = ports(self.gateway_ports.as_deref().or(file.gateway_ports.as_deref()))?;
        let gateway = Gateway {
            address: self.gateway_address.or(file.gateway_address),
            advertise: self.gateway_advertise.clone().or_else(|| file.gateway_advertise.clone()),
            ports,
        };
        let node_timeout = match (self.node_timeout, &file.node_timeout) {
            (Some(time), _) => Some(time),
            (None, Some(text)) => Some(
                duration::parse(text)
                    .map_err(|error| Error::usage(format!("node-timeout {text:?}: {error}")))?,
            ),
            (None, None) => None,
        };
        let extender = self.extender(file)?;
        Ok(Engines {
            volumes: wanted("volumes").then_some(VolumesOptions { extender }),
            rules,
            sessions: wanted("sessions").then_some(SessionsOptions { gateway, node_timeout }),
        })
    }

    /// The extender elsewhere, if there is one.
    fn extender(&self, file: &File) -> Result<Option<Client>, Error> {
        let Some(url) = self.extender_url.as_ref().or(file.extender_url.as_ref()) else {
            return Ok(None);
        };
        let trust = match url.starts_with("https:") {
            true => Some(Arc::new(self.trust(file)?)),
            false => None,
        };
        let client = Client::new(url, trust, SystemClock::new());
        client.map(Some).map_err(|error| Error::usage(format!("--extender-url: {error}")))
    }

    fn trust(&self, file: &File) -> Result<rustls::ClientConfig, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::usage(format!("--extender-ca: {error}"));
        let trust = match self.extender_ca.as_ref().or(file.extender_ca.as_ref()) {
            None => Trust::System,
            Some(file) => {
                let found = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
                let found: Result<Vec<_>, _> = found.collect();
                Trust::Authorities(found.map_err(|error| wrong(&error))?)
            }
        };
        tls::config(&trust, None).map_err(|error| wrong(&error))
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
        let bounds = FileBounds {
            storage_root: file.storage_root.clone(),
            storage_endpoint: file.storage_endpoint.clone(),
        };
        self.keys.access(credentials, self.bounds.allowed(&bounds, &private)?)
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
    let registry = engines::registry().map_err(|error| Error::negative(error.to_string()))?;
    super::version::build().set();
    Ok(Options::new(listen, data_dir, Arc::new(registry), SystemClock::new()))
}

/// Starts a server with its engines.
pub(crate) async fn start(options: Options, engines: Engines) -> Result<Service, Error> {
    Ok(Service::start(options, engines).await?)
}

/// Parses `--store`.
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

/// Parses `--gateway-ports`: a range, or none.
fn ports(text: Option<&str>) -> Result<Option<(u16, u16)>, Error> {
    let Some(text) = text else { return Ok(Some(Gateway::PORTS)) };
    if text == "none" {
        return Ok(None);
    }
    let range = text.split_once('-').and_then(|(first, last)| {
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first > 0 && first <= last).then_some((first, last))
    });
    range.map(Some).ok_or_else(|| {
        Error::usage(format!("--gateway-ports {text:?}: give a range as 30000-32767, or none"))
    })
}

/// All engines, with nothing from outside but storage.
pub(crate) fn all_engines(access: Arc<Access>) -> Engines {
    Engines {
        volumes: Some(VolumesOptions::default()),
        rules: Some(RulesOptions { catalog: None, transfer_workers: MOVED_AT_ONCE, access }),
        sessions: Some(SessionsOptions::default()),
    }
}

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

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The outcome of starting, unless a signal arrives before.
    pub(crate) async fn unless_signalled<T>(
        &mut self,
        starting: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            started = starting => started,
            () = self.received() => Err(Error::negative("stopped by a signal before it was ready")),
        }
    }
}

/// Serves until SIGINT or SIGTERM, then ends in order; a second signal ends at once.
pub(crate) async fn until_signalled(service: Service, mut signals: Signals) -> Result<u8, Error> {
    let mut stopping = false;
    let stop = async || {
        signals.received().await;
        if !std::mem::replace(&mut stopping, true) {
            anstream::eprintln!("stopping …");
        }
    };
    service.run(stop).await?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
