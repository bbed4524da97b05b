//! Starts a process so that it is never left half-started.
//!
//! The process waits at a gate until the agent has put it into its control group and has written
//! its state file; only then it becomes the program. If the agent is killed before that, the gate
//! closes, and the process ends without having run the program. It is in a session of its
//! own, and its output goes to its log without the agent, so it does not end with the agent.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use mainstay_sessions::api::Container;
use rustix::process::Pid;

use super::logs;
use crate::instances::{Error, Start};
use crate::private;

/// Where programs are looked for when the environment does not say.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Waits for a line, then becomes the program.
const GATE: &str = "read -r go || exit 125; exec \"$@\" </dev/null";

/// How often and how long to check that a process leads its group.
const LEADING: (usize, Duration) = (5_000, Duration::from_millis(1));

/// A process that waits at the gate. Dropped without being let go, it ends.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) pid: Pid,
    gate: std::process::ChildStdin,
}

impl Waiting {
    /// Lets the process become the program.
    pub(super) fn go(mut self) -> io::Result<()> {
        self.gate.write_all(b"go\n")
    }
}

/// A user by number, and their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Looks up a user in the text of /etc/passwd: by name, or by number, which need not be in it.
fn user_in(table: &str, wanted: &str) -> Option<User> {
    let number = wanted.parse().ok();
    let line = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let (name, uid) = (*fields.first()?, fields.get(2)?.parse().ok()?);
        let gid = fields.get(3)?.parse().ok()?;
        (name == wanted || number == Some(uid)).then_some(User { uid, gid })
    };
    table.lines().find_map(line).or(number.map(|uid| User { uid, gid: uid }))
}

/// The user an instance runs as, if not the agent's.
pub(super) fn user(container: &Container) -> Result<Option<User>, Error> {
    let Some(wanted) = &container.user else { return Ok(None) };
    let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = user_in(&table, wanted);
    let why = || Error::Invalid(format!("there is no user {wanted} on this node"));
    found.map(Some).ok_or_else(why)
}

/// The value of PATH for a process: its own, or the agent's.
fn path_of(container: &Container) -> OsString {
    let own = container.env.iter().rev().find(|variable| variable.name == "PATH");
    let agents = || std::env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    own.map_or_else(agents, |own| own.value.clone().into())
}

/// Where a program is, looked up in PATH unless it names a place.
fn find(program: &str, path: &OsStr, folder: &Path) -> Result<PathBuf, Error> {
    if program.contains('/') {
        let place = folder.join(program);
        return if place.is_file() {
            Ok(place)
        } else {
            Err(Error::Invalid(format!("there is no program {program} on this node")))
        };
    }
    let runs = |place: &PathBuf| {
        let facts = fs::metadata(place);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|folder| folder.join(program)).find(runs).ok_or_else(|| {
        Error::Invalid(format!("the command {program} is not found in PATH on this node"))
    })
}

/// An error about files that are the instance's own, or about the disk under them.
pub(super) fn trouble(what: &str, error: &io::Error) -> Error {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) {
        return Error::Exhausted(format!(
            "{what} cannot be written on this node: {error}; make room under the agent's state folder"
        ));
    }
    Error::Failed(format!("{what} cannot be written on this node: {error}"))
}

/// Makes the folder of an instance: its log, its settings and the folder it works in.
pub(super) fn prepare(folder: &Path, start: &Start, user: Option<User>) -> Result<File, Error> {
    for name in start.process.config_data.keys() {
        if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(Error::Invalid(format!("configData: {name:?} cannot be a file's name")));
        }
    }
    let made = (|| {
        for above in [folder.parent(), Some(folder)].into_iter().flatten() {
            private::passed_folder(above)?;
        }
        private::folder(&folder.join("work"))?;
        private::folder(&folder.join("config"))?;
        let mut own = Vec::new();
        for (name, value) in &start.process.config_data {
            let file = folder.join("config").join(name);
            private::write(&file, value.as_bytes())?;
            own.push(file);
        }
        // Folders last: from then on the user could put links there.
        own.extend([folder.join("work"), folder.join("config")]);
        if let Some(user) = user {
            for place in own {
                lchown(place, Some(user.uid), Some(user.gid))?;
            }
        }
        logs::create(folder)
    })();
    made.map_err(|error| trouble("the instance's folder", &error))
}

/// The environment that the agent gives beside the container's own.
pub(super) fn environment(
    start: &Start,
    folder: &Path,
    ports: &[u16],
    socket: Option<&Path>,
) -> Vec<(String, OsString)> {
    let container = &start.process.process;
    let mut all: Vec<(String, OsString)> = vec![
        ("PATH".to_owned(), path_of(container)),
        ("HOME".to_owned(), folder.join("work").into()),
        ("MAINSTAY_INSTANCE".to_owned(), start.id.name.clone().into()),
        ("MAINSTAY_NAMESPACE".to_owned(), start.id.namespace.clone().into()),
        ("MAINSTAY_APPLICATION".to_owned(), start.application.clone().into()),
        ("MAINSTAY_CONFIG_DIR".to_owned(), folder.join("config").into()),
    ];
    if let Some(socket) = socket {
        all.push(("MAINSTAY_SESSION_SOCKET".to_owned(), socket.into()));
    }
    if let Some(first) = ports.first() {
        all.push(("PORT".to_owned(), first.to_string().into()));
    }
    for (port, number) in
        container.ports.iter().zip(ports).filter(|(port, _)| !port.name.is_empty())
    {
        let name = port.name.to_uppercase().replace('-', "_");
        all.push((format!("PORT_{name}"), number.to_string().into()));
    }
    let plain = container.env.iter().filter(|own| own.value_from.is_none());
    all.extend(plain.map(|own| (own.name.clone(), own.value.clone().into())));
    let secret =
        |(name, value): (&String, &Vec<u8>)| (name.clone(), OsString::from_vec(value.clone()));
    all.extend(start.secrets.iter().map(secret));
    all.retain(|(name, value)| {
        let bytes = value.as_encoded_bytes();
        !name.is_empty() && !name.contains(['=', '\0']) && !bytes.contains(&0)
    });
    all
}

/// Starts the process as far as the gate.
pub(super) fn spawn(
    start: &Start,
    folder: &Path,
    log: &File,
    environment: Vec<(String, OsString)>,
    user: Option<User>,
) -> Result<Waiting, Error> {
    let container = &start.process.process;
    let own = folder.join("work");
    let working = container.working_dir.as_ref().map_or(own, PathBuf::from);
    if !working.is_dir() {
        let shown = working.display();
        return Err(Error::Invalid(format!("the working folder {shown} is not on this node")));
    }
    let mut words = container.command.iter().chain(&container.args);
    let Some(program) = words.next() else {
        return Err(Error::Invalid(format!("instance {} has no command", start.id)));
    };
    let path = path_of(container);
    let program = find(program, &path, &working)?;
    let agents = std::env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    let mut command = match find("setsid", &agents, Path::new("/")) {
        Ok(setsid) => {
            let mut command = Command::new(setsid);
            command.arg("/bin/sh");
            command
        }
        Err(_) => {
            let mut command = Command::new("/bin/sh");
            command.process_group(0);
            command
        }
    };
    command.args(["-c", GATE, "instance"]).arg(program).args(words);
    command.env_clear().envs(environment).current_dir(&working).stdin(Stdio::piped());
    let output = || log.try_clone().map_err(|error| Error::Exhausted(error.to_string()));
    command.stdout(output()?).stderr(output()?);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            Error::Exhausted(format!("this node cannot start another process: {error}"))
        }
        _ => Error::Failed(format!("the process cannot be started: {error}")),
    })?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    match (pid, child.stdin.take()) {
        (Some(pid), Some(gate)) => {
            leads(pid);
            Ok(Waiting { pid, gate })
        }
        _ => Err(Error::Failed("the process has no number".to_owned())),
    }
}

/// Waits until a process leads a group of its own: before that a signal to the group reaches no process.
/// It does so within its first steps, or has ended.
fn leads(pid: Pid) {
    for _ in 0..LEADING.0 {
        match rustix::process::getpgid(Some(pid)) {
            Ok(group) if group != pid => std::thread::sleep(LEADING.1),
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_by_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\ngame:x:1001:1002::/:/bin/false\n";
        for (wanted, expected) in [
            ("root", Some((0, 0))),
            ("game", Some((1001, 1002))),
            ("1001", Some((1001, 1002))),
            ("4321", Some((4321, 4321))),
            ("nobody-here", None),
            ("-1", None),
            ("", None),
        ] {
            let found = user_in(table, wanted).map(|user| (user.uid, user.gid));
            assert_eq!(found, expected, "{wanted}");
        }
    }

    #[test]
    fn a_full_disk_is_exhausted_and_other_trouble_is_not() {
        let full = trouble("x", &io::ErrorKind::StorageFull.into());
        assert!(matches!(full, Error::Exhausted(_)), "{full}");
        let denied = trouble("x", &io::ErrorKind::PermissionDenied.into());
        assert!(matches!(denied, Error::Failed(_)), "{denied}");
    }
}
