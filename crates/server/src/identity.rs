//! Users, their roles and their groups. Pure: no lookups, no clock.
//!
//! There are four roles and no others. A viewer reads; an editor also writes; an admin also gives
//! out tokens and may act as others; a node reads and writes only what is its own. The servers of a
//! cluster know each other by a group of their own, and are trusted like admins. The rights
//! of each role are in [`crate::authorize`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The group of the servers of a cluster, which act for those whose requests they forward.
pub const SERVERS: &str = "system:servers";

/// A set of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading and writing, except for secrets and what belongs to the cluster itself.
    Editor,
    /// Reading, except for secrets.
    Viewer,
    /// Reading and writing what belongs to one node.
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

/// The claims of a credential besides the name; only the groups matter to us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Tells users of the same name apart.
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
    /// The role; without one, a user has no rights.
    pub role: Option<Role>,
    /// The node they speak for.
    pub node: Option<String>,
    /// The other claims of the credential.
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

    /// Whether this user acts for a node. Every check of a node's name asks this.
    #[must_use]
    pub fn speaks_for(&self, node: &str) -> bool {
        !node.is_empty() && self.role == Some(Role::Node) && self.node.as_deref() == Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_speaks_for_itself_only() {
        let cases = [
            ("system:node:n1", "system:nodes", "n1", true),
            ("system:node:n1", "system:nodes", "n1.5", false),
            ("system:node:n1", "system:nodes", "n10", false),
            ("system:node:n1", "system:nodes", "", false),
            ("system:node:", "system:nodes", "", false),
            ("n1", "admin", "n1", false),
            ("n1", "editor", "n1", false),
        ];
        for (name, group, node, expected) in cases {
            let claims = Claims { groups: vec![group.to_owned()], ..Claims::default() };
            let user = User::of_groups(name, claims);
            assert_eq!(user.speaks_for(node), expected, "{name} of {group} as {node:?}");
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
