//! Acting as somebody else: the `Impersonate-*` headers.
//!
//! A server that forwards a request names the user on whose behalf it does, and an administrator may
//! make requests as another user (`kubectl --as`). No other user may. It gives no further rights: users
//! who may impersonate may already do everything. The audit log names both. Enter at [`named`] and
//! [`act`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use mainstay_store::status::{Error, Reason};

use crate::identity::{Claims, Role, User};
use crate::path::percent_decode;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// As whom somebody wants to act.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) name: String,
    claims: Claims,
}

/// As whom the headers of a request ask to act; most do not.
///
/// # Errors
/// 400 if they say what somebody has, but not who that is, or say it in no text.
pub(crate) fn named(headers: &HeaderMap) -> Result<Option<Other>, Error> {
    let ours = |name: &str| name.starts_with("impersonate-");
    if !headers.keys().any(|name| ours(name.as_str())) {
        return Ok(None);
    }
    let one = |header: &'static str| {
        let mut values = headers.get_all(header).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => text(header, value).map(Some),
            _ => Err(Error::bad_request(format!("the header {header} may be given only once"))),
        }
    };
    let name = one(USER)?.filter(|name| !name.is_empty());
    let uid = one(UID)?.unwrap_or_default();
    let groups = headers.get_all(GROUP).iter().map(|value| text(GROUP, value));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        let Some(key) = header.as_str().strip_prefix(EXTRA) else { continue };
        let key = percent_decode(key, false).map(Cow::into_owned);
        let key = key.ok_or_else(|| Error::bad_request(format!("{header} is no text")))?;
        extra.entry(key).or_default().push(text(header.as_str(), value)?);
    }
    let Some(name) = name else {
        let message = "a user to impersonate must be named (Impersonate-User)";
        return Err(Error::bad_request(message));
    };
    Ok(Some(Other { name, claims: Claims { uid, groups, extra } }))
}

fn text(header: &str, value: &HeaderValue) -> Result<String, Error> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned)
        .map_err(|_| Error::bad_request(format!("the header {header} is no text")))
}

/// The user that `user` acts as. The role follows from the groups that were named; if none were,
/// `known` tells what is known of the name.
///
/// # Errors
/// 403 for those who may not impersonate.
pub(crate) fn act(
    user: &User,
    other: Other,
    known: impl FnOnce(&str) -> Option<Arc<User>>,
) -> Result<Arc<User>, Error> {
    if user.role != Some(Role::Admin) {
        let Other { name, .. } = other;
        let message = format!(
            "users \"{name}\" is forbidden: User \"{}\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            user.name
        );
        let mut error = Error::new(Reason::Forbidden, message);
        "users".clone_into(&mut error.details.kind);
        error.details.name = name;
        return Err(error);
    }
    let Other { name, mut claims } = other;
    if claims.groups.is_empty()
        && let Some(known) = known(&name)
    {
        claims.groups.clone_from(&known.claims.groups);
        let User { role, node, .. } = (*known).clone();
        return Ok(Arc::new(User { name: name.into(), role, node, claims }));
    }
    Ok(Arc::new(User::of_groups(&name, claims)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn admin() -> User {
        User::of_groups("root", Claims::of_role(Role::Admin))
    }

    #[test]
    fn the_headers_say_who() {
        assert_eq!(named(&headers(&[("accept", "*/*")])).unwrap(), None);
        let other = named(&headers(&[
            ("impersonate-user", "ada"),
            ("impersonate-uid", "7"),
            ("impersonate-group", "viewer"),
            ("impersonate-group", "blue"),
            ("impersonate-extra-example.com%2freason", "why"),
            ("impersonate-extra-example.com%2freason", "not"),
        ]));
        let other = other.unwrap().unwrap();
        assert_eq!(other.name, "ada");
        assert_eq!((other.claims.uid.as_str(), other.claims.groups.len()), ("7", 2));
        assert_eq!(other.claims.extra["example.com/reason"], ["why", "not"]);
        let wrong: [&[(&str, &str)]; 5] = [
            &[("impersonate-group", "admin")],
            &[("impersonate-uid", "7")],
            &[("impersonate-extra-a", "b")],
            &[("impersonate-user", "")],
            &[("impersonate-user", "a"), ("impersonate-user", "b")],
        ];
        for given in wrong {
            assert_eq!(named(&headers(given)).unwrap_err().reason, Reason::BadRequest, "{given:?}");
        }
        let mut bad = HeaderMap::new();
        bad.insert("impersonate-user", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(named(&bad).unwrap_err().reason, Reason::BadRequest);
    }

    #[test]
    fn only_administrators_act_for_others() {
        let other = || named(&headers(&[("impersonate-user", "ada")])).unwrap().unwrap();
        for role in [Role::Editor, Role::Viewer, Role::Node] {
            let user = User::of_groups("eve", Claims::of_role(role));
            let refused = act(&user, other(), |_| None).unwrap_err();
            assert_eq!(refused.reason, Reason::Forbidden);
            assert!(refused.message.contains("\"eve\" cannot impersonate"), "{}", refused.message);
        }
        assert_eq!(act(&admin(), other(), |_| None).unwrap().role, None, "nothing is known of ada");
    }

    #[test]
    fn the_role_follows_from_the_groups_or_from_what_is_known() {
        let known = || Arc::new(User::of_groups("ada", Claims::of_role(Role::Editor)));
        let cases: [(&[&str], Option<Role>, Option<&str>); 4] = [
            (&["viewer"], Some(Role::Viewer), None),
            (&["strangers"], None, None),
            (&[], Some(Role::Editor), None),
            (&["system:nodes"], Some(Role::Node), Some("ada")),
        ];
        for (groups, role, node) in cases {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let claims = Claims { groups, ..Claims::default() };
            let other = Other { name: "ada".to_owned(), claims };
            let user = act(&admin(), other, |_| Some(known())).unwrap();
            assert_eq!((user.role, user.node.as_deref(), &*user.name), (role, node, "ada"));
        }
    }
}
