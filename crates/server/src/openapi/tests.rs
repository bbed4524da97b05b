use mainstay_store::registry::{Registry, builtin};

use super::*;
use crate::golden;

fn documents() -> OpenApi {
    OpenApi::new(&Registry::new(builtin()).unwrap(), "v0.1.0")
}

fn parse(document: &Document) -> Value {
    serde_json::from_slice(&document.body).unwrap()
}

/// A model as `kubectl explain --recursive` lists it.
fn explain(models: &Value, model: &Value, depth: usize, out: &mut String) {
    let required: Vec<&str> = model["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (name, field) in model["properties"].as_object().into_iter().flatten() {
        let mark = if required.contains(&name.as_str()) { " -required-" } else { "" };
        let _ = writeln!(out, "{:1$}{name} <{2}>{mark}", "", depth * 2, type_of(field));
        let inner = if field["type"] == "array" { &field["items"] } else { field };
        let inner = match inner.pointer("/allOf/0/$ref").and_then(Value::as_str) {
            Some(reference) => &models[reference.rsplit('/').next().unwrap()],
            None => inner,
        };
        explain(models, inner, depth + 1, out);
    }
}

fn type_of(field: &Value) -> String {
    match field["type"].as_str() {
        Some("array") => format!("[]{}", type_of(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map[string]{}", type_of(&field["additionalProperties"]))
        }
        Some("object") => "Object".to_owned(),
        Some(kind) => match field["format"].as_str() {
            Some(format) => format!("{kind}:{format}"),
            None => kind.to_owned(),
        },
        None if field["allOf"].is_array() => "ObjectMeta".to_owned(),
        None => field["format"].as_str().unwrap_or("any").to_owned(),
    }
}

#[test]
fn every_field_of_every_kind_is_explained() {
    let documents = documents();
    for (path, kinds) in [
        ("api/v1", vec!["core.v1.ConfigMap", "core.v1.Event", "core.v1.Namespace", "core.v1.Node"]),
        ("apis/coordination.k8s.io/v1", vec!["coordination.v1.Lease"]),
    ] {
        let document = parse(documents.document(path).unwrap());
        let models = &document["components"]["schemas"];
        for kind in kinds {
            let model = &models[format!("io.k8s.api.{kind}")];
            let mut text = format!("{}\n\n", model["description"].as_str().unwrap());
            explain(models, model, 0, &mut text);
            golden::check(&format!("openapi/{kind}.txt"), &text);
            undescribed(model, kind);
        }
    }
}

/// Every field says what it is for.
fn undescribed(model: &Value, path: &str) {
    for (name, field) in model["properties"].as_object().into_iter().flatten() {
        assert!(field["description"].is_string(), "{path}.{name} has no description");
        undescribed(field, &format!("{path}.{name}"));
        undescribed(&field["items"], &format!("{path}.{name}[]"));
    }
}

#[test]
fn every_operation_names_its_kind_and_parameters() {
    let documents = documents();
    let mut text = String::new();
    for path in ["api/v1", "apis/coordination.k8s.io/v1"] {
        let document = parse(documents.document(path).unwrap());
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                if method == "parameters" {
                    continue;
                }
                let kind = &operation["x-kubernetes-group-version-kind"]["kind"];
                let parameters: Vec<&str> = operation["parameters"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(|parameter| parameter["name"].as_str())
                    .collect();
                let id = operation["operationId"].as_str().unwrap();
                let kind = kind.as_str().unwrap();
                let _ =
                    writeln!(text, "{method} {path}\n  {id} of {kind}: {}", parameters.join(" "));
            }
        }
    }
    golden::check("openapi/operations.txt", &text);
}

#[test]
fn references_lead_somewhere() {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    found.push(reference.clone());
                }
                object.values().for_each(|value| walk(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let documents = documents();
    for document in [documents.document("api/v1").unwrap(), documents.v2()] {
        let body = parse(document);
        let mut references = Vec::new();
        walk(&body, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            assert!(body.pointer(&reference[1..]).is_some(), "{reference}");
        }
    }
}

#[test]
fn the_index_names_documents_by_their_content() {
    let documents = documents();
    let index = parse(documents.index());
    let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap();
    let hash = &documents.document("api/v1").unwrap().hash;
    assert_eq!(url, format!("/openapi/v3/api/v1?hash={hash}"));
    assert!(documents.document("api/v2").is_none());
}

#[test]
fn foreign_groups_are_named_backwards() {
    use mainstay_store::builtin::Lease;
    use mainstay_store::registry::Kind;
    let mut kind = Kind::of::<Lease>().build();
    assert_eq!(models::name(&kind), "io.k8s.api.coordination.v1.Lease");
    kind.group = "storage.mainstay.dev";
    assert_eq!(models::name(&kind), "dev.mainstay.storage.v1.Lease");
}
