//! Histories of changes for property tests, and their notation.
//!
//! `3 4#9 5(3,4x){x:3;y} / -4` is two transactions: the first sets 3, sets 4 to the number 9, and
//! sets 5, which needs 3 and the part x of 4 and has two parts, of which x needs 3; the second
//! deletes 4.

use std::collections::BTreeMap;
use std::fmt;

use mainstay_graph::Transaction;

use crate::south::Thing;

/// How many keys there are.
pub(crate) const KEYS: usize = 8;

pub(crate) fn key(number: usize) -> String {
    format!("thing/{number}")
}

/// A change of one key: gone, or a value that needs others and has parts that need others.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) key: usize,
    pub(crate) value: Option<Thing>,
}

/// Prints the notation, so that a failing case can be copied into a test.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = &self.value else {
            return write!(f, "-{}", self.key);
        };
        let short = |needs: &[String]| {
            let short = |need: &String| need.trim_start_matches("thing/").replace('/', "");
            needs.iter().map(short).collect::<Vec<_>>().join(",")
        };
        write!(f, "{}", self.key)?;
        if value.number != 0 {
            write!(f, "#{}", value.number)?;
        }
        if !value.needs.is_empty() {
            write!(f, "({})", short(&value.needs))?;
        }
        if !value.parts.is_empty() {
            let part = |(name, needs): (&String, &Vec<String>)| match needs.is_empty() {
                true => name.clone(),
                false => format!("{name}:{}", short(needs)),
            };
            write!(f, "{{{}}}", value.parts.iter().map(part).collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}

/// Reads a history in its notation.
pub(crate) fn history(text: &str) -> Vec<Vec<Change>> {
    text.split('/').map(|changes| changes.split_whitespace().map(change).collect()).collect()
}

fn change(text: &str) -> Change {
    if let Some(gone) = text.strip_prefix('-') {
        return Change { key: gone.parse().unwrap(), value: None };
    }
    let needs = |text: &str| {
        let long = |need: &str| match need.split_at(1) {
            (number, "") => format!("thing/{number}"),
            (number, part) => format!("thing/{number}/{part}"),
        };
        text.split(',').filter(|need| !need.is_empty()).map(long).collect::<Vec<_>>()
    };
    let (text, parts) = text.split_once('{').unwrap_or((text, "}"));
    let (text, needed) = text.split_once('(').unwrap_or((text, ")"));
    let (own, number) = text.split_once('#').unwrap_or((text, "0"));
    let part = |part: &str| {
        let (name, needed) = part.split_once(':').unwrap_or((part, ""));
        (name.to_owned(), needs(needed))
    };
    let parts = parts.trim_end_matches('}').split(';').filter(|part| !part.is_empty());
    let value = Thing {
        number: number.parse().unwrap(),
        needs: needs(needed.trim_end_matches(')')),
        parts: parts.map(part).collect(),
    };
    Change { key: own.parse().unwrap(), value: Some(value) }
}

pub(crate) fn transaction(changes: &[Change]) -> Transaction {
    changes.iter().fold(Transaction::new(), |transaction, change| match &change.value {
        Some(value) => transaction.set_typed(key(change.key), value.clone()),
        None => transaction.delete(key(change.key)),
    })
}

/// The wanted values in the end.
pub(crate) fn wanted_after(all: &[Vec<Change>]) -> BTreeMap<usize, Thing> {
    let mut wanted = BTreeMap::new();
    for change in all.iter().flatten() {
        match &change.value {
            Some(value) => wanted.insert(change.key, value.clone()),
            None => wanted.remove(&change.key),
        };
    }
    wanted
}

/// The values expected in the end: every wanted value whose dependencies exist too.
pub(crate) fn expected(wanted: &BTreeMap<usize, Thing>) -> BTreeMap<String, Thing> {
    let mut there: BTreeMap<String, Thing> = BTreeMap::new();
    loop {
        let mut more = Vec::new();
        for (number, value) in wanted {
            let name = key(*number);
            let ready = |needs: &[String]| needs.iter().all(|need| there.contains_key(need));
            if !there.contains_key(&name) {
                if ready(&value.needs) {
                    more.push((name, value.clone()));
                }
                continue;
            }
            for (part, needs) in &value.parts {
                let part_name = format!("{name}/{part}");
                if !there.contains_key(&part_name) && ready(needs) {
                    let part = Thing {
                        number: value.number,
                        needs: needs.clone(),
                        parts: BTreeMap::new(),
                    };
                    more.push((part_name, part));
                }
            }
        }
        if more.is_empty() {
            return there;
        }
        there.extend(more);
    }
}

#[test]
fn the_notation_can_be_parsed_again() {
    let text = "3 4#9 5(3,4x){x:3;y} / -4";
    let shown: Vec<String> = history(text)
        .iter()
        .map(|changes| changes.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(shown.join(" / "), text);
}
