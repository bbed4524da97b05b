//! Sessions as their users meet them: stock kubectl, the program's own commands, real processes
//! behind a real gateway, and what happens when an agent or the server dies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::golden;
use crate::process::{MAINSTAY, TestServer, cannot_test, folder, signal, text_of};

const PORTS: &str = "--gateway-ports";

/// A range of ports that no other test of this run uses, and that no process listens on.
fn ports(start: u16) -> String {
    format!("{start}-{}", start + 63)
}

/// An agent in a process of its own; killed when dropped.
pub(crate) struct TestAgent {
    child: Child,
}

impl TestAgent {
    fn start(server: &TestServer, node: &str, arguments: &[&str]) -> Self {
        let prefix = format!("{node}.");
        let whom = match arguments.contains(&"--simulate") {
            true => ["--node-prefix", &prefix, "--uses", "unlimited"],
            false => ["--node", node, "--uses", "1"],
        };
        let token = server.mainstay(&[&["token", "create", "--role", "node"], &whom[..]].concat());
        let token = String::from_utf8(token.stdout).unwrap();
        let child = Command::new(MAINSTAY)
            .args(["agent", "--server", &server.address(), "--token", token.trim()])
            .args(["--node-name", node, "--ca-cert"])
            .arg(server.kubeconfig().with_file_name("ca.crt"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut agent = Self { child };
        let mut lines = BufReader::new(agent.child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        for line in lines.by_ref().map_while(Result::ok) {
            if line.contains("mainstay agent is ready") {
                let name = node.to_owned();
                std::thread::spawn(move || {
                    lines.map_while(Result::ok).for_each(|line| eprintln!("{name}: {line}"));
                });
                return agent;
            }
            said.push_str(&line);
        }
        panic!("the agent did not start: {said}");
    }

    pub(crate) fn simulated(server: &TestServer, nodes: u32, more: &[&str]) -> Self {
        let count = nodes.to_string();
        let mut arguments = vec!["--simulate", count.as_str()];
        arguments.extend(more);
        Self::start(server, "sim", &arguments)
    }

    /// An agent that runs real processes and looks after no disks.
    pub(crate) fn real(server: &TestServer, node: &str, state: &Path) -> Self {
        let state = state.display().to_string();
        Self::start(server, node, &["--state-dir", &state, "--devices", "/dev/none*"])
    }

    fn kill(&mut self) {
        // It may have ended by itself already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Looks until it is so. Everything here settles within a moment; the limit is for a broken build.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_200 {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it never came to pass: {what}");
}

fn json(server: &TestServer, arguments: &[&str]) -> Option<Value> {
    let output = server.mainstay(arguments);
    serde_json::from_slice(&output.stdout).ok()
}

pub(crate) fn get(server: &TestServer, what: &str) -> Option<Value> {
    json(server, &["get", what, "-o", "json"]).filter(|found| found["kind"].is_string())
}

pub(crate) fn apply(server: &TestServer, manifest: &str) {
    let mut child = server
        .client(MAINSTAY)
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}

fn application(name: &str, process: &str, policy: &str) -> String {
    format!(
        "apiVersion: apps.mainstay.dev/v1\nkind: Application\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  {process}\n  ports: [{{name: play}}]\n  scalingPolicy: {policy}\n"
    )
}

const WARM: &str = "{minimumInstance: 2, maximumInstance: 4, burst: 4, idleSessionNumThreshold: {low: 0, high: 2}}";

fn idle(server: &TestServer, application: &str, count: i64) {
    until(&format!("{count} idle instances of {application}"), || {
        let found = get(server, &format!("app/{application}"))?;
        (found["status"]["idleInstances"].as_i64() == Some(count)).then_some(())
    });
}

/// The random endings of instances' names, made alike.
fn nameless(text: &str) -> String {
    let words = text.split_inclusive([' ', '\n']).map(|word| match word.split_once("game-") {
        Some((before, rest)) if rest.len() > 8 => format!("{before}game-NAME{}", &rest[8..]),
        _ => word.to_owned(),
    });
    words.collect()
}

#[test]
fn without_volumes_a_node_whose_lease_runs_out_becomes_unknown() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &["--only", "sessions", PORTS, "none"]);
    apply(
        &server,
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\n\
         apiVersion: coordination.k8s.io/v1\nkind: Lease\n\
         metadata: {name: n1, namespace: kube-node-lease}\nspec: {leaseDurationSeconds: 1}\n",
    );
    let condition = until("the node is judged", || {
        get(&server, "node/n1")?["status"]["conditions"].get(0).cloned()
    });
    let found = (condition["type"].as_str(), condition["status"].as_str());
    assert_eq!(found, (Some("Ready"), Some("Unknown")), "{condition}");
    assert_eq!(condition["reason"], "HeartbeatStopped");
}

#[test]
fn a_session_is_opened_seen_and_closed() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &[PORTS, &ports(31000)]);
    let _agent = TestAgent::simulated(&server, 3, &[]);
    apply(&server, &application("game", "command: [simulated]", WARM));
    idle(&server, "game", 2);
    let opened =
        json(&server, &["sessions", "open", "game", "--name", "s1", "-o", "json"]).unwrap();
    assert_eq!(opened["status"]["sessionStatus"], "Available", "{opened:#}");
    assert_eq!(opened["status"]["accessEndPoints"][0]["port"], 31000);
    let again = server.mainstay(&["sessions", "open", "game", "--name", "s1"]);
    assert!(text_of(&again).contains("already exists"), "{}", text_of(&again));
    let nobody = server.mainstay(&["sessions", "open", "chess"]);
    assert!(text_of(&nobody).contains("\"chess\" not found"), "{}", text_of(&nobody));
    let second = server.mainstay(&["sessions", "open", "game", "--name", "s2"]);
    assert_eq!(String::from_utf8_lossy(&second.stdout), "127.0.0.1:31001\n");

    until("the application's status is current", || {
        (get(&server, "app/game")?["status"]["allocatedInstances"] == 2).then_some(())
    });
    let mut transcript = String::new();
    let kubectl =
        ["get app,ses", "get ses s1 -o jsonpath={.status.sessionStatus}", "delete ses s1"];
    match server.client("kubectl").arg("version").output() {
        Err(_) => cannot_test("kubectl with sessions: there is no kubectl"),
        Ok(_) => {
            for line in kubectl {
                let output = server.client("kubectl").args(line.split(' ')).output().unwrap();
                transcript.push_str(&format!("$ kubectl {line}\n{}\n", text_of(&output)));
            }
            golden::compare("sessions.txt", &nameless(&transcript));
        }
    }
    // A closed session can be read a little longer, though lists no longer show it.
    let last = get(&server, "ses/s1").expect("still to be read");
    assert_eq!(last["status"]["sessionStatus"], "Closed", "{last:#}");
    let listed = server.mainstay(&["get", "ses", "-o", "name"]);
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "applicationsession.apps.mainstay.dev/s2\n"
    );
    let refused = server.mainstay(&["get", "inst", "-o", "name"]);
    let instance = String::from_utf8_lossy(&refused.stdout).lines().next().unwrap().to_owned();
    let deleted = server.mainstay(&["delete", &instance]);
    assert!(deleted.status.success(), "{}", text_of(&deleted));

    let deleted = server.mainstay(&["delete", "app/game"]);
    assert!(deleted.status.success(), "{}", text_of(&deleted));
    until("nothing is left", || {
        let left = server.mainstay(&["get", "app,ses,inst", "-o", "name"]);
        left.stdout.is_empty().then_some(())
    });
}

#[test]
fn without_a_ready_instance_opening_fails_or_waits() {
    let folder = folder();
    let server = TestServer::start_in(folder.path(), &[PORTS, &ports(31100)]);
    let policy = "{maximumInstance: 1, idleSessionNumThreshold: {low: 0, high: 0}}";
    apply(&server, &application("game", "command: [simulated]", policy));
    let busy = server.mainstay(&["sessions", "open", "game"]);
    assert_eq!(busy.status.code(), Some(1));
    assert!(text_of(&busy).contains("SystemBusy"), "{}", text_of(&busy));
    let late = server.mainstay(&[
        "sessions",
        "open",
        "game",
        "--wait",
        "--timeout",
        "1s",
        "--name",
        "late",
    ]);
    assert!(text_of(&late).contains("no instance was ready within 1 s"), "{}", text_of(&late));
    let session = get(&server, "ses/late").unwrap();
    assert_eq!(session["status"]["sessionStatus"], "Timeout");
    // Somebody who waits is served as soon as there is a node.
    let waiting = server
        .client(MAINSTAY)
        .args(["sessions", "open", "game", "--wait", "--timeout", "50s", "--name", "patient"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("it waits", || {
        (get(&server, "ses/patient")?["status"]["sessionStatus"] == "Pending").then_some(())
    });
    let _agent = TestAgent::simulated(&server, 1, &["--start-delay", "10ms"]);
    let served = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&served.stdout), "127.0.0.1:31100\n");
    let why = server.mainstay(&["explain", "placement", "app/game"]);
    assert!(text_of(&why).contains("fits"), "{}", text_of(&why));
}

/// An echo server; it says where it is.
const ECHO: &str = r#"
import os, socketserver

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", int(os.environ["PORT"])), Echo)
print("up on", os.environ["PORT"])
server.serve_forever()
"#;

fn say(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    let mut heard = vec![0; text.len()];
    stream.read_exact(&mut heard).unwrap();
    String::from_utf8(heard).unwrap()
}

fn process_of(server: &TestServer, state: &Path) -> (String, Vec<u32>) {
    let found = get(server, "ses/s1").unwrap();
    let instance = found["status"]["instanceName"].as_str().unwrap().to_owned();
    let mut pids = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let named = format!("MAINSTAY_INSTANCE={instance}\0");
        let ours = environment.windows(named.len()).any(|window| window == named.as_bytes());
        if ours && process.path().join("exe").exists() {
            pids.push(pid);
        }
    }
    assert!(!pids.is_empty(), "{instance} runs nowhere (state in {})", state.display());
    (instance, pids)
}

#[test]
fn real_processes_outlive_the_agent_and_the_server() {
    let (folder, state) = (folder(), folder());
    let flags = [PORTS, &ports(31200)];
    let server = TestServer::start_in(folder.path(), &flags);
    let mut agent = TestAgent::real(&server, "n1", state.path());
    let script = state.path().join("echo.py");
    std::fs::write(&script, ECHO).unwrap();
    let process = format!(
        "command: [python3, -u, {}]\n  readiness: {{port: play}}\n  reuseInstances: true",
        script.display()
    );
    apply(&server, &application("echo", &process, WARM));
    idle(&server, "echo", 2);
    let opened = server.mainstay(&["sessions", "open", "echo", "--name", "s1"]);
    assert_eq!(
        String::from_utf8_lossy(&opened.stdout),
        "127.0.0.1:31200\n",
        "{}",
        text_of(&opened)
    );
    let mut stream = TcpStream::connect("127.0.0.1:31200").unwrap();
    let long = "x".repeat(300_000) + "\n";
    assert_eq!(say(&mut stream, &long), long);
    until("a client counts", || {
        (get(&server, "ses/s1")?["status"]["sessionStatus"] == "InUse").then_some(())
    });
    let (instance, pids) = process_of(&server, state.path());
    let said = server.mainstay(&["logs", &instance]);
    assert!(text_of(&said).starts_with("up on "), "{}", text_of(&said));

    // The agent dies without closing its connection.
    agent.kill();
    assert_eq!(say(&mut stream, "still there\n"), "still there\n");
    let agent = TestAgent::real(&server, "n1", state.path());
    until("the node is back", || {
        let found = get(&server, &format!("inst/{instance}"))?;
        (found["status"]["pool"] == "Active").then_some(())
    });
    assert_eq!(process_of(&server, state.path()).1, pids);
    assert_eq!(say(&mut stream, "and now\n"), "and now\n");

    // The server dies: the agent tells the next one what there is, endpoint included.
    server.kill();
    let server =
        TestServer::start_in(folder.path(), &[flags[0], flags[1], "--listen", &address(&agent)]);
    until("the session is back", || {
        let found = get(&server, "ses/s1")?;
        let port = &found["status"]["accessEndPoints"][0]["port"];
        (found["status"]["sessionStatus"] == "Available" && *port == 31200).then_some(())
    });
    assert_eq!(process_of(&server, state.path()).1, pids);
    let mut stream = TcpStream::connect("127.0.0.1:31200").unwrap();
    assert_eq!(say(&mut stream, "hello again\n"), "hello again\n");
    drop(stream);
    let closed = server.mainstay(&["sessions", "close", "s1"]);
    assert!(closed.status.success(), "{}", text_of(&closed));
    idle(&server, "echo", 2);
    // A process that dies by itself is replaced.
    signal(pids[0], "KILL");
    until("another took its place", || {
        let gone = get(&server, &format!("inst/{instance}")).is_none();
        (gone && get(&server, "app/echo")?["status"]["idleInstances"] == 2).then_some(())
    });
    let deleted = server.mainstay(&["delete", "app/echo"]);
    assert!(deleted.status.success(), "{}", text_of(&deleted));
    until("no process is left", || {
        let left = server.mainstay(&["get", "inst", "-o", "name"]);
        left.stdout.is_empty().then_some(())
    });
    drop(agent);
}

/// Where an agent's server was: a restarted one must be found there.
fn address(agent: &TestAgent) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", agent.child.id())).unwrap();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let at = words.iter().position(|word| *word == b"--server").unwrap();
    String::from_utf8_lossy(words[at + 1]).trim_start_matches("https://").to_owned()
}

#[test]
fn a_lost_node_gives_its_sessions_to_another() {
    let folder = folder();
    let flags = [PORTS, &ports(31300), "--node-timeout", "2s"];
    let server = TestServer::start_in(folder.path(), &flags);
    let mut first = TestAgent::start(&server, "one", &["--simulate", "1"]);
    apply(&server, &application("game", "command: [simulated]", WARM));
    idle(&server, "game", 2);
    for (name, loss) in [("moves", "recreate"), ("ends", "close")] {
        let arguments = ["sessions", "open", "game", "--name", name, "--on-node-loss", loss];
        let output = server.mainstay(&arguments);
        assert!(output.status.success(), "{}", text_of(&output));
    }
    let before = get(&server, "ses/moves").unwrap();
    let _second = TestAgent::start(&server, "two", &["--simulate", "1"]);
    first.kill();
    until("it moved", || {
        let found = get(&server, "ses/moves")?;
        let moved = found["status"]["nodeName"] == "two.0";
        (moved && found["status"]["sessionStatus"] == "Available").then_some(())
    });
    let after = get(&server, "ses/moves").unwrap();
    assert_eq!(after["status"]["accessEndPoints"], before["status"]["accessEndPoints"]);
    assert_ne!(after["status"]["instanceName"], before["status"]["instanceName"]);
    let ended = get(&server, "ses/ends").unwrap();
    assert_eq!(
        (&ended["status"]["sessionStatus"], &ended["status"]["reason"]),
        (&"Closed".into(), &"NodeLost".into())
    );
}

#[test]
fn the_benchmark_of_sessions_gives_every_row() {
    let output = Command::new(MAINSTAY)
        .args(["bench", "sessions", "-o", "json", "--time", "300ms", "--clients", "4"])
        .args(["--cold-clients", "4", "--only", "placement,warm-delay,cold"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["rate"].as_f64().unwrap() > 0.0, "{row}");
    }
}
