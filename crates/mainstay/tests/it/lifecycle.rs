//! Starting, ending and starting again; bad flags; what stands in the data folder.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::{MAINSTAY, TestServer, folder, text_of};

#[test]
fn data_survives_an_orderly_shutdown() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &[]);
    let made = server.mainstay(&[
        "apply",
        "-f",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests/config.yaml"),
    ]);
    assert!(made.status.success(), "{}", text_of(&made));
    let status = server.terminate();
    assert_eq!(status.code(), Some(0));
    let server = TestServer::start_in(folder.path(), &[]);
    let text = text_of(&server.mainstay(&["get", "cm", "-o", "name"]));
    assert_eq!(text, "configmap/database\nconfigmap/settings\n");
}

#[test]
fn secrets_are_for_their_owner_alone() {
    let server = TestServer::start();
    // The database holds the key of the certificate authority.
    for name in ["kubeconfig", "audit.log", "objects.db", "objects.db-wal"] {
        let path = server.kubeconfig().with_file_name(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn two_servers_never_share_a_data_folder() {
    let folder = folder();
    let _first = TestServer::start_in(folder.path(), &[]);
    let (mut second, said) = TestServer::try_start_in(folder.path(), &[]);
    let said = said.expect_err("the second server must not become ready");
    assert!(said.contains("error:"), "{said}");
    assert_eq!(second.wait().unwrap().code(), Some(1), "{said}");
}

#[test]
fn up_prints_the_address_of_a_server_that_runs_already() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &[]);
    let output = Command::new(MAINSTAY).arg("up").arg("--data-dir").arg(folder.path()).output();
    let text = text_of(&output.unwrap());
    assert!(text.contains(&server.address()) && text.contains("[exit code 1]"), "{text}");
}

#[test]
fn a_memory_store_is_empty_after_a_restart() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &["--store", "memory:"]);
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests/config.yaml");
    assert!(server.mainstay(&["apply", "-f", manifest]).status.success());
    server.kill();
    let server = TestServer::start_in(folder.path(), &["--store", "memory:"]);
    let output = server.mainstay(&["get", "cm", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn plain_http_is_served_on_loopback_only() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &["--plain-http"]);
    assert!(server.address().starts_with("http://127.0.0.1:"), "{}", server.address());
    let text = text_of(&server.mainstay(&["get", "ns", "default", "-o", "name"]));
    assert_eq!(text, "namespace/default\n");
}

#[test]
fn bad_usage_is_exit_code_2_and_says_what_is_wrong() {
    let folder = folder();
    let data = folder.path().display().to_string();
    let config = folder.path().join("wrong.toml");
    std::fs::write(&config, "lisen = 1").unwrap();
    let config = config.display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["serve", "--data-dir", &data, "--listen", "nowhere"], "--listen"),
        (&["serve", "--data-dir", &data, "--listen", "0.0.0.0:0", "--plain-http"], "loopback"),
        (&["serve", "--data-dir", &data, "--store", "mysql://x"], "mysql://x"),
        (&["serve", "--data-dir", &data, "--only", "kitchen"], "kitchen"),
        (&["serve", "--config", &config], "lisen"),
        (&["serve", "--config", "/does/not/exist"], "/does/not/exist"),
        (&["get"], "required"),
        (&["get", "nodes", "--kubeconfig", "/does/not/exist"], "/does/not/exist"),
        (&["wait", "node/a", "--for", "luck"], "condition="),
        (&["token", "create", "--role", "king"], "king"),
    ];
    for (arguments, named) in cases {
        let output = Command::new(MAINSTAY)
            .args(*arguments)
            .env("XDG_DATA_HOME", &data)
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(named), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed data");
    }
}

#[test]
fn without_a_server_the_error_names_mainstay_up() {
    let folder = folder();
    let output = Command::new(MAINSTAY)
        .args(["get", "nodes"])
        .env("XDG_DATA_HOME", folder.path())
        .env_remove("MAINSTAY_DATA_DIR")
        .env_remove("KUBECONFIG")
        .output()
        .unwrap();
    assert!(text_of(&output).contains("mainstay up"), "{}", text_of(&output));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let server = TestServer::start();
    let mut child = server
        .client(MAINSTAY)
        .args(["watch", "namespaces", "-o", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
    assert!(output.stderr.is_empty(), "{}", text_of(&output));
}
