//! The tables as `docs/access.md` shows them.

use super::paths::{self, Who};
use super::table::{self, Grant};
use super::{Condition, SYSTEM};
use crate::identity::Role;

fn condition(condition: Condition) -> String {
    match condition {
        Condition::Always => String::new(),
        Condition::OutsideSystem => format!(" (not in {SYSTEM})"),
        Condition::Only { namespace, name } => format!(" (only {namespace}/{name})"),
        Condition::Own(rule) => format!(" ({})", rule.words()),
    }
}

fn cell(grants: &[Grant]) -> String {
    let one = |grant: &Grant| {
        let verbs: Vec<&str> = grant.verbs.iter().map(|verb| verb.as_str()).collect();
        format!("{}{}", verbs.join(" "), condition(grant.condition))
    };
    if grants.is_empty() {
        return "–".to_owned();
    }
    grants.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The table of kinds and the table of paths, as Markdown.
#[must_use]
pub fn markdown() -> (String, String) {
    let mut kinds = "| group | kind | editor | viewer | node |\n|---|---|---|---|---|\n".to_owned();
    for row in table::ROWS {
        let group = if row.group.is_empty() { "core" } else { row.group };
        let part = if row.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", row.subresource)
        };
        let [editor, viewer, node] =
            [Role::Editor, Role::Viewer, Role::Node].map(|role| cell(row.grants(role)));
        let plural = row.plural;
        kinds.push_str(&format!("| {group} | {plural}{part} | {editor} | {viewer} | {node} |\n"));
    }
    let mut others = "| path | method | who | |\n|---|---|---|---|\n".to_owned();
    for row in paths::ROWS {
        let who = match row.who {
            Who::Everybody => "everybody".to_owned(),
            Who::Authenticated => "everybody who is authenticated".to_owned(),
            Who::Roles(roles) => {
                let roles = roles.iter().map(|role| role.as_str());
                std::iter::once("admin").chain(roles).collect::<Vec<_>>().join(", ")
            }
        };
        let (path, methods, remark) = (row.path, row.methods.as_str(), row.remark);
        others.push_str(&format!("| `{path}` | {methods} | {who} | {remark} |\n"));
    }
    (kinds, others)
}
