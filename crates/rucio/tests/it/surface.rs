//! Tests of the REST API and of the command line that uses it.

use clap::Parser;
use mainstay_rucio::{Caller, Local, Service};
use mainstay_rules::Environment;
use mainstay_rules::api::{Grouping, NewRule};
use mainstay_rules::cli::{self, Command, Format, Remote};
use serde_json::{Value, json};

use crate::world::World;

#[derive(Parser)]
struct Tree {
    #[command(subcommand)]
    command: Command,
}

pub(crate) struct Shell {
    local: Local,
    runtime: tokio::runtime::Runtime,
}

/// The REST API over a world.
pub(crate) fn service(world: &World) -> Service {
    Service {
        catalog: world.catalog.clone(),
        settings: world.settings.clone(),
        around: Environment::system(),
        access: Default::default(),
        logins: Default::default(),
    }
}

impl Shell {
    pub(crate) fn over(world: &World) -> Self {
        let service = service(world);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { local: Local::new(service), runtime }
    }

    fn run(&self, line: &str) -> (u8, String) {
        let words = std::iter::once("rules").chain(line.split_whitespace());
        let tree = Tree::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut out = Vec::new();
        let code = self
            .runtime
            .block_on(cli::run(
                tree.command,
                &self.local,
                Default::default(),
                Format::Table,
                &mut out,
            ))
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        (code, String::from_utf8(out).unwrap())
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: Value) -> (u16, String) {
        let body = (!body.is_null()).then_some(body);
        let answer = self.runtime.block_on(self.local.send(method, path, body)).unwrap();
        (answer.status, answer.body)
    }
}

#[test]
fn the_life_of_a_rule_from_the_command_line() {
    for world in World::each() {
        let shell = Shell::over(&world);
        for line in [
            "rse add SITE-A",
            "rse add SITE-B",
            "rse set SITE-A tier=1",
            "rse set SITE-B tier=1",
            "account add bob",
            "account scope bob user.bob",
            "quota set bob SITE-A 1000000",
            "quota set bob SITE-B -1",
            "replica add SITE-A user.bob:f0:100:0cc737eb user.bob:f1:200",
            "did add user.bob:ds",
            "did attach user.bob:ds user.bob:f0 user.bob:f1",
        ] {
            assert_eq!(shell.run(line).0, 0, "{line}");
        }
        let (_, id) = shell.run("add user.bob:ds --copies 2 -e tier=1 --account bob");
        let id = id.trim().to_owned();
        assert!(shell.run("list --account bob").1.contains("REPLICATING"));
        assert!(shell.run(&format!("explain {id}")).1.contains("the transfer is QUEUED"));
        shell.run("transfer failed SITE-B user.bob:f0 --error full");
        assert!(shell.run(&format!("explain {id} f0")).1.contains("full"));
        assert!(shell.run(&format!("repair {id}")).1.contains("REPLICATING"));
        shell.run("transfer done SITE-B user.bob:f0 user.bob:f1");
        assert!(shell.run(&format!("watch {id}")).1.contains("4 ok, 0 replicating, 0 stuck: OK"));
        assert!(shell.run("quota show bob").1.contains("infinite"));
        assert!(shell.run("did tree user.bob:ds").1.contains("  user.bob:f1 FILE"));
        assert!(shell.run("expression tier=1\\SITE-A").1.contains("= SITE-B"));
        shell.run("judge evaluator --once --now 2030-01-01T00:00:00Z");
        assert_eq!(shell.run("check").0, 0);
        world.change("UPDATE rules SET locks_ok_cnt = 9");
        assert_eq!(shell.run("check").0, 1);
        assert_eq!(shell.run("check --repair").0, 0);
        shell.run(&format!("delete {id}"));
        assert_eq!(shell.call("GET", &format!("/rules/{id}"), Value::Null).0, 404);
    }
}

#[test]
fn answers_have_the_statuses_and_classes_clients_know() {
    let world = World::sqlite();
    world.f4();
    let files = world.dataset("ds", 3, 1, "R1");
    world.files(&files, 1, "R2");
    let shell = Shell::over(&world);
    let rule = |copies: i64, expression: &str| json!({"dids": [{"scope": "s", "name": "ds"}], "copies": copies, "rse_expression": expression, "account": "jdoe"});
    let (status, body) = shell.call("POST", "/rules/", rule(2, "R1|R2"));
    assert_eq!(status, 201);
    let made: Vec<String> = serde_json::from_str(&body).unwrap();
    for (copies, expression, status, class) in [
        (2, "R1|R2", 409, "DuplicateRule"),
        (1, "R1|", 409, "InvalidRSEExpression"),
        (9, "T1", 409, "InsufficientTargetRSEs"),
        (0, "T1", 400, "InvalidValueForKey"),
    ] {
        let (got, body) = shell.call("POST", "/rules/", rule(copies, expression));
        assert_eq!(got, status, "{expression}");
        assert!(body.contains(class), "{body}");
    }
    // REST-01: the stock client takes only 200 here.
    let (status, _) = shell.call(
        "POST",
        &format!("/rules/{}/reduce", made[0]),
        json!({"copies": 1, "exclude_expression": "R1"}),
    );
    assert_eq!(status, 200);
    for hostile in [
        "/rules/'%3B%20DROP%20TABLE%20rules",
        "/dids/s/..%2F..%2Fetc",
        "/rses/%00",
        "/nothing",
        "/dids",
    ] {
        let (status, _) = shell.call("GET", hostile, Value::Null);
        assert!((400..500).contains(&status), "{hostile}: {status}");
    }
}

/// Sends a request as a caller to the mounted REST API.
pub(crate) fn as_account(
    world: &World,
    account: &str,
    method: &str,
    path: &str,
    body: Value,
) -> (u16, String) {
    showing(world, account, &[], method, path, body)
}

/// The same with headers.
fn showing(
    world: &World,
    account: &str,
    headers: &[(&str, &str)],
    method: &str,
    path: &str,
    body: Value,
) -> (u16, String) {
    let account = account.to_owned();
    let router = mainstay_rucio::mounted("/rucio", service(world), move |_, _| {
        (account != "nobody").then(|| Caller {
            account: account.clone(),
            privileged: false,
            read_only: account == "viewer",
        })
    });
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut request = axum::http::Request::builder().method(method).uri(format!("/rucio{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(axum::body::Body::from(body)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let answer = tower::ServiceExt::oneshot(router, request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    })
}

#[test]
fn unknown_credentials_are_refused_with_the_reason() {
    for world in World::each() {
        let (bearer, token) = (("authorization", "Bearer wrong"), ("x-rucio-auth-token", "wrong"));
        for (headers, account, status, said) in [
            (&[] as &[_], "nobody", 400, "X-Rucio-Auth-Token is missing"),
            (&[bearer], "nobody", 401, "The token in Authorization is not valid"),
            (&[("authorization", "Basic eDp5")], "nobody", 401, "Authorization is not valid"),
            (&[bearer, ("x-rucio-account", "")], "nobody", 400, "X-Rucio-Account is empty"),
            (&[token], "nobody", 401, "Cannot authenticate"),
            (&[bearer, token], "nobody", 401, "Cannot authenticate"),
            (&[bearer], "alice", 200, "alice"),
        ] {
            let path = "/accounts/alice";
            let (got, text) = showing(&world, account, headers, "GET", path, Value::Null);
            assert_eq!(got, status, "{headers:?}: {text}");
            assert!(text.contains(said), "{headers:?}: {text}");
            let other = status == 200 || said.contains("is empty");
            assert_eq!(other, !text.contains("CannotAuthenticate"), "{text}");
        }
        let (status, _) = showing(&world, "nobody", &[bearer], "GET", "/ping", Value::Null);
        assert_eq!(status, 200);
    }
}

#[test]
fn d15_refusals_carry_their_class() {
    let world = World::sqlite();
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.add(&NewRule { locked: true, ..World::new_rule("ds", 1, "R1") });
    let shell = Shell::over(&world);
    let rule = json!({"dids": [{"scope": "s", "name": "ds"}], "copies": 1, "rse_expression": "R2",
        "account": "jdoe", "source_replica_expression": "NOWHERE"});
    for (method, path, body, status, class) in [
        ("POST", "/rules/".to_owned(), rule, 409, "InvalidSourceReplicaExpression"),
        ("DELETE", format!("/rules/{uuid}"), json!({}), 409, "UnsupportedOperation"),
        ("GET", "/rses/?expression=R1%7C".to_owned(), Value::Null, 400, "InvalidRSEExpression"),
        ("GET", "/rses/?expression=NOWHERE".to_owned(), Value::Null, 400, "InvalidRSEExpression"),
        ("GET", "/rules/none".to_owned(), Value::Null, 404, "RuleNotFound"),
    ] {
        let (got, text) = shell.call(method, &path, body);
        assert_eq!(got, status, "{method} {path}: {text}");
        assert!(text.contains(class), "{text}");
    }
}

#[test]
fn d16_owners_manage_their_own_rules() {
    let world = World::sqlite();
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    let path = format!("/rules/{uuid}");
    let change = json!({"options": {"comment": "mine"}});
    for (account, method, status) in [
        ("nobody", "PUT", 400),
        ("alice", "PUT", 403),
        ("viewer", "PUT", 403),
        ("viewer", "GET", 200),
        ("jdoe", "PUT", 200),
        ("alice", "DELETE", 403),
        ("jdoe", "DELETE", 200),
    ] {
        let (got, text) = as_account(&world, account, method, &path, change.clone());
        assert_eq!(got, status, "{account} {method}: {text}");
    }
    // A softly deleted rule does not block a new one with the same key.
    let new = json!({"dids": [{"scope": "s", "name": "ds"}], "copies": 1, "rse_expression": "R1", "account": "jdoe"});
    let (status, text) = as_account(&world, "jdoe", "POST", "/rules/", new);
    assert_eq!(status, 201, "{text}");
    world.judge(mainstay_catalog::Daemon::Evaluator);
    world.check();
}

#[test]
fn datasets_are_shown_as_clients_expect() {
    for world in World::each() {
        world.f4();
        let files = world.dataset("ds", 3, 10, "R1");
        world.files(&files[..2], 10, "R2");
        let shell = Shell::over(&world);
        let (status, text) = shell.call("GET", "/dids/s/ds/meta?plugin=DID_COLUMN", Value::Null);
        assert_eq!(status, 200);
        let meta: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(meta.as_object().unwrap().len(), 42, "the 42 columns of a data identifier");
        assert_eq!((&meta["did_type"], &meta["is_open"]), (&json!("DATASET"), &json!(true)));
        let (status, text) = shell.call("GET", "/replicas/s/ds/datasets", Value::Null);
        assert_eq!(status, 200);
        let held: Vec<(String, i64, String)> = text
            .lines()
            .map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                let text = |key: &str| row[key].as_str().unwrap().to_owned();
                (text("rse"), row["available_length"].as_i64().unwrap(), text("state"))
            })
            .collect();
        let expected = [
            ("R1".to_owned(), 3, "AVAILABLE".to_owned()),
            ("R2".to_owned(), 2, "UNAVAILABLE".to_owned()),
        ];
        assert_eq!(held, expected);
        // The listing of an RSE shows the same, whether the dataset is locked there or not.
        world.rule("ds", 1, "R1", Grouping::Dataset);
        for (rse, line) in ["R1", "R2"].into_iter().zip(text.lines()) {
            let (status, told) = shell.call("GET", &format!("/replicas/rse/{rse}"), Value::Null);
            assert_eq!(status, 200, "{told}");
            assert_eq!(told.trim(), line, "on {}", world.catalog.backend());
        }
        assert_eq!(shell.call("GET", "/replicas/rse/R3", Value::Null), (200, String::new()));
        for states in ["W", "P", "WAITING,PREPARING", "U"] {
            let path = format!("/requests/list?request_states={states}");
            assert_eq!(shell.call("GET", &path, Value::Null), (200, String::new()), "{states}");
        }
    }
}

#[test]
fn a_list_larger_than_the_stream_buffer_is_complete() {
    for world in World::each() {
        world.rse("A");
        world.dataset("long", 3_000, 10, "A");
        let body = json!({"dids": [{"scope": "s", "name": "long"}]});
        let (status, lines) = Shell::over(&world).call("POST", "/replicas/list", body);
        assert_eq!(status, 200);
        let found: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found.len(), 3_000, "on {}", world.catalog.backend());
        assert!(found.iter().all(|one| one["states"] == json!({"A": "AVAILABLE"})));
    }
}

#[test]
fn unknown_names_fail_before_a_list_is_streamed() {
    for world in World::each() {
        world.rse("R1");
        let names: Vec<String> = (0..1_000).map(|at| format!("f{at}")).collect();
        world.files(&names, 1, "R1");
        let shell = Shell::over(&world);
        let all = names.iter().map(String::as_str).chain(["nosuch"]);
        let dids: Vec<Value> = all.map(|name| json!({"scope": "s", "name": name})).collect();
        for path in ["/replicas/list", "/dids/bulkfiles"] {
            let (status, said) = shell.call("POST", path, json!({"dids": dids}));
            assert_eq!(status, 404, "{path} on {}: {said:.200}", world.catalog.backend());
            assert!(said.contains("DataIdentifierNotFound"), "{said:.200}");
        }
    }
}
