//! Backing up, restoring and looking after the store, with the real program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::process::{TestServer, code, folder, offline};

fn restore(file: &Path, data_dir: &Path) -> Output {
    offline(&["restore", file.to_str().unwrap(), "--data-dir", data_dir.to_str().unwrap()])
}

#[test]
fn a_backup_of_a_running_server_makes_the_same_server_elsewhere() {
    let server = TestServer::start();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests/config.yaml");
    code(&server.mainstay(&["apply", "-f", manifest]), 0);
    let before = code(&server.mainstay(&["get", "cm", "-A", "-o", "json"]), 0);
    let there = folder();
    let file = there.path().join("mainstay.backup");
    let name = file.to_str().unwrap();
    for _ in 0..2 {
        let said = code(&server.mainstay(&["backup", name]), 0);
        assert!(said.contains("objects at revision"), "{said}");
    }
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(there.path()).unwrap().count(), 1, "nothing is left beside it");
    let piped = server.mainstay(&["backup", "-"]);
    assert!(piped.status.success());
    assert!(piped.stdout.starts_with(b"{\"mainstay\":\"backup\",\"format\":2,"));
    assert!(piped.stdout.ends_with(b"\"}\n"));
    assert!(server.terminate().success());

    let data = there.path().join("data");
    code(&restore(&file, &data), 0);
    let refused = code(&restore(&file, &data), 1);
    assert!(refused.contains("not empty"), "{refused}");
    let server = TestServer::start_in(&data, &[]);
    let after = code(&server.mainstay(&["get", "cm", "-A", "-o", "json"]), 0);
    let parsed = |text: &str| {
        let mut list: Value = serde_json::from_str(text).unwrap();
        list["metadata"] = Value::Null;
        for item in list["items"].as_array_mut().unwrap() {
            item["metadata"]["resourceVersion"] = Value::Null;
        }
        list
    };
    assert_eq!(parsed(&after), parsed(&before));
    let in_use = code(&restore(&file, &data), 1);
    assert!(in_use.contains("in use by another process"), "{in_use}");
    assert!(server.terminate().success());
}

#[test]
fn bad_files_are_refused_and_leave_nothing_behind() {
    let there = folder();
    let data = there.path().join("data");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/golden/backup-v1");
    let whole = std::fs::read(golden).unwrap();
    let newer = String::from_utf8(whole.clone()).unwrap().replace("\"format\":1", "\"format\":7");
    let cases: [(&[u8], &str); 4] = [
        (&whole[..whole.len() / 2], "cut short"),
        (b"nothing of ours", "not a backup"),
        (newer.as_bytes(), "use a newer mainstay"),
        (&whole.iter().map(|b| if *b == b'f' { b'e' } else { *b }).collect::<Vec<_>>(), "backup"),
    ];
    for (text, expected) in cases {
        let file = there.path().join("bad");
        std::fs::write(&file, text).unwrap();
        let said = code(&restore(&file, &data), 2);
        assert!(said.contains(expected), "{said}");
        assert!(!data.exists(), "{expected}");
    }
    code(&restore(&there.path().join("absent"), &data), 2);
    code(&restore(there.path(), &data), 2);
    let memory = ["restore", golden, "--store", "memory:"];
    code(&offline(&memory), 2);
    code(&restore(Path::new(golden), &data), 0);
}

#[test]
fn a_failed_backup_leaves_no_file() {
    let server = TestServer::start();
    let there = folder();
    let file = there.path().join("mainstay.backup");
    let mut viewer = server.mainstay(&["token", "create", "--role", "viewer"]).stdout;
    viewer.pop();
    let viewer = String::from_utf8(viewer).unwrap();
    let refused = server.mainstay(&["backup", file.to_str().unwrap(), "--token", &viewer]);
    assert!(code(&refused, 1).to_lowercase().contains("forbidden"));
    let nowhere = there.path().join("no/such/folder");
    code(&server.mainstay(&["backup", nowhere.to_str().unwrap()]), 1);
    code(&server.mainstay(&["backup", there.path().to_str().unwrap()]), 2);
    assert_eq!(std::fs::read_dir(there.path()).unwrap().count(), 0);
}

#[test]
fn the_store_is_measured_compacted_and_checked() {
    let server = TestServer::start();
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_slice(&server.mainstay(arguments).stdout).unwrap()
    };
    let stats = json(&["store", "stats", "-o", "json"]);
    assert_eq!(stats["backend"], "sqlite");
    let table = code(&server.mainstay(&["store", "stats"]), 0);
    for word in ["COLLECTION", "namespaces", "total", "objects.db-wal"] {
        assert!(table.contains(word), "{table}");
    }
    let compacted = json(&["store", "compact", "-o", "json"]);
    assert!(compacted["compactedThrough"].as_u64() >= stats["revision"].as_u64());
    let said = code(&server.mainstay(&["store", "compact"]), 0);
    assert!(said.starts_with("compacted through revision "), "{said}");
    assert_eq!(json(&["store", "check", "-o", "json"])["findings"], serde_json::json!([]));
    let said = code(&server.mainstay(&["store", "check"]), 0);
    assert!(said.contains("objects checked, 0 findings"), "{said}");
}

#[test]
fn a_database_without_a_server_is_checked_down_to_its_pages() {
    let there = folder();
    let data = there.path().to_str().unwrap();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/golden/");
    let check = || offline(&["store", "check", "--data-dir", data]);
    assert!(code(&check(), 2).contains("there is no database"));
    let server = TestServer::start_in(there.path(), &[]);
    assert!(code(&check(), 1).contains("in use by another process"));
    assert!(server.terminate().success());
    let said = code(&check(), 0);
    assert!(said.contains("objects checked, 0 findings"), "{said}");

    let database = there.path().join("objects.db");
    std::fs::copy(format!("{golden}objects-v1.db"), &database).unwrap();
    std::fs::remove_file(there.path().join("objects.db.acknowledged")).unwrap();
    let said = code(&check(), 1);
    assert!(said.contains("default/plain"), "its objects obey no schema, and are named: {said}");
    let mut bytes = std::fs::read(&database).unwrap();
    // Where the second page begins, which is the root of the objects' table.
    bytes[4096..4196].fill(0xa5);
    std::fs::write(&database, bytes).unwrap();
    let said = code(&check(), 1);
    assert!(said.contains("damaged"), "{said}");
}
