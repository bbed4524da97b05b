//! The request for a new token, and its validation. Pure.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::names;
use serde::{Deserialize, Serialize};

use crate::identity::Role;

/// How long a token is good that says nothing else.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long a join token is good that says nothing else.
const JOIN_LIFE: Duration = Duration::from_secs(3600);
/// The most joins that are counted; beyond, say "unlimited".
const MOST_USES: u32 = 1000;
/// The longest name of a bearer, in bytes.
const LONGEST_NAME: usize = 253;

/// The request for a new token.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wish {
    /// The role of its bearer. A token of role node only joins: it becomes a certificate.
    pub role: Role,
    /// The node that joins with it: role node needs this or `node_prefix`.
    #[serde(default)]
    pub node: Option<String>,
    /// Nodes whose names begin like this join with it.
    #[serde(default)]
    pub node_prefix: Option<String>,
    /// The zone of the nodes that join with it.
    #[serde(default)]
    pub zone: Option<String>,
    /// How many joins it is good for; one if absent.
    #[serde(default)]
    pub uses: Option<Uses>,
    /// A name for the audit log.
    #[serde(default)]
    pub name: Option<String>,
    /// How long it is good; if absent an hour for role node, 90 days for others.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

/// How many joins a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Uses {
    /// So many.
    Count(u32),
    /// Any number.
    Unlimited(Unlimited),
}

/// The word for any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unlimited {
    /// Any number.
    Unlimited,
}

impl Wish {
    /// A token of this role, with nothing else out of the ordinary.
    #[must_use]
    pub fn of(role: Role) -> Self {
        let (node, node_prefix, zone, uses, name) = (None, None, None, None, None);
        Self { role, node, node_prefix, zone, uses, name, ttl_seconds: None }
    }

    /// The reason why it is invalid, if it is.
    pub(super) fn problem(&self) -> Option<String> {
        let node = self.node.as_deref().map(|node| (node, "node"));
        let prefix = self.node_prefix.as_deref().map(|prefix| (prefix, "nodePrefix"));
        if self.role == Role::Node {
            let wrong = match (node, prefix) {
                (None, None) => Some("a token of role node needs node or nodePrefix".to_owned()),
                (Some(_), Some(_)) => Some("give either node or nodePrefix, not both".to_owned()),
                (Some((node, field)), _) => problem_of(field, names::subdomain_problems(node)),
                (_, Some(("", field))) => Some(format!("{field}: must not be empty")),
                (_, Some((prefix, field))) => {
                    problem_of(field, names::subdomain_problems(&format!("{prefix}0")))
                }
            };
            if wrong.is_some() {
                return wrong;
            }
        } else if node.or(prefix).is_some() || self.zone.is_some() || self.uses.is_some() {
            let fields = "node, nodePrefix, zone and uses are for tokens of role node only";
            return Some(fields.to_owned());
        }
        if let Some(Uses::Count(count)) = self.uses
            && !(1..=MOST_USES).contains(&count)
        {
            return Some(format!("uses: must be 1 to {MOST_USES}, or \"unlimited\""));
        }
        let zone = self.zone.as_deref();
        zone.and_then(|zone| match zone {
            "" => Some("zone: must not be empty".to_owned()),
            zone => problem_of("zone", names::label_value_problems(zone)),
        })
        .or_else(|| self.name.as_deref().and_then(name_problem))
    }

    /// How many joins it is good for; `None` is any number.
    pub(super) fn counted_uses(&self) -> Option<u32> {
        match (self.role, self.uses) {
            (Role::Node, None) => Some(1),
            (Role::Node, Some(Uses::Count(count))) => Some(count),
            _ => None,
        }
    }

    /// When it ends.
    pub(super) fn expires(&self, now: Timestamp) -> Result<Timestamp, String> {
        let life = match (self.ttl_seconds, self.role) {
            (Some(0), _) => return Err("ttlSeconds: must be at least 1".to_owned()),
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Role::Node) => JOIN_LIFE,
            (None, _) => LIFE,
        };
        now.checked_add(life).map_err(|_| "ttlSeconds: the token would live too long".to_owned())
    }
}

fn problem_of(field: &str, problems: Vec<String>) -> Option<String> {
    problems.into_iter().next().map(|problem| format!("{field}: {problem}"))
}

/// The reason why the name of a bearer is invalid, if it is.
fn name_problem(name: &str) -> Option<String> {
    let wrong = if name.trim().is_empty() {
        "must not be empty"
    } else if name.len() > LONGEST_NAME {
        "must be no more than 253 bytes"
    } else if name.chars().any(char::is_control) {
        "must not contain control characters"
    } else {
        return None;
    };
    Some(format!("name: {wrong}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_that_contradict_themselves_are_refused() {
        let text = |text: &str| Some(text.to_owned());
        let node = || Wish { node: text("n1"), ..Wish::of(Role::Node) };
        let fine = [
            Wish::of(Role::Editor),
            node(),
            Wish { zone: text("a"), uses: Some(Uses::Count(5)), ..node() },
            Wish { node: None, node_prefix: text("sim."), ..node() },
            Wish { node: None, node_prefix: text("sim"), ..node() },
            Wish { name: text("Ada L."), ..Wish::of(Role::Viewer) },
        ];
        for wish in fine {
            assert_eq!(wish.problem(), None, "{wish:?}");
        }
        let cases = [
            (Wish::of(Role::Node), "needs node"),
            (Wish { node: text(""), ..node() }, "node:"),
            (Wish { node: text("N 1"), ..node() }, "node:"),
            (Wish { node_prefix: text("n"), ..node() }, "not both"),
            (Wish { node: None, node_prefix: text("A"), ..node() }, "nodePrefix:"),
            (Wish { node: None, node_prefix: text(""), ..node() }, "nodePrefix: must not be empty"),
            (Wish { node: text("n1"), ..Wish::of(Role::Admin) }, "role node only"),
            (Wish { zone: text("a"), ..Wish::of(Role::Viewer) }, "role node only"),
            (Wish { uses: Some(Uses::Count(1)), ..Wish::of(Role::Editor) }, "role node only"),
            (Wish { uses: Some(Uses::Count(0)), ..node() }, "uses:"),
            (Wish { uses: Some(Uses::Count(1001)), ..node() }, "uses:"),
            (Wish { zone: text(""), ..node() }, "zone:"),
            (Wish { zone: text("a b"), ..node() }, "zone:"),
            (Wish { name: text(""), ..node() }, "name:"),
            (Wish { name: text(" "), ..Wish::of(Role::Editor) }, "name:"),
            (Wish { name: text("a\nb"), ..Wish::of(Role::Editor) }, "name:"),
            (Wish { name: Some("x".repeat(254)), ..Wish::of(Role::Admin) }, "name:"),
        ];
        for (wish, expected) in cases {
            let problem = wish.problem().unwrap_or_default();
            assert!(problem.contains(expected), "{wish:?}: {problem}");
        }
    }

    #[test]
    fn join_tokens_live_an_hour_for_one_join_and_others_ninety_days() {
        let now: Timestamp = "2026-11-16T00:00:00Z".parse().unwrap();
        let after = |wish: &Wish| wish.expires(now).unwrap().duration_since(now).as_secs();
        let node = Wish { node: Some("n1".to_owned()), ..Wish::of(Role::Node) };
        assert_eq!((after(&node), node.counted_uses()), (3600, Some(1)));
        let editor = Wish::of(Role::Editor);
        assert_eq!((after(&editor), editor.counted_uses()), (90 * 24 * 3600, None));
        let unlimited = Uses::Unlimited(Unlimited::Unlimited);
        let many = Wish { uses: Some(unlimited), ttl_seconds: Some(5), ..node };
        assert_eq!((after(&many), many.counted_uses()), (5, None));
        assert!(Wish { ttl_seconds: Some(0), ..Wish::of(Role::Admin) }.expires(now).is_err());
        assert!(
            Wish { ttl_seconds: Some(u64::MAX), ..Wish::of(Role::Admin) }.expires(now).is_err()
        );
        let read: Wish =
            serde_json::from_str(r#"{"role":"node","node":"a","uses":"unlimited"}"#).unwrap();
        assert_eq!(read.uses, Some(unlimited));
    }
}
