//! Tests that bulk requests change everything or nothing, and need the right to each change.

use mainstay_rules::account;
use mainstay_rules::api::{DidType, Grouping};
use serde_json::{Value, json};

use crate::surface::{Shell, as_account};
use crate::world::World;

fn did(name: &str) -> Value {
    json!({"scope": "s", "name": name})
}

fn counted(world: &World) -> Vec<i64> {
    let tables = [
        "dids",
        "contents",
        "replicas",
        "rules",
        "locks",
        "bad_replicas",
        "replicas WHERE tombstone = 0",
        "replicas WHERE state = 'A'",
        "dids WHERE is_open = 1",
        "dids WHERE expired_at IS NOT NULL",
    ];
    tables.map(|table| world.sql(&format!("SELECT COUNT(*) FROM {table}"))).to_vec()
}

#[test]
fn attaching_cannot_register_files_in_a_scope_of_another_account() {
    for world in World::each() {
        world.f4();
        world.write(|tx| account::add_scope(tx, "user.alice", "alice", 0));
        let own = |path: &str, body: Value| as_account(&world, "alice", "POST", path, body);
        let file = |scope: &str| json!({"scope": scope, "name": "f", "bytes": 1});
        let holds = |scope: &str| json!({"rse": "R1", "dids": [file(scope)]});
        let named = |name: &str, mut body: Value| {
            body["scope"] = json!("user.alice");
            body["name"] = json!(name);
            body["type"] = json!("DATASET");
            body
        };
        assert_eq!(own("/dids/user.alice/ds", json!({"type": "DATASET"})).0, 201);
        let before = counted(&world);
        for (path, body) in [
            ("/dids/user.alice/ds/dids", holds("s")),
            ("/dids/attachments", json!([named("ds", holds("s"))])),
            ("/dids/attachments", json!({"attachments": [named("ds", holds("s"))]})),
            ("/dids/user.alice/new", named("new", holds("s"))),
            ("/dids", json!([named("new", holds("s"))])),
            ("/replicas", json!({"rse": "R1", "files": [file("s")]})),
        ] {
            let (status, said) = own(path, body);
            assert_eq!(status, 403, "{path} on {}: {said}", world.catalog.backend());
            assert!(said.contains("AccessDenied"), "{said}");
        }
        assert_eq!(counted(&world), before);
        let (status, said) = own("/dids/user.alice/ds/dids", holds("user.alice"));
        assert_eq!(status, 201, "{said}");
        // Files that another account registered may be attached by name.
        world.files(&["f".to_owned()], 1, "R1");
        let (status, said) = own("/dids/user.alice/ds/dids", json!({"dids": [did("f")]}));
        assert_eq!(status, 201, "{said}");
        world.check();
    }
}

#[test]
fn bulk_requests_change_everything_or_nothing() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 3, 10, "R1");
        world.collection("c", DidType::Container);
        world.collection("closed", DidType::Dataset);
        world.close("closed");
        let uuid = world.rule("ds", 1, "R2", Grouping::Dataset);
        let shell = Shell::over(&world);
        let new = |name: &str| json!({"scope": "s", "name": name, "type": "DATASET"});
        let within =
            |parent: &str, name: &str| json!({"scope": "s", "name": parent, "dids": [did(name)]});
        let ruled = |on: &str| {
            let mut new = new("c-ruled");
            new["rules"] = json!([{"copies": 1, "rse_expression": on, "account": "jdoe"}]);
            new
        };
        let file = |name: &str| json!({"scope": "s", "name": name, "bytes": 1});
        let at = |name: &str, state: &str| json!({"scope": "s", "name": name, "state": state});
        let on = |name: &str, rse: &str| json!({"scope": "s", "name": name, "rse": rse});
        let before = counted(&world);
        for (method, path, body, status, class) in [
            (
                "POST",
                "/dids",
                json!([new("a"), new("b"), new("ds")]),
                409,
                "DataIdentifierAlreadyExists",
            ),
            ("POST", "/dids", json!([new("a"), new("a")]), 409, "DataIdentifierAlreadyExists"),
            (
                "POST",
                "/dids",
                json!([new("a"), {"scope": "s", "name": "f", "type": "FILE"}]),
                409,
                "UnsupportedOperation",
            ),
            (
                "POST",
                "/dids",
                json!([new("a"), {"scope": "no", "name": "b", "type": "DATASET"}]),
                404,
                "ScopeNotFound",
            ),
            (
                "POST",
                "/dids",
                json!([new("a"), {"scope": "s", "type": "DATASET"}]),
                409,
                "InvalidObject",
            ),
            (
                "POST",
                "/dids",
                json!([new("a"), ruled("R1"), ruled("R2")]),
                409,
                "DataIdentifierAlreadyExists",
            ),
            ("POST", "/dids", json!([new("a"), ruled("NOWHERE")]), 409, "InvalidRSEExpression"),
            (
                "POST",
                "/dids/attachments",
                json!([within("c", "ds"), within("closed", "ds-0")]),
                409,
                "UnsupportedOperation",
            ),
            (
                "POST",
                "/dids/attachments",
                json!([within("c", "ds"), within("ds", "ds-0")]),
                409,
                "FileAlreadyExists",
            ),
            (
                "POST",
                "/dids/attachments",
                json!([within("c", "ds"), within("none", "ds-0")]),
                404,
                "DataIdentifierNotFound",
            ),
            (
                "POST",
                "/replicas",
                json!({"rse": "R1", "files": [file("a"), file("ds-0")]}),
                412,
                "FileConsistencyMismatch",
            ),
            (
                "PUT",
                "/replicas",
                json!({"rse": "R2", "files": [at("ds-0", "A"), at("ds-1", "U"), at("c", "U")]}),
                404,
                "ReplicaNotFound",
            ),
            (
                "POST",
                "/replicas/tombstone",
                json!({"replicas": [on("ds-0", "R1"), on("ds-1", "R2")]}),
                409,
                "ReplicaIsLocked",
            ),
            (
                "POST",
                "/replicas/bad",
                json!({"reason": "x", "replicas": [on("ds-0", "R2"), on("ds-1", "NOWHERE")]}),
                404,
                "RSENotFound",
            ),
            (
                "POST",
                "/replicas/bad",
                json!({"reason": "x", "replicas": [on("ds-0", "R2"), 5]}),
                409,
                "InvalidObject",
            ),
            ("PUT", "/dids/s/ds/status", json!({"lifetime": 9, "open": 5}), 409, "InvalidObject"),
            (
                "PUT",
                "/dids/s/ds/status",
                json!({"lifetime": 9, "colour": 5}),
                409,
                "UnsupportedStatus",
            ),
            (
                "PUT",
                "/dids/s/closed/status",
                json!({"lifetime": 9, "open": false}),
                409,
                "UnsupportedOperation",
            ),
        ] {
            let (got, said) = shell.call(method, path, body.clone());
            assert_eq!(
                got,
                status,
                "{method} {path} {body} on {}: {said}",
                world.catalog.backend()
            );
            assert!(said.contains(class), "{method} {path} {body}: {said}");
            assert_eq!(counted(&world), before, "{method} {path} {body}");
        }
        assert_eq!(world.state(&uuid), "REPLICATING 0/3/0");
        let mut holding = new("holding");
        holding["type"] = json!("CONTAINER");
        holding["dids"] = json!([did("a"), did("ds")]);
        let files = json!({"scope": "s", "name": "a", "rse": "R1", "dids": [file("x"), file("y")]});
        for (method, path, body, status) in [
            ("POST", "/dids", json!([holding, new("a"), new("b"), ruled("R1")]), 201),
            (
                "POST",
                "/dids/attachments",
                json!([files, within("c", "holding"), within("b", "x")]),
                201,
            ),
            (
                "PUT",
                "/replicas",
                json!({"rse": "R2", "files": [at("ds-0", "A"), at("ds-1", "U")]}),
                200,
            ),
        ] {
            let (got, said) = shell.call(method, path, body.clone());
            assert_eq!(
                got,
                status,
                "{method} {path} {body} on {}: {said}",
                world.catalog.backend()
            );
        }
        assert_eq!(world.state(&uuid), "STUCK 1/1/1");
        world.judge(mainstay_catalog::Daemon::Evaluator);
        world.check();
    }
}

#[test]
fn bulk_requests_in_opposite_orders_never_deadlock() {
    for world in World::each() {
        world.f4();
        world.dataset("all", 40, 10, "R1");
        for at in 0..8 {
            world.collection(&format!("d{at}"), DidType::Dataset);
            world.collection(&format!("c{at}"), DidType::Container);
        }
        let asked = |turned: bool, round: usize| {
            let into = |parent: String, child: String| json!({"scope": "s", "name": parent, "dids": [{"scope": "s", "name": child}]});
            let file = |at: usize| format!("all-{}", (at * 7 + round) % 40);
            let mut all: Vec<Value> = (0..8).map(|at| into(format!("d{at}"), file(at))).collect();
            all.extend((0..8).map(|at| into(format!("c{at}"), format!("d{}", (at + round) % 8))));
            let new = |at: usize| json!({"scope": "s", "name": format!("n{round}-{at}"), "type": "DATASET"});
            let mut many: Vec<Value> = (0..8).map(new).collect();
            if turned {
                all.reverse();
                many.reverse();
            }
            (json!({"attachments": all, "ignore_duplicate": true}), json!(many))
        };
        std::thread::scope(|scope| {
            for session in 0..4 {
                let (world, asked) = (&world, &asked);
                scope.spawn(move || {
                    let shell = Shell::over(world);
                    for round in 0..10 {
                        let (all, many) = asked(session % 2 == 0, round);
                        let (status, said) = shell.call("POST", "/dids/attachments", all);
                        assert_eq!(status, 201, "{said}");
                        let (status, said) = shell.call("POST", "/dids", many);
                        assert!(status == 201 || status == 409, "{status}: {said}");
                    }
                });
            }
        });
        assert_eq!(world.catalog.retries().1, 0, "a deadlock on {}", world.catalog.backend());
        assert_eq!(world.sql("SELECT COUNT(*) FROM dids WHERE name LIKE 'n%'"), 80);
    }
}
