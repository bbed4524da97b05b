//! The audit log: one JSON line for every change somebody asked for, in `DIR/audit.log`.
//!
//! A request hands its entry over and goes on: a thread of its own formats and writes it, and
//! begins a new file when the current one is large. If the disk cannot follow, entries are counted
//! as lost rather than requests held up.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use tokio::sync::mpsc;

const QUEUE: usize = 65_536;

/// One change somebody asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) time: Timestamp,
    pub(crate) user: Arc<str>,
    /// As whom they acted, if it was somebody else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) impersonated_user: Option<Arc<str>>,
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) subresource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    pub(crate) code: u16,
    #[serde(serialize_with = "as_millis")]
    pub(crate) latency_ms: Duration,
    pub(crate) remote: std::net::IpAddr,
}

fn as_millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = (duration.as_secs_f64() * 1e6).round() / 1e3;
    serializer.serialize_f64(millis)
}

/// Where entries are handed over.
#[derive(Debug)]
pub(crate) struct Audit {
    sender: mpsc::Sender<Entry>,
    lost: Counter,
}

impl Audit {
    /// Opens the log, and starts the thread that writes it.
    pub(crate) fn start(
        path: PathBuf,
        file_size: u64,
        files: usize,
        lost: Counter,
    ) -> io::Result<(Self, Writing)> {
        let log = Log::open(path, file_size, files)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let failed = lost.clone();
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write_all(log, receiver, &failed))?;
        Ok((Self { sender, lost }, Writing(Some(thread))))
    }

    /// Hands an entry over. Never waits.
    pub(crate) fn record(&self, entry: Entry) {
        if self.sender.try_send(entry).is_err() {
            self.lost.inc();
        }
    }
}

/// The thread that writes. It ends once every [`Audit`] is gone and everything is written.
#[derive(Debug)]
pub(crate) struct Writing(Option<JoinHandle<()>>);

impl Writing {
    /// Waits for the thread to end.
    pub(crate) async fn ended(mut self) {
        if let Some(thread) = self.0.take() {
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }
}

fn write_all(mut log: Log, mut receiver: mpsc::Receiver<Entry>, lost: &Counter) {
    let mut entries = Vec::new();
    let mut lines = Vec::new();
    while receiver.blocking_recv_many(&mut entries, 1024) > 0 {
        let count = entries.len() as u64;
        for entry in entries.drain(..) {
            if serde_json::to_writer(&mut lines, &entry).is_ok() {
                lines.push(b'\n');
            }
        }
        if let Err(error) = log.write(&lines) {
            tracing::error!(%error, "the audit log could not be written");
            lost.inc_by(count);
        }
        lines.clear();
    }
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    file_size: u64,
    files: usize,
}

impl Log {
    fn open(path: PathBuf, file_size: u64, files: usize) -> io::Result<Self> {
        let file = append_to(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size, file_size, files })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + lines.len() as u64 > self.file_size {
            self.rotate()?;
        }
        self.file.write_all(lines)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: usize| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..self.files).rev() {
            rename_if_there(&numbered(number), &numbered(number + 1))?;
        }
        if self.files > 0 {
            rename_if_there(&self.path, &numbered(1))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        self.file = append_to(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry {
            time: "2026-11-16T00:00:00Z".parse().unwrap(),
            user: "ada".into(),
            impersonated_user: None,
            verb: "create",
            resource: "configmaps".to_owned(),
            subresource: String::new(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            code: 201,
            latency_ms: Duration::from_micros(1500),
            remote: [127, 0, 0, 1].into(),
        }
    }

    #[tokio::test]
    async fn every_entry_is_a_line_and_is_written_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let (audit, writing) = Audit::start(path.clone(), 1 << 20, 1, Counter::default()).unwrap();
        audit.record(entry("a\"b"));
        audit.record(entry("c"));
        drop(audit);
        writing.ended().await;
        let text = std::fs::read_to_string(path).unwrap();
        let first = r#"{"time":"2026-11-16T00:00:00Z","user":"ada","verb":"create","resource":"configmaps","namespace":"default","name":"a\"b","code":201,"latencyMs":1.5,"remote":"127.0.0.1"}"#;
        assert_eq!(text.lines().next(), Some(first));
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn a_large_log_begins_a_new_file_and_keeps_only_so_many() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(dir.path().join("audit.log"), 10, 2).unwrap();
        for text in ["first---\n", "second--\n", "third---\n", "fourth--\n"] {
            log.write(text.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("audit.log"), "fourth--\n");
        assert_eq!(read("audit.log.1"), "third---\n");
        assert_eq!(read("audit.log.2"), "second--\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
