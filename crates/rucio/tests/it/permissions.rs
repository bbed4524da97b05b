//! Tests of permissions in the REST API on both databases: new rules, approvals, transfers.

use mainstay_catalog::Daemon;
use mainstay_rules::account;
use mainstay_rules::api::NewRule;
use serde_json::{Value, json};

use crate::surface::{Shell, as_account};
use crate::world::World;

/// A world in which `alice` has a scope, a limit on R1 and none elsewhere, and a rule on R1.
pub(crate) fn with_alice(world: &World) -> String {
    world.f4();
    world.dataset("ds", 2, 100, "R1");
    world.write(|tx| account::add_scope(tx, "user.alice", "alice", 0));
    world.limit("alice", "R1", 1_000);
    let of_alice = World::new_rule("ds", 1, "R1");
    world.add(&NewRule { account: "alice".to_owned(), ..of_alice })
}

#[test]
fn no_path_bypasses_the_permission_checks_of_a_new_rule() {
    for world in World::each() {
        let uuid = with_alice(&world);
        let rule = |more: Value| {
            let mut rule = json!({"copies": 1, "rse_expression": "R1"});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rule
        };
        let did = |rule: Value| json!({"type": "DATASET", "rules": [rule]});
        let listed = |rule: Value| json!([{"scope": "user.alice", "name": "b", "type": "DATASET", "rules": [rule]}]);
        let moved = |more: Value| json!({"rse_expression": "R2", "override": more});
        let (locked, other) = (json!({"locked": true}), json!({"account": "jdoe"}));
        let new = json!({"dids": [{"scope": "s", "name": "ds"}], "locked": true});
        let change = json!({"options": {"locked": true}});
        let at = |rest: &str| format!("/rules/{uuid}{rest}");
        let one = || "/dids/user.alice/a".to_owned();
        for (method, path, body) in [
            ("POST", "/rules/".to_owned(), rule(new)),
            ("POST", one(), did(rule(locked.clone()))),
            ("POST", one(), did(rule(other.clone()))),
            ("POST", "/dids".to_owned(), listed(rule(locked.clone()))),
            ("POST", "/dids".to_owned(), listed(rule(other.clone()))),
            ("POST", at("/move"), moved(locked)),
            ("POST", at("/move"), moved(other)),
            ("POST", at("/move"), moved(json!({"ignore_account_limit": true}))),
            ("PUT", at(""), change),
        ] {
            let (status, said) = as_account(&world, "alice", method, &path, body.clone());
            assert_eq!(status, 403, "{method} {path} {body}: {said}");
            assert!(said.contains("AccessDenied"), "{said}");
        }
        assert_eq!(world.sql("SELECT COUNT(*) FROM rules"), 1, "on {}", world.catalog.backend());
        let (status, said) = as_account(&world, "alice", "POST", &one(), did(rule(json!({}))));
        assert_eq!(status, 201, "{said}");
        world.check();
    }
}

#[test]
fn privileges_of_a_rule_do_not_move_with_it() {
    for world in World::each() {
        let uuid = with_alice(&world);
        world.change("UPDATE rules SET locked = 1, ignore_account_limit = 1");
        let path = format!("/rules/{uuid}/move");
        let to_two = json!({"rse_expression": "R2"});
        let (status, said) = as_account(&world, "alice", "POST", &path, to_two.clone());
        assert_eq!(status, 409, "{said}");
        assert!(said.contains("InsufficientAccountLimit"), "{said}");
        world.limit("alice", "R2", 1_000);
        let (status, said) = as_account(&world, "alice", "POST", &path, to_two);
        assert_eq!(status, 201, "{said}");
        let new = world.get(&serde_json::from_str::<String>(&said).unwrap());
        assert!(!new.locked && !new.ignore_account_limit);
    }
}

#[test]
fn owners_cannot_bypass_the_approval_of_a_rule() {
    for world in World::each() {
        with_alice(&world);
        let of_alice = NewRule {
            account: "alice".to_owned(),
            ask_approval: true,
            ..World::new_rule("ds", 1, "R3")
        };
        let uuid = world.add(&of_alice);
        let state = |state: &str| json!({"options": {"state": state}});
        let at = |rest: &str| format!("/rules/{uuid}{rest}");
        let shell = Shell::over(&world);
        let own =
            |method: &str, path: &str, body: Value| as_account(&world, "alice", method, path, body);
        for (method, path, body, class) in [
            ("PUT", at(""), state("STUCK"), "UnsupportedOperation"),
            ("PUT", at(""), state("SUSPENDED"), "UnsupportedOperation"),
            ("POST", at("/move"), json!({"rse_expression": "R1"}), "RuleReplaceFailed"),
            ("POST", at("/reduce"), json!({"copies": 1}), "RuleReplaceFailed"),
        ] {
            for (status, said) in
                [own(method, &path, body.clone()), shell.call(method, &path, body)]
            {
                assert_eq!(status, 409, "{method} {path}: {said}");
                assert!(said.contains(class), "{said}");
            }
        }
        let (status, said) = own("POST", &format!("/mainstay/rules/{uuid}/repair"), Value::Null);
        assert_eq!(status, 200, "{said}");
        assert_eq!(world.state(&uuid), "WAITING_APPROVAL 0/0/0");
        assert_eq!(own("PUT", &at(""), json!({"options": {"comment": "please"}})).0, 200);
        assert_eq!(own("PUT", &at(""), json!({"options": {"approve": true}})).0, 403);
        assert_eq!(shell.call("PUT", &at(""), json!({"options": {"approve": true}})).0, 200);
        world.judge(Daemon::Injector);
        assert_eq!(world.state(&uuid), "REPLICATING 0/2/0");
        world.check();
    }
}

#[test]
fn transfers_of_other_accounts_cannot_be_cancelled() {
    for world in World::each() {
        with_alice(&world);
        world.limit("alice", "R2", 1_000);
        let add = |account: &str, name: &str, expression: &str| {
            let new = World::new_rule(name, 1, expression);
            world.add(&NewRule { account: account.to_owned(), ..new })
        };
        let (own, again) = (add("alice", "ds", "R2"), add("alice", "ds-0", "R2"));
        let cancel = json!({"options": {"state": "STUCK", "cancel_requests": true}});
        let put = || as_account(&world, "alice", "PUT", &format!("/rules/{own}"), cancel.clone());
        let other = add("jdoe", "ds-1", "R2");
        let (status, said) = put();
        assert_eq!(status, 403, "on {}: {said}", world.catalog.backend());
        assert!(said.contains("AccessDenied"), "{said}");
        assert_eq!(world.state(&own), "REPLICATING 0/2/0");
        assert_eq!(world.state(&other), "REPLICATING 0/1/0");
        world.delete(&other);
        let (status, said) = put();
        assert_eq!(status, 200, "{said}");
        assert_eq!(
            (world.state(&own), world.state(&again)),
            ("STUCK 0/0/2".into(), "STUCK 0/0/1".into())
        );
        world.check();
    }
}
