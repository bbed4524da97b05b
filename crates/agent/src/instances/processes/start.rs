//! Starts an instance: ports, folder, control groups, the gate, and the state file; a failure
//! leaves none of them behind.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstay_sessions::api::{Port, Protocol};
use mainstay_sessions::protocol::Endpoint;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixListener;

use super::cgroups::Group;
use super::state::{self, Alive, Saved};
use super::{ProcessRecord, Shared, lock, plain, service, short_hash, spawn, supervise};
use crate::instances::ledger::{Record, beginning};
use crate::instances::{Error, Id, Start};

impl Shared {
    /// Ports for an instance, in the order of its template.
    fn take_ports(&self, id: &Id, wanted: &[Port]) -> Result<Vec<u16>, Error> {
        let mut ports = lock(&self.ports);
        let mut taken = Vec::new();
        for port in wanted {
            let got = match port.container_port {
                Some(number) => match u16::try_from(number) {
                    Ok(number) if ports.take(number, port.protocol) => Ok(number),
                    _ => Err(format!("port {number} is in use on this node")),
                },
                None => ports.any(port.protocol).ok_or_else(|| {
                    let range = &self.options.ports;
                    format!("no port of {}-{} is free on this node", range.start(), range.end())
                }),
            };
            match got {
                Ok(number) => taken.push(number),
                Err(why) => {
                    taken.iter().for_each(|port| ports.free(*port));
                    return Err(Error::Exhausted(format!("instance {id}: {why}")));
                }
            }
        }
        Ok(taken)
    }

    /// Starts an instance that is not there yet; on failure nothing is left of it.
    pub(super) fn begin(self: &Arc<Self>, start: Start) -> Result<(), Error> {
        let id = start.id.clone();
        if !plain(&id.namespace) || !plain(&id.name) {
            return Err(Error::Invalid(format!("instance {id} has no name for a folder")));
        }
        supervise::readiness_is_possible(&start)?;
        let folder = self.folder(&id);
        // The log of an earlier one of that name.
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(spawn::trouble("the instance's folder", &error));
        }
        let ports = self.take_ports(&id, &start.process.process.ports)?;
        self.launch(start, ports.clone()).inspect_err(|_| {
            let mut all = lock(&self.ports);
            ports.iter().for_each(|port| all.free(*port));
            // A folder that cannot be removed now is removed with those of ended instances.
            let _ = fs::remove_dir_all(&folder);
        })
    }

    fn launch(self: &Arc<Self>, start: Start, ports: Vec<u16>) -> Result<(), Error> {
        let start = Arc::new(start);
        let (id, folder) = (start.id.clone(), self.folder(&start.id));
        let user = spawn::user(&start.process.process)?;
        let log = spawn::prepare(&folder, &start, user)?;
        let socket = service::place(&self.options.folder.join("sockets"), &id);
        let uses = start.process.using_node_session_service;
        let listener = if uses {
            let bound = service::bind(&socket, user);
            Some(bound.map_err(|error| spawn::trouble("the session service's socket", &error))?)
        } else {
            None
        };
        let environment = spawn::environment(&start, &folder, &ports, uses.then_some(&*socket));
        let waiting = spawn::spawn(&start, &folder, &log, environment, user)?;
        let pid = waiting.pid;
        let group = self.enclose(&id, &start, pid);
        let mut state = beginning(&start);
        let endpoint = |(port, number): (&Port, &u16)| Endpoint {
            name: port.name.clone(),
            udp: port.protocol == Protocol::Udp,
            address: self.options.address.clone(),
            port: u32::from(*number),
        };
        state.endpoints = start.process.process.ports.iter().zip(&ports).map(endpoint).collect();
        let opened = pidfd_open(pid, PidfdFlags::NONBLOCK);
        let written = opened.map_err(io::Error::from).and_then(|pidfd| {
            let started = state::started(pid)
                .ok_or_else(|| io::Error::other("the process ended before it began"))?;
            let standby = start.standby;
            let alive = Alive { pid, started, ports, standby, seen: 0 };
            Saved::of(&self.boot, &start, &alive, &state, None).write(&folder)?;
            Ok((pidfd, alive))
        });
        let (pidfd, alive) = match written {
            Ok(written) => written,
            Err(error) => {
                drop(waiting);
                supervise::abandon(pid, &group);
                return Err(spawn::trouble("the instance's state", &error));
            }
        };
        let own = ProcessRecord::new(start, alive, group, &*self.clock);
        self.ledger().add(Record { state, session: None, own });
        if let Err(error) = waiting.go() {
            tracing::warn!(instance = %id, %error, "a process ended before its program was executed");
        }
        self.look_after(&id, pidfd, listener);
        Ok(())
    }

    /// Puts a process into groups of its own, as far as there are any.
    fn enclose(&self, id: &Id, start: &Start, pid: Pid) -> Group {
        let (cpu, memory) = start.process.process.resources.limited();
        let missing = self.cgroups.missing();
        let wanted = [("cpu", cpu.is_some()), ("memory", memory.is_some())];
        let cannot = wanted.iter().any(|(what, wanted)| *wanted && missing.contains(what));
        if cannot && !self.unlimited.swap(true, Ordering::Relaxed) {
            let missing = missing.join(" and ");
            tracing::warn!(
                missing,
                "this machine has no control groups for some limits; not enforcing them"
            );
        }
        let group = self.cgroups.group(&short_hash(&id.to_string()));
        for failed in group.limit(cpu, memory) {
            tracing::warn!(instance = %id, %failed, "setting a limit failed");
        }
        match group.enter(pid) {
            Ok(()) => group,
            Err(error) => {
                tracing::warn!(instance = %id, %error, "moving an instance into its control group failed");
                let _ = group.remove();
                Group::default()
            }
        }
    }

    /// Begins the tasks of an instance.
    pub(super) fn look_after(
        self: &Arc<Self>,
        id: &Id,
        pidfd: OwnedFd,
        listener: Option<UnixListener>,
    ) {
        let ledger = self.ledger();
        let Ok(record) = ledger.get(id) else { return };
        let (service, gone) = (record.own.service.clone(), record.own.gone.clone());
        drop(ledger);
        self.tasks.spawn(supervise::supervise(self.clone(), id.clone(), pidfd));
        if let Some(service) = service {
            let (life, lives) = (service.clone(), gone.clone());
            self.tasks.spawn(service::listen_for_life(self.clone(), id.clone(), life, lives));
            if let Some(listener) = listener {
                let serving = service::serve(self.clone(), id.clone(), service, listener, gone);
                self.tasks.spawn(serving);
            }
        }
    }
}
