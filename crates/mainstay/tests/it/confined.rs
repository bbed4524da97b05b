//! The rule engine reaches the storage that its operator allows and nothing else, and strangers who
//! guess passwords cost little.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::process::{TestServer, folder};
use crate::rules::{must, run};

fn names(at: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn storage_elements_cannot_reach_the_data_folder() {
    let (data, disk) = (folder(), folder());
    let storage = disk.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let root = storage.display().to_string();
    let words = ["--only", "rules", "--log", "error", "--storage-root", &root];
    let server = TestServer::start_in(data.path(), &words);
    let before = names(data.path());
    for line in [
        "rse add SITE-A",
        "rse add EVIL",
        &format!("rse protocol SITE-A file://{root}/a"),
        &format!("rse protocol EVIL file://{}", data.path().display()),
        "account scope root s",
        "quota set root EVIL -1",
    ] {
        must(&server, line);
    }
    let file = disk.path().join("f");
    std::fs::write(&file, "content").unwrap();
    must(&server, &format!("upload SITE-A --scope s {}", file.display()));
    let rule = must(&server, "add s:f --copies 1 -e EVIL").trim().to_owned();
    loop {
        let explained = must(&server, &format!("explain {rule}"));
        if explained.contains("not below a storage root") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, said) = run(&server, &["check", "--storage", "--rse", "EVIL"]);
    assert!(code == Some(1) && said.contains("not below a storage root"), "{said}");
    assert!(!said.contains("kubeconfig") && !said.contains("objects.db"), "{said}");
    assert_eq!(names(data.path()), before, "nothing was written");
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn roots_that_reach_the_servers_own_files_are_refused_at_start() {
    let disk = folder();
    let (data, storage) = (disk.path().join("data"), disk.path().join("storage"));
    for place in [&data.join("inner"), &storage] {
        std::fs::create_dir_all(place).unwrap();
    }
    let shown = |path: &Path| path.display().to_string();
    let store = shown(&storage.join("objects.db"));
    for (words, why) in [
        (vec!["--storage-root".to_owned(), shown(&data)], "lies inside"),
        (vec!["--storage-root".to_owned(), shown(&data.join("inner"))], "lies inside"),
        (vec!["--storage-root".to_owned(), shown(disk.path())], "contains"),
        (vec!["--storage-root".to_owned(), "/".to_owned()], "contains"),
        (
            vec!["--storage-root".to_owned(), shown(&storage), "--store".to_owned(), store],
            "contains",
        ),
        (
            ["--storage-root", &shown(&storage), "--store-key", &shown(&storage.join("key"))]
                .map(str::to_owned)
                .to_vec(),
            "contains",
        ),
        (
            [
                "--storage-root",
                &shown(&storage),
                "--audit-sink",
                &format!("file:{}", shown(&storage.join("audit.log"))),
            ]
            .map(str::to_owned)
            .to_vec(),
            "contains",
        ),
        (vec!["--storage-root".to_owned(), shown(&storage.join("none"))], "No such file"),
        (vec!["--storage-endpoint".to_owned(), "a/b".to_owned()], "HOST:PORT"),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (mut child, said) = TestServer::try_start_in(&data, &words);
        let said = said.map(|_| "it started".to_owned()).unwrap_or_else(|said| said);
        drop(child.kill());
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

/// One line of `/proc/PID/status`, in kilobytes.
fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    found.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// A connection that asks again and again.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// The status and the headers of an answer, in lower case.
    fn ask(&mut self, path: &str, headers: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.stream.read_line(&mut head).unwrap() > 0, "cut off after {head:?}");
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        self.stream.read_exact(&mut body).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head)
    }
}

/// How much the server may grow while it is attacked, in kilobytes.
const GROWTH: u64 = 60 << 10;

#[test]
#[expect(clippy::disallowed_methods, reason = "how long administrators wait is printed")]
fn ten_thousand_wrong_logins_cost_little_memory_and_administrators_go_on() {
    let data = folder();
    let server = TestServer::start_in(data.path(), &["--only", "rules", "--plain-http"]);
    let address = server.address();
    let kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", token.trim().trim_matches('"'));
    let mut admin = Client::connect(&address);
    for _ in 0..50 {
        assert_eq!(admin.ask("/api/v1/namespaces/default/configmaps", &token).0, 200);
    }
    let before = memory(server.pid(), "VmRSS");
    let (judged, later, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let mut waits = Vec::new();
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            std::thread::scope(|scope| {
                for number in 0..100 {
                    let (address, judged, later) = (&address, &judged, &later);
                    scope.spawn(move || {
                        let mut client = Client::connect(address);
                        for turn in 0..100 {
                            // Accounts that are there and ones that are not.
                            let user = if turn % 2 == 0 { "root" } else { "nobody" };
                            let login = format!(
                                "X-Rucio-Account: root\r\nX-Rucio-Username: {user}-{}\r\nX-Rucio-Password: {turn}\r\n",
                                number % 4
                            );
                            let (status, head) = client.ask("/rucio/auth/userpass", &login);
                            match status {
                                401 => judged.fetch_add(1, Ordering::Relaxed),
                                429 | 503 => {
                                    assert!(head.contains("retry-after: "), "{head}");
                                    later.fetch_add(1, Ordering::Relaxed)
                                }
                                other => panic!("{other}: {head}"),
                            };
                        }
                    });
                }
            });
            over.store(true, Ordering::Release);
        });
        while !over.load(Ordering::Acquire) {
            let asked = Instant::now();
            assert_eq!(admin.ask("/api/v1/namespaces/default/configmaps", &token).0, 200);
            waits.push(asked.elapsed());
        }
        attack.join().unwrap();
    });
    waits.sort();
    let (judged, later) = (judged.into_inner(), later.into_inner());
    let grown = memory(server.pid(), "VmHWM").saturating_sub(before);
    eprintln!(
        "{judged} judged, {later} put off, {} KiB grown; administrators: {} requests, p50 {:?}, p99 {:?}",
        grown,
        waits.len(),
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100]
    );
    assert_eq!(judged + later, 10_000);
    assert!(grown <= GROWTH, "{grown} KiB");
    // Logins with the right password succeed meanwhile.
    let login = std::fs::read_to_string(data.path().join("rucio.cfg")).unwrap();
    let value = |key: &str| {
        let mut lines = login.lines().filter_map(|line| line.split_once('='));
        lines.find(|(name, _)| name.trim() == key).unwrap().1.trim().to_owned()
    };
    let login = format!(
        "X-Rucio-Account: root\r\nX-Rucio-Username: {}\r\nX-Rucio-Password: {}\r\n",
        value("username"),
        value("password")
    );
    assert_eq!(admin.ask("/rucio/auth/userpass", &login).0, 200);
    assert_eq!(server.terminate().code(), Some(0));
}
