//! Joining, revoking and exchanging the authority, with the real agent.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::disks_agent::until;
use crate::process::{MAINSTAY, TestServer, folder, text_of};

/// An agent that joined with a join string; killed when dropped.
struct Joined {
    child: Child,
}

impl Drop for Joined {
    fn drop(&mut self) {
        // It may have ended by itself already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(arguments: &[&str], state: &Path) -> Command {
    let mut command = Command::new(MAINSTAY);
    command.args(arguments).arg("--state-dir").arg(state);
    command.args(["--devices", "/dev/loop999999", "--heartbeat", "200ms", "--log", "warn"]);
    command.env_remove("MAINSTAY_TOKEN").env_remove("MAINSTAY_SERVER");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts an agent that reads `input`; what it said if it did not become ready.
fn start(arguments: &[&str], state: &Path, input: &str) -> Result<Joined, String> {
    let mut child = command(arguments, state).spawn().unwrap();
    // One that refuses its arguments does not read.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        if line.starts_with("mainstay agent is ready") {
            std::thread::spawn(move || {
                lines.map_while(Result::ok).for_each(|line| eprintln!("agent: {line}"));
            });
            return Ok(Joined { child });
        }
        said.push_str(&line);
        said.push('\n');
    }
    drop(Joined { child });
    Err(said)
}

fn run(server: &TestServer, line: &str) -> String {
    let output = server.mainstay(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", text_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn heartbeat(server: &TestServer) -> Value {
    let lease = run(server, "get lease n1 -n kube-node-lease -o json");
    let lease: Value = serde_json::from_str(&lease).unwrap();
    lease["spec"]["renewTime"].clone()
}

fn beats(server: &TestServer) {
    let before = heartbeat(server);
    until("the heart beats", || heartbeat(server) != before);
}

#[test]
fn a_join_string_is_all_a_node_needs_and_it_joins_once() {
    let (server, states) = (TestServer::start(), folder());
    let (one, two) = (states.path().join("one"), states.path().join("two"));
    let line = run(&server, "token create --role node --node n1 --zone a --join");
    let string = line.trim().strip_prefix("mainstay join ").unwrap();
    let token = string.rsplit('.').next().unwrap();
    // An authority that is another than the string says is not believed.
    let (servers, rest) = string.split_once('#').unwrap();
    let forged = format!("{servers}#{}{}", "0".repeat(8), &rest[8..]);
    let said = start(&["join", &forged], &one, "").err().unwrap();
    assert!(said.contains("fingerprint"), "{said}");
    let said = start(&["join", string, "--zone", "b"], &one, "").err().unwrap();
    assert!(said.contains("the token is for zone a"), "{said}");

    let agent = start(&["join", "-"], &one, &line).map_err(|said| panic!("{said}")).unwrap();
    let node: Value = serde_json::from_str(&run(&server, "get node n1 -o json")).unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "a");
    beats(&server);
    let said = start(&["join", string], &two, "").err().unwrap();
    assert!(said.contains("was used already"), "{said}");
    let output = server.mainstay(&["get", "nodes", "--token", token]);
    assert!(text_of(&output).contains("can only join"), "{}", text_of(&output));

    // Started again it needs no token, and no flags but its folder.
    drop(agent);
    let agent = start(&["agent"], &one, "").map_err(|said| panic!("{said}")).unwrap();
    beats(&server);
    drop(agent);
    let agent = start(&["join", string], &one, "").map_err(|said| panic!("{said}")).unwrap();
    beats(&server);

    // Once it is removed it is not let in any more, whether it runs or starts again.
    let before = run(&server, "node rm n1");
    assert!(before.contains("removed"), "{before}");
    drop(agent);
    let said = start(&["agent"], &one, "").err().unwrap();
    assert!(said.contains("revoked"), "{said}");
    let gone = server.mainstay(&["get", "node", "n1"]);
    assert!(!gone.status.success(), "it did not come back by itself");
    let line = run(&server, "token create --role node --node n1 --join");
    let _agent = start(&["join", "-"], &one, &line).map_err(|said| panic!("{said}")).unwrap();
    beats(&server);
}

#[test]
fn an_authority_is_exchanged_under_a_running_agent() {
    let (server, states) = (TestServer::start(), folder());
    let line = run(&server, "token create --role node --node n1 --join");
    let state = states.path().join("state");
    let agent = start(&["join", "-"], &state, &line).map_err(|said| panic!("{said}")).unwrap();
    beats(&server);
    let shown = |line: &str| -> Value { serde_json::from_str(&run(&server, line)).unwrap() };
    let before = shown("authority show -o json");
    run(&server, "authority rotate");
    until("the agent renews its certificate", || {
        shown("authority show -o json")["nodesOfPrevious"].as_array().unwrap().is_empty()
    });
    beats(&server);
    run(&server, "authority finish");
    let after = shown("authority show -o json");
    assert_ne!(after["current"]["fingerprint"], before["current"]["fingerprint"]);
    beats(&server);
    drop(agent);
    let _agent = start(&["agent"], &state, "").map_err(|said| panic!("{said}")).unwrap();
    beats(&server);
}

#[test]
fn tokens_are_read_from_files_and_have_an_expiry() {
    let (server, states) = (TestServer::start(), folder());
    for (line, expected) in [
        ("token create --role viewer --ttl 5", "write a number with a unit"),
        ("token create --role editor --join", "role node"),
        ("token create --role node --node a --uses 0", "unlimited"),
        ("token create --role node", "--node"),
    ] {
        let output = server.mainstay(&line.split(' ').collect::<Vec<_>>());
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
    }
    let output = server.mainstay(&["token", "create", "--role", "editor", "--name", ""]);
    assert!(!output.status.success(), "an editor has a name");
    let file = states.path().join("token");
    std::fs::write(&file, run(&server, "token create --role node --node n1")).unwrap();
    let authority = server.kubeconfig().with_file_name("ca.crt");
    let (file, authority) = (file.to_str().unwrap(), authority.to_str().unwrap());
    let address = server.address();
    let arguments = ["agent", "--server", &address, "--node-name", "n1", "--ca-cert", authority];
    let arguments = [&arguments[..], &["--token-file", file]].concat();
    let state = states.path().join("state");
    let _agent = start(&arguments, &state, "").map_err(|said| panic!("{said}")).unwrap();
    beats(&server);
    let used = run(&server, "token list");
    assert!(used.contains("1/1"), "{used}");
}
