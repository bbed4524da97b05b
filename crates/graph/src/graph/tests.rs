use super::*;
use crate::descriptor::Dependency;

fn node(graph: &mut Graph, key: &str, state: ValueState) -> KeyId {
    let id = graph.intern(&Key::from(key));
    let node = graph.write(id);
    node.state = state;
    node.value = Some(Value::new(key.to_owned()));
    node.last.requested = Some(Value::new(key.to_owned()));
    graph.set_available(id, state == ValueState::Configured);
    id
}

fn configured(graph: &mut Graph, key: &str) -> KeyId {
    node(graph, key, ValueState::Configured)
}

fn keys(graph: &Graph, ids: &[KeyId]) -> Vec<String> {
    ids.iter().map(|id| graph.key(*id).to_string()).collect()
}

fn listed<'a>(nodes: impl Iterator<Item = (&'a Key, KeyId, &'a Node)>) -> Vec<String> {
    nodes.map(|(key, _, _)| key.to_string()).collect()
}

#[test]
fn a_new_graph_is_empty() {
    let mut graph = Graph::default();
    assert_eq!(graph.len(), 0);
    assert!(graph.find("a").is_none());
    assert_eq!(graph.nodes().count(), 0);
    assert_eq!(graph.with_prefix("").count(), 0);
    assert!(graph.take_touched().is_empty());
}

#[test]
fn a_trial_is_seen_inside_and_leaves_no_trace() {
    let mut graph = Graph::default();
    let a = configured(&mut graph, "a");
    graph.take_touched();
    graph.begin_trial();
    let b = configured(&mut graph, "b");
    graph.set_edges(a, vec![Dependency::on("b"), Dependency::on("c")]);
    graph.write(a).value = Some(Value::new(1_u8));
    graph.remove(b);
    configured(&mut graph, "d");
    assert_eq!(listed(graph.nodes()), ["a", "d"]);
    graph.end_trial();
    assert_eq!(listed(graph.nodes()), ["a"]);
    assert_eq!(graph.node(a).unwrap().value, Some(Value::new("a".to_owned())));
    assert!(graph.node(a).unwrap().edges.is_empty());
    // Its slots are kept until the next sweep.
    graph.sweep();
    assert!(graph.id("b").is_none() && graph.id("c").is_none());
    assert!(graph.take_touched().is_empty());
}

#[test]
fn changes_outside_a_trial_stay_and_are_noted_once() {
    let mut graph = Graph::default();
    let a = configured(&mut graph, "a");
    graph.write(a).uncertain = true;
    assert_eq!(graph.take_touched(), [a]);
    graph.write(a).uncertain = false;
    assert_eq!(graph.take_touched(), [a]);
    assert!(graph.take_touched().is_empty());
}

#[test]
fn changes_of_one_node_made_one_after_the_other_all_stay() {
    let mut graph = Graph::default();
    let a = configured(&mut graph, "a");
    graph.take_touched();
    graph.write(a).uncertain = true;
    graph.take_touched();
    graph.begin_trial();
    graph.write(a).uncertain = false;
    graph.end_trial();
    let failure = Failure {
        operation: Operation::Update,
        message: "no".to_owned(),
        retriable: true,
        fields: Vec::new(),
    };
    graph.write(a).error = Some(Arc::new(failure));
    graph.take_touched();
    graph.write(a).last.transaction = 7;
    let node = graph.node(a).unwrap();
    assert!(node.uncertain && node.error.is_some() && node.last.transaction == 7);
    assert_eq!(node.state, ValueState::Configured);
}

#[test]
fn nodes_are_selected_by_prefix_and_by_marks() {
    let mut graph = Graph::default();
    let [a1, a2, _, b1] = ["A/1", "A/2", "A/3", "B/1"].map(|key| configured(&mut graph, key));
    let pending = node(&mut graph, "B/2", ValueState::Pending);
    graph.write(a1).base = Some(b1);
    graph.write(a2).uncertain = true;
    let select = |graph: &Graph, prefix: &str, marks: &dyn Fn(&Node) -> bool| {
        listed(graph.with_prefix(prefix).filter(|(_, _, node)| marks(node)))
    };
    assert_eq!(select(&graph, "A/", &|node| node.base.is_some()), ["A/1"]);
    assert_eq!(select(&graph, "A/", &|node| node.base.is_none()), ["A/2", "A/3"]);
    assert_eq!(select(&graph, "", &|node| !node.available), ["B/2"]);
    assert_eq!(
        select(&graph, "", &|node| node.available && !node.uncertain && node.base.is_none()),
        ["A/3", "B/1"]
    );
    graph.write(a1).base = None;
    graph.write(a2).uncertain = false;
    graph.write(pending).state = ValueState::Configured;
    graph.set_available(pending, true);
    assert!(select(&graph, "", &|node| !node.available || node.uncertain).is_empty());
    assert_eq!(select(&graph, "A/", &|node| node.base.is_none()), ["A/1", "A/2", "A/3"]);
    assert_eq!(select(&graph, "B/", &|node| node.available), ["B/1", "B/2"]);
}

#[test]
fn edges_changed_in_a_trial_come_back() {
    let mut graph = Graph::default();
    let [a, b, c] = ["a", "b", "c"].map(|key| configured(&mut graph, key));
    graph
        .set_edges(a, vec![Dependency::on("b"), Dependency::any_of("any", AnyOf::prefixes(["c"]))]);
    graph.begin_trial();
    graph.set_edges(a, vec![Dependency::on("c")]);
    graph.set_edges(b, vec![Dependency::on("a"), Dependency::on("d")]);
    assert_eq!(keys(&graph, &graph.sources(c)), ["a"]);
    assert!(graph.sources(b).is_empty());
    graph.remove(c);
    assert_eq!(graph.unmet(a), ["c"]);
    graph.end_trial();
    assert_eq!(keys(&graph, &graph.sources(b)), ["a"]);
    assert_eq!(keys(&graph, &graph.sources(c)), ["a"]);
    assert!(graph.sources(a).is_empty() && graph.unmet(a).is_empty());
    graph.sweep();
    assert!(graph.id("d").is_none());
}

#[test]
fn sources_mirror_targets_however_often_they_are_redefined() {
    let mut graph = Graph::default();
    let [a1, a2, a3, b1] = ["A1", "A2", "A3", "B1"].map(|key| configured(&mut graph, key));
    graph.set_edges(a1, vec![Dependency::on("B1"), Dependency::on("non-existing-key")]);
    graph.set_edges(a2, vec![Dependency::any_of("any-b", AnyOf::prefixes(["B"]))]);
    graph.set_edges(a3, vec![Dependency::on("B1"), Dependency::on("B1").labelled("again")]);
    assert_eq!(keys(&graph, &graph.sources(b1)), ["A1", "A2", "A3"]);
    assert_eq!(graph.unmet(a1), ["non-existing-key"]);
    graph.set_edges(a3, vec![Dependency::on("B1")]);
    graph.set_edges(a1, vec![Dependency::on("A2")]);
    assert_eq!(keys(&graph, &graph.sources(b1)), ["A2", "A3"]);
    assert_eq!(keys(&graph, &graph.sources(a2)), ["A1"]);
    assert!(graph.unmet(a1).is_empty());
    graph.remove(b1);
    assert_eq!(graph.unmet(a2), ["any-b"]);
    assert_eq!(graph.unmet(a3), ["B1"]);
    let b2 = configured(&mut graph, "B2");
    assert_eq!(keys(&graph, &graph.sources(b2)), ["A2"]);
}

#[test]
fn look_ups_by_key_and_prefix_are_exact() {
    let mut graph = Graph::default();
    for key in ["prefix1/a", "prefix1/b", "prefix10/a", "prefix2/a"] {
        configured(&mut graph, key);
    }
    assert_eq!(listed(graph.with_prefix("prefix1/")), ["prefix1/a", "prefix1/b"]);
    assert_eq!(listed(graph.with_prefix("prefix1")), ["prefix1/a", "prefix1/b", "prefix10/a"]);
    assert_eq!(graph.with_prefix("").count(), 4);
    assert_eq!(graph.with_prefix("prefix3").count(), 0);
    let gone = graph.id("prefix1/a").unwrap();
    graph.remove(gone);
    assert_eq!(listed(graph.with_prefix("prefix1/")), ["prefix1/b"]);
}

#[test]
fn room_of_forgotten_keys_is_used_again() {
    let mut graph = Graph::default();
    for round in 0..50 {
        let ids: Vec<KeyId> =
            (0..100).map(|number| configured(&mut graph, &format!("{round}/{number}"))).collect();
        for id in &ids {
            graph.set_edges(*id, vec![Dependency::on(format!("{round}/elsewhere"))]);
        }
        for id in ids {
            graph.remove(id);
        }
        graph.sweep();
    }
    assert!(graph.slots.len() <= 101, "{} slots", graph.slots.len());
    assert!(graph.ids.is_empty());
}

#[test]
fn an_any_of_edge_follows_its_witnesses_and_a_trial_gives_them_back() {
    let mut graph = Graph::default();
    let x = node(&mut graph, "x", ValueState::Pending);
    let odd = AnyOf::prefixes(["t"]).matching(|key| key.ends_with('1') || key.ends_with('3'));
    graph.set_edges(x, vec![Dependency::any_of("odd", odd)]);
    configured(&mut graph, "t2");
    assert!(!graph.is_ready(x));
    let t1 = configured(&mut graph, "t1");
    assert!(graph.is_ready(x));
    let t3 = configured(&mut graph, "t3");
    graph.begin_trial();
    graph.set_available(t1, false);
    assert!(graph.is_ready(x));
    assert_eq!(graph.sources(t3), [x]);
    graph.set_available(t3, false);
    assert!(!graph.is_ready(x));
    graph.end_trial();
    assert!(graph.is_ready(x));
    assert_eq!(graph.sources(t1), [x]);
    assert!(graph.sources(t3).is_empty());
    assert!(graph.waiting.is_empty() && graph.lengths.is_empty());
}

#[test]
fn an_edge_may_ask_something_of_the_value() {
    let mut graph = Graph::default();
    let x = node(&mut graph, "x", ValueState::Pending);
    let up = |value: &String| value == "up";
    graph.set_edges(
        x,
        vec![
            Dependency::on("t").when(up),
            Dependency::any_of("any", AnyOf::prefixes(["t"])).when(up),
        ],
    );
    let t = configured(&mut graph, "t");
    assert!(!graph.is_ready(x));
    graph.write(t).value = Some(Value::new("up".to_owned()));
    graph.value_changed(t);
    assert!(graph.is_ready(x));
    graph.write(t).value = Some(Value::new("down".to_owned()));
    graph.value_changed(t);
    assert_eq!(graph.unmet(x), ["t", "any"]);
}

#[test]
fn a_circle_is_ready_when_nothing_outside_it_is_missing() {
    let mut graph = Graph::default();
    let [a, b, c] = ["a", "b", "c"].map(|key| node(&mut graph, key, ValueState::Pending));
    graph.set_edges(a, vec![Dependency::on("b")]);
    graph.set_edges(b, vec![Dependency::on("c")]);
    graph.set_edges(c, vec![Dependency::on("a"), Dependency::on("outside")]);
    assert!(!graph.is_ready(a) && !graph.is_ready(b) && !graph.is_ready(c));
    assert_eq!(circle(&graph, a), ["a", "b", "c"]);
    configured(&mut graph, "outside");
    assert!(graph.is_ready(a) && graph.is_ready(b) && graph.is_ready(c));
    let d = node(&mut graph, "d", ValueState::Pending);
    graph.set_edges(d, vec![Dependency::on("a")]);
    assert!(!graph.is_ready(d), "leading to a circle is not being in it");
    assert!(circle(&graph, d).is_empty());
}

fn circle(graph: &Graph, id: KeyId) -> Vec<String> {
    Circles::default().of(graph, id).iter().map(Key::to_string).collect()
}

#[test]
fn circles_are_named_however_they_are_reached() {
    let mut graph = Graph::default();
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"]
        .map(|key| node(&mut graph, key, ValueState::Pending));
    for (id, needs) in ids.into_iter().zip([
        &["b"][..],
        &["c", "d"],
        &["a"],
        &["e", "outside"],
        &["d"],
        &["f", "outside"],
        &["outside"],
        &[],
    ]) {
        graph.set_edges(id, needs.iter().copied().map(Dependency::on).collect());
    }
    graph.set_edges(ids[7], vec![Dependency::any_of("any", AnyOf::prefixes(["f", "h"]))]);
    let expected = ["a b c", "a b c", "a b c", "d e", "d e", "f", "", "h"];
    for backwards in [false, true] {
        let mut circles = Circles::default();
        let mut order: Vec<_> = ids.into_iter().zip(expected).collect();
        if backwards {
            order.reverse();
        }
        for (id, expected) in order {
            let found: Vec<_> = circles.of(&graph, id).iter().map(Key::to_string).collect();
            assert_eq!(found.join(" "), expected, "{}", graph.key(id));
        }
    }
    configured(&mut graph, "outside");
    assert_eq!(circle(&graph, ids[0]), ["a", "b", "c"], "until it is woken");
    assert!(circle(&graph, graph.id("outside").unwrap()).is_empty());
}

#[test]
fn pending_values_are_kept_when_unrelated_values_change() {
    let mut graph = Graph::default();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|key| node(&mut graph, key, ValueState::Pending));
    graph.set_edges(a, vec![Dependency::on("missing")]);
    graph.set_edges(b, vec![Dependency::on("a")]);
    graph.set_edges(c, vec![Dependency::on("b")]);
    graph.set_edges(d, vec![Dependency::on("c")]);
    assert!(!graph.is_ready(c));
    let version = graph.version;
    // Changes of its dependents, and of unrelated values, do not matter.
    graph.set_edges(d, vec![Dependency::on("c"), Dependency::on("b")]);
    let elsewhere = configured(&mut graph, "elsewhere");
    graph.remove(elsewhere);
    assert_eq!(graph.version, version);
    // A change of its dependency matters: the last missing key is now part of the cycle.
    let missing = node(&mut graph, "missing", ValueState::Nonexistent);
    graph.set_edges(missing, vec![Dependency::on("c")]);
    assert!(graph.is_ready(missing));
    graph.write(missing).state = ValueState::Pending;
    assert!(graph.is_ready(c) && graph.is_ready(a));
    graph.set_edges(b, vec![Dependency::on("a"), Dependency::on("other")]);
    assert!(!graph.is_ready(c) && !graph.is_ready(missing));
}

#[test]
fn a_long_chain_of_waiting_values_is_looked_at_once() {
    let mut graph = Graph::default();
    let size = 100_000;
    let ids: Vec<KeyId> =
        (0..size).map(|n| node(&mut graph, &format!("{n:06}"), ValueState::Pending)).collect();
    for (number, id) in ids.iter().enumerate().skip(1) {
        graph.set_edges(*id, vec![Dependency::on(format!("{:06}", number - 1))]);
    }
    graph.set_edges(ids[0], vec![Dependency::on("head")]);
    assert!(ids.iter().rev().all(|id| !graph.is_ready(*id)));
}
