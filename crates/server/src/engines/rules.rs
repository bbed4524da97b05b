//! The rule engine beside a server: its catalog, its REST dialect, its judge and its transfers.

use std::path::Path;
use std::sync::Arc;

use http::{Extensions, HeaderMap};
use mainstay_rucio as rest;
use mainstay_rules::judge::{Judge, Managed};
use mainstay_rules::logins::Logins;
use mainstay_rules::queue::CatalogQueue;
use mainstay_rules::{Environment, Settings};
use mainstay_store::sqlite::lock::Lock;
use mainstay_transfers::store::Access;
use mainstay_transfers::worker::{LEASE, Worker};

use super::{Error, audit, catalog, login, merge, part, readiness};
use crate::authorize::dialects;
use crate::identity::User;
use crate::options::Options;

/// Where the server has the surface of the rule engine.
pub const SURFACE: &str = "/rucio";

/// How replication rules are run.
#[derive(Debug)]
pub struct RulesOptions {
    /// Where the catalog is: a path, `sqlite://PATH` or `postgres://…`; `catalog.db` in the data
    /// folder if nothing is given.
    pub catalog: Option<String>,
    /// How many files this server moves at once.
    pub transfer_workers: u32,
    /// The way into storage.
    pub access: Arc<Access>,
}

impl RulesOptions {
    fn address(&self, data_dir: &Path) -> String {
        let own = || data_dir.join("catalog.db").display().to_string();
        self.catalog.clone().unwrap_or_else(own)
    }
}

/// Refuses a catalog that is not the one of this data folder, before anything is opened or made.
pub(super) async fn inspect(options: &Options, rules: &RulesOptions) -> Result<(), Error> {
    let (data_dir, address) = (&options.data_dir, rules.address(&options.data_dir));
    match catalog::inspect(data_dir, &address, options.new_cluster).await {
        // Whether it can be opened is seen later.
        Err(_) if catalog::is_full(data_dir) => Ok(()),
        inspected => inspected,
    }
}

/// The rule engine before its server runs.
pub(super) struct Mounted {
    service: rest::Service,
    transfer_workers: u32,
    lock: Option<Lock>,
}

/// The rule engine, running.
#[derive(Debug)]
pub(super) struct Running {
    judge: Judge,
    transfers: Worker,
    _lock: Option<Lock>,
}

/// Opens the catalog and adds the engine to what a server will serve. Without space on the disk the
/// server starts without the rule engine.
pub(super) async fn mount(
    options: &mut Options,
    rules: RulesOptions,
) -> Result<Option<Mounted>, Error> {
    let transfer_workers = rules.transfer_workers;
    let (service, lock) = match open(options, rules).await {
        Err(error) if catalog::is_full(&options.data_dir) => {
            tracing::error!(%error, "the disk is full; the rule engine is off until a restart");
            return Ok(None);
        }
        opened => opened?,
    };
    let surface = rest::mounted(SURFACE, service.clone(), caller)
        .layer(axum::middleware::from_fn(audit::rules));
    merge(options, surface);
    options.own_users.push(SURFACE);
    options.parts.push(Arc::new(part::CatalogPart(service.catalog.clone())));
    let check = readiness::Database(service.catalog.clone());
    options.checks.push(("catalog", Arc::new(check)));
    Ok(Some(Mounted { service, transfer_workers, lock }))
}

/// The rule engine on its catalog, which is ours alone if it is a file.
async fn open(
    options: &Options,
    rules: RulesOptions,
) -> Result<(rest::Service, Option<Lock>), Error> {
    let (data_dir, address) = (&options.data_dir, rules.address(&options.data_dir));
    let (catalog, lock) = catalog::open_own(data_dir, &address, options.new_cluster).await?;
    let (settings, access, logins) = (Settings::default(), rules.access, Logins::default());
    let around = Environment::system();
    Ok((rest::Service { catalog, settings, around, access, logins }, lock))
}

/// The account of Rucio that a user of the server acts as.
fn caller(extensions: &Extensions, headers: &HeaderMap) -> Option<rest::Caller> {
    let user = extensions.get::<Arc<User>>().map(|user| &**user);
    let named = headers.get("x-rucio-account").and_then(|value| value.to_str().ok());
    let dialects::Account { name, privileged, read_only } = dialects::account(user, named)?;
    Some(rest::Caller { account: name, privileged, read_only })
}

impl Mounted {
    /// Writes `rucio.cfg` for a server that is reached at `url`.
    pub(super) async fn write_login(
        &self,
        data_dir: &Path,
        url: &str,
        plain_http: bool,
    ) -> Result<(), Error> {
        let authority = std::path::absolute(data_dir.join("ca.crt"));
        let authority = authority.map_err(Error::file("no folder"))?;
        let authority = (!plain_http).then_some(authority.as_path());
        match login::write(&self.service, data_dir, url, authority).await {
            Err(error) if catalog::is_full(data_dir) => {
                tracing::error!(%error, "the disk is full; rucio.cfg was not updated");
                Ok(())
            }
            written => written.map(drop),
        }
    }

    /// Starts moving files and judging rules.
    pub(super) fn start(self) -> Running {
        let Self { service, transfer_workers, lock } = self;
        let own = CatalogQueue {
            catalog: service.catalog.clone(),
            settings: service.settings.clone(),
            around: service.around.clone(),
            worker: format!("server-{}", service.catalog.origin()),
            lease: LEASE,
        };
        let most = usize::try_from(transfer_workers).unwrap_or(usize::MAX);
        let rest::Service { catalog, settings, around, access, .. } = service;
        let transfers = Worker::start(Arc::new(own), Arc::clone(&access), most);
        let judge = Judge::start(catalog, settings, around, Arc::new(Managed(access)));
        Running { judge, transfers, _lock: lock }
    }
}

impl Running {
    pub(super) async fn stop(self) {
        self.transfers.stop().await;
        self.judge.stop().await;
    }
}
