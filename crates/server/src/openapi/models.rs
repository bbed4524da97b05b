//! The models of OpenAPI documents: a kind, its list, and what all kinds share.

use mainstay_store::registry::Kind;
use mainstay_store::schema::Schema;
use serde_json::{Map, Value, json};

/// Where models are found in an OpenAPI v3 document.
pub(super) const V3: &str = "#/components/schemas/";
/// Where models are found in an OpenAPI v2 document.
pub(super) const V2: &str = "#/definitions/";

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// The full name of a shared model, as `Status`.
pub(super) fn shared_name(name: &str) -> String {
    format!("{META}{name}")
}

/// The full name of a kind's model: `io.k8s.api.core.v1.ConfigMap`, `dev.mainstay.apps.v1.Instance`.
pub(super) fn name(kind: &Kind) -> String {
    let group = match kind.group {
        "" => "io.k8s.api.core".to_owned(),
        group => match group.strip_suffix(".k8s.io") {
            Some(own) => format!("io.k8s.api.{}", own.split('.').next().unwrap_or(own)),
            None => group.rsplit('.').collect::<Vec<_>>().join("."),
        },
    };
    format!("{group}.{}.{}", kind.version, kind.kind)
}

pub(super) fn group_version_kind(kind: &Kind, suffix: &str) -> Value {
    json!({
        "group": kind.group,
        "version": kind.version,
        "kind": format!("{}{suffix}", kind.kind),
    })
}

/// The models of a kind and of lists of it.
pub(super) fn of_kind(kind: &Kind, place: &str) -> Map<String, Value> {
    let full = name(kind);
    let mut model = kind.schema.openapi();
    if let Some(metadata) = model.pointer_mut("/properties/metadata") {
        *metadata = described(
            &format!("{place}{}", shared_name("ObjectMeta")),
            "What every object carries: its name, labels, owners and so on.",
        );
    }
    model["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind, "")]);
    let properties = model.get("properties");
    let text = |name: &str| {
        properties.and_then(|all| all.get(name)).cloned().unwrap_or(json!({"type": "string"}))
    };
    let list = json!({
        "description": format!("Some or all {}, as they were at one moment.", kind.plural),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("apiVersion"),
            "kind": text("kind"),
            "items": {
                "description": format!("The {} that were found.", kind.plural),
                "type": "array",
                "items": {"$ref": format!("{place}{full}")},
            },
            "metadata": described(
                &format!("{place}{}", shared_name("ListMeta")),
                "Which state the list shows, and how to get the rest of it.",
            ),
        },
        "x-kubernetes-group-version-kind": [group_version_kind(kind, "List")],
    });
    Map::from_iter([(format!("{full}List"), list), (full, model)])
}

/// A reference with a description of its own.
fn described(reference: &str, description: &str) -> Value {
    if reference.starts_with(V2) {
        return json!({"$ref": reference, "description": description});
    }
    json!({"allOf": [{"$ref": reference}], "default": {}, "description": description})
}

/// The models all kinds share.
pub(super) fn shared(place: &str) -> Map<String, Value> {
    let metadata = Schema::of_metadata().map(|schema| schema.openapi()).unwrap_or(json!({}));
    let list = json!({
        "description": "What a list says about itself: which state it shows, and how to get the rest of it.",
        "type": "object",
        "properties": {
            "continue": text("There is more. Send this back as the parameter continue, with everything else as before, to get the next page of the same state. It is good for a few minutes; afterwards the answer is 410. Missing on the last page."),
            "remainingItemCount": {
                "type": "integer",
                "format": "int64",
                "description": "How many objects come after this page. Missing on the last page, and if there are selectors.",
            },
            "resourceVersion": text("The state the list shows. A watch from here on misses nothing."),
            "selfLink": text("Always missing here."),
        },
    });
    let models = [
        ("ObjectMeta", metadata),
        ("ListMeta", list),
        ("Status", status(place)),
        ("DeleteOptions", delete_options()),
        (
            "Patch",
            json!({
                "description": "A change to an object. Its content type says how it is written; an apply is everything its sender wants to be so.",
                "type": "object",
            }),
        ),
    ];
    models.into_iter().map(|(name, model)| (shared_name(name), model)).collect()
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn status(place: &str) -> Value {
    json!({
        "description": "How a request went, if there is no object to answer with: every refusal, and a deletion that is done.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": described(&format!("{place}{}", shared_name("ListMeta")), "As of a list. Set only if a page of a list came too late."),
            "status": text("Success or Failure."),
            "message": text("What went wrong, for people."),
            "reason": text("What went wrong, in one word for programs, as NotFound or Conflict."),
            "code": {"type": "integer", "format": "int32", "description": "The HTTP status of the answer. Missing if all went well."},
            "details": {
                "type": "object",
                "description": "More about it, if there is more to say.",
                "properties": {
                    "name": text("The object in question, by name."),
                    "group": text("The group of that object."),
                    "kind": text("The kind of that object."),
                    "uid": text("The UID of that object."),
                    "retryAfterSeconds": {"type": "integer", "format": "int32"},
                    "causes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "field": text("The field that is wrong, as spec.taints. Missing if it is not about a field."),
                                "message": text("What is wrong, for people."),
                                "reason": text("What is wrong, in one word for programs."),
                            },
                        },
                    },
                },
            },
        },
        "x-kubernetes-group-version-kind": [{"group": "", "kind": "Status", "version": "v1"}],
    })
}

fn delete_options() -> Value {
    json!({
        "description": "How an object is to be deleted. Without any, it goes now, and what it owns after it.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "dryRun": {"type": "array", "items": {"type": "string"}, "description": "All: check everything and answer as usual, but delete nothing. Anything else is refused. If empty, the deletion takes place."},
            "gracePeriodSeconds": {"type": "integer", "format": "int64", "description": "Has no effect: objects are given no time to wind down. Must not be negative."},
            "orphanDependents": {"type": "boolean", "description": "The older form of propagationPolicy: true for Orphan, false for Background. Only one of the two may be set."},
            "preconditions": {
                "type": "object",
                "description": "What the object must be like. If it is not, nothing is deleted and the answer is 409. If not set, any will do.",
                "properties": {
                    "resourceVersion": text("The resourceVersion it must have."),
                    "uid": text("The uid it must have."),
                },
            },
            "propagationPolicy": text("What becomes of the objects that this one owns. Background: they go after it. Foreground: they go first, and it waits for those that block it. Orphan: they stay. If not set, it is Background, unless the finalizers of the object say otherwise."),
        },
        "x-kubernetes-group-version-kind": [{"group": "", "kind": "DeleteOptions", "version": "v1"}],
    })
}
