//! Which requests leave a line in the audit log, with how much in it, and whether the answer waits
//! for the line. Pure: a policy looks at plain facts about a request that was answered.
//!
//! Rules are looked at in order and the first that matches decides. A request that no rule matches
//! leaves a line of level `Metadata` if it changes anything or was denied, and none otherwise.

use serde::{Deserialize, Serialize};

use super::Surface;

/// How much a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// There is no line.
    None,
    /// The user, the request, and its outcome.
    Metadata,
    /// The body of the request as well, without secrets.
    Request,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done, or will be.
    Allowed,
    /// The user is not known (401) or may not (403).
    Denied,
    /// Anything else: a conflict, an invalid object, a server that could not.
    Failed,
    /// The client went away before the answer; the change may have been made.
    Unknown,
}

impl Outcome {
    /// The outcome that a status code stands for.
    #[must_use]
    pub fn of(code: u16) -> Self {
        match code {
            401 | 403 => Self::Denied,
            499 => Self::Unknown,
            code if code < 400 => Self::Allowed,
            _ => Self::Failed,
        }
    }
}

/// How requests are treated while no line can be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// They are answered; the lines are kept in memory as long as there is room.
    #[default]
    Continue,
    /// Requests that may change something are refused with 503.
    Refuse,
}

/// The facts about a request that rules look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) user: &'a str,
    pub(crate) role: &'a str,
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) surface: Surface,
    pub(crate) outcome: Outcome,
    pub(crate) changes: bool,
}

/// One rule. A list that is absent matches everything; the others match if one of their entries
/// does. An entry may end with `*`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// Names of users.
    #[serde(default)]
    pub users: Option<Vec<String>>,
    /// Roles: admin, editor, viewer, node.
    #[serde(default)]
    pub roles: Option<Vec<String>>,
    /// Verbs, as the line shows them.
    #[serde(default)]
    pub verbs: Option<Vec<String>>,
    /// Collections as the line shows them: `configmaps`, `PLURAL.GROUP`.
    #[serde(default)]
    pub kinds: Option<Vec<String>>,
    /// Namespaces; the empty text stands for none.
    #[serde(default)]
    pub namespaces: Option<Vec<String>>,
    /// Parts of the API.
    #[serde(default)]
    pub surfaces: Option<Vec<Surface>>,
    /// How the request ended.
    #[serde(default)]
    pub outcomes: Option<Vec<Outcome>>,
    /// Whether the request asks for a change.
    #[serde(default)]
    pub changes: Option<bool>,
    /// How much is written about it.
    pub level: Level,
    /// Whether the answer waits until the line is written; the policy's own `before` if absent.
    #[serde(default)]
    pub before: Option<bool>,
    /// Whether a first line is written before the request is executed; the policy's own `received`
    /// if absent.
    #[serde(default)]
    pub received: Option<bool>,
}

impl Rule {
    fn matches(&self, seen: &Seen<'_>) -> bool {
        let one_of = |names: &Option<Vec<String>>, name: &str| {
            names.as_ref().is_none_or(|names| names.iter().any(|known| fits(known, name)))
        };
        one_of(&self.users, seen.user)
            && one_of(&self.roles, seen.role)
            && one_of(&self.verbs, seen.verb)
            && one_of(&self.kinds, seen.resource)
            && one_of(&self.namespaces, seen.namespace)
            && self.surfaces.as_ref().is_none_or(|all| all.contains(&seen.surface))
            && self.outcomes.as_ref().is_none_or(|all| all.contains(&seen.outcome))
            && self.changes.is_none_or(|changes| changes == seen.changes)
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// The decision about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) level: Level,
    pub(crate) before: bool,
    pub(crate) received: bool,
}

/// The whole policy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Looked at in order.
    pub rules: Vec<Rule>,
    /// Whether answers wait until their line is written, unless a rule says otherwise.
    pub before: bool,
    /// Whether requests of known users that may change something leave a first line before they are
    /// executed, unless a rule says otherwise.
    pub received: bool,
    /// Whether each batch of lines is synced to the disk.
    pub durable: bool,
    /// How requests are treated while no line can be written.
    pub on_failure: OnFailure,
    /// The largest body that a line of level `Request` holds, in bytes.
    pub body_limit: usize,
    /// The size at which the log begins a new file, in bytes.
    pub file_size: u64,
    /// How many older files are kept.
    pub files: usize,
    /// The age at which the log begins a new file, and at which older files are removed, in hours;
    /// 0 for never.
    pub file_hours: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            before: true,
            received: false,
            durable: false,
            on_failure: OnFailure::Continue,
            body_limit: 64 << 10,
            file_size: 64 << 20,
            files: 4,
            file_hours: 0,
        }
    }
}

impl Policy {
    /// Whether lines may hold bodies, so that these are worth keeping until the answer is known.
    #[must_use]
    pub fn keeps_bodies(&self) -> bool {
        self.rules.iter().any(|rule| rule.level == Level::Request)
    }

    /// Whether a request that changes nothing and was not denied may leave a line.
    pub(crate) fn sees_reads(&self) -> bool {
        self.rules.iter().any(|rule| rule.level != Level::None && rule.changes != Some(true))
    }

    /// Whether any request leaves a first line before it is executed.
    pub(crate) fn has_received(&self) -> bool {
        self.received || self.rules.iter().any(|rule| rule.received == Some(true))
    }

    pub(crate) fn decide(&self, seen: &Seen<'_>) -> Decision {
        if let Some(rule) = self.rules.iter().find(|rule| rule.matches(seen)) {
            return Decision {
                level: rule.level,
                before: rule.before.unwrap_or(self.before),
                received: rule.received.unwrap_or(self.received),
            };
        }
        let matters = seen.changes || seen.outcome == Outcome::Denied;
        let level = if matters { Level::Metadata } else { Level::None };
        Decision { level, before: self.before, received: self.received }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(verb: &'static str, code: u16) -> Seen<'static> {
        Seen {
            user: "ada",
            role: "editor",
            verb,
            resource: "configmaps",
            namespace: "default",
            surface: Surface::Objects,
            outcome: Outcome::of(code),
            changes: verb != "get",
        }
    }

    #[test]
    fn without_rules_changes_and_denials_leave_a_line_and_reads_none() {
        let policy = Policy::default();
        for (verb, code, level) in [
            ("create", 201, Level::Metadata),
            ("create", 409, Level::Metadata),
            ("create", 403, Level::Metadata),
            ("get", 200, Level::None),
            ("get", 404, Level::None),
            ("get", 401, Level::Metadata),
            ("get", 403, Level::Metadata),
        ] {
            assert_eq!(policy.decide(&seen(verb, code)).level, level, "{verb} {code}");
        }
        assert!(!policy.sees_reads() && !policy.keeps_bodies());
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy: Policy = serde_json::from_value(json!({
            "before": false,
            "rules": [
                {"users": ["system:*"], "level": "None"},
                {"kinds": ["configmaps"], "verbs": ["create"], "level": "Request", "before": true},
                {"surfaces": ["objects"], "outcomes": ["failed"], "level": "None"},
                {"changes": false, "level": "Metadata"},
            ],
        }))
        .unwrap();
        let decide = |seen: Seen<'_>| {
            let decision = policy.decide(&seen);
            (decision.level, decision.before)
        };
        assert_eq!(decide(seen("create", 201)), (Level::Request, true));
        assert_eq!(decide(Seen { user: "system:x", ..seen("create", 201) }), (Level::None, false));
        assert_eq!(decide(seen("delete", 404)), (Level::None, false));
        assert_eq!(decide(seen("delete", 200)), (Level::Metadata, false), "no rule matches");
        assert_eq!(decide(seen("get", 200)), (Level::Metadata, false));
        assert!(policy.sees_reads() && policy.keeps_bodies());
    }

    #[test]
    fn unknown_words_in_a_policy_are_refused() {
        for (policy, named) in [
            (json!({"rules": [{"level": "Everything"}]}), "Everything"),
            (json!({"rules": [{"level": "None", "user": ["a"]}]}), "user"),
            (json!({"rules": [{"level": "None", "surfaces": ["moon"]}]}), "moon"),
            (json!({"on-failure": "panic"}), "panic"),
            (json!({"rule": []}), "rule"),
            (json!({"rules": [{}]}), "level"),
        ] {
            let error = serde_json::from_value::<Policy>(policy).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
