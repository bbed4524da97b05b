//! The operations on a kind, with the parameters each takes.

use mainstay_store::registry::Kind;
use serde_json::{Map, Value, json};

use super::models::{self, V3, shared_name};

/// The paths of a kind's collection, objects and subresources.
pub(super) fn of_kind(kind: &Kind) -> Map<String, Value> {
    let base = if kind.group.is_empty() {
        format!("/api/{}", kind.version)
    } else {
        format!("/apis/{}/{}", kind.group, kind.version)
    };
    let mut paths = Map::new();
    let collection = if kind.namespaced {
        let everywhere = format!("{base}/{}", kind.plural);
        let list = operation(kind, Verb::List, "", "ForAllNamespaces");
        paths.insert(everywhere, json!({"get": list, "parameters": [pretty()]}));
        format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{base}/{}", kind.plural)
    };
    let place = |named: bool| {
        let mut parameters = vec![pretty()];
        if named {
            parameters.push(path_parameter("name", &format!("name of the {}", kind.kind)));
        }
        if kind.namespaced {
            let about = "object name and auth scope, such as for teams and projects";
            parameters.push(path_parameter("namespace", about));
        }
        Value::Array(parameters)
    };
    paths.insert(
        collection.clone(),
        json!({
            "get": operation(kind, Verb::List, "", ""),
            "post": operation(kind, Verb::Create, "", ""),
            "parameters": place(false),
        }),
    );
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation(kind, Verb::Get, "", ""),
            "put": operation(kind, Verb::Replace, "", ""),
            "patch": operation(kind, Verb::Patch, "", ""),
            "delete": operation(kind, Verb::Delete, "", ""),
            "parameters": place(true),
        }),
    );
    if kind.has_status {
        paths.insert(
            format!("{collection}/{{name}}/status"),
            json!({
                "get": operation(kind, Verb::Get, "Status", ""),
                "put": operation(kind, Verb::Replace, "Status", ""),
                "patch": operation(kind, Verb::Patch, "Status", ""),
                "parameters": place(true),
            }),
        );
    }
    if kind.has_finalize {
        paths.insert(
            format!("{collection}/{{name}}/finalize"),
            json!({
                "put": operation(kind, Verb::Replace, "Finalize", ""),
                "parameters": place(true),
            }),
        );
    }
    paths
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    List,
    Create,
    Replace,
    Patch,
    Delete,
}

impl Verb {
    fn action(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Create => "post",
            Self::Replace => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Get => "read",
            Self::List => "list",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

fn operation(kind: &Kind, verb: Verb, part: &str, suffix: &str) -> Value {
    let group = match kind.group {
        "" => "Core".to_owned(),
        group => capitalised(group.split('.').next().unwrap_or(group)),
    };
    let scope = if kind.namespaced && suffix.is_empty() { "Namespaced" } else { "" };
    let id = format!(
        "{}{group}{}{scope}{}{part}{suffix}",
        verb.word(),
        capitalised(kind.version),
        kind.kind
    );
    let object = reference(&models::name(kind));
    let answer = match verb {
        Verb::List => reference(&format!("{}List", models::name(kind))),
        Verb::Delete => reference(&shared_name("Status")),
        _ => object.clone(),
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), response("OK", &answer));
    if matches!(verb, Verb::Create | Verb::Replace | Verb::Patch) {
        responses.insert("201".to_owned(), response("Created", &answer));
    }
    if matches!(verb, Verb::Create | Verb::Delete) {
        responses.insert("202".to_owned(), response("Accepted", &answer));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    let mut operation = json!({
        "tags": [tag(kind)],
        "description": description(kind, verb, part),
        "operationId": id,
        "parameters": parameters(verb),
        "responses": responses,
        "x-kubernetes-action": verb.action(),
        "x-kubernetes-group-version-kind": models::group_version_kind(kind, ""),
    });
    let body = match verb {
        Verb::Create | Verb::Replace => Some(json!({
            "required": true,
            "content": {"*/*": {"schema": object}},
        })),
        Verb::Patch => {
            let patch = json!({"schema": reference(&shared_name("Patch"))});
            let mut content = json!({
                "application/apply-patch+yaml": patch,
                "application/json-patch+json": patch,
                "application/merge-patch+json": patch,
            });
            if kind.is_well_known() {
                content["application/strategic-merge-patch+json"] = patch;
            }
            Some(json!({"required": true, "content": content}))
        }
        Verb::Delete => Some(json!({
            "content": {"*/*": {"schema": reference(&shared_name("DeleteOptions"))}},
        })),
        Verb::Get | Verb::List => None,
    };
    if let Some(body) = body {
        operation["requestBody"] = body;
    }
    operation
}

fn description(kind: &Kind, verb: Verb, part: &str) -> String {
    let of = match part {
        "" => String::new(),
        part => format!("{} of ", part.to_lowercase()),
    };
    match verb {
        Verb::Get => format!("read {of}the specified {}", kind.kind),
        Verb::List => format!("list or watch objects of kind {}", kind.kind),
        Verb::Create => format!("create a {}", kind.kind),
        Verb::Replace => format!("replace {of}the specified {}", kind.kind),
        Verb::Patch => format!("partially update {of}the specified {}", kind.kind),
        Verb::Delete => format!("delete a {}", kind.kind),
    }
}

fn tag(kind: &Kind) -> String {
    let group = match kind.group {
        "" => "core",
        group => group.split('.').next().unwrap_or(group),
    };
    format!("{group}_{}", kind.version)
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{V3}{name}")})
}

fn response(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn query(name: &str, kind: &str, about: &str) -> Value {
    json!({
        "name": name,
        "in": "query",
        "description": about,
        "schema": {"type": kind, "uniqueItems": true},
    })
}

fn path_parameter(name: &str, about: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "description": about,
        "required": true,
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn pretty() -> Value {
    query("pretty", "string", "If 'true', then the output is pretty printed.")
}

fn parameters(verb: Verb) -> Value {
    const DRY_RUN: &str = "When present, indicates that modifications should not be persisted. An invalid or unrecognized dryRun directive will result in an error response and no further processing of the request. Valid values are: - All: all dry run stages will be processed";
    const MANAGER: &str = "fieldManager is a name associated with the actor or entity that is making these changes. The value must be less than or 128 characters long, and only contain printable characters.";
    const VALIDATION: &str = "fieldValidation instructs the server on how to handle objects in the request containing unknown or duplicate fields. Valid values are: - Ignore: silently drop them, - Warn: send a warning for each, - Strict: fail the request with a BadRequest error.";
    let text = |name: &str, about: &str| query(name, "string", about);
    let mut parameters = Vec::new();
    match verb {
        Verb::Get => {}
        Verb::List => parameters.extend([
            query("allowWatchBookmarks", "boolean", "allowWatchBookmarks requests watch events with type \"BOOKMARK\"."),
            text("continue", "The continue option should be set when retrieving more results from the server."),
            text("fieldSelector", "A selector to restrict the list of returned objects by their fields. Defaults to everything."),
            text("labelSelector", "A selector to restrict the list of returned objects by their labels. Defaults to everything."),
            query("limit", "integer", "limit is a maximum number of responses to return for a list call."),
            text("resourceVersion", "resourceVersion sets a constraint on what resource versions a request may be served from."),
            text("resourceVersionMatch", "resourceVersionMatch determines how resourceVersion is applied to list calls."),
            query("sendInitialEvents", "boolean", "sendInitialEvents=true may be set together with watch=true: the stream begins with the objects there are."),
            query("timeoutSeconds", "integer", "Timeout for the list/watch call."),
            query("watch", "boolean", "Watch for changes to the described resources and return them as a stream of add, update, and remove notifications."),
        ]),
        Verb::Create | Verb::Replace => parameters.extend([
            text("dryRun", DRY_RUN),
            text("fieldManager", MANAGER),
            text("fieldValidation", VALIDATION),
        ]),
        Verb::Patch => parameters.extend([
            text("dryRun", DRY_RUN),
            text("fieldManager", MANAGER),
            text("fieldValidation", VALIDATION),
            query("force", "boolean", "Force is going to \"force\" Apply requests. It means user will re-acquire conflicting fields owned by other people."),
        ]),
        Verb::Delete => parameters.extend([
            text("dryRun", DRY_RUN),
            query("gracePeriodSeconds", "integer", "The duration in seconds before the object should be deleted."),
            query("orphanDependents", "boolean", "Deprecated: please use the PropagationPolicy."),
            text("propagationPolicy", "Whether and how garbage collection will be performed."),
        ]),
    }
    Value::Array(parameters)
}
