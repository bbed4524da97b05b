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
    record(name, key_file, false, opens)
}

/// The record of a server with --store-decrypt.
fn decrypting(name: &str) -> Arc<Record> {
    record(name, true, true, &[])
}

fn record(name: &str, key_file: bool, decrypts: bool, opens: &[&DataKey]) -> Arc<Record> {
    let opens: Vec<String> = opens.iter().map(|key| key.id()).collect();
    let host = format!("host-{name}");
    let object = json!({
        "seen": 1, "rewrites": key_file, "decrypts": decrypts, "dataKeys": opens, "host": host,
    });
    let key = Key::new(&roster::records(), None, name);
    Arc::new(Body::new(object.as_object().unwrap()).at(key, Revision(1), Revision(1)))
}

#[test]
fn a_pending_key_is_used_once_every_server_can_open_it() {
    let keys = keys(&sealer(&["a"]), &[KeyState::Complete, KeyState::Pending]);
    let (knows, without) = (server("b", true, &[&keys[1]]), server("a", true, &[&keys[0]]));
    let step = next_step(&keys, &[&knows, &without], "b", false);
    assert_eq!(step, Step::Wait(vec!["host-a".to_owned()]));
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
    assert_eq!(next_step(&[], &all, "b", true), Step::Idle, "there is no key to open them with");
}

#[test]
fn only_a_server_that_is_to_decrypt_decrypts_values() {
    let retired = keys(&sealer(&["a"]), &[KeyState::Retired]);
    let (one, off) = (server("b", true, &[]), decrypting("c"));
    let step = |servers: &[&Arc<Record>], own| next_step(&retired, servers, own, true);
    assert_eq!(step(&[&one, &off], "b"), Step::Leave, "it has --store-key alone");
    assert_eq!(step(&[&one, &off], "c"), Step::Rewrite);
    assert_eq!(step(&[&one], "b"), Step::Idle, "the other one is gone; values stay as they are");
    let active = keys(&sealer(&["a"]), &[KeyState::Active]);
    assert_eq!(next_step(&active, &[&one, &off], "c", true), Step::Leave);
    assert_eq!(next_step(&active, &[&one, &off], "b", true), Step::Rewrite);
}

#[test]
fn encryption_stays_off_while_a_server_that_turned_it_off_runs() {
    use KeyState::{Complete, Pending, Retired};
    let own = sealer(&["a"]);
    let (one, off) = (server("b", true, &[]), decrypting("c"));
    let by = |states: &[KeyState], servers: &[&Arc<Record>], decrypt| {
        turned_off_by(&keys(&own, states), servers, decrypt)
    };
    assert_eq!(by(&[Retired], &[&one, &off], false), ["host-c"]);
    assert_eq!(by(&[], &[&one, &off], false), ["host-c"]);
    assert_eq!(by(&[Retired], &[&one], false), [""; 0], "it is gone: encryption is turned on");
    assert_eq!(by(&[Retired, Complete], &[&one, &off], false), [""; 0]);
    assert_eq!(by(&[Pending], &[&one, &off], false), [""; 0]);
    assert_eq!(by(&[Retired], &[&one, &off], true), [""; 0], "another one that decrypts");
}

#[test]
fn decrypted_values_and_stray_values_of_an_encrypted_store_are_warned_of() {
    use KeyState::{Active, Complete, Retired};
    let own = sealer(&["a"]);
    for (encrypted, states, expected) in [
        (false, &[Retired][..], Outcome::Decrypted),
        (false, &[], Outcome::Decrypted),
        (true, &[Retired, Complete], Outcome::Repaired),
        (true, &[Active], Outcome::Encrypted),
        (true, &[Complete, Active], Outcome::Encrypted),
    ] {
        assert_eq!(outcome(encrypted, &keys(&own, states)), expected, "{encrypted} {states:?}");
    }
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
        let own = sealer(&["a"]);
        let states: Vec<KeyState> =
            completed(&keys(&own, before), &own).unwrap().iter().map(|key| key.state).collect();
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
    let old = own.unbound_data_key(Complete);
    assert_eq!(states(&[old], false), [KeyState::Active], "its values are looked at once more");
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
