//! Places instances on machines by processor and memory, the most available machine first.
//!
//! [`Machines`] tracks the free amounts of every machine. Schedulable machines are in one ranking: more processor left goes first, among equals the one that was used longest ago, then by
//! name. So a batch costs a few steps an item however many machines there are, and machines that
//! are alike take turns.
//!
//! Invariants: an exact fit fits; an instance without requests reserves nothing; the free amount of a
//! machine is its capacity minus its reservations. It may be negative if a machine reports more
//! instances than fit; such a machine takes no instances.

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

/// The needs of one instance.
#[derive(Clone, Debug, Default)]
pub struct Needs<'n> {
    /// Processor and memory.
    pub amount: Amount,
    /// Labels the machine must have.
    pub selector: Option<&'n BTreeMap<String, String>>,
    /// Machines that are preferred to all others.
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

/// A machine's position in the ranking.
type Rank = (Reverse<i64>, u64, Arc<str>);

/// A machine, and why it cannot take an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// The machine.
    pub node: Arc<str>,
    /// Its free amounts.
    pub left: Amount,
    /// Whether it is preferred.
    pub preferred: bool,
    /// Why it cannot take the instance; empty if it can.
    pub because: String,
}

/// Machines and their free amounts.
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
    /// Adds a machine, or changes its capacity and labels; its reservations stay. A new machine takes no
    /// instances until [`Machines::set_schedulable`].
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

    /// Replaces a machine's labels. Calling it again does nothing.
    pub fn relabel(&mut self, name: &Arc<str>, labels: BTreeMap<String, String>) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.labels = labels;
            }
        });
    }

    /// Sets whether a machine takes instances. Calling it again does nothing.
    pub fn set_schedulable(&mut self, name: &Arc<str>, schedulable: bool) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.schedulable = schedulable;
            }
        });
    }

    /// Removes a machine and its reservations.
    pub fn leave(&mut self, name: &Arc<str>) {
        self.change(name, |machine| *machine = None);
    }

    /// Reserves an amount on a machine, even if it has less.
    pub fn reserve(&mut self, name: &Arc<str>, amount: Amount) {
        self.change(name, |machine| {
            if let Some(machine) = machine {
                machine.left.cpu -= amount.cpu;
                machine.left.memory -= amount.memory;
            }
        });
    }

    /// Releases an amount on a machine.
    pub fn release(&mut self, name: &Arc<str>, amount: Amount) {
        self.reserve(name, Amount { cpu: -amount.cpu, memory: -amount.memory });
    }

    /// The free amounts of a machine.
    #[must_use]
    pub fn left(&self, name: &str) -> Option<Amount> {
        self.machines.get(name).map(|machine| machine.left)
    }

    /// The capacity of a machine.
    #[must_use]
    pub fn has(&self, name: &str) -> Option<Amount> {
        self.machines.get(name).map(|machine| machine.has)
    }

    /// The number of schedulable machines.
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

    /// Places up to `count` instances with the same needs, and reserves for each. Returns the machine of
    /// each placed instance, in order.
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
        // A machine that cannot take one of these cannot take the next either: it is set aside once
        // and returned at the end.
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

    /// Every machine, the best first, with the reason if it cannot take the instance.
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
                false => "the node is not ready or cordoned".to_owned(),
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
