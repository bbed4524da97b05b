//! `mainstay bench rules`: the rule engine on SQLite and on a PostgreSQL of its own.

use std::sync::Mutex;

use clap::{Args, ValueEnum};
use mainstay_catalog::Catalog;
use mainstay_catalog::private_postgres::PrivatePostgres;
use mainstay_rules::Error as RulesError;
use mainstay_rules::bench::{self, Measured};
use mainstay_terminal::output::{self, Shape};
use mainstay_terminal::report::{Row, table};
use serde_json::json;

use super::rules_rest::{self, Sizes};
use crate::error::Error;

/// Add, evaluate, transfer, delete and register on a catalog, and report the speed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench rules                                   both databases, empty catalogs
  mainstay bench rules --backend sqlite --filled 5000000 with five million replicas in it
  mainstay bench rules --huge 1000000 --only 'very many' a rule on a million files
  mainstay bench rules --rest                            a server, over HTTP and with real files

PostgreSQL is started for the measurement, with fsync on and 1 GB of shared buffers; its programs
must be on this machine. --catalog measures one that is there.")]
pub(crate) struct Rules {
    /// The database to measure
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Measure this catalog instead of a new one; the benchmark fills it with data
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// Replicas in the catalog before anything is measured
    #[arg(long, default_value_t = 0, value_name = "N")]
    filled: u64,
    /// Files of the one very large rule; 0 leaves it out
    #[arg(long, default_value_t = 0, value_name = "N")]
    huge: u64,
    /// Concurrent sessions for single operations
    #[arg(long, default_value_t = 4, value_name = "N")]
    sessions: usize,
    /// Measure a server over HTTP and with real files instead: Rucio's own client, small requests,
    /// a large list, and file transfers
    #[arg(long)]
    rest: bool,
    /// With --rest: replicas in the list
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    replicas: u64,
    /// With --rest: files of 100 kB to transfer
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    files: u64,
    /// Measure only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Shape,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Backend {
    Sqlite,
    Postgres,
    #[default]
    Both,
}

impl Rules {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let rows = match self.rest {
            true => self.over_http().await?,
            false => self.in_process().await?,
        };
        match self.output {
            Shape::Table => output::print(&table(&rows).text())?,
            Shape::Json => output::print_line(&output::json(&json!(rows)))?,
        }
        Ok(0)
    }

    /// A server on each database.
    async fn over_http(&self) -> Result<Vec<Row>, Error> {
        let sizes = Sizes { replicas: self.replicas, files: self.files };
        if let Some(address) = &self.catalog {
            let backend = if address.starts_with("postgres") { "postgres" } else { "sqlite" };
            return rules_rest::measure(address, backend, sizes).await;
        }
        let mut rows = Vec::new();
        if self.backend != Backend::Postgres {
            let folder = tempfile::tempdir().map_err(Error::io("cannot make a folder"))?;
            let address = folder.path().join("catalog.db").display().to_string();
            rows.extend(rules_rest::measure(&address, "sqlite", sizes).await?);
        }
        if self.backend != Backend::Sqlite {
            let started = tokio::task::spawn_blocking(postgres).await;
            let server = started.map_err(|error| Error::negative(error.to_string()))??;
            rows.extend(rules_rest::measure(&server.url("bench"), "postgres", sizes).await?);
        }
        Ok(rows)
    }

    async fn in_process(&self) -> Result<Vec<Row>, Error> {
        let options = bench::Options {
            filled: self.filled,
            huge: self.huge,
            sessions: self.sessions.max(1),
            only: self.only.clone(),
        };
        let (backend, catalog) = (self.backend, self.catalog.clone());
        let measured = tokio::task::spawn_blocking(move || measure(backend, catalog, &options))
            .await
            .map_err(|error| Error::negative(error.to_string()))??;
        Ok(measured.iter().map(row).collect())
    }
}

/// A separate PostgreSQL with production settings.
fn postgres() -> Result<PrivatePostgres, Error> {
    let server = PrivatePostgres::start(&["shared_buffers=1GB", "max_wal_size=4GB"])
        .map_err(Error::negative)?;
    server.make_schema("bench").map_err(Error::negative)?;
    Ok(server)
}

fn row(measured: &Measured) -> Row {
    Row {
        case: measured.case.clone().into(),
        backend: measured.backend.clone(),
        size: usize::try_from(measured.size).unwrap_or(usize::MAX),
        rate: Some(measured.rate),
        unit: Some(measured.unit.clone().into()),
        p50_ms: measured.p50_ms,
        p99_ms: measured.p99_ms,
        rss_mb: measured.rss_mb,
    }
}

fn measure(
    backend: Backend,
    catalog: Option<String>,
    options: &bench::Options,
) -> Result<Vec<Measured>, Error> {
    let failed = |error: RulesError| Error::negative(error.to_string());
    let said = Mutex::new(());
    let one = |address: &str| {
        let catalog = Catalog::open_blocking(address).map_err(|error| failed(error.into()))?;
        bench::run(&catalog, options, &mut |row| {
            let _one_at_a_time = said.lock();
            anstream::eprintln!("{} on {}: {} {}", row.case, row.backend, row.rate, row.unit);
        })
        .map_err(failed)
    };
    if let Some(address) = catalog {
        return one(&address);
    }
    let mut rows = Vec::new();
    if backend != Backend::Postgres {
        let folder = tempfile::tempdir().map_err(Error::io("cannot make a folder"))?;
        rows.extend(one(&folder.path().join("catalog.db").display().to_string())?);
    }
    if backend != Backend::Sqlite {
        let server = postgres()?;
        rows.extend(one(&server.url("bench"))?);
    }
    Ok(rows)
}
