//! Secrets: stock kubectl writes them, administrators read them, instances start with them, and
//! their values are nowhere else; and files of the programs are closed to others.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::process::{MAINSTAY, TestServer, cannot_test, folder, text_of};
use crate::sessions::{TestAgent, apply, get, until};

/// Texts that must not appear, plain or in base64.
const HUSH: &str = "hush-hush-97311";
const HUSH_BASE64: &str = "aHVzaC1odXNoLTk3MzEx";

fn token(server: &TestServer, role: &[&str]) -> String {
    let output = server.mainstay(&[&["token", "create", "--role"], role].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The output of a command with this token.
fn as_user(server: &TestServer, token: &str, arguments: &[&str]) -> String {
    text_of(&server.mainstay(&[arguments, &["--token", token]].concat()))
}

#[test]
fn stock_kubectl_works_with_secrets_and_only_administrators_do() {
    let server = TestServer::start();
    let kubectl = |arguments: &[&str], input: &str| {
        let mut command = server.client("kubectl");
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().ok()?;
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Some(text_of(&child.wait_with_output().unwrap()))
    };
    let literal = format!("--from-literal=word={HUSH}");
    let Some(said) = kubectl(&["create", "secret", "generic", "db", &literal], "") else {
        return cannot_test("kubectl is not installed");
    };
    assert_eq!(said, "secret/db created\n");
    let listed = kubectl(&["get", "secrets"], "").unwrap();
    let words: Vec<&str> = listed.split_whitespace().collect();
    assert_eq!(words[..7], ["NAME", "TYPE", "DATA", "AGE", "db", "Opaque", "1"]);
    let shown = kubectl(&["get", "secret", "db", "-o", "jsonpath={.data.word}"], "").unwrap();
    assert_eq!(shown, HUSH_BASE64);
    let manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: more}\ndata: {a: eA==}\nstringData: {b: plain}\n";
    for (arguments, what) in [
        (&["apply", "-f", "-"][..], "secret/more created\n"),
        (&["apply", "-f", "-"], "secret/more"),
        (&["apply", "--server-side", "--force-conflicts", "-f", "-"], "secret/more"),
    ] {
        let said = kubectl(arguments, manifest).unwrap();
        assert!(said.starts_with(what), "{said}");
    }
    let shown = kubectl(&["get", "secret", "more", "-o", "jsonpath={.data}"], "").unwrap();
    assert_eq!(shown, r#"{"a":"eA==","b":"cGxhaW4="}"#);
    let shown = kubectl(&["get", "secret", "more", "-o", "yaml"], "").unwrap();
    assert!(!shown.contains("\nstringData"), "{shown}");
    let described = kubectl(&["describe", "secret", "db"], "").unwrap();
    assert!(described.contains("word:  15 bytes") && !described.contains(HUSH), "{described}");
    let odd = manifest.replace("eA==", "not base64").replace("more", "odd");
    assert!(kubectl(&["apply", "-f", "-"], &odd).unwrap().contains("[exit code"));
    for role in [&["viewer"][..], &["editor"], &["node", "--node", "n1"]] {
        let token = token(&server, role);
        for arguments in [
            &["get", "secret", "db", "-o", "yaml"][..],
            &["get", "secrets"],
            &["get", "secrets", "-A"],
            &["delete", "secret", "db"],
        ] {
            let said = as_user(&server, &token, arguments);
            assert!(said.contains("[exit code"), "{role:?} {arguments:?}: {said}");
            assert!(!said.contains(HUSH_BASE64), "{role:?} {arguments:?}: {said}");
        }
    }
    assert!(kubectl(&["delete", "secret", "db", "more"], "").unwrap().contains("deleted"));
}

/// Every file below a folder, but for what instances keep for themselves.
fn files(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(at).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        found.push(entry.path());
        if kind.is_dir() && entry.file_name() != "work" {
            files(&entry.path(), found);
        }
    }
}

fn holds(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn instances_start_with_secrets_and_the_values_are_nowhere_else() {
    let (data, state) = (folder(), folder());
    let server = TestServer::start_in(data.path(), &["--gateway-ports", "none", "--log", "debug"]);
    let _agent = TestAgent::real(&server, "n1", state.path());
    apply(
        &server,
        "apiVersion: apps.mainstay.dev/v1\nkind: Application\nmetadata: {name: web, namespace: default}\n\
         spec:\n  command: [/bin/sh, -c, 'echo \"$WORD\" > seen; exec sleep 600']\n  \
         env: [{name: WORD, valueFrom: {secretKeyRef: {name: db, key: word}}}, {name: MAYBE, valueFrom: {secretKeyRef: {name: none, key: word, optional: true}}}]\n  \
         scalingPolicy: {minimumInstance: 1, maximumInstance: 1, idleSessionNumThreshold: {low: 0, high: 1}}\n",
    );
    until("the instance waits for its secret", || {
        let found = get(&server, "instances")?;
        let message = found["items"][0]["status"]["message"].as_str()?;
        message.contains("secret \"db\" not found").then_some(())
    });
    let literal = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: db, namespace: default}}\nstringData: {{word: {HUSH}}}\n"
    );
    apply(&server, &literal);
    let seen = until("the instance has seen its secret", || {
        let mut all = Vec::new();
        files(state.path(), &mut all);
        let seen = all.iter().map(|at| at.join("seen")).find(|seen| seen.is_file())?;
        std::fs::read_to_string(seen).ok().filter(|text| !text.is_empty())
    });
    assert_eq!(seen.trim(), HUSH);
    // No object that others read, and no file but the store itself.
    for what in ["instances", "applications", "events", "nodes"] {
        let shown = text_of(&server.mainstay(&["get", what, "-A", "-o", "yaml"]));
        assert!(!shown.contains(HUSH) && !shown.contains(HUSH_BASE64), "{what}: {shown}");
    }
    let mut all = Vec::new();
    files(state.path(), &mut all);
    files(data.path(), &mut all);
    for file in all.iter().filter(|file| file.is_file()) {
        let stores =
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("objects.db"));
        let found = !stores && (holds(file, HUSH) || holds(file, HUSH_BASE64));
        assert!(!found, "{} holds the value", file.display());
    }
    for (wrong, why) in [
        ("{name: A, value: x, valueFrom: {secretKeyRef: {name: db, key: word}}}", "valueFrom"),
        ("{name: A, valueFrom: {}}", "secretKeyRef"),
        ("{name: A, valueFrom: {secretKeyRef: {name: Db_, key: word}}}", "secretKeyRef.name"),
    ] {
        let manifest = format!(
            "apiVersion: apps.mainstay.dev/v1\nkind: Application\nmetadata: {{name: bad, namespace: default}}\nspec: {{command: [/bin/true], env: [{wrong}], scalingPolicy: {{maximumInstance: 1, idleSessionNumThreshold: {{low: 0, high: 1}}}}}}\n"
        );
        let file = data.path().join("bad.yaml");
        std::fs::write(&file, manifest).unwrap();
        let said = text_of(&server.mainstay(&["apply", "-f", &file.display().to_string()]));
        assert!(said.contains(why) && said.contains("[exit code"), "{wrong}: {said}");
    }
}

/// A program that was started with an umask of 0; killed when dropped.
struct Open(Child);

impl Open {
    fn start(arguments: &[&str], ready: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", "umask 0; exec \"$0\" \"$@\"", MAINSTAY])
            .args(arguments)
            .env_remove("MAINSTAY_DATA_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let seen = lines.by_ref().any(|line| line.contains(ready));
        assert!(seen, "{arguments:?} did not start");
        std::thread::spawn(move || lines.for_each(drop));
        Self(child)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // It may have ended by itself already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn files_are_closed_to_others_whatever_the_umask() {
    let above = folder();
    let (data, state) = (above.path().join("data"), above.path().join("state"));
    let (data_dir, state_dir) = (data.display().to_string(), state.display().to_string());
    let serve =
        ["serve", "--data-dir", &data_dir, "--listen", "127.0.0.1:0", "--gateway-ports", "none"];
    let _server = Open::start(&serve, "mainstay is ready at");
    let kubeconfig = data.join("kubeconfig").display().to_string();
    let mainstay = |arguments: &[&str]| {
        let mut command = Command::new(MAINSTAY);
        let command = command.args(arguments).env("KUBECONFIG", &kubeconfig).stdin(Stdio::null());
        command.env("HOME", above.path()).output().unwrap()
    };
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let address = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let address = address.trim_matches('"').to_owned();
    let token = mainstay(&["token", "create", "--role", "node", "--node", "n1"]);
    let token = String::from_utf8(token.stdout).unwrap();
    let authority = data.join("ca.crt").display().to_string();
    let agent = [
        "agent",
        "--server",
        &address,
        "--token",
        token.trim(),
        "--node-name",
        "n1",
        "--ca-cert",
        &authority,
        "--state-dir",
        &state_dir,
        "--devices",
        "/dev/none*",
    ];
    let _agent = Open::start(&agent, "mainstay agent is ready");
    let manifest = above.path().join("app.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: apps.mainstay.dev/v1\nkind: Application\nmetadata: {name: web, namespace: default}\n\
         spec: {command: [/bin/sleep, '600'], env: [{name: A, value: plain}], configData: {level: '7'}, usingNodeSessionService: true, scalingPolicy: {minimumInstance: 1, maximumInstance: 1, idleSessionNumThreshold: {low: 0, high: 1}}}\n",
    )
    .unwrap();
    let applied = mainstay(&["apply", "-f", &manifest.display().to_string()]);
    assert!(applied.status.success(), "{}", text_of(&applied));
    assert!(mainstay(&["rules", "rse", "add", "SITE-A"]).status.success());
    until("an instance runs", || {
        let mut all = Vec::new();
        files(&state, &mut all);
        all.iter().any(|at| at.ends_with("config/level")).then_some(())
    });
    let mut all = vec![data.clone(), state.clone()];
    files(&data, &mut all);
    files(&state, &mut all);
    for place in all {
        // Temporary files are skipped; only files that remain are searched.
        let Ok(found) = std::fs::symlink_metadata(&place) else { continue };
        let mode = found.permissions().mode() & 0o777;
        let open = match found.is_dir() {
            // A folder may be passed where instances of other users have theirs below it.
            true if place.starts_with(&state) => mode & 0o066,
            _ if place.ends_with("ca.crt") => 0,
            _ => mode & 0o077,
        };
        assert_eq!(open, 0, "{}: {mode:o}", place.display());
    }
}
