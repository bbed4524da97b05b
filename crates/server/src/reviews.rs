//! Questions about oneself: who am I, and may I do this? They are asked by creating a review,
//! which is answered and not kept.

use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use mainstay_store::status::Error;
use serde_json::{Map, Value, json};

use crate::admit::OwnOnly;
use crate::authorize::{self, Attempt, Condition, Own, Verb, Verdict, paths, table};
use crate::body::{self, Incoming};
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
        Review::Rules => rules(user),
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
        let verdict = paths::judge(user, &text("verb").to_uppercase(), text("path"));
        return (verdict == Verdict::Allowed, reason);
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

/// The rights of a user, as far as a list of rules can express them.
fn rules(user: &User) -> Value {
    let every = || json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    let resource_rules: Vec<Value> = match user.role {
        None => Vec::new(),
        Some(Role::Admin) => vec![every()],
        Some(role) => {
            let grants = table::ROWS.iter().flat_map(|row| {
                row.grants(role).iter().map(move |grant| {
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
    let incomplete = matches!(user.role, Some(Role::Editor | Role::Node));
    json!({"resourceRules": resource_rules, "nonResourceRules": paths, "incomplete": incomplete})
}
