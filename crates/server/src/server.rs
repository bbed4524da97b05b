//! Starts, runs and ends a server. Enter at [`Server::start`].

mod client_files;
mod house;
mod open;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_controller::{election, liveness};
use mainstay_store::clock::Clock;
use mainstay_store::objects::{self, Objects};
use mainstay_store::resources::{Identities, RandomIdentities, Resources};
use mainstay_store::{identity, location, status};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::house::{House, Led};
use crate::audit::{Around, Audit, Condition, Writing};
use crate::certificates::Certificates;
use crate::connection::Connections;
use crate::cursor::Seal;
use crate::documents::Documents;
use crate::gate::Gate;
use crate::list::Snapshots;
use crate::listen::{self, Listener, Room};
use crate::metrics::Metrics;
use crate::options::{Limits, Options};
use crate::readiness::Readiness;
use crate::service::{self, App};
use crate::tls::{self, Authorities, Authority, Tls};
use crate::tokens::{self, Tokens};
use crate::{events, files, garbage, namespaces};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Plain HTTP was asked for where others could listen in. Do not retry.
    #[error("plain HTTP is served on loopback addresses only, and {0} is none")]
    PlainHttp(SocketAddr),
    /// The store could not be opened.
    #[error("the store could not be opened")]
    Open(#[from] location::Error),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] objects::Error),
    /// A restore broke off in the middle. Do not retry: restore again.
    #[error("a restore into this store did not finish: run `mainstay restore` again")]
    HalfRestored,
    /// The store is not the one that the data folder remembers. Do not retry: see what it says.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// TLS could not be set up.
    #[error("TLS could not be set up")]
    Tls(#[from] tls::Error),
    /// The first token could not be made.
    #[error("the admin's token could not be made")]
    Token(#[from] tokens::Error),
    /// The first objects could not be made.
    #[error("the first objects could not be made")]
    Objects(#[from] status::Error),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("{path} could not be written")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

/// The open store and the bound address of a server about to be.
#[derive(Debug)]
pub struct Prepared {
    objects: Arc<dyn Objects>,
    tcp: TcpListener,
}

impl Prepared {
    /// Gives both up.
    pub async fn close(self) {
        self.objects.close().await;
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    url: String,
    kubeconfig: PathBuf,
    resources: Resources,
    election: Option<election::Handle>,
    handle: Handle,
    readiness: Arc<Readiness>,
    ended: JoinHandle<()>,
}

/// A way to end a server.
#[derive(Clone, Debug)]
pub struct Handle {
    stop: CancellationToken,
}

impl Handle {
    /// Asks the server to end; it finishes what is under way. Asking again changes nothing.
    pub fn shut_down(&self) {
        self.stop.cancel();
    }
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How a client on this machine calls it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The kubeconfig for its admin.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its objects, for controllers in the same process.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// The election among the servers of a shared store, which decides who runs controllers; none
    /// where this server is alone.
    #[must_use]
    pub fn election(&self) -> Option<&election::Handle> {
        self.election.as_ref()
    }

    /// The engines beside it run: from now on `/readyz` says that it is ready, unless a check fails.
    /// Called again it changes nothing.
    pub fn set_ready(&self) {
        self.readiness.set_started();
    }

    /// A way to end it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until it has ended.
    pub async fn wait(self) {
        if let Err(error) = self.ended.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    /// Ends it, and waits until it has.
    pub async fn shut_down(self) {
        self.handle.shut_down();
        self.wait().await;
    }
}

impl Server {
    /// Starts a server. When this returns it is ready.
    ///
    /// The future is boxed here so that the server is compiled in this crate, not in each that
    /// awaits it.
    ///
    /// # Errors
    /// [`Error`]; nothing is left running.
    pub fn start(options: Options) -> BoxFuture<'static, Result<Running, Error>> {
        async {
            let prepared = Self::prepare(&options).await?;
            Self::start_prepared(options, prepared).await
        }
        .boxed()
    }

    /// Opens the store and binds the address, and serves nothing yet. Most starts that fail do so
    /// here, before anything else is opened or made.
    ///
    /// # Errors
    /// [`Error`]; nothing is left running.
    pub fn prepare(options: &Options) -> BoxFuture<'_, Result<Prepared, Error>> {
        async {
            let address = options.listen;
            if options.plain_http && !address.ip().is_loopback() {
                return Err(Error::PlainHttp(address));
            }
            let dir = options.data_dir.clone();
            files::make_dir(&dir).map_err(|source| Error::File { path: dir, source })?;
            let objects = open::open(options).await?;
            match listen::bind(address) {
                Ok(tcp) => Ok(Prepared { objects, tcp }),
                Err(source) => {
                    objects.close().await;
                    Err(Error::Listen { address, source })
                }
            }
        }
        .boxed()
    }

    /// Starts a server on what was prepared for it. When this returns it is ready.
    ///
    /// # Errors
    /// [`Error`]; nothing is left running.
    pub fn start_prepared(
        options: Options,
        prepared: Prepared,
    ) -> BoxFuture<'static, Result<Running, Error>> {
        async {
            let objects = prepared.objects.clone();
            match Self::start_on(options, prepared).await {
                Err(error) => {
                    objects.close().await;
                    Err(error)
                }
                running => running,
            }
        }
        .boxed()
    }

    async fn start_on(options: Options, prepared: Prepared) -> Result<Running, Error> {
        let Prepared { objects, tcp } = prepared;
        let Options {
            data_dir,
            registry,
            clock,
            plain_http,
            mut limits,
            routes,
            own_users,
            streams,
            parts,
            ..
        } = options;
        let in_dir = |name: &str| data_dir.join(name);
        let authority = Authorities::load(objects.clone(), clock.clone()).await?;
        let certificates = Certificates::load(objects.clone(), clock.clone()).await?;
        let unbound = |source| Error::Listen { address: options.listen, source };
        let address = tcp.local_addr().map_err(unbound)?;
        let url = files::url(address, plain_http);
        let tls = match plain_http {
            true => None,
            false => Some(Arc::new(Tls::new(
                authority.current(),
                address.ip(),
                options.tls_names,
                certificates.clone(),
                clock.clone(),
            )?)),
        };
        let identities = Arc::new(RandomIdentities);
        let resources = Resources::new(objects.clone(), registry, clock.clone(), identities)
            .kept(options.keepers);
        namespaces::ensure(&resources).await?;
        limits.connections = listen::allowed_connections(limits.connections);
        let gate = Gate::new(&limits);
        let mut metrics = options.metrics;
        gate.register(&mut metrics);
        let mut checks = options.checks;
        let condition = Condition::of(&options.audit.policy);
        checks.push(("audit", Arc::new(condition.clone())));
        let engines = options.engines_follow;
        let readiness =
            Readiness::new(objects.clone(), checks, engines, clock.clone(), &mut metrics);
        let metrics = Metrics::new(metrics);
        let around = Around {
            file: in_dir("audit.log"),
            seed: RandomIdentities.uid(),
            meters: metrics.audit.clone(),
            condition,
            clock: clock.clone(),
        };
        let (audit, writing) = Audit::start(options.audit, around)
            .map_err(|(path, source)| Error::File { path, source })?;

        let election = open::stand(&options.store, &url, &objects, &clock);
        let stop = CancellationToken::new();
        let rest = stop.child_token();
        let housekeeping = TaskTracker::new();
        let house = House { tasks: housekeeping.clone(), stop: CancellationToken::new() };
        let tokens = Tokens::load(objects.clone(), clock.clone()).await?;
        house.keep("tokens", clock.clone(), {
            let tokens = tokens.clone();
            move || {
                let tokens = tokens.clone();
                async move { tokens.follow().await }
            }
        });
        house.keep_trust(&authority, &certificates, tls.as_ref(), &clock, {
            let (data_dir, url) = (data_dir.clone(), url.clone());
            move |authority: &Authority| {
                client_files::rewrite_files(&data_dir, &url, authority, plain_http)
            }
        });
        let current = authority.current();
        let written =
            client_files::write_files(&data_dir, &url, &current, plain_http, &tokens).await;
        if let Err(error) = written {
            house.end().await;
            if let Some(election) = election {
                election.shutdown().await;
            }
            drop(audit);
            writing.ended().await;
            return Err(error);
        }
        let connections = Connections::new(clock.clone(), limits.clone());
        let app = Arc::new(App {
            resources: resources.clone(),
            clock: clock.clone(),
            tokens,
            seal: Seal::new(&authority.current().seal()),
            authority,
            certificates,
            snapshots: Snapshots::default(),
            owners: crate::owners::Owners::default(),
            metrics,
            audit,
            connections: connections.clone(),
            gate: gate.clone(),
            readiness: readiness.clone(),
            turns: crate::turns::Turns::default(),
            lingering: TaskTracker::new(),
            documents: Documents::new(resources.registry(), address),
            routes: routes.map(|routes| routes.fallback(service::nowhere)),
            own_users,
            streams,
            parts,
            stop: rest,
            count: AtomicU64::new(0),
            limits: limits.clone(),
        });
        house.sweep(connections.clone());
        house.check(readiness.clone());
        house.watch_store(resources.clone(), clock.clone());
        let led = Led { election, resources: resources.clone(), clock: clock.clone() };
        house.keep_led(
            "namespaces",
            &led,
            |resources| async move { namespaces::run(&resources).await },
        );
        house.keep_led("garbage", &led, |resources| async move { garbage::run(&resources).await });
        house.keep_led("nodes", &led, |resources| async move { liveness::run(&resources).await });
        let bounds = limits.clone();
        house.keep_led("events", &led, move |resources| {
            let limits = bounds.clone();
            async move { events::run(&resources, &limits).await }
        });
        let acceptor = tls.as_ref().map(|tls| TlsAcceptor::from(tls.config.clone()));
        if let Some(tls) = tls {
            house.fresh(tls, clock.clone());
        }
        let tasks = TaskTracker::new();
        let room = Room {
            tls: acceptor,
            app: app.clone(),
            gate,
            connections: connections.clone(),
            tasks: tasks.clone(),
            limits: limits.clone(),
        };
        let listener = Listener { tcp, room: Arc::new(room) };
        let serving = Serving {
            listener: tokio::spawn(listener.run(stop.clone())),
            stop: stop.clone(),
            app,
            connections,
            tasks,
            house,
            election: led.election.clone(),
            objects,
            writing,
            clock,
            limits,
        };
        Ok(Running {
            address,
            url,
            kubeconfig: in_dir("kubeconfig"),
            resources,
            election: led.election,
            handle: Handle { stop },
            readiness,
            ended: tokio::spawn(serving.until_ended()),
        })
    }
}

/// Everything that must be ended, in order.
struct Serving {
    listener: JoinHandle<()>,
    stop: CancellationToken,
    app: Arc<App>,
    connections: Arc<Connections>,
    tasks: TaskTracker,
    house: House,
    election: Option<election::Handle>,
    objects: Arc<dyn Objects>,
    writing: Writing,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

impl Serving {
    async fn until_ended(self) {
        self.stop.cancelled().await;
        self.app.readiness.ending.store(true, Relaxed);
        drop(self.listener.await);
        self.connections.finish();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.clock.sleep(self.limits.shutdown) => {
                tracing::warn!(open = self.connections.len(), "requests did not end in time; closing their connections");
                self.connections.close();
                self.tasks.wait().await;
            }
        }
        self.app.lingering.close();
        self.app.lingering.wait().await;
        self.house.end().await;
        if let Some(election) = self.election {
            election.shutdown().await;
        }
        self.objects.close().await;
        drop(self.app);
        self.writing.ended().await;
    }
}
