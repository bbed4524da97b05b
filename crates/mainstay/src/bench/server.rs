//! The server under test: this program in a separate process with its own data folder.

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Error;

/// A running server. Dropping it ends the server and deletes its data.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    folder: TempDir,
    arguments: Vec<String>,
    drained: JoinHandle<()>,
}

impl ServerProcess {
    /// Starts a server on a free port and waits until it is ready.
    pub(super) async fn start(store: &str) -> Result<Self, Error> {
        match store {
            "" => Self::start_with(&[]).await,
            store => Self::start_with(&["--store", store]).await,
        }
    }

    /// Starts a server with these arguments.
    pub(super) async fn start_with(arguments: &[&str]) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::Start)?;
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        let (child, drained) = spawn(&folder, &arguments).await?;
        Ok(Self { child, folder, arguments, drained })
    }

    /// Kills the server and starts it again on the same data, on another port; returns the time
    /// it took from the start of the process until it was ready.
    pub(super) async fn restart(&mut self) -> Result<Duration, Error> {
        self.child.kill().await?;
        let start = Instant::now();
        (self.child, self.drained) = spawn(&self.folder, &self.arguments).await?;
        Ok(start.elapsed())
    }

    pub(super) fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Resident memory in megabytes (10⁶ bytes), if the system reports it.
    pub(super) fn rss_mb(&self) -> Option<f64> {
        self.megabytes("VmRSS:")
    }

    /// Peak resident memory since the last reset.
    pub(super) fn peak_mb(&self) -> Option<f64> {
        self.megabytes("VmHWM:")
    }

    /// Resets the peak of resident memory.
    pub(super) fn forget_peak(&self) {
        if let Some(id) = self.child.id() {
            // Without a reset the numbers are merely higher.
            drop(std::fs::write(format!("/proc/{id}/clear_refs"), "5"));
        }
    }

    fn megabytes(&self, what: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some((kilobytes * 1.024 / 100.0).round() / 10.0)
    }

    /// Processor time used so far, in seconds, if the system reports it.
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

/// Starts a server on a free port and waits until it is ready.
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
    // Keep reading its output: a full pipe would block the server.
    let drained = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((child, drained))
}
