//! Instances over machines: processors and memory, the most available machine first.
//!
//! [`Machines`] knows what every machine has left. Machines that may take something stand in one
//! ranking: more processor left goes first, among equals the one that was used longest ago, then by
//! name. So a batch costs a few steps an item however many machines there are, and machines that
//! are alike take turns.
//!
//! What always holds: an exact fit fits; what asks for nothing reserves nothing; what a machine has
//! left is what it has minus what was reserved and not released, and may be negative when more
//! turns up on a machine than it has: then it takes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

/// An amount of processor and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Thousandths of a processor.
    pub cpu: i64,
    /// Bytes of memory.
    pub memory: i64,
}

/// What one instance needs of its machine.
#[derive(Clone, Debug, Default)]
pub struct Needs<'n> {
    /// Processor and memory.
    pub amount: Amount,
    /// Labels the machine must have.
    pub selector: Option<&'n BTreeMap<String, String>>,
    /// Machines to be taken before all others, if they can.
    pub preferred: Option<&'n HashSet<Arc<str>>>,
}

#[derive(Clone, Debug)]
struct Machine {
    has: Amount,
    left: Amount,
    labels: BTreeMap<String, String>,
    schedulable: bool,
    used: u64,
}

/// A machine's place in the ranking.
type Rank = (Reverse<i64>, u64, Arc<str>);

/// Why a machine was not taken, or that it could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// The machine.
    pub node: Arc<str>,
    /// What it has left.
    pub left: Amount,
    /// Whether it comes before others because of what it holds.
    pub preferred: bool,
    /// Why it cannot be taken; empty if it can.
    pub because: String,
}

/// Machines and what they have left.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    machines: HashMap<Arc<str>, Machine>,
    ranking: BTreeSet<Rank>,
    uses: u64,
}

fn rank(name: &Arc<str>, machine: &Machine) -> Rank {
    (Reverse(machine.left.cpu), machine.used, name.clone())
}

impl Machines {
    /// Adds a machine, or changes what it has and is called; what is reserved on it stays so. A new
    /// one takes nothing until it is [`Machines::set_schedulable`].
    pub fn join(&mut self, name: &Arc<str>, has: Amount, labels: BTreeMap<String, String>) {
        self.change(name, |machine| match machine {
            Some(machine) => {
                machine.left.cpu += has.cpu - machine.has.cpu;
                machine.left.memory += has.memory - machine.has.memory;
                machine.has = has;
                machine.labels = labels;
            }
            None => {
                *machine = Some(Machine { has, left: has, labels, schedulable: false, used: 0 });
            }
        });
    }

    /// Gives a machine other labels. Does nothing twice.
    pub fn relabel(&mut self, name: &Arc<str>, labels: BTreeMap<String, String>) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.labels = labels;
            }
        });
    }

    /// Lets a machine take things, or no more. Does nothing twice.
    pub fn set_schedulable(&mut self, name: &Arc<str>, schedulable: bool) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.schedulable = schedulable;
            }
        });
    }

    /// Forgets a machine and what is reserved on it.
    pub fn leave(&mut self, name: &Arc<str>) {
        self.change(name, |machine| *machine = None);
    }

    /// Takes an amount from a machine, whether or not it has so much.
    pub fn reserve(&mut self, name: &Arc<str>, amount: Amount) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.left.cpu -= amount.cpu;
                machine.left.memory -= amount.memory;
            }
        });
    }

    /// Gives an amount back to a machine.
    pub fn release(&mut self, name: &Arc<str>, amount: Amount) {
        self.reserve(name, Amount { cpu: -amount.cpu, memory: -amount.memory });
    }

    /// What a machine has left.
    #[must_use]
    pub fn left(&self, name: &str) -> Option<Amount> {
        self.machines.get(name).map(|machine| machine.left)
    }

    /// What a machine has.
    #[must_use]
    pub fn has(&self, name: &str) -> Option<Amount> {
        self.machines.get(name).map(|machine| machine.has)
    }

    /// How many machines may take something.
    #[must_use]
    pub fn schedulable(&self) -> usize {
        self.ranking.len()
    }

    fn change(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Option<Machine>)) {
        let mut machine = self.machines.remove(name);
        if let Some(machine) = machine.as_ref().filter(|machine| machine.schedulable) {
            self.ranking.remove(&rank(name, machine));
        }
        change(&mut machine);
        if let Some(machine) = machine {
            if machine.schedulable {
                self.ranking.insert(rank(name, &machine));
            }
            self.machines.insert(name.clone(), machine);
        }
    }

    /// Places `count` instances of the same needs, and reserves for each. As many names as could be
    /// placed come back, in order.
    pub fn place(&mut self, needs: &Needs<'_>, count: usize) -> Vec<Arc<str>> {
        let mut placed = Vec::new();
        if let Some(preferred) = needs.preferred {
            while placed.len() < count {
                let best = preferred.iter().filter_map(|name| {
                    let (name, machine) = self.machines.get_key_value(name)?;
                    let fits = machine.schedulable && refusal(machine, needs).is_none();
                    fits.then(|| rank(name, machine))
                });
                let Some((_, _, name)) = best.min() else { break };
                self.take(&name, needs.amount);
                placed.push(name);
            }
        }
        // Machines that cannot take one of these cannot take the next either: they are put aside
        // once, and come back at the end.
        let mut aside = Vec::new();
        while placed.len() < count {
            let Some((Reverse(left), _, name)) = self.ranking.first() else { break };
            if *left < needs.amount.cpu && needs.amount.cpu > 0 {
                break;
            }
            let name = name.clone();
            let Some(machine) = self.machines.get(&name) else { break };
            if refusal(machine, needs).is_some() {
                aside.extend(self.ranking.pop_first());
                continue;
            }
            self.take(&name, needs.amount);
            placed.push(name);
        }
        self.ranking.extend(aside);
        placed
    }

    fn take(&mut self, name: &Arc<str>, amount: Amount) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        self.ranking.remove(&rank(name, machine));
        self.uses += 1;
        machine.used = self.uses;
        machine.left.cpu -= amount.cpu;
        machine.left.memory -= amount.memory;
        self.ranking.insert(rank(name, machine));
    }

    /// Every machine, the best first, and why those that cannot be taken cannot.
    #[must_use]
    pub fn explain(&self, needs: &Needs<'_>) -> Vec<Considered> {
        let mut all: Vec<_> = self.machines.iter().collect();
        let preferred =
            |name: &Arc<str>| needs.preferred.is_some_and(|preferred| preferred.contains(name));
        all.sort_by_cached_key(|(name, machine)| {
            let refused = !machine.schedulable || refusal(machine, needs).is_some();
            (refused, !preferred(name), rank(name, machine))
        });
        let considered = all.into_iter().map(|(name, machine)| Considered {
            node: name.clone(),
            left: machine.left,
            preferred: preferred(name),
            because: match machine.schedulable {
                false => "the node is not ready or takes nothing new".to_owned(),
                true => {
                    refusal(machine, needs).map(|why| why.words(machine, needs)).unwrap_or_default()
                }
            },
        });
        considered.collect()
    }
}

/// Why a machine cannot take an instance.
enum Refusal {
    Cpu,
    Memory,
    Labels,
}

fn refusal(machine: &Machine, needs: &Needs<'_>) -> Option<Refusal> {
    let Amount { cpu, memory } = needs.amount;
    if cpu > 0 && machine.left.cpu < cpu {
        return Some(Refusal::Cpu);
    }
    if memory > 0 && machine.left.memory < memory {
        return Some(Refusal::Memory);
    }
    let labels = needs.selector.is_some_and(|selector| {
        selector.iter().any(|(key, value)| machine.labels.get(key) != Some(value))
    });
    labels.then_some(Refusal::Labels)
}

impl Refusal {
    fn words(&self, machine: &Machine, needs: &Needs<'_>) -> String {
        let Amount { cpu, memory } = needs.amount;
        match self {
            Self::Cpu => format!("{}m of processor left, {cpu}m needed", machine.left.cpu),
            Self::Memory => {
                format!("{} bytes of memory left, {memory} needed", machine.left.memory)
            }
            Self::Labels => {
                let missing: Vec<String> = needs
                    .selector
                    .iter()
                    .flat_map(|selector| selector.iter())
                    .filter(|(key, value)| machine.labels.get(*key) != Some(value))
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                format!("lacks the labels {}", missing.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests;
