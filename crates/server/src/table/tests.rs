use std::fmt::Write as _;

use mainstay_store::registry::{Registry, builtin};

use super::*;
use crate::golden;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Rows as kubectl would print them, wide columns too.
fn print(plural: &str, objects: Vec<Value>) -> String {
    let registry = Registry::new(builtin()).unwrap();
    let kind = registry.iter().find(|kind| kind.plural == plural).unwrap();
    let definitions = columns(kind);
    let header = definitions.as_array().unwrap().iter().map(|column| {
        let wide = if column["priority"] == 1 { "*" } else { "" };
        format!("{}{wide}", column["name"].as_str().unwrap().to_uppercase())
    });
    let mut lines = vec![header.collect::<Vec<_>>()];
    for one in objects {
        let row = row(kind, &object(one), Include::None, "v1", now());
        let cells = row["cells"].as_array().unwrap().iter().map(|cell| match cell {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        lines.push(cells.collect());
    }
    let mut text = String::new();
    for line in &lines {
        for (at, cell) in line.iter().enumerate() {
            let width = lines.iter().map(|line| line[at].len()).max().unwrap_or(0);
            let _ = write!(text, "{cell:width$}   ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[test]
fn the_built_in_kinds_print_as_in_kubernetes() {
    let mut text = String::new();
    text += &print(
        "configmaps",
        vec![
            json!({"metadata": {"name": "a", "creationTimestamp": "2026-03-01T11:59:30Z"},
                "data": {"x": "1", "y": "2"}, "binaryData": {"z": "AA=="}}),
            json!({"metadata": {"name": "empty", "creationTimestamp": "2025-03-01T12:00:00Z"}}),
        ],
    );
    text.push('\n');
    text += &print(
        "namespaces",
        vec![json!({"metadata": {"name": "default", "creationTimestamp": "2026-02-26T10:00:00Z"},
            "status": {"phase": "Active"}})],
    );
    text.push('\n');
    text += &print(
        "nodes",
        vec![
            json!({"metadata": {"name": "n1", "creationTimestamp": "2026-03-01T09:00:00Z",
                    "labels": {"topology.kubernetes.io/zone": "eu-1", "node-role.kubernetes.io/worker": "",
                        "node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v0.1.0", "osImage": "Debian", "kernelVersion": "6.1"}}}),
            json!({"metadata": {"name": "n2"},
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            json!({"metadata": {"name": "n3"}}),
        ],
    );
    text.push('\n');
    text += &print(
        "leases",
        vec![json!({"metadata": {"name": "leader", "creationTimestamp": "2026-03-01T11:00:00Z"},
            "spec": {"holderIdentity": "server-1"}})],
    );
    text.push('\n');
    text += &print(
        "events",
        vec![
            json!({"metadata": {"name": "a.1"}, "type": "Normal", "reason": "Started",
                "message": "It started.\n", "involvedObject": {"kind": "Node", "name": "n1"},
                "firstTimestamp": "2026-03-01T11:00:00Z", "lastTimestamp": "2026-03-01T11:58:00Z",
                "count": 4, "source": {"component": "agent", "host": "n1"}}),
            json!({"metadata": {"name": "a.2"}, "type": "Warning", "reason": "Failed",
                "message": "No.", "involvedObject": {"kind": "Node"},
                "eventTime": "2026-03-01T11:59:50.000000Z", "reportingComponent": "scheduler"}),
            json!({"metadata": {"name": "a.3"}, "involvedObject": {}}),
        ],
    );
    golden::check("tables.txt", &text);
}

#[test]
fn a_row_carries_what_was_asked_for() {
    let registry = Registry::new(builtin()).unwrap();
    let kind = registry.find("", "v1", "configmaps").unwrap();
    let map = object(json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}));
    let carried = |include| row(kind, &map, include, "v1", now()).get("object").cloned();
    assert_eq!(carried(Include::None), None);
    assert_eq!(carried(Include::Object), Some(Value::Object(map.clone())));
    let metadata = json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "a"},
    });
    assert_eq!(carried(Include::Metadata), Some(metadata));
}
