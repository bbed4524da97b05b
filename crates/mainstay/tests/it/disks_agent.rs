//! The agent as a process: joining, what it may write, its server gone, itself killed, its
//! certificate renewed, its heartbeat judged.

use std::time::Duration;

use serde_json::Value;

use crate::disks::{NODE, Site, can_run};
use crate::process::{MAINSTAY, TestServer, cannot_test, signal, text_of};

/// Looks again and again until something holds, for a minute at least.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("never happened: {what}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn a_node_joins_only_with_a_token_for_its_name() {
    if !can_run() {
        return;
    }
    let site = Site::new(0, &[]);
    let more = ["--devices", "/dev/loop999999"];
    let start = |token: &[&str]| {
        let more = [&more[..], token].concat();
        site.starting(NODE, &more).refused()
    };
    let said = start(&[]);
    assert!(said.contains("mainstay token create --role node --node n1"), "{said}");
    let said = start(&["--token", "wrong"]);
    assert!(said.contains("does not let node n1 in"), "{said}");
    let other = site.token("n2");
    let said = start(&["--token", &other]);
    assert!(said.contains("the token is for node n2"), "{said}");
    let viewer = site.run("mainstay token create --role viewer");
    let said = start(&["--token", viewer.trim()]);
    assert!(said.contains("does not let node n1 in"), "{said}");
    let short = site.run("mainstay token create --role node --node n1 --ttl 1s");
    until("the token has expired", || {
        let mut ask = site.server.client(MAINSTAY);
        let asked = ask.args(["get", "nodes", "--token", short.trim()]).output().unwrap();
        text_of(&asked).contains("Unauthorized")
    });
    let said = start(&["--token", short.trim()]);
    assert!(said.contains("does not let node n1 in"), "{said}");
}

#[test]
fn a_node_writes_its_own_objects_and_no_others() {
    if !can_run() {
        return;
    }
    let site = Site::new(1, &[]);
    let _agent = site.agent(&[]);
    site.phase(0, "Unprovisioned");
    let manifest = |name: &str, object: Value| {
        let file = site.yard.path(name);
        std::fs::write(&file, object.to_string()).unwrap();
        file.display().to_string()
    };
    let bare = |node: &str, name: &str| {
        serde_json::json!({
            "apiVersion": "storage.mainstay.dev/v1", "kind": "BlockDevice",
            "metadata": {"name": name}, "spec": {"nodeName": node, "devPath": "/dev/sdz"},
        })
    };
    let theirs = manifest("theirs.json", bare("n2", "theirs"));
    site.run(&format!("mainstay apply -f {theirs}"));
    // The bearer of the node's certificate acts as the node.
    let identity = std::fs::read(site.yard.path("state-n1/identity.json")).unwrap();
    let identity: Value = serde_json::from_slice(&identity).unwrap();
    for (part, file) in [("certificate", "node.crt"), ("key", "node.key")] {
        std::fs::write(site.yard.path(file), identity[part].as_str().unwrap()).unwrap();
    }
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": site.server.address(), "certificate-authority": site.yard.path("data/ca.crt")}}],
        "users": [{"name": "u", "user": {
            "client-certificate": site.yard.path("node.crt"), "client-key": site.yard.path("node.key")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    let config = manifest("node.kubeconfig", config);
    let as_node = |line: &str| {
        let mut command = site.server.client(MAINSTAY);
        command.args(line.split(' ')).env("KUBECONFIG", &config).output().unwrap()
    };
    let own = as_node(&format!("get bd {} -o json", site.name(0)));
    assert!(own.status.success(), "{}", text_of(&own));
    let more = manifest("more.json", bare("n2", "more"));
    let node = manifest(
        "node.json",
        serde_json::json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"},
        }),
    );
    let settings = manifest(
        "settings.json",
        serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "disks", "namespace": "mainstay-system"}, "data": {},
        }),
    );
    // An object of another node is answered as one that does not exist; lists need a selector.
    for (line, refusal) in [
        ("disks provision theirs --format".to_owned(), "forbidden"),
        ("delete bd theirs".to_owned(), "not found"),
        (format!("apply -f {more}"), "forbidden"),
        (format!("apply -f {node}"), "forbidden"),
        (format!("apply -f {settings}"), "forbidden"),
        ("token create --role admin".to_owned(), "forbidden"),
    ] {
        let output = as_node(&line);
        let text = text_of(&output).to_lowercase();
        assert!(!output.status.success() && text.contains(refusal), "{line}: {text}");
    }
    let theirs = site.run("mainstay get bd theirs -o json");
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    assert_ne!(theirs["spec"]["provision"], true, "nothing of it was written");
}

#[test]
fn operations_that_end_while_the_server_is_down_are_reported_later() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(1, &[]);
    let valve = site.yard.slow("mkfs.ext4");
    let agent = site.agent(&["--heartbeat", "1s"]);
    site.run("mainstay disks provision @0 --format");
    block_on(valve.begun());
    let (data, address) = (site.yard.path("data"), site.server.address());
    let listen = address.trim_start_matches("https://").to_owned();
    // kill -9: nothing is said to anybody.
    signal(site.server.pid(), "KILL");
    block_on(valve.go());
    let made = || {
        let found = std::process::Command::new("blkid").args(["-p", &site.devices[0]]).output();
        found.is_ok_and(|found| found.status.success())
    };
    until("the filesystem is made without a server", made);
    site.server = TestServer::start_in(&data, &["--listen", &listen]);
    site.phase(0, "Provisioned");
    assert_eq!(valve.runs(), 1, "one mkfs");
    assert_eq!(site.yard.mount_table().len(), 1, "one mount");
    // Objects that the server had only in memory are reported again.
    site.run("mainstay wait node/n1 --for=condition=Ready --timeout=60s");
    agent.terminate();
}

#[test]
fn an_agent_that_is_killed_goes_on_where_it_was() {
    if !can_run() {
        return;
    }
    let site = Site::new(2, &[]);
    let valve = site.yard.slow("mkfs.ext4");
    let agent = site.agent(&[]);
    site.run("mainstay disks provision @0 --format");
    block_on(valve.begun());
    agent.kill();
    assert_eq!(site.object(0)["status"]["provisionPhase"], "Formatting");
    let agent = site.starting(NODE, &[]).start();
    assert_eq!(valve.runs(), 1, "the mkfs of before still runs: no second one beside it");
    block_on(valve.go());
    site.phase(0, "Provisioned");
    assert_eq!((valve.runs(), site.yard.mount_table().len()), (1, 1));
    let (before, uid) = (site.object(0), |disk: &Value| disk["metadata"]["uid"].clone());
    agent.terminate();
    let _agent = site.starting(NODE, &[]).start();
    site.phase(0, "Provisioned");
    assert_eq!(uid(&site.object(0)), uid(&before), "it is the same object");
    assert_eq!(site.yard.mount_table().len(), 1, "an orderly end leaves mounts alone");
}

#[test]
fn a_node_without_heartbeats_is_unknown_until_they_resume() {
    if !can_run() {
        return;
    }
    let site = Site::new(1, &[]);
    let agent = site.agent(&["--heartbeat", "1s"]);
    site.run("mainstay wait node/n1 --for=condition=Ready --timeout=60s");
    agent.kill();
    site.run("mainstay wait node/n1 --for=condition=Ready=Unknown --timeout=60s");
    site.run("mainstay wait node/n1 --for=condition=AgentReady=Unknown --timeout=60s");
    assert!(site.run("kubectl get nodes").contains("NotReady"));
    let _agent = site.starting(NODE, &["--heartbeat", "1s"]).start();
    site.run("mainstay wait node/n1 --for=condition=Ready --timeout=60s");
    site.run("mainstay wait node/n1 --for=condition=AgentReady --timeout=60s");
}

#[test]
fn a_certificate_is_renewed_before_it_ends() {
    if !can_run() {
        return;
    }
    let site = Site::new(1, &["--node-certificate-life", "6s"]);
    let _agent = site.agent(&["--heartbeat", "1s"]);
    let file = site.yard.path("state-n1/identity.json");
    let certificate = || {
        let identity: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        identity["certificate"].as_str().unwrap().to_owned()
    };
    let first = certificate();
    until("there is another certificate", || certificate() != first);
    let second = certificate();
    until("and a third", || certificate() != second);
    // Long after the first one has ended, the agent still carries out requests.
    site.run("mainstay disks provision @0 --format --wait");
    site.run("mainstay wait node/n1 --for=condition=Ready --timeout=60s");
}

#[test]
fn the_systemd_unit_is_sound() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/mainstay-agent.service");
    let text = std::fs::read_to_string(unit).unwrap();
    let folder = crate::process::folder();
    let file = folder.path().join("mainstay-agent.service");
    std::fs::write(&file, text.replace("/usr/bin/mainstay", MAINSTAY)).unwrap();
    let verify = std::process::Command::new("systemd-analyze").arg("verify").arg(&file).output();
    match verify {
        Err(error) => cannot_test(&format!("the systemd unit: systemd-analyze: {error}")),
        Ok(said) => {
            let text = text_of(&said);
            assert!(said.status.success() && text.is_empty(), "{text}");
        }
    }
    // Every flag and variable the unit speaks of is one the agent knows.
    let help = std::process::Command::new(MAINSTAY).args(["agent", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for word in
        ["--state-dir", "--node-name", "--zone", "--ca-cert", "MAINSTAY_SERVER", "MAINSTAY_TOKEN"]
    {
        assert!(text.contains(word) && help.contains(word), "{word}");
    }
}

#[test]
fn flags_that_make_no_sense_are_refused_before_anything_is_done() {
    let agent = |more: &[&str]| {
        let usual = ["agent", "--server", "https://127.0.0.1:1", "--node-name", "n1"];
        let state = ["--state-dir", "/nonexistent/state"];
        let output =
            std::process::Command::new(MAINSTAY).args(usual).args(state).args(more).output();
        output.unwrap()
    };
    for wrong in [
        &["--max-concurrent-disk-operations", "0"][..],
        &["--disk-operation-rate", "0/min"],
        &["--disk-operation-rate", "10"],
        &["--allow-loop"],
    ] {
        let output = agent(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text_of(&output));
    }
}
