//! Rows of the specification that a scenario file cannot express.

use std::path::Path;

use mainstay_graph::scenario::{Played, parse, play};
use mainstay_graph::{Engine, Key, Operation, Origin, ValueState, View, WatchEvent};

async fn played(name: &str, steps: usize) -> Played {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(name);
    let mut scenario = parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    scenario.steps.truncate(steps);
    play(&scenario).await.unwrap()
}

async fn dumped(engine: &Engine, descriptor: &str, view: View) -> String {
    let mut dump = engine.dump(descriptor, view).await.unwrap();
    for one in &mut dump {
        one.origin = Origin::North;
    }
    serde_json::to_string(&dump).unwrap()
}

#[tokio::test]
async fn g2_a_change_is_visible_once_it_is_done() {
    let played = played("s02_s06_update.yaml", 0).await;
    let engine = &played.engine;
    let one = mainstay_graph::Transaction::new()
        .set("/prefixA/base-value1", serde_json::json!({"items": ["item1"]}));
    assert_eq!(engine.plan(one.clone()).await.unwrap().len(), 2);
    assert!(engine.states().is_empty() && engine.metadata().is_empty());
    assert!(engine.timeline("/prefixA/base-value1", None).unwrap().is_empty());
    engine.commit(one).await.unwrap();
    let timeline = engine.timeline("/prefixA/base-value1", None).unwrap();
    assert_eq!(timeline.len(), 1);
    assert_eq!((timeline[0].until, timeline[0].state), (None, ValueState::Configured));
    let metadata: Vec<_> = engine.metadata().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(metadata, ["/prefixA/base-value1"]);
    played.stop().await;
}

#[tokio::test]
async fn s3_all_views_agree_when_everything_is_applied() {
    let played = played("s02_s06_update.yaml", 1).await;
    for (name, prefix) in [("d1", "/prefixA/"), ("d2", "/prefixB/"), ("d3", "/prefixC/")] {
        assert_eq!(played.engine.descriptor_of_prefix(prefix).unwrap(), name);
        let nb = dumped(&played.engine, name, View::NB).await;
        assert_eq!(nb, dumped(&played.engine, name, View::SB).await);
        assert_eq!(nb, dumped(&played.engine, name, View::Cached).await);
    }
    let b2 = dumped(&played.engine, "d2", View::SB).await;
    assert!(b2.contains(r#"["item1","item2"]"#), "{b2}");
    played.stop().await;
}

#[tokio::test]
async fn s4_a_status_holds_the_statuses_of_its_derived_values() {
    let played = played("s02_s06_update.yaml", 1).await;
    let status = played.engine.status("/prefixB/base-value2");
    assert_eq!((status.state, status.last_operation), (ValueState::Configured, Operation::Create));
    let states: Vec<_> = status.derived.iter().map(|one| one.state).collect();
    assert_eq!(states, [ValueState::Configured, ValueState::Pending]);
    assert_eq!(status.derived[1].details, ["/prefixA/base-value1/item1"]);
    played.stop().await;
}

#[tokio::test]
async fn s5_history_is_found_by_the_time_a_transaction_began() {
    let played = played("s02_s06_update.yaml", 2).await;
    let second = played.engine.transaction(1).unwrap();
    let found = played.engine.history(Some(second.start), Some(second.stop));
    assert_eq!(found.iter().map(|one| one.seq).collect::<Vec<_>>(), [1]);
    let keys: Vec<_> = found[0].values.iter().map(|one| one.key.as_str()).collect();
    assert_eq!(keys, ["/prefixA/base-value1", "/prefixC/base-value3"]);
    assert!(found[0].description.is_empty());
    played.stop().await;
}

#[tokio::test]
async fn s7_flag_stats_count_revisions() {
    let count = |engine: &Engine, flag: &str, prefix: &str| {
        let prefixes = if prefix.is_empty() { vec![] } else { vec![prefix.to_owned()] };
        engine.flag_stats(flag, &prefixes).unwrap()
    };
    let first = played("s02_s06_update.yaml", 1).await;
    assert_eq!(count(&first.engine, "last-update", "").total, 8);
    assert_eq!(count(&first.engine, "derived", "").total, 5);
    assert_eq!(count(&first.engine, "unavailable", "").total, 1);
    let states = count(&first.engine, "value-state", "").per_value;
    assert_eq!(
        states.into_iter().collect::<Vec<_>>(),
        [("CONFIGURED".into(), 7), ("PENDING".into(), 1)]
    );
    first.stop().await;
    let second = played("s02_s06_update.yaml", 2).await;
    assert_eq!(count(&second.engine, "last-update", "").total, 13);
    assert_eq!(count(&second.engine, "derived", "").total, 8);
    assert_eq!(count(&second.engine, "value-state", "").per_value["CONFIGURED"], 12);
    let per: Vec<_> = count(&second.engine, "descriptor", "").per_value.into_values().collect();
    assert_eq!(per, [4, 4, 5]);
    assert_eq!(count(&second.engine, "last-update", "/prefixC/").total, 5);
    assert!(second.engine.flag_stats("colour", &[]).is_err());
    second.stop().await;
}

#[tokio::test]
async fn s26_a_repaired_error_stays_in_the_history() {
    let played = played("s24_s26_retry.yaml", 3).await;
    assert_eq!(played.engine.flag_stats("error", &[]).unwrap().total, 1);
    played.stop().await;
}

#[tokio::test]
async fn s28_s30_views_of_waiting_values_and_of_values_of_the_south() {
    let played = played("s27_s31_notify.yaml", 1).await;
    let engine = &played.engine;
    assert_eq!(engine.dump("d2", View::NB).await.unwrap().len(), 1);
    assert!(engine.dump("d2", View::SB).await.unwrap().is_empty());
    assert!(engine.dump("d2", View::Cached).await.unwrap().is_empty());
    played.stop().await;
    let played = self::played("s27_s31_notify.yaml", 2).await;
    let engine = &played.engine;
    let cached = engine.dump("d1", View::Cached).await.unwrap();
    assert_eq!(cached.len(), 1);
    assert_eq!(cached[0].origin, Origin::South);
    assert_eq!(cached[0].metadata.as_ref().map(|metadata| metadata.json()), Some(10.into()));
    assert!(engine.dump("d1", View::NB).await.unwrap().is_empty());
    let error = engine.dump("d1", View::SB).await.unwrap_err();
    assert!(error.to_string().ends_with("does not support Retrieve operation"), "{error}");
    played.stop().await;
}

#[tokio::test]
async fn s10_a_watcher_gets_the_outcome_of_a_revert_once() {
    let played = played("s08_s09_revert.yaml", 1).await;
    let mut watch = played.engine.watch(16, |key| key.starts_with("/prefixA/"));
    let transaction = mainstay_graph::Transaction::new()
        .set("/prefixA/base-value1", serde_json::json!({"items": ["item1"]}))
        .set("/prefixC/base-value3", serde_json::json!({"items": ["item1"]}));
    let record = played.engine.apply(transaction).await.unwrap();
    assert!(record.reverted);
    assert_eq!(record.errors.len(), 1);
    assert_eq!(
        (record.errors[0].op, record.errors[0].error.as_str()),
        (Operation::Update, "failed to update")
    );
    let Some(WatchEvent::Status(status)) = watch.try_next() else { panic!("nothing was heard") };
    assert_eq!((status.state, status.last_operation), (ValueState::Configured, Operation::Update));
    assert_eq!(
        status.derived.iter().map(|one| one.key.clone()).collect::<Vec<_>>(),
        [Key::from("/prefixA/base-value1/item2")]
    );
    assert_eq!(watch.try_next(), None);
    played.stop().await;
}

#[tokio::test]
async fn s22_a_resync_lists_values_of_the_south_and_does_not_change_them() {
    let played = played("s22_resync_obtained.yaml", 1).await;
    let record = played.engine.transaction(0).unwrap();
    let values: Vec<_> = record.values.iter().map(|one| (one.key.as_str(), one.origin)).collect();
    assert_eq!(
        values,
        [("/prefixA/base-value1", Origin::South), ("/prefixA/base-value2", Origin::North)]
    );
    assert_eq!(played.engine.dump("d1", View::NB).await.unwrap().len(), 1);
    played.stop().await;
}

#[tokio::test]
async fn the_log_shows_arguments_plan_and_execution() {
    let played = played("s02_s06_update.yaml", 2).await;
    let text = mainstay_graph::log::text(&played.engine.transaction(1).unwrap());
    for line in [
        "| Transaction #1                                                                                        NB transaction |",
        "  * transaction arguments:",
        "      - seq-num: 1",
        "          - key: /prefixA/base-value1",
        "            value: { items:[\"item1\"] }",
        "  * planned operations:",
        "      1. DELETE [DERIVED RECREATE]:",
        "      9. CREATE [DERIVED WAS-PENDING]:",
        "          - prev-value: { items:[\"item2\"] }",
        "  * executed operations (",
        "x #1 ",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
    }
    assert!(
        text.lines()
            .filter(|line| line.starts_with(['+', '|', 'o', 'x']))
            .all(|line| line.len() == 120)
    );
    played.stop().await;
}

#[tokio::test]
async fn past_pictures_evaluate_the_predicates_of_any_of_dependencies() {
    let text = "
descriptors:
  - {name: t, prefix: /t/, items: none}
  - name: v
    prefix: /v/
    items: none
    depends: {/v/user: [{label: any x, any-of: {prefixes: [/t/], suffix: x}}]}
steps:
  - txn: {set: {/t/a: {}, /t/bx: {}, /v/user: {}}}
";
    let played = play(&parse(text).unwrap()).await.unwrap();
    let arrows = |picture: mainstay_graph::Picture| {
        let dot = picture.dot();
        dot.lines().filter(|line| line.contains(" -> ")).count()
    };
    assert_eq!(arrows(played.engine.picture(Some(0)).unwrap()), 1);
    assert_eq!(arrows(played.engine.picture(None).unwrap()), 1);
    played.stop().await;
}
