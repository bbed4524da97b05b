//! Backups of a whole system: every engine in use, written to meanwhile, restored elsewhere and on
//! other databases, encrypted or not; and files that must be refused.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_catalog::private_postgres::PrivatePostgres;
use serde_json::Value;

use crate::process::{TestServer, cannot_test, code, folder, offline};
use crate::rules::must;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/backup-v2");

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Objects of every engine, and a catalog with a rule half fulfilled.
fn fill(server: &TestServer) {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let cluster = examples.join("volumes/cluster.yaml");
    code(&server.mainstay(&["apply", "-f", shown(&cluster)]), 0);
    code(&server.mainstay(&["apply", "--status", "-f", shown(&cluster)]), 0);
    let volume = examples.join("volumes/volume.yaml");
    code(&server.mainstay(&["apply", "-f", shown(&volume)]), 0);
    let there = folder();
    let application = there.path().join("application.yaml");
    let text = "apiVersion: apps.mainstay.dev/v1\nkind: Application\nmetadata: {name: desk}\n\
        spec: {command: [sleep, '1000'], resources: {requests: {cpu: 100m, memory: 64Mi}}, scalingPolicy: \
        {minimumInstance: 2, maximumInstance: 10, idleSessionNumThreshold: {low: 1, high: 3}}}\n";
    std::fs::write(&application, text).unwrap();
    code(&server.mainstay(&["apply", "-f", shown(&application)]), 0);
    for line in [
        "rse add SITE-A",
        "rse add SITE-B",
        "rse set SITE-A tier=1",
        "rse set SITE-B tier=1",
        "account add alice",
        "account scope alice user.alice",
        "quota set alice SITE-A 10000000000",
        "quota set alice SITE-B -1",
        "replica add SITE-A user.alice:f0:1000 user.alice:f1:1001",
        "did add user.alice:ds1",
        "did attach user.alice:ds1 user.alice:f0 user.alice:f1",
        "add user.alice:ds1 --copies 2 -e tier=1 --account alice",
        "transfer done SITE-B user.alice:f0",
    ] {
        must(server, line);
    }
}

/// The objects as users see them, without versions.
fn objects(server: &TestServer) -> Vec<Value> {
    let mut all = Vec::new();
    for kind in ["replicatedvolumes", "lvmvolumegroups", "applications", "namespaces"] {
        let listed = server.mainstay(&["get", kind, "-A", "-o", "json"]);
        let text = code(&listed, 0);
        let list: Value =
            serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{text}"));
        for item in list["items"].as_array().unwrap() {
            all.push(serde_json::json!([
                item["metadata"]["uid"],
                item["metadata"]["name"],
                item["spec"]
            ]));
        }
    }
    all
}

/// The catalog as users see it.
fn catalog(server: &TestServer) -> Vec<String> {
    let lists = [
        "rse list -o json",
        "account list -o json",
        "list -o json",
        "did show user.alice:ds1 -o json",
        "replica list user.alice:f0 user.alice:f1 -o json",
        "quota show alice -o json",
    ];
    lists.iter().map(|line| must(server, line)).collect()
}

fn is_sound(server: &TestServer) {
    let said = code(&server.mainstay(&["store", "check"]), 0);
    assert!(said.contains(" 0 findings"), "{said}");
    must(server, "check");
}

/// Writes objects and datasets until it is stopped.
fn write_on(server: &TestServer, over: &AtomicBool) {
    for n in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("user.alice:more{n}");
        must(server, &format!("did add {name}"));
        drop(server.mainstay(&["token", "create", "--role", "viewer"]));
    }
}

#[test]
fn a_whole_system_is_backed_up_while_it_is_written_to_and_restored_elsewhere() {
    let server = TestServer::start();
    fill(&server);
    let there = folder();
    let file = there.path().join("mainstay.backup");
    let over = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| write_on(&server, &over));
        let said = code(&server.mainstay(&["backup", shown(&file)]), 0);
        over.store(true, Ordering::Relaxed);
        said
    });
    assert!(said.contains("objects at revision") && said.contains("catalog: "), "{said}");
    assert!(!said.contains("about the same moment"), "{said}");
    let (before, listed) = (objects(&server), catalog(&server));
    let logins = Logins::of(&server);
    assert!(server.terminate().success());

    let checked = code(&offline(&["backup", "--check", shown(&file)]), 0);
    assert!(checked.contains("catalog: "), "{checked}");
    let data = there.path().join("data");
    code(&offline(&["restore", shown(&file), "--data-dir", shown(&data)]), 0);
    let server = TestServer::start_in(&data, &[]);
    assert_eq!(objects(&server), before);
    assert_eq!(catalog(&server), listed);
    is_sound(&server);
    logins.still_work_at(&server);
    // The numbers of requests go on, and rules are seen to.
    must(&server, "transfer done SITE-B user.alice:f1");
    must(&server, "check");
    assert!(server.terminate().success());
}

/// The credentials of the users of a server, and its certificate authority.
struct Logins {
    authority: String,
    token: String,
    user: String,
    password: String,
}

impl Logins {
    fn of(server: &TestServer) -> Self {
        let read =
            |name: &str| std::fs::read_to_string(server.kubeconfig().with_file_name(name)).unwrap();
        let value = |text: &str, name: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(name));
            found.unwrap().trim_start_matches([' ', '=', ':']).trim().to_owned()
        };
        let (kubeconfig, rucio) = (read("kubeconfig"), read("rucio.cfg"));
        Self {
            authority: read("ca.crt"),
            token: value(&kubeconfig, "token"),
            user: value(&rucio, "username"),
            password: value(&rucio, "password"),
        }
    }

    fn still_work_at(&self, server: &TestServer) {
        let authority = server.kubeconfig().with_file_name("ca.crt");
        assert_eq!(std::fs::read_to_string(&authority).unwrap(), self.authority);
        code(&server.mainstay(&["get", "namespaces", "--token", &self.token]), 0);
        let login = server
            .client("curl")
            .args(["--silent", "--show-error", "--fail", "--cacert", shown(&authority)])
            .args(["-H", &format!("X-Rucio-Username: {}", self.user)])
            .args(["-H", &format!("X-Rucio-Password: {}", self.password)])
            .args(["-H", "X-Rucio-Account: root"])
            .arg(format!("{}/rucio/auth/userpass", server.address()))
            .output();
        code(&login.unwrap(), 0);
    }
}

/// An etcd of one member; killed when dropped.
struct Etcd {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn etcd() -> Option<Etcd> {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("127.0.0.1:{}", listener.local_addr().unwrap().port())
    };
    let (client, peer, there) = (free(), free(), folder());
    let (url, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(there.path())
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    Some(Etcd { child, url: format!("etcd://{client}"), _folder: there })
}

#[test]
fn a_backup_restores_across_databases_and_back() {
    let database = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(database) => database,
        Err(why) => return cannot_test(&format!("backups across databases: {why}")),
    };
    let Some(etcd) = etcd() else { return cannot_test("backups across stores: there is no etcd") };
    database.make_schema("there").unwrap();
    let server = TestServer::start();
    fill(&server);
    let there = folder();
    let [first, second] = ["first", "second"].map(|name| there.path().join(name));
    code(&server.mainstay(&["backup", shown(&first)]), 0);
    let (before, listed) = (objects(&server), catalog(&server));
    assert!(server.terminate().success());

    let url = database.url("there");
    let elsewhere = there.path().join("elsewhere");
    let places = ["--store", &etcd.url, "--catalog", &url];
    let mut arguments = vec!["restore", shown(&first), "--data-dir", shown(&elsewhere)];
    arguments.extend(places);
    code(&offline(&arguments), 0);
    let refused = code(&offline(&arguments), 1);
    assert!(refused.contains("not empty"), "{refused}");
    let server = TestServer::start_in(&elsewhere, &places);
    assert_eq!((objects(&server), catalog(&server)), (before.clone(), listed.clone()));
    is_sound(&server);
    code(&server.mainstay(&["backup", shown(&second)]), 0);
    assert!(server.terminate().success());

    let back = there.path().join("back");
    code(&offline(&["restore", shown(&second), "--data-dir", shown(&back)]), 0);
    let server = TestServer::start_in(&back, &[]);
    assert_eq!((objects(&server), catalog(&server)), (before, listed));
    is_sound(&server);
    assert!(server.terminate().success());
}

struct Files {
    there: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { there: folder() }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.there.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

#[test]
fn an_encrypted_backup_opens_with_its_key_alone() {
    let server = TestServer::start();
    must(&server, "rse add SITE-SECRET");
    let files = Files::new();
    let right = files.write("right", "correct horse battery staple\n");
    let wrong = files.write("wrong", "incorrect horse\n");
    let empty = files.write("empty", "\n");
    let keys = [(); 2].map(|()| age::x25519::Identity::generate());
    let identities = keys.each_ref().map(|key| {
        use age::secrecy::ExposeSecret;
        let text = key.to_string().expose_secret().to_owned() + "\n";
        files.write(&key.to_public().to_string(), text)
    });
    let recipient = keys[0].to_public().to_string();
    let sealed = [["--passphrase-file", shown(&right)], ["--recipient", &recipient]];
    let opening = [["--passphrase-file", shown(&right)], ["--identity", shown(&identities[0])]];
    let others = [["--passphrase-file", shown(&wrong)], ["--identity", shown(&identities[1])]];
    let data = files.there.path().join("data");
    for at in 0..2 {
        let file = files.there.path().join(format!("sealed-{at}"));
        let [flag, value] = sealed[at];
        let said = code(&server.mainstay(&["backup", shown(&file), flag, value]), 0);
        assert!(said.contains("catalog: "), "{said}");
        let bytes = std::fs::read(&file).unwrap();
        for plain in ["SITE-SECRET", "mainstay", "PRIVATE KEY"] {
            assert!(!bytes.windows(plain.len()).any(|part| part == plain.as_bytes()), "{plain}");
        }
        let [flag, value] = opening[at];
        code(&offline(&["backup", "--check", shown(&file), flag, value]), 0);
        let into = ["restore", shown(&file), "--data-dir", shown(&data)];
        let other = [others[at], others[1 - at], opening[1 - at]];
        for [flag, value] in other {
            code(&offline(&[&into[..], &[flag, value]].concat()), 2);
            code(&offline(&["backup", "--check", shown(&file), flag, value]), 2);
        }
        let said = code(&offline(&into), 2);
        assert!(said.contains("it is encrypted"), "{said}");
        let mut cut = bytes.clone();
        cut.truncate(bytes.len() - 20);
        let mut flipped = bytes.clone();
        flipped[bytes.len() - 100] ^= 1;
        for damaged in [cut, flipped] {
            let damaged = files.write("damaged", damaged);
            code(
                &offline(&["restore", shown(&damaged), "--data-dir", shown(&data), flag, value]),
                2,
            );
        }
        assert!(!data.exists(), "a refused file leaves no folder behind");
    }
    let refused = server.mainstay(&["backup", shown(&data), "--passphrase-file", shown(&empty)]);
    assert!(code(&refused, 2).contains("is empty"));
    code(&server.mainstay(&["backup", shown(&data), "--recipient", "age1nonsense"]), 2);
    assert!(!data.exists());
    let file = files.there.path().join("sealed-0");
    let [flag, value] = opening[0];
    code(&offline(&["restore", shown(&file), "--data-dir", shown(&data), flag, value]), 0);
    assert!(server.terminate().success());
    let server = TestServer::start_in(&data, &[]);
    assert!(must(&server, "rse list").contains("SITE-SECRET"));
}

/// Lines under sums that are right.
fn resealed(lines: &[String]) -> String {
    use sha2::{Digest, Sha256};
    let (mut text, mut count) = (String::new(), 0);
    for line in lines {
        let sum = || -> String {
            Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let line = match line.as_str() {
            end if end.starts_with("{\"objects\":") => {
                let sealed = format!("{{\"objects\":{count},\"sha256\":\"{}\"}}", sum());
                count = -1;
                sealed
            }
            end if end.starts_with("{\"lines\":") => {
                format!("{{\"lines\":{count},\"sha256\":\"{}\"}}", sum())
            }
            other => {
                count += i64::from(!text.is_empty());
                other.to_owned()
            }
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[test]
fn damaged_files_are_refused_and_leave_no_trace() {
    let whole = std::fs::read_to_string(GOLDEN).unwrap();
    let lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    assert_eq!(resealed(&lines), whole);
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).unwrap();
    let (part, tables) = (at("{\"part\":"), at("{\"columns\":"));
    let changed = |at: usize, from: &str, to: &str| {
        let mut lines = lines.clone();
        assert!(lines[at].contains(from), "{}", lines[at]);
        lines[at] = lines[at].replace(from, to);
        resealed(&lines)
    };
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("use a newer mainstay".into(), changed(0, "\"format\":2", "\"format\":3").into()),
        ("use a newer mainstay".into(), changed(part, "\"schema\":", "\"schema\":9").into()),
        (
            "a part that the first line does not have".into(),
            changed(0, "catalog", "catalogs").into(),
        ),
        (
            "cut short".into(),
            lines[..part].join("\n").into_bytes().into_iter().chain(*b"\n").collect(),
        ),
        ("a row before any table".into(), {
            let mut lines = lines.clone();
            let row = lines.iter().position(|line| line.starts_with('[')).unwrap();
            lines.drain(tables..row);
            resealed(&lines).into()
        }),
        ("is missing".into(), {
            let mut lines = lines.clone();
            lines.drain(tables..lines.len() - 1);
            resealed(&lines).into()
        }),
    ];
    for tenth in 0..10 {
        let middle = whole.len() * tenth / 10;
        cases.push((String::new(), whole.as_bytes()[..middle].to_vec()));
        let mut flipped = whole.clone().into_bytes();
        flipped[middle] ^= 0x04;
        cases.push((String::new(), flipped));
    }
    let files = Files::new();
    let data = files.there.path().join("data");
    for (n, (expected, text)) in cases.into_iter().enumerate() {
        let file = files.write("bad", text);
        for command in [
            vec!["restore", shown(&file), "--data-dir", shown(&data)],
            vec!["backup", "--check", shown(&file)],
        ] {
            let said = code(&offline(&command), 2);
            assert!(said.contains(&expected), "case {n}: {said} instead of {expected}");
        }
        assert!(!data.exists(), "case {n}");
    }
}

/// `backup-v2` was written once, by the first version that had the format.
#[test]
fn the_first_backup_with_a_catalog_still_restores() {
    let there = folder();
    code(&offline(&["restore", GOLDEN, "--data-dir", shown(there.path())]), 0);
    let server = TestServer::start_in(there.path(), &[]);
    assert!(must(&server, "rse list").contains("SITE-B"));
    assert!(must(&server, "did show user.alice:ds1").contains("ds1"));
    is_sound(&server);
}

#[test]
fn a_catalog_in_use_or_half_restored_is_refused() {
    let there = folder();
    let data = there.path().join("data");
    let server = TestServer::start_in(&data, &[]);
    assert!(server.terminate().success());
    for name in ["objects.db", "objects.db-wal", "objects.db-shm"] {
        drop(std::fs::remove_file(data.join(name)));
    }
    let restore = || offline(&["restore", GOLDEN, "--data-dir", shown(&data)]);
    let said = code(&restore(), 1);
    assert!(said.contains("the catalog is not empty"), "{said}");
    assert!(!data.join("objects.db").exists(), "nothing was made");
    let catalog = data.join("catalog.db");
    std::fs::remove_file(&catalog).unwrap();
    drop(mainstay_catalog::load::Loader::start(shown(&catalog), "another").unwrap());
    let (_, said) = TestServer::try_start_in(&data, &[]);
    let said = said.unwrap_err();
    assert!(said.contains("run `mainstay restore` again"), "{said}");
    for name in ["objects.db", "objects.db-wal", "objects.db-shm"] {
        drop(std::fs::remove_file(data.join(name)));
    }
    code(&restore(), 0);
    drop(TestServer::start_in(&data, &[]));
}

#[test]
fn a_server_on_etcd_with_a_key_file_keeps_no_secret_in_the_clear() {
    use std::os::unix::fs::PermissionsExt;
    let Some(etcd) = etcd() else { return cannot_test("encryption on etcd: there is no etcd") };
    let (there, files) = (folder(), Files::new());
    let keys = files.write("keys", offline(&["store", "key", "new", "first"]).stdout);
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with = ["--store", &etcd.url, "--store-key", shown(&keys)];
    let server = TestServer::start_in(there.path(), &with);
    code(&server.mainstay(&["token", "create", "--role", "viewer"]), 0);
    let stats = || code(&server.mainstay(&["store", "stats"]), 0);
    let complete = "every value is encrypted with key first";
    while !stats().contains(complete) {}
    let said = code(&server.mainstay(&["store", "rekey"]), 0);
    assert!(said.contains("re-encrypting every value with data key"), "{said}");
    while !stats().contains(complete) {}
    is_sound(&server);
    let backup = files.there.path().join("backup");
    code(&server.mainstay(&["backup", shown(&backup)]), 0);
    assert!(server.terminate().success());
    let dump = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &etcd.url.replace("etcd://", "http://"), "get", "--prefix", ""])
        .output();
    let dump = dump.unwrap().stdout;
    let holds = |text: &[u8]| dump.windows(text.len()).any(|part| part == text);
    assert!(holds(b"datakeys.internal.mainstay.dev") && !holds(b"BEGIN PRIVATE KEY"));

    let (_, said) = TestServer::try_start_in(there.path(), &["--store", &etcd.url]);
    let said = said.unwrap_err();
    assert!(said.contains("encrypted with the key \"first\"") && said.contains("--store-key"));
    let check = ["store", "check", "--store", &etcd.url];
    assert!(code(&offline(&check), 1).contains("--store-key"));
    code(&offline(&[&check[..], &["--store-key", shown(&keys)]].concat()), 0);
    // A backup of an encrypted etcd restores into a database without a key.
    let elsewhere = files.there.path().join("elsewhere");
    code(&offline(&["restore", shown(&backup), "--data-dir", shown(&elsewhere)]), 0);
    is_sound(&TestServer::start_in(&elsewhere, &[]));
}

/// The files in a folder that hold a text.
fn holding(folder: &Path, text: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let holds = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut found: Vec<String> =
        files.filter(|path| path.is_file()).filter(holds).map(name).collect();
    found.sort();
    found
}

#[test]
fn a_server_with_a_key_file_keeps_no_secret_in_the_clear() {
    use std::os::unix::fs::PermissionsExt;
    let (there, files) = (folder(), Files::new());
    let server = TestServer::start_in(there.path(), &[]);
    assert!(server.terminate().success());
    let private = "BEGIN PRIVATE KEY";
    assert!(holding(there.path(), private).contains(&"objects.db".to_owned()));

    let line = offline(&["store", "key", "new", "first"]).stdout;
    let keys = files.write("keys", line);
    let arguments = ["--store-key", shown(&keys)];
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (_, said) = TestServer::try_start_in(there.path(), &arguments);
    assert!(said.unwrap_err().contains("may be read by others"));
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = TestServer::start_in(there.path(), &arguments);
    let said = code(&server.mainstay(&["store", "stats"]), 0);
    assert!(said.contains("every value is encrypted with key first"), "{said}");
    let token = server.mainstay(&["token", "create", "--role", "viewer"]);
    code(&token, 0);
    is_sound(&server);
    let backup = files.there.path().join("backup");
    code(&server.mainstay(&["backup", shown(&backup)]), 0);
    assert!(server.terminate().success());
    assert_eq!(holding(there.path(), private), Vec::<String>::new());

    let (_, said) = TestServer::try_start_in(there.path(), &[]);
    let said = said.unwrap_err();
    assert!(
        said.contains("encrypted with the key \"first\"") && said.contains("--store-key"),
        "{said}"
    );
    let data = shown(there.path());
    assert!(code(&offline(&["store", "check", "--data-dir", data]), 1).contains("--store-key"));
    code(&offline(&["store", "check", "--data-dir", data, "--store-key", shown(&keys)]), 0);
    // A backup does not need the key.
    let elsewhere = files.there.path().join("elsewhere");
    code(&offline(&["restore", shown(&backup), "--data-dir", shown(&elsewhere)]), 0);
    drop(TestServer::start_in(&elsewhere, &[]));
    drop(TestServer::start_in(there.path(), &arguments));
}
