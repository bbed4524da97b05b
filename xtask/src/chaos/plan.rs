//! Plans a round from its seed alone: the same seed gives the same files, workers and steps. Only
//! the time that the machine takes for each differs.

use std::time::Duration;

use super::step::{
    DATASETS, Deletion, EXPRESSIONS, NewFile, NewRule, Reach, SITES, Step, TINY, Who,
};

/// Numbers that look like chance and follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64)) as usize
    }

    fn percent(&mut self, odds: usize) -> bool {
        self.below(100) < odds
    }

    fn millis(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_millis((from + self.below(to - from)) as u64)
    }

    fn one_of<T: Clone>(&mut self, some: &[T]) -> T {
        some[self.below(some.len())].clone()
    }
}

/// Where the catalog of a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// How large a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// A few seconds, for the tests.
    Rehearsal,
    /// A full round.
    Whole,
}

/// Where the files that must not be lost may be moved to.
const SAFE: [usize; 3] = [0, 1, 4];

/// A whole round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) backend: Backend,
    pub(crate) servers: usize,
    /// How many files each server moves itself.
    pub(crate) own_workers: usize,
    pub(crate) workers: Vec<Reach>,
    pub(crate) files: Vec<NewFile>,
    /// The steps, each after a pause.
    pub(crate) steps: Vec<(Duration, Step)>,
}

impl Plan {
    /// The round of a seed.
    pub(crate) fn of(seed: u64, backend: Backend, size: Size) -> Self {
        let mut chance = Chance::new(seed);
        let rehearsal = size == Size::Rehearsal;
        let on_postgres = backend == Backend::Postgres;
        // A server's own workers hold their files for a minute when it is killed.
        let own_workers = if !rehearsal && chance.percent(35) { 2 } else { 0 };
        let servers = if on_postgres && chance.percent(40) { 2 } else { 1 };
        let workers = (0..2 + chance.below(2))
            .map(|_| match chance.percent(if on_postgres { 30 } else { 15 }) {
                true => Reach::Catalog,
                false => Reach::Server,
            })
            .collect();
        let (files, steps) = if rehearsal { (12, 20) } else { (80, 70) };
        let mut plan = Self {
            seed,
            backend,
            servers,
            own_workers,
            workers,
            files: (0..files).map(|_| new_file(&mut chance)).collect(),
            steps: Vec::new(),
        };
        while plan.steps.len() < steps {
            // Some steps come while the previous one is still under way.
            let most = if chance.percent(50) { 40 } else { 500 };
            let pause = chance.millis(0, if rehearsal { most.min(200) } else { most });
            // Rules come first, or there is nothing to disturb.
            let step = match plan.steps.len() < steps / 8 {
                true => add_rule(&mut chance),
                false => plan.step(&mut chance),
            };
            let moves = matches!(step, Step::Upload { .. });
            plan.steps.push((pause, step));
            if moves && chance.percent(75) {
                plan.steps.push((chance.millis(20, 500), plan.disturbance(&mut chance)));
            }
        }
        plan.steps.truncate(steps);
        // Once in a while a server is away for longer than its own leases and claims last, and
        // another does its work meanwhile.
        if !rehearsal && servers > 1 && chance.percent(30) {
            let (who, at) = (Who::Server(servers - 1), steps / 4 + chance.below(steps / 4));
            let during = chance.millis(62_000, 70_000);
            plan.steps[at].1 = Step::Freeze { who, during };
        }
        plan
    }

    fn step(&self, chance: &mut Chance) -> Step {
        let (rule, file, copy) = (chance.below(1_000), chance.below(1_000), chance.below(1_000));
        let dataset = 1 + chance.below(DATASETS.len() - 1);
        let site = chance.below(SITES.len());
        match chance.below(100) {
            0..13 => add_rule(chance),
            13..15 => Step::Download { file },
            15..18 => Step::Check,
            18..26 => {
                let how = chance.one_of(&[Deletion::AtOnce, Deletion::Soft, Deletion::Purge]);
                Step::DeleteRule { rule, how }
            }
            26..32 => Step::MoveRule { rule, expression: chance.one_of(&SAFE) },
            32..34 => Step::ReduceRule { rule },
            34..36 => Step::RepairRule { rule },
            36..38 => Step::Attach { dataset, file },
            38..41 => Step::Rush {
                add: (0..1 + chance.below(3)).map(|_| new_rule(chance)).collect(),
                delete: (0..chance.below(4)).map(|_| chance.below(1_000)).collect(),
                attach: (0..chance.below(4))
                    .map(|_| (1 + chance.below(DATASETS.len() - 1), chance.below(1_000)))
                    .collect(),
            },
            41..44 => Step::Detach { dataset, file },
            44..47 => Step::Nest { dataset, into: chance.percent(60) },
            47..51 => Step::DeclareBad { file, copy },
            51..55 => Step::Corrupt { file, copy, cut: chance.percent(50) },
            55..60 => Step::Tombstone { file, copy },
            60..70 => {
                let killed = chance.percent(20).then(|| chance.millis(1, 200));
                let first = new_file(chance);
                let files = (0..1 + chance.below(10))
                    .map(|_| NewFile { bytes: new_file(chance).bytes, ..first.clone() })
                    .collect();
                Step::Upload { files, killed }
            }
            70..73 => {
                let what = chance.one_of(&["read", "write", "delete"]);
                Step::Close { site, what, during: chance.millis(500, 4_000) }
            }
            73..75 => Step::Reap,
            75..83 => {
                let most = chance.one_of(&[300, 1_500]);
                Step::Kill { who: self.who(chance), during: chance.millis(0, most) }
            }
            83..91 => {
                let who = self.who(chance);
                // Longer than a worker's lease; a server that does not answer holds up everything.
                let (least, most) = match who {
                    Who::Worker(_) => (1_500, 6_000),
                    _ => (200, 3_000),
                };
                Step::Freeze { who, during: chance.millis(least, most) }
            }
            91..93 if self.backend == Backend::Postgres => {
                Step::KillBackend { which: copy, crash: chance.percent(30) }
            }
            91..96 => Step::Away { site, during: chance.millis(300, 3_000) },
            _ => Step::ReadOnly { site, during: chance.millis(300, 3_000) },
        }
    }

    /// A step that disturbs files in transfer.
    fn disturbance(&self, chance: &mut Chance) -> Step {
        loop {
            let step = self.step(chance);
            let kind = match &step {
                Step::Kill { .. } | Step::Freeze { .. } | Step::KillBackend { .. } => true,
                Step::Away { .. } | Step::ReadOnly { .. } => true,
                Step::DeleteRule { how, .. } => *how == Deletion::Purge,
                _ => false,
            };
            if kind {
                return step;
            }
        }
    }

    fn who(&self, chance: &mut Chance) -> Who {
        match chance.below(10) {
            0..5 => Who::Worker(chance.below(self.workers.len())),
            5..8 => Who::Server(chance.below(self.servers)),
            _ if self.backend == Backend::Postgres => Who::Database,
            _ => Who::Worker(chance.below(self.workers.len())),
        }
    }
}

fn add_rule(chance: &mut Chance) -> Step {
    Step::AddRule(new_rule(chance))
}

fn new_rule(chance: &mut Chance) -> NewRule {
    let expression = chance.below(EXPRESSIONS.len());
    NewRule {
        // The datasets that may go, the container, and single files.
        did: 1 + chance.below(DATASETS.len() + 1),
        file: chance.below(1_000),
        expression,
        copies: 1 + chance.below(EXPRESSIONS[expression].1.min(3)),
        grouping: chance.one_of(&["DATASET", "NONE", "ALL"]),
        lifetime: chance.percent(15).then(|| 1 + chance.below(8)),
    }
}

fn new_file(chance: &mut Chance) -> NewFile {
    let bytes = match chance.below(10) {
        0 => 0,
        1..4 => 1 + chance.below(100),
        4..7 => chance.below(200_000),
        7..9 => chance.below(2 << 20),
        _ => chance.below(12 << 20),
    };
    NewFile { bytes, site: chance.below(TINY), dataset: chance.below(DATASETS.len()) }
}

/// The content of a file, from its seed.
pub(crate) fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut chance = Chance::new(seed);
    let mut made = Vec::with_capacity(bytes + 8);
    while made.len() < bytes {
        made.extend(chance.next().to_le_bytes());
    }
    made.truncate(bytes);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_everything() {
        for backend in [Backend::Sqlite, Backend::Postgres] {
            for seed in 0..50 {
                let plan = Plan::of(seed, backend, Size::Whole);
                assert_eq!(plan, Plan::of(seed, backend, Size::Whole));
                assert_ne!(plan.steps, Plan::of(seed + 1, backend, Size::Whole).steps);
                assert_eq!(plan.steps.len(), 70);
            }
        }
        assert_eq!(content(7, 1_000), content(7, 1_000));
        assert_ne!(content(7, 1_000), content(8, 1_000));
    }

    #[test]
    fn steps_speak_only_of_what_there_is() {
        for seed in 0..200 {
            let plan = Plan::of(seed, Backend::Sqlite, Size::Whole);
            assert_eq!(plan.servers, 1);
            for (_, step) in &plan.steps {
                match step {
                    Step::AddRule(rule) => {
                        assert!((1..=EXPRESSIONS[rule.expression].1).contains(&rule.copies));
                    }
                    Step::MoveRule { expression, .. } => {
                        assert!(EXPRESSIONS[*expression].1 >= 3, "the copies that there were fit");
                    }
                    Step::Kill { who, .. } | Step::Freeze { who, .. } => match who {
                        Who::Worker(number) => assert!(*number < plan.workers.len()),
                        Who::Server(number) => assert!(*number < plan.servers),
                        Who::Database => panic!("SQLite has no process"),
                    },
                    Step::Detach { dataset, .. } => {
                        assert_ne!(*dataset, 0, "what is kept is not let go");
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn every_kind_of_step_comes_up() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..40 {
            for (_, step) in Plan::of(seed, Backend::Postgres, Size::Whole).steps {
                let text = step.to_string();
                let name = text.split([' ', '(', '{']).next().unwrap().to_owned();
                seen.insert(name);
            }
        }
        assert_eq!(seen.len(), 22, "{seen:?}");
    }
}
