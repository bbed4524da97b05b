//! Tests of the REST API's answers on both databases: refusals with their exception classes, lists,
//! and repeated requests.

use mainstay_catalog::Daemon;
use mainstay_rules::api::{DidType, Grouping, NewRule, Notification};
use serde_json::{Value, json};

use crate::permissions::with_alice;
use crate::surface::{Shell, as_account};
use crate::world::{START, World};

/// The document of a successful answer.
fn document(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).unwrap()
}

#[test]
fn detaching_from_a_closed_collection_updates_its_size() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 3, 100, "R1");
        world.dataset("other", 2, 10, "R1");
        world.collection("c", DidType::Container);
        world.attach("c", &["ds".to_owned(), "other".to_owned()]);
        let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
        world.close("ds");
        world.close("c");
        let shell = Shell::over(&world);
        let size = |name: &str| {
            let found = document(shell.call("GET", &format!("/dids/s/{name}"), Value::Null));
            (found["length"].as_i64().unwrap(), found["bytes"].as_i64().unwrap())
        };
        let detach = |parent: &str, children: &[&str]| {
            let named = |name: &&str| json!({"scope": "s", "name": name});
            let body = json!({"dids": children.iter().map(named).collect::<Vec<_>>()});
            shell.call("DELETE", &format!("/dids/s/{parent}/dids"), body)
        };
        assert_eq!(size("c"), (5, 320));
        for (parent, children) in [("ds", &["ds-0", "ds-2"] as &[&str]), ("c", &["other"])] {
            let (status, said) = detach(parent, children);
            assert_eq!(status, 200, "{parent} on {}: {said}", world.catalog.backend());
        }
        assert_eq!((size("ds"), size("c")), ((1, 100), (1, 100)));
        for (parent, child) in [("ds", "ds-0"), ("c", "other"), ("ds", "nothing")] {
            let (status, said) = detach(parent, &[child]);
            assert_eq!(status, 404, "{parent} {child}: {said}");
            assert!(said.contains("DataIdentifierNotFound"), "{said}");
        }
        world.judge(Daemon::Evaluator);
        assert_eq!(world.state(&uuid), "OK 1/0/0");
        world.check();
    }
}

#[test]
fn analysis_lists_stuck_transfers_with_their_sources() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 2, 100, "R1");
        let uuid = world.rule("ds", 1, "R2", Grouping::Dataset);
        let shell = Shell::over(&world);
        let analysis =
            || document(shell.call("GET", &format!("/rules/{uuid}/analysis"), Value::Null));
        let waiting = json!({"rule_error": "This replication rule is currently REPLICATING", "transfers": []});
        assert_eq!(analysis(), waiting);
        world.change(
            "UPDATE requests SET source_rse_id = (SELECT id FROM rses WHERE rse = 'R1')
             WHERE did_id = (SELECT id FROM dids WHERE name = 'ds-0')",
        );
        world.fail(&["ds-0"], "R2");
        let found = analysis();
        assert_eq!(found["rule_error"], json!("no luck"));
        let stuck = found["transfers"].as_array().unwrap();
        assert_eq!(stuck.len(), 1, "{found}");
        assert_eq!((&stuck[0]["name"], &stuck[0]["rse"]), (&json!("ds-0"), &json!("R2")));
        assert_eq!(stuck[0]["last_source"], json!("R1"), "{found}");
        assert_eq!(stuck[0]["last_error"], json!("no luck"));
        assert_eq!(stuck[0]["sources"], json!([["R1", true]]));
    }
}

#[test]
fn explain_shows_the_report_of_a_failed_copy() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 2, 100, "R1");
        world.files(&["ds-0".to_owned()], 100, "R2");
        let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
        assert_eq!(world.state(&uuid), "OK 2/0/0");
        let shell = Shell::over(&world);
        let report = |name: &str, state: &str| {
            let file = json!({"scope": "s", "name": name, "state": state, "error_message": "disk on fire"});
            shell.call("PUT", "/replicas", json!({"rse": "R1", "files": [file]})).0
        };
        assert_eq!((report("ds-0", "U"), report("ds-1", "U")), (200, 200));
        assert_eq!(world.state(&uuid), "STUCK 0/0/2");
        let why = || -> Vec<(Value, String)> {
            let path = format!("/mainstay/rules/{uuid}/explain");
            let found = document(shell.call("GET", &path, Value::Null));
            let copies = found["copies"].as_array().unwrap().iter();
            copies.map(|copy| (copy["last_error"].clone(), copy["why"].to_string())).collect()
        };
        let told = why();
        for (error, why) in &told {
            assert_eq!(*error, json!("disk on fire"), "on {}", world.catalog.backend());
            assert!(why.contains("reported as failed (disk on fire) though"), "{why}");
        }
        assert!(told[0].1.contains("tried again") && told[1].1.contains("no readable copy"));
        // The report is removed once the copy is available again.
        assert_eq!((report("ds-0", "A"), report("ds-1", "A")), (200, 200));
        assert_eq!(world.state(&uuid), "OK 2/0/0");
        assert!(why().iter().all(|(error, _)| error.is_null()));
        world.check();
    }
}

#[test]
fn explain_does_not_blame_space_for_a_cancelled_transfer() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 100, "R1");
        let uuid = world.rule("ds", 1, "R2", Grouping::Dataset);
        let shell = Shell::over(&world);
        let stuck = json!({"options": {"state": "STUCK"}});
        assert_eq!(shell.call("PUT", &format!("/rules/{uuid}"), stuck).0, 200);
        let path = format!("/mainstay/rules/{uuid}/explain");
        let found = document(shell.call("GET", &path, Value::Null));
        assert!(found["copies"][0]["why"].to_string().contains("was cancelled"), "{found}");
    }
}

#[test]
fn rules_can_be_filtered_by_every_shown_field() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 2, 100, "R1");
        world.dataset("other", 1, 100, "R1");
        let plain = world.rule("other", 1, "R1", Grouping::Dataset);
        let told = world.add(&NewRule {
            grouping: Grouping::None,
            weight: Some("fakeweight".to_owned()),
            lifetime: Some(3_600),
            locked: true,
            source_replica_expression: Some("R1".to_owned()),
            activity: "Debug".to_owned(),
            notify: Notification::Progress,
            purge_replicas: true,
            ignore_availability: true,
            ignore_account_limit: true,
            comment: Some("100%_'--".to_owned()),
            priority: 5,
            split_container: true,
            meta: Some("{}".to_owned()),
            eol_at: Some(START),
            subscription_id: Some("sub".to_owned()),
            ..World::new_rule("ds", 2, "T1")
        });
        world.advance(5);
        world.change(&format!(
            "UPDATE rules SET child_rule_id = (SELECT id FROM rules WHERE uuid = '{plain}'), error = 'odd',
             stuck_at = 1800000001500000, deleted_at = 1800000002000000, updated_at = updated_at + 9000000,
             created_at = created_at + 7000000, soft_deleted = 1 WHERE uuid = '{told}'"
        ));
        let shell = Shell::over(&world);
        let ids = |query: &str| -> Vec<String> {
            let (status, said) = shell.call("GET", &format!("/rules/?{query}"), Value::Null);
            assert_eq!(status, 200, "{query}: {said}");
            let id = |line: &str| {
                let rule: Value = serde_json::from_str(line).unwrap();
                rule["id"].as_str().unwrap().to_owned()
            };
            said.lines().map(id).collect()
        };
        let shown = document(shell.call("GET", &format!("/rules/{told}"), Value::Null));
        let encoded =
            |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        for (key, value) in shown.as_object().unwrap() {
            let text = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let found = ids(&format!("{key}={}", encoded(&text)));
            let both = ["scope", "account", "did_type", "locks_stuck_cnt"].contains(&key.as_str());
            let expected =
                if both { vec![plain.clone(), told.clone()] } else { vec![told.clone()] };
            assert_eq!(found, expected, "{key}={text} on {}", world.catalog.backend());
        }
        assert_eq!(ids("priority=5&locked=True&scope=s*"), [told.as_str()]);
        for (pattern, found) in [
            ("s*", 2),
            ("*s", 2),
            ("*", 2),
            ("S*", 0),
            ("s*x", 0),
            ("%5Bs%5D*", 0),
            ("%3F*", 0),
            ("_*", 0),
        ] {
            let (found_now, on) = (ids(&format!("scope={pattern}")), world.catalog.backend());
            assert_eq!(found_now.len(), found, "{pattern} on {on}");
        }
        assert_eq!(ids("priority=3&locked=True"), [] as [String; 0]);
        assert_eq!(ids("comments=100%25"), [] as [String; 0]);
        assert_eq!(ids("created_before=9999-12-31T23:59:59").len(), 2);
        for (query, expected, class) in [
            ("colour=red", 400, "InputValidationError"),
            ("r.id=1", 400, "InputValidationError"),
            ("", 200, ""),
            ("copies=two", 409, "InvalidObject"),
            ("locked=perhaps", 409, "InvalidObject"),
            ("grouping=X", 409, "InvalidObject"),
            ("expires_at=soon", 409, "InvalidObject"),
        ] {
            let (status, said) = shell.call("GET", &format!("/rules/?{query}"), Value::Null);
            assert_eq!(status, expected, "{query}: {said}");
            assert!(said.contains(class), "{query}: {said}");
        }
    }
}

#[test]
fn values_of_the_wrong_type_are_refused_not_ignored() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 100, "R1");
        let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
        let shell = Shell::over(&world);
        let huge: Value = serde_json::from_str("1000000000000000000000000000000").unwrap();
        let did = |key: &str, value: Value| json!({"type": "DATASET", key: value});
        let child =
            |key: &str, value: Value| json!({"dids": [{"scope": "s", "name": "ds-0", key: value}]});
        let to =
            |key: &str, value: Value| json!({"rse_expression": "R2", "override": {key: value}});
        let option = |key: &str, value: Value| json!({"options": {key: value}});
        let (rule, moved) = (format!("/rules/{uuid}"), format!("/rules/{uuid}/move"));
        let (new, into, limit) = ("/dids/s/new", "/dids/s/ds/dids", "/accounts/alice/limits");
        let (local, global) = (format!("{limit}/local/R1"), format!("{limit}/global/T1"));
        for (method, path, body, status) in [
            ("POST", new, did("lifetime", json!("x")), 409),
            ("POST", new, did("lifetime", huge.clone()), 409),
            ("POST", new, did("lifetime", json!(i64::MAX)), 409),
            ("POST", new, did("rules", json!(5)), 409),
            ("POST", new, did("rules", json!([5])), 409),
            ("POST", new, did("meta", json!(5)), 409),
            ("POST", new, did("statuses", json!(5)), 409),
            ("POST", new, did("statuses", json!({"monotonic": 5})), 409),
            ("POST", new, did("dids", json!(5)), 409),
            ("POST", into, child("bytes", json!("x")), 409),
            ("POST", into, child("adler32", json!(5)), 409),
            ("POST", into, json!({"dids": 5}), 409),
            ("PUT", "/dids/s/ds/status", json!({"lifetime": "x"}), 409),
            ("POST", &moved, to("lifetime", huge.clone()), 400),
            ("POST", &moved, to("delay_injection", json!("x")), 400),
            ("POST", &moved, to("grouping", json!(5)), 400),
            ("POST", &moved, to("activity", json!("sleeping")), 409),
            ("PUT", &rule, option("activity", json!("sleeping")), 409),
            ("PUT", &rule, option("child_rule_id", json!(5)), 409),
            ("PUT", &rule, option("priority", json!("x")), 409),
            ("PUT", &rule, option("foo", json!(1)), 409),
            ("DELETE", &rule, json!({"purge_replicas": "x"}), 409),
            ("POST", "/accounts/new", json!({"type": "USER", "email": 5}), 409),
            ("PUT", "/accounts/alice", json!({"email": 5}), 409),
            ("POST", &local, json!({"bytes": null}), 409),
            ("POST", &local, json!({"bytes": -2}), 409),
            ("POST", &global, json!({"bytes": null}), 409),
            ("POST", &global, json!({"bytes": -2}), 409),
        ] {
            let (got, said) = shell.call(method, path, body.clone());
            assert_eq!(got, status, "{method} {path} {body}: {said}");
            let known = ["InvalidObject", "InputValidationError"];
            assert!(known.iter().any(|class| said.contains(class)), "{path} {body}: {said}");
            assert_eq!(
                said.contains("Problem validating rule"),
                said.contains("sleeping"),
                "{said}"
            );
        }
        let nulls = json!({"type": "DATASET", "lifetime": null, "rules": null, "meta": null, "statuses": null, "dids": null});
        let limits = [-1, 0, 5].map(|bytes| ("POST", local.as_str(), json!({"bytes": bytes}), 201));
        for (method, path, body, status) in [("POST", new, nulls, 201)].into_iter().chain(limits) {
            let (got, said) = shell.call(method, path, body);
            assert_eq!(got, status, "{method} {path}: {said}");
        }
        world.check();
    }
}

#[test]
fn comment_length_is_counted_in_characters() {
    let world = World::sqlite();
    world.f4();
    world.dataset("ds", 1, 100, "R1");
    let shell = Shell::over(&world);
    let add = |letters: usize, on: &str| {
        let comment = "é".repeat(letters);
        let body = json!({"dids": [{"scope": "s", "name": "ds"}], "copies": 1, "rse_expression": on, "account": "jdoe", "comment": comment});
        shell.call("POST", "/rules/", body)
    };
    assert_eq!(add(251, "R1").0, 409);
    let (status, said) = add(250, "R1");
    assert_eq!(status, 201, "{said}");
    let (uuid,): (String,) = serde_json::from_str(&said).unwrap();
    for (letters, status) in [(250, 200), (251, 409)] {
        let body = json!({"options": {"comment": "é".repeat(letters)}});
        assert_eq!(shell.call("PUT", &format!("/rules/{uuid}"), body).0, status);
    }
}

#[test]
fn registering_a_replica_twice_changes_nothing() {
    for world in World::each() {
        world.f4();
        let shell = Shell::over(&world);
        let file = |name: &str, more: Value| {
            let mut file = json!({"scope": "s", "name": name, "bytes": 7, "adler32": "0cc737eb"});
            file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            file
        };
        let say =
            |files: &[Value]| shell.call("POST", "/replicas", json!({"rse": "R1", "files": files}));
        let (a, b) = (file("a", json!({})), file("b", json!({})));
        let copying = file("c", json!({"state": "C"}));
        for files in [
            vec![a.clone()],
            vec![a.clone()],
            vec![b.clone(), b.clone()],
            vec![a.clone(), b.clone(), file("d", json!({}))],
            vec![copying.clone()],
            vec![copying.clone()],
        ] {
            let (status, said) = say(&files);
            assert_eq!(status, 201, "{files:?} on {}: {said}", world.catalog.backend());
        }
        let usage = "SELECT used FROM rse_usage WHERE source = 'mainstay' AND rse_id = (SELECT id FROM rses WHERE rse = 'R1')";
        assert_eq!(world.sql(usage), 28, "each counts once");
        for (files, status, class) in [
            (vec![file("a", json!({"bytes": 8}))], 412, "FileConsistencyMismatch"),
            (vec![file("a", json!({"adler32": "00000001"}))], 412, "FileConsistencyMismatch"),
            (
                vec![file("e", json!({})), file("e", json!({"bytes": 8}))],
                412,
                "FileConsistencyMismatch",
            ),
            (vec![file("a", json!({"state": "C"}))], 409, "Duplicate"),
            (vec![file("c", json!({}))], 409, "Duplicate"),
            (vec![file("e", json!({})), file("c", json!({}))], 409, "Duplicate"),
        ] {
            let (got, said) = say(&files);
            assert_eq!(got, status, "{files:?}: {said}");
            assert!(said.contains(class), "{said}");
        }
        assert_eq!(world.sql("SELECT COUNT(*) FROM dids"), 4);
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'C'"), 1);
        assert_eq!(world.sql(usage), 28);
        world.check();
    }
}

#[test]
fn invalid_fields_of_an_rse_are_refused() {
    for world in World::each() {
        world.rse("R1");
        let shell = Shell::over(&world);
        for (body, status, class) in [
            (json!({"rse_type": "FLOPPY"}), 409, "InvalidObject"),
            (json!({"rse_type": 5}), 409, "InvalidObject"),
            (json!({"volatile": "x"}), 409, "InvalidObject"),
            (json!({"availability": "x"}), 409, "InvalidObject"),
            (json!({"availability": 8}), 409, "InvalidObject"),
            (json!({"colour": "red"}), 400, "InputValidationError"),
            (json!([]), 409, "InvalidObject"),
        ] {
            for (method, path) in [("POST", "/rses/NEW"), ("PUT", "/rses/R1")] {
                let (got, said) = shell.call(method, path, body.clone());
                assert_eq!(got, status, "{method} {body}: {said}");
                assert!(said.contains(class), "{said}");
            }
        }
        let all = json!({"rse_type": "TAPE", "deterministic": false, "volatile": true, "staging_area": false,
            "availability": 6, "availability_read": true, "availability_write": true, "availability_delete": false,
            "vo": "def", "city": "Bern", "region_code": "BE", "country_name": "CH", "continent": "EU", "ASN": "1",
            "time_zone": "CET", "ISP": "x", "longitude": 7.4, "latitude": 46.9, "qos_class": null});
        for (method, path) in [("POST", "/rses/NEW"), ("PUT", "/rses/R1")] {
            let (status, said) = shell.call(method, path, all.clone());
            assert_eq!(status, 201, "{method}: {said}");
            let found = document(shell.call("GET", path, Value::Null));
            assert_eq!((&found["rse_type"], &found["availability"]), (&json!("TAPE"), &json!(6)));
        }
    }
}

#[test]
fn unknown_paths_return_404_and_unsupported_methods_405() {
    for world in World::each() {
        let uuid = with_alice(&world);
        let shell = Shell::over(&world);
        let (rule, nothing) = (format!("/rules/{uuid}/locks"), format!("/rules/{uuid}/colours"));
        for (method, path, status, class) in [
            ("GET", "/", 404, "UnsupportedOperation"),
            ("GET", "/nothing", 404, "UnsupportedOperation"),
            ("POST", "/nothing/at/all", 404, "UnsupportedOperation"),
            ("GET", &nothing, 404, "UnsupportedOperation"),
            ("GET", "/rses/R1/colours", 404, "UnsupportedOperation"),
            ("DELETE", &rule, 405, "UnsupportedOperation"),
            ("PATCH", "/rules/", 405, "UnsupportedOperation"),
            ("POST", "/ping", 405, "UnsupportedOperation"),
            ("OPTIONS", "/ping", 405, "UnsupportedOperation"),
            ("OPTIONS", "/rules/", 405, "UnsupportedOperation"),
            ("GET", "/dids/s/ds/status", 405, "UnsupportedOperation"),
            ("GET", "/auth/nothing", 404, "UnsupportedOperation"),
            ("POST", "/auth/userpass", 405, "UnsupportedOperation"),
            ("GET", "/traces", 405, "UnsupportedOperation"),
            ("GET", "/accounts/nosuch/attr/", 404, "AccountNotFound"),
            ("GET", "/accounts/nosuch/rules", 404, "AccountNotFound"),
        ] {
            let (got, said) = shell.call(method, path, Value::Null);
            assert_eq!(got, status, "{method} {path}: {said}");
            assert!(said.contains(class), "{method} {path}: {said}");
            let (got, said) = as_account(&world, "alice", method, path, Value::Null);
            assert_eq!(got, status, "{method} {path}, mounted: {said}");
            assert!(said.contains(class), "{method} {path}: {said}");
        }
        assert_eq!(shell.call("GET", "/accounts/alice/attr/", Value::Null).1, "[]");
        assert_eq!(shell.call("GET", "/accounts/alice/rules", Value::Null).1.lines().count(), 1);
        // `/ping` and unknown paths below it need no token.
        assert_eq!(as_account(&world, "nobody", "GET", "/ping", Value::Null).0, 200);
        assert_eq!(as_account(&world, "nobody", "POST", "/ping", Value::Null).0, 405);
    }
}

#[test]
fn lists_have_the_recorded_fields() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 1, 7, "R1");
        world.rule("ds", 1, "R1", Grouping::Dataset);
        let shell = Shell::over(&world);
        let lines = |path: &str| -> Vec<Value> {
            let (status, said) = shell.call("GET", path, Value::Null);
            assert_eq!(status, 200, "{path}: {said}");
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let rules = lines("/dids/s/ds-0/associated_rules");
        assert_eq!((rules.len(), rules[0].get("bytes")), (1, Some(&Value::Null)));
        let found = lines("/dids/s/dids/search?type=file&long=True");
        let file =
            json!({"scope": "s", "name": "ds-0", "did_type": "FILE", "bytes": 7, "length": null});
        assert_eq!(found, [file]);
        let say = |source: &str| {
            let body = json!({"source": source, "used": 5, "free": 95});
            shell.call("PUT", "/rses/R1/usage", body).0
        };
        assert_eq!((say("storage"), say("rucio"), say("mainstay")), (200, 409, 409));
        let mut usage: Vec<(String, Value, Value)> = lines("/rses/R1/usage")
            .iter()
            .map(|one| {
                (
                    one["source"].as_str().unwrap().to_owned(),
                    one["used"].clone(),
                    one["total"].clone(),
                )
            })
            .collect();
        usage.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            ("rucio".to_owned(), json!(7), json!(7)),
            ("storage".to_owned(), json!(5), json!(100)),
        ];
        assert_eq!(usage, expected);
        assert_eq!(lines("/rses/R1/usage?source=rucio").len(), 1);
        assert!(
            shell.call("GET", "/accounts/whoami", Value::Null).1.starts_with("<!doctype html>")
        );
    }
}
