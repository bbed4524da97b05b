//! `mainstay bench rules --rest`: a server on a catalog, over HTTP and with real files.
//!
//! Rucio's own client adds rules; this program requests a ping and a rule, lists all replicas of
//! a large dataset, and lets the server move small files from one folder to another, which is
//! compared with `cp -r` of the same files before and after.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use mainstay_catalog::Catalog;
use mainstay_rules::api::Did;
use mainstay_rules::bench::stage;
use mainstay_terminal::report::Row;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use super::Error;
use super::load::{Connection, Template};
use super::server::ServerProcess;
use crate::client::kubeconfig::{Kubeconfig, Overrides};
use crate::client::{Call, Client, JSON};
use crate::error::Error as CommandError;
use mainstay_client::Dialer;
use mainstay_server::engines::SURFACE;

/// The sizes of the cases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) replicas: u64,
    pub(super) files: u64,
}

/// The size of each transferred file.
const FILE: usize = 100_000;

/// How many small requests are sent.
const ASKED: usize = 2_000;

/// How long a server may take to stream a list.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// The script for Rucio's own client: rules for two copies of a thousand new files each. It prints
/// the seconds that each took.
const STOCK: &str = r#"
import json, time
from rucio.client.client import Client
c = Client()
c.add_scope("root", "stock")
for name in ["STOCK-A", "STOCK-B", "STOCK-C"]:
    c.add_rse(name)
    c.set_local_account_limit("root", name, -1)
took = []
for at in range(11):
    names = [{"scope": "stock", "name": f"d{at}.f{one}"} for one in range(1000)]
    c.add_replicas("STOCK-C", [{**name, "bytes": 1000000, "adler32": "0cc737eb"} for name in names])
    c.add_dataset("stock", f"d{at}")
    c.attach_dids("stock", f"d{at}", names)
    begun = time.perf_counter()
    (rule,) = c.add_replication_rule([{"scope": "stock", "name": f"d{at}"}], 2, "STOCK-A|STOCK-B")
    took.append(time.perf_counter() - begun)
    found = c.get_replication_rule(rule)
    assert found["locks_replicating_cnt"] == 2000, found
print(json.dumps(took[1:]))
"#;

/// An interpreter with Rucio's client.
async fn python() -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let own = cache.map(|cache| cache.join("mainstay/python/bin/python"));
    for python in [set("MAINSTAY_TEST_PYTHON"), own, Some(PathBuf::from("python3"))] {
        let Some(python) = python else { continue };
        let asked = Command::new(&python).args(["-c", "import rucio.client"]).output().await;
        if asked.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    None
}

/// One server, and the clients for it.
struct Measuring {
    server: ServerProcess,
    backend: &'static str,
    client: Client,
    dialer: Dialer,
    template: Template,
}

/// Measures a server on a catalog of its own.
pub(super) async fn measure(
    address: &str,
    backend: &'static str,
    sizes: Sizes,
) -> Result<Vec<Row>, CommandError> {
    let disk = tempfile::tempdir().map_err(CommandError::io("cannot make a folder"))?;
    let (from, to) = (disk.path().join("from"), disk.path().join("to"));
    let (listed, moved) = prepare(address, &from, &to, sizes).await?;
    let root = disk.path().display().to_string();
    let arguments =
        ["--only", "rules", "--catalog", address, "--log", "error", "--storage-root", &root];
    let server = ServerProcess::start_with(&arguments).await?;
    let target = Kubeconfig::load(&[server.kubeconfig()])
        .and_then(|file| file.target(&Overrides::default()))?;
    let dialer = target.dialer().map_err(Error::from)?;
    let template = Template::new(&dialer, target.token.as_deref());
    let client = Client::new(target, PATIENCE).map_err(Error::from)?;
    let measuring = Measuring { server, backend, client, dialer, template };
    let rows = measuring.all(&listed, &moved, disk.path(), sizes).await;
    measuring.server.stop().await?;
    rows
}

async fn prepare(
    address: &str,
    from: &Path,
    to: &Path,
    sizes: Sizes,
) -> Result<(Did, Did), CommandError> {
    for folder in [from, to] {
        std::fs::create_dir(folder).map_err(CommandError::io("cannot make a folder"))?;
    }
    let (address, from, to) = (address.to_owned(), from.to_owned(), to.to_owned());
    let prepared = tokio::task::spawn_blocking(move || {
        let catalog = Catalog::open_blocking(&address)?;
        let listed = stage::listed(&catalog, sizes.replicas)?;
        let moved = stage::laid_out(&catalog, &from, &to, sizes.files, FILE)?;
        Ok::<_, mainstay_rules::Error>((listed, moved))
    });
    let prepared = prepared.await.map_err(|error| CommandError::negative(error.to_string()))?;
    prepared.map_err(|error| CommandError::negative(error.to_string()))
}

impl Measuring {
    async fn all(
        &self,
        listed: &Did,
        moved: &Did,
        disk: &Path,
        sizes: Sizes,
    ) -> Result<Vec<Row>, CommandError> {
        let mut rows = vec![self.list(listed, sizes.replicas).await?];
        rows.push(self.ask("ping", "/ping").await?);
        let rule = self.rule(moved, "FROM-DISK").await?;
        self.applied(&rule).await?;
        rows.push(self.ask("get rule", &format!("/rules/{rule}")).await?);
        match python().await {
            Some(python) => rows.push(self.stock(&python).await?),
            None => anstream::eprintln!(
                "Rucio's client is not measured: no Python here has rucio-clients (MAINSTAY_TEST_PYTHON names one)"
            ),
        }
        rows.extend(self.moved(moved, disk, sizes.files).await?);
        Ok(rows)
    }

    fn told(&self, row: Row) -> Row {
        let unit = row.unit.as_deref().unwrap_or("ms");
        let figure = row.rate.or(row.p50_ms).unwrap_or_default();
        anstream::eprintln!("{} on {}: {figure} {unit}", row.case, row.backend);
        row
    }

    /// Repeats one request on one connection.
    async fn ask(&self, case: &'static str, path: &str) -> Result<Row, Error> {
        let mut connection = Connection::open(&self.dialer).await?;
        let request = self.template.request("GET", &format!("{SURFACE}{path}"), "");
        let mut each = Vec::with_capacity(ASKED);
        let start = Instant::now();
        for _ in 0..ASKED {
            let begun = Instant::now();
            connection.ask(&request).await?;
            each.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        let took = start.elapsed().as_secs_f64();
        let row = Row::new(case, self.backend, 1).rate(ASKED, took, "requests/s");
        Ok(self.told(row.latencies(each)))
    }

    /// Lists all replicas of a dataset, and measures the peak memory of the server meanwhile.
    async fn list(&self, dataset: &Did, number: u64) -> Result<Row, CommandError> {
        let body = json!({"dids": [{"scope": dataset.scope, "name": dataset.name}]});
        let call = Call::send(Method::POST, format!("{SURFACE}/replicas/list"), JSON, &body);
        self.server.forget_peak();
        let start = Instant::now();
        let mut stream = self.client.stream(&call).await.map_err(Error::from)?;
        let mut lines = 0;
        while let Some(piece) = stream.piece().await.map_err(Error::from)? {
            lines += memchr::memchr_iter(b'\n', &piece).count();
        }
        let took = start.elapsed().as_secs_f64();
        let expected = usize::try_from(number).unwrap_or(usize::MAX);
        if lines != expected {
            return Err(Error::Miscounted { found: lines, expected }.into());
        }
        let row = Row::new("list replicas", self.backend, lines).rate(lines, took, "rows/s");
        Ok(self.told(Row { rss_mb: self.server.peak_mb(), ..row }))
    }

    /// Rules by Rucio's own client, end to end.
    async fn stock(&self, python: &Path) -> Result<Row, CommandError> {
        let own = tempfile::tempdir().map_err(CommandError::io("cannot make a folder"))?;
        let output = Command::new(python)
            .args(["-c", STOCK])
            .env("RUCIO_CONFIG", self.server.kubeconfig().with_file_name("rucio.cfg"))
            // Where the client keeps its tokens.
            .env("TMPDIR", own.path())
            .output()
            .await
            .map_err(CommandError::io("Python cannot be started"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let took: Vec<f64> = serde_json::from_str(said.trim()).map_err(|_| {
            let why = String::from_utf8_lossy(&output.stderr);
            CommandError::negative(format!("Rucio's client failed: {}", why.trim()))
        })?;
        let sum: f64 = took.iter().sum();
        let each = took.iter().map(|took| (took * 1e6) as u32).collect();
        let row = Row::new("stock client add_rule, 1000 files x 2", self.backend, 1_000);
        Ok(self.told(row.rate(took.len() * 2_000, sum, "locks/s").latencies(each)))
    }

    async fn rule(&self, did: &Did, expression: &str) -> Result<String, CommandError> {
        let body = json!({
            "dids": [{"scope": did.scope, "name": did.name}], "copies": 1, "rse_expression": expression,
            "account": stage::OWNER,
        });
        let call = Call::send(Method::POST, format!("{SURFACE}/rules/"), JSON, &body);
        let made = self.client.json(call).await.map_err(Error::from)?;
        let made = made.as_array().and_then(|made| made.first()).and_then(Value::as_str);
        made.map(str::to_owned).ok_or_else(|| CommandError::negative("no rule was made"))
    }

    /// Waits until every file is where a rule wants it. The interval between checks
    /// grows, because checks slow the transfers down.
    async fn applied(&self, rule: &str) -> Result<(), CommandError> {
        let start = Instant::now();
        loop {
            let call = Call::get(format!("{SURFACE}/rules/{rule}"));
            let found = self.client.json(call).await.map_err(Error::from)?;
            match found["state"].as_str() {
                Some("OK") => return Ok(()),
                Some("REPLICATING" | "INJECT") => {}
                other => {
                    let why = format!("the files did not arrive: {other:?} {}", found["error"]);
                    return Err(CommandError::negative(why));
                }
            }
            let pause = (start.elapsed() / 50).max(Duration::from_millis(2));
            tokio::time::sleep(pause).await;
        }
    }

    /// Lets the server move every file of a dataset, and copies them by `cp -r` before and after.
    async fn moved(&self, did: &Did, disk: &Path, files: u64) -> Result<Vec<Row>, CommandError> {
        let number = usize::try_from(files).unwrap_or(usize::MAX);
        let before = copied(disk, "before").await?;
        self.server.forget_peak();
        written(disk).await?;
        let start = Instant::now();
        let rule = self.rule(did, "TO-DISK").await?;
        self.applied(&rule).await?;
        let took = start.elapsed().as_secs_f64();
        let peak = self.server.peak_mb();
        let after = copied(disk, "after").await?;
        let row = Row::new("move files of 100 kB, folder to folder", self.backend, number);
        let moved = Row { rss_mb: peak, ..row.rate(number, took, "files/s") };
        let row = Row::new("cp -r of the same files", self.backend, number);
        let copied = row.rate(number, (before + after) / 2.0, "files/s");
        let share = Row::new("moving compared with cp -r", self.backend, number);
        let share = share.rate(100, 2.0 * took / (before + after), "%");
        Ok(vec![self.told(moved), self.told(copied), self.told(share)])
    }
}

/// Copies all files with `cp -r`; returns the seconds it took. The copies are deleted at the very end:
/// shortly after many files were deleted, creating files takes several times as long.
async fn copied(disk: &Path, name: &str) -> Result<f64, CommandError> {
    written(disk).await?;
    let (from, to) = (disk.join("from"), disk.join(name));
    let start = Instant::now();
    let copied = Command::new("cp").arg("-r").arg(&from).arg(&to).status().await;
    let took = start.elapsed().as_secs_f64();
    match copied.map_err(CommandError::io("cp cannot be started"))?.success() {
        true => Ok(took),
        false => Err(CommandError::negative("cp -r failed")),
    }
}

/// Waits until all earlier writes are on disk, so that they do not slow the next case down.
async fn written(disk: &Path) -> Result<(), CommandError> {
    let synced = Command::new("sync").arg("-f").arg(disk).status().await;
    synced.map(drop).map_err(CommandError::io("sync cannot be started"))
}
