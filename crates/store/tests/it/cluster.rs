//! A real etcd for the tests: started on free ports in a temporary folder, hurt on demand, and
//! stopped when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainstay_store::etcd::Address;

/// Some etcd members, with proxies between them and their clients and peers.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    folder: tempfile::TempDir,
}

pub(crate) struct Member {
    running: Option<Running>,
    arguments: Vec<String>,
    pub(crate) client: Proxy,
    peer: Proxy,
}

impl Cluster {
    /// Starts `count` members and waits until they serve.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// The same with more arguments for every member.
    pub(crate) fn start_with(count: usize, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let proxies: Vec<_> = (0..count).map(|_| (Proxy::start(), Proxy::start())).collect();
        let initial: Vec<_> = proxies
            .iter()
            .enumerate()
            .map(|(n, (_, peer))| format!("m{n}=http://{}", peer.address))
            .collect();
        let initial = initial.join(",");
        let mut members: Vec<_> = proxies
            .into_iter()
            .enumerate()
            .map(|(n, (client, peer))| {
                let data = folder.path().join(format!("m{n}"));
                let mut arguments = vec![
                    format!("--name=m{n}"),
                    format!("--data-dir={}", data.display()),
                    format!("--listen-client-urls=http://{}", client.target),
                    format!("--advertise-client-urls=http://{}", client.address),
                    format!("--listen-peer-urls=http://{}", peer.target),
                    format!("--initial-advertise-peer-urls=http://{}", peer.address),
                    format!("--initial-cluster={initial}"),
                    "--heartbeat-interval=50".into(),
                    "--election-timeout=500".into(),
                    "--logger=zap".into(),
                    "--log-level=error".into(),
                ];
                arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
                Member { running: None, arguments, client, peer }
            })
            .collect();
        members.iter_mut().for_each(Member::start);
        let cluster = Self { members, folder };
        cluster.wait_until_it_serves();
        cluster
    }

    /// Its address, with a prefix that no other test uses.
    pub(crate) fn address(&self) -> Address {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let hosts: Vec<_> = self.members.iter().map(|m| m.client.address.clone()).collect();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Address::parse(&format!("{}/test-{count}", hosts.join(","))).unwrap()
    }

    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].stop();
    }

    pub(crate) fn restart(&mut self, member: usize) {
        self.members[member].stop();
        self.members[member].start();
    }

    pub(crate) fn signal(&self, member: usize, signal: &str) {
        let Some(running) = &self.members[member].running else { return };
        let status = Command::new("kill").args([signal, &running.etcd]).status();
        assert!(status.unwrap().success(), "kill {signal}");
    }

    /// Cuts a member off from clients and peers, or reconnects it.
    pub(crate) fn cut(&self, member: usize, cut: bool) {
        self.members[member].client.hold(cut);
        self.members[member].peer.hold(cut);
    }

    /// Ends every connection of clients to a member and refuses new ones, or takes them again.
    pub(crate) fn sever(&self, member: usize, severed: bool) {
        self.members[member].client.sever(severed);
    }

    /// Runs `etcdctl` against the first member; says whether it succeeded.
    pub(crate) fn control(&self, arguments: &[&str]) -> bool {
        let endpoint = format!("--endpoints=http://{}", self.members[0].client.address);
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(endpoint)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        output.expect("etcdctl is needed: install Debian's etcd-client").success()
    }

    /// The value of a key, as `etcdctl` shows it.
    pub(crate) fn value(&self, key: &str) -> String {
        let endpoint = format!("--endpoints=http://{}", self.members[0].client.address);
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&endpoint, "get", "--print-value-only", key])
            .output();
        let output = output.expect("etcdctl is needed: install Debian's etcd-client");
        let text = String::from_utf8(output.stdout).unwrap();
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }

    /// Every key that begins with `prefix`, and its value, as the raw bytes in etcd.
    pub(crate) fn dump(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let endpoint = format!("--endpoints=http://{}", self.members[0].client.address);
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&endpoint, "get", "--prefix", "--write-out=json", prefix])
            .output();
        let output = output.expect("etcdctl is needed: install Debian's etcd-client");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let bytes = |value: &serde_json::Value| {
            STANDARD.decode(value.as_str().unwrap_or_default()).unwrap()
        };
        let kvs = answer["kvs"].as_array().cloned().unwrap_or_default();
        let text = |kv: &serde_json::Value| String::from_utf8(bytes(&kv["key"])).unwrap();
        kvs.iter().map(|kv| (text(kv), bytes(&kv["value"]))).collect()
    }

    /// Writes raw bytes to a key.
    pub(crate) fn put(&self, key: &str, value: &[u8]) {
        let endpoint = format!("--endpoints=http://{}", self.members[0].client.address);
        let mut shell = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&endpoint, "put", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("etcdctl is needed: install Debian's etcd-client");
        shell.stdin.take().unwrap().write_all(value).unwrap();
        assert!(shell.wait().unwrap().success(), "etcdctl put {key}");
    }

    /// Makes all of these changes in one transaction, each as `etcdctl txn` takes it.
    pub(crate) fn transact(&self, changes: &[String]) -> bool {
        let endpoint = format!("--endpoints=http://{}", self.members[0].client.address);
        let mut shell = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&endpoint, "txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcdctl is needed: install Debian's etcd-client");
        // No condition, the changes, nothing otherwise.
        let text = format!("\n{}\n\n\n", changes.join("\n"));
        shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        shell.wait().unwrap().success()
    }

    fn wait_until_it_serves(&self) {
        for _ in 0..100 {
            if self.control(&["--command-timeout=1s", "endpoint", "health"]) {
                return;
            }
        }
        let folder = self.folder.path().display();
        panic!("etcd did not start in {folder}: is Debian's etcd-server installed?");
    }
}

/// An etcd under the eye of a shell that kills it as soon as our end of its input closes: when
/// it is stopped, but also when the test is killed, or ends without a chance to tidy up.
struct Running {
    shell: Child,
    etcd: String,
}

const WATCHDOG: &str =
    r#""$@" >/dev/null 2>&1 </dev/null & echo $!; cat >/dev/null; kill -9 $!; wait"#;

impl Member {
    fn start(&mut self) {
        let mut shell = Command::new("sh")
            .args(["-c", WATCHDOG, "sh", "etcd"])
            .args(&self.arguments)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut etcd = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut etcd).unwrap();
        self.running = Some(Running { shell, etcd: etcd.trim().to_owned() });
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            drop(running.shell.stdin.take());
            // The shell has nothing to say; it ends when etcd has.
            let _ = running.shell.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A wire that can be cut: bytes go through while it is open, and stay where they are while not.
pub(crate) struct Proxy {
    address: String,
    pub(crate) target: String,
    held: Arc<AtomicBool>,
    severed: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let held = Arc::new(AtomicBool::new(false));
        let (to, gate) = (target.clone(), held.clone());
        let severed = Arc::new(AtomicBool::new(false));
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (refuse, accepted) = (severed.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut accepted = accepted.lock().unwrap();
                if refuse.load(Ordering::Relaxed) {
                    continue;
                }
                accepted.extend(stream.try_clone());
                drop(accepted);
                let Ok(other) = TcpStream::connect(&to) else { continue };
                let pairs = [
                    (stream.try_clone(), other.try_clone()),
                    (other.try_clone(), stream.try_clone()),
                ];
                for (from, to) in pairs {
                    let (Ok(from), Ok(to)) = (from, to) else { continue };
                    let gate = gate.clone();
                    std::thread::spawn(move || pump(from, to, &gate));
                }
            }
        });
        Self { address, target, held, severed, connections }
    }

    fn sever(&self, severed: bool) {
        let mut connections = self.connections.lock().unwrap();
        self.severed.store(severed, Ordering::Relaxed);
        for connection in connections.drain(..) {
            // The other side may have closed it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while held.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // The other direction may have closed both already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
