//! The state file of an instance, by which the next agent finds it: small, and replaced atomically.
//!
//! It must survive the end of the agent, not that of the machine: so it is renamed into place but
//! not synced, and carries the machine's boot id. Processes that had the same
//! number one after the other are distinguished by their start times.

use std::fs;
use std::io;
use std::path::Path;

use mainstay_sessions::api::Protocol;
use mainstay_sessions::protocol::{
    Client, Endpoint, InstancePhase, InstanceState, SessionPhase, SessionState, Template,
};
use mainstay_sessions::secrets::SecretValues;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::instances::ledger::Session;
use crate::instances::{Id, Start};
use crate::private;

/// The file's name in an instance's folder.
const FILE: &str = "state.json";

/// An instance, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Saved {
    pub(super) boot: String,
    pub(super) pid: i32,
    pub(super) started: u64,
    namespace: String,
    name: String,
    application: String,
    template: String,
    process: Template,
    cpu_milli: u64,
    memory_bytes: u64,
    pub(super) standby: bool,
    phase: i32,
    endpoints: Vec<SavedEndpoint>,
    pub(super) ports: Vec<u16>,
    session: Option<SavedSession>,
    /// The number of the session service's newest state.
    pub(super) seen: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedEndpoint {
    name: String,
    protocol: Protocol,
    address: String,
    port: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedSession {
    name: String,
    phase: i32,
    data: String,
    external_port: u32,
    grace_seconds: u32,
    clients: Vec<(String, i64)>,
    reason: String,
    message: String,
    /// In hexadecimal: it comes from the server and need not be text.
    object: String,
}

/// The process of an instance, and what else is its own.
#[derive(Clone, Debug)]
pub(super) struct Alive {
    pub(super) pid: Pid,
    pub(super) started: u64,
    pub(super) ports: Vec<u16>,
    pub(super) standby: bool,
    pub(super) seen: u64,
}

impl Saved {
    /// The state to write.
    pub(super) fn of(
        boot: &str,
        start: &Start,
        alive: &Alive,
        state: &InstanceState,
        session: Option<&Session>,
    ) -> Self {
        Self {
            boot: boot.to_owned(),
            pid: alive.pid.as_raw_nonzero().get(),
            started: alive.started,
            namespace: start.id.namespace.clone(),
            name: start.id.name.clone(),
            application: start.application.clone(),
            template: start.template.clone(),
            process: start.process.clone(),
            cpu_milli: start.cpu_milli,
            memory_bytes: start.memory_bytes,
            standby: alive.standby,
            phase: state.phase,
            endpoints: state.endpoints.iter().map(saved_endpoint).collect(),
            ports: alive.ports.clone(),
            session: session.map(saved_session),
            seen: alive.seen,
        }
    }

    /// The instance to start.
    pub(super) fn start(&self) -> Start {
        Start {
            id: Id::new(&self.namespace, &self.name),
            application: self.application.clone(),
            template: self.template.clone(),
            process: self.process.clone(),
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            standby: self.standby,
            // Its process has them; nothing else needs them.
            secrets: SecretValues::default(),
        }
    }

    /// Its phase.
    pub(super) fn state(&self) -> InstanceState {
        let mut state = crate::instances::ledger::beginning(&self.start());
        let phase = InstancePhase::try_from(self.phase).unwrap_or(InstancePhase::Creating);
        state.set_phase(phase);
        let endpoint = |saved: &SavedEndpoint| Endpoint {
            name: saved.name.clone(),
            udp: saved.protocol == Protocol::Udp,
            address: saved.address.clone(),
            port: saved.port,
        };
        state.endpoints = self.endpoints.iter().map(endpoint).collect();
        state
    }

    /// The session it had.
    pub(super) fn session(&self) -> Option<Session> {
        let saved = self.session.as_ref()?;
        let client =
            |(id, joined): &(String, i64)| Client { id: id.clone(), joined_micros: *joined };
        let phase = SessionPhase::try_from(saved.phase).unwrap_or(SessionPhase::Initializing);
        let state = SessionState {
            namespace: self.namespace.clone(),
            name: saved.name.clone(),
            application: self.application.clone(),
            instance: self.name.clone(),
            phase: phase.into(),
            clients: saved.clients.iter().map(client).collect(),
            external_port: saved.external_port,
            reason: saved.reason.clone(),
            message: saved.message.clone(),
            object: bytes_of(&saved.object),
        };
        let (data, grace_seconds) = (saved.data.clone(), saved.grace_seconds);
        Some(Session { state, data, grace_seconds })
    }

    /// Writes the file as a whole or not at all.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let beside = folder.join("state.new");
        let written = private::write(&beside, &serde_json::to_vec(self)?)
            .and_then(|()| fs::rename(&beside, folder.join(FILE)));
        if written.is_err() {
            // A partial file would only use disk space.
            let _ = fs::remove_file(&beside);
        }
        written
    }

    /// Reads the state file; `None` if there is none.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the file, so that the next agent does not adopt the instance.
    pub(super) fn forget(folder: &Path) {
        if let Err(error) = fs::remove_file(folder.join(FILE))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), %error, "removing the folder of an ended instance failed");
        }
    }
}

fn saved_endpoint(endpoint: &Endpoint) -> SavedEndpoint {
    SavedEndpoint {
        name: endpoint.name.clone(),
        protocol: if endpoint.udp { Protocol::Udp } else { Protocol::Tcp },
        address: endpoint.address.clone(),
        port: endpoint.port,
    }
}

fn saved_session(session: &Session) -> SavedSession {
    let state = &session.state;
    let hexadecimal = hex::encode(&state.object);
    SavedSession {
        name: state.name.clone(),
        phase: state.phase,
        data: session.data.clone(),
        external_port: state.external_port,
        grace_seconds: session.grace_seconds,
        clients: state.clients.iter().map(|c| (c.id.clone(), c.joined_micros)).collect(),
        reason: state.reason.clone(),
        message: state.message.clone(),
        object: hexadecimal,
    }
}

fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    hex::decode(hexadecimal).unwrap_or_default()
}

/// Which run of the machine this is.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The start time of a running process, in the kernel's ticks; `None` if there is none, or only a
/// zombie.
pub(super) fn started(pid: Pid) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is the program's name, which may hold anything, closing brackets too.
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let state = fields.first()?;
    if matches!(*state, "Z" | "X" | "x") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_is_read_as_it_was_written() {
        let start = Start {
            id: Id::new("default", "a"),
            application: "app".to_owned(),
            template: "t".to_owned(),
            process: Template::default(),
            cpu_milli: 5,
            memory_bytes: 6,
            standby: true,
            secrets: SecretValues::default(),
        };
        let pid = rustix::process::getpid();
        let begun = started(pid).unwrap();
        let alive = Alive { pid, started: begun, ports: vec![20_000], standby: true, seen: 4 };
        let mut state = crate::instances::ledger::beginning(&start);
        state.set_phase(InstancePhase::Standby);
        let endpoint =
            Endpoint { name: "web".to_owned(), udp: true, address: "h".to_owned(), port: 20_000 };
        state.endpoints = vec![endpoint];
        let session = Session {
            state: SessionState {
                namespace: "default".to_owned(),
                name: "s".to_owned(),
                application: "app".to_owned(),
                instance: "a".to_owned(),
                phase: SessionPhase::Closing.into(),
                clients: vec![Client { id: "c".to_owned(), joined_micros: 3 }],
                external_port: 30_000,
                reason: "r".to_owned(),
                message: "m".to_owned(),
                object: vec![0, 255, b'{'],
            },
            data: "d".to_owned(),
            grace_seconds: 9,
        };
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Saved::read(folder.path()).unwrap(), None);
        let saved = Saved::of("boot", &start, &alive, &state, Some(&session));
        saved.write(folder.path()).unwrap();
        let back = Saved::read(folder.path()).unwrap().unwrap();
        assert_eq!((back.start(), back.state(), back.session()), (start, state, Some(session)));
        Saved::forget(folder.path());
        assert_eq!(Saved::read(folder.path()).unwrap(), None);
        fs::write(folder.path().join(FILE), "{").unwrap();
        Saved::read(folder.path()).unwrap_err();
    }
}
