//! The state of a round: its folder, its processes, its storage elements, and the files and rules
//! that it asked for.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use super::keeper::Keeper;
use super::plan::{Backend, Plan, content};
use super::process::{Postgres, Process, send};
use super::step::{DATASETS, Reach, SITES, Who};
use super::{now, short_pause};

/// The scope of everything.
pub(crate) const SCOPE: &str = "s";

/// How long one command may take before it counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file we asked for.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    pub(crate) seed: u64,
    /// The site of an upload that did not finish; it is repeated after the faults.
    pub(crate) unfinished: Option<usize>,
    /// Whether a step allowed this file to be lost.
    pub(crate) may_go: bool,
}

impl Known {
    pub(crate) fn content(&self) -> Vec<u8> {
        content(self.seed, self.bytes)
    }

    pub(crate) fn did(&self) -> String {
        format!("{SCOPE}:{}", self.name)
    }
}

/// How a fault ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Start(Who),
    Thaw(Who, Vec<u32>),
    BringBack(usize),
    MakeWritable(usize),
    Open(usize),
}

impl Undo {
    /// Whether it works without the servers.
    pub(crate) fn is_outside(&self) -> bool {
        !matches!(self, Self::Open(_))
    }
}

/// Totals for the summary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) rounds: usize,
    pub(crate) commands: usize,
    pub(crate) refused: usize,
    pub(crate) kills: usize,
    pub(crate) freezes: usize,
    pub(crate) restarts: usize,
    pub(crate) folder_faults: usize,
    pub(crate) files: usize,
    pub(crate) bytes: usize,
}

/// A running round.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) keeper: Keeper,
    pub(crate) folder: PathBuf,
    pub(crate) binary: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) database: Option<Postgres>,
    pub(crate) servers: Vec<Process>,
    pub(crate) workers: Vec<Process>,
    /// How many of the sites there are.
    pub(crate) sites: usize,
    pub(crate) known: Vec<Known>,
    /// The files that ever were in each dataset.
    pub(crate) members: Vec<BTreeSet<usize>>,
    /// The rules of this round, with the names they are for.
    pub(crate) rules: Vec<(String, String)>,
    pub(crate) undo: Vec<(Instant, Undo)>,
    pub(crate) counts: Counts,
    /// Errors found so far.
    pub(crate) wrong: Vec<String>,
    asked: usize,
}

impl World {
    /// Starts everything and registers the first files.
    pub(crate) fn start(plan: Plan, binary: &Path, folder: &Path) -> Result<Self> {
        fs::create_dir(folder)?;
        let mut keeper = Keeper::start(folder)?;
        let database = match plan.backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Postgres::make(&folder.join("postgres"), &mut keeper)?),
        };
        let mut world = Self {
            keeper,
            folder: folder.to_owned(),
            binary: binary.to_owned(),
            plan,
            database,
            servers: Vec::new(),
            workers: Vec::new(),
            sites: SITES.len(),
            known: Vec::new(),
            members: vec![BTreeSet::new(); DATASETS.len()],
            rules: Vec::new(),
            undo: Vec::new(),
            counts: Counts::default(),
            wrong: Vec::new(),
            asked: 0,
        };
        world.mount()?;
        for number in 0..world.plan.servers {
            let process = world.server(number, 0);
            world.servers.push(process);
            world.start_who(Who::Server(number))?;
            let port = world.wait_for_server(number)?;
            let words = world.server_words(number, port);
            world.servers[number].set_words(words);
        }
        world.furnish()?;
        for number in 0..world.plan.workers.len() {
            let process = world.worker(number);
            world.workers.push(process);
            world.start_who(Who::Worker(number))?;
        }
        Ok(world)
    }

    /// The folder with a site's files, below its mount point.
    pub(crate) fn site(&self, number: usize) -> PathBuf {
        self.mount_point(number).join("files")
    }

    pub(crate) fn mount_point(&self, number: usize) -> PathBuf {
        self.folder.join("sites").join(SITES[number])
    }

    fn server(&self, number: usize, port: u16) -> Process {
        let log = self.folder.join(format!("server-{number}.log"));
        Process::new(self.server_words(number, port), log, None)
    }

    fn server_words(&self, number: usize, port: u16) -> Vec<String> {
        let mut words = vec![self.binary.display().to_string()];
        words.extend(["serve", "--only", "rules", "--data-dir"].map(str::to_owned));
        words.push(self.data_dir(number).display().to_string());
        words.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")]);
        words.extend(["--transfer-workers".to_owned(), self.plan.own_workers.to_string()]);
        words.extend(self.storage_root());
        if let Some(database) = &self.database {
            words.extend(["--catalog".to_owned(), database.url()]);
        }
        words
    }

    /// The flag that names the folders servers and workers may use.
    fn storage_root(&self) -> [String; 2] {
        ["--storage-root".to_owned(), self.folder.join("sites").display().to_string()]
    }

    fn data_dir(&self, number: usize) -> PathBuf {
        self.folder.join(format!("data-{number}"))
    }

    fn kubeconfig(&self, number: usize) -> PathBuf {
        self.data_dir(number % self.plan.servers).join("kubeconfig")
    }

    fn worker(&self, number: usize) -> Process {
        let mut words = vec![self.binary.display().to_string()];
        words.extend(["transfer-worker", "--lease", "2s", "--name"].map(str::to_owned));
        words.push(format!("worker-{number}"));
        words.extend(self.storage_root());
        if self.plan.workers[number] == Reach::Catalog {
            let file = self.data_dir(0).join("catalog.db").display().to_string();
            words.push("--catalog".to_owned());
            words.push(self.database.as_ref().map_or(file, Postgres::url));
        }
        let log = self.folder.join(format!("worker-{number}.log"));
        Process::new(words, log, Some(self.kubeconfig(number)))
    }

    /// Waits until a server reports that it is ready; returns its port.
    pub(crate) fn wait_for_server(&mut self, number: usize) -> Result<u16> {
        let until = now() + Duration::from_secs(60);
        while now() < until {
            let said = self.servers[number].said();
            let ready = said.lines().find_map(|line| line.strip_prefix("mainstay is ready at "));
            let port = ready.and_then(|line| line.split([':', ' ']).nth(2)?.parse().ok());
            if let Some(port) = port {
                return Ok(port);
            }
            if let Some(why) = self.servers[number].ended(&mut self.keeper) {
                bail!("the server did not start: {why}");
            }
            short_pause();
        }
        bail!("the server is not ready after a minute:\n{}", self.servers[number].said())
    }

    /// A user's command, not yet started. Its output goes to files.
    pub(crate) fn command(&mut self, words: &[&str]) -> Result<Command> {
        self.asked += 1;
        self.counts.commands += 1;
        let mut command = Command::new(&self.binary);
        command.arg("rules").args(words).args(["--request-timeout", "4s"]);
        // Prefer a server without a fault.
        let some = self.asked..self.asked + self.plan.servers;
        let well = |number: &usize| !self.is_disturbed(Who::Server(number % self.plan.servers));
        let asked = some.into_iter().find(well).unwrap_or(self.asked);
        command.env("KUBECONFIG", self.kubeconfig(asked)).env("HOME", &self.folder);
        command.env_remove("MAINSTAY_DATA_DIR").env_remove("MAINSTAY_TOKEN");
        command.stdin(Stdio::null());
        command.stdout(File::create(self.folder.join("stdout"))?);
        command.stderr(File::create(self.folder.join("stderr"))?);
        Ok(command)
    }

    /// Runs a command; the error is its output, or that it did not end in time.
    pub(crate) fn rules(&mut self, words: &[&str]) -> Result<String, String> {
        let answer = self.try_rules(words).unwrap_or_else(|error| Err(format!("{error:#}")));
        self.note(&format!(
            "{} -> {}",
            words.join(" "),
            answer.as_ref().map_or_else(|error| error.trim(), |_| "ok")
        ));
        self.counts.refused += usize::from(answer.is_err());
        answer
    }

    fn try_rules(&mut self, words: &[&str]) -> Result<Result<String, String>> {
        let mut child = self.command(words)?.spawn().context("cannot run mainstay")?;
        let Some(status) = self.wait_for(&mut child)? else {
            return Ok(Err("no answer".to_owned()));
        };
        let read = |name: &str| fs::read(self.folder.join(name)).unwrap_or_default();
        let said = String::from_utf8_lossy(&read("stderr")).into_owned();
        if said.contains("panicked") {
            self.wrong.push(format!("`rules {}` panicked: {said}", words.join(" ")));
        }
        Ok(match status.success() {
            true => Ok(String::from_utf8_lossy(&read("stdout")).into_owned()),
            false => Err(said),
        })
    }

    /// Waits for a command, at most [`PATIENCE`], while faults end.
    pub(crate) fn wait_for(&mut self, child: &mut Child) -> Result<Option<ExitStatus>> {
        let until = now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            self.end_due_faults(Undo::is_outside)?;
            if now() > until {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Runs a command that must not fail.
    pub(crate) fn must(&mut self, words: &[&str]) -> Result<String> {
        self.rules(words).map_err(|said| anyhow::anyhow!("`rules {}`: {said}", words.join(" ")))
    }

    /// Runs a command and reads its JSON.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<Value, String> {
        let mut all = words.to_vec();
        all.extend(["-o", "json"]);
        let text = self.rules(&all)?;
        serde_json::from_str(&text).map_err(|error| format!("not JSON ({error}): {text}"))
    }

    /// Writes a line into the log of steps.
    pub(crate) fn note(&mut self, what: &str) {
        use std::io::Write;
        let log = File::options().create(true).append(true).open(self.folder.join("steps.log"));
        if let Ok(mut log) = log {
            // The log only helps to read a failure; a round does not fail without it.
            let _ = writeln!(log, "{} {what}", super::time_of_day());
        }
    }

    pub(crate) fn process(&mut self, who: Who) -> Option<&mut Process> {
        match who {
            Who::Server(number) => self.servers.get_mut(number),
            Who::Worker(number) => self.workers.get_mut(number),
            Who::Database => self.database.as_mut().map(|database| &mut database.process),
        }
    }

    pub(crate) fn start_who(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Server(number) => self.servers[number].start(&mut self.keeper),
            Who::Worker(number) => self.workers[number].start(&mut self.keeper),
            Who::Database => {
                let Some(database) = &mut self.database else { return Ok(()) };
                // The file of a killed server would keep the next one from starting.
                let _ = fs::remove_file(self.folder.join("postgres/data/postmaster.pid"));
                database.process.start(&mut self.keeper)
            }
        }
    }

    pub(crate) fn end_who(&mut self, who: Who, signal: Signal) {
        match who {
            Who::Server(number) => self.servers[number].end(signal, &mut self.keeper),
            Who::Worker(number) => self.workers[number].end(signal, &mut self.keeper),
            Who::Database => {
                if let Some(database) = &mut self.database {
                    for backend in database.backends() {
                        send(backend, Signal::CONT);
                    }
                    database.process.end(signal, &mut self.keeper);
                }
            }
        }
    }

    /// Keeps a copy of the sites, and the folder, for people to look at.
    pub(crate) fn keep(&mut self) {
        let copy = self.folder.join("sites-kept");
        let mut command = Command::new("cp");
        command.arg("-a").arg(self.folder.join("sites")).arg(&copy);
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("chaos: the files of the sites could not be copied");
        }
        self.keeper.keep_folder();
    }
}
