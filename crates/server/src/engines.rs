//! A whole server: the API and the engines beside it (volumes, rules, sessions).
//!
//! [`Engines`] says which engines run, [`Service::start`] starts them with their server, and
//! [`Service::run`] serves until it is told to end. An engine adds its routes, keepers and checks to
//! the server's [`Options`] before the server starts, and its controllers run once the store is open.
//!
//! Invariants: `/readyz` does not answer 200 before every engine runs and the files for
//! clients are written; engines end before the server they run beside.

mod audit;
mod catalog;
mod folder;
mod login;
mod part;
mod readiness;
mod rules;
mod sessions;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_sessions::controller::Sessions;
use mainstay_store::registry::{self, Registry, builtin};
use mainstay_volumes::controller::{self, Volumes};
use mainstay_volumes::extender::{self, Client, LedgerService};

pub use self::catalog::open as open_catalog;
pub use self::part::CATALOG;
pub use self::rules::{RulesOptions, SURFACE};
pub use self::sessions::{Gateway, SessionsOptions};
use crate::authorize::dialects;
use crate::identity::User;
use crate::options::Options;
use crate::server::{Running, Server};

/// How long engines have to come to an end: a database that hangs must not keep a server from
/// ending. The database undoes what it never answered.
const END: Duration = Duration::from_secs(10);

/// Why a server with its engines did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server itself.
    #[error(transparent)]
    Server(#[from] crate::server::Error),
    /// An engine; the text says which and why.
    #[error("{0}")]
    Engine(String),
    /// A file or folder.
    #[error("{what}")]
    File {
        /// The file, and what was to be done with it.
        what: String,
        /// The machine's answer.
        source: io::Error,
    },
}

impl Error {
    fn engine(error: impl std::fmt::Display) -> Self {
        Self::Engine(error.to_string())
    }

    fn file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::File { what, source }
    }
}

/// How a server came to an end, if not in order.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It was not told to.
    #[error("the server ended by itself")]
    ByItself,
    /// An engine did not end in time.
    #[error(
        "ended, but not all that was under way had come to an end: its database does not answer"
    )]
    Unfinished,
    /// It was told a second time.
    #[error("ended at once, without waiting for what was under way")]
    AtOnce,
}

/// Which engines run beside a server, and how.
#[derive(Debug, Default)]
pub struct Engines {
    /// Volumes.
    pub volumes: Option<VolumesOptions>,
    /// Replication rules.
    pub rules: Option<RulesOptions>,
    /// Sessions.
    pub sessions: Option<SessionsOptions>,
}

/// How volumes are run.
#[derive(Debug, Default)]
pub struct VolumesOptions {
    /// The scheduler extender that is asked about capacity instead of the own ledger.
    pub extender: Option<Client>,
}

/// Every kind that the engines bring along.
///
/// # Errors
/// If two of them have the same name.
pub fn registry() -> Result<Registry, registry::Error> {
    let kinds = builtin()
        .into_iter()
        .chain(mainstay_volumes::kinds())
        .chain(mainstay_disks::kinds())
        .chain(mainstay_sessions::kinds());
    Registry::new(kinds)
}

/// A server and its engines, running.
#[derive(Debug)]
pub struct Service {
    server: Running,
    volumes: Option<Volumes>,
    sessions: Option<Sessions>,
    rules: Option<rules::Running>,
}

impl Service {
    /// Starts a server and its engines. When this returns all of it is ready.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn start(mut options: Options, engines: Engines) -> Result<Self, Error> {
        let ledger = Arc::new(OnceLock::new());
        if engines.volumes.is_some() {
            let extender = extender::router(ledger.clone());
            merge(&mut options, extender.layer(axum::middleware::from_fn(may_reserve)));
        }
        folder::must_be_writable(&options.data_dir)?;
        if let Some(rules) = &engines.rules {
            rules::inspect(&options, rules).await?;
        }
        let prepared = Server::prepare(&options).await;
        let prepared = prepared.map_err(|error| folder::explained(&options.data_dir, error))?;
        let rules = match engines.rules {
            None => None,
            Some(rules) => match rules::mount(&mut options, rules).await {
                Ok(mounted) => mounted,
                Err(error) => {
                    prepared.close().await;
                    return Err(error);
                }
            },
        };
        let sessions = engines.sessions.map(|given| (sessions::mount(&mut options), given));
        let (data_dir, plain_http) = (options.data_dir.clone(), options.plain_http);
        options.engines_follow = true;
        let server = Server::start_prepared(options, prepared).await?;
        if let Some(rules) = &rules {
            rules.write_login(&data_dir, server.url(), plain_http).await?;
        }
        let mut service = Self { server, volumes: None, sessions: None, rules: None };
        if let Some(VolumesOptions { extender }) = engines.volumes {
            service.volumes = Some(start_volumes(&service.server, extender, &ledger).await?);
        }
        if let Some(((handle, inbox), given)) = sessions {
            let started = sessions::start(&service.server, &given, &handle, inbox).await;
            service.sessions = Some(started?);
        }
        service.rules = rules.map(rules::Mounted::start);
        service.server.set_ready();
        Ok(service)
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Running {
        &self.server
    }

    /// Serves until told to end, and then ends in order. Told once more it ends at once.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn run(self, mut told: impl AsyncFnMut()) -> Result<(), Ended> {
        let Self { server, volumes, sessions, rules } = self;
        let handle = server.handle();
        let mut ended = std::pin::pin!(server.wait());
        tokio::select! {
            () = &mut ended => return Err(Ended::ByItself),
            () = told() => {}
        }
        let engines = async {
            if let Some(sessions) = sessions {
                sessions.shutdown().await;
            }
            if let Some(volumes) = volumes {
                volumes.shutdown().await;
            }
            // Last: their database may be one that does not answer.
            if let Some(rules) = rules {
                rules.stop().await;
            }
        };
        let in_order = async {
            let finished = tokio::time::timeout(END, engines).await.is_ok();
            handle.shut_down();
            ended.await;
            if finished { Ok(()) } else { Err(Ended::Unfinished) }
        };
        tokio::select! {
            ended = in_order => ended,
            () = told() => Err(Ended::AtOnce),
        }
    }
}

/// Adds routes to those that a server will serve.
fn merge(options: &mut Options, routes: axum::Router) {
    options.routes = Some(options.routes.take().unwrap_or_default().merge(routes));
}

async fn start_volumes(
    server: &Running,
    extender: Option<Client>,
    ledger: &OnceLock<LedgerService>,
) -> Result<Volumes, Error> {
    let resources = server.resources();
    let address = server.local_addr().to_string();
    let settings = controller::Options { extender, ..controller::Options::of_run(&address) };
    let volumes = Volumes::start(resources, settings, server.election()).await;
    let volumes = volumes.map_err(Error::engine)?;
    // The slot is empty: this is the only place that fills it.
    let _ = ledger.set(LedgerService::new(volumes.reserve().clone(), resources.clone()));
    Ok(volumes)
}

/// Refuses reservations by users who may only look.
async fn may_reserve(request: Request, next: Next) -> Response {
    let user = request.extensions().get::<Arc<User>>();
    if dialects::may_reserve(user.map(|user| &**user), request.method()) {
        return next.run(request).await;
    }
    let error = serde_json::json!({"error": "only admins and editors may reserve space"});
    (StatusCode::FORBIDDEN, axum::Json(error)).into_response()
}
