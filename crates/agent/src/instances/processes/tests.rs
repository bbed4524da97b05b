//! Real processes: started, frozen, stopped, killed, and found again by the next agent.

mod by_socket;
mod world;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use mainstay_sessions::api::{Port, Protocol, Readiness};
use mainstay_sessions::protocol::{Failure, SessionPhase};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use world::{Node, close, eventually, id, is_stopped, open, pid_of, script};

#[tokio::test]
async fn a_process_gets_its_environment_and_is_reachable() {
    let mut node = Node::new();
    let mut start = script("web", "env > seen; exec python3 -m http.server $PORT");
    let container = &mut start.process.process;
    container.ports = vec![Port { name: "my-web".to_owned(), ..Port::default() }];
    let readiness = Readiness { port: Some("my-web".to_owned()), file: None, timeout_seconds: 60 };
    container.readiness = Some(readiness);
    container.env = vec![mainstay_sessions::api::EnvironmentVariable {
        name: "OWN".to_owned(),
        value: "yes".to_owned(),
        value_from: None,
    }];
    start.process.config_data.insert("level".to_owned(), "7".to_owned());
    node.start(start).await.unwrap();
    let state = node.until("web", InstancePhase::Running).await;
    let port = u16::try_from(state.endpoints[0].port).unwrap();
    assert_eq!((state.endpoints[0].name.as_str(), state.endpoints[0].udp), ("my-web", false));
    assert!((20_000..30_000).contains(&port));

    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /seen HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let folder = node.shared.folder(&id("web"));
    for line in [
        format!("PORT={port}"),
        format!("PORT_MY_WEB={port}"),
        "OWN=yes".to_owned(),
        "MAINSTAY_INSTANCE=web".to_owned(),
        "MAINSTAY_NAMESPACE=default".to_owned(),
        "MAINSTAY_APPLICATION=app".to_owned(),
        format!("MAINSTAY_CONFIG_DIR={}", folder.join("config").display()),
    ] {
        assert!(answer.lines().any(|seen| seen == line), "{line} is not in {answer}");
    }
    assert!(!answer.contains("CARGO"), "the agent's own environment is not inherited");
    assert_eq!(fs::read_to_string(folder.join("config/level")).unwrap(), "7");

    node.stop(id("web"), None).await.unwrap();
    let state = node.until("web", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::STOPPED, "{}", state.message);
    assert!(!folder.join("work").exists() && folder.join("log").exists());
    assert!(lock(&node.shared.ports).take(port, Protocol::Tcp), "its port is free again");
}

#[tokio::test]
async fn an_end_is_noticed_and_explained() {
    let mut node = Node::new();
    node.start(script("code", "exit 3")).await.unwrap();
    let state = node.until("code", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::EXITED);
    assert!(state.message.contains("exit code 3"), "{}", state.message);

    node.start(script("killed", "sleep 1000 & sleep 1000")).await.unwrap();
    node.until("killed", InstancePhase::Running).await;
    node.open(open("s", "killed")).await.unwrap();
    let pid = pid_of(&node, "killed");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let state = node.until("killed", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::SIGNALLED);
    assert!(state.message.contains("signal 9"), "{}", state.message);
    let session = node.sessions.remove("s").unwrap();
    assert_eq!((session.phase(), session.reason.as_str()), (SessionPhase::Closed, "InstanceEnded"));
    // Its children are gone as well: its group is empty.
    let left = || rustix::process::test_kill_process_group(pid).is_err();
    eventually("the group is empty", left).await;
}

#[tokio::test]
async fn an_instance_that_does_not_stop_in_time_is_killed() {
    let mut node = Node::new();
    let mut start = script("deaf", "trap '' TERM; touch ready; while :; do sleep 1000; done");
    let file = Some("ready".to_owned());
    start.process.process.readiness = Some(Readiness { port: None, file, timeout_seconds: 60 });
    start.process.grace_seconds = 3_600;
    node.start(start).await.unwrap();
    node.until("deaf", InstancePhase::Running).await;
    node.stop(id("deaf"), None).await.unwrap();
    node.until("deaf", InstancePhase::Terminating).await;
    assert_eq!(node.open(open("s", "deaf")).await.unwrap_err().failure(), Failure::Conflict);
    node.stop(id("deaf"), Some(Duration::from_millis(50))).await.unwrap();
    let state = node.until("deaf", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::KILLED, "{}", state.message);
    assert!(state.message.contains("did not end within 0.05 s"), "{}", state.message);
}

#[tokio::test]
async fn an_instance_that_is_not_ready_in_time_is_terminated() {
    let mut node = Node::new();
    let mut start = script("never", "sleep 1000");
    let file = Some("ready".to_owned());
    start.process.process.readiness = Some(Readiness { port: None, file, timeout_seconds: 1 });
    node.start(start).await.unwrap();
    let state = node.until("never", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::NOT_READY, "{}", state.message);
}

/// Freezes and thaws; `frozen` says how the kernel shows it.
async fn freezes(cgroups: bool) {
    let mut node = Node::with(|options| options.cgroups = cgroups);
    let mut start = script("cold", "while :; do echo x >> count; sleep 0.01; done");
    start.standby = true;
    node.start(start).await.unwrap();
    node.until("cold", InstancePhase::Standby).await;
    let pid = pid_of(&node, "cold");
    let group = node.shared.ledger().get(&id("cold")).unwrap().own.group.clone();
    let frozen = || match group.shown_frozen() {
        Some(shown) => shown,
        None => is_stopped(pid),
    };
    eventually("the kernel shows it frozen", frozen).await;
    if cgroups && group.shown_frozen().is_none() {
        eprintln!("NO CGROUP FREEZER ON THIS MACHINE: only SIGSTOP was tested");
    }
    let count = node.shared.folder(&id("cold")).join("work/count");
    let length = || fs::metadata(&count).map_or(0, |facts| facts.len());
    let before = length();

    node.open(open("s", "cold")).await.unwrap();
    node.until("cold", InstancePhase::Running).await;
    eventually("it goes on", || !frozen() && length() > before).await;
    assert_eq!(node.freeze(id("cold")).await.unwrap_err().failure(), Failure::Conflict);
    node.close(close("s", "cold", 0)).await.unwrap();
    node.freeze(id("cold")).await.unwrap();
    eventually("the kernel shows it frozen", frozen).await;

    // A frozen instance hears that it is to stop.
    node.stop(id("cold"), Some(Duration::from_secs(600))).await.unwrap();
    let state = node.until("cold", InstancePhase::Terminated).await;
    assert_eq!(state.reason, reason::STOPPED, "{}", state.message);
}

#[tokio::test]
async fn instances_are_frozen_by_the_freezer() {
    freezes(true).await;
}

#[tokio::test]
async fn instances_are_frozen_by_signals_where_there_is_no_freezer() {
    freezes(false).await;
}

/// The agent is restarted, politely or not.
async fn restarts(cgroups: bool, politely: bool) {
    let folder = tempfile::tempdir().unwrap();
    let options =
        |folder: &Path| Options { cgroups, ..Options::new(folder.to_owned(), "127.0.0.1") };
    let (place, old) = (folder.path().to_owned(), options(folder.path()));
    let before = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let pids = runtime.block_on(async {
            let mut node = Node::on(old);
            for name in ["busy", "cold", "dying"] {
                let mut start = script(name, "sleep 1000");
                start.standby = name == "cold";
                start.process.process.ports = vec![Port::default()];
                node.start(start).await.unwrap();
            }
            node.until("cold", InstancePhase::Standby).await;
            node.until("busy", InstancePhase::Running).await;
            node.until("dying", InstancePhase::Running).await;
            node.open(open("s", "busy")).await.unwrap();
            node.open(open("t", "dying")).await.unwrap();
            let pids = ["busy", "cold", "dying"].map(|name| pid_of(&node, name));
            if politely {
                node.shutdown().await;
            }
            // Its instances live on, whatever becomes of it.
            node.keep();
            pids
        });
        runtime.shutdown_background();
        pids
    });
    let [busy, cold, dying] = before.join().unwrap();
    rustix::process::kill_process(dying, rustix::process::Signal::KILL).unwrap();
    eventually("it is dead", || state::started(dying).is_none()).await;
    assert!(state::started(busy).is_some() && state::started(cold).is_some());
    if !cgroups {
        // A shell stopped while it starts a program shows state D; its child shows T.
        eventually("the standby instance is still stopped", || is_stopped(cold)).await;
    }

    let mut node = Node::on(options(&place));
    let report = node.report();
    let phases: Vec<_> =
        report.instances.iter().map(|state| (state.name.as_str(), state.phase())).collect();
    let expected = [
        ("busy", InstancePhase::Running),
        ("cold", InstancePhase::Standby),
        ("dying", InstancePhase::Terminated),
    ];
    assert_eq!(phases, expected);
    assert_eq!(report.instances[2].reason, reason::LOST);
    assert_eq!(report.instances[0].endpoints.len(), 1);
    let sessions: Vec<_> =
        report.sessions.iter().map(|state| (state.name.as_str(), state.phase())).collect();
    assert_eq!(sessions, [("s", SessionPhase::Open), ("t", SessionPhase::Closed)]);
    let kept = &report.sessions[0];
    assert_eq!((kept.object.as_slice(), kept.external_port), (&b"{object}"[..], 30_001));
    assert_eq!((pid_of(&node, "busy"), pid_of(&node, "cold")), (busy, cold));

    node.close(close("s", "busy", 0)).await.unwrap();
    node.thaw(id("cold")).await.unwrap();
    rustix::process::kill_process(busy, rustix::process::Signal::KILL).unwrap();
    node.until("busy", InstancePhase::Terminated).await;
    node.stop(id("cold"), None).await.unwrap();
    node.until("cold", InstancePhase::Terminated).await;
    assert_eq!(node.report().instances.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_outlive_an_agent_that_shuts_down() {
    restarts(true, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_outlive_an_agent_that_is_cut_off() {
    restarts(false, false).await;
}

#[tokio::test]
async fn processes_of_another_boot_are_not_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(folder.path().to_owned(), "127.0.0.1");
    let mut node = Node::on(options.clone());
    node.start(script("old", "sleep 1000")).await.unwrap();
    node.until("old", InstancePhase::Running).await;
    let pid = pid_of(&node, "old");
    node.shutdown().await;
    let file = node.shared.folder(&id("old")).join("state.json");
    node.keep();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&state::boot_id().unwrap(), "another")).unwrap();
    let node = Node::on(options);
    let report = node.report();
    assert_eq!(report.instances[0].reason, reason::LOST);
    assert_eq!(report.instances[0].message, "the machine was restarted");
    assert!(state::started(pid).is_some(), "a stranger of that number is left alone");
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
}

#[tokio::test]
async fn logs_are_read_followed_and_kept_small() {
    use futures_util::StreamExt;
    let mut node = Node::new();
    let noisy = "i=0; while [ $i -lt 30000 ]; do echo line $i of a log that grows and grows and \
                 grows; i=$((i+1)); done; touch done; sleep 1000";
    let mut start = script("noisy", noisy);
    let file = Some("done".to_owned());
    start.process.process.readiness = Some(Readiness { port: None, file, timeout_seconds: 600 });
    node.start(start).await.unwrap();
    node.until("noisy", InstancePhase::Running).await;
    let folder = node.shared.folder(&id("noisy"));
    eventually("it is put aside", || folder.join("log.1").exists()).await;
    eventually("it is small", || fs::metadata(folder.join("log")).unwrap().len() <= logs::SIZE)
        .await;
    assert!(fs::metadata(folder.join("log.1")).unwrap().len() <= logs::SIZE);
    let read = |tail, follow| ReadLog {
        namespace: "default".to_owned(),
        instance: "noisy".to_owned(),
        tail,
        follow,
    };
    let mut followed = node.read_log(read(1, true)).await.unwrap();
    let line = followed.next().await.unwrap().unwrap();
    assert!(line.starts_with(b"line 29999 of"), "{}", String::from_utf8_lossy(&line));
    logs::create(&folder).unwrap().write_all(b"more\n").unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap(), b"more\n");
    node.stop(id("noisy"), Some(Duration::ZERO)).await.unwrap();
    assert!(followed.next().await.is_none(), "it ends with its instance");
    node.until("noisy", InstancePhase::Terminated).await;
    let rest = node.read_log(read(1, false)).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(rest, b"more\n", "also after the end");
    let mut none = read(1, false);
    none.instance = "../x".to_owned();
    assert_eq!(node.read_log(none).await.err().unwrap().failure(), Failure::NotFound);
}

#[tokio::test]
async fn a_full_disk_refuses_new_instances_and_keeps_running_ones() {
    let Some(disk) = world::SmallDisk::mount() else {
        eprintln!("NO TMPFS CAN BE MOUNTED HERE: a full disk was not tested");
        return;
    };
    let mut node = Node::on(Options::new(disk.path().join("state"), "127.0.0.1"));
    node.start(script("first", "sleep 1000")).await.unwrap();
    node.until("first", InstancePhase::Running).await;
    let filling = disk.fill();
    let error = node.start(script("second", "touch /nowhere/ran; sleep 1000")).await.unwrap_err();
    assert_eq!(error.failure(), Failure::Exhausted, "{error}");
    let second = node.shared.folder(&id("second"));
    assert!(!second.exists(), "nothing is left of it");
    assert_eq!(node.report().instances.len(), 1);
    let error = node.open(open("s", "first")).await.unwrap_err();
    assert_eq!(error.failure(), Failure::Exhausted, "{error}");
    assert!(state::started(pid_of(&node, "first")).is_some(), "what runs goes on");

    fs::remove_file(filling).unwrap();
    node.open(open("t", "first")).await.unwrap();
    node.start(script("second", "sleep 1000")).await.unwrap();
    node.until("second", InstancePhase::Running).await;
    for name in ["first", "second"] {
        node.stop(id(name), Some(Duration::ZERO)).await.unwrap();
        node.until(name, InstancePhase::Terminated).await;
    }
    node.shutdown().await;
}

#[tokio::test]
async fn limits_hold_where_the_machine_can() {
    let mut node = Node::new();
    let cannot = node.runtime.cannot_limit();
    if !cannot.is_empty() {
        eprintln!("THIS MACHINE CANNOT LIMIT {cannot:?}: those limits were not tested");
    }
    let limits = |cpu: &str, memory: &str| {
        let text = serde_json::json!({ "limits": { "cpu": cpu, "memory": memory } });
        serde_json::from_value(text).unwrap()
    };
    let mut start = script("greedy", "exec python3 -c 'x = b\"x\" * (1 << 29); print(len(x))'");
    start.process.process.resources = limits("250m", "64Mi");
    node.start(start).await.unwrap();
    let state = node.until("greedy", InstancePhase::Terminated).await;
    if !cannot.contains(&"memory") {
        assert_eq!(state.reason, reason::OUT_OF_MEMORY, "{}", state.message);
    }
    let mut start = script("slow", "sleep 1000");
    start.process.process.resources = limits("250m", "64Mi");
    node.start(start).await.unwrap();
    node.until("slow", InstancePhase::Running).await;
    if !cannot.contains(&"cpu") {
        let group = node.shared.ledger().get(&id("slow")).unwrap().own.group.clone();
        assert_eq!(group.quota().as_deref(), Some("25000"));
    }
}

#[tokio::test]
async fn a_process_runs_as_the_user_it_is_to() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT ROOT: other users were not tested");
        return;
    }
    let mut node = Node::new();
    node.passable();
    let mut start = script("other", "id -u > who; touch ready; sleep 1000");
    start.process.process.user = Some("65534".to_owned());
    let file = Some("ready".to_owned());
    start.process.process.readiness = Some(Readiness { port: None, file, timeout_seconds: 60 });
    node.start(start).await.unwrap();
    node.until("other", InstancePhase::Running).await;
    let who = fs::read_to_string(node.shared.folder(&id("other")).join("work/who")).unwrap();
    assert_eq!(who, "65534\n");
}

#[tokio::test]
async fn an_invalid_template_is_refused_and_leaves_no_files() {
    let node = Node::new();
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let busy = i32::from(listener.local_addr().unwrap().port());
    type Change = fn(&mut Start, i32);
    let cases: [(Change, Failure, &str); 8] = [
        (
            |s, _| s.process.process.command = vec!["no-such-program".to_owned()],
            Failure::Invalid,
            "not found in PATH",
        ),
        (
            |s, _| s.process.process.command = vec!["/no/such".to_owned()],
            Failure::Invalid,
            "no program",
        ),
        (|s, _| s.process.process.command.clear(), Failure::Invalid, "no command"),
        (
            |s, _| s.process.process.user = Some("nobody-at-all".to_owned()),
            Failure::Invalid,
            "no user",
        ),
        (
            |s, _| s.process.process.working_dir = Some("/no/such".to_owned()),
            Failure::Invalid,
            "working folder",
        ),
        (|s, _| s.id.name = "../up".to_owned(), Failure::Invalid, "no name"),
        (
            |s, _| {
                s.process.config_data.insert("a/b".to_owned(), String::new());
            },
            Failure::Invalid,
            "configData",
        ),
        (
            |s, busy| {
                let port = Port { container_port: Some(busy), ..Port::default() };
                s.process.process.ports = vec![Port::default(), port];
            },
            Failure::Exhausted,
            "in use",
        ),
    ];
    for (change, failure, message) in cases {
        let mut start = script("x", "sleep 1000");
        start.process.process.args.clear();
        start.process.process.command = vec!["sleep".to_owned(), "1000".to_owned()];
        change(&mut start, busy);
        let error = node.start(start).await.unwrap_err();
        assert_eq!(error.failure(), failure, "{error}");
        assert!(error.to_string().contains(message), "{error}");
        assert!(!node.shared.folder(&id("x")).exists());
    }
    drop(listener);
    assert_eq!(node.report(), Report::default());
    let missing = node.stop(id("nobody"), None).await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no instance default/nobody on this node");
}

#[tokio::test]
async fn a_process_whose_agent_ends_too_early_never_executes_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let start = script("x", "touch ran");
    let log = spawn::prepare(folder.path(), &start, None).unwrap();
    let environment = spawn::environment(&start, folder.path(), &[], None);
    let waiting = spawn::spawn(&start, folder.path(), &log, environment, None).unwrap();
    let pid = waiting.pid;
    drop(waiting);
    eventually("it is over", || state::started(pid).is_none()).await;
    assert!(!folder.path().join("work/ran").exists());
    supervise::abandon(pid, &Group::default());
}
