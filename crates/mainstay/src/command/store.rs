//! `mainstay store`: shows, checks, repairs, compacts and re-encrypts the store of a server.

mod catalog;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use mainstay_clock::SystemClock;
use mainstay_server::Location;
use mainstay_store::check::{Report, check};
use mainstay_store::registry::Registry;
use mainstay_store::sqlite::repair::{self as sqlite_repair, Examined};
use mainstay_store::sqlite::unchanged::is_log_alone;
use mainstay_store::value::Codec;
use mainstay_store::{Settings, backup, location};
use mainstay_terminal::output::{self, Table, cell};
use serde_json::{Value, json};

use crate::client::{Call, JSON};
use crate::command::{restore, serve};
use crate::connect::Connect;
use crate::error::Error;
use crate::store_key::{self, StoreKey};
use catalog::{CatalogFile, Repair};

/// Compact, check and measure the store
#[derive(Debug, Args)]
pub(crate) struct Store {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the size of the store
    Stats {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
        #[command(flatten)]
        connect: Connect,
    },
    /// Check every object and the database; exit code 1 if anything is wrong
    #[command(after_help = "Examples:
  mainstay store check                            what a running server keeps
  mainstay store check --data-dir /var/lib/mainstay   a database no server runs on")]
    Check {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
        /// Check the database in this folder instead; no server may be using it
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// Check this store instead, named as for `mainstay serve`
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        /// The file of the rule catalog, for a database no server runs on [default: catalog.db in
        /// the data folder, if it is there]
        #[arg(long, value_name = "FILE")]
        catalog: Option<PathBuf>,
        #[command(flatten)]
        store_key: StoreKey,
        #[command(flatten)]
        connect: Connect,
    },
    /// Encrypt every value with a new data key while the server runs
    #[command(after_help = "Examples:
  mainstay store rekey        begin; `mainstay store stats` shows when it is complete

The key file stays as it is: to change its keys, put a new line above the old one and restart.")]
    Rekey {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
        #[command(flatten)]
        connect: Connect,
    },
    /// Manage the keys of an encrypted store
    #[command(subcommand)]
    Key(KeyAction),
    /// Repair a database that no server uses, without the data that is lost or damaged
    #[command(after_help = "Examples:
  mainstay store repair --data-dir /var/lib/mainstay                    show what is wrong
  mainstay store repair --data-dir /var/lib/mainstay --accept 1a2b3c4d   go on without it

A backup is better: see `mainstay restore`. Without --accept nothing is changed; every damaged
object is named, and the word to accept exactly that loss is shown (exit code 1). The files are
copied before they are changed.")]
    Repair {
        /// The folder of the database; no server may be using it
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// The database, named as for `mainstay serve --store`
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        /// The file of the rule catalog [default: catalog.db in the data folder, if it is there]
        #[arg(long, value_name = "FILE")]
        catalog: Option<PathBuf>,
        /// The word that the report named for this loss
        #[arg(long, value_name = "WORD")]
        accept: Option<String>,
        #[command(flatten)]
        store_key: StoreKey,
    },
    /// Delete the history: objects stay, older watches must list again
    Compact {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
        #[command(flatten)]
        connect: Connect,
    },
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// Print a new key as a line of a key file
    #[command(after_help = "Examples:
  (umask 077; mainstay store key new 2026-11 > /etc/mainstay/store.keys)
  mainstay serve --store-key /etc/mainstay/store.keys

To change keys, put a new line above the old one and restart the server; once
`mainstay store stats` names the new key, the old line may go.")]
    New {
        /// The name of the key
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
}

impl Format {
    fn print(self, answer: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Error> {
        match self {
            Self::Json => output::print(&output::json(answer))?,
            Self::Table => output::print(&text(answer))?,
        }
        Ok(())
    }
}

impl Store {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        match &self.action {
            Action::Stats { output, connect } => {
                let call = Call::get("/mainstay/v1/store/stats");
                output.print(&connect.client()?.json(call).await?, stats)?;
            }
            Action::Compact { output, connect } => {
                let path = "/mainstay/v1/store/compact";
                let call = Call::send(Method::POST, path, JSON, &json!({}));
                let said = |answer: &Value| {
                    format!("compacted through revision {}\n", cell(&answer["compactedThrough"]))
                };
                output.print(&connect.client()?.json(call).await?, said)?;
            }
            Action::Rekey { output, connect } => {
                let path = "/mainstay/v1/store/rekey";
                let call = Call::send(Method::POST, path, JSON, &json!({}));
                let text = |answer: &Value| {
                    let id = cell(&answer["dataKey"]);
                    format!(
                        "re-encrypting every value with data key {id}; `mainstay store stats` \
                         shows when it is complete\n"
                    )
                };
                output.print(&connect.client()?.json(call).await?, text)?;
            }
            Action::Key(KeyAction::New { name }) => {
                output::print(&format!("{}\n", store_key::new_line(name)?))?;
            }
            Action::Repair { data_dir, store, catalog, accept, store_key } => {
                let catalog = CatalogFile::meant(catalog.as_deref(), data_dir.as_deref());
                let repaired = match &catalog {
                    Some(catalog) => catalog.repair(accept.as_deref()).await?,
                    None => Repair::Sound,
                };
                let broken = match repaired {
                    Repair::Done(code) => return Ok(code),
                    Repair::Sound => 0,
                    Repair::Impossible => 1,
                };
                if let (Some(catalog), None, None) = (&catalog, data_dir, store) {
                    if broken == 0 {
                        anstream::eprintln!("{}: nothing to repair", catalog.path().display());
                    }
                    return Ok(broken);
                }
                let location = restore::located(data_dir.as_deref(), store.as_deref())?;
                let code = repair(&location, accept.as_deref(), store_key.codec(None)?).await?;
                return Ok(code.max(broken));
            }
            Action::Check { output, data_dir, store, catalog, store_key, connect } => {
                let report = if data_dir.is_some() || store.is_some() {
                    let location = restore::located(data_dir.as_deref(), store.as_deref())?;
                    let mut report = offline(location, store_key.codec(None)?).await?;
                    let catalog = CatalogFile::meant(catalog.as_deref(), data_dir.as_deref());
                    if let Some(catalog) = catalog {
                        report.medium.extend(catalog.verified().await?);
                    }
                    json!(report)
                } else {
                    connect.client()?.json(Call::get("/mainstay/v1/store/check")).await?
                };
                output.print(&report, findings)?;
                let count = |name: &str| report[name].as_array().map_or(0, Vec::len);
                for resource in report["unknown"].as_array().into_iter().flatten() {
                    anstream::eprintln!(
                        "{} are of kinds that this server does not know; skipped",
                        cell(resource)
                    );
                }
                let wrong = count("findings") + count("medium");
                anstream::eprintln!("{} objects checked, {wrong} findings", report["objects"]);
                return Ok(u8::from(wrong > 0));
            }
        }
        Ok(0)
    }
}

/// Shows what is wrong with a database, or goes on without it.
async fn repair(location: &Location, accept: Option<&str>, codec: Codec) -> Result<u8, Error> {
    let Location::Sqlite(path) = location else {
        return Err(Error::usage(format!("{location} is not a file: only SQLite is repaired")));
    };
    if !path.is_file() && !is_log_alone(path) {
        return Err(Error::usage(format!("there is no database {}", path.display())));
    }
    let (database, word) = (path.clone(), accept.map(str::to_owned));
    let work = move || match word {
        Some(word) => sqlite_repair::repair(&database, &codec, &word).map(Err),
        None => Ok(Ok(sqlite_repair::inspect(&database, &codec)?)),
    };
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| Error::negative(error.to_string()))?;
    match done.map_err(|error| Error::negative(error.to_string()))? {
        Err(copies) => {
            for copy in copies {
                anstream::eprintln!("the original database was saved as {}", copy.display());
            }
            anstream::eprintln!("{} is repaired", path.display());
            Ok(0)
        }
        Ok(findings) if findings.lines.is_empty() => {
            anstream::eprintln!("{}: nothing to repair", path.display());
            Ok(0)
        }
        Ok(findings) => {
            output::print(&format!("{}\n", findings.lines.join("\n")))?;
            anstream::eprintln!(
                "to accept this loss, run the same command with --accept {}",
                findings.name
            );
            Ok(1)
        }
    }
}

/// Checks a store that no server uses.
async fn offline(location: Location, codec: Codec) -> Result<Report, Error> {
    let registry = serve::options(serve::DEFAULT_LISTEN, PathBuf::new())?.registry;
    if let Location::Sqlite(path) = location {
        if !path.is_file() && !is_log_alone(&path) {
            return Err(Error::usage(format!("there is no database {}", path.display())));
        }
        return database(path, codec, &registry).await;
    }
    let settings = Settings { codec, inspect: true, ..Settings::default() };
    let objects = mainstay_store::open(&location, &settings, SystemClock::new()).await?;
    let checked = async {
        let mut medium = objects.verify().await?;
        if backup::unfinished(&*objects).await? {
            medium.push(UNFINISHED.to_owned());
        }
        Ok(Report { medium, ..check(&objects.readable().await?, &registry) })
    };
    let report = checked.await;
    objects.close().await;
    report
}

/// The finding that a restore into a store was interrupted.
const UNFINISHED: &str = "a restore into it did not finish: run `mainstay restore` again";

/// Checks a database, as far as it can be read, without changing a byte of its folder.
async fn database(path: PathBuf, codec: Codec, registry: &Registry) -> Result<Report, Error> {
    let examine = move || sqlite_repair::examine(&path, &codec);
    let examined = tokio::task::spawn_blocking(examine).await;
    let examined = examined.map_err(|error| Error::negative(error.to_string()))?;
    let Examined { findings: mut medium, readable } = examined.map_err(location::Error::from)?;
    if backup::unfinished_in(&readable) {
        medium.push(UNFINISHED.to_owned());
    }
    Ok(Report { medium, ..check(&readable, registry) })
}

fn stats(answer: &Value) -> String {
    let mut facts = Table::new(&["STORE", "LOCATION", "REVISION", "HISTORY SINCE"]);
    let field = |name: &str| cell(&answer[name]);
    facts.rows.push(vec![
        field("backend"),
        field("location"),
        field("revision"),
        field("oldestRevision"),
    ]);
    let items = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let mut objects = Table::new(&["COLLECTION", "OBJECTS", "BYTES"]);
    for share in items("collections") {
        objects.rows.push(vec![
            cell(&share["resource"]),
            cell(&share["objects"]),
            cell(&share["bytes"]),
        ]);
    }
    objects.rows.push(vec!["total".to_owned(), field("objects"), field("bytes")]);
    let mut text = format!("{}\n{}", facts.text(), objects.text());
    let damaged = items("damaged");
    if !damaged.is_empty() {
        text.push_str("\nthese objects are not counted, because their stored value is damaged:\n");
        for problem in &damaged {
            text.push_str(&format!("{}\n", cell(problem)));
        }
    }
    text.push_str(&encryption(&answer["encryption"]));
    let mut files = Table::new(&["FILE", "BYTES"]);
    for file in items("files") {
        files.rows.push(vec![cell(&file["name"]), cell(&file["bytes"])]);
    }
    if !files.rows.is_empty() {
        text.push('\n');
        text.push_str(&files.text());
    }
    text
}

/// How far encryption at rest has come, in one line; empty if the store is not encrypted.
fn encryption(encryption: &Value) -> String {
    let (key, new) = (cell(&encryption["masterKey"]), cell(&encryption["dataKey"]));
    let is_replaced = encryption["replaces"].is_string();
    match encryption["state"].as_str() {
        None => String::new(),
        Some("Complete") => format!("\nevery value is encrypted with key {key}\n"),
        Some("Decrypting") => format!(
            "\nencryption is being turned off: {} values are still encrypted, and a server with \
             --store-decrypt decrypts them\n",
            cell(&encryption["valuesLeft"])
        ),
        Some("WaitingForServers") if is_replaced => format!(
            "\nevery value is encrypted; the new data key {new} of key {key} is used once every \
             server can open it: restart those that cannot with the same --store-key file\n"
        ),
        Some("WaitingForServers") => format!(
            "\nencryption with key {key} waits for servers that cannot open the data key yet: \
             restart them with the same --store-key file\n"
        ),
        _ if is_replaced => format!(
            "\nevery value is encrypted; values are being re-encrypted with the new data key {new} \
             of key {key}\n"
        ),
        _ => format!("\nvalues are being encrypted with key {key}\n"),
    }
}

fn findings(report: &Value) -> String {
    let mut table = Table::new(&["COLLECTION", "OBJECT", "PROBLEM"]);
    let items = |name: &str| report[name].as_array().cloned().unwrap_or_default();
    for problem in items("medium") {
        table.rows.push(vec!["-".to_owned(), "-".to_owned(), cell(&problem)]);
    }
    for finding in items("findings") {
        table.rows.push(vec![
            cell(&finding["resource"]),
            cell(&finding["path"]),
            cell(&finding["problem"]),
        ]);
    }
    if table.rows.is_empty() { String::new() } else { table.text() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_say_how_far_encryption_has_come() {
        let shown = |state: &str, replaces: Value| {
            let answer = json!({
                "masterKey": "k", "dataKey": "d2", "state": state, "replaces": replaces,
                "valuesLeft": 7,
            });
            encryption(&answer).trim().to_owned()
        };
        assert_eq!(encryption(&Value::Null), "");
        assert_eq!(shown("Complete", Value::Null), "every value is encrypted with key k");
        assert_eq!(shown("Rewriting", Value::Null), "values are being encrypted with key k");
        let rekey = shown("Rewriting", json!("d1"));
        assert!(rekey.contains("re-encrypted with the new data key d2"), "{rekey}");
        let waiting = shown("WaitingForServers", json!("d1"));
        assert!(waiting.starts_with("every value is encrypted; "), "{waiting}");
        let off = shown("Decrypting", Value::Null);
        assert!(off.contains("turned off: 7 values are still encrypted"), "{off}");
    }
}
