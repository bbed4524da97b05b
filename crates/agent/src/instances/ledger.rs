//! The instances of a node, their phases and their sessions: plain data, and the only place where a
//! phase changes. A runtime (of processes, or simulated) checks a command here first and records its
//! result here. `X` is the runtime's own part of an instance's record.

use std::collections::HashMap;

use mainstay_sessions::protocol::{
    Client, InstancePhase, InstanceState, OpenSession, Report, SessionPhase, SessionState,
};

use super::outbox::Outbox;
use super::{Error, Event, Id, Start, reason};

/// A session at its instance.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Session {
    /// Its state, with its object.
    pub(super) state: SessionState,
    /// The data for the application.
    pub(super) data: String,
    /// How long closing may take, once it is closing.
    pub(super) grace_seconds: u32,
}

/// An instance.
#[derive(Debug)]
pub(super) struct Record<X> {
    pub(super) state: InstanceState,
    pub(super) session: Option<Box<Session>>,
    pub(super) own: X,
}

/// Whether a command changed something, or repeats an earlier one and is only reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    New,
    Again,
}

/// All instances of a node.
#[derive(Debug)]
pub(super) struct Ledger<X> {
    records: HashMap<Id, Record<X>>,
    outbox: Outbox,
}

/// The first event of a new instance.
pub(super) fn beginning(start: &Start) -> InstanceState {
    InstanceState {
        namespace: start.id.namespace.clone(),
        name: start.id.name.clone(),
        application: start.application.clone(),
        template: start.template.clone(),
        phase: InstancePhase::Creating.into(),
        cpu_milli: start.cpu_milli,
        memory_bytes: start.memory_bytes,
        endpoints: Vec::new(),
        reason: String::new(),
        message: String::new(),
    }
}

fn id_of(state: &InstanceState) -> Id {
    Id::new(&state.namespace, &state.name)
}

/// The event of a session, without its object: the server that opened it has it.
fn told(session: &Session) -> Event {
    let state = &session.state;
    Event::Session(SessionState {
        namespace: state.namespace.clone(),
        name: state.name.clone(),
        application: state.application.clone(),
        instance: state.instance.clone(),
        phase: state.phase,
        clients: state.clients.clone(),
        external_port: state.external_port,
        reason: state.reason.clone(),
        message: state.message.clone(),
        object: Vec::new(),
    })
}

impl<X> Ledger<X> {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { records: HashMap::new(), outbox }
    }

    /// The record of an instance.
    pub(super) fn get(&self, id: &Id) -> Result<&Record<X>, Error> {
        self.records.get(id).ok_or_else(|| missing("instance", id))
    }

    /// Same, to change what the runtime keeps with it.
    pub(super) fn get_mut(&mut self, id: &Id) -> Result<&mut Record<X>, Error> {
        self.records.get_mut(id).ok_or_else(|| missing("instance", id))
    }

    /// Whether an instance of that name and template exists already; its state is then reported
    /// again. With another template it is a conflict.
    pub(super) fn known(&self, start: &Start) -> Result<Done, Error> {
        let Some(record) = self.records.get(&start.id) else { return Ok(Done::New) };
        if record.state.template != start.template {
            return Err(Error::Conflict(format!(
                "instance {} runs another template ({}, not {})",
                start.id, record.state.template, start.template
            )));
        }
        self.outbox.say(Event::Instance(record.state.clone()));
        Ok(Done::Again)
    }

    /// Adds an instance in its current phase, and reports it.
    pub(super) fn add(&mut self, record: Record<X>) {
        self.outbox.say(Event::Instance(record.state.clone()));
        self.records.insert(id_of(&record.state), record);
    }

    /// Moves an instance from one of `from` to `to`. In any other phase nothing changes: returns `Again`.
    pub(super) fn step(
        &mut self,
        id: &Id,
        from: &[InstancePhase],
        to: InstancePhase,
    ) -> Result<Done, Error> {
        let outbox = self.outbox.clone();
        let record = self.get_mut(id)?;
        if !from.contains(&record.state.phase()) {
            return Ok(Done::Again);
        }
        record.state.set_phase(to);
        outbox.say(Event::Instance(record.state.clone()));
        Ok(Done::New)
    }

    /// Refuses what cannot be done to an instance that ends or has a session.
    pub(super) fn idle(&self, id: &Id) -> Result<&Record<X>, Error> {
        let record = self.alive(id)?;
        match &record.session {
            Some(session) => Err(Error::Conflict(format!(
                "instance {id} has session {} and cannot be frozen",
                session.state.name
            ))),
            None => Ok(record),
        }
    }

    /// Refuses what cannot be done to an instance that ends.
    pub(super) fn alive(&self, id: &Id) -> Result<&Record<X>, Error> {
        let record = self.get(id)?;
        if record.state.phase() >= InstancePhase::Terminating {
            return Err(Error::Conflict(format!("instance {id} is ending")));
        }
        Ok(record)
    }

    /// Gives a session to an instance: Initializing.
    pub(super) fn open(&mut self, open: OpenSession) -> Result<Done, Error> {
        let id = Id::new(&open.namespace, &open.instance);
        let record = self.alive(&id)?;
        if let Some(session) = &record.session {
            if session.state.name != open.name {
                return Err(Error::Conflict(format!(
                    "instance {id} has session {} already",
                    session.state.name
                )));
            }
            self.outbox.say(told(session));
            return Ok(Done::Again);
        }
        let state = SessionState {
            namespace: open.namespace,
            name: open.name,
            application: record.state.application.clone(),
            instance: open.instance,
            phase: SessionPhase::Initializing.into(),
            clients: Vec::new(),
            external_port: open.external_port,
            reason: String::new(),
            message: String::new(),
            object: open.object,
        };
        let session = Session { state, data: open.session_data, grace_seconds: 0 };
        self.outbox.say(told(&session));
        self.get_mut(&id)?.session = Some(Box::new(session));
        Ok(Done::New)
    }

    /// The session `name` of an instance, to change it.
    fn session(&mut self, id: &Id, name: &str) -> Option<&mut Session> {
        let session = self.records.get_mut(id)?.session.as_deref_mut()?;
        (session.state.name == name).then_some(session)
    }

    /// The name and phase of an instance's session.
    pub(super) fn session_of(&self, id: &Id) -> Option<(String, SessionPhase)> {
        let session = self.records.get(id)?.session.as_deref()?;
        Some((session.state.name.clone(), session.state.phase()))
    }

    /// A session that was initializing is open.
    pub(super) fn opened(&mut self, id: &Id, name: &str) -> bool {
        self.session_step(id, name, &[SessionPhase::Initializing], SessionPhase::Open)
    }

    /// Begins to close the session `name`.
    pub(super) fn closing(&mut self, id: &Id, name: &str, grace: u32) -> Result<Done, Error> {
        let gone = missing("session", &Id::new(&id.namespace, name));
        let session = self.session(id, name).ok_or(gone)?;
        session.grace_seconds = grace;
        let from = [SessionPhase::Initializing, SessionPhase::Open, SessionPhase::NoHeartbeat];
        let new = self.session_step(id, name, &from, SessionPhase::Closing);
        Ok(if new { Done::New } else { Done::Again })
    }

    /// The instance missed its pings for too long.
    pub(super) fn silent(&mut self, id: &Id, name: &str, message: String) -> bool {
        if let Some(session) = self.session(id, name) {
            reason::NO_HEARTBEAT.clone_into(&mut session.state.reason);
            session.state.message = message;
        }
        let from = [SessionPhase::Initializing, SessionPhase::Open];
        self.session_step(id, name, &from, SessionPhase::NoHeartbeat)
    }

    fn session_step(
        &mut self,
        id: &Id,
        name: &str,
        from: &[SessionPhase],
        to: SessionPhase,
    ) -> bool {
        let outbox = self.outbox.clone();
        match self.session(id, name) {
            Some(session) if from.contains(&session.state.phase()) => {
                session.state.set_phase(to);
                outbox.say(told(session));
                true
            }
            _ => false,
        }
    }

    /// Sets the clients that are connected to an instance's session.
    pub(super) fn clients(&mut self, id: &Id, name: &str, clients: Vec<Client>) -> bool {
        let outbox = self.outbox.clone();
        match self.session(id, name) {
            Some(session) => {
                session.state.clients = clients;
                outbox.say(told(session));
                true
            }
            None => false,
        }
    }

    /// An instance's session is over.
    pub(super) fn closed(&mut self, id: &Id, name: &str, why: &str, message: String) -> bool {
        if self.session(id, name).is_none() {
            return false;
        }
        let taken = self.records.get_mut(id).and_then(|record| record.session.take());
        if let Some(session) = taken {
            self.over(*session, why, message);
        }
        true
    }

    fn over(&self, mut session: Session, why: &str, message: String) {
        session.state.set_phase(SessionPhase::Closed);
        session.state.clients.clear();
        why.clone_into(&mut session.state.reason);
        session.state.message = message;
        self.outbox.say(told(&session));
    }

    /// An instance is over, and its session with it.
    pub(super) fn ended(&mut self, id: &Id, why: &str, message: String) -> Option<Record<X>> {
        let mut record = self.records.remove(id)?;
        if let Some(session) = record.session.take() {
            let said = format!("its instance ended: {message}");
            self.over(*session, reason::INSTANCE_ENDED, said);
        }
        record.state.set_phase(InstancePhase::Terminated);
        why.clone_into(&mut record.state.reason);
        record.state.message = message;
        self.outbox.say(Event::Instance(record.state.clone()));
        Some(record)
    }

    /// Which instances there are.
    pub(super) fn ids(&self) -> Vec<Id> {
        self.records.keys().cloned().collect()
    }

    /// Everything, in the order of names.
    pub(super) fn report(&self) -> Report {
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_by_key(|(id, _)| *id);
        let mut report = Report::default();
        for (_, record) in records {
            report.instances.push(record.state.clone());
            report.sessions.extend(record.session.iter().map(|session| session.state.clone()));
        }
        self.outbox.report(&mut report);
        report
    }
}

fn missing(kind: &'static str, id: &Id) -> Error {
    Error::NotFound { kind, namespace: id.namespace.clone(), name: id.name.clone() }
}
