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
fn played(scenario: &str) -> (Child, String) {
    let mut child = Command::new(MAINSTAY)
        .args(["graph", "run", scenario, "--serve", "127.0.0.1:0"])
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

/// A running `graph serve`, killed when dropped.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(scenario: &std::path::Path, folder: &std::path::Path) -> Self {
        let mut child = Command::new(MAINSTAY)
            .args(["graph", "serve", scenario.to_str().unwrap()])
            .args(["--journal", folder.join("state").to_str().unwrap()])
            .args(["--log", folder.join("transactions.log").to_str().unwrap()])
            .args(["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            let line = line.unwrap();
            Some(line.strip_prefix("serving ")?.split("/scheduler/").next()?.to_owned())
        });
        let url = url.expect("it is served");
        // The rest of the messages must not block the program.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Runs a command of the client; returns its exit code and its output.
    fn graph(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut asked = vec!["graph", arguments[0], "--url", &self.url];
        asked.extend(&arguments[1..]);
        let output = mainstay(&asked);
        (output.status.code(), text_of(&output))
    }

    fn expect(&self, arguments: &[&str], code: i32, said: &str) -> String {
        let (found, text) = self.graph(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        text
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SWITCH: &str = "
descriptors:
  - {name: interface, prefix: /interface/, items: none, metadata: true}
  - {name: route, prefix: /route/, items: none, depends: {/route/a: [{key: /interface/tap1}]}}
fail:
  - {key: /interface/slow, op: create, nth: 1, error: the port is busy}
  - {key: /interface/dead, op: create, error: the port is broken}
  - {key: /route/dead, op: create, error: no memory}
";

#[test]
fn a_served_engine_retries_and_continues_after_a_kill() {
    let folder = folder();
    let scenario = folder.path().join("switch.yaml");
    std::fs::write(&scenario, SWITCH).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let served = Served::start(&scenario, folder.path());
    let wanted = file(
        "wanted.yaml",
        "set: {/interface/tap1: {}, /route/a: {}}\nlabels: {/route/a: {owner: net}}\n",
    );
    served.expect(&["commit", "-f", &wanted, "--wait", "10"], 0, "CREATE /route/a");
    served.expect(&["status", "/route/a"], 0, "[owner=net]");
    // The first try fails; the retry, on the machine's clock, succeeds.
    let slow = file(
        "slow.yaml",
        "set: {/interface/slow: {}}\non-failure: best-effort\nretry: {period: 100ms}\n",
    );
    served.expect(&["commit", "-f", &slow, "--wait", "30"], 0, "the port is busy");
    served.expect(&["status", "/interface/slow"], 0, "CONFIGURED");
    served.expect(&["stats"], 0, "RetryFailedOps: 1");
    served.kill();

    let served = Served::start(&scenario, folder.path());
    served.expect(&["resync"], 0, "nothing to do");
    served.expect(&["health"], 0, "accepts transactions");
    served.expect(&["watch", "/route/a", "--limit", "1"], 0, "/route/a CONFIGURED");
    served.expect(&["history"], 0, "retry of failed operations");
    served.expect(&["dump", "--descriptor", "interface", "--view", "sb"], 0, "/interface/slow");
    let gone = file("gone.yaml", "delete: [/interface/tap1]\n");
    served.expect(&["commit", "-f", &gone], 0, "DELETE /route/a");
    served.expect(&["status", "/route/a"], 0, "waits for /interface/tap1");
    served.terminate();
    let log = std::fs::read_to_string(folder.path().join("transactions.log")).unwrap();
    assert!(log.contains("Transaction #0") && log.contains("the port is busy"), "{log}");
}

#[test]
fn a_played_scenario_continues_on_the_clock_of_the_machine() {
    let folder = folder();
    let scenario = folder.path().join("switch.yaml");
    let left_over = "steps:
  - txn: {set: {/interface/slow: {}}, on-failure: best-effort, retry: {period: 1h}}
    states: {/interface/slow: RETRYING}
";
    std::fs::write(&scenario, format!("{SWITCH}{left_over}")).unwrap();
    let (child, url) = played(scenario.to_str().unwrap());
    let served = Served { child, url };
    // By the machine's clock, the retry of the scenario has been due for years.
    served.expect(&["resync"], 0, "");
    served.expect(&["status", "/interface/slow"], 0, "CONFIGURED");
    let waiting = folder.path().join("waiting.yaml");
    std::fs::write(&waiting, "set: {/route/a: {}}").unwrap();
    let wait = ["commit", "-f", waiting.to_str().unwrap(), "--wait", "1"];
    served.expect(&wait, 1, "error: /route/a is not configured yet");
    served.terminate();
}

#[test]
fn a_failed_commit_shows_every_operation_error_and_state() {
    let folder = folder();
    let scenario = folder.path().join("switch.yaml");
    std::fs::write(&scenario, SWITCH).unwrap();
    let served = Served::start(&scenario, folder.path());
    let change = folder.path().join("change.yaml");
    let text = "set: {/interface/ok: {}, /interface/dead: {}, /route/dead: {}}\n\
                on-failure: best-effort\n";
    std::fs::write(&change, text).unwrap();
    let change = change.to_str().unwrap();
    let text = served.expect(&["commit", "-f", change], 1, "error: transaction 0 failed: ");
    for said in [
        "CREATE /interface/ok NONEXISTENT>CONFIGURED",
        "failed: CREATE /interface/dead: the port is broken",
        "failed: CREATE /route/dead: no memory",
        "KEY ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains('{'), "raw JSON: {text}");
    let output = mainstay(&["graph", "commit", "--url", &served.url, "-f", change, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["errors"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(json["status"].as_array().map(Vec::len), Some(3), "{json}");
    served.expect(&["roll-back", "99"], 1, "transaction 99 is not known");
    served.expect(&["snapshot"], 0, "/interface/dead");
    served.expect(&["snapshot", "--time", "noon"], 2, "it must be seconds");
    served.terminate();
}

#[test]
fn serve_refuses_files_and_addresses_that_it_cannot_use() {
    let folder = folder();
    let scenario = folder.path().join("switch.yaml");
    std::fs::write(&scenario, SWITCH).unwrap();
    let scenario = scenario.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (arguments, said) in [
        (&["/nowhere.yaml"][..], "/nowhere.yaml"),
        (&[scenario, "--listen", &taken], "cannot listen at"),
        (&[scenario, "--listen", "127.0.0.1:0", "--journal", "/proc/nowhere"], "/proc/nowhere"),
        (&[scenario, "--listen", "127.0.0.1:0", "--log", "/nowhere/log"], "/nowhere/log"),
    ] {
        let asked: Vec<&str> =
            ["graph", "serve"].into_iter().chain(arguments.iter().copied()).collect();
        let output = mainstay(&asked);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{asked:?}: {text}");
        assert!(text.contains(said), "{asked:?}: {text}");
    }
}

#[test]
fn a_live_graph_answers_every_command() {
    let (mut child, url) = played(STORY);
    let folder = folder();
    let change = folder.path().join("change.yaml");
    std::fs::write(&change, "set: {/interface/tap9: {}}\nretry: {period: 3s}\n").unwrap();
    let change = change.to_str().unwrap();
    for (arguments, code, said) in [
        (&["show"][..], 0, "digraph"),
        (&["show", "--format", "svg", "--txn", "1"], 0, "<svg"),
        (&["show", "--format", "html"], 0, "<html"),
        (&["show", "--format", "png"], 2, "html, svg, dot or raw"),
        (&["history"], 0, "Transaction #1"),
        (&["history", "--seq", "7"], 1, "transaction 7 is not known"),
        (&["history", "-o", "json", "--seq", "0"], 0, "FullResync"),
        (&["timeline", "/interface/tap1"], 0, "CONFIGURED"),
        (&["dump", "--descriptor", "fib", "--view", "nb"], 0, "/fib/aa"),
        (&["status", "/fib/aa"], 0, "CONFIGURED"),
        (&["plan", "-f", change], 0, "/interface/tap9"),
        (&["commit", "-f", change, "--wait", "5"], 0, "/interface/tap9"),
        (&["status", "/interface/tap9"], 0, "CONFIGURED"),
        (&["roll-back", "1"], 0, "DELETE /interface/tap9"),
        (&["stats"], 0, "DESCRIPTOR"),
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
