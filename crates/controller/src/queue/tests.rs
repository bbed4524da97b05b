use futures_util::FutureExt;
use jiff::Timestamp;
use mainstay_clock::ManualClock;
use proptest::prelude::*;

use super::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn backlog() -> Backlog<&'static str> {
    Backlog::new(Limits::default())
}

fn take(backlog: &mut Backlog<&'static str>, now: Duration) -> Option<&'static str> {
    backlog.take(now).map(|taken| taken.key)
}

#[test]
fn keys_are_served_first_come_first_served_and_once() {
    let mut backlog = backlog();
    for key in ["c", "a", "c", "b", "a"] {
        backlog.add(key, ms(0), ms(0));
    }
    let order: Vec<_> = std::iter::from_fn(|| take(&mut backlog, ms(0))).collect();
    assert_eq!(order, ["c", "a", "b"]);
}

#[test]
fn a_key_added_while_running_runs_exactly_once_more() {
    let mut backlog = backlog();
    backlog.add("a", ms(0), ms(0));
    assert_eq!(take(&mut backlog, ms(0)), Some("a"));
    for _ in 0..10 {
        backlog.add("a", ms(1), ms(1));
    }
    assert_eq!(take(&mut backlog, ms(1)), None, "its worker is not done");
    backlog.finish(&"a", Verdict::Done, ms(2));
    assert_eq!(take(&mut backlog, ms(2)), Some("a"));
    backlog.finish(&"a", Verdict::Done, ms(3));
    assert_eq!(take(&mut backlog, ms(3)), None);
    assert_eq!(backlog.depth(), Depth::default());
}

#[test]
fn an_add_cancels_a_delay_and_the_sooner_of_two_delays_stays() {
    let mut backlog = backlog();
    backlog.add("a", ms(50), ms(0));
    backlog.add("a", ms(20), ms(0));
    backlog.add("a", ms(90), ms(0));
    assert_eq!(backlog.next_due(), Some(ms(20)));
    backlog.add("a", ms(10), ms(10));
    assert_eq!(take(&mut backlog, ms(10)), Some("a"));
    backlog.finish(&"a", Verdict::Done, ms(10));
    assert_eq!(backlog.next_due(), None, "no delay is left behind");
}

#[test]
fn a_delay_asked_for_while_running_counts_from_the_asking() {
    let mut backlog = backlog();
    backlog.add("a", ms(0), ms(0));
    take(&mut backlog, ms(0));
    backlog.add("a", ms(30), ms(0));
    backlog.finish(&"a", Verdict::After(ms(100)), ms(10));
    assert_eq!(backlog.next_due(), Some(ms(30)));
}

#[test]
fn failures_wait_longer_each_time_until_a_success_forgets_them() {
    let mut backlog = backlog();
    backlog.add("a", ms(0), ms(0));
    let mut now = ms(0);
    for expected in [5, 10, 20, 40] {
        take(&mut backlog, now);
        let delay = backlog.finish(&"a", Verdict::Retry, now).unwrap();
        assert_eq!(delay, ms(expected));
        assert_eq!(take(&mut backlog, now + delay - ms(1)), None);
        now += delay;
    }
    assert_eq!(backlog.take(now).unwrap().failures, 4);
    backlog.finish(&"a", Verdict::After(ms(1)), now);
    take(&mut backlog, now + ms(1));
    assert_eq!(backlog.finish(&"a", Verdict::Retry, now + ms(1)), Some(ms(5)));
}

#[test]
fn an_event_during_a_failing_run_is_tried_at_once_but_the_failure_is_remembered() {
    let mut backlog = backlog();
    backlog.add("a", ms(0), ms(0));
    take(&mut backlog, ms(0));
    backlog.add("a", ms(1), ms(1));
    assert_eq!(backlog.finish(&"a", Verdict::Retry, ms(2)), None);
    assert_eq!(backlog.take(ms(2)).unwrap().failures, 1);
    assert_eq!(backlog.finish(&"a", Verdict::Retry, ms(2)), Some(ms(10)));
}

#[test]
fn the_bucket_holds_up_retries_and_never_first_tries() {
    let retries = Flow { interval: ms(1_000), burst: 2 };
    let mut backlog = Backlog::new(Limits { retries, ..Limits::default() });
    for key in 0..4 {
        backlog.add(key, ms(0), ms(0));
    }
    let mut delays = Vec::new();
    for key in 0..4 {
        assert_eq!(backlog.take(ms(0)).unwrap().key, key, "first tries are free");
        delays.extend(backlog.finish(&key, Verdict::Retry, ms(0)));
    }
    assert_eq!(delays, [ms(5), ms(5), ms(1_000), ms(2_000)]);
    backlog.add(99, ms(0), ms(0));
    assert_eq!(backlog.take(ms(0)).unwrap().key, 99);
}

/// The model of a queue: a plain list of requests.
#[derive(Debug, Default)]
struct Model {
    keys: BTreeMap<u8, ModelKey>,
    order: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ModelKey {
    running: bool,
    failures: u32,
    /// When it will be in line, whether it had to be waited for, and who was first.
    next: Option<(Duration, bool, u64)>,
    asked: Option<Duration>,
}

impl Model {
    fn ask(&mut self, key: u8, due: Duration, now: Duration) {
        self.order += 1;
        let order = self.order;
        let entry = self.keys.entry(key).or_default();
        if entry.running {
            entry.asked = Some(entry.asked.map_or(due, |asked| asked.min(due)));
            return;
        }
        let in_line = entry.next.is_some_and(|(at, ..)| at <= now);
        if !in_line && entry.next.is_none_or(|(at, ..)| due < at) {
            entry.next = Some((due.max(now), due <= now, order));
        }
    }

    fn first(&self, now: Duration) -> Option<u8> {
        let due = self.keys.iter().filter_map(|(key, entry)| {
            let next = entry.next.filter(|(at, ..)| *at <= now)?;
            Some((next, *key))
        });
        due.min().map(|(_, key)| key)
    }

    fn finish(&mut self, key: u8, verdict: Verdict, retry: Option<Duration>, now: Duration) {
        let entry = self.keys.get_mut(&key).unwrap();
        entry.running = false;
        let asked = entry.asked.take();
        entry.failures = if verdict == Verdict::Retry { entry.failures + 1 } else { 0 };
        let wanted = match verdict {
            Verdict::Done => None,
            Verdict::After(delay) => Some(now + delay),
            Verdict::Retry => retry.map(|delay| now + delay),
        };
        if let Some(due) = asked.into_iter().chain(wanted).min() {
            self.ask(key, due, now);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8, u64),
    Take,
    Finish(prop::sample::Index, Verdict),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        Just(Verdict::Done),
        (0_u64..40).prop_map(|delay| Verdict::After(ms(delay))),
        Just(Verdict::Retry),
    ];
    let step = prop_oneof![
        3 => (0_u8..5, prop_oneof![Just(0_u64), 0_u64..60]).prop_map(|(k, d)| Step::Add(k, d)),
        3 => Just(Step::Take),
        3 => (any::<prop::sample::Index>(), verdict).prop_map(|(i, v)| Step::Finish(i, v)),
        2 => (0_u64..40).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..120)
}

struct Run {
    backlog: Backlog<u8>,
    model: Model,
    now: Duration,
    running: Vec<u8>,
    /// How many runs of each key have begun, and how many there were when it was last added.
    begun: BTreeMap<u8, u64>,
    owed: BTreeMap<u8, u64>,
}

impl Run {
    fn take(&mut self) -> bool {
        let expected = self.model.first(self.now);
        let taken = self.backlog.take(self.now);
        assert_eq!(taken.as_ref().map(|taken| taken.key), expected);
        let Some(taken) = taken else { return false };
        let entry = self.model.keys.get_mut(&taken.key).unwrap();
        assert!(!entry.running, "a key is never with two workers");
        assert_eq!(taken.failures, entry.failures);
        let (since, ..) = entry.next.take().unwrap();
        assert_eq!(taken.waited, self.now - since);
        entry.running = true;
        self.running.push(taken.key);
        *self.begun.entry(taken.key).or_default() += 1;
        true
    }

    fn finish(&mut self, at: usize, verdict: Verdict) {
        let key = self.running.remove(at);
        let retry = self.backlog.finish(&key, verdict, self.now);
        let failures = self.model.keys[&key].failures;
        if let Some(delay) = retry {
            assert!(delay >= Backoff::default().after(failures + 1));
        }
        let asked = self.model.keys[&key].asked;
        let at_once = asked.is_some_and(|asked| asked <= self.now);
        assert_eq!(retry.is_some(), verdict == Verdict::Retry && !at_once);
        self.model.finish(key, verdict, retry, self.now);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Add(key, delay) => {
                let due = self.now + ms(delay);
                self.backlog.add(key, due, self.now);
                self.model.ask(key, due, self.now);
                let begun = self.begun.get(&key).copied().unwrap_or_default();
                self.owed.insert(key, begun + 1);
            }
            Step::Take => drop(self.take()),
            Step::Finish(index, verdict) if !self.running.is_empty() => {
                self.finish(index.index(self.running.len()), verdict);
            }
            Step::Finish(..) => {}
            Step::Advance(delay) => self.now += ms(delay),
        }
        let depth = self.backlog.depth();
        assert_eq!(depth.running, self.running.len());
        let waiting = self.model.keys.values().filter(|key| key.next.is_some());
        assert_eq!(depth.ready + depth.delayed, waiting.count());
    }
}

proptest! {
    #[test]
    fn the_backlog_does_as_the_model_and_every_add_is_followed_by_a_run(steps in steps()) {
        let mut run = Run {
            backlog: Backlog::new(Limits::default()),
            model: Model::default(),
            now: Duration::ZERO,
            running: Vec::new(),
            begun: BTreeMap::new(),
            owed: BTreeMap::new(),
        };
        for step in steps {
            run.step(step);
        }
        loop {
            while !run.running.is_empty() {
                run.finish(0, Verdict::Done);
            }
            if run.take() {
                continue;
            }
            let Some(due) = run.backlog.next_due() else { break };
            run.now = run.now.max(due);
        }
        for (key, owed) in run.owed {
            prop_assert!(run.begun.get(&key).copied().unwrap_or_default() >= owed, "key {key}");
        }
        prop_assert!(run.backlog.items.is_empty(), "nothing is remembered");
    }

    #[test]
    fn retries_of_all_keys_together_never_outrun_the_bucket(
        burst in 1_u32..4,
        keys in 1_u8..20,
        rounds in 1_usize..5,
    ) {
        let retries = Flow { interval: ms(100), burst };
        let mut backlog = Backlog::new(Limits { retries, ..Limits::default() });
        for key in 0..keys {
            backlog.add(key, ms(0), ms(0));
        }
        let mut retried = Vec::new();
        let mut now = Duration::ZERO;
        for _ in 0..rounds * usize::from(keys) {
            now = now.max(backlog.next_due().unwrap());
            let taken = backlog.take(now).unwrap();
            if taken.failures > 0 {
                retried.push(now);
            }
            backlog.finish(&taken.key, Verdict::Retry, now);
        }
        let burst = burst as usize;
        let earliest = ms(100) * u32::try_from(retried.len().saturating_sub(burst)).unwrap();
        prop_assert!(retried.last().is_none_or(|last| *last >= earliest));
    }
}

fn clock() -> Arc<ManualClock> {
    ManualClock::new(Timestamp::UNIX_EPOCH)
}

#[tokio::test]
async fn a_waiting_worker_wakes_when_a_delay_is_over() {
    let clock = clock();
    let queue = Queue::new("test", Limits::default(), clock.clone());
    queue.add_after("a", ms(100));
    let mut waiting = std::pin::pin!(queue.take());
    assert!(waiting.as_mut().now_or_never().is_none());
    clock.advance(ms(99));
    assert!(waiting.as_mut().now_or_never().is_none());
    clock.advance(ms(1));
    let work = waiting.now_or_never().expect("it is due");
    assert_eq!(work.key(), &"a");
}

#[tokio::test]
async fn a_key_is_with_one_worker_only_however_many_wait() {
    let queue = Queue::new("test", Limits::default(), clock());
    let mut first = std::pin::pin!(queue.take());
    let mut second = std::pin::pin!(queue.take());
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    queue.add("a");
    queue.add("a");
    let work = first.now_or_never().expect("the waiter was woken");
    queue.add("a");
    assert!(second.as_mut().now_or_never().is_none());
    work.finish(Verdict::Done);
    let work = second.now_or_never().expect("the waiter was woken");
    assert_eq!(work.key(), &"a");
}

#[tokio::test]
async fn work_that_is_dropped_goes_back_with_backoff() {
    let clock = clock();
    let queue = Queue::new("test", Limits::default(), clock.clone());
    queue.add("a");
    drop(queue.take().await);
    assert!(queue.take().now_or_never().is_none());
    clock.advance(ms(5));
    assert_eq!(queue.take().await.failures(), 1);
}

/// The first waiter alone hears of the sooner delay, and is then cancelled.
#[tokio::test]
async fn a_waiter_notices_a_shorter_delay() {
    let clock = clock();
    let queue = Queue::new("test", Limits::default(), clock.clone());
    queue.add_after("late", ms(100));
    let mut first = Box::pin(queue.take());
    let mut second = std::pin::pin!(queue.take());
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    queue.add_after("soon", ms(10));
    assert!(first.as_mut().now_or_never().is_none());
    drop(first);
    assert!(second.as_mut().now_or_never().is_none());
    clock.advance(ms(10));
    let work = second.now_or_never().expect("it is due");
    assert_eq!(work.key(), &"soon");
}

#[derive(Debug, Default)]
struct Counts {
    waited: Mutex<Vec<Duration>>,
    retried: Mutex<Vec<Duration>>,
    depths: Mutex<Vec<Depth>>,
}

impl Meter for Counts {
    fn depth(&self, _queue: &str, depth: Depth) {
        self.depths.lock().push(depth);
    }

    fn waited(&self, _queue: &str, wait: Duration) {
        self.waited.lock().push(wait);
    }

    fn retried(&self, _queue: &str, delay: Duration) {
        self.retried.lock().push(delay);
    }
}

#[tokio::test]
async fn the_meter_hears_of_depth_wait_and_retries() {
    let (clock, counts) = (clock(), Arc::new(Counts::default()));
    let queue = Queue::metered("test", Limits::default(), clock.clone(), counts.clone());
    queue.add("a");
    clock.advance(ms(7));
    let work = queue.take().await;
    work.finish(Verdict::Retry);
    assert_eq!(*counts.waited.lock(), [ms(7)]);
    assert_eq!(*counts.retried.lock(), [ms(5)]);
    let depth = |ready, delayed, running| Depth { ready, delayed, running };
    let expected = [depth(1, 0, 0), depth(0, 0, 1), depth(0, 1, 0)];
    assert_eq!(*counts.depths.lock(), expected);
}
