//! Connections: how long each may take over what it does, and what is on the wire.
//!
//! Nothing sets a timer per request. Every connection has a [`Pulse`], a few atomics that say what
//! it is doing and since when, in coarse ticks; one sweep a second closes those that overstay. So
//! half a handshake, a head that arrives a byte a minute, a reader that never reads and a
//! connection on which nothing arrives all meet the same rule, and thousands of them cost next to
//! nothing. The time is the server's [`Clock`], hence tests can move it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::task::{Context, Poll};
use std::time::Duration;

use mainstay_store::clock::Clock;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::frames::Frames;
use crate::heads::Heads;
use crate::options::Limits;

const SWEEP: Duration = Duration::from_secs(1);

const GO_ON: u8 = 0;
const FINISH: u8 = 1;
const CLOSE: u8 = 2;

const IDLE: &str = "it is idle";
const UNUSED: &str = "it sends no request";

/// What one connection is doing, and since when.
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
    /// HTTP/2: how long the connection has been there without a request.
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
        let unused = multiplexed && !self.used.load(Relaxed);
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

    /// Closes this connection at once.
    pub(crate) fn cut(&self) {
        self.order(CLOSE);
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

/// A stream that tells its pulse what goes over it.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    pulse: Arc<Pulse>,
    follower: Follower,
}

/// Finds the heads of requests in the bytes of a connection.
#[derive(Debug)]
enum Follower {
    Http1(Heads),
    Http2(Frames),
}

impl<S> Wire<S> {
    /// A stream of one request after the other, or of several at once if `multiplexed`.
    pub(crate) fn new(stream: S, pulse: Arc<Pulse>, multiplexed: bool) -> Self {
        let follower = match multiplexed {
            true => Follower::Http2(Frames::new()),
            false => Follower::Http1(Heads::new()),
        };
        Self { stream, pulse, follower }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let arrived = &mut buffer.filled_mut()[before..];
        if !arrived.is_empty() {
            let Self { pulse, follower, .. } = &mut *self;
            match follower {
                Follower::Http1(heads) => {
                    heads.pass(arrived);
                    pulse.heard(heads.is_open());
                }
                Follower::Http2(frames) => pulse.heard_frames(frames.pass(arrived)),
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pulse.wrote_some(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.pulse.wrote(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.pulse.wrote(ended.is_ready());
        ended
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.pulse.wrote_some(written.is_ready());
        written
    }
}

/// Drives a connection until it ends, and passes on the orders its pulse gets.
pub(crate) async fn drive<C: Driven>(connection: C, pulse: &Pulse) {
    let mut connection = pin!(connection);
    let mut orders = pin!(pulse.ordered());
    let finish = poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        orders.as_mut().poll(context)
    })
    .await;
    if !finish {
        return;
    }
    connection.as_mut().finish();
    let mut closed = pin!(pulse.closed());
    poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        closed.as_mut().poll(context)
    })
    .await;
}

/// A connection of either version of HTTP.
pub(crate) trait Driven: Future {
    /// Takes on nothing more, and ends after what is under way.
    fn finish(self: Pin<&mut Self>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::clock::ManualClock;
    use std::net::Ipv4Addr;

    const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn each_state_has_its_own_patience() {
        let limits = Limits::default();
        let calm = Reading {
            shaken: true,
            busy: false,
            head: None,
            unused: None,
            quiet: Duration::ZERO,
            stalled: None,
            unread: None,
        };
        let second = Duration::from_secs(1);
        let shaking = Reading { shaken: false, ..calm };
        let head = |reading: Reading, time| Reading { head: Some(time), ..reading };
        let unused = |time| Reading { unused: Some(time), ..calm };
        let busy = Reading { busy: true, ..calm };
        let after = |reading: Reading, quiet| Reading { quiet, ..reading };
        let stalled = |stalled| Reading { stalled: Some(stalled), ..busy };
        let cases = [
            (after(shaking, limits.handshake), false),
            (after(shaking, limits.handshake + second), true),
            (head(calm, limits.head_time), false),
            (head(calm, limits.head_time + second), true),
            (head(busy, limits.head_time + second), true),
            (unused(limits.head_time), false),
            (unused(limits.head_time + second), true),
            (after(calm, limits.idle), false),
            (after(calm, limits.idle + second), true),
            (after(busy, limits.idle * 10), false),
            (stalled(limits.stall), false),
            (stalled(limits.stall + second), true),
            (Reading { unread: Some(limits.stall), ..busy }, false),
            (Reading { unread: Some(limits.stall + second), ..calm }, true),
        ];
        for (reading, closed) in cases {
            assert_eq!(overstays(reading, &limits).is_some(), closed, "{reading:?}");
        }
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut_off_and_a_request_under_way_is_not() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let all = Connections::new(clock.clone(), Limits::default());
        let (slow, busy) = (all.enter(NEAR), all.enter(NEAR));
        for place in [&slow, &busy] {
            place.pulse.shaken(false);
            place.pulse.heard(true);
        }
        let under_way = busy.pulse.begin();
        let mut sweep = pin!(all.sweep());
        assert!(futures_util::poll!(&mut sweep).is_pending());
        clock.advance(Duration::from_secs(10));
        slow.pulse.heard(true);
        clock.advance(Duration::from_secs(10));
        assert!(futures_util::poll!(&mut sweep).is_pending());
        assert!(!slow.pulse.ordered().await);
        assert_eq!(busy.pulse.order.load(Relaxed), GO_ON);
        drop((under_way, slow));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn a_head_that_began_behind_a_request_counts_from_the_end_of_the_request() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let all = Connections::new(clock, Limits::default());
        let (piped, done) = (all.enter(NEAR), all.enter(NEAR));
        for (place, partial) in [(&piped, true), (&done, false)] {
            place.pulse.shaken(false);
            place.pulse.heard(partial);
            drop(place.pulse.begin());
            assert_eq!(place.pulse.reading().head, partial.then_some(Duration::ZERO));
        }
    }

    #[test]
    fn pings_do_not_prolong_an_incomplete_head_over_http2() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let all = Connections::new(clock, Limits::default());
        let place = all.enter(NEAR);
        place.pulse.shaken(true);
        for (tick, partial, head) in
            [(0, false, None), (5, true, Some(0)), (9, true, Some(4)), (10, false, None)]
        {
            all.tick.store(tick, Relaxed);
            place.pulse.heard_frames(partial);
            let reading = place.pulse.reading();
            assert_eq!(reading.head, head.map(Duration::from_millis), "{tick}");
            assert_eq!(reading.unused, Some(Duration::from_millis(tick)));
        }
        let _request = place.pulse.begin();
        assert_eq!(place.pulse.reading().unused, None);
    }

    #[test]
    fn the_longest_idle_connection_makes_room() {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        let all = Connections::new(clock, Limits::default());
        let (first, second, third) = (all.enter(NEAR), all.enter(NEAR), all.enter(FAR));
        let _request = first.pulse.begin();
        second.pulse.since.store(5, Relaxed);
        third.pulse.since.store(9, Relaxed);
        all.close_idlest(None);
        let orders = [&first, &second, &third].map(|place| place.pulse.order.load(Relaxed));
        assert_eq!(orders, [GO_ON, CLOSE, GO_ON]);
        all.close_idlest(Some(FAR));
        assert_eq!(third.pulse.order.load(Relaxed), CLOSE, "one from there makes room");
    }
}
