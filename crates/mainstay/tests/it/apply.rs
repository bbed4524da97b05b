//! `mainstay apply`: fields have holders, what is no longer applied goes, and what was applied from
//! the client's side before is taken over.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{TestServer, text_of};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A server, and one manifest of a ConfigMap called `c`.
struct Bench {
    server: TestServer,
    file: PathBuf,
    _folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = crate::process::folder();
        Self { server: TestServer::start(), file: folder.path().join("c.yaml"), _folder: folder }
    }

    /// Applies a manifest with this data.
    fn apply(&self, data: &str, arguments: &[&str]) -> String {
        let text =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {data}\n");
        std::fs::write(&self.file, text).unwrap();
        let file = self.file.display().to_string();
        let mut all = vec!["apply", "-f", &file];
        all.extend(arguments);
        text_of(&self.server.mainstay(&all))
    }

    fn get(&self) -> Value {
        self.with(async |api| serde_json::to_value(api.get("c").await.unwrap()).unwrap())
    }

    /// Another party changes the object.
    fn patch(&self, manager: &str, patch: &Value) {
        self.with(async |api| {
            let params =
                PatchParams { field_manager: Some(manager.to_owned()), ..Default::default() };
            api.patch("c", &params, &Patch::Merge(patch)).await.unwrap();
        });
    }

    fn with<T>(&self, act: impl AsyncFnOnce(Api<ConfigMap>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            act(Api::namespaced(crate::kube_rs::client(&self.server).await, "default")).await
        })
    }
}

#[test]
fn fields_dropped_from_a_manifest_are_removed_and_fields_of_others_stay() {
    let bench = Bench::new();
    assert_eq!(bench.apply("{a: '1', b: '2'}", &[]), "configmap/c created\n");
    bench.patch("hand", &json!({"metadata": {"labels": {"by": "hand"}}, "data": {"x": "9"}}));
    assert_eq!(bench.apply("{a: '3'}", &[]), "configmap/c configured\n");
    assert_eq!(bench.apply("{a: '3'}", &[]), "configmap/c unchanged\n");
    let object = bench.get();
    assert_eq!(object["data"], json!({"a": "3", "x": "9"}));
    assert_eq!(object["metadata"]["labels"]["by"], "hand");
    assert_eq!(object["metadata"]["annotations"], Value::Null, "nothing is kept in annotations");
}

#[test]
fn a_conflict_names_the_field_and_its_holder_and_can_be_forced() {
    let bench = Bench::new();
    bench.apply("{a: '1', b: '2'}", &[]);
    bench.patch("hand", &json!({"data": {"a": "by hand"}}));
    let said = bench.apply("{a: '1', b: '3'}", &[]);
    for expected in ["c.yaml: ConfigMap/c", ".data.a is held by \"hand\"", "--force-conflicts"] {
        assert!(said.contains(expected), "{expected} is missing:\n{said}");
    }
    assert!(said.ends_with("[exit code 1]\n"), "{said}");
    assert_eq!(bench.get()["data"], json!({"a": "by hand", "b": "2"}), "nothing is written");
    let said = bench.apply("{a: '1', b: '3'}", &["--force-conflicts", "--dry-run=server"]);
    assert_eq!(said, "configmap/c configured (dry run)\n");
    assert_eq!(bench.get()["data"], json!({"a": "by hand", "b": "2"}), "still nothing");
    let said = bench.apply("{a: '1', b: '3'}", &["--force-conflicts"]);
    assert_eq!(said, "configmap/c configured\n");
    assert_eq!(bench.get()["data"], json!({"a": "1", "b": "3"}));
    assert_eq!(bench.apply("{a: '1', b: '3'}", &[]), "configmap/c unchanged\n", "it is ours now");
    // Equal values do not conflict: both managers own them then.
    let said = bench.apply("{a: '1'}", &["--field-manager", "another"]);
    assert_eq!(said, "configmap/c configured\n");
    assert_eq!(bench.apply("{b: '3'}", &[]), "configmap/c configured\n");
    assert_eq!(bench.get()["data"], json!({"a": "1", "b": "3"}), "the other still holds it");
}

#[test]
fn a_dry_run_reports_the_change_without_storing_it() {
    let bench = Bench::new();
    let dry = ["--dry-run=server"];
    assert_eq!(bench.apply("{a: '1'}", &dry), "configmap/c created (dry run)\n");
    bench.apply("{a: '1'}", &[]);
    assert_eq!(bench.apply("{a: '1'}", &dry), "configmap/c unchanged (dry run)\n");
    assert_eq!(bench.apply("{a: '2'}", &["--dry-run"]), "configmap/c configured (dry run)\n");
    assert_eq!(bench.get()["data"], json!({"a": "1"}));
    assert_eq!(bench.apply("{a: '2'}", &["--dry-run=none"]), "configmap/c configured\n");
}

#[test]
fn objects_of_client_side_apply_are_taken_over() {
    // As an earlier version of this program did it, and as kubectl does without --server-side.
    for manager in ["mainstay", "kubectl-client-side-apply"] {
        let bench = Bench::new();
        let applied = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "default"}, "data": {"a": "1", "b": "2"}});
        let mut object = applied.clone();
        object["metadata"]["annotations"] = json!({LAST_APPLIED: applied.to_string()});
        bench.with(async |api| {
            let params =
                PostParams { field_manager: Some(manager.to_owned()), ..Default::default() };
            api.create(&params, &serde_json::from_value(object).unwrap()).await.unwrap();
        });
        bench.patch("hand", &json!({"data": {"x": "9"}}));
        // The change of `a` is no conflict with ourselves; a dry run, which cannot take over, agrees.
        let said = bench.apply("{a: '3'}", &["--dry-run=server"]);
        assert_eq!(said, "configmap/c configured (dry run)\n", "{manager}");
        assert_eq!(bench.get()["data"], json!({"a": "1", "b": "2", "x": "9"}), "{manager}");
        assert_eq!(bench.apply("{a: '3'}", &[]), "configmap/c configured\n", "{manager}");
        let object = bench.get();
        assert_eq!(object["data"], json!({"a": "3", "x": "9"}), "{manager}: b is pruned");
        assert_eq!(object["metadata"]["annotations"], Value::Null, "{manager}");
        let parties: Vec<_> = object["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap()))
            .collect();
        assert_eq!(parties, [("mainstay", "Apply"), ("hand", "Update")], "{manager}");
        assert_eq!(bench.apply("{a: '3'}", &[]), "configmap/c unchanged\n", "{manager}");
    }
}

#[test]
fn a_saved_object_can_be_applied_again() {
    let bench = Bench::new();
    bench.apply("{a: '1'}", &[]);
    let saved = bench.server.mainstay(&["get", "cm", "c", "-o", "yaml", "--show-managed-fields"]);
    assert!(saved.status.success(), "{}", text_of(&saved));
    std::fs::write(&bench.file, &saved.stdout).unwrap();
    let file = bench.file.display().to_string();
    let said = text_of(&bench.server.mainstay(&["apply", "-f", &file]));
    assert_eq!(said, "configmap/c unchanged\n");
}

#[test]
fn a_status_is_applied_like_the_rest() {
    let server = TestServer::start();
    let folder = crate::process::folder();
    let file = folder.path().join("n.yaml");
    let apply = |status: &str| {
        let text =
            format!("apiVersion: v1\nkind: Node\nmetadata: {{name: worker}}\nstatus: {status}\n");
        std::fs::write(&file, text).unwrap();
        text_of(&server.mainstay(&["apply", "--status", "-f", &file.display().to_string()]))
    };
    let capacity = || {
        let output = server.mainstay(&["get", "node", "worker", "-o", "json"]);
        let node: Value = serde_json::from_slice(&output.stdout).unwrap();
        node["status"]["capacity"].clone()
    };
    assert_eq!(apply("{capacity: {cpu: '4', memory: 8Gi}}"), "node/worker created\n");
    assert_eq!(capacity(), json!({"cpu": "4", "memory": "8Gi"}));
    assert_eq!(apply("{capacity: {cpu: '4', memory: 8Gi}}"), "node/worker unchanged\n");
    assert_eq!(apply("{capacity: {cpu: '8'}}"), "node/worker configured\n");
    assert_eq!(capacity(), json!({"cpu": "8"}), "what is no longer applied goes");
}
