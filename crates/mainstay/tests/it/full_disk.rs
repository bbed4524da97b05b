//! A full disk: writes are refused, nothing is half-written, and it goes on once there is space.

use crate::process::{TestServer, cannot_test, folder, text_of};
use crate::services::SmallDisk;

fn manifest(name: &str) -> String {
    let filler = "x".repeat(100_000);
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{filler: {filler}}}\n---\n"
    )
}

/// The names of all ConfigMaps; each must be whole.
fn names(server: &TestServer) -> Vec<String> {
    let output = server.mainstay(&["get", "cm", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("reads go on");
    let items = list["items"].as_array().expect("a list");
    for item in items {
        assert_eq!(item["data"]["filler"].as_str().map(str::len), Some(100_000), "half a write");
    }
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_full_disk_refuses_writes_and_recovers() {
    let folder = folder();
    let Some(disk) = SmallDisk::mount(folder.path(), 24 << 20) else {
        return cannot_test("a full disk: a file system cannot be mounted here");
    };
    let server = TestServer::start_in(&disk.path, &[]);
    // Something else takes most of the disk, and can give it back.
    let ballast = disk.path.join("ballast");
    std::fs::write(&ballast, vec![0; 12 << 20]).unwrap();

    let outside = crate::process::folder();
    let many = outside.path().join("many.yaml");
    let text: String = (0..200).map(|number| manifest(&format!("c-{number:04}"))).collect();
    std::fs::write(&many, text).unwrap();
    let output = server.mainstay(&["apply", "-f", &many.display().to_string()]);
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let refusals: Vec<&str> = said.lines().filter(|line| line.starts_with("error:")).collect();
    assert!(!refusals.is_empty(), "the disk is never full: {said}");
    for line in refusals {
        assert!(
            line.ends_with("(InsufficientStorage)") && line.contains("the disk is full"),
            "a full disk must be answered in words: {line}"
        );
    }
    let mut expected: Vec<String> = said
        .lines()
        .filter_map(|line| line.strip_prefix("configmap/")?.strip_suffix(" created"))
        .map(str::to_owned)
        .collect();
    assert!(!expected.is_empty(), "{said}");
    assert_eq!(names(&server), expected, "what was refused is not there, what was acknowledged is");

    // Deletions go on, also after a restart, which serves reads.
    let delete = |server: &TestServer, name: &str| {
        let said = text_of(&server.mainstay(&["delete", "cm", name]));
        assert_eq!(said, format!("configmap \"{name}\" deleted\n"));
    };
    delete(&server, &expected.remove(0));
    let address = server.address();
    let listen = ["--listen", address.strip_prefix("https://").unwrap()];
    server.kill();
    let server = TestServer::start_in(&disk.path, &listen);
    assert_eq!(names(&server), expected, "a restart on a full disk serves reads");
    delete(&server, &expected.remove(0));
    assert_eq!(names(&server), expected);

    std::fs::remove_file(&ballast).unwrap();
    let one = outside.path().join("one.yaml");
    std::fs::write(&one, manifest("z-after")).unwrap();
    let said = text_of(&server.mainstay(&["apply", "-f", &one.display().to_string()]));
    assert_eq!(said, "configmap/z-after created\n", "there is space again");
    expected.push("z-after".to_owned());
    server.kill();
    let server = TestServer::start_in(&disk.path, &[]);
    assert_eq!(names(&server), expected, "the same after a restart");
}
