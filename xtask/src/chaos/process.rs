//! The processes of a round: servers, workers, and a PostgreSQL of its own. Signals go only to
//! processes that this round started.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use super::keeper::Keeper;
use super::{now, short_pause};

/// A process that is killed and started again.
#[derive(Debug)]
pub(crate) struct Process {
    /// The program with its arguments.
    words: Vec<String>,
    log: PathBuf,
    kubeconfig: Option<PathBuf>,
    child: Option<Child>,
    /// The length of the log when the process started: earlier output is of its predecessors.
    output_from: u64,
}

impl Process {
    pub(crate) fn new(words: Vec<String>, log: PathBuf, kubeconfig: Option<PathBuf>) -> Self {
        Self { words, log, kubeconfig, child: None, output_from: 0 }
    }

    /// Changes the arguments for the next start.
    pub(crate) fn set_words(&mut self, words: Vec<String>) {
        self.words = words;
    }

    pub(crate) fn start(&mut self, keeper: &mut Keeper) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        self.output_from = log.metadata()?.len();
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.env_remove("MAINSTAY_DATA_DIR").env_remove("MAINSTAY_TOKEN");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", self.words[0]))?;
        keeper.has_process(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// The output of the running process.
    pub(crate) fn said(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.output_from).unwrap_or(usize::MAX).min(bytes.len());
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The status and last line of a process that ended by itself; none while it runs.
    pub(crate) fn ended(&mut self, keeper: &mut Keeper) -> Option<String> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok().flatten()?;
        keeper.process_ended(child.id());
        self.child = None;
        Some(format!("{status}: {}", self.said().lines().last().unwrap_or_default()))
    }

    /// Sends the signal and waits for the end.
    pub(crate) fn end(&mut self, signal: Signal, keeper: &mut Keeper) {
        let Some(mut child) = self.child.take() else { return };
        send(child.id(), signal);
        // A frozen process handles only SIGKILL.
        send(child.id(), Signal::CONT);
        // It is our child, so waiting works.
        let _ = child.wait();
        keeper.process_ended(child.id());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal to a process that we started, or that one of those started.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A PostgreSQL in a folder, reached through a socket there.
#[derive(Debug)]
pub(crate) struct Postgres {
    pub(crate) process: Process,
    folder: PathBuf,
}

impl Postgres {
    /// Makes an empty one and starts it.
    pub(crate) fn make(folder: &Path, keeper: &mut Keeper) -> Result<Self> {
        let programs = find_programs().context("there is no PostgreSQL on this machine")?;
        let mut user = Vec::new();
        fs::create_dir(folder)?;
        if is_root() {
            let (uid, gid) = unprivileged().context("nobody is there to run PostgreSQL as")?;
            std::os::unix::fs::chown(folder, Some(uid), Some(gid))?;
            user =
                ["setpriv".to_owned(), format!("--reuid={uid}"), format!("--regid={gid}")].into();
            user.extend(["--clear-groups".to_owned(), "--".to_owned()]);
        }
        let data = folder.join("data").display().to_string();
        let words = |program: &str| {
            let mut words = user.clone();
            words.push(programs.join(program).display().to_string());
            words.extend(["-D".to_owned(), data.clone()]);
            words
        };
        let initdb = words("initdb");
        let options = ["-U", "mainstay", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"];
        let mut command = Command::new(&initdb[0]);
        let made = command.args(&initdb[1..]).args(options).current_dir(folder).output()?;
        if !made.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let mut postgres = words("postgres");
        let socket = folder.display().to_string();
        postgres.extend(["-k".to_owned(), socket, "-c".to_owned(), "fsync=off".to_owned()]);
        postgres.extend(["-c".to_owned(), "listen_addresses=".to_owned()]);
        let process = Process::new(postgres, folder.with_extension("log"), None);
        let mut made = Self { process, folder: folder.to_owned() };
        made.process.start(keeper)?;
        made.wait(Duration::from_secs(30))?;
        Ok(made)
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgresql://mainstay@{folder}:5432/postgres")
    }

    /// Waits until it says that it is ready.
    pub(crate) fn wait(&self, patience: Duration) -> Result<()> {
        let until = now() + patience;
        while now() < until {
            if self.process.said().contains("ready to accept connections") {
                return Ok(());
            }
            short_pause();
        }
        bail!("PostgreSQL does not answer:\n{}", self.process.said())
    }

    /// The processes that serve clients.
    pub(crate) fn backends(&self) -> Vec<u32> {
        let Some(pid) = self.process.pid() else { return Vec::new() };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let serves = |pid: &u32| {
            let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&name).starts_with("postgres: mainstay")
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(serves).collect()
    }
}

/// Whether we may mount, and must not run PostgreSQL.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The folder with PostgreSQL's programs.
fn find_programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|entry| entry.path().join("bin"));
    let mut places = std::env::split_paths(&path).chain(debian);
    places.find(|place| place.join("initdb").exists() && place.join("postgres").exists())
}

/// The numbers of a user that owns nothing of importance.
fn unprivileged() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// Whether a folder is a mount of its own.
pub(crate) fn is_mounted(at: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|meta| meta.dev());
    at.parent().is_some_and(|above| device(at) != device(above))
}
