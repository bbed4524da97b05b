//! Tests of file names, paths and reports of arrival, on both databases.

use mainstay_rules::account;
use serde_json::{Value, json};

use crate::surface::{Shell, as_account};
use crate::world::{World, postgres};

#[test]
fn accounts_may_report_only_their_own_uploads_as_arrived() {
    for world in World::each() {
        world.f4();
        let now = world.now();
        world.write(|tx| account::add_scope(tx, "user.alice", "alice", now));
        world.limit("alice", "R1", -1);
        world.limit("alice", "R2", -1);
        let file = |name: &str, state: &str| json!({"scope": "user.alice", "name": name, "bytes": 5, "adler32": "00000001", "state": state});
        let asked =
            |method: &str, path: &str, body: Value| as_account(&world, "alice", method, path, body);
        let on = |rse: &str, file: Value| json!({"rse": rse, "files": [file]});
        assert_eq!(asked("POST", "/replicas", on("R1", file("f", "C"))).0, 201);
        let rule = json!({"dids": [{"scope": "user.alice", "name": "f"}], "copies": 1, "rse_expression": "R1", "account": "alice"});
        let rule: Vec<String> = serde_json::from_str(&asked("POST", "/rules/", rule).1).unwrap();
        assert_eq!(world.state(&rule[0]), "REPLICATING 0/1/0");
        assert_eq!(asked("PUT", "/replicas", on("R1", file("f", "U"))).0, 403);
        assert_eq!(asked("PUT", "/replicas", on("R1", file("f", "A"))).0, 200);
        assert_eq!(world.state(&rule[0]), "OK 1/0/0", "on {}", world.catalog.backend());
        // She may not report a worker's transfer or another account's file.
        let more = json!({"dids": [{"scope": "user.alice", "name": "f"}], "copies": 1, "rse_expression": "R2", "account": "alice"});
        assert_eq!(asked("POST", "/rules/", more).0, 201);
        assert_eq!(asked("PUT", "/replicas", on("R2", file("f", "A"))).0, 403);
        world.files(&["g".to_owned()], 5, "R1");
        let other = json!({"scope": "s", "name": "g", "state": "A"});
        assert_eq!(asked("PUT", "/replicas", on("R1", other)).0, 403);
        world.check();
    }
}

#[test]
fn files_keep_their_paths_and_no_path_looks_like_a_draft() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 7, "R1");
        let shell = Shell::over(&world);
        let free =
            |rse: &str| shell.call("PUT", &format!("/rses/{rse}"), json!({"deterministic": false}));
        let (status, said) = free("R1");
        assert!(status == 409 && said.contains("stays deterministic"), "{status} {said}");
        assert_eq!(free("R2").0, 201);
        let at = |path: &str| {
            let (scope, name) = ("s", "odd");
            let file = json!({"scope": scope, "name": name, "bytes": 1, "pfn": format!("davs://host:443/data/{path}")});
            shell.call("POST", "/replicas", json!({"rse": "R2", "files": [file]}))
        };
        let body = json!({"hostname": "host", "port": 443, "prefix": "/data"});
        assert_eq!(shell.call("POST", "/rses/R2/protocols/davs", body).0, 201);
        for (path, code) in [("d/.x.1-1.part", 400), ("d/.x.part", 400), ("d/x.part", 201)] {
            let (status, said) = at(path);
            assert_eq!(status, code, "{path} on {}: {said}", world.catalog.backend());
        }
    }
}

#[test]
fn names_are_found_under_any_collation_of_the_database() {
    let Some(server) = postgres() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url("public"), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql =
            "CREATE DATABASE spoken TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
        client.batch_execute(sql).await.unwrap();
    });
    let world = World::at(&server.url("public").replace("/postgres?", "/spoken?"));
    world.rse("R1");
    let names = ["abc", "ABC", "a-b", "a_b", "a.b", "b", "B9", "file_2", "file9", "z"];
    world.files(&names.map(str::to_owned), 1, "R1");
    let shell = Shell::over(&world);
    for (pattern, number) in [("*", 10), ("a*", 4), ("A*", 1), ("file*", 2), ("B*", 1), ("*b", 4)] {
        let path = format!(
            "/dids/s/dids/search?type=file&filters=%5B%7B%27name%27%3A%27{pattern}%27%7D%5D"
        );
        let (status, said) = shell.call("GET", &path, Value::Null);
        assert_eq!((status, said.lines().count()), (200, number), "{pattern}: {said}");
    }
    world.check();
}
