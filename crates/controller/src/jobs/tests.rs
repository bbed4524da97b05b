use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::*;
use crate::testing::{clock, settle, until};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn slots(slots: usize) -> NonZeroUsize {
    NonZeroUsize::new(slots).unwrap()
}

#[test]
fn a_key_queued_twice_runs_once_and_one_queued_while_running_once_more() {
    let mut line = Line::new(slots(1), None);
    assert_eq!(line.add("a"), Added::Queued);
    assert_eq!(line.add("a"), Added::AlreadyQueued);
    assert_eq!(line.next(ms(0)), Some(Turn::Start("a")));
    assert_eq!(line.add("a"), Added::OnceMore);
    assert_eq!(line.add("a"), Added::AlreadyQueued);
    assert_eq!(line.next(ms(0)), None);
    line.finish(&"a");
    assert_eq!(line.next(ms(0)), Some(Turn::Start("a")));
    line.finish(&"a");
    assert_eq!(line.depth(), Depth::default());
}

#[test]
fn waiting_jobs_can_be_cancelled_and_running_ones_cannot() {
    let mut line = Line::new(slots(1), None);
    line.add("a");
    line.add("b");
    line.next(ms(0));
    assert!(!line.cancel(&"a"), "it has begun");
    line.add("a");
    assert!(line.cancel(&"a"), "its second run has not");
    assert!(line.cancel(&"b"));
    assert!(!line.cancel(&"b"));
    line.finish(&"a");
    assert_eq!(line.next(ms(0)), None);
}

#[test]
fn a_returning_job_lines_up_but_passes_those_held_up_by_the_rate() {
    let rate = Rate { starts: slots(2), within: ms(60) };
    let mut line = Line::new(slots(1), Some(rate));
    line.add("a");
    line.next(ms(0));
    line.release(&"a");
    line.add("b");
    line.add("c");
    line.reclaim(&"a");
    assert_eq!(line.next(ms(0)), Some(Turn::Start("b")), "b was first");
    line.finish(&"b");
    assert_eq!(line.next(ms(0)), Some(Turn::Resume("a")), "c may not start yet");
    line.finish(&"a");
    assert_eq!(line.next(ms(59)), None);
    assert_eq!(line.next_due(), Some(ms(60)));
    assert_eq!(line.next(ms(60)), Some(Turn::Start("c")));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    Cancel(u8),
    Next,
    Release(u8),
    Reclaim(u8),
    Finish(u8),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..6;
    let step = prop_oneof![
        4 => key.clone().prop_map(Step::Add),
        1 => key.clone().prop_map(Step::Cancel),
        4 => Just(Step::Next),
        2 => key.clone().prop_map(Step::Release),
        2 => key.clone().prop_map(Step::Reclaim),
        2 => key.prop_map(Step::Finish),
        2 => (0_u64..30).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..150)
}

/// The model of a job queue: a list of waiting jobs and a set of running ones.
#[derive(Debug, Default)]
struct Model {
    line: VecDeque<Turn<u8>>,
    holding: BTreeSet<u8>,
    away: BTreeSet<u8>,
    again: BTreeSet<u8>,
    starts: Vec<Duration>,
}

impl Model {
    fn begun(&self, key: u8) -> bool {
        self.holding.contains(&key)
            || self.away.contains(&key)
            || self.line.contains(&Turn::Resume(key))
    }

    fn add(&mut self, key: u8) -> Added {
        if self.begun(key) {
            return if self.again.insert(key) { Added::OnceMore } else { Added::AlreadyQueued };
        }
        if self.line.contains(&Turn::Start(key)) {
            return Added::AlreadyQueued;
        }
        self.line.push_back(Turn::Start(key));
        Added::Queued
    }

    fn cancel(&mut self, key: u8) -> bool {
        let before = self.line.len();
        self.line.retain(|turn| *turn != Turn::Start(key));
        self.again.remove(&key) || self.line.len() < before
    }

    fn next(&mut self, slots: usize, rate: Option<Rate>, now: Duration) -> Option<Turn<u8>> {
        let may_start = rate.is_none_or(|rate| {
            let recent = |start: &&Duration| now - **start < rate.within;
            self.starts.iter().filter(recent).count() < rate.starts.get()
        });
        if self.holding.len() == slots {
            return None;
        }
        let eligible = |turn: &Turn<u8>| may_start || matches!(turn, Turn::Resume(_));
        let turn = self.line.remove(self.line.iter().position(eligible)?)?;
        let (Turn::Start(key) | Turn::Resume(key)) = turn;
        if turn == Turn::Start(key) {
            self.starts.push(now);
        }
        assert!(self.holding.insert(key), "never two of one key");
        Some(turn)
    }

    fn finish(&mut self, key: u8) {
        if !self.begun(key) {
            return;
        }
        self.holding.remove(&key);
        self.away.remove(&key);
        self.line.retain(|turn| *turn != Turn::Resume(key));
        if self.again.remove(&key) {
            self.line.push_back(Turn::Start(key));
        }
    }
}

proptest! {
    #[test]
    fn the_line_does_as_the_model(
        count in 1_usize..4,
        rate in prop::option::of((1_usize..4, 1_u64..60)),
        steps in steps(),
    ) {
        let rate = rate.map(|(starts, within)| Rate { starts: slots(starts), within: ms(within) });
        let mut line = Line::new(slots(count), rate);
        let mut model = Model::default();
        let mut now = Duration::ZERO;
        for step in steps {
            match step {
                Step::Add(key) => prop_assert_eq!(line.add(key), model.add(key)),
                Step::Cancel(key) => prop_assert_eq!(line.cancel(&key), model.cancel(key)),
                Step::Next => {
                    let due = line.next_due().is_some_and(|due| due <= now);
                    let turn = line.next(now);
                    prop_assert_eq!(turn.is_some(), due);
                    prop_assert_eq!(turn, model.next(count, rate, now));
                }
                Step::Release(key) => {
                    line.release(&key);
                    if model.holding.remove(&key) {
                        model.away.insert(key);
                    }
                }
                Step::Reclaim(key) => {
                    line.reclaim(&key);
                    if model.away.remove(&key) {
                        model.line.push_back(Turn::Resume(key));
                    }
                }
                Step::Finish(key) => {
                    line.finish(&key);
                    model.finish(key);
                }
                Step::Advance(delay) => now += ms(delay),
            }
            let depth = line.depth();
            prop_assert!(depth.running <= count, "never above the number of slots");
            prop_assert_eq!(depth.running, model.holding.len());
            let waiting = model.line.iter().filter(|turn| matches!(turn, Turn::Start(_)));
            prop_assert_eq!(depth.ready, waiting.count());
        }
        if let Some(rate) = rate {
            for group in model.starts.windows(rate.starts.get() + 1) {
                prop_assert!(group[rate.starts.get()] - group[0] >= rate.within);
            }
        }
    }
}

/// Jobs that note when they start and end, and end when they are let go.
#[derive(Clone, Debug)]
struct Floor {
    log: Arc<Mutex<Vec<String>>>,
    gate: Arc<Semaphore>,
    outside: Arc<Semaphore>,
}

impl Floor {
    fn new() -> Self {
        Self {
            log: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            outside: Arc::new(Semaphore::new(0)),
        }
    }

    fn note(&self, text: String) {
        self.log.lock().push(text);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    fn run(&self, options: Options, clock: Arc<dyn Clock>) -> Handle<&'static str> {
        let floor = self.clone();
        JobQueue::run(options, clock, move |mut slot: Slot<&'static str>| {
            let floor = floor.clone();
            async move {
                floor.note(format!("{} starts", slot.key()));
                assert_ne!(*slot.key(), "panics");
                if slot.key().starts_with("evict") {
                    let outside = floor.outside.clone();
                    let wait = async move { outside.acquire().await.unwrap().forget() };
                    slot.release_while(wait).await;
                    floor.note(format!("{} is back", slot.key()));
                }
                floor.gate.acquire().await.unwrap().forget();
                floor.note(format!("{} ends", slot.key()));
            }
        })
    }
}

#[tokio::test]
async fn no_more_jobs_run_than_there_are_slots_and_in_order() {
    let floor = Floor::new();
    let jobs = floor.run(Options::new("test", slots(2)), clock());
    for key in ["a", "b", "c", "a"] {
        jobs.add(key);
    }
    settle().await;
    assert_eq!(floor.log(), ["a starts", "b starts"]);
    floor.gate.add_permits(1);
    until("c starts", || floor.log().len() == 4).await;
    assert_eq!(floor.log()[2..], ["a ends", "c starts"]);
    floor.gate.add_permits(2);
    jobs.idle().await;
    assert_eq!(jobs.depth(), Depth::default());
}

#[tokio::test]
async fn a_job_that_waits_outside_holds_no_slot_and_comes_back_in_its_turn() {
    let floor = Floor::new();
    let jobs = floor.run(Options::new("test", slots(1)), clock());
    jobs.add("evict");
    jobs.add("b");
    jobs.add("c");
    until("b starts", || floor.log().len() == 2).await;
    assert_eq!(floor.log(), ["evict starts", "b starts"]);
    floor.outside.add_permits(1);
    settle().await;
    assert_eq!(floor.log().len(), 2, "b has the only slot");
    floor.gate.add_permits(3);
    jobs.idle().await;
    let rest = ["b ends", "c starts", "c ends", "evict is back", "evict ends"];
    assert_eq!(floor.log()[2..], rest);
}

#[tokio::test]
async fn starts_keep_to_the_rate_on_the_clock() {
    let (floor, clock) = (Floor::new(), clock());
    let mut options = Options::new("test", slots(5));
    options.rate = Some(Rate { starts: slots(2), within: Duration::from_secs(60) });
    let jobs = floor.run(options, clock.clone());
    for key in ["a", "b", "c"] {
        jobs.add(key);
    }
    settle().await;
    assert_eq!(floor.log(), ["a starts", "b starts"]);
    clock.advance(Duration::from_secs(59));
    settle().await;
    assert_eq!(floor.log().len(), 2);
    clock.advance(Duration::from_secs(1));
    until("c starts", || floor.log().len() == 3).await;
    assert!(!jobs.cancel(&"c"));
    floor.gate.add_permits(3);
    jobs.idle().await;
}

#[tokio::test]
async fn a_panicking_job_frees_its_slot() {
    let floor = Floor::new();
    let jobs = floor.run(Options::new("test", slots(1)), clock());
    jobs.add("panics");
    jobs.add("b");
    floor.gate.add_permits(1);
    jobs.idle().await;
    assert_eq!(floor.log(), ["panics starts", "b starts", "b ends"]);
}

#[tokio::test]
async fn shutdown_starts_no_jobs_and_aborts_running_ones_after_the_grace() {
    let (floor, clock) = (Floor::new(), clock());
    let jobs = floor.run(Options::new("test", slots(2)), clock.clone());
    for key in ["a", "b", "c"] {
        jobs.add(key);
    }
    until("two start", || floor.log().len() == 2).await;
    let ending = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.shutdown(ms(100)).await }
    });
    until("the deadline is set", || clock.sleepers() == 1).await;
    assert_eq!(jobs.add("d"), Added::Refused);
    floor.gate.add_permits(1);
    until("a ends", || floor.log().len() == 3).await;
    assert!(!ending.is_finished(), "b is given its time");
    clock.advance(ms(100));
    assert_eq!(ending.await.unwrap(), 1);
    assert_eq!(floor.log(), ["a starts", "b starts", "a ends"]);
    assert_eq!(jobs.shutdown(ms(100)).await, 1, "asking again is harmless");
    assert_eq!(jobs.depth(), Depth::default());
}

#[tokio::test]
async fn a_dropped_wait_outside_can_be_made_good_by_reclaiming() {
    let (log, clock) = (Arc::new(Mutex::new(Vec::new())), clock());
    let shared = log.clone();
    let options = Options::new("test", slots(1));
    let jobs = JobQueue::run(options, clock, move |mut slot: Slot<u8>| {
        let log = shared.clone();
        async move {
            let waiting = slot.release_while(std::future::pending::<()>());
            assert!(waiting.now_or_never().is_none());
            slot.reclaim().await;
            slot.reclaim().await;
            log.lock().push(*slot.key());
        }
    });
    jobs.add(1);
    jobs.add(2);
    jobs.idle().await;
    assert_eq!(log.lock().len(), 2);
}
