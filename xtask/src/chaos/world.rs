//! What a round consists of: its folder, its processes, its storage elements, and what we know of
//! the files and rules we asked for.

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
    /// Where an upload did not come to its end, which is repeated once all is well.
    pub(crate) unfinished: Option<usize>,
    /// Somebody asked for something that lets it go.
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

/// What ends a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Start(Who),
    Thaw(Who, Vec<u32>),
    BringBack(usize),
    MakeWritable(usize),
    Open(usize),
}

impl Undo {
    /// Whether it is done without asking the servers.
    pub(crate) fn is_outside(&self) -> bool {
        !matches!(self, Self::Open(_))
    }
}

/// What was done, for people.
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
    /// Rules that we made, and what for.
    pub(crate) rules: Vec<(String, String)>,
    pub(crate) undo: Vec<(Instant, Undo)>,
    pub(crate) counts: Counts,
    /// What went wrong on the way.
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

    /// Where a site's files are: below what may be mounted.
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

    /// Where servers and workers may touch files.
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

    /// Waits until a server says that it is ready; gives its port.
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

    /// A command as a user gives it, not yet started. Its output goes to files.
    pub(crate) fn command(&mut self, words: &[&str]) -> Result<Command> {
        self.asked += 1;
        self.counts.commands += 1;
        let mut command = Command::new(&self.binary);
        command.arg("rules").args(words).args(["--request-timeout", "4s"]);
        // Of several servers one that is well, if there is any.
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

    /// Runs a command; an error is what it said, or that it said nothing in time.
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

    /// Waits for a command, for as long as there is patience, while faults come to their end.
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

    /// Runs a command that has no reason to fail.
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

    /// Writes down what is done and when, for people.
    pub(crate) fn note(&mut self, what: &str) {
        use std::io::Write;
        let log = File::options().create(true).append(true).open(self.folder.join("steps.log"));
        if let Ok(mut log) = log {
            // It only helps to find a fault that was found anyway.
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
                // What a killed one leaves keeps the next from starting.
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

    /// Keeps what is on the sites for people to look at, and the folder.
    pub(crate) fn keep(&mut self) {
        let copy = self.folder.join("sites-kept");
        let mut command = Command::new("cp");
        command.arg("-a").arg(self.folder.join("sites")).arg(&copy);
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("chaos: what is on the sites could not be kept");
        }
        self.keeper.keep_folder();
    }
}
