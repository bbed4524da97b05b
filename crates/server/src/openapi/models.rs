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
            "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
        );
    }
    model["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind, "")]);
    let properties = model.get("properties");
    let text = |name: &str| {
        properties.and_then(|all| all.get(name)).cloned().unwrap_or(json!({"type": "string"}))
    };
    let list = json!({
        "description": format!("{}List is a list of {}", kind.kind, kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("apiVersion"),
            "kind": text("kind"),
            "items": {
                "description": format!("List of {}.", kind.plural),
                "type": "array",
                "items": {"$ref": format!("{place}{full}")},
            },
            "metadata": described(
                &format!("{place}{}", shared_name("ListMeta")),
                "Standard list metadata.",
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
        "description": "ListMeta describes metadata that synthetic resources must have, including lists and various status objects. A resource may have only one of {ObjectMeta, ListMeta}.",
        "type": "object",
        "properties": {
            "continue": text("continue may be set if the user set a limit on the number of items returned, and indicates that the server has more data available. The value is opaque and may be used to issue another request to the endpoint that served this list to retrieve the next set of available objects."),
            "remainingItemCount": {
                "type": "integer",
                "format": "int64",
                "description": "remainingItemCount is the number of subsequent items in the list which are not included in this list response.",
            },
            "resourceVersion": text("String that identifies the server's internal version of this object that can be used by clients to determine when objects have changed."),
            "selfLink": text("Deprecated: selfLink is a legacy read-only field that is no longer populated by the system."),
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
                "description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.",
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
        "description": "Status is a return value for calls that don't return other objects.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": described(&format!("{place}{}", shared_name("ListMeta")), "Standard list metadata."),
            "status": text("Status of the operation. One of: \"Success\" or \"Failure\"."),
            "message": text("A human-readable description of the status of this operation."),
            "reason": text("A machine-readable description of why this operation is in the \"Failure\" status."),
            "code": {"type": "integer", "format": "int32", "description": "Suggested HTTP return code for this status, 0 if not set."},
            "details": {
                "type": "object",
                "description": "Extended data associated with the reason.",
                "properties": {
                    "name": text("The name of the object the status is about."),
                    "group": text("The group of that object."),
                    "kind": text("The kind of that object."),
                    "uid": text("The UID of that object."),
                    "retryAfterSeconds": {"type": "integer", "format": "int32"},
                    "causes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "field": text("The field that caused this error."),
                                "message": text("A human-readable description of the cause."),
                                "reason": text("A machine-readable description of the cause."),
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
        "description": "DeleteOptions may be provided when deleting an API object.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "dryRun": {"type": "array", "items": {"type": "string"}, "description": "When present, indicates that modifications should not be persisted. Valid values are: All."},
            "gracePeriodSeconds": {"type": "integer", "format": "int64", "description": "The duration in seconds before the object should be deleted."},
            "orphanDependents": {"type": "boolean", "description": "Deprecated: please use the PropagationPolicy."},
            "preconditions": {
                "type": "object",
                "description": "Must be fulfilled before a deletion is carried out. If not possible, a 409 Conflict status will be returned.",
                "properties": {
                    "resourceVersion": text("Specifies the target ResourceVersion."),
                    "uid": text("Specifies the target UID."),
                },
            },
            "propagationPolicy": text("Whether and how garbage collection will be performed: Orphan, Background or Foreground."),
        },
        "x-kubernetes-group-version-kind": [{"group": "", "kind": "DeleteOptions", "version": "v1"}],
    })
}
