//! Tests of hostile requests on both databases: SQL in every field, expressions of ten megabytes, path
//! traversal, forged tokens. Each is refused with a message and changes nothing.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use mainstay_rucio::router;
use mainstay_rules::api::{DidType, SECOND};
use mainstay_rules::identity::{self, Identity};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::surface::{Shell, service};
use crate::world::World;

const EVIL: [&str; 7] = [
    "'; DROP TABLE dids; --",
    "\" OR 1=1 --",
    "x') ON CONFLICT DO NOTHING; DELETE FROM rules; --",
    "%' OR '1'='1",
    "$1 ?1 {} {0} %s",
    "\\",
    "\u{0}\u{202e}\u{fffd}é",
];

/// Every path that changes something, with a valid body; `*` is replaced by the hostile text.
fn requests(rule: &str) -> Vec<(&'static str, String, Value)> {
    let did = json!([{"scope": "s", "name": "ds"}]);
    let at = |path: &str| path.replace("RULE", rule);
    vec![
        ("POST", at("/accounts/*"), json!({"type": "USER", "email": "e@x"})),
        ("PUT", at("/accounts/alice"), json!({"email": "e@x"})),
        ("POST", at("/accounts/alice/attr/*"), json!({"key": "k", "value": "v"})),
        (
            "POST",
            at("/accounts/alice/identities"),
            json!({"identity": "i", "authtype": "SSH", "email": "e@x"}),
        ),
        ("POST", at("/accounts/alice/limits/local/*"), json!({"bytes": 1})),
        ("POST", at("/accounts/alice/limits/global/*"), json!({"bytes": 1})),
        ("POST", at("/accounts/alice/scopes/*"), Value::Null),
        ("POST", at("/rses/*"), json!({"rse_type": "DISK"})),
        ("POST", at("/rses/A/attr/*"), json!({"value": "v"})),
        (
            "POST",
            at("/rses/A/protocols/*"),
            json!({"hostname": "h", "prefix": "/p", "impl": "i", "domains": {"wan": {"read": 1}}}),
        ),
        ("PUT", at("/rses/A/limits"), json!({"name": "MinFreeSpace", "value": 1})),
        ("PUT", at("/rses/A/usage"), json!({"source": "storage", "used": 1, "free": 1})),
        ("POST", at("/dids/s/*"), json!({"type": "DATASET", "meta": {"k": "v"}, "lifetime": 9})),
        ("POST", at("/dids/s/ds/dids"), json!({"dids": did})),
        ("POST", at("/dids/s/ds/meta/*"), json!({"value": "v"})),
        ("POST", at("/dids/s/ds/meta"), json!({"meta": {"k": "v"}})),
        ("GET", at("/dids/s/dids/search?type=all&filters=*"), Value::Null),
        ("GET", at("/dids/s/*/files"), Value::Null),
        (
            "POST",
            at("/replicas"),
            json!({"rse": "A", "files": [{"scope": "s", "name": "n", "bytes": 1, "adler32": "00000001", "pfn": "p"}]}),
        ),
        (
            "PUT",
            at("/replicas"),
            json!({"rse": "A", "files": [{"scope": "s", "name": "f", "state": "A", "error_message": "e"}]}),
        ),
        (
            "POST",
            at("/replicas/list"),
            json!({"dids": did, "rse_expression": "A", "schemes": ["file"], "domain": "wan", "updated_after": "x"}),
        ),
        (
            "POST",
            at("/replicas/tombstone"),
            json!({"replicas": [{"scope": "s", "name": "f", "rse": "A"}]}),
        ),
        (
            "POST",
            at("/replicas/bad"),
            json!({"replicas": [{"scope": "s", "name": "f", "rse": "A"}], "reason": "r"}),
        ),
        ("POST", at("/replicas/bad"), json!({"pfns": ["p"], "reason": "r"})),
        ("POST", at("/replicas/dids"), json!({"pfns": ["p"]})),
        (
            "POST",
            at("/rules/"),
            json!({"dids": did, "copies": 1, "rse_expression": "A", "account": "root", "weight": "w", "comment": "c", "meta": "m", "grouping": "NONE", "activity": "Debug", "notify": "N", "source_replica_expression": "A"}),
        ),
        (
            "GET",
            at("/rules/?account=*&scope=*&name=*&state=*&rse_expression=*&created_before=*"),
            Value::Null,
        ),
        (
            "PUT",
            at("/rules/RULE"),
            json!({"options": {"comment": "c", "activity": "Debug", "meta": "m", "account": "root", "source_replica_expression": "A", "child_rule_id": "x", "eol_at": "x"}}),
        ),
        (
            "POST",
            at("/rules/RULE/move"),
            json!({"rule_id": rule, "rse_expression": "A", "override": {"comment": "c"}}),
        ),
        ("POST", at("/rules/RULE/reduce"), json!({"copies": 1, "exclude_expression": "A"})),
        ("DELETE", at("/rules/*"), json!({"purge_replicas": null})),
        (
            "POST",
            at("/locks/bulk_locks_for_dids"),
            json!({"dids": [{"scope": "s", "name": "ds", "type": "dataset"}]}),
        ),
        ("GET", at("/requests/list?src_rse=*&dst_rse=*&request_states=*"), Value::Null),
        (
            "PUT",
            at("/requests/transfer_limits"),
            json!({"rse_expression": "A", "activity": "Debug", "direction": "SOURCE", "max_transfers": 1}),
        ),
        ("GET", at("/mainstay/expression?expression=*"), Value::Null),
        ("GET", at("/mainstay/rules/RULE/explain?file=*"), Value::Null),
        (
            "POST",
            at("/mainstay/transfers"),
            json!({"scope": "s", "name": "f", "rse": "A", "state": "DONE", "error": "e"}),
        ),
        ("POST", at("/mainstay/transfers/take"), json!({"worker": "w", "most": 1})),
        (
            "POST",
            at("/mainstay/transfers/finish"),
            json!({"worker": "w", "outcomes": [{"request": 1, "attempt": 1, "did": {"scope": "s", "name": "f"}, "rse": "A", "error": "e"}]}),
        ),
        ("POST", at("/mainstay/judge/*"), json!({"now": "x"})),
    ]
}

/// The body with one of its texts (or keys) replaced, for each of them.
fn spoiled(body: &Value, evil: &str) -> Vec<Value> {
    match body {
        Value::String(_) => vec![json!(evil)],
        Value::Array(list) => {
            let one = |at: usize| {
                spoiled(&list[at], evil).into_iter().map(move |new| {
                    let mut list = list.clone();
                    list[at] = new;
                    Value::Array(list)
                })
            };
            (0..list.len()).flat_map(one).collect()
        }
        Value::Object(map) => {
            let one = |key: &String| {
                let mut all = spoiled(&map[key], evil);
                // Also try a value of another type.
                all.extend([
                    json!(evil),
                    json!([evil]),
                    json!({evil: evil}),
                    json!(-1),
                    json!(1e300),
                ]);
                let key = key.clone();
                all.into_iter().map(move |new| {
                    let mut map = map.clone();
                    map.insert(key.clone(), new);
                    Value::Object(map)
                })
            };
            map.keys().flat_map(one).collect()
        }
        _ => Vec::new(),
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Adds a file, a dataset and a rule, which no hostile request may change.
fn furnished(world: &World) -> String {
    world.rse("A");
    world.rse("B");
    world.dataset("ds", 3, 10, "A");
    world.files(&["f".to_owned()], 10, "A");
    world.collection("other", DidType::Container);
    world.rule("ds", 1, "A", mainstay_rules::api::Grouping::Dataset)
}

fn standing(world: &World) -> Vec<i64> {
    let count = |table: &str| world.sql(&format!("SELECT COUNT(*) FROM {table}"));
    ["contents", "locks", "judges"].map(count).to_vec()
}

#[test]
fn sql_in_any_field_is_only_text() {
    for world in World::each() {
        let rule = furnished(&world);
        let shell = Shell::over(&world);
        let before = standing(&world);
        for (method, path, body) in requests(&rule) {
            for evil in EVIL {
                let path = path.replace('*', &encoded(evil));
                let bodies = match path.contains('%') || body.is_null() {
                    true => vec![body.clone()],
                    false => spoiled(&body, evil),
                };
                for body in bodies {
                    let (status, said) = shell.call(method, &path, body.clone());
                    assert!(
                        (200..500).contains(&status),
                        "{method} {path} {body}: {status} {said}"
                    );
                    assert_ne!(status, 401, "{method} {path} {body}: {said}");
                }
            }
        }
        assert_eq!(standing(&world), before, "on {}", world.catalog.backend());
        assert!(world.state(&rule).starts_with("OK 3/0/0"), "{}", world.state(&rule));
        world.check();
    }
}

#[test]
fn an_expression_of_ten_megabytes_is_refused_with_a_short_message() {
    const LONG: usize = 10 << 20;
    for world in World::each() {
        let rule = furnished(&world);
        let shell = Shell::over(&world);
        for expression in [
            "(".repeat(LONG),
            "A|".repeat(LONG / 2) + "A",
            "A".repeat(LONG),
            "(A)".repeat(LONG / 3),
        ] {
            let did = json!([{"scope": "s", "name": "ds"}]);
            for (method, path, body) in [
                (
                    "POST",
                    "/rules/".to_owned(),
                    json!({"dids": did, "copies": 1, "rse_expression": expression}),
                ),
                (
                    "POST",
                    "/rules/".to_owned(),
                    json!({"dids": did, "copies": 1, "rse_expression": "A", "source_replica_expression": expression}),
                ),
                (
                    "POST",
                    format!("/rules/{rule}/move"),
                    json!({"rule_id": rule, "rse_expression": expression}),
                ),
                (
                    "POST",
                    format!("/rules/{rule}/reduce"),
                    json!({"copies": 1, "exclude_expression": expression}),
                ),
                (
                    "PUT",
                    format!("/rules/{rule}"),
                    json!({"options": {"source_replica_expression": expression}}),
                ),
                (
                    "PUT",
                    "/requests/transfer_limits".to_owned(),
                    json!({"rse_expression": expression, "max_transfers": 1}),
                ),
                (
                    "POST",
                    "/replicas/list".to_owned(),
                    json!({"dids": did, "rse_expression": expression}),
                ),
            ] {
                let (status, said) = shell.call(method, &path, body);
                assert!((400..500).contains(&status), "{path}: {status} {said:.200}");
                assert!(said.len() < 4_000, "{path} answers {} bytes", said.len());
            }
        }
        world.check();
    }
}

#[test]
fn names_and_paths_cannot_leave_their_prefix() {
    for world in World::each() {
        furnished(&world);
        let shell = Shell::over(&world);
        for name in [
            "../x",
            "a/../../b",
            "x/..",
            "..",
            ".",
            "",
            "a b",
            "a\\b",
            "/../etc",
            "~",
            "a\nb",
            &"n".repeat(251),
        ] {
            let path = format!("/dids/s/{}", encoded(name));
            let (status, said) = shell.call("POST", &path, json!({"type": "DATASET"}));
            assert!((400..500).contains(&status), "{name:?}: {status} {said}");
            let file = json!({"scope": "s", "name": name, "bytes": 1});
            let (status, said) =
                shell.call("POST", "/replicas", json!({"rse": "A", "files": [file]}));
            assert!((400..500).contains(&status), "{name:?}: {status} {said}");
        }
        let (status, _) = shell.call("POST", "/rses/FREE", json!({"deterministic": false}));
        assert_eq!(status, 201);
        for prefix in ["/data/../etc", "..", "a\\b", "/x/.."] {
            let (status, said) =
                shell.call("POST", "/rses/FREE/protocols/file", json!({"prefix": prefix}));
            assert!((400..500).contains(&status), "{prefix}: {status} {said}");
        }
        let (status, _) =
            shell.call("POST", "/rses/FREE/protocols/file", json!({"prefix": "/data/free"}));
        assert_eq!(status, 201);
        for physical in [
            "file://localhost:0/data/free/../secret",
            "file://localhost:0/data/free/a/../../secret",
            "file://localhost:0/data/free/./a",
            "file://localhost:0/data/free",
            "file://localhost:0/data/freedom/a",
            "file://localhost:0/etc/passwd",
            "file://elsewhere:0/data/free/a",
            "s3://localhost:0/data/free/a",
            "/data/free/a",
            "nothing",
        ] {
            let file = json!({"scope": "s", "name": "free", "bytes": 1, "pfn": physical});
            let (status, said) =
                shell.call("POST", "/replicas", json!({"rse": "FREE", "files": [file]}));
            assert_eq!(status, 400, "{physical}: {said}");
            assert!(said.contains("InvalidPath"), "{physical}: {said}");
        }
        let file = json!({"scope": "s", "name": "free", "bytes": 1, "pfn": "file://localhost:0/data/free/a/b"});
        let (status, said) =
            shell.call("POST", "/replicas", json!({"rse": "FREE", "files": [file]}));
        assert_eq!(status, 201, "{said}");
        world.check();
    }
}

/// Sends an unauthenticated request with these headers.
fn stranger(world: &World, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    runtime.block_on(async {
        let request = request.body(Body::empty()).unwrap();
        let answer = router(service(world)).oneshot(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, headers, String::from_utf8_lossy(&body).into_owned())
    })
}

#[test]
fn forged_tokens_return_401_and_missing_tokens_400() {
    for world in World::each() {
        furnished(&world);
        let hash = identity::hash_password("a word").unwrap();
        let new = Identity { identity: "ann".to_owned(), kind: "USERPASS".to_owned(), email: None };
        world.write(|tx| identity::add(tx, "alice", &new, Some(&hash), true, SECOND));
        let login = [
            ("x-rucio-account", "alice"),
            ("x-rucio-username", "ann"),
            ("x-rucio-password", "a word"),
        ];
        let (status, headers, said) = stranger(&world, "/auth/userpass", &login);
        assert_eq!(status, 200, "{said}");
        let token = headers["x-rucio-auth-token"].to_str().unwrap().to_owned();
        let ask =
            |token: &str| stranger(&world, "/accounts/alice", &[("x-rucio-auth-token", token)]).0;
        assert_eq!(ask(&token), 200);
        let longer = format!("{token}0");
        let as_root = token.replace("alice", "root");
        let shorter = &token[..token.len() - 1];
        let upper = token.to_uppercase();
        let long = "t".repeat(60_000);
        for forged in ["", "x", "root", shorter, &longer, &as_root, &upper, "' OR 1=1 --", &long] {
            assert_eq!(ask(forged), 401, "{forged:.80}");
        }
        assert_eq!(ask(&identity::hash_token(&token)), 401, "what is kept of it is no token");
        for path in ["/accounts/alice", "/rules/", "/rses/", "/nothing", "/mainstay/check"] {
            let (status, headers, said) = stranger(&world, path, &[]);
            assert_eq!(status, 400, "{path}: {said}");
            assert_eq!(headers["exceptionclass"], "CannotAuthenticate");
        }
        assert_eq!(stranger(&world, "/ping", &[]).0, 200);
        assert_eq!(stranger(&world, "/auth/validate", &[]).0, 401);
        // An expired token is refused like a forged one.
        world.change("UPDATE tokens SET expired_at = 1");
        assert_eq!(ask(&token), 401);
    }
}
