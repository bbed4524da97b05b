//! `mainstay graph` asks a live engine, in the open and over TLS; `mainstay bench graph` measures.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use base64::Engine;

use crate::process::{MAINSTAY, TestServer, folder, signal, text_of};

const STORY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../graph/tests/scenarios/m1_bridge_domain.yaml");

fn mainstay(arguments: &[&str]) -> Output {
    let mut command = Command::new(MAINSTAY);
    command.env_remove("MAINSTAY_TOKEN").stdin(Stdio::null());
    command.args(arguments).output().unwrap()
}

/// A scenario that was played and is served.
fn served() -> (Child, String) {
    let mut child = Command::new(MAINSTAY)
        .args(["graph", "run", STORY, "--serve", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = lines.find_map(|line| {
        let line = line.unwrap();
        let rest = line.strip_prefix("serving ")?;
        Some(rest.split("/scheduler/").next()?.to_owned())
    });
    (child, url.expect("it is served"))
}

#[test]
fn a_live_graph_answers_every_command() {
    let (mut child, url) = served();
    let folder = folder();
    let change = folder.path().join("change.yaml");
    std::fs::write(&change, "set: {/interface/tap9: {}}\nretry: {period: 3s}\n").unwrap();
    let change = change.to_str().unwrap();
    for (arguments, code, said) in [
        (&["show"][..], 0, "digraph"),
        (&["show", "--format", "svg", "--txn", "1"], 0, "<svg"),
        (&["show", "--format", "png"], 2, "svg, dot or raw"),
        (&["history"], 0, "Transaction #1"),
        (&["history", "--seq", "7"], 1, "transaction 7 is not known"),
        (&["history", "-o", "json", "--seq", "0"], 0, "FullResync"),
        (&["timeline", "/interface/tap1"], 0, "CONFIGURED"),
        (&["dump", "--descriptor", "fib", "--view", "nb"], 0, "/fib/aa"),
        (&["status", "/fib/aa"], 0, "CONFIGURED"),
        (&["plan", "-f", change], 0, "/interface/tap9"),
        (&["commit", "-f", change, "--wait", "5"], 0, "/interface/tap9"),
        (&["status", "/interface/tap9"], 0, "CONFIGURED"),
    ] {
        let mut asked = vec!["graph", arguments[0], "--url", &url];
        asked.extend(&arguments[1..]);
        let output = mainstay(&asked);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{asked:?}: {text}");
        assert!(text.contains(said), "{asked:?}: {text}");
    }
    signal(child.id(), "INT");
    assert!(child.wait().unwrap().success());
}

/// The server itself serves no graph: what matters is that the question gets there.
#[test]
fn graph_commands_verify_the_certificate_of_the_server() {
    let server = TestServer::start();
    let url = server.address();
    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let line = text.lines().find_map(|one| one.trim().strip_prefix("certificate-authority-data:"));
    let pem = base64::engine::general_purpose::STANDARD.decode(line.unwrap().trim()).unwrap();
    let folder = folder();
    let authority = folder.path().join("ca.pem");
    std::fs::write(&authority, pem).unwrap();
    let authority = authority.to_str().unwrap();
    let nothing = folder.path().join("nothing.pem");
    std::fs::write(&nothing, "").unwrap();
    for (arguments, code, said) in [
        (&["--ca", authority][..], 1, "Unauthorized"),
        (&["--insecure-skip-tls-verify"], 1, "Unauthorized"),
        (&[], 1, "certificate"),
        (&["--ca", nothing.to_str().unwrap()], 2, "nothing.pem"),
        (&["--ca", "/nowhere.pem"], 2, "/nowhere.pem"),
    ] {
        let mut asked = vec!["graph", "status", "--url", &url];
        asked.extend(arguments);
        let output = mainstay(&asked);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{asked:?}: {text}");
        assert!(text.contains(said), "{asked:?}: {text}");
    }
    let output = mainstay(&["graph", "status", "--url", "https://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    let output = mainstay(&["graph", "status", "--url", "ftp://127.0.0.1"]);
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
}

#[test]
fn the_benchmark_of_the_graph_gives_every_row() {
    let output = mainstay(&["bench", "graph", "--sizes", "100", "-o", "json"]);
    assert!(output.status.success(), "{}", text_of(&output));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let count = |case: &str, backend: &str| {
        rows.iter().filter(|row| row["case"] == case && row["backend"] == backend).count()
    };
    for case in ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8"] {
        for backend in ["history off", "history on", "journal"] {
            assert_eq!(count(case, backend), 1, "{case} {backend}");
        }
    }
    assert_eq!(count("resident", "history off"), 1);
    let output = mainstay(&["bench", "graph", "--cases", "W9"]);
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
}
