//! Authorization: whether a user may do something, decided from two tables. Pure: no lookups, no
//! clock.
//!
//! [`table`] has a row for every kind and subresource, [`paths`] one for every other path; whatever
//! has no row is denied to everybody but administrators. Enter at [`judge`] and [`paths::judge`].
//! Some rows depend on the object: then [`judge`] answers [`Verdict::IfOwn`], and [`own`] decides
//! on the object as it is stored and as it would be stored ([`crate::admit`] asks it, right before
//! the write). [`dialects`] decides inside the dialects of engines. `docs/access.md` shows both tables;
//! a test compares them.

pub(crate) mod dialects;
mod docs;
pub(crate) mod own;
pub(crate) mod paths;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use mainstay_store::registry::{Kind, Registry};
use mainstay_store::select::FieldSelector;
use mainstay_store::status::{Error, Reason};

pub use self::docs::markdown;
pub(crate) use self::own::Own;
use crate::identity::{Role, User};

/// The namespace of the cluster's own configuration.
pub(crate) const SYSTEM: &str = "mainstay-system";

/// An operation on objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) const ALL: [Self; 8] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// The verb of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }

    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// Under which condition a row of the table allows its verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Under none.
    Always,
    /// In every namespace but [`SYSTEM`].
    OutsideSystem,
    /// This object only; a list or watch must select it by name.
    Only { namespace: &'static str, name: &'static str },
    /// Objects of the user's node only.
    Own(Own),
}

impl Condition {
    /// Whether it can be met in a namespace, or anywhere if none is given.
    pub(crate) fn holds_in(self, namespace: Option<&str>) -> bool {
        match self {
            Self::Always => true,
            Self::OutsideSystem => namespace != Some(SYSTEM),
            Self::Only { namespace: only, .. } => namespace.is_none_or(|given| given == only),
            Self::Own(rule) => namespace.is_none() || own::in_place(rule, namespace),
        }
    }
}

/// An attempt at something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) verb: Verb,
    pub(crate) group: &'a str,
    pub(crate) plural: &'a str,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    /// The field selector of a list or watch.
    pub(crate) fields: Option<&'a str>,
}

/// Whether an attempt may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Only if the object belongs to the user's node, as it is and as it shall be.
    IfOwn(Own),
    Denied,
}

/// The kinds and subresources of a registry that have no row, hence are for administrators only.
#[must_use]
pub fn uncovered(registry: &Registry) -> Vec<String> {
    let parts = registry.iter().flat_map(|kind| {
        let status = kind.has_status.then_some("status");
        let finalize = kind.has_finalize.then_some("finalize");
        let parts = [Some(""), status, finalize].into_iter().flatten();
        parts.map(move |part| (kind, part))
    });
    let missing = parts.filter(|(kind, part)| table::find(kind.group, kind.plural, part).is_none());
    missing
        .map(|(kind, part)| format!("{} {part}", kind.resource()).trim_end().to_owned())
        .collect()
}

/// Decides about an attempt.
pub(crate) fn judge(user: &User, attempt: &Attempt<'_>) -> Verdict {
    let Some(role) = user.role else { return Verdict::Denied };
    if role == Role::Admin {
        return Verdict::Allowed;
    }
    match table::condition(attempt.group, attempt.plural, attempt.subresource, role, attempt.verb) {
        None => Verdict::Denied,
        Some(condition) => resolve(user, attempt, condition),
    }
}

/// Decides about a condition as far as the path and the query tell.
fn resolve(user: &User, attempt: &Attempt<'_>, condition: Condition) -> Verdict {
    let allowed = match condition {
        Condition::Always => true,
        Condition::OutsideSystem => attempt.namespace != Some(SYSTEM),
        Condition::Only { namespace, name } => {
            attempt.namespace == Some(namespace)
                && selected(attempt, "metadata.name").as_deref() == Some(name)
        }
        Condition::Own(rule) => match (attempt.verb, rule.field()) {
            (Verb::List | Verb::Watch, Some(field)) => {
                selected(attempt, field).is_some_and(|node| user.speaks_for(&node))
            }
            (Verb::List | Verb::Watch, None) => false,
            _ if !own::in_place(rule, attempt.namespace) => false,
            _ => match attempt.name.filter(|_| rule.is_by_name()) {
                Some(name) if !user.speaks_for(name) => false,
                _ => return Verdict::IfOwn(rule),
            },
        },
    };
    if allowed { Verdict::Allowed } else { Verdict::Denied }
}

/// The one value of a field that an attempt is limited to, by its path or its field selector.
fn selected(attempt: &Attempt<'_>, field: &str) -> Option<String> {
    if field == "metadata.name"
        && let Some(name) = attempt.name
    {
        return Some(name.to_owned());
    }
    let selector = FieldSelector::parse(attempt.fields?).ok()?;
    selector.exactly(field).map(str::to_owned)
}

/// The refusal of an attempt, in Kubernetes' words.
pub(crate) fn forbidden(user: &User, kind: &Kind, attempt: &Attempt<'_>) -> Error {
    let Attempt { verb, subresource, namespace, name, .. } = attempt;
    let place = match namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let mut why = format!(
        "User \"{}\" cannot {} resource \"{}{part}\" in API group \"{}\" {place}",
        user.name,
        verb.as_str(),
        kind.plural,
        kind.group,
    );
    if let Some(hint) = hint(user, attempt) {
        why.push_str(&format!(": {hint}"));
    }
    match name {
        Some(name) => Error::forbidden(kind, name, &why),
        None => {
            let mut error = Error::forbidden(kind, "", &why);
            error.message = format!("{} is forbidden: {why}", kind.resource());
            error
        }
    }
}

/// The attempt that would be allowed instead, in words.
pub(crate) fn hint(user: &User, attempt: &Attempt<'_>) -> Option<String> {
    let Attempt { verb, group, plural, subresource, .. } = *attempt;
    match table::condition(group, plural, subresource, user.role?, verb)? {
        Condition::Always => None,
        Condition::OutsideSystem => Some(format!("only admins write in {SYSTEM}")),
        Condition::Only { namespace, name } => {
            Some(format!("the role {} may {} only {namespace}/{name}", user.role?, verb.as_str()))
        }
        Condition::Own(rule) => match (verb, rule.field()) {
            (Verb::List | Verb::Watch, Some(field)) => {
                let node = user.node.as_deref().unwrap_or("NODE");
                Some(format!("a node must select its own: fieldSelector={field}={node}"))
            }
            _ => Some(rule.words().to_owned()),
        },
    }
}

/// The refusal of a path that is not about objects.
pub(crate) fn forbidden_path(user: &User, method: &str, path: &str) -> Error {
    let message = format!("forbidden: User \"{}\" cannot {method} path \"{path}\"", user.name);
    Error::new(Reason::Forbidden, message)
}
