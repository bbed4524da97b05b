//! Questions about oneself: who am I, and may I do this? They are asked by creating a review,
//! which is answered and not kept.

use http::StatusCode;
use http::request::Parts;
use mainstay_store::registry::Registry;
use mainstay_store::status::Error;
use serde_json::{Map, Value, json};

use crate::body::{self, Incoming};
use crate::identity::{self, Attempt, Claims, Role, User, Verb, Verdict};
use crate::negotiate;
use crate::path::Target;
use crate::reply::{self, Reply};
use crate::service::{App, accept, wrong_method};

/// What is asked.
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
    user: &User,
) -> Result<Reply, Error> {
    if parts.method != http::Method::POST {
        return Err(wrong_method());
    }
    negotiate::form(accept(parts))?;
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let content_type = content_type.map(|value| value.to_str().unwrap_or("?"));
    let format = negotiate::object_format(content_type)?;
    let bytes = body::read(parts, incoming, app.limits.body).await?;
    let mut object = body::object(format, &bytes)?.object;
    let spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let status = match review {
        Review::Subject => json!({"userInfo": user_info(user)}),
        Review::Access => {
            let allowed = may(app.resources.registry(), user, &spec);
            let reason = match user.role {
                Some(role) => format!("the role {role}"),
                None => "no role".to_owned(),
            };
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

/// Whether a user may do what a review describes. What only the object can decide counts as
/// allowed when the review names no object.
fn may(registry: &Registry, user: &User, spec: &Map<String, Value>) -> bool {
    if let Some(path) = spec.get("nonResourceAttributes") {
        let verb = path.get("verb").and_then(Value::as_str).unwrap_or("");
        return user.role == Some(Role::Admin) || (user.role.is_some() && verb == "get");
    }
    let asked = spec.get("resourceAttributes");
    let text = |name: &str| asked.and_then(|asked| asked.get(name)?.as_str()).unwrap_or("");
    let some = |name: &str| Some(text(name)).filter(|text| !text.is_empty());
    let verbs = [
        Verb::Get,
        Verb::List,
        Verb::Watch,
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::DeleteCollection,
    ];
    let verb = verbs.into_iter().find(|verb| verb.as_str() == text("verb"));
    let plural = text("resource");
    let kind = registry.iter().find(|kind| kind.group == text("group") && kind.plural == plural);
    let (Some(verb), Some(kind)) = (verb, kind) else {
        // Whatever it is: who may do everything may do it too.
        return user.role == Some(Role::Admin);
    };
    let attempt = Attempt { verb, kind, namespace: some("namespace"), name: some("name") };
    match identity::judge(user, &attempt) {
        Verdict::Allowed => true,
        Verdict::Denied => false,
        Verdict::IfOwn => attempt.name.is_none() || attempt.name == user.node.as_deref(),
    }
}

fn rules(user: &User) -> Value {
    let read = ["get", "list", "watch"];
    let (verbs, groups): (&[&str], &[&str]) = match user.role {
        Some(Role::Admin | Role::Editor) => (&["*"], &["*"]),
        Some(Role::Viewer | Role::Node) => (&read, &["*"]),
        None => (&[], &[]),
    };
    let resource_rules: Vec<Value> = match verbs {
        [] => Vec::new(),
        verbs => vec![json!({"verbs": verbs, "apiGroups": groups, "resources": ["*"]})],
    };
    let paths: Vec<Value> = match user.role {
        Some(Role::Admin) => vec![json!({"verbs": ["*"], "nonResourceURLs": ["*"]})],
        Some(_) => vec![json!({"verbs": ["get"], "nonResourceURLs": ["*"]})],
        None => Vec::new(),
    };
    // A node may also write what is its own, which a list of rules cannot say.
    let incomplete = user.role == Some(Role::Node);
    json!({"resourceRules": resource_rules, "nonResourceRules": paths, "incomplete": incomplete})
}
