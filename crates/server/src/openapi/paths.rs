//! The operations on a kind, with the parameters each takes.

use mainstay_store::registry::Kind;
use serde_json::{Map, Value, json};

use super::models::{self, V3, shared_name};
use crate::discovery::serves_delete_collection;

fn base(kind: &Kind) -> String {
    match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    }
}

fn collection(kind: &Kind) -> String {
    let place = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{}{place}/{}", base(kind), kind.plural)
}

/// The path of a kind's objects in the older format, with the one thing that is looked for there.
pub(super) fn dry_run_of_kind(kind: &Kind) -> Map<String, Value> {
    let patch = json!({
        "operationId": format!("patch{}", models::name(kind)),
        "parameters": [{"name": "dryRun", "in": "query", "type": "string"}],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": models::group_version_kind(kind, ""),
    });
    Map::from_iter([(format!("{}/{{name}}", collection(kind)), json!({"patch": patch}))])
}

/// The paths of a kind's collection, objects and subresources.
pub(super) fn of_kind(kind: &Kind) -> Map<String, Value> {
    let mut paths = Map::new();
    if kind.namespaced {
        let everywhere = format!("{}/{}", base(kind), kind.plural);
        let list = operation(kind, Verb::List, "", "ForAllNamespaces");
        paths.insert(everywhere, json!({"get": list, "parameters": [pretty()]}));
    }
    let collection = collection(kind);
    let place = |named: bool| {
        let mut parameters = vec![pretty()];
        if named {
            parameters.push(path_parameter("name", &format!("The name of the {}.", kind.kind)));
        }
        if kind.namespaced {
            let about = "The namespace of the objects.";
            parameters.push(path_parameter("namespace", about));
        }
        Value::Array(parameters)
    };
    let mut all = json!({
        "get": operation(kind, Verb::List, "", ""),
        "post": operation(kind, Verb::Create, "", ""),
        "parameters": place(false),
    });
    if serves_delete_collection(kind) {
        all["delete"] = operation(kind, Verb::DeleteCollection, "", "");
    }
    paths.insert(collection.clone(), all);
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
    DeleteCollection,
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
            Self::DeleteCollection => "deletecollection",
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
            Self::DeleteCollection => "deleteCollection",
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
        Verb::Delete | Verb::DeleteCollection => reference(&shared_name("Status")),
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
        Verb::Delete | Verb::DeleteCollection => Some(json!({
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
        part => format!("the {} part of ", part.to_lowercase()),
    };
    match verb {
        Verb::Get => format!("Answers with {of}one {}.", kind.kind),
        Verb::List => format!(
            "Answers with every {} that the selectors match or, as a watch, with every change to them.",
            kind.kind
        ),
        Verb::Create => {
            format!("Makes a new {}. Refused with 409 if the name is taken.", kind.kind)
        }
        Verb::Replace => format!("Puts {of}a {} in place of what is there.", kind.kind),
        Verb::Patch => format!("Changes some fields in {of}a {}.", kind.kind),
        Verb::Delete => {
            format!("Deletes one {}, at once or when its finalizers are done.", kind.kind)
        }
        Verb::DeleteCollection => {
            format!("Deletes every {} that the selectors match.", kind.kind)
        }
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
    query(
        "pretty",
        "string",
        "True writes the answer on many lines, for people. If not set, it comes on one.",
    )
}

fn parameters(verb: Verb) -> Value {
    const DRY_RUN: &str = "All: check everything and answer as usual, but store nothing. Anything else is refused. If not set, the change takes place.";
    const MANAGER: &str = "Who writes, as noted in managedFields: at most 128 printable characters. An apply must say it. If not set, it is the name of the program in the User-Agent header.";
    const VALIDATION: &str = "What to do about fields that are unknown or occur twice. Strict: refuse the request with 400. Warn: drop them and say so in a Warning header. Ignore: drop them in silence. If not set, it is Warn.";
    const FIELDS: &str = "Only objects with these values in these fields, as metadata.name=a. Each kind allows a few fields only. If not set, all.";
    const LABELS: &str =
        "Only objects with these labels, as zone=eu-1,disk in (ssd,nvme),!old. If not set, all.";
    let text = |name: &str, about: &str| query(name, "string", about);
    let mut parameters = Vec::new();
    if verb == Verb::DeleteCollection {
        parameters.extend([text("fieldSelector", FIELDS), text("labelSelector", LABELS)]);
    }
    match verb {
        Verb::Get => {}
        Verb::List => parameters.extend([
            query("allowWatchBookmarks", "boolean", "True sends a watch a BOOKMARK about once a minute, which tells how far it has come even if nothing changes. If not set, none are sent."),
            text("continue", "The next page: what metadata.continue of the page before said. If not set, the list begins at the front."),
            text("fieldSelector", FIELDS),
            text("labelSelector", LABELS),
            query("limit", "integer", "The most objects to put on a page. If not set or 0, all come on one."),
            text("resourceVersion", "For a list, the state to show: see resourceVersionMatch. For a watch, the state after which it begins. If not set or 0, a list shows the newest state, and a watch begins with the objects there are."),
            text("resourceVersionMatch", "Exact: a list shows the state of resourceVersion and no other. NotOlderThan: that one or a newer one. If not set, it is Exact for a list with a limit, else NotOlderThan. A watch takes it together with sendInitialEvents only, and then it must be NotOlderThan."),
            query("sendInitialEvents", "boolean", "For a watch: true begins with the objects there are and, if bookmarks are on, marks where they end; false begins with changes. Needs resourceVersionMatch=NotOlderThan. Refused for a list."),
            query("timeoutSeconds", "integer", "After how many seconds a watch ends, a day at most. If not set or 0, the server chooses, so that not all end at once. Has no effect on a list."),
            query("watch", "boolean", "True keeps the answer open and sends every change as a line of its own. If not set, the answer is a list."),
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
            query("force", "boolean", "For an apply only: true takes over fields that others hold with other values. If not set, such fields are a conflict, and the answer is 409."),
        ]),
        Verb::Delete | Verb::DeleteCollection => parameters.extend([
            text("dryRun", DRY_RUN),
            query("gracePeriodSeconds", "integer", "Has no effect: objects are given no time to wind down."),
            query("orphanDependents", "boolean", "The older form of propagationPolicy: true for Orphan, false for Background."),
            text("propagationPolicy", "What becomes of the objects that this one owns. Background: they go after it. Foreground: they go first. Orphan: they stay. If not set, it is Background, unless the finalizers of the object say otherwise."),
        ]),
    }
    Value::Array(parameters)
}
