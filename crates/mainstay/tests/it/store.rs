//! The database of a server when it is lost, exchanged, damaged or taken: it is never served by
//! mistake, and what to do is said.

use std::path::Path;

use crate::process::{MAINSTAY, TestServer, folder, offline, refused, text_of};

fn remove(data_dir: &Path, names: &[&str]) {
    for name in names {
        match std::fs::remove_file(data_dir.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{name}: {error}"),
            _ => {}
        }
    }
}

const CREATE: [&str; 3] = ["apply", "-f", "-"];

/// Creates a ConfigMap.
fn create(server: &TestServer, name: &str) {
    use std::io::Write;
    let mut child = server
        .client(MAINSTAY)
        .args(CREATE)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: needle}}\n"
    );
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn has(server: &TestServer, name: &str) -> bool {
    server.mainstay(&["get", "cm", name]).status.success()
}

#[test]
fn a_lost_emptied_or_foreign_database_is_refused_without_new_cluster() {
    let there = folder();
    let dir = there.path();
    let server = TestServer::start_in(dir, &[]);
    create(&server, "mine");
    let backup = dir.join("everything.backup");
    assert!(server.mainstay(&["backup", backup.to_str().unwrap()]).status.success());
    assert!(server.terminate().success());

    // Everything of the database, or only its file, or its content.
    remove(dir, &["objects.db", "objects.db-wal", "objects.db-shm"]);
    let said = refused(dir, &[]);
    assert!(said.contains("missing or empty") && said.contains("--new-cluster"), "{said}");
    std::fs::write(dir.join("objects.db"), "").unwrap();
    assert!(refused(dir, &[]).contains("missing or empty"));
    remove(dir, &["objects.db", "objects.db.acknowledged", "objects.db.lock"]);
    let said = refused(dir, &[]);
    assert!(said.contains("cluster.json says that it belongs to cluster "), "{said}");
    assert!(!dir.join("objects.db").exists(), "no empty database is left in its place");

    // One of another cluster.
    let other = folder();
    assert!(TestServer::start_in(other.path(), &[]).terminate().success());
    std::fs::copy(other.path().join("objects.db"), dir.join("objects.db")).unwrap();
    let said = refused(dir, &[]);
    assert!(said.contains("should belong to cluster "), "{said}");

    // A restore makes it right again.
    remove(dir, &["objects.db", "objects.db-wal", "objects.db-shm", "objects.db.acknowledged"]);
    remove(dir, &["catalog.db", "catalog.db-wal", "catalog.db-shm"]);
    let data = dir.to_str().unwrap();
    let restored = offline(&["restore", backup.to_str().unwrap(), "--data-dir", data]);
    assert!(restored.status.success(), "{}", text_of(&restored));
    let server = TestServer::start_in(dir, &[]);
    assert!(has(&server, "mine"));
    assert!(server.terminate().success());

    // And so does the operator's word.
    remove(dir, &["objects.db", "objects.db-wal", "objects.db-shm", "objects.db.acknowledged"]);
    let server = TestServer::start_in(dir, &["--new-cluster"]);
    assert!(!has(&server, "mine"));
    assert!(server.terminate().success());
    assert!(TestServer::start_in(dir, &[]).terminate().success(), "it is remembered");
}

#[test]
fn a_backup_is_restored_into_an_empty_folder() {
    let there = folder();
    let server = TestServer::start_in(there.path(), &[]);
    create(&server, "mine");
    let backup = there.path().join("everything.backup");
    assert!(server.mainstay(&["backup", backup.to_str().unwrap()]).status.success());
    let elsewhere = folder();
    let data = elsewhere.path().to_str().unwrap();
    let restored = offline(&["restore", backup.to_str().unwrap(), "--data-dir", data]);
    assert!(restored.status.success(), "{}", text_of(&restored));
    let marker = |folder: &Path| std::fs::read_to_string(folder.join("cluster.json")).unwrap();
    assert!(
        marker(there.path()).starts_with(marker(elsewhere.path()).trim_end().trim_end_matches('}'))
    );
    assert!(has(&TestServer::start_in(elsewhere.path(), &[]), "mine"));
}

#[test]
fn a_lost_catalog_is_refused_without_new_cluster() {
    let there = folder();
    let dir = there.path();
    assert!(TestServer::start_in(dir, &[]).terminate().success());
    remove(dir, &["catalog.db", "catalog.db-wal", "catalog.db-shm"]);
    let said = refused(dir, &[]);
    assert!(said.contains("catalog.db is missing or empty"), "{said}");
    assert!(TestServer::start_in(dir, &["--new-cluster"]).terminate().success());
    assert!(TestServer::start_in(dir, &[]).terminate().success(), "it is remembered");
}

#[test]
fn removing_the_lock_file_lets_no_second_server_in() {
    let there = folder();
    let dir = there.path();
    let server = TestServer::start_in(dir, &[]);
    for parts in [&["--only", "api"][..], &[]] {
        remove(dir, &["objects.db.lock"]);
        let said = refused(dir, parts);
        assert!(said.contains("in use by another process"), "{said}");
    }
    // Other objects, the same catalog.
    let other = folder();
    let catalog = dir.join("catalog.db");
    let said = refused(other.path(), &["--catalog", catalog.to_str().unwrap()]);
    assert!(said.contains("in use by another process") && said.contains("postgres"), "{said}");
    create(&server, "mine");
    server.kill();
    assert!(has(&TestServer::start_in(dir, &[]), "mine"), "a killed server leaves no lock");
}

#[test]
fn a_flipped_bit_is_refused_and_repaired_only_as_shown() {
    let there = folder();
    let dir = there.path();
    let data = dir.to_str().unwrap();
    let server = TestServer::start_in(dir, &[]);
    for name in ["keep", "lose"] {
        create(&server, name);
    }
    assert!(server.mainstay(&["store", "compact"]).status.success());
    assert!(server.terminate().success());
    let database = dir.join("objects.db");
    let mut bytes = std::fs::read(&database).unwrap();
    let name = b"\"name\":\"lose\"";
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    for at in places {
        bytes[at + name.len() - 2] ^= 1;
    }
    std::fs::write(&database, bytes).unwrap();

    let said = refused(dir, &[]);
    assert!(said.contains("configmaps \"default/lose\": checksum is "), "{said}");
    let checked = offline(&["store", "check", "--data-dir", data]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text_of(&checked).contains("default/lose"), "{}", text_of(&checked));
    let shown = offline(&["store", "repair", "--data-dir", data]);
    assert_eq!(shown.status.code(), Some(1));
    let shown = text_of(&shown);
    assert!(shown.contains("default/lose") && !shown.contains("default/keep"), "{shown}");
    assert!(refused(dir, &[]).contains("default/lose"), "showing changes nothing");
    let word = shown.lines().find_map(|line| line.split_once("--accept ")).unwrap().1;
    let wrong = offline(&["store", "repair", "--data-dir", data, "--accept", "00000000"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", text_of(&wrong));
    let done = offline(&["store", "repair", "--data-dir", data, "--accept", word]);
    assert!(done.status.success(), "{}", text_of(&done));
    let server = TestServer::start_in(dir, &[]);
    assert!(has(&server, "keep") && !has(&server, "lose"));
    create(&server, "lose");
}
