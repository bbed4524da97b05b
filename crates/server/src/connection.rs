//! Open connections: each is closed when it takes too long over a handshake, a head or its answers,
//! or is idle. [`wire`] has the bytes.
//!
//! Requests set no timers. Every connection has a [`Pulse`], a few atomics with its
//! state and since when it lasts, in coarse ticks; one sweep a second closes those that overstay. So
//! half a handshake, a head that arrives a byte a minute, a reader that never reads and a
//! connection on which nothing arrives all meet the same rule, and thousands of them cost next to
//! nothing. The time is the server's [`Clock`], hence tests can move it.

#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::time::Duration;

use mainstay_store::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use self::wire::{Driven, Wire, drive};
use crate::options::Limits;

const SWEEP: Duration = Duration::from_secs(1);

const GO_ON: u8 = 0;
const FINISH: u8 = 1;
const CLOSE: u8 = 2;

const IDLE: &str = "it is idle";
const UNUSED: &str = "it sends no request";

/// The state of one connection, and since when it lasts.
#[derive(Debug)]
pub(crate) struct Pulse {
    tick: Arc<AtomicU64>,
    /// Writes to all connections so far.
    writes: Arc<AtomicU64>,
    /// When it last changed what it does.
    since: AtomicU64,
    /// One more than the tick since when nothing could be written; 0 while it can.
    stalled: AtomicU64,
    /// Answers that wait for the client to take more of them.
    owed: AtomicUsize,
    /// When the client last took a part of one, or when the first of them began to wait.
    taken: AtomicU64,
    /// Requests under way.
    busy: AtomicUsize,
    shaken: AtomicBool,
    /// When the handshake was done.
    shaken_at: AtomicU64,
    /// Whether a request ever began.
    used: AtomicBool,
    /// HTTP/1: whether bytes of a request head arrived.
    reading: AtomicBool,
    /// HTTP/1: whether the bytes that arrived end inside a head.
    partial: AtomicBool,
    /// HTTP/2: one more than the tick since when a head is incomplete; 0 while none is.
    block: AtomicU64,
    multiplexed: AtomicBool,
    /// One more than the tick at which it was condemned; 0 if it was not.
    condemned: AtomicU64,
    order: AtomicU8,
    ordered: Notify,
}

/// A pulse at one moment, for deciding about it.
#[derive(Clone, Copy, Debug)]
struct Reading {
    shaken: bool,
    busy: bool,
    /// How long the head of a request has been incomplete.
    head: Option<Duration>,
    /// How long the connection has been there without a first request.
    unused: Option<Duration>,
    quiet: Duration,
    stalled: Option<Duration>,
    /// How long no part was taken of any answer that waits.
    unread: Option<Duration>,
}

/// Why a connection is closed, if it is to be.
fn overstays(reading: Reading, limits: &Limits) -> Option<&'static str> {
    let Reading { shaken, busy, head, unused, quiet, stalled, unread } = reading;
    let longer = |time: Option<Duration>, limit| time.is_some_and(|time| time > limit);
    if longer(stalled, limits.stall) || longer(unread, limits.stall) {
        Some("it does not take what is sent to it")
    } else if !shaken && quiet > limits.handshake {
        Some("its handshake takes too long")
    } else if shaken && longer(head, limits.head_time) {
        Some("the head of its request takes too long")
    } else if shaken && longer(unused, limits.head_time) {
        Some(UNUSED)
    } else if shaken && !busy && head.is_none() && quiet > limits.idle {
        Some(IDLE)
    } else {
        None
    }
}

impl Pulse {
    fn now(&self) -> u64 {
        self.tick.load(Relaxed)
    }

    fn reading(&self) -> Reading {
        let now = self.now();
        let past = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let one_less = |tick: &AtomicU64| tick.load(Relaxed).checked_sub(1).map(past);
        let busy = self.busy.load(Relaxed) > 0;
        let quiet = past(self.since.load(Relaxed));
        let multiplexed = self.multiplexed.load(Relaxed);
        let head = match multiplexed {
            true => one_less(&self.block),
            false => (!busy && self.reading.load(Relaxed)).then_some(quiet),
        };
        let unused = !self.used.load(Relaxed);
        Reading {
            shaken: self.shaken.load(Relaxed),
            busy,
            head,
            unused: unused.then(|| past(self.shaken_at.load(Relaxed))),
            quiet,
            stalled: one_less(&self.stalled),
            unread: (self.owed.load(Acquire) > 0).then(|| past(self.taken.load(Relaxed))),
        }
    }

    /// The handshake is done; requests may come, several at once if `multiplexed`.
    pub(crate) fn shaken(&self, multiplexed: bool) {
        self.multiplexed.store(multiplexed, Relaxed);
        self.since.store(self.now(), Relaxed);
        self.shaken_at.store(self.now(), Relaxed);
        self.shaken.store(true, Relaxed);
    }

    /// Bytes arrived over HTTP/1; `partial` if they end inside a head.
    fn heard(&self, partial: bool) {
        self.partial.store(partial, Relaxed);
        if self.busy.load(Relaxed) == 0 && !self.reading.swap(true, Relaxed) {
            self.since.store(self.now(), Relaxed);
        }
    }

    /// Bytes arrived over HTTP/2; `partial` if they leave a head incomplete.
    fn heard_frames(&self, partial: bool) {
        let now = self.now();
        self.since.store(now, Relaxed);
        if !partial {
            self.block.store(0, Relaxed);
        } else if self.block.load(Relaxed) == 0 {
            self.block.store(now + 1, Relaxed);
        }
    }

    fn wrote_some(&self, progress: bool) {
        if progress {
            self.writes.fetch_add(1, Relaxed);
        }
        self.wrote(progress);
    }

    fn wrote(&self, progress: bool) {
        if progress {
            if self.stalled.load(Relaxed) != 0 {
                self.stalled.store(0, Relaxed);
            }
        } else if self.stalled.load(Relaxed) == 0 {
            self.stalled.store(self.now() + 1, Relaxed);
        }
    }

    /// A request has begun; it lasts until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        self.used.store(true, Relaxed);
        self.reading.store(false, Relaxed);
        Busy(Owed { pulse: self.clone(), waits: false })
    }

    /// Lets the connection finish what is under way, and take on nothing more.
    pub(crate) fn finish(&self) {
        self.order(FINISH);
    }

    fn order(&self, order: u8) {
        self.order.fetch_max(order, Relaxed);
        self.ordered.notify_one();
    }

    /// Lets the connection deliver the answers that are ready, and closes it with the next sweep.
    pub(crate) fn condemn(&self) {
        self.condemned.store(self.now() + 1, Relaxed);
        self.order(FINISH);
    }

    /// Whether it was condemned before this sweep.
    fn is_condemned(&self) -> bool {
        self.condemned.load(Relaxed).checked_sub(1).is_some_and(|at| at < self.now())
    }

    /// Waits for an order: true to finish what is under way, false to close at once.
    pub(crate) async fn ordered(&self) -> bool {
        loop {
            match self.order.load(Relaxed) {
                GO_ON => self.ordered.notified().await,
                order => return order == FINISH,
            }
        }
    }

    /// Waits for the order to close at once.
    pub(crate) async fn closed(&self) {
        while self.order.load(Relaxed) != CLOSE {
            self.ordered.notified().await;
        }
    }
}

/// A request under way on a connection.
#[derive(Debug)]
pub(crate) struct Busy(pub(crate) Owed);

impl Busy {
    /// A part of the answer that waits for the client, until the guard is dropped.
    pub(crate) fn owe(&self) -> Owed {
        let mut owed = Owed { pulse: self.0.pulse.clone(), waits: false };
        owed.waits();
        owed
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let pulse = &self.0.pulse;
        pulse.since.store(pulse.now(), Relaxed);
        // The beginning of the next head may have arrived with this request.
        pulse.reading.store(pulse.partial.load(Relaxed), Relaxed);
        pulse.busy.fetch_sub(1, Relaxed);
    }
}

/// An answer of which the client may have to take more before it goes on.
#[derive(Debug)]
pub(crate) struct Owed {
    pulse: Arc<Pulse>,
    waits: bool,
}

impl Owed {
    /// It is the client's turn.
    pub(crate) fn waits(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            // The time is right before anybody looks at it.
            if self.pulse.owed.load(Relaxed) == 0 {
                self.took();
            }
            self.pulse.owed.fetch_add(1, Release);
        }
    }

    /// The client took a part.
    pub(crate) fn took(&self) {
        self.pulse.taken.store(self.pulse.now(), Relaxed);
    }

    /// It is the server's turn.
    pub(crate) fn goes_on(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            self.took();
            self.pulse.owed.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.goes_on();
    }
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    clock: Arc<dyn Clock>,
    tick: Arc<AtomicU64>,
    /// Writes to all connections so far.
    writes: Arc<AtomicU64>,
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    pulses: HashMap<u64, (IpAddr, Arc<Pulse>)>,
    count: u64,
    order: u8,
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Connections>,
    id: u64,
    pub(crate) pulse: Arc<Pulse>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().pulses.remove(&self.id);
    }
}

impl Connections {
    pub(crate) fn new(clock: Arc<dyn Clock>, limits: Limits) -> Arc<Self> {
        let tick = Arc::new(AtomicU64::new(millis(clock.elapsed())));
        Arc::new(Self { clock, tick, writes: Arc::default(), limits, open: Mutex::default() })
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// A place for a new connection from an address.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr) -> Place {
        let mut open = self.lock();
        let pulse = Arc::new(Pulse {
            tick: self.tick.clone(),
            writes: self.writes.clone(),
            since: AtomicU64::new(self.tick.load(Relaxed)),
            stalled: AtomicU64::new(0),
            owed: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            shaken: AtomicBool::new(false),
            shaken_at: AtomicU64::new(0),
            used: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            block: AtomicU64::new(0),
            multiplexed: AtomicBool::new(false),
            condemned: AtomicU64::new(0),
            order: AtomicU8::new(open.order),
            ordered: Notify::new(),
        });
        open.count += 1;
        let id = open.count;
        open.pulses.insert(id, (from, pulse.clone()));
        drop(open);
        Place { all: self.clone(), id, pulse }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().pulses.len()
    }

    /// How often something was written to any of them.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Closes the connection that has been idle longest, of those from `from` if that is given, to
    /// make room for another.
    pub(crate) fn close_idlest(&self, from: Option<IpAddr>) {
        let open = self.lock();
        let idle = open.pulses.iter().filter(|(_, (address, pulse))| {
            let reading = pulse.reading();
            from.is_none_or(|from| from == *address)
                && !reading.busy
                && pulse.order.load(Relaxed) == GO_ON
        });
        // Ticks are coarse: among equals the oldest connection goes.
        let idlest = idle.min_by_key(|(id, (_, pulse))| (pulse.since.load(Relaxed), **id));
        if let Some((_, (_, idlest))) = idlest {
            idlest.order(CLOSE);
        }
    }

    /// Lets every connection finish what is under way, and take on nothing more.
    pub(crate) fn finish(&self) {
        self.order_all(FINISH);
    }

    /// Closes every connection at once.
    pub(crate) fn close(&self) {
        self.order_all(CLOSE);
    }

    fn order_all(&self, order: u8) {
        let mut open = self.lock();
        open.order = order;
        for (_, pulse) in open.pulses.values() {
            pulse.order(order);
        }
    }

    /// Closes those that overstay, for as long as it is polled.
    pub(crate) async fn sweep(&self) {
        loop {
            self.tick.store(millis(self.clock.elapsed()), Relaxed);
            for (_, pulse) in self.lock().pulses.values() {
                if pulse.is_condemned() {
                    pulse.order(CLOSE);
                    continue;
                }
                let reading = pulse.reading();
                if let Some(why) = overstays(reading, &self.limits) {
                    tracing::debug!(why, "closing a connection");
                    // One that did nothing wrong is told, and has until the next sweep.
                    let told = pulse.order.load(Relaxed) != GO_ON;
                    let blameless = why == IDLE || why == UNUSED;
                    pulse.order(if blameless && !told { FINISH } else { CLOSE });
                }
            }
            self.clock.sleep(SWEEP).await;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
