//! The server under test: this same program in a process of its own, with a folder of its own.

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Error;

/// A running server that ends, and whose data goes, when this is dropped.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    folder: TempDir,
    arguments: Vec<String>,
    drained: JoinHandle<()>,
}

impl ServerProcess {
    /// Starts a server on a free port and waits until it says that it is ready.
    pub(super) async fn start(store: &str) -> Result<Self, Error> {
        match store {
            "" => Self::start_with(&[]).await,
            store => Self::start_with(&["--store", store]).await,
        }
    }

    /// The same, with arguments of its own.
    pub(super) async fn start_with(arguments: &[&str]) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::Start)?;
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        let (child, drained) = spawn(&folder, &arguments).await?;
        Ok(Self { child, folder, arguments, drained })
    }

    /// Kills the server and starts it again on the same data, on another port; says how long it
    /// took from the start of the process until it was ready.
    pub(super) async fn restart(&mut self) -> Result<Duration, Error> {
        self.child.kill().await?;
        let start = Instant::now();
        (self.child, self.drained) = spawn(&self.folder, &self.arguments).await?;
        Ok(start.elapsed())
    }

    pub(super) fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Resident memory in megabytes (10⁶ bytes), where the machine tells.
    pub(super) fn rss_mb(&self) -> Option<f64> {
        self.megabytes("VmRSS:")
    }

    /// Resident memory at its highest since it was forgotten.
    pub(super) fn peak_mb(&self) -> Option<f64> {
        self.megabytes("VmHWM:")
    }

    /// Forgets how high resident memory was.
    pub(super) fn forget_peak(&self) {
        if let Some(id) = self.child.id() {
            // Where it cannot be forgotten the numbers are merely higher.
            drop(std::fs::write(format!("/proc/{id}/clear_refs"), "5"));
        }
    }

    fn megabytes(&self, what: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some((kilobytes * 1.024 / 100.0).round() / 10.0)
    }

    /// Processor time used so far, in seconds, where the machine tells.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()?)).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks: f64 =
            fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(ticks / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ends the server and waits for it.
    pub(super) async fn stop(mut self) -> Result<(), Error> {
        self.child.kill().await?;
        // The reader ends with the pipe.
        drop(self.drained.await);
        Ok(())
    }
}

/// Starts a server on a free port and waits until it says that it is ready.
async fn spawn(folder: &TempDir, arguments: &[String]) -> Result<(Child, JoinHandle<()>), Error> {
    let program = std::env::current_exe().map_err(Error::Start)?;
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
    command.args(arguments);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::Start)?;
    let stderr = child.stderr.take().ok_or(Error::NotHttp)?;
    let mut lines = BufReader::new(stderr).lines();
    let mut said = String::new();
    loop {
        match lines.next_line().await? {
            Some(line) if line.contains(crate::command::serve::READY) => break,
            Some(line) => said = line,
            None => return Err(Error::NotReady { said }),
        }
    }
    // What it says later is read too, or it would stand still once the pipe is full.
    let drained = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((child, drained))
}
