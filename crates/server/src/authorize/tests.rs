use mainstay_store::registry::{Registry, builtin};
use serde_json::{Map, Value, json};

use super::own::{NODE_LEASES, Owned, keeps_to, lets_data_be_lost, owns};
use super::*;
use crate::identity::Claims;

fn user(role: Role) -> User {
    let node = (role == Role::Node).then(|| "n1".to_owned());
    User { name: role.as_str().into(), role: Some(role), node, claims: Claims::of_role(role) }
}

fn attempt<'a>(verb: Verb, group: &'a str, plural: &'a str) -> Attempt<'a> {
    Attempt { verb, group, plural, subresource: "", namespace: None, name: None, fields: None }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

#[test]
fn kinds_without_a_row_are_denied_to_all_but_administrators() {
    let nobody = User { role: None, ..user(Role::Viewer) };
    for verb in Verb::ALL {
        let unknown = attempt(verb, "fruit.dev", "pears");
        assert_eq!(judge(&user(Role::Admin), &unknown), Verdict::Allowed);
        for who in [user(Role::Editor), user(Role::Viewer), user(Role::Node), nobody.clone()] {
            assert_eq!(judge(&who, &unknown), Verdict::Denied, "{} {verb:?}", who.name);
        }
        for row in table::ROWS {
            let known =
                Attempt { subresource: row.subresource, ..attempt(verb, row.group, row.plural) };
            assert_eq!(judge(&nobody, &known), Verdict::Denied, "{row:?}");
            assert_eq!(judge(&user(Role::Admin), &known), Verdict::Allowed, "{row:?}");
        }
    }
}

#[test]
fn every_builtin_kind_has_rows_and_no_row_is_written_twice() {
    assert_eq!(uncovered(&Registry::new(builtin()).unwrap()), Vec::<String>::new());
    for (at, row) in table::ROWS.iter().enumerate() {
        let same = |other: &&table::Row| {
            (other.group, other.plural, other.subresource)
                == (row.group, row.plural, row.subresource)
        };
        let first = table::ROWS.iter().position(|other| same(&other));
        assert_eq!(first, Some(at), "{row:?}");
        for role in [Role::Editor, Role::Viewer, Role::Node] {
            let verbs: Vec<_> = row.grants(role).iter().flat_map(|grant| grant.verbs).collect();
            let once = verbs.iter().all(|verb| verbs.iter().filter(|it| it == &verb).count() == 1);
            assert!(once, "{row:?} {role}");
        }
    }
}

#[test]
fn roles_allow_what_they_say() {
    use Verb::{Create, Delete, Get, List, Patch, Update, Watch};
    const LEASE: &str = "coordination.k8s.io";
    let (editor, viewer, node) = (user(Role::Editor), user(Role::Viewer), user(Role::Node));
    let allowed = Verdict::Allowed;
    let cases = [
        (&editor, Create, "", "configmaps", Some("a"), None, allowed),
        (&editor, Create, "", "configmaps", Some(SYSTEM), None, Verdict::Denied),
        (&editor, Get, "", "configmaps", Some(SYSTEM), Some("disks"), allowed),
        (&editor, Create, "", "namespaces", None, None, Verdict::Denied),
        (&editor, Patch, "", "nodes", None, Some("n1"), Verdict::Denied),
        (&editor, Update, LEASE, "leases", Some("default"), Some("a"), Verdict::Denied),
        (&editor, Get, "", "secrets", Some("a"), Some("b"), Verdict::Denied),
        (&editor, Create, "", "secrets", Some("a"), None, Verdict::Denied),
        (&viewer, Watch, "", "configmaps", None, None, allowed),
        (&viewer, List, "", "secrets", Some("a"), None, Verdict::Denied),
        (&viewer, Update, "", "configmaps", Some("a"), Some("b"), Verdict::Denied),
        (&node, Get, "", "configmaps", Some("a"), Some("b"), Verdict::Denied),
        (&node, Get, "", "configmaps", Some("a"), Some("disks"), Verdict::Denied),
        (&node, Get, "", "configmaps", Some(SYSTEM), Some("disks"), allowed),
        (&node, Watch, "", "configmaps", Some(SYSTEM), Some("disks"), allowed),
        (&node, List, "", "configmaps", Some(SYSTEM), None, Verdict::Denied),
        (&node, Update, "", "configmaps", Some(SYSTEM), Some("disks"), Verdict::Denied),
        (&node, Create, "", "nodes", None, None, Verdict::IfOwn(Own::NewNode)),
        (&node, Get, "", "nodes", None, Some("n1"), Verdict::IfOwn(Own::Node)),
        (&node, Get, "", "nodes", None, Some("n2"), Verdict::Denied),
        (&node, Update, "", "nodes", None, Some("n1"), Verdict::Denied),
        (&node, Delete, "", "nodes", None, Some("n1"), Verdict::Denied),
        (&node, Update, LEASE, "leases", Some("default"), Some("n1"), Verdict::Denied),
        (&node, Update, LEASE, "leases", Some(NODE_LEASES), Some("n2"), Verdict::Denied),
        (&node, Create, "", "events", Some("kube-system"), None, Verdict::Denied),
        (&node, Get, "", "secrets", Some("a"), Some("b"), Verdict::Denied),
        (&node, List, "storage.mainstay.dev", "blockdevices", None, None, Verdict::Denied),
    ];
    for (user, verb, group, plural, namespace, name, expected) in cases {
        let asked = Attempt { namespace, name, ..attempt(verb, group, plural) };
        let verdict = judge(user, &asked);
        let verb = verb.as_str();
        assert_eq!(verdict, expected, "{} {verb} {plural} {namespace:?} {name:?}", user.name);
    }
}

#[test]
fn nodes_list_and_watch_only_what_they_select_as_their_own() {
    let node = user(Role::Node);
    let storage = "storage.mainstay.dev";
    let cases = [
        ("", "nodes", "metadata.name=n1", true),
        ("", "nodes", "metadata.name=n2", false),
        ("", "nodes", "metadata.name!=n1", false),
        ("", "nodes", "", false),
        (storage, "blockdevices", "spec.nodeName=n1", true),
        (storage, "blockdevices", "status.provisionPhase=Ready,spec.nodeName=n1", true),
        (storage, "blockdevices", "spec.nodeName=n1.5", false),
        (storage, "blockdevices", "metadata.name=n1", false),
        (storage, "lvmvolumegroups", "spec.local.nodeName=n1", true),
        (storage, "lvmvolumegroups", "spec.nodeName=n1", false),
        (storage, "replicatedvolumereplicas", "spec.nodeName=n1", true),
        (storage, "replicatedvolumeattachments", "spec.nodeName=n1", false),
        (storage, "replicatedvolumes", "metadata.name=n1", false),
        ("", "secrets", "metadata.name=n1", false),
        ("", "events", "involvedObject.name=n1", false),
    ];
    for (group, plural, fields, expected) in cases {
        for verb in [Verb::List, Verb::Watch] {
            let asked = Attempt { fields: Some(fields), ..attempt(verb, group, plural) };
            let allowed = judge(&node, &asked) == Verdict::Allowed;
            assert_eq!(allowed, expected, "{plural} {fields}");
        }
    }
    for row in table::ROWS {
        for verb in [Verb::List, Verb::Watch] {
            let verdict = judge(&node, &attempt(verb, row.group, row.plural));
            assert_eq!(verdict, Verdict::Denied, "{} without a selector", row.plural);
        }
    }
}

#[test]
fn an_object_belongs_to_the_node_that_it_names() {
    let node = user(Role::Node);
    let name = |name: &str| json!({"metadata": {"name": name}});
    let zone = "topology.kubernetes.io/zone";
    let labelled = |labels: Value| json!({"metadata": {"name": "n1", "labels": labels}});
    let lease = |ns: &str, name: &str| json!({"metadata": {"namespace": ns, "name": name}});
    let cases = [
        (Own::Node, name("n1"), true),
        (Own::Node, name("n2"), false),
        (Own::NewNode, name("n1"), true),
        (Own::NewNode, labelled(json!({zone: "a", "kubernetes.io/hostname": "n1"})), true),
        (Own::NewNode, labelled(json!({"kubernetes.io/hostname": "n2"})), false),
        (Own::NewNode, labelled(json!({"node-role.kubernetes.io/database": ""})), false),
        (Own::NewNode, json!({"metadata": {"name": "n1"}, "spec": {}}), true),
        (Own::NewNode, json!({"metadata": {"name": "n1"}, "spec": {"taints": [{}]}}), false),
        (Own::NewNode, json!({"metadata": {"name": "n1", "finalizers": ["a/b"]}}), false),
        (Own::NewNode, json!({"metadata": {"name": "n1", "annotations": {"a": "b"}}}), false),
        (Own::Heartbeat, lease(NODE_LEASES, "n1"), true),
        (Own::Heartbeat, lease(NODE_LEASES, "n2"), false),
        (Own::Heartbeat, lease("default", "n1"), false),
        (Own::SpecNodeName, json!({"spec": {"nodeName": "n1"}}), true),
        (Own::SpecNodeName, json!({"spec": {"nodeName": "n2"}}), false),
        (Own::SpecNodeName, json!({"spec": {"nodeName": ""}}), false),
        (Own::SpecNodeName, name("n1"), false),
        (Own::LocalNodeName, json!({"spec": {"local": {"nodeName": "n1"}}}), true),
        (Own::LocalNodeName, json!({"spec": {"nodeName": "n1"}}), false),
    ];
    for (rule, given, expected) in cases {
        let owned = owns(&node, rule, &object(given.clone())) == Owned::Yes;
        assert_eq!(owned, expected, "{rule:?} {given}");
    }
    for role in [Role::Editor, Role::Viewer] {
        let given = object(json!({"metadata": {"name": "n1"}, "spec": {"nodeName": "n1"}}));
        for rule in Own::ALL {
            assert_eq!(owns(&user(role), rule, &given), Owned::No, "{role} {rule:?}");
        }
    }
}

#[test]
fn an_event_is_a_nodes_own_if_it_reports_it_itself() {
    let event = |change: fn(&mut Value)| {
        let mut event = json!({
            "metadata": {"namespace": "default"}, "reportingInstance": "n1",
            "source": {"host": "n1", "component": "mainstay-agent"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "n2"},
        });
        change(&mut event);
        owns(&user(Role::Node), Own::Event, &object(event))
    };
    // Whether n2 is its own is decided on the object it names.
    assert!(matches!(event(|_| {}), Owned::IfSubject(subject) if subject.name == "n2"));
    let forged: [fn(&mut Value); 9] = [
        |event| event["reportingInstance"] = json!("n2"),
        |event| event["source"]["host"] = json!("n2"),
        |event| event["metadata"]["namespace"] = json!("kube-system"),
        |event| event["involvedObject"]["namespace"] = json!("default"),
        |event| event["related"] = json!({"kind": "Node", "name": "n2"}),
        |event| {
            event["source"] = json!({"component": "mainstay-agent"});
            event["reportingInstance"] = json!("");
        },
        |event| event["source"]["component"] = json!("mainstay-server"),
        |event| event["reportingComponent"] = json!("mainstay-server"),
        |event| event["source"] = json!({"host": "n1"}),
    ];
    for (at, change) in forged.into_iter().enumerate() {
        assert_eq!(event(change), Owned::No, "case {at}");
    }
}

#[test]
fn a_write_of_a_status_changes_nothing_else() {
    let old = json!({"metadata": {"name": "n1", "labels": {"a": "b"}}, "spec": {"x": 1}});
    let with = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        keeps_to("status", Some(&object(old.clone())), Some(&object(new)))
    };
    assert!(with(|new| new["status"] = json!({"phase": "Ready"})));
    assert!(with(|new| new["metadata"]["managedFields"] = json!([])));
    assert!(!with(|new| new["metadata"]["labels"]["a"] = json!("c")));
    assert!(!with(|new| new["metadata"]["annotations"] = json!({"a": "b"})));
    assert!(!with(|new| new["spec"]["x"] = json!(2)));
    assert!(!with(|new| new["data"] = json!({})));
}

#[test]
fn a_node_never_says_that_data_may_be_lost() {
    let none = || json!({"spec": {"nodeName": "n1"}});
    let said = || json!({"spec": {"acknowledgeDataLoss": ["ext4"]}});
    let force = || json!({"spec": {"provision": true, "fileSystem": {"forceFormatted": true}}});
    let both = || json!({"spec": {"acknowledgeDataLoss": ["ext4"], "fileSystem": {"forceFormatted": true}}});
    let more = || json!({"spec": {"acknowledgeDataLoss": ["ext4", "gpt"]}});
    let runs = |mut of: Value, names: Value| {
        of["status"] = json!({"operation": {"kind": "Format", "acknowledged": names}});
        of
    };
    let cases = [
        // The work of the agent: it makes objects, takes blank disks, reports, and begins what was asked.
        (None, none(), true),
        (None, force(), true),
        (Some(none()), force(), true),
        (Some(said()), said(), true),
        (Some(said()), none(), true),
        (Some(both()), runs(both(), json!(["ext4"])), true),
        (Some(runs(none(), json!(["ext4"]))), runs(none(), json!(["ext4"])), true),
        (Some(none()), runs(none(), json!([])), true),
        (
            Some(
                json!({"spec": {"acknowledgeDataLoss": ["ext4"], "fileSystem": {"forceFormatted": false}}}),
            ),
            said(),
            true,
        ),
        // Requests that only a thief sends.
        (None, said(), false),
        (None, both(), false),
        (None, runs(none(), json!(["ext4"])), false),
        (Some(none()), said(), false),
        (Some(force()), both(), false),
        (Some(said()), more(), false),
        (
            Some(said()),
            json!({"spec": {"acknowledgeDataLoss": ["ext4"], "devPath": "/dev/other"}}),
            false,
        ),
        (Some(said()), both(), false),
        (Some(said()), force(), false),
        (Some(none()), runs(none(), json!(["ext4"])), false),
        (Some(said()), runs(said(), json!(["gpt"])), false),
    ];
    for (at, (old, new, allowed)) in cases.into_iter().enumerate() {
        let refusal = lets_data_be_lost(old.map(object).as_ref(), &object(new));
        assert_eq!(refusal.is_none(), allowed, "case {at}: {refusal:?}");
    }
}

#[test]
fn paths_are_for_the_roles_of_their_row() {
    let cases = [
        ("GET", "/metrics", "editor viewer"),
        ("POST", "/metrics", ""),
        ("GET", "/openapi/v2", "editor viewer node none"),
        ("GET", "/apis", "editor viewer node none"),
        ("POST", "/mainstay/v1/join", "node"),
        ("GET", "/mainstay/v1/tokens", ""),
        ("DELETE", "/mainstay/v1/tokens/1", ""),
        ("GET", "/mainstay/v1/backup", ""),
        ("GET", "/mainstay/v1/namespaces/a/instances/b/log", "editor viewer"),
        ("GET", "/mainstay/v1/namespaces/a/instances/b/log/", ""),
        ("GET", "/mainstay/v1/sessions/pools", "editor viewer"),
        ("POST", "/mainstay.agents.v1.Agents/Connect", "node"),
        ("GET", "/v1/lvg/reservations", "editor viewer"),
        ("POST", "/v1/lvg/filter-and-score", "editor"),
        ("GET", "/rucio/rules", "editor viewer"),
        ("POST", "/rucio/dids/search", "editor viewer"),
        ("PUT", "/rucio/rules/1", "editor"),
        ("DELETE", "/rucio/rules/1", "editor"),
        ("GET", "/scheduler/graph", ""),
        ("GET", "/anything", ""),
    ];
    for (method, path, expected) in cases {
        let nobody = User { role: None, name: "none".into(), ..user(Role::Viewer) };
        let all = [user(Role::Editor), user(Role::Viewer), user(Role::Node), nobody];
        let may = all.iter().filter(|who| paths::judge(who, method, path) == Verdict::Allowed);
        let names: Vec<&str> = may.map(|who| &*who.name).collect();
        assert_eq!(names.join(" "), expected, "{method} {path}");
        assert_eq!(paths::judge(&user(Role::Admin), method, path), Verdict::Allowed);
    }
}

/// `MAINSTAY_GOLDEN=rewrite` writes them anew.
#[test]
fn the_docs_show_the_tables_as_they_are() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (kinds, others) = markdown();
    let mut right = text.clone();
    for (name, table) in [("kinds", kinds), ("paths", others)] {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let from = right.find(&begin).expect("a beginning") + begin.len();
        let to = from + right[from..].find(&end).expect("an end");
        right.replace_range(from..to, &table);
    }
    if std::env::var("MAINSTAY_GOLDEN").is_ok_and(|value| value == "rewrite") {
        std::fs::write(file, &right).unwrap();
        return;
    }
    for (shown, right) in text.lines().zip(right.lines()) {
        assert_eq!(shown, right, "docs/access.md; MAINSTAY_GOLDEN=rewrite writes it anew");
    }
    assert_eq!(text.lines().count(), right.lines().count(), "docs/access.md");
}
