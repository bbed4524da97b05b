//! Authorization inside the dialects that engines bring along: reserving space, acting as an account
//! of Rucio, and speaking for a node. Pure.
//!
//! The table of paths decides whether a request reaches a dialect at all ([`super::paths`]). These
//! functions decide the rest from the [`User`] that the server found, so that no decision about a
//! user is made elsewhere. A request without a user has no rights here.

use http::Method;

use crate::identity::{Role, User};

/// Whether a request to the scheduler extender may go on: everybody who gets there may look, and only
/// administrators and editors reserve space.
pub(crate) fn may_reserve(user: Option<&User>, method: &Method) -> bool {
    let writes = matches!(user.and_then(|user| user.role), Some(Role::Admin | Role::Editor));
    writes || *method == Method::GET
}

/// Whether a user may register an agent under the name of a node.
pub(crate) fn may_register(user: Option<&User>, node: &str) -> bool {
    user.is_some_and(|user| user.role == Some(Role::Admin) || user.speaks_for(node))
}

/// The account of Rucio on whose behalf a user of the server acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    /// Whether it may do everything.
    pub(crate) privileged: bool,
    pub(crate) read_only: bool,
}

/// The account of administrators.
const ROOT: &str = "root";

/// The account that a user acts as. An administrator is `root`, or the account that the request
/// names; an editor is the account of the same name, unless that is `root`; everybody else only reads,
/// whatever their name.
pub(crate) fn account(user: Option<&User>, named: Option<&str>) -> Option<Account> {
    let user = user?;
    let privileged = user.role == Some(Role::Admin);
    let name = match named {
        Some(account) if privileged => account,
        None if privileged => ROOT,
        _ => user.name.as_ref(),
    };
    let read_only = match user.role {
        Some(Role::Admin) => false,
        Some(Role::Editor) => name == ROOT,
        _ => true,
    };
    // There is no account without a name.
    (!name.is_empty()).then(|| Account { name: name.to_owned(), privileged, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Claims;

    fn user(name: &str, role: Option<Role>) -> User {
        let claims = role.map(Claims::of_role).unwrap_or_default();
        let node = (role == Some(Role::Node)).then(|| "n1".to_owned());
        User { name: name.into(), role, node, claims }
    }

    const ROLES: [Option<Role>; 5] =
        [Some(Role::Admin), Some(Role::Editor), Some(Role::Viewer), Some(Role::Node), None];

    #[test]
    fn only_administrators_and_editors_reserve_space() {
        let may = |method: Method| {
            ROLES.map(|role| may_reserve(Some(&user("x", role)), &method)).to_vec()
        };
        assert_eq!(may(Method::GET), [true; 5], "the table of paths decides who looks");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
            assert_eq!(may(method), [true, true, false, false, false]);
        }
        assert!(!may_reserve(None, &Method::POST));
    }

    #[test]
    fn an_agent_registers_only_under_a_name_that_its_credential_speaks_for() {
        let node = user("system:node:n1", Some(Role::Node));
        assert!(may_register(Some(&node), "n1"));
        for other in ["n2", "n1.5", "n", ""] {
            assert!(!may_register(Some(&node), other), "{other:?}");
        }
        let may = ROLES.map(|role| may_register(Some(&user("n2", role)), "n2"));
        assert_eq!(may, [true, false, false, false, false]);
        assert!(!may_register(None, "n1"));
    }

    #[test]
    fn a_user_acts_as_the_account_of_its_role() {
        let account = |role, name: &str, named: Option<&str>| {
            let found = account(Some(&user(name, role)), named)?;
            Some((found.name, found.privileged, found.read_only))
        };
        let some =
            |name: &str, privileged, read_only| Some((name.to_owned(), privileged, read_only));
        let admin = Some(Role::Admin);
        assert_eq!(account(admin, "ada", None), some("root", true, false));
        assert_eq!(account(admin, "ada", Some("carol")), some("carol", true, false));
        assert_eq!(account(admin, "ada", Some("")), None);
        let editor = Some(Role::Editor);
        assert_eq!(account(editor, "eve", None), some("eve", false, false));
        assert_eq!(
            account(editor, "eve", Some("root")),
            some("eve", false, false),
            "not as others"
        );
        assert_eq!(account(editor, "", None), None, "an editor without a name is nobody");
        assert_eq!(account(editor, "root", None), some("root", false, true), "not as root");
        for role in [Some(Role::Viewer), Some(Role::Node), None] {
            assert_eq!(account(role, "x", Some("root")), some("x", false, true), "{role:?}");
        }
        assert_eq!(super::account(None, Some("root")), None);
    }
}
