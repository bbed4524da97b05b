//! Disks as an operator sees them: a real server, a real agent, real loop devices, stock kubectl
//! and the program's own commands.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::disks_agent::until;
use crate::golden;
use crate::process::{MAINSTAY, TestServer, cannot_test, signal, text_of};
use crate::yard::{Yard, attempt, possible, run};

/// The node of these tests.
pub(crate) const NODE: &str = "n1";

/// An agent in a process of its own; killed when dropped.
pub(crate) struct Agent {
    child: Child,
    listening: Option<JoinHandle<()>>,
}

/// How an agent is started.
pub(crate) struct Start<'a> {
    pub(crate) yard: &'a Yard,
    pub(crate) server: &'a str,
    pub(crate) authority: &'a str,
    pub(crate) node: &'a str,
    pub(crate) devices: &'a [String],
    pub(crate) more: &'a [&'a str],
}

impl Start<'_> {
    fn command(&self) -> Command {
        let Self { yard, server, authority, node, devices, more } = self;
        let mut command = Command::new(MAINSTAY);
        command.args(["agent", "--server", server, "--ca-cert", authority, "--node-name", node]);
        command.args(["--zone", "a", "--allow-loop", "--log", "warn"]);
        command.arg("--state-dir").arg(yard.path(&format!("state-{node}")));
        command.arg("--mount-root").arg(yard.path("mnt"));
        for device in *devices {
            command.args(["--devices", device]);
        }
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", yard.text("bin"));
        command.args(*more).env("PATH", path).env_remove("MAINSTAY_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts it; returns once it says that it is ready.
    pub(crate) fn start(&self) -> Agent {
        let mut child = self.command().spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        for line in lines.by_ref().map_while(Result::ok) {
            if line.starts_with("mainstay agent is ready") {
                let echo = std::thread::spawn(move || {
                    for line in lines.map_while(Result::ok) {
                        eprintln!("agent: {line}");
                    }
                });
                return Agent { child, listening: Some(echo) };
            }
            said.push_str(&format!("{line}\n"));
        }
        panic!("the agent did not start: {:?}\n{said}", child.wait());
    }

    /// Starts one that must not get anywhere, and says what it said.
    pub(crate) fn refused(&self) -> String {
        let output = self.command().output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
        text_of(&output)
    }
}

impl Agent {
    /// kill -9: its children live on.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// SIGTERM, and waits for the orderly end.
    pub(crate) fn terminate(mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().unwrap().success());
    }

    fn end(&mut self) {
        // It may have ended by itself already.
        drop(self.child.kill());
        drop(self.child.wait());
        // Children that outlive it hold its output open: do not wait for its end.
        drop(self.listening.take());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// A server, and a yard full of disks.
pub(crate) struct Site {
    pub(crate) server: TestServer,
    pub(crate) yard: Yard,
    pub(crate) devices: Vec<String>,
    authority: String,
    address: String,
    transcript: String,
}

impl Site {
    /// A site with blank disks of 64 MiB.
    pub(crate) fn new(disks: usize, serve: &[&str]) -> Self {
        let yard = Yard::new();
        let devices: Vec<_> = (0..disks).map(|n| yard.disk(&format!("disk{n}"), 64)).collect();
        let server = TestServer::start_in(&yard.path("data"), serve);
        let authority = yard.text("data/ca.crt");
        let address = server.address();
        Self { server, yard, devices, authority, address, transcript: String::new() }
    }

    pub(crate) fn starting<'a>(&'a self, node: &'a str, more: &'a [&'a str]) -> Start<'a> {
        let Self { yard, devices, .. } = self;
        Start { yard, server: &self.address, authority: &self.authority, node, devices, more }
    }

    pub(crate) fn token(&self, node: &str) -> String {
        let output = self.server.mainstay(&["token", "create", "--role", "node", "--node", node]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// An agent that joins with a token of its own.
    pub(crate) fn agent(&self, more: &[&str]) -> Agent {
        let token = self.token(NODE);
        self.starting(NODE, &[&["--token", &token], more].concat()).start()
    }

    pub(crate) fn client(&self, line: &str) -> Output {
        let (name, rest) = line.split_once(' ').unwrap();
        let program = if name == "mainstay" { MAINSTAY } else { name };
        let mut command = self.server.client(program);
        command.args(rest.split(' ').map(|word| self.named(word)));
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Paths of disks, as `@0`.
    fn named(&self, word: &str) -> String {
        let mut word = word.to_owned();
        for (n, device) in self.devices.iter().enumerate() {
            word = word.replace(&format!("@{n}"), device);
        }
        word
    }

    /// Runs a command that must succeed.
    pub(crate) fn run(&self, line: &str) -> String {
        let output = self.client(line);
        assert!(output.status.success(), "{line}\n{}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command and writes down what it printed.
    fn show(&mut self, line: &str) -> Output {
        let output = self.client(line);
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text.push_str(&format!("[exit code {}]\n", output.status.code().unwrap_or(-1)));
        }
        for (n, device) in self.devices.iter().enumerate() {
            text = text.replace(device, &format!("@{n}"));
        }
        text = text.replace(&self.yard.root.display().to_string(), "YARD");
        // Values that differ between kernels and between runs of mkfs.
        text = text.replace("SSD", "HDD");
        if let Some((before, after)) = text.split_once("registered with ") {
            let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
            text = format!("{before}registered with SPACE {rest}");
        }
        // A signature with its UUID: NAME:UUID.
        let parts: Vec<_> = text.split("ext4:").collect();
        let parts = parts.iter().enumerate();
        let masked = parts.map(|(n, part)| match part.get(36..) {
            Some(rest) if n > 0 => format!("ext4:UID{rest}"),
            _ => (*part).to_owned(),
        });
        let text: String = masked.collect();
        self.transcript.push_str(&format!("$ {line}\n{text}\n"));
        output
    }

    /// The object of a disk.
    pub(crate) fn object(&self, disk: usize) -> Value {
        let text = self.run(&format!("mainstay disks show @{disk} -o json"));
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn name(&self, disk: usize) -> String {
        self.object(disk)["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Waits until a disk is in a phase.
    pub(crate) fn phase(&self, disk: usize, phase: &str) {
        let name = self.name(disk);
        let wanted = format!("--for=jsonpath={{.status.provisionPhase}}={phase}");
        let output = self.client(&format!("mainstay wait bd/{name} {wanted} --timeout=90s"));
        assert!(output.status.success(), "{}\n{:#}", text_of(&output), self.object(disk));
    }
}

/// Whether these tests can run here.
pub(crate) fn can_run() -> bool {
    let kubectl = Command::new("kubectl").arg("version").arg("--client").output().is_ok();
    if !kubectl {
        cannot_test("disks with kubectl: there is none");
    }
    possible() && kubectl
}

#[test]
fn disks_are_listed_provisioned_and_released() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(2, &[]);
    run("mkfs.ext4", &["-q", "-L", "old", &site.devices[1]]);
    let _agent = site.agent(&[]);
    site.phase(1, "Unprovisioned");
    site.show("kubectl get bd --sort-by=.spec.devPath");
    site.show("mainstay disks list");
    site.show("mainstay disks provision n1:@0 --format --dry-run");
    let refused = site.show("mainstay disks provision n1:@1 --format --dry-run");
    assert_eq!(refused.status.code(), Some(1), "the gate says no, and so does the exit code");
    site.show("mainstay disks format @1 --erase ext4 --dry-run");
    site.show("mainstay disks provision n1:@0 --format --tags fast,new --wait");
    site.show("mainstay disks format @1 --erase ext4 --wait");
    site.show("kubectl get bd --sort-by=.spec.devPath");
    site.show("mainstay disks show n1:@0");
    site.show("mainstay disks provision @1 --wait");
    site.show("mainstay disks unprovision @0 --wait");
    site.show("mainstay disks list --node n1");
    let wrong = site.client("mainstay disks show /dev/nothing");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text_of(&wrong).contains("mainstay disks list"), "{}", text_of(&wrong));
    golden::compare("disks-session.txt", &site.transcript);
    let name = site.name(1);
    let group: Value =
        serde_json::from_str(&site.run(&format!("kubectl get lvg {name} -o json"))).unwrap();
    assert_eq!(group["status"]["phase"], "Ready");
    assert_eq!(group["spec"]["local"]["nodeName"], NODE);
    let told = site.run("kubectl get events -o json");
    for step in ["Unprovisioned → Formatting", "Mounting → Mounted", "Provisioning → Provisioned"]
    {
        assert!(told.contains(step), "an event tells of {step}");
    }
}

#[test]
fn the_table_is_printed_for_people_and_as_a_diagram() {
    let mainstay = |arguments: &[&str]| {
        let output = Command::new(MAINSTAY).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let table = mainstay(&["disks", "table"]);
    let diagram = mainstay(&["disks", "table", "--diagram"]);
    golden::compare("disks-table.txt", &format!("{table}\n{diagram}"));
}

#[test]
fn a_failed_disk_is_retried_or_repaired_on_request() {
    if !can_run() {
        return;
    }
    let site = Site::new(2, &[]);
    run("mkswap", &[&site.devices[0]]);
    let agent = site.agent(&[]);
    site.phase(0, "Unprovisioned");
    let refused = site.client("mainstay disks provision @0 --format --wait");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text_of(&refused).contains("swap"), "{}", text_of(&refused));
    run("wipefs", &["--all", &site.devices[0]]);
    site.run("mainstay disks retry @0 --wait");
    assert_eq!(site.object(0)["status"]["provisionPhase"], "Provisioned");
    site.run("mainstay disks provision @1 --format --wait");
    agent.terminate();
    run("umount", &[&site.yard.path("mnt").join(site.name(1)).display().to_string()]);
    let disk = format!("of={}", site.devices[1]);
    run("dd", &["if=/dev/zero", &disk, "bs=1024", "seek=1", "count=1", "conv=notrunc,fsync"]);
    // The certificate is enough from now on.
    let _agent = site.starting(NODE, &[]).start();
    site.phase(1, "Failed");
    assert!(site.run("mainstay disks show @1").contains("spec.fileSystem.repaired"));
    let mended = attempt("e2fsck", &["-fy", "-b", "8193", "-B", "1024", &site.devices[1]]);
    assert!(matches!(mended.status.code(), Some(0 | 1)), "{}", text_of(&mended));
    site.run("mainstay disks repair @1 --wait");
    assert_eq!(site.object(1)["status"]["provisionPhase"], "Provisioned");
}

#[test]
fn configuration_changes_take_effect_at_once() {
    if !can_run() {
        return;
    }
    let site = Site::new(2, &[]);
    let _agent = site.agent(&[]);
    site.phase(0, "Unprovisioned");
    site.phase(1, "Unprovisioned");
    let rule = format!("[{{hostname: '*', devices: ['{}']}}]", site.devices[0]);
    let file = site.yard.path("disks.yaml");
    let write = |filters: &str| {
        let map = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "disks", "namespace": "mainstay-system"},
            "data": {"autoprovision.yaml": rule, "filters.yaml": filters},
        });
        std::fs::write(&file, map.to_string()).unwrap();
        site.run(&format!("kubectl apply -f {}", file.display()));
    };
    let gone = site.name(1);
    write("[]");
    site.phase(0, "Provisioned");
    assert_eq!(site.object(1)["status"]["provisionPhase"], "Unprovisioned", "no rule takes it");
    write(&format!("[{{hostname: '{NODE}', excludeDevices: ['{}']}}]", site.devices[1]));
    site.run(&format!("kubectl wait bd/{gone} --for=delete --timeout=60s"));
    write("[]");
    until("a disk that is no longer excluded comes back", || {
        site.client("mainstay disks show @1").status.success()
    });
}
