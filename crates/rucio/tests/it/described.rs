//! Tests that metadata of data identifiers is stored and shown, and never overrides the catalog's own
//! columns.

use mainstay_rules::api::DidType;
use serde_json::{Value, json};

use crate::surface::Shell;
use crate::world::World;

/// The lines of a successful answer.
fn lines(answer: (u16, String)) -> Vec<Value> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    answer.1.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn columns(shell: &Shell, name: &str) -> Value {
    let (status, said) = shell.call("GET", &format!("/dids/s/{name}/meta"), Value::Null);
    assert_eq!(status, 200, "{said}");
    serde_json::from_str(&said).unwrap()
}

#[test]
fn metadata_cannot_override_catalog_columns() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 10, "R1");
        let shell = Shell::over(&world);
        let before = columns(&shell, "ds-0");
        let own = [
            "access_cnt",
            "account",
            "adler32",
            "availability",
            "bytes",
            "closed_at",
            "created_at",
            "did_type",
            "expired_at",
            "is_open",
            "length",
            "md5",
            "monotonic",
            "name",
            "purge_replicas",
            "scope",
            "updated_at",
        ];
        let untrue = own.map(|key| (key, json!(7)));
        let odd = [
            ("run_number", json!("many")),
            ("events", json!(-1)),
            ("events", json!(1.5)),
            ("task_id", json!([])),
            ("panda_id", json!(true)),
            ("lumiblocknr", json!({})),
            ("transient", json!("perhaps")),
            ("eol_at", json!("soon")),
            ("guid", json!([])),
        ];
        for (key, value) in untrue.into_iter().chain(odd) {
            let meta = json!({key: value});
            let file = json!({"scope": "s", "name": "new", "bytes": 1, "meta": meta});
            let did = json!({"scope": "s", "name": "ds-0", "meta": meta});
            for (path, body) in [
                (format!("/dids/s/ds-0/meta/{key}"), json!({"value": value})),
                ("/dids/s/ds-0/meta".to_owned(), json!({"meta": meta})),
                ("/dids/bulkdidsmeta".to_owned(), json!({"dids": [did]})),
                ("/dids/s/new".to_owned(), json!({"type": "DATASET", "meta": meta})),
                ("/replicas".to_owned(), json!({"rse": "R1", "files": [file]})),
            ] {
                let (status, said) = shell.call("POST", &path, body.clone());
                assert_eq!(status, 400, "{path} {body} on {}: {said}", world.catalog.backend());
                assert!(said.contains("InvalidMetadata"), "{said}");
            }
        }
        assert_eq!(columns(&shell, "ds-0"), before);
        // Such keys from earlier versions are not shown.
        world.change(
            r#"UPDATE dids SET meta = '{"bytes": 7, "run_number": 9}' WHERE name = 'ds-0'"#,
        );
        let now = columns(&shell, "ds-0");
        assert_eq!((&now["bytes"], &now["run_number"]), (&json!(10), &json!(9)));
        world.check();
    }
}

#[test]
fn numbers_and_flags_keep_their_type_however_they_are_written() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 10, "R1");
        let shell = Shell::over(&world);
        for (key, said, kept) in [
            ("run_number", json!("7"), json!(7)),
            ("events", json!(10.0), json!(10)),
            ("transient", json!("True"), json!(true)),
            ("eol_at", json!("2026-11-15T22:02:54"), json!("2026-11-15T22:02:54")),
            ("guid", json!("g"), json!("g")),
            ("project", json!("x"), json!("x")),
            ("events", Value::Null, Value::Null),
        ] {
            let path = format!("/dids/s/ds-0/meta/{key}");
            let (status, text) = shell.call("POST", &path, json!({"value": said}));
            assert_eq!(status, 201, "{key} {said}: {text}");
            assert_eq!(columns(&shell, "ds-0")[key], kept, "{key} {said}");
        }
        let brief = json!({"type": "DATASET", "meta": {"lifetime": 60, "campaign": "c"}});
        assert_eq!(shell.call("POST", "/dids/s/brief", brief).0, 201);
        let found = columns(&shell, "brief");
        assert!(found["expired_at"].is_string() && found["campaign"] == json!("c"), "{found}");
    }
}

#[test]
fn file_listings_include_metadata() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 10, "R1");
        world.collection("c", DidType::Container);
        world.attach("c", &["ds".to_owned()]);
        let shell = Shell::over(&world);
        let meta = json!({"guid": "g1", "events": 5, "lumiblocknr": 3, "colour": "red"});
        let file =
            json!({"scope": "s", "name": "told", "bytes": 7, "adler32": "0cc737eb", "meta": meta});
        let body = json!({"rse": "R1", "files": [file]});
        assert_eq!(shell.call("POST", "/replicas", body).0, 201);
        world.attach("ds", &["told".to_owned()]);
        let told = json!({"scope": "s", "name": "told", "bytes": 7, "adler32": "0cc737eb", "guid": "g1", "events": 5});
        let with = |more: Value| {
            let mut told = told.clone();
            told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            told
        };
        for name in ["c", "ds", "told"] {
            let list = |rest: &str| {
                let path = format!("/dids/s/{name}/files{rest}");
                lines(shell.call("GET", &path, Value::Null))
            };
            let names = json!({"dids": [{"scope": "s", "name": name}]});
            let bulk = lines(shell.call("POST", "/dids/bulkfiles", names));
            let found = [list("").pop(), list("?long=True").pop(), bulk.last().cloned()];
            let parent = with(json!({"parent_scope": "s", "parent_name": name}));
            let expected = [told.clone(), with(json!({"lumiblocknr": 3})), parent];
            assert_eq!(found, expected.map(Some), "{name} on {}", world.catalog.backend());
        }
        let plain = &lines(shell.call("GET", "/dids/s/ds/files", Value::Null))[0];
        assert_eq!((&plain["guid"], &plain["events"]), (&Value::Null, &Value::Null));
    }
}
