//! Questions about oneself: who am I, and may I do this? They are asked by creating a review,
//! which is answered and not kept.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode};
use mainstay_rucio as rest;
use mainstay_store::status::Error;
use serde_json::{Map, Value, json};

use crate::admit::OwnOnly;
use crate::authorize::dialects::{self, Account};
use crate::authorize::{self, Attempt, Condition, Own, Verb, Verdict, paths, table};
use crate::body::{self, Incoming};
use crate::engines::SURFACE;
use crate::identity::{Claims, Role, User};
use crate::negotiate;
use crate::path::Target;
use crate::reply::{self, Reply};
use crate::service::{App, accept, wrong_method};

/// The question of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// Who am I?
    Subject,
    /// May I do this?
    Access,
    /// What may I do?
    Rules,
}

/// The review a path names, if it names one.
pub(crate) fn named(target: &Target<'_>) -> Option<Review> {
    let whole = target.name.is_none() && target.namespace.is_none();
    match (target.group, target.version, target.plural) {
        ("authentication.k8s.io", "v1", "selfsubjectreviews") if whole => Some(Review::Subject),
        ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") if whole => Some(Review::Access),
        ("authorization.k8s.io", "v1", "selfsubjectrulesreviews") if whole => Some(Review::Rules),
        _ => None,
    }
}

/// Answers a review.
pub(crate) async fn answer(
    app: &App,
    parts: &Parts,
    incoming: Incoming,
    review: Review,
    user: &Arc<User>,
) -> Result<Reply, Error> {
    if parts.method != http::Method::POST {
        return Err(wrong_method());
    }
    negotiate::form(accept(parts))?;
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let content_type = content_type.map(|value| value.to_str().unwrap_or("?"));
    let format = negotiate::object_format(content_type)?;
    let bytes = body::read_small(parts, incoming, &app.limits).await?;
    let mut object = body::object(format, &bytes)?.object;
    let spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let status = match review {
        Review::Subject => json!({"userInfo": user_info(user)}),
        Review::Access => {
            let (allowed, reason) = may(app, user, &spec).await;
            json!({"allowed": allowed, "reason": reason})
        }
        Review::Rules => {
            let namespace = spec.get("namespace").and_then(Value::as_str);
            rules(user, namespace.filter(|namespace| !namespace.is_empty()))
        }
    };
    object.insert("status".to_owned(), status);
    object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    Ok(reply::value(StatusCode::CREATED, &Value::Object(object)))
}

fn user_info(user: &User) -> Value {
    let Claims { uid, groups, extra } = &user.claims;
    let mut info = json!({"username": user.name});
    if !uid.is_empty() {
        info["uid"] = json!(uid);
    }
    let mut groups = groups.clone();
    let everybody = "system:authenticated";
    if !groups.iter().any(|group| group == everybody) {
        groups.push(everybody.to_owned());
    }
    info["groups"] = json!(groups);
    if !extra.is_empty() {
        info["extra"] = json!(extra);
    }
    info
}

/// Whether a user may do what a review describes, and why. A condition on the object is
/// decided on the object that the review names; without a name it is allowed, under a condition.
async fn may(app: &App, user: &Arc<User>, spec: &Map<String, Value>) -> (bool, String) {
    let reason = match user.role {
        Some(role) => format!("the role {role}"),
        None => "no role".to_owned(),
    };
    if let Some(path) = spec.get("nonResourceAttributes") {
        let text = |name: &str| path.get(name).and_then(Value::as_str).unwrap_or("");
        return may_use(user, &text("verb").to_uppercase(), text("path"), reason);
    }
    let asked = spec.get("resourceAttributes");
    let text = |name: &str| asked.and_then(|asked| asked.get(name)?.as_str()).unwrap_or("");
    let some = |name: &str| Some(text(name)).filter(|text| !text.is_empty());
    let Some(verb) = Verb::named(text("verb")) else {
        // Whatever it is: who may do everything may do it too.
        return (user.role == Some(Role::Admin), reason);
    };
    let fields = asked.and_then(|asked| asked.get("fieldSelector")).map(selector);
    let attempt = Attempt {
        verb,
        group: text("group"),
        plural: text("resource"),
        subresource: text("subresource"),
        namespace: some("namespace"),
        name: some("name"),
        fields: fields.as_deref(),
    };
    match authorize::judge(user, &attempt) {
        Verdict::Allowed => (true, reason),
        Verdict::Denied => match authorize::hint(user, &attempt) {
            None => (false, reason),
            Some(hint) => (false, format!("{reason}: {hint}")),
        },
        Verdict::IfOwn(rule) => {
            let reason = format!("{reason}: {}", rule.words());
            (attempt.name.is_none() || owns(app, user, &attempt, rule).await, reason)
        }
    }
}

/// Whether a user may use a path, by the code that decides about requests.
fn may_use(user: &User, method: &str, path: &str, reason: String) -> (bool, String) {
    if paths::judge(user, method, path) != Verdict::Allowed {
        return (false, reason);
    }
    let below = path.strip_prefix(SURFACE).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let (Some(below), Ok(method)) = (below, Method::from_bytes(method.as_bytes())) else {
        return (true, reason);
    };
    let Some(Account { name, privileged, read_only }) = dialects::account(Some(user), None) else {
        return (false, reason);
    };
    let caller = rest::Caller { account: name, privileged, read_only };
    match rest::permission(&caller, &method, below) {
        rest::Permission::Allowed => (true, reason),
        rest::Permission::ByOwner => {
            let account = caller.account;
            (true, format!("{reason}: the rule engine decides by what account {account} owns"))
        }
        rest::Permission::Denied(why) => (false, format!("{reason}: {why}")),
    }
}

/// The field selector of a review, as it would stand in a query.
fn selector(given: &Value) -> String {
    if let Some(raw) = given.get("rawSelector").and_then(Value::as_str) {
        return raw.to_owned();
    }
    let requirements = given.get("requirements").and_then(Value::as_array);
    let term = |requirement: &Value| {
        let values = requirement.get("values")?.as_array()?;
        let single = requirement.get("operator")? == "In" && values.len() == 1;
        let (key, value) = (requirement.get("key")?.as_str()?, values.first()?.as_str()?);
        single.then(|| format!("{key}={value}"))
    };
    requirements.into_iter().flatten().filter_map(term).collect::<Vec<_>>().join(",")
}

/// Whether the object that an attempt names belongs to the user's node.
async fn owns(app: &App, user: &Arc<User>, attempt: &Attempt<'_>, rule: Own) -> bool {
    let mut kinds = app.resources.registry().iter();
    let found = kinds.find(|kind| kind.group == attempt.group && kind.plural == attempt.plural);
    let (Some(kind), Some(name)) = (found, attempt.name) else { return false };
    match app.resources.get(kind, &kind.key(attempt.namespace, name)).await {
        // An object that is not there yet belongs to the node if its name is the node's.
        Err(_) => rule.is_by_name(),
        Ok(record) => {
            let own = OwnOnly::new(app, user, rule, kind, attempt);
            own.check(&record.object()).await.is_ok()
        }
    }
}

/// The rights of a user in a namespace (everywhere, if there is none), as far as a list of rules can
/// express them.
fn rules(user: &User, namespace: Option<&str>) -> Value {
    let every = || json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    let resource_rules: Vec<Value> = match user.role {
        None => Vec::new(),
        Some(Role::Admin) => vec![every()],
        Some(role) => {
            let grants = table::ROWS.iter().flat_map(|row| {
                let grants = row.grants(role).iter();
                grants.filter(move |grant| grant.condition.holds_in(namespace)).map(move |grant| {
                    let verbs: Vec<&str> = grant.verbs.iter().map(|verb| verb.as_str()).collect();
                    let part = [row.plural, row.subresource];
                    let resource = part.join("/").trim_end_matches('/').to_owned();
                    let mut rule = json!({
                        "verbs": verbs, "apiGroups": [row.group], "resources": [resource],
                    });
                    match grant.condition {
                        Condition::Only { name, .. } => rule["resourceNames"] = json!([name]),
                        Condition::Own(Own::Node | Own::Heartbeat) => {
                            rule["resourceNames"] = json!([user.node]);
                        }
                        _ => {}
                    }
                    rule
                })
            });
            grants.collect()
        }
    };
    let mut paths: Vec<Value> = paths::ROWS
        .iter()
        .filter(|row| row.admits(user))
        .map(|row| {
            json!({
                "verbs": row.methods.verbs(), "nonResourceURLs": [row.path.replace("**", "*")],
            })
        })
        .collect();
    if user.role == Some(Role::Admin) {
        paths = vec![json!({"verbs": ["*"], "nonResourceURLs": ["*"]})];
    }
    // A list of rules cannot say which objects or namespaces a condition leaves out.
    let incomplete = match user.role {
        Some(Role::Editor) => namespace.is_none(),
        role => role == Some(Role::Node),
    };
    json!({"resourceRules": resource_rules, "nonResourceRules": paths, "incomplete": incomplete})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, role: Role) -> User {
        let node = (role == Role::Node).then(|| "n1".to_owned());
        User { name: name.into(), role: Some(role), node, claims: Claims::of_role(role) }
    }

    #[test]
    fn a_list_of_rules_is_about_its_namespace() {
        let verbs = |role, namespace: Option<&str>, resource: &str| {
            let rules = rules(&user("x", role), namespace);
            let rules = rules["resourceRules"].as_array().unwrap().clone();
            let of_resource = rules.iter().filter(|rule| rule["resources"] == json!([resource]));
            let verbs = of_resource.flat_map(|rule| rule["verbs"].as_array().unwrap().clone());
            verbs.map(|verb| verb.as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        let all = "get list watch create update patch delete deletecollection";
        assert_eq!(verbs(Role::Editor, Some("default"), "configmaps"), all);
        assert_eq!(verbs(Role::Editor, None, "configmaps"), all);
        assert_eq!(verbs(Role::Editor, Some("mainstay-system"), "configmaps"), "get list watch");
        assert_eq!(verbs(Role::Node, Some("mainstay-system"), "configmaps"), "get list watch");
        assert_eq!(verbs(Role::Node, Some("default"), "configmaps"), "");
        assert_eq!(verbs(Role::Node, Some("kube-node-lease"), "leases"), "get create update");
        assert_eq!(verbs(Role::Node, Some("default"), "leases"), "");
        let incomplete = |role, namespace| rules(&user("x", role), namespace)["incomplete"].clone();
        assert_eq!(incomplete(Role::Editor, Some("default")), false);
        assert_eq!(incomplete(Role::Editor, None), true);
    }

    #[test]
    fn questions_about_paths_of_the_rule_engine_are_decided_as_requests_are() {
        let may = |name: &str, role, method: &str, path: &str| {
            let (allowed, reason) = may_use(&user(name, role), method, path, String::new());
            (allowed, reason.contains("owns"))
        };
        for (name, role, method, path, expected) in [
            ("eve", Role::Viewer, "POST", "/rucio/accounts/x", (false, false)),
            ("eve", Role::Viewer, "POST", "/rucio/replicas/list", (true, false)),
            ("eve", Role::Viewer, "POST", "/rucio/rules", (false, false)),
            ("eve", Role::Viewer, "GET", "/rucio/rules", (true, false)),
            ("eve", Role::Viewer, "DELETE", "/rucio/rules/x", (false, false)),
            ("eve", Role::Editor, "POST", "/rucio/accounts/x", (false, false)),
            ("eve", Role::Editor, "POST", "/rucio/rules", (true, true)),
            ("root", Role::Editor, "POST", "/rucio/rules", (false, false)),
            ("ada", Role::Admin, "POST", "/rucio/accounts/x", (true, false)),
            ("n1", Role::Node, "GET", "/rucio/rules", (false, false)),
            ("eve", Role::Viewer, "GET", "/metrics", (true, false)),
        ] {
            assert_eq!(may(name, role, method, path), expected, "{name} {role} {method} {path}");
        }
    }
}
