//! Helpers of the tests of processes.

use std::collections::HashMap;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_clock::SystemClock;
use mainstay_sessions::protocol::{
    CloseSession, InstancePhase, InstanceState, OpenSession, SessionPhase, SessionState,
};
use rustix::process::Pid;
use tempfile::TempDir;

use crate::instances::processes::{Options, Processes, Shared};
use crate::instances::{Event, Events, Id, Start};

/// No test waits longer than this for what must come.
const LONG: Duration = Duration::from_secs(120);

pub(super) fn id(name: &str) -> Id {
    Id::new("default", name)
}

/// An instance that is a shell script.
pub(super) fn script(name: &str, text: &str) -> Start {
    let mut start = Start {
        id: id(name),
        application: "app".to_owned(),
        template: "t".to_owned(),
        process: Default::default(),
        cpu_milli: 0,
        memory_bytes: 0,
        standby: false,
        secrets: Default::default(),
    };
    start.process.process.command = vec!["sh".to_owned(), "-c".to_owned()];
    start.process.process.args = vec![text.to_owned()];
    start.process.grace_seconds = 600;
    start
}

pub(super) fn open(session: &str, instance: &str) -> OpenSession {
    OpenSession {
        namespace: "default".to_owned(),
        name: session.to_owned(),
        instance: instance.to_owned(),
        session_data: format!("data of {session}"),
        external_port: 30_001,
        object: b"{object}".to_vec(),
    }
}

pub(super) fn close(session: &str, instance: &str, grace_seconds: u32) -> CloseSession {
    CloseSession {
        namespace: "default".to_owned(),
        name: session.to_owned(),
        instance: instance.to_owned(),
        grace_seconds,
    }
}

/// Waits until something is so.
pub(super) async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// The letter the kernel shows for a process.
pub(super) fn state_of(pid: Pid) -> Option<char> {
    let line = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    line.rsplit_once(") ")?.1.chars().next()
}

/// Whether the kernel shows a process stopped. A shell that has just begun to start a program waits
/// for it uninterruptibly; stopped at that moment it is the new process that is shown so.
pub(super) fn is_stopped(pid: Pid) -> bool {
    match state_of(pid) {
        Some('D') => {
            let pid = pid.as_raw_nonzero();
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
            children.any(|child| Pid::from_raw(child).and_then(state_of) == Some('T'))
        }
        shown => shown == Some('T'),
    }
}

pub(super) fn pid_of(node: &Node, name: &str) -> Pid {
    node.shared.ledger().get(&id(name)).unwrap().own.alive.pid
}

/// A runtime, what it told, and its folder. Dropped, its instances are killed.
pub(super) struct Node {
    pub(super) runtime: Processes,
    pub(super) shared: std::sync::Arc<Shared>,
    pub(super) sessions: HashMap<String, SessionState>,
    instances: HashMap<String, InstanceState>,
    events: Events,
    folder: Option<TempDir>,
    kept: bool,
}

impl Deref for Node {
    type Target = dyn crate::instances::Runtime;

    fn deref(&self) -> &Self::Target {
        &self.runtime
    }
}

impl Node {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().to_owned(), "127.0.0.1");
        change(&mut options);
        let mut node = Self::on(options);
        node.folder = Some(folder);
        node
    }

    pub(super) fn on(options: Options) -> Self {
        let (runtime, events) = Processes::open(options, SystemClock::new()).unwrap();
        let shared = runtime.shared.clone();
        let (sessions, instances) = (HashMap::new(), HashMap::new());
        Self { runtime, shared, sessions, instances, events, folder: None, kept: false }
    }

    /// Lets everybody into the folder.
    pub(super) fn passable(&self) {
        let folder = self.folder.as_ref().unwrap().path();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Leaves the instances alive.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    async fn next(&mut self) {
        let event = tokio::time::timeout(LONG, self.events.next()).await;
        let event = event.expect("something happens").expect("the runtime is there");
        match event {
            Event::Session(state) => drop(self.sessions.insert(state.name.clone(), state)),
            Event::Instance(state) => drop(self.instances.insert(state.name.clone(), state)),
        }
    }

    /// Waits until an instance is reported in a phase.
    pub(super) async fn until(&mut self, name: &str, phase: InstancePhase) -> InstanceState {
        loop {
            if let Some(state) = self.instances.get(name) {
                if state.phase() == phase {
                    return state.clone();
                }
                let over = state.phase() == InstancePhase::Terminated;
                assert!(!over, "{name} is over: {} {}", state.reason, state.message);
            }
            self.next().await;
        }
    }

    /// Waits until a session is reported in a phase.
    pub(super) async fn session(&mut self, name: &str, phase: SessionPhase) -> SessionState {
        loop {
            match self.sessions.get(name) {
                Some(state) if state.phase() == phase => return state.clone(),
                _ => self.next().await,
            };
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let ids = self.shared.ledger().ids();
        for id in ids {
            if let Ok(record) = self.shared.ledger().get(&id) {
                let group = &record.own.group;
                group.kill(record.own.alive.pid);
                let gone = |_: &u32| {
                    std::thread::sleep(Duration::from_millis(5));
                    group.remove().is_ok()
                };
                (0..200).find(gone);
            }
        }
        self.shared.cgroups.remove();
    }
}

/// A filesystem that is soon full.
pub(super) struct SmallDisk(TempDir);

impl SmallDisk {
    pub(super) fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder.path());
        mount.status().ok()?.success().then_some(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all the room there is.
    pub(super) fn fill(&self) -> PathBuf {
        use std::io::Write;
        let place = self.path().join("filling");
        let mut file = fs::File::create(&place).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        place
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
