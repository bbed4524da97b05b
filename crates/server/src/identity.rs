//! Who asks, and what they may do. Pure: no lookups, no clock.
//!
//! There are four roles and no others. A viewer reads; an editor also writes; an admin also gives
//! out tokens and may act as others; a node reads, and writes what is its own. The servers of a
//! cluster know each other by a group of their own, and are trusted like admins. Whether an object is a node's own can
//! show only in the object, so [`judge`] may answer [`Verdict::IfOwn`]: the writer then asks
//! [`owns`] about the object as it was and as it shall be.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mainstay_store::registry::Kind;
use mainstay_store::status::{Error, Reason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The namespace in which nodes keep their heartbeats.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";

/// The group of the servers of a cluster, which act for those whose requests they forward.
pub const SERVERS: &str = "system:servers";

/// What somebody is trusted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading and writing every kind, but no tokens.
    Editor,
    /// Reading.
    Viewer,
    /// Reading, and writing what belongs to one node.
    Node,
}

impl Role {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Editor => "editor",
            Self::Viewer => "viewer",
            Self::Node => "node",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Admin, Self::Editor, Self::Viewer, Self::Node]
            .into_iter()
            .find(|role| role.as_str() == name)
    }

    fn of_group(group: &str) -> Option<Self> {
        match group {
            "system:masters" | SERVERS => Some(Self::Admin),
            "system:nodes" => Some(Self::Node),
            other => Self::named(other),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is said of somebody besides the name; only the groups matter to us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// What tells them apart from others of the same name.
    pub uid: String,
    /// The groups they are in.
    pub groups: Vec<String>,
    /// Whatever else was said.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Claims {
    /// Of somebody who has a role, and nothing else that matters.
    #[must_use]
    pub fn of_role(role: Role) -> Self {
        Self { groups: vec![role.to_string()], ..Self::default() }
    }
}

/// Somebody who proved who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// How the audit log and messages call them.
    pub name: Arc<str>,
    /// What they are trusted with; without a role, nothing.
    pub role: Option<Role>,
    /// The node they speak for.
    pub node: Option<String>,
    /// What else is said of them.
    pub claims: Claims,
}

impl User {
    /// Somebody whose groups decide: the first that means a role gives it.
    pub(crate) fn of_groups(name: &str, claims: Claims) -> Self {
        let role = claims.groups.iter().find_map(|group| Role::of_group(group));
        let node = (role == Some(Role::Node)).then(|| {
            let node = name.strip_prefix("system:node:");
            node.unwrap_or(name).to_owned()
        });
        Self { name: name.into(), role, node, claims }
    }
}

/// What is done to objects.
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

    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// An attempt at something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) verb: Verb,
    pub(crate) kind: &'a Kind,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

/// Whether an attempt may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Only if the object belongs to the user's node, before and after.
    IfOwn,
    Denied,
}

/// Decides about an attempt.
pub(crate) fn judge(user: &User, attempt: &Attempt<'_>) -> Verdict {
    match user.role {
        // What a node needs of them the server sends with the command that starts an instance.
        Some(Role::Editor | Role::Viewer | Role::Node)
            if (attempt.kind.group, attempt.kind.plural) == ("", "secrets") =>
        {
            Verdict::Denied
        }
        Some(Role::Admin | Role::Editor) => Verdict::Allowed,
        Some(Role::Viewer | Role::Node) if attempt.verb.reads() => Verdict::Allowed,
        Some(Role::Node) => judge_node(user, attempt),
        Some(Role::Viewer) | None => Verdict::Denied,
    }
}

fn judge_node(user: &User, attempt: &Attempt<'_>) -> Verdict {
    let kind = attempt.kind;
    match (kind.group, kind.plural, attempt.verb) {
        (_, _, Verb::DeleteCollection) => Verdict::Denied,
        ("", "events", Verb::Create | Verb::Update | Verb::Patch) => Verdict::Allowed,
        ("" | "coordination.k8s.io", "nodes" | "leases", Verb::Create) => Verdict::IfOwn,
        ("", "nodes", _) if attempt.name == user.node.as_deref() => Verdict::Allowed,
        ("coordination.k8s.io", "leases", _)
            if attempt.namespace == Some(NODE_LEASES) && attempt.name == user.node.as_deref() =>
        {
            Verdict::Allowed
        }
        ("", "nodes" | "namespaces" | "events", _) | ("coordination.k8s.io", "leases", _) => {
            Verdict::Denied
        }
        _ => Verdict::IfOwn,
    }
}

/// Whether an object belongs to the node a user speaks for.
pub(crate) fn owns(
    user: &User,
    kind: &Kind,
    namespace: Option<&str>,
    object: &Map<String, Value>,
) -> bool {
    let Some(node) = user.node.as_deref() else {
        return false;
    };
    let text = |part: &str, field: &str| object.get(part)?.get(field)?.as_str();
    let named = || text("metadata", "name") == Some(node);
    match (kind.group, kind.plural) {
        ("", "nodes") => named(),
        ("coordination.k8s.io", "leases") => namespace == Some(NODE_LEASES) && named(),
        ("storage.mainstay.dev", "lvmvolumegroups") => {
            let local = object.get("spec").and_then(|spec| spec.get("local"));
            local.and_then(|local| local.get("nodeName")?.as_str()) == Some(node)
        }
        _ => text("spec", "nodeName") == Some(node),
    }
}

/// The refusal of an attempt, in Kubernetes' words.
pub(crate) fn forbidden(user: &User, attempt: &Attempt<'_>) -> Error {
    let Attempt { verb, kind, namespace, name } = attempt;
    let place = match namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
        user.name,
        verb.as_str(),
        kind.plural,
        kind.group,
    );
    match name {
        Some(name) => Error::forbidden(kind, name, &why),
        None => {
            let mut error = Error::forbidden(kind, "", &why);
            error.message = format!("{} is forbidden: {why}", kind.resource());
            error
        }
    }
}

/// The refusal of a path that is not about objects.
pub(crate) fn forbidden_path(user: &User, method: &str, path: &str) -> Error {
    let message = format!("forbidden: User \"{}\" cannot {method} path \"{path}\"", user.name);
    Error::new(Reason::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::registry::{Registry, builtin};
    use serde_json::json;

    fn user(role: Role) -> User {
        let node = (role == Role::Node).then(|| "n1".to_owned());
        User { name: role.as_str().into(), role: Some(role), node, claims: Claims::of_role(role) }
    }

    #[test]
    fn roles_allow_what_they_say() {
        let registry = Registry::new(builtin()).unwrap();
        let kind = |plural: &str| {
            registry.iter().find(|kind| kind.plural == plural).expect(plural).clone()
        };
        use Role::{Admin, Editor, Node, Viewer};
        use Verb::{Create, Delete, DeleteCollection, Get, Update, Watch};
        let cases = [
            (Admin, Delete, "nodes", None, Some("n2"), Verdict::Allowed),
            (Editor, Create, "configmaps", Some("a"), None, Verdict::Allowed),
            (Viewer, Watch, "configmaps", None, None, Verdict::Allowed),
            (Viewer, Update, "configmaps", Some("a"), Some("b"), Verdict::Denied),
            (Node, Get, "configmaps", Some("a"), Some("b"), Verdict::Allowed),
            (Node, Update, "configmaps", Some("a"), Some("b"), Verdict::IfOwn),
            (Node, Create, "nodes", None, None, Verdict::IfOwn),
            (Node, Update, "nodes", None, Some("n1"), Verdict::Allowed),
            (Node, Update, "nodes", None, Some("n2"), Verdict::Denied),
            (Node, Delete, "namespaces", None, Some("n1"), Verdict::Denied),
            (Node, Update, "leases", Some(NODE_LEASES), Some("n1"), Verdict::Allowed),
            (Node, Update, "leases", Some("default"), Some("n1"), Verdict::Denied),
            (Node, Update, "leases", Some(NODE_LEASES), Some("n2"), Verdict::Denied),
            (Node, Create, "events", Some("a"), None, Verdict::Allowed),
            (Node, Delete, "events", Some("a"), Some("e"), Verdict::Denied),
            (Node, DeleteCollection, "configmaps", Some("a"), None, Verdict::Denied),
        ];
        for (role, verb, plural, namespace, name, expected) in cases {
            let attempt = Attempt { verb, kind: &kind(plural), namespace, name };
            let verdict = judge(&user(role), &attempt);
            assert_eq!(verdict, expected, "{role} {} {plural} {name:?}", verb.as_str());
        }
    }

    #[test]
    fn a_node_owns_itself_its_lease_and_what_is_placed_on_it() {
        let registry = Registry::new(builtin()).unwrap();
        let node = user(Role::Node);
        let cases = [
            ("nodes", None, json!({"metadata": {"name": "n1"}}), true),
            ("nodes", None, json!({"metadata": {"name": "n2"}}), false),
            ("leases", Some(NODE_LEASES), json!({"metadata": {"name": "n1"}}), true),
            ("leases", Some("default"), json!({"metadata": {"name": "n1"}}), false),
            ("configmaps", Some("a"), json!({"spec": {"nodeName": "n1"}}), true),
            ("configmaps", Some("a"), json!({"spec": {"nodeName": "n2"}}), false),
            ("configmaps", Some("a"), json!({"metadata": {"name": "n1"}}), false),
        ];
        for (plural, namespace, object, expected) in cases {
            let kind = registry.iter().find(|kind| kind.plural == plural).unwrap();
            let object = object.as_object().unwrap();
            assert_eq!(owns(&node, kind, namespace, object), expected, "{plural} {object:?}");
        }
    }

    #[test]
    fn certificates_give_roles_by_their_organisation() {
        let groups = |group: &str| Claims { groups: vec![group.to_owned()], ..Claims::default() };
        let cases = [
            ("ada", "admin", Some(Role::Admin), None),
            ("root", "system:masters", Some(Role::Admin), None),
            ("s1", SERVERS, Some(Role::Admin), None),
            ("system:node:n1", "system:nodes", Some(Role::Node), Some("n1")),
            ("n1", "node", Some(Role::Node), Some("n1")),
            ("eve", "strangers", None, None),
        ];
        for (name, group, role, node) in cases {
            let user = User::of_groups(name, groups(group));
            assert_eq!((user.role, user.node.as_deref()), (role, node), "{name} of {group}");
        }
    }
}
