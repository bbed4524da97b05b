use proptest::prelude::*;
use serde_json::json;

use crate::object::{Body, Key, Revision};
use crate::seal::MasterKeys;

use super::*;

fn sealer(names: &[&str]) -> Sealer {
    let lines: Vec<String> = names.iter().map(|name| MasterKeys::new_line(name).unwrap()).collect();
    Sealer::new(Some(MasterKeys::parse(&lines.join("\n")).unwrap()))
}

fn keys(sealer: &Sealer, states: &[KeyState]) -> Vec<DataKey> {
    states.iter().map(|state| sealer.new_data_key(*state).unwrap().unwrap()).collect()
}

/// The record of a server that has a key file or not, and can open these data keys.
fn server(name: &str, key_file: bool, opens: &[&DataKey]) -> Arc<Record> {
    let opens: Vec<String> = opens.iter().map(|key| key.id()).collect();
    let object = json!({"seen": 1, "rewrites": key_file, "dataKeys": opens});
    let key = Key::new(&roster::records(), None, name);
    Arc::new(Body::new(object.as_object().unwrap()).at(key, Revision(1), Revision(1)))
}

#[test]
fn a_pending_key_is_used_once_every_server_can_open_it() {
    let keys = keys(&sealer(&["a"]), &[KeyState::Complete, KeyState::Pending]);
    let (knows, without) = (server("b", true, &[&keys[1]]), server("a", true, &[&keys[0]]));
    let step = next_step(&keys, &[&knows, &without], "b", false);
    assert_eq!(step, Step::Wait(vec!["a".to_owned()]));
    // A server of an older version has no such field in its record.
    let old = Body::new(json!({"seen": 1}).as_object().unwrap());
    let old = Arc::new(old.at(Key::new(&roster::records(), None, "c"), Revision(1), Revision(1)));
    let step = next_step(&keys, &[&knows, &old], "b", false);
    assert_eq!(step, Step::Wait(vec!["c".to_owned()]));
    assert_eq!(next_step(&keys, &[&knows], "b", false), Step::Activate(keys[1].clone()));
}

#[test]
fn one_server_with_a_key_file_rewrites_values() {
    let active = keys(&sealer(&["a"]), &[KeyState::Retired, KeyState::Active]);
    let (blind, one, two) =
        (server("a", false, &[]), server("b", true, &[]), server("c", true, &[]));
    let all = [&blind, &one, &two];
    assert_eq!(next_step(&active, &all, "b", false), Step::Rewrite);
    assert_eq!(next_step(&active, &all, "c", false), Step::Leave);
    let complete = keys(&sealer(&["a"]), &[KeyState::Complete]);
    assert_eq!(next_step(&complete, &all, "b", false), Step::Idle);
    assert_eq!(next_step(&complete, &all, "b", true), Step::Rewrite, "a stale value showed up");
    let retired = keys(&sealer(&["a"]), &[KeyState::Retired]);
    assert_eq!(next_step(&retired, &all, "b", true), Step::Rewrite, "values are decrypted");
    assert_eq!(next_step(&[], &all, "b", true), Step::Idle, "there is no key to open them with");
}

#[test]
fn a_finished_pass_completes_the_newest_key_and_retires_the_others() {
    use KeyState::{Active, Complete, Pending, Retired};
    for (before, after) in [
        (&[Complete, Active][..], &[Retired, Complete][..]),
        (&[Retired, Complete, Active, Pending], &[Retired, Complete]),
        (&[Complete], &[]),
        (&[Retired], &[]),
    ] {
        let states: Vec<KeyState> =
            completed(&keys(&sealer(&["a"]), before)).iter().map(|key| key.state).collect();
        assert_eq!(states, after, "{before:?}");
    }
}

#[test]
fn a_start_stores_what_the_key_file_and_the_settings_ask_for() {
    use KeyState::{Complete, Pending, Retired};
    let own = sealer(&["a"]);
    let states = |keys: &[DataKey], decrypt| -> Vec<KeyState> {
        opening_changes(keys, &own, decrypt).unwrap().iter().map(|key| key.state).collect()
    };
    assert_eq!(states(&[], false), [Pending], "encryption is turned on");
    assert_eq!(states(&keys(&own, &[Retired]), false), [Pending], "and on again");
    assert_eq!(states(&keys(&own, &[Complete]), false), [], "nothing to do");
    assert_eq!(states(&keys(&own, &[Retired, Complete, Pending]), true), [Retired, Retired]);
    let foreign = sealer(&["b"]);
    assert!(opening_changes(&keys(&foreign, &[Complete]), &own, false).is_err());
    assert_eq!(states(&keys(&foreign, &[Retired]), false), [Pending], "a lost retired key");
}

proptest! {
    #[test]
    fn groups_keep_the_order_and_the_bounds(sizes in prop::collection::vec(0..2 * BYTES, 0..200)) {
        let groups = groups(sizes.clone(), |size| *size);
        prop_assert_eq!(groups.concat(), sizes);
        for group in groups {
            prop_assert!(!group.is_empty() && group.len() <= TOGETHER);
            prop_assert!(group.len() == 1 || group.iter().sum::<usize>() <= BYTES);
        }
    }
}
