//! A runtime that only pretends: no processes, set delays. It costs a few hundred bytes for an
//! instance and nothing while nothing happens, so that one program can be thousands of nodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use mainstay_clock::Clock;
use mainstay_sessions::api::Protocol;
use mainstay_sessions::protocol::{
    CloseSession, Endpoint, InstancePhase, OpenSession, ReadLog, Report,
};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ledger::{Done, Ledger, Record, beginning};
use super::outbox::Outbox;
use super::{Error, Events, Id, Log, Runtime, Start, reason};

/// How long things take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From Creating to Running or Standby.
    pub start: Duration,
    /// From Terminating to Terminated.
    pub stop: Duration,
    /// From frozen to Running.
    pub thaw: Duration,
    /// From Initializing to Open, and from Closing to Closed.
    pub session: Duration,
}

/// The pretending runtime. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Simulated {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    delays: Delays,
    clock: Arc<dyn Clock>,
    ledger: Mutex<Ledger<SimulatedRecord>>,
    outbox: Outbox,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The part of an instance's record that only this runtime has.
#[derive(Clone, Copy, Debug)]
struct SimulatedRecord {
    standby: bool,
}

/// The ports of pretended instances begin here.
const FIRST_PORT: u32 = 20_000;

impl Simulated {
    /// A node without instances.
    #[must_use]
    pub fn new(delays: Delays, clock: Arc<dyn Clock>) -> (Self, Events) {
        let (outbox, events) = Outbox::new();
        let shared = Shared {
            delays,
            clock,
            ledger: Mutex::new(Ledger::new(outbox.clone())),
            outbox,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        (Self { shared: Arc::new(shared) }, events)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<SimulatedRecord>> {
        self.shared.ledger.lock()
    }

    /// Does something after a delay; at once if there is none.
    fn after(&self, delay: Duration, then: impl FnOnce(&Self) + Send + 'static) {
        if delay.is_zero() {
            then(self);
            return;
        }
        let (this, sleep) = (self.clone(), self.shared.clock.sleep(delay));
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = sleep => then(&this),
                () = this.shared.stop.cancelled() => {}
            }
        });
    }

    fn ready(&self, id: &Id) {
        let mut ledger = self.ledger();
        let frozen = ledger.get(id).is_ok_and(|record| record.own.standby)
            && ledger.session_of(id).is_none();
        let to = if frozen { InstancePhase::Standby } else { InstancePhase::Running };
        let stepped = ledger.step(id, &[InstancePhase::Creating], to);
        let waiting = ledger.session_of(id);
        drop(ledger);
        if let (Ok(Done::New), Some((session, _))) = (stepped, waiting) {
            self.open_later(id.clone(), session);
        }
    }

    fn open_later(&self, id: Id, session: String) {
        self.after(self.shared.delays.session, move |this| {
            this.ledger().opened(&id, &session);
        });
    }

    /// Begins to thaw, and gives what it takes.
    fn thawing(&self, id: &Id) -> Result<Duration, Error> {
        let mut ledger = self.ledger();
        ledger.alive(id)?;
        let kept = &mut ledger.get_mut(id)?.own;
        kept.standby = false;
        match ledger.step(id, &[InstancePhase::Standby], InstancePhase::Activating)? {
            Done::Again => Ok(Duration::ZERO),
            Done::New => {
                drop(ledger);
                let id = id.clone();
                self.after(self.shared.delays.thaw, move |this| {
                    let from = [InstancePhase::Activating];
                    // It may have been stopped meanwhile: then this is too late, and nothing.
                    let _ = this.ledger().step(&id, &from, InstancePhase::Running);
                });
                Ok(self.shared.delays.thaw)
            }
        }
    }

    fn start_now(&self, start: &Start) -> Result<(), Error> {
        let mut ledger = self.ledger();
        if ledger.known(start)? == Done::Again {
            return Ok(());
        }
        let mut state = beginning(start);
        let endpoint = |(port, number): (&mainstay_sessions::api::Port, u32)| Endpoint {
            name: port.name.clone(),
            udp: port.protocol == Protocol::Udp,
            address: "127.0.0.1".to_owned(),
            port: port.container_port.and_then(|port| u32::try_from(port).ok()).unwrap_or(number),
        };
        state.endpoints =
            start.process.process.ports.iter().zip(FIRST_PORT..).map(endpoint).collect();
        ledger.add(Record {
            state,
            session: None,
            own: SimulatedRecord { standby: start.standby },
        });
        drop(ledger);
        let id = start.id.clone();
        self.after(self.shared.delays.start, move |this| this.ready(&id));
        Ok(())
    }

    fn stop_now(&self, id: Id) -> Result<(), Error> {
        use InstancePhase::{Activating, Creating, Evacuating, Running, Standby, Terminating};
        let from = [Creating, Standby, Activating, Running, Evacuating];
        if self.ledger().step(&id, &from, Terminating)? == Done::New {
            self.after(self.shared.delays.stop, move |this| {
                this.ledger().ended(&id, reason::STOPPED, "it was asked to stop".to_owned());
            });
        }
        Ok(())
    }

    fn freeze_now(&self, id: &Id) -> Result<(), Error> {
        let mut ledger = self.ledger();
        ledger.idle(id)?;
        ledger.get_mut(id)?.own.standby = true;
        ledger.step(id, &[InstancePhase::Running], InstancePhase::Standby)?;
        Ok(())
    }

    fn open_now(&self, open: OpenSession) -> Result<(), Error> {
        let (id, session) = (Id::new(&open.namespace, &open.instance), open.name.clone());
        if self.ledger().open(open)? == Done::Again {
            return Ok(());
        }
        let thaw = self.thawing(&id)?;
        if self.ledger().get(&id)?.state.phase() != InstancePhase::Creating {
            self.after(thaw, move |this| this.open_later(id, session));
        }
        Ok(())
    }

    fn close_now(&self, close: CloseSession) -> Result<(), Error> {
        let id = Id::new(&close.namespace, &close.instance);
        let name = close.name;
        if self.ledger().closing(&id, &name, close.grace_seconds)? == Done::New {
            self.after(self.shared.delays.session, move |this| {
                this.ledger().closed(&id, &name, reason::CLEAN, String::new());
            });
        }
        Ok(())
    }
}

impl Runtime for Simulated {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.start_now(&start)).boxed()
    }

    fn stop(&self, id: Id, _: Option<Duration>) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.stop_now(id)).boxed()
    }

    fn freeze(&self, id: Id) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.freeze_now(&id)).boxed()
    }

    fn thaw(&self, id: Id) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.thawing(&id).map(|_| ())).boxed()
    }

    fn open(&self, open: OpenSession) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.open_now(open)).boxed()
    }

    fn close(&self, close: CloseSession) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(self.close_now(close)).boxed()
    }

    fn read_log(&self, read: ReadLog) -> BoxFuture<'_, Result<Log, Error>> {
        let id = Id::new(&read.namespace, &read.instance);
        let known = self.ledger().get(&id).map(|_| ());
        let said = move |()| {
            let line = format!("instance {id} is simulated and says nothing\n");
            stream::iter([Ok(line.into_bytes())]).boxed()
        };
        std::future::ready(known.map(said)).boxed()
    }

    fn report(&self) -> Report {
        self.ledger().report()
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        async {
            self.shared.stop.cancel();
            self.shared.tasks.close();
            self.shared.tasks.wait().await;
            self.shared.outbox.end();
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
