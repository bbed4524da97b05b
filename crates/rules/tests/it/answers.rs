//! What the surface answers, on either catalog: who may do what, what is refused and by which name,
//! and what stays as it is when it is said again.

use mainstay_rules::api::{DidType, Grouping};
use mainstay_rules::catalog::Daemon;
use serde_json::{Value, json};

use crate::surface::Shell;
use crate::world::World;

/// An answer that is one document.
fn document(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).unwrap()
}

#[test]
fn what_is_detached_from_a_closed_collection_leaves_its_size_too() {
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
