//! The rest of the dialect with the stock kubectl: server-side apply, cascades, reviews, and the
//! commands that read, change and write back. The tests do not depend on the client's version; where
//! a version cannot do something at all, its number is asked first.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tempfile::TempDir;

use crate::kubectl::{Session, kubectl_minor};
use crate::process::{TestServer, cannot_test, folder, text_of};

/// A server, a folder for manifests, and the minor version of the client.
struct Desk {
    server: TestServer,
    folder: TempDir,
    minor: u32,
}

impl Desk {
    fn new(what: &str) -> Option<Self> {
        let Some(minor) = kubectl_minor() else {
            cannot_test(&format!("{what} with kubectl: there is none"));
            return None;
        };
        Some(Self { server: TestServer::start(), folder: folder(), minor })
    }

    fn session(&self) -> Session<'_> {
        Session::new(&self.server)
    }

    /// Writes a manifest; gives its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Runs a command that reads a manifest of a ConfigMap called `c` with this data.
    fn with(&self, line: &str, data: &str) -> String {
        let text =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {data}\n");
        let file = self.file("c.yaml", &text);
        self.run(&format!("{line} -f {file}"))
    }

    /// Runs a command; what it said ends with its exit code if that is not 0.
    fn run(&self, line: &str) -> String {
        self.session().quiet(line)
    }

    fn data(&self) -> serde_json::Value {
        let text = self.run("get cm c -o json");
        let object: serde_json::Value = serde_json::from_str(&text).expect(&text);
        object["data"].clone()
    }

    /// A ConfigMap that belongs to another.
    fn create_owned(&self, name: &str, owner: &str) {
        let uid = self.run(&format!("get cm {owner} -o jsonpath={{.metadata.uid}}"));
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  ownerReferences:\n  - {{apiVersion: v1, kind: ConfigMap, name: {owner}, uid: {uid}, blockOwnerDeletion: true}}\n"
        );
        let file = self.file("owned.yaml", &text);
        ok(&self.run(&format!("create -f {file}")));
    }
}

/// The output of a command that must exit with 0.
#[track_caller]
fn ok(text: &str) -> &str {
    assert!(!text.contains("[exit code"), "{text}");
    text
}

/// The output of a command that must exit with `code`.
#[track_caller]
fn failed(text: &str, code: i32, named: &[&str]) {
    assert!(text.ends_with(&format!("[exit code {code}]\n")), "{text}");
    for expected in named {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
}

#[test]
fn server_side_apply_conflicts_forces_and_prunes() {
    let Some(desk) = Desk::new("server-side apply") else { return };
    let apply = |manager: &str, data: &str, more: &str| {
        desk.with(&format!("apply --server-side --field-manager={manager}{more}"), data)
    };
    ok(&apply("one", "{colour: blue, size: large}", ""));
    let refused = apply("two", "{colour: red}", "");
    failed(&refused, 1, &["conflict", "\"one\"", ".data.colour"]);
    assert_eq!(desk.data()["colour"], "blue", "nothing was written");
    ok(&apply("two", "{colour: red}", " --force-conflicts"));
    assert_eq!(desk.data(), serde_json::json!({"colour": "red", "size": "large"}));
    failed(&apply("one", "{colour: blue}", ""), 1, &["conflict", "\"two\""]);
    ok(&apply("one", "{}", ""));
    assert_eq!(desk.data(), serde_json::json!({"colour": "red"}), "what one no longer sends goes");
    let dry = apply("two", "{colour: green}", " --dry-run=server");
    ok(&dry);
    assert_eq!(desk.data()["colour"], "red");
}

#[test]
fn server_side_apply_takes_over_from_the_clients_side() {
    let Some(desk) = Desk::new("taking over from client-side apply") else { return };
    ok(&desk.with("apply", "{colour: blue, size: large, shape: round}"));
    ok(&desk.with("apply --server-side", "{colour: red, size: large, shape: round}"));
    assert_eq!(desk.data()["colour"], "red", "no conflict with oneself");
    // Older clients leave the ownership of the client's side as it was.
    if desk.minor >= 26 {
        ok(&desk.with("apply --server-side", "{colour: red, size: large}"));
        assert_eq!(desk.data(), serde_json::json!({"colour": "red", "size": "large"}));
    }
}

#[test]
fn dependents_go_after_with_or_never() {
    let Some(desk) = Desk::new("cascading deletion") else { return };
    for cascade in ["background", "foreground", "orphan"] {
        ok(&desk.run("create configmap owner"));
        desk.create_owned("child", "owner");
        desk.create_owned("grandchild", "child");
        ok(&desk.run(&format!("delete cm owner --cascade={cascade} --timeout=60s")));
        failed(&desk.run("get cm owner"), 1, &["not found"]);
        match cascade {
            "orphan" => {
                let owners = desk.run("get cm child -o jsonpath={.metadata.ownerReferences}");
                assert_eq!(owners, "", "it has no owner now");
                ok(&desk.run("get cm grandchild"));
                ok(&desk.run("delete cm child grandchild --ignore-not-found"));
            }
            "foreground" => {
                failed(&desk.run("get cm child"), 1, &["not found"]);
            }
            _ => {}
        }
        for name in ["child", "grandchild"] {
            let gone = desk.run(&format!("wait cm/{name} --for=delete --timeout=60s"));
            assert!(!gone.contains("timed out"), "{cascade}: {gone}");
        }
    }
}

#[test]
fn auth_can_i_and_whoami_work() {
    let Some(desk) = Desk::new("auth can-i") else { return };
    let token = text_of(
        &desk.server.mainstay(&["token", "create", "--role", "viewer", "--name", "victor"]),
    );
    let token = token.trim();
    assert_eq!(desk.run("auth can-i create configmaps"), "yes\n");
    assert_eq!(desk.run("auth can-i list leases"), "yes\n");
    for (who, verb, answer) in [
        (format!("--token={token}"), "list", "yes\n"),
        (format!("--token={token}"), "create", "no"),
        ("--as=victor".to_owned(), "create", "no"),
        ("--as=victor".to_owned(), "get", "yes\n"),
        ("--as=anybody --as-group=editor".to_owned(), "create", "yes\n"),
        ("--as=anybody".to_owned(), "get", "no"),
    ] {
        let said = desk.run(&format!("{who} auth can-i {verb} configmaps"));
        // Why not may be said as well.
        let fits = if answer == "no" { said.ends_with("[exit code 1]\n") } else { said == answer };
        assert!(fits && said.starts_with(answer), "{who} {verb}: {said}");
    }
    ok(&desk.run("auth can-i --list"));
    let refused = desk.run(&format!("--token={token} --as=admin get cm"));
    failed(&refused, 1, &["\"victor\" cannot impersonate"]);
    failed(&desk.run("--as=victor create configmap x"), 1, &["\"victor\" cannot create"]);
    if desk.minor >= 28 {
        let who = desk.run("auth whoami");
        assert!(ok(&who).contains("admin"), "{who}");
        let who = desk.run("--as=ada --as-group=viewer --as-uid=7 auth whoami -o json");
        for expected in ["\"ada\"", "\"viewer\"", "\"7\""] {
            assert!(ok(&who).contains(expected), "{expected} is missing: {who}");
        }
    }
}

#[test]
fn a_namespace_is_created_used_and_emptied() {
    let Some(desk) = Desk::new("create ns") else { return };
    ok(&desk.run("create ns there"));
    failed(&desk.run("create ns there"), 1, &["already exists"]);
    ok(&desk.run("create configmap a -n there --from-literal=b=c"));
    assert_eq!(desk.run("get cm -n there -o name"), "configmap/a\n");
    ok(&desk.run("delete ns there --timeout=60s"));
    failed(&desk.run("get cm a -n there"), 1, &["not found"]);
}

#[test]
fn diff_shows_changes_and_stores_nothing() {
    let Some(desk) = Desk::new("kubectl diff") else { return };
    ok(&desk.with("apply", "{colour: blue}"));
    assert_eq!(desk.with("diff", "{colour: blue}"), "", "nothing differs");
    for mode in ["diff", "diff --server-side --force-conflicts"] {
        let shown = desk.with(mode, "{colour: red}");
        failed(&shown, 1, &["-  colour: blue", "+  colour: red"]);
    }
    assert_eq!(desk.data()["colour"], "blue");
}

#[test]
fn objects_are_edited_replaced_and_annotated() {
    let Some(desk) = Desk::new("edit, replace, annotate") else { return };
    ok(&desk.with("create", "{colour: blue}"));
    let editor = desk.file("editor", "#!/bin/sh\nsed -i 's/colour: blue/colour: green/' \"$1\"\n");
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut edit = desk.session().command("edit cm c");
    let edited = edit.env("KUBE_EDITOR", &editor).stdin(Stdio::null()).output().unwrap();
    assert!(text_of(&edited).contains("edited"), "{}", text_of(&edited));
    assert_eq!(desk.data()["colour"], "green");

    let saved = desk.run("get cm c -o yaml");
    ok(&desk.with("replace", "{colour: red}"));
    assert_eq!(desk.data(), serde_json::json!({"colour": "red"}));
    let stale = desk.file("stale.yaml", &saved);
    failed(&desk.run(&format!("replace -f {stale}")), 1, &["the object has been modified"]);
    let missing = desk.file("d.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\n");
    failed(&desk.run(&format!("replace -f {missing}")), 1, &["not found"]);

    ok(&desk.run("annotate cm c note=first"));
    failed(&desk.run("annotate cm c note=second"), 1, &["note"]);
    ok(&desk.run("annotate cm c note=second --overwrite"));
    assert_eq!(desk.run("get cm c -o jsonpath={.metadata.annotations.note}"), "second");
    ok(&desk.run("annotate cm c note-"));
    assert_eq!(desk.run("get cm c -o jsonpath={.metadata.annotations.note}"), "");
}

#[test]
fn collections_are_deleted_at_once() {
    let Some(desk) = Desk::new("delete --all") else { return };
    for name in ["a", "b", "c", "d"] {
        ok(&desk.run(&format!("create configmap {name}")));
    }
    ok(&desk.run("label cm a b tier=front"));
    // In one request, as clients other than kubectl do it.
    let path = "/api/v1/namespaces/default/configmaps?labelSelector=tier%3Dfront";
    if desk.minor >= 20 {
        ok(&desk.run(&format!("delete --raw {path}")));
        assert_eq!(desk.run("get cm -o name"), "configmap/c\nconfigmap/d\n");
    }
    ok(&desk.run("delete cm --all"));
    assert_eq!(desk.run("get cm -o name"), "");
}

const CLASS: &str = "apiVersion: storage.mainstay.dev/v1\nkind: ReplicatedStoragePool\nmetadata: {name: p}\nspec:\n  type: LVM\n  lvmVolumeGroups: [{name: vg-a}]\n";

#[test]
fn our_own_kinds_are_like_custom_resources() {
    let Some(desk) = Desk::new("our own kinds") else { return };
    let kind = "replicatedstoragepools.storage.mainstay.dev";
    let file = desk.file("pool.yaml", CLASS);
    ok(&desk.run(&format!("apply -f {file}")));
    // Strategic merge, the default of `patch`, is refused; all else falls back to merge patches.
    let patch = "{\"metadata\":{\"labels\":{\"a\":\"b\"}}}";
    failed(
        &desk.run(&format!("patch {kind} p -p '{patch}'")),
        1,
        &["application/merge-patch+json"],
    );
    ok(&desk.run(&format!("patch {kind} p --type=merge -p '{patch}'")));
    ok(&desk.run(&format!("label {kind} p tier=front")));
    let two = CLASS.replace("[{name: vg-a}]", "[{name: vg-a}, {name: vg-b}]");
    let file = desk.file("pool.yaml", &two);
    ok(&desk.run(&format!("apply -f {file}")));
    let labels = desk.run(&format!("get {kind} p -o jsonpath={{.metadata.labels}}"));
    assert!(labels.contains("front") && labels.contains("\"a\":\"b\""), "{labels}");
    let groups = desk.run(&format!("get {kind} p -o jsonpath={{.spec.lvmVolumeGroups[*].name}}"));
    assert_eq!(groups, "vg-a vg-b");
    // Missing subresources are refused with a message.
    failed(&desk.run(&format!("scale {kind}/p --replicas=2")), 1, &["could not find"]);
    failed(&desk.run("scale cm/c --replicas=2"), 1, &["rror"]);
    failed(&desk.run(&format!("rollout status {kind}/p")), 1, &["rror"]);
    failed(&desk.run(&format!("rollout restart {kind}/p")), 1, &["rror"]);
    failed(&desk.run("autoscale cm c --max=2"), 1, &["rror"]);
}

#[test]
fn a_manifest_comes_from_stdin() {
    let Some(desk) = Desk::new("stdin") else { return };
    let mut child = desk
        .session()
        .command("apply -f -")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    child.stdin.take().unwrap().write_all(CLASS.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text_of(&output).contains("created"), "{}", text_of(&output));
}
