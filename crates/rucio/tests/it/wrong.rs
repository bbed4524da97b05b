//! Tests that invalid requests fail with an exception that clients know, and that every valid field of
//! a request takes effect.

use mainstay_rules::api::{DidType, Grouping};
use mainstay_rules::rse::RseSettings;
use serde_json::{Value, json};

use crate::surface::Shell;
use crate::world::World;

/// The lines of a successful answer.
fn lines(answer: (u16, String)) -> Vec<Value> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    answer.1.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A body with one field added or replaced.
fn with(body: &Value, key: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[key] = value;
    body
}

fn furnished(world: &World) -> String {
    world.f4();
    world.dataset("ds", 2, 10, "R1");
    world.collection("c", DidType::Container);
    world.attach("c", &["ds".to_owned()]);
    world.rule("ds", 1, "R1", Grouping::Dataset)
}

#[test]
fn fields_of_the_wrong_type_are_refused_on_every_path() {
    for world in World::each() {
        let uuid = furnished(&world);
        let shell = Shell::over(&world);
        let names = json!([{"scope": "s", "name": "ds"}]);
        let list = json!({"dids": names});
        let file = json!({"scope": "s", "name": "f", "bytes": 1, "rse": "R1"});
        let files =
            |key: &str, value: Value| json!({"rse": "R1", "files": [with(&file, key, value)]});
        let replicas = |key: &str, value: Value| json!({"replicas": [with(&file, key, value)]});
        let did = json!({"type": "DATASET"});
        let limit = json!({"rse_expression": "R1", "max_transfers": 1});
        let usage = json!({"source": "storage", "used": 1, "free": 1});
        let bad = json!({"pfns": ["x"], "reason": "r", "state": "BAD"});
        let meta = json!({"meta": {"k": "v"}});
        let option = |key: &str, value: Value| json!({"options": {key: value}});
        let rule = format!("/rules/{uuid}");
        let status = json!({"lifetime": 9});
        let transfer = json!({"scope": "s", "name": "ds-0", "rse": "R1", "state": "DONE"});
        for (method, path, body) in [
            ("POST", "/accounts/alice/attr/k", json!({"value": []})),
            ("POST", "/accounts/alice/attr/k", json!({"value": null})),
            ("POST", "/accounts/alice/attr/k", json!({"key": 5, "value": "v"})),
            ("POST", "/accounts/alice/attr/k", json!({"key": "other", "value": "v"})),
            ("POST", "/accounts/alice/scopes/..", Value::Null),
            ("POST", "/rses/NEW", json!({"city": []})),
            ("POST", "/rses/NEW", json!({"longitude": {}})),
            ("POST", "/rses/R1/attr/k", json!({"value": {}})),
            ("GET", "/accounts/alice/limits/global/R1%7C", Value::Null),
            ("POST", "/rses/R1/attr/k", json!({})),
            ("POST", "/rses/R1/protocols/..", json!({})),
            ("GET", "/rses/R1/protocols?protocol_domain=moon", Value::Null),
            ("GET", "/rses/R1/protocols?operation=dance", Value::Null),
            ("GET", "/rses/R1/protocols?default=maybe", Value::Null),
            ("GET", "/locks/R1?did_type=zz", Value::Null),
            ("GET", "/locks/s/ds?did_type=zz", Value::Null),
            ("GET", "/accounts/?account_type=ROBOT", Value::Null),
            ("GET", "/accounts/?status=asleep", Value::Null),
            ("GET", "/requests/list?request_states=W,Z", Value::Null),
            ("POST", "/mainstay/judge/finisher?now=junk", Value::Null),
            ("POST", "/mainstay/transfers/take", json!({"worker": "w", "most": "x"})),
            ("POST", "/mainstay/transfers/take", json!({"worker": "w", "most": -1})),
            ("POST", "/mainstay/transfers/take", json!({"worker": "w", "lease": 0})),
            (
                "POST",
                "/rses/R1/protocols/srm",
                json!({"extended_attributes": {"space_token_secret": "x"}}),
            ),
            (
                "POST",
                "/rses/R1/protocols/srm",
                json!({"extended_attributes": {"bearer_token": "x"}}),
            ),
            ("POST", "/rses/R1/protocols/srm", json!({"extended_attributes": {"token": "x"}})),
            ("POST", "/rses/R1/protocols/file", json!({"domains": {"moon": {"read": 1}}})),
            ("POST", "/rses/R1/protocols/file", json!({"domains": {"wan": 5}})),
            ("POST", "/rses/R1/protocols/file", json!({"domains": {"wan": {"read": "x"}}})),
            ("POST", "/rses/R1/protocols/file", json!({"domains": {"wan": {"read": -1}}})),
            ("POST", "/rses/R1/protocols/file", json!({"extended_attributes": "x"})),
            ("PUT", "/rses/R1/usage", with(&usage, "files", json!("x"))),
            ("PUT", "/rses/R1/usage", with(&usage, "used", json!(-1))),
            ("POST", "/rses/R1/distances/R2", json!({"distance": 1, "bidirectional": "x"})),
            ("POST", "/rses/R1/distances/R2?bidirectional=maybe", json!({"distance": 1})),
            ("POST", "/dids/s/new", with(&did, "rse", json!(5))),
            ("POST", "/dids/s/new", with(&did, "statuses", json!({"open": false}))),
            ("POST", "/dids/s/new", with(&did, "statuses", json!({"colour": true}))),
            ("POST", "/dids/s/ds/meta", with(&meta, "recursive", json!("x"))),
            ("POST", "/dids/s/ds/meta/k", json!({"value": 1, "recursive": 5})),
            ("POST", "/dids/bulkdidsmeta", json!({"dids": [], "recursive": "x"})),
            ("POST", "/dids/bulkmeta", with(&list, "inherit", json!("x"))),
            ("POST", "/dids/bulkmeta", with(&list, "plugin", json!(5))),
            ("PUT", "/dids/s/ds/status", with(&status, "open", json!("x"))),
            ("GET", "/dids/s/ds?dynamic_depth=moon", Value::Null),
            ("GET", "/dids/s/ds?dynamic=maybe", Value::Null),
            ("GET", "/dids/s/ds/files?long=maybe", Value::Null),
            ("GET", "/dids/s?recursive=maybe", Value::Null),
            ("GET", "/dids/s/dids/search?type=all&long=maybe", Value::Null),
            ("POST", "/replicas", files("meta", json!(5))),
            ("POST", "/replicas", files("pfn", json!(5))),
            ("POST", "/replicas", files("path", json!("s/20/25/ds-0"))),
            (
                "POST",
                "/replicas",
                with(&files("md5", Value::Null), "ignore_availability", json!(5)),
            ),
            ("POST", "/replicas", files("bytes", json!(i64::MAX))),
            ("POST", "/replicas", files("bytes", json!(1_i64 << 51))),
            ("PUT", "/replicas", files("state", json!(5))),
            (
                "PUT",
                "/replicas",
                json!({"rse": "R1", "files": [{"scope": "s", "name": "ds-0", "state": "A", "error_message": 5}]}),
            ),
            ("DELETE", "/replicas", json!({"rse": "R1", "files": [], "ignore_availability": "x"})),
            ("POST", "/replicas/list", with(&list, "all_states", json!("yes"))),
            ("POST", "/replicas/list", with(&list, "unavailable", json!("yes"))),
            ("POST", "/replicas/list", with(&list, "ignore_availability", json!(0))),
            ("POST", "/replicas/list", with(&list, "resolve_parents", json!("yes"))),
            ("POST", "/replicas/list", with(&list, "resolve_archives", json!("yes"))),
            ("POST", "/replicas/list", with(&list, "schemes", json!(7))),
            ("POST", "/replicas/list", with(&list, "schemes", json!([7]))),
            ("POST", "/replicas/list", with(&list, "rse_expression", json!(7))),
            ("POST", "/replicas/list", with(&list, "domain", json!("moon"))),
            ("POST", "/replicas/list", with(&list, "updated_after", json!("soon"))),
            ("POST", "/replicas/list", with(&list, "updated_after", json!([]))),
            ("POST", "/replicas/list", with(&list, "nrandom", json!(-1))),
            ("POST", "/replicas/list", with(&list, "sort", json!(5))),
            ("POST", "/replicas/list", with(&list, "client_location", json!("x"))),
            ("POST", "/replicas/list", with(&list, "signature_lifetime", json!("x"))),
            ("POST", "/replicas/list", Value::Null),
            ("POST", "/replicas/list", json!([])),
            ("POST", "/replicas/tombstone", replicas("rse", json!(5))),
            ("POST", "/replicas/bad", with(&replicas("rse", json!("R1")), "reason", json!(5))),
            ("POST", "/replicas/bad", with(&replicas("rse", json!("R1")), "force", json!(5))),
            ("POST", "/replicas/bad", replicas("rse", Value::Null)),
            ("POST", "/replicas/bad/pfns", with(&bad, "expires_at", json!(5))),
            ("POST", "/replicas/bad/pfns", with(&bad, "pfns", json!([5]))),
            ("POST", "/replicas/dids", json!({"pfns": [5]})),
            ("POST", "/replicas/dids", json!({"pfns": [], "rse": 5})),
            ("PUT", &rule, option("boost_rule", json!("x"))),
            ("PUT", &rule, option("meta", json!(5))),
            ("PUT", &rule, option("lifetime", json!(i64::MIN))),
            ("PUT", &rule, option("lifetime", json!(i64::MAX))),
            (
                "POST",
                "/locks/bulk_locks_for_dids",
                json!({"dids": [{"scope": "s", "name": "ds", "type": 5}]}),
            ),
            ("PUT", "/requests/transfer_limits", with(&limit, "activity", json!(5))),
            ("PUT", "/requests/transfer_limits", with(&limit, "direction", json!(5))),
            ("PUT", "/requests/transfer_limits", with(&limit, "strategy", json!("random"))),
            ("PUT", "/requests/transfer_limits", with(&limit, "volume", json!("x"))),
            ("DELETE", "/requests/transfer_limits", with(&limit, "direction", json!(5))),
            ("POST", "/mainstay/transfers", with(&transfer, "error", json!(5))),
            ("POST", "/mainstay/judge/finisher", json!({"now": 5})),
            ("POST", "/mainstay/judge/finisher", json!([])),
            ("GET", "/mainstay/transfers?most=some", Value::Null),
            ("GET", "/mainstay/transfers?most=-1", Value::Null),
        ] {
            let (status, said) = shell.call(method, path, body.clone());
            assert_eq!(
                status,
                409,
                "{method} {path} {body} on {}: {said}",
                world.catalog.backend()
            );
            let known = [
                "InvalidObject",
                "InputValidationError",
                "InvalidRSEExpression",
                "UnsupportedStatus",
            ];
            assert!(
                known.iter().any(|class| said.contains(class)),
                "{method} {path} {body}: {said}"
            );
        }
        let (status, said) = shell.call("GET", "/rses/R1/attr/", Value::Null);
        assert!(status == 200 && !said.contains("\"k\""), "{said}");
        assert_eq!(world.state(&uuid), "OK 2/0/0");
        world.check();
    }
}

#[test]
fn unsupported_operations_return_errors() {
    for world in World::each() {
        furnished(&world);
        let shell = Shell::over(&world);
        let unknown = json!({"replicas": ["davs://nowhere/x"], "reason": "r"});
        let search = "/dids/s/dids/search?type=all&filters=";
        let sized = |bytes: Value| json!({"rse": "R1", "files": [{"scope": "s", "name": "sized", "bytes": bytes}]});
        let when = |filter: &str| format!("{search}%5B%7B{filter}%7D%5D");
        let limit = "/accounts/alice/limits/local/R1".to_owned();
        for (method, path, body, status, said) in [
            (
                "PUT",
                "/accounts/root".to_owned(),
                json!({"status": "SUSPENDED"}),
                403,
                "AccessDenied",
            ),
            ("PUT", "/accounts/root".to_owned(), json!({"status": "ACTIVE"}), 200, ""),
            ("POST", "/replicas".to_owned(), sized(json!(10.0)), 201, "Created"),
            ("GET", "/dids/s/sized".to_owned(), Value::Null, 200, r#""bytes":10,"#),
            ("POST", "/replicas".to_owned(), sized(json!(10.5)), 409, "InvalidObject"),
            (
                "POST",
                "/mainstay/transfers/take".to_owned(),
                json!({"worker": "w", "most": null, "lease": null, "schemes": null}),
                200,
                "jobs",
            ),
            ("POST", "/dids/s/ds/meta/a/b".to_owned(), json!({"value": 5}), 201, "Created"),
            ("GET", "/dids/s/ds/meta?plugin=JSON".to_owned(), Value::Null, 200, r#"{"a/b":5}"#),
            ("DELETE", "/dids/s/ds/meta?key=a/b".to_owned(), Value::Null, 200, ""),
            ("GET", when("'bytes.foo':5"), Value::Null, 400, "DIDFilterSyntaxError"),
            ("GET", when("'some.thing':5"), Value::Null, 200, ""),
            (
                "POST",
                "/rses/R1/protocols/srm".to_owned(),
                json!({"extended_attributes": {"space_token": "DATADISK", "web_service_path": "/x"},
                    "domains": {"wan": {"read": 1}}}),
                201,
                "Created",
            ),
            (
                "GET",
                "/rses/R1/protocols?protocol_domain=ALL&operation=read".to_owned(),
                Value::Null,
                200,
                "DATADISK",
            ),
            (
                "GET",
                "/rses/R1/protocols?protocol_domain=lan".to_owned(),
                Value::Null,
                200,
                r#""protocols":[]"#,
            ),
            (
                "GET",
                "/rses/R1/protocols/srm?operation=write".to_owned(),
                Value::Null,
                200,
                r#""protocols":[]"#,
            ),
            ("GET", "/locks/s/ds?did_type=dataset".to_owned(), Value::Null, 200, "R1"),
            ("PUT", "/accounts/root".to_owned(), json!({"email": "r@x"}), 200, ""),
            ("PUT", "/rses/R1".to_owned(), json!({"name": "R9"}), 400, "keeps its name"),
            ("PUT", "/rses/R1".to_owned(), json!({"name": "R1", "rse": "R1"}), 201, "Created"),
            ("GET", when("'created_after':'soon'"), Value::Null, 400, "DIDFilterSyntaxError"),
            ("GET", when("'created_at.gt':5"), Value::Null, 400, "DIDFilterSyntaxError"),
            ("GET", when("'created_after':'2020-01-01T00:00:00.000Z'"), Value::Null, 200, "ds"),
            (
                "GET",
                "/accounts/alice/limits/global/R1".to_owned(),
                Value::Null,
                200,
                r#"{"R1": null}"#,
            ),
            ("POST", limit.clone(), json!({"bytes": 1e12}), 201, "Created"),
            ("GET", limit.clone(), Value::Null, 200, r#"{"R1": 1000000000000}"#),
            ("POST", limit.clone(), json!({"bytes": "Infinity"}), 201, "Created"),
            ("GET", limit.clone(), Value::Null, 200, r#"{"R1": Infinity}"#),
            ("POST", limit.clone(), json!({"bytes": 1.5}), 409, "InvalidObject"),
            (
                "POST",
                "/replicas/bad".to_owned(),
                unknown,
                201,
                r#"["davs://nowhere/x Unknown replica"]"#,
            ),
        ] {
            let (got, text) = shell.call(method, &path, body.clone());
            assert_eq!(
                got,
                status,
                "{method} {path} {body} on {}: {text}",
                world.catalog.backend()
            );
            assert!(text.contains(said), "{method} {path} {body}: {text}");
        }
    }
}

#[test]
fn sizes_that_would_overflow_sums_are_refused() {
    for world in World::each() {
        world.f4();
        let shell = Shell::over(&world);
        let add = |from: usize, number: usize| {
            let file =
                |at: usize| json!({"scope": "s", "name": format!("f{at}"), "bytes": 1_i64 << 50});
            let files: Vec<Value> = (from..from + number).map(file).collect();
            shell.call("POST", "/replicas", json!({"rse": "R1", "files": files}))
        };
        for (from, number, expected) in
            [(0, 9_000, 409), (0, 1_000, 201), (1_000, 25, 409), (1_000, 24, 201)]
        {
            let (status, said) = add(from, number);
            assert_eq!(status, expected, "{number} on {}: {said}", world.catalog.backend());
            assert_eq!(status == 409, said.contains("RSEOverQuota"), "{said}");
        }
        let found = lines(shell.call("GET", "/rses/R1/usage?source=rucio", Value::Null));
        assert_eq!(found[0]["used"], json!(1_i64 << 60));
        // The same files in ten datasets would overflow the sum.
        let files: Vec<String> = (0..1_024).map(|at| format!("f{at}")).collect();
        world.collection("c", DidType::Container);
        for at in 0..10 {
            let name = format!("d{at}");
            world.collection(&name, DidType::Dataset);
            world.attach(&name, &files);
            world.attach("c", &[name]);
        }
        let (status, said) = shell.call("GET", "/dids/s/c?dynamic_depth=FILE", Value::Null);
        assert_eq!(status, 409, "{said}");
        assert!(said.contains("InvalidObject"), "{said}");
    }
}

#[test]
fn accounts_are_filtered_by_fields_and_attributes() {
    for world in World::each() {
        let shell = Shell::over(&world);
        let say = |method: &str, path: &str, body: Value| {
            let (status, said) = shell.call(method, path, body);
            assert_eq!(status, 201, "{path}: {said}");
        };
        say("POST", "/accounts/physics", json!({"type": "GROUP", "email": "p@x"}));
        say("POST", "/accounts/physics/attr/country", json!({"key": "country", "value": "ch"}));
        say("POST", "/accounts/physics/attr/admin", json!({"key": "admin", "value": true}));
        let who = json!({"identity": "CN=p", "authtype": "X509", "email": "p@x"});
        say("POST", "/accounts/physics/identities", who);
        let all = lines(shell.call("GET", "/accounts/", Value::Null)).len();
        for (query, alone) in [
            ("account_type=GROUP", true),
            ("email=p@x", true),
            ("identity=CN%3Dp", true),
            ("country=ch", true),
            ("admin=True", true),
            ("account=physics&status=ACTIVE&country=ch", true),
            ("account=phy*", true),
            ("account=*ysi*", true),
            ("account=phy", false),
            ("country=de", false),
            ("colour=red", false),
            ("status=SUSPENDED", false),
        ] {
            let found = lines(shell.call("GET", &format!("/accounts/?{query}"), Value::Null));
            let found: Vec<&Value> = found.iter().map(|one| &one["account"]).collect();
            assert_eq!(found, if alone { vec!["physics"] } else { Vec::new() }, "{query}");
        }
        assert!(all > 1);
    }
}

#[test]
fn metadata_is_set_recursively_and_inherited_on_request() {
    for world in World::each() {
        furnished(&world);
        let shell = Shell::over(&world);
        let set = |path: &str, body: Value| {
            let (status, said) = shell.call("POST", path, body);
            assert_eq!(status, 201, "{path}: {said}");
        };
        let meta = |name: &str, inherit: bool| {
            let body = json!({"dids": [{"scope": "s", "name": name}], "plugin": "JSON", "inherit": inherit});
            let mut found = lines(shell.call("POST", "/dids/bulkmeta", body)).remove(0);
            let found = found.as_object_mut().unwrap();
            found.retain(|key, _| key != "scope" && key != "name");
            json!(found)
        };
        set("/dids/s/c/meta/colour", json!({"value": "red", "recursive": true}));
        set("/dids/s/c/meta", json!({"meta": {"shape": "round", "size": 1}, "recursive": false}));
        set("/dids/s/ds/meta/size", json!({"value": 2}));
        assert_eq!(meta("ds-0", false), json!({"colour": "red"}));
        assert_eq!(meta("ds", false), json!({"colour": "red", "size": 2}));
        assert_eq!(meta("ds", true), json!({"colour": "red", "size": 2, "shape": "round"}));
        let bulk =
            json!({"dids": [{"scope": "s", "name": "ds", "meta": {"run": 7}}], "recursive": true});
        set("/dids/bulkdidsmeta", bulk);
        assert_eq!(meta("ds-1", false), json!({"colour": "red", "run": 7}));
    }
}

#[test]
fn metadata_of_new_files_is_stored() {
    for world in World::each() {
        world.f4();
        world.rse_with("FULL", &RseSettings { write: false, ..RseSettings::default() });
        let shell = Shell::over(&world);
        let add = |rse: &str, heed: Value| {
            let file =
                json!({"scope": "s", "name": "f", "bytes": 1, "meta": {"guid": "g1", "run": 7}});
            let body = json!({"rse": rse, "files": [file], "ignore_availability": heed});
            shell.call("POST", "/replicas", body)
        };
        let (status, said) = add("FULL", json!(false));
        assert_eq!(status, 409, "{said}");
        assert!(said.contains("RSEWriteBlocked"), "{said}");
        for (rse, heed) in [("FULL", json!(true)), ("R1", json!(false)), ("R2", Value::Null)] {
            let (status, said) = add(rse, heed);
            assert_eq!(status, 201, "{rse}: {said}");
        }
        let (_, said) = shell.call("GET", "/dids/s/f/meta?plugin=ALL", Value::Null);
        let meta: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&meta["guid"], &meta["run"]), (&json!("g1"), &json!(7)));
        let usage = json!({"source": "storage", "used": 5, "free": 95, "files": 3});
        assert_eq!(shell.call("PUT", "/rses/R1/usage", usage).0, 200);
        let found = lines(shell.call("GET", "/rses/R1/usage?source=storage", Value::Null));
        assert_eq!(found[0]["files"], json!(3));
        world.check();
    }
}

#[test]
fn replica_listings_obey_every_parameter() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 10, "R1");
        let shell = Shell::over(&world);
        for rse in ["R1", "R2", "R3"] {
            world.files(&["ds-0".to_owned()], 10, rse);
            let body = json!({"hostname": rse.to_lowercase(), "prefix": "/d"});
            assert_eq!(shell.call("POST", &format!("/rses/{rse}/protocols/davs"), body).0, 201);
        }
        world.change("UPDATE replicas SET state = 'U', updated_at = 5000000 WHERE rse_id = (SELECT id FROM rses WHERE rse = 'R3')");
        let list = |more: Value| {
            let mut body = json!({"dids": [{"scope": "s", "name": "ds"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            lines(shell.call("POST", "/replicas/list", body)).remove(0)
        };
        let count = |found: &Value| {
            ["states", "pfns", "rses"].map(|key| found[key].as_object().unwrap().len())
        };
        for (more, counts) in [
            (json!({}), [2, 2, 2]),
            (json!({"unavailable": true}), [3, 3, 3]),
            (json!({"unavailable": true, "updated_after": 6}), [2, 2, 2]),
            (json!({"unavailable": true, "updated_after": 4.5}), [3, 3, 3]),
            (json!({"unavailable": true, "updated_after": "1970-01-01T00:00:06"}), [2, 2, 2]),
            (json!({"nrandom": 1}), [2, 1, 1]),
            (json!({"nrandom": 5, "sort": null, "schemes": null, "domain": null}), [2, 2, 2]),
        ] {
            assert_eq!(count(&list(more.clone())), counts, "{more} on {}", world.catalog.backend());
        }
        let both = list(json!({"domain": "all"}));
        let names = both["rses"]["R1"].as_array().unwrap();
        assert_eq!(names.len(), 1, "{both}");
        let first = &both["pfns"][names[0].as_str().unwrap()];
        assert_eq!((&first["priority"], &first["domain"]), (&json!(1), &json!("wan")), "{both}");
        let one = list(json!({"nrandom": 1}));
        let (_, name) = one["pfns"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(name["priority"], json!(1), "{one}");
    }
}

#[test]
fn folder_protocols_are_local_and_never_the_root_folder() {
    for world in World::each() {
        world.rse("R");
        let shell = Shell::over(&world);
        for (body, said) in [
            (json!({"hostname": "srv", "prefix": "/x"}), Some("no host such as srv")),
            (json!({"hostname": "rel", "prefix": ""}), Some("no host such as rel")),
            (json!({}), Some("a folder of its own")),
            (json!({"hostname": null, "prefix": null}), Some("a folder of its own")),
            (json!({"prefix": "/"}), Some("a folder of its own")),
            (json!({"hostname": "localhost", "prefix": "//./"}), Some("a folder of its own")),
            (json!({"hostname": null, "prefix": "/dev/shm/a"}), None),
            (json!({"hostname": "", "port": 1, "prefix": "/dev/shm/a/"}), None),
            (json!({"hostname": "localhost", "port": 2, "prefix": "/dev/shm/a"}), None),
        ] {
            let (status, text) = shell.call("POST", "/rses/R/protocols/file", body.clone());
            assert_eq!(status, if said.is_some() { 409 } else { 201 }, "{body}: {text}");
            let right = said.is_none_or(|said| text.contains(said) && text.contains("file:///F"));
            assert!(right, "{body}: {text}");
        }
        // Other schemes allow both.
        let body = json!({"hostname": "srv", "prefix": "/"});
        assert_eq!(shell.call("POST", "/rses/R/protocols/davs", body).0, 201);
        let way = "/rses/R/protocols/file/localhost/2";
        for body in [json!({"prefix": "/"}), json!({"hostname": "srv"})] {
            assert_eq!(shell.call("PUT", way, body).0, 409);
        }
        // Protocols registered earlier stay, and their ranks can change.
        world.change("UPDATE rse_protocols SET prefix = '/' WHERE scheme = 'file' AND port = 2");
        world.attribute("R", "looked", "again");
        let ranks = json!({"domains": {"wan": {"read": 3}}});
        assert_eq!(shell.call("PUT", way, ranks).0, 200);
    }
}
