//! The commands of `mainstay rules …`, to be mounted by the binary.
//!
//! Commands send HTTP requests through a [`Remote`]: the binary provides one for a server, or one
//! that serves the same interface in its own process. Commands that move files reach storage
//! directly, through an [`Access`]. Data goes to the given writer, messages to standard error;
//! [`run`] returns the exit code.

mod check;
mod command;
mod data;
mod download;
mod draft;
mod files;
mod sites;
mod table;
mod upload;

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use clap::ValueEnum;
pub use command::{
    AccountCommand, Add, Check, Command, DidCommand, Download, JudgeArgs, List, QuotaCommand,
    ReplicaCommand, RseCommand, TransferCommand, Upload,
};
use futures_util::future::{BoxFuture, LocalBoxFuture};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use mainstay_transfers::store::Access;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused the request; the message is the server's.
    #[error("{class}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The exception name.
        class: String,
        /// One sentence for the user.
        message: String,
    },
    /// The server cannot be reached.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The answer is malformed.
    #[error("the response cannot be read: {0}")]
    Answer(String),
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// An operation on storage or on a local file failed.
    #[error("{0}")]
    Failed(String),
    /// The user interrupted the command.
    #[error("it was interrupted")]
    Interrupted,
    /// The output cannot be written.
    #[error("the output cannot be written")]
    Output(#[from] std::io::Error),
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// A connection to a server.
pub trait Remote: Send + Sync {
    /// Sends one request; `path` begins with `/` and is relative to the root of the interface.
    fn send<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> BoxFuture<'a, Result<Answer, Error>>;

    /// Sends a request whose answer may take long and arrives in pieces.
    fn stream<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Pieces, Error>> {
        async move {
            let Answer { status, body } = self.send("GET", path, None).await?;
            Ok(Pieces { status, body: stream::iter([Ok(Bytes::from(body))]).boxed() })
        }
        .boxed()
    }
}

/// An answer that arrives in pieces.
pub struct Pieces {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: BoxStream<'static, Result<Bytes, Error>>,
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pieces").field("status", &self.status).finish_non_exhaustive()
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// Names only.
    Name,
}

/// The bytes that are percent-encoded in a path segment: all but letters, digits and `-._`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Encodes one path segment.
fn part(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn did(text: &str) -> Result<(String, String), Error> {
    match text.split_once(':') {
        Some((scope, name)) if !scope.is_empty() && !name.is_empty() => {
            Ok((scope.to_owned(), name.to_owned()))
        }
        _ => Err(Error::Usage(format!("{text:?} should be scope:name"))),
    }
}

fn did_path(text: &str, verb: &str) -> Result<String, Error> {
    let (scope, name) = did(text)?;
    Ok(format!("/dids/{}/{}{verb}", part(&scope), part(&name)))
}

fn named(texts: &[String]) -> Result<Vec<Value>, Error> {
    texts
        .iter()
        .map(|text| did(text).map(|(scope, name)| json!({"scope": scope, "name": name})))
        .collect()
}

fn pair(text: &str) -> Result<(&str, &str), Error> {
    text.split_once('=').ok_or_else(|| Error::Usage(format!("{text:?} should be key=value")))
}

/// Where progress is written: to the output if it was requested, else to standard error.
#[derive(Clone, Copy)]
enum Shown {
    AsData,
    AsTalk,
}

struct Cli<'a> {
    remote: &'a dyn Remote,
    access: Arc<Access>,
    format: Format,
    out: &'a mut dyn Write,
}

/// Runs a command and returns the exit code: 0 for success, 1 for a negative result. Boxed so that
/// the commands are compiled in this crate.
pub fn run<'a>(
    command: Command,
    remote: &'a dyn Remote,
    access: Arc<Access>,
    format: Format,
    out: &'a mut (dyn Write + Send),
) -> LocalBoxFuture<'a, Result<u8, Error>> {
    carry_out(command, remote, access, format, out).boxed_local()
}

async fn carry_out(
    command: Command,
    remote: &dyn Remote,
    access: Arc<Access>,
    format: Format,
    out: &mut (dyn Write + Send),
) -> Result<u8, Error> {
    let mut cli = Cli { remote, access, format, out };
    match command {
        Command::Add(add) => cli.add(add).await,
        Command::List(list) => cli.list(list).await,
        Command::Show { rule } => cli.show("GET", &format!("/rules/{}", part(&rule)), None).await,
        Command::Watch { rule, timeout } => cli.watch(&rule, Shown::AsData, timeout).await,
        Command::Explain { rule, file } => cli.explain(&rule, file.as_deref()).await,
        Command::Repair { rule } => {
            cli.show("POST", &format!("/mainstay/rules/{}/repair", part(&rule)), None).await
        }
        Command::Delete { rule, soft, purge } => {
            let body = json!({"purge_replicas": purge.then_some(true), "immediately": !soft});
            cli.done("DELETE", &format!("/rules/{}", part(&rule)), Some(body)).await
        }
        Command::Move { rule, expression } => {
            let body = json!({"rule_id": rule, "rse_expression": expression, "override": {}});
            cli.show("POST", &format!("/rules/{}/move", part(&rule)), Some(body)).await
        }
        Command::Reduce { rule, copies, exclude } => {
            let body = json!({"copies": copies, "exclude_expression": exclude});
            cli.show("POST", &format!("/rules/{}/reduce", part(&rule)), Some(body)).await
        }
        Command::Approve { rule } => cli.options(&rule, json!({"approve": true})).await,
        Command::Deny { rule, reason } => {
            cli.options(&rule, json!({"approve": false, "comment": reason})).await
        }
        Command::Update { rule, options } => {
            let mut all = Map::new();
            for option in &options {
                let (key, value) = pair(option)?;
                let value =
                    serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
                all.insert(key.to_owned(), value);
            }
            cli.options(&rule, Value::Object(all)).await
        }
        Command::Expression { expression } => cli.expression(&expression).await,
        Command::Rse(command) => cli.rse(command).await,
        Command::Account(command) => cli.account(command).await,
        Command::Quota(command) => cli.quota(command).await,
        Command::Did(command) => cli.did(command).await,
        Command::Replica(command) => cli.replica(command).await,
        Command::Upload(upload) => cli.upload(upload).await,
        Command::Download(download) => cli.download(download).await,
        Command::Transfers { most } => cli.transfers(most).await,
        Command::Transfer(command) => cli.transfer(command).await,
        Command::Judge(args) => {
            let path = format!("/mainstay/judge/{}", args.daemon);
            cli.show("POST", &path, Some(json!({"now": args.now}))).await
        }
        Command::Check(check) => cli.check(check).await,
    }
}

fn refused(answer: &Answer) -> Error {
    let error: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    Error::Refused {
        status: answer.status,
        class: text("ExceptionClass"),
        message: text("ExceptionMessage"),
    }
}

impl Cli<'_> {
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Result<String, Error> {
        let answer = self.remote.send(method, path, body).await?;
        if answer.status < 400 { Ok(answer.body) } else { Err(refused(&answer)) }
    }

    /// The pieces of an answer that may take long.
    async fn pieces(&self, path: &str) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let Pieces { status, mut body } = self.remote.stream(path).await?;
        if status < 400 {
            return Ok(body);
        }
        let mut whole = Vec::new();
        while let Some(piece) = body.next().await {
            whole.extend_from_slice(&piece?);
        }
        let body = String::from_utf8_lossy(&whole).into_owned();
        Err(refused(&Answer { status, body }))
    }

    async fn value(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, Error> {
        let text = self.call(method, path, body).await?;
        serde_json::from_str(&text).map_err(|error| Error::Answer(format!("{error}: {text:.200}")))
    }

    async fn lines(&self, path: &str) -> Result<Vec<Value>, Error> {
        let text = self.call("GET", path, None).await?;
        // `Infinity` is not JSON; the output has it as a string.
        let line = |line: &str| serde_json::from_str(&line.replace(": Infinity", ": \"infinite\""));
        text.lines()
            .map(|text| line(text).map_err(|error| Error::Answer(error.to_string())))
            .collect()
    }

    async fn show(&mut self, method: &str, path: &str, body: Option<Value>) -> Result<u8, Error> {
        let value = self.value(method, path, body).await?;
        table::value(self.out, self.format, &value)?;
        Ok(0)
    }

    async fn rows(&mut self, path: &str, columns: &[&str]) -> Result<u8, Error> {
        let rows = self.lines(path).await?;
        table::rows(self.out, self.format, &rows, columns)?;
        Ok(0)
    }

    async fn done(&mut self, method: &str, path: &str, body: Option<Value>) -> Result<u8, Error> {
        self.call(method, path, body).await?;
        Ok(0)
    }

    async fn options(&mut self, rule: &str, options: Value) -> Result<u8, Error> {
        self.done("PUT", &format!("/rules/{}", part(rule)), Some(json!({"options": options}))).await
    }

    async fn add(&mut self, add: Add) -> Result<u8, Error> {
        let body = json!({
            "dids": named(&add.dids)?, "copies": add.copies, "rse_expression": add.expression, "account": add.account,
            "grouping": add.grouping, "weight": add.weight, "lifetime": add.lifetime,
            "source_replica_expression": add.source, "activity": add.activity, "comment": add.comment,
            "locked": add.locked, "ask_approval": add.ask_approval, "asynchronous": add.asynchronous,
            "ignore_availability": add.ignore_availability,
        });
        let made = self.value("POST", "/rules/", Some(body)).await?;
        let made = made.as_array().map(Vec::as_slice).unwrap_or_default();
        for rule in made {
            writeln!(self.out, "{}", rule.as_str().unwrap_or(""))?;
        }
        self.out.flush()?;
        let mut worst = 0;
        for rule in made.iter().filter(|_| add.wait) {
            let rule = rule.as_str().unwrap_or("");
            worst = worst.max(self.watch(rule, Shown::AsTalk, add.timeout).await?);
        }
        Ok(worst)
    }

    async fn list(&mut self, list: List) -> Result<u8, Error> {
        let state = match &list.state {
            None => None,
            Some(text) => {
                let known = crate::api::RuleState::read(text);
                Some(
                    known
                        .ok_or_else(|| Error::Usage(format!("{text:?} is no state of a rule")))?
                        .letter()
                        .to_owned(),
                )
            }
        };
        let filters = [
            ("account", list.account),
            ("scope", list.scope),
            ("name", list.name),
            ("state", state),
        ];
        let query: Vec<String> = filters
            .iter()
            .filter_map(|(key, value)| value.as_ref().map(|value| format!("{key}={}", part(value))))
            .collect();
        let columns = [
            "id",
            "account",
            "scope",
            "name",
            "state",
            "locks_ok_cnt",
            "locks_replicating_cnt",
            "locks_stuck_cnt",
            "rse_expression",
            "copies",
        ];
        self.rows(&format!("/rules/?{}", query.join("&")), &columns).await
    }

    /// Shows the progress of a rule until it is OK. A rule that stops, or that takes longer than
    /// `timeout` seconds (0 means no limit), is a negative result.
    #[expect(clippy::disallowed_methods, reason = "the command waits for real time")]
    async fn watch(&mut self, rule: &str, shown_as: Shown, timeout: u64) -> Result<u8, Error> {
        let path = format!("/rules/{}", part(rule));
        let begun = tokio::time::Instant::now();
        let mut shown = String::new();
        loop {
            let value = self.value("GET", &path, None).await?;
            let count = |key: &str| value[key].as_u64().unwrap_or(0);
            let (ok, moving, stuck) =
                (count("locks_ok_cnt"), count("locks_replicating_cnt"), count("locks_stuck_cnt"));
            let state = value["state"].as_str().unwrap_or("");
            let bar = table::bar(state == "OK", ok, moving, stuck);
            let why = value["error"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
            let line = format!("{bar} {ok} ok, {moving} replicating, {stuck} stuck: {state}{why}");
            if line != shown {
                match shown_as {
                    Shown::AsData => {
                        writeln!(self.out, "{line}")?;
                        self.out.flush()?;
                    }
                    Shown::AsTalk => eprintln!("{line}"),
                }
                shown = line;
            }
            match state {
                "OK" => return Ok(0),
                "SUSPENDED" | "WAITING_APPROVAL" => return Ok(1),
                _ if timeout > 0 && begun.elapsed().as_secs() >= timeout => {
                    eprintln!(
                        "rule {rule} is not OK after {timeout} s; the server keeps working on it"
                    );
                    return Ok(1);
                }
                _ => tokio::time::sleep(std::time::Duration::from_millis(500)).await,
            }
        }
    }

    async fn explain(&mut self, rule: &str, file: Option<&str>) -> Result<u8, Error> {
        let query = file.map_or_else(String::new, |file| format!("?file={}", part(file)));
        let why = self
            .value("GET", &format!("/mainstay/rules/{}/explain{query}", part(rule)), None)
            .await?;
        if self.format == Format::Json {
            table::value(self.out, self.format, &why)?;
            return Ok(0);
        }
        writeln!(self.out, "{}", why["summary"].as_str().unwrap_or(""))?;
        if let Some(remedy) = why["remedy"].as_str() {
            writeln!(self.out, "{remedy}")?;
        }
        writeln!(self.out)?;
        for (rse, verdict) in why["candidates"].as_object().into_iter().flatten() {
            writeln!(self.out, "  {rse:<20} {}", verdict.as_str().unwrap_or(""))?;
        }
        writeln!(self.out)?;
        let copies = why["copies"].as_array().map(Vec::as_slice).unwrap_or_default();
        table::rows(self.out, self.format, copies, &["name", "rse", "state", "why"])?;
        Ok(0)
    }

    async fn expression(&mut self, expression: &str) -> Result<u8, Error> {
        let path = format!("/mainstay/expression?expression={}", part(expression));
        let value = self.value("GET", &path, None).await?;
        if self.format != Format::Table {
            table::value(self.out, self.format, &value)?;
            return Ok(0);
        }
        let terms = value["terms"].as_array().map(Vec::as_slice).unwrap_or_default();
        table::rows(self.out, self.format, terms, &["operator", "term", "matched", "after"])?;
        let rses = table::cell(&value["rses"]);
        writeln!(self.out, "= {rses}")?;
        Ok(u8::from(rses.is_empty()))
    }
}
