use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::master::KEY_LEN;
use super::*;

fn masters(names: &[(&str, u8)]) -> MasterKeys {
    let lines: Vec<String> = names
        .iter()
        .map(|(name, byte)| format!("{name}:{}", STANDARD.encode([*byte; KEY_LEN])))
        .collect();
    MasterKeys::parse(&lines.join("\n")).unwrap()
}

fn object(key: &DataKey) -> Map<String, Value> {
    serde_json::from_slice(key.body().json()).unwrap()
}

fn new_key(sealer: &Sealer, state: KeyState) -> DataKey {
    sealer.new_data_key(state).unwrap().unwrap()
}

/// A sealer with an active data key.
fn sealer(names: &[(&str, u8)]) -> (Sealer, DataKey) {
    let sealer = Sealer::new(Some(masters(names)));
    let key = new_key(&sealer, KeyState::Active);
    sealer.learn(&object(&key), Revision(1)).unwrap();
    (sealer, key)
}

fn key(name: &str) -> Key {
    Key::new(&Resource::new("", "configmaps"), Some("default"), name)
}

#[test]
fn a_sealed_value_opens_under_its_key_alone() {
    let (sealer, _) = sealer(&[("a", 1)]);
    let value = b"{\"secret\":true}";
    let sealed = sealer.seal(&key("x"), value).unwrap();
    assert!(!sealed.windows(6).any(|part| part == b"secret"));
    assert_eq!(sealer.open(&key("x"), &sealed).unwrap(), value);
    assert!(sealer.open(&key("y"), &sealed).is_err(), "values cannot be swapped");
    for at in 0..sealed.len() {
        let mut wrong = sealed.clone();
        wrong[at] ^= 1;
        assert!(at == 0 || sealer.open(&key("x"), &wrong).is_err(), "byte {at}");
        assert!(sealer.open(&key("x"), &sealed[..at]).is_err(), "cut at {at}");
    }
    assert_ne!(sealer.seal(&key("x"), value).unwrap(), sealed, "every nonce is another");
}

#[test]
fn a_data_key_opens_with_its_master_key_alone() {
    let (_, stored) = sealer(&[("a", 1)]);
    let stored = object(&stored);
    let refused = |sealer: Sealer| {
        let error = sealer.learn(&stored, Revision(1)).unwrap_err();
        assert_eq!(sealer.locked(&[KeyState::Active]).as_ref(), Some(&error));
        assert!(!sealer.seals() && sealer.usable().is_empty());
        error.to_string()
    };
    assert!(refused(Sealer::default()).contains("--store-key"));
    assert!(refused(Sealer::new(Some(masters(&[("b", 1)])))).contains("does not have"));
    assert!(refused(Sealer::new(Some(masters(&[("a", 2)])))).contains("is another one"));
    let right = Sealer::new(Some(masters(&[("b", 2), ("a", 1)])));
    assert!(right.learn(&stored, Revision(1)).is_ok() && right.seals());
}

#[test]
fn the_newest_active_data_key_seals() {
    let (sealer, first) = sealer(&[("a", 1)]);
    let sealed = sealer.seal(&key("x"), b"{}").unwrap();
    assert!(sealer.is_current(&key("x"), &sealed));
    let second = new_key(&sealer, KeyState::Pending);
    sealer.learn(&object(&second), Revision(2)).unwrap();
    assert!(sealer.is_current(&key("x"), &sealed), "a pending key is not used yet");
    assert_eq!(sealer.usable().len(), 2);
    let active = sealer.in_state(&second, KeyState::Active).unwrap();
    sealer.learn(&object(&active), Revision(2)).unwrap();
    assert!(!sealer.is_current(&key("x"), &sealed));
    assert!(sealer.is_superseded(&first.id()) && !sealer.is_superseded(&second.id()));
    assert_eq!(sealer.open(&key("x"), &sealed).unwrap(), b"{}");
    let retired = sealer.in_state(&first, KeyState::Retired).unwrap();
    sealer.learn(&object(&retired), Revision(1)).unwrap();
    assert_eq!(sealer.open(&key("x"), &sealed).unwrap(), b"{}", "retired keys still open");
    sealer.stop();
    assert!(sealer.seal(&key("x"), b"{}").is_none() && sealer.is_current(&key("x"), b"{}"));
}

#[test]
fn a_data_key_can_be_wrapped_by_another_master_key() {
    let (old, first) = sealer(&[("a", 1)]);
    let sealed = old.seal(&key("x"), b"{}").unwrap();
    let both = Sealer::new(Some(masters(&[("b", 2), ("a", 1)])));
    let wrapped = both.in_state(&first, first.state).unwrap();
    assert_eq!((wrapped.id(), wrapped.master(), wrapped.state), (first.id(), "b", first.state));
    let new = Sealer::new(Some(masters(&[("b", 2)])));
    assert!(new.in_state(&first, first.state).is_err(), "the old master key is needed once");
    assert!(new.is_unknown(&sealed) && !new.is_unknown(b"{}"));
    new.learn(&object(&wrapped), Revision(1)).unwrap();
    assert_eq!(new.open(&key("x"), &sealed).unwrap(), b"{}");
    assert!(old.learn(&object(&wrapped), Revision(1)).is_ok(), "an opened key stays open");
}

impl Sealer {
    /// A data key as an older version wrote it.
    pub(crate) fn unbound_data_key(&self, state: KeyState) -> DataKey {
        let masters = self.0.masters.as_ref().unwrap();
        let new = masters.new_data_key(state, 0).unwrap();
        let bytes = masters.unwrap(&new).unwrap();
        masters.wrap(DataKey { bound: false, ..new }, bytes).unwrap()
    }
}

#[test]
fn the_state_and_the_number_of_a_data_key_are_authenticated() {
    let (sealer, first) = sealer(&[("a", 1)]);
    let fresh = || Sealer::new(Some(masters(&[("a", 1)])));
    for (field, forged) in [
        ("state", Value::from("Retired")),
        ("state", Value::from("Complete")),
        ("number", Value::from(7)),
        ("format", Value::Null),
    ] {
        let mut record = object(&first);
        record.insert(field.to_owned(), forged.clone());
        if forged.is_null() {
            record.remove(field);
        }
        let key = DataKey::parse(&record).unwrap();
        let refused = sealer.verify(&key).unwrap_err().to_string();
        assert!(refused.contains("changed by another program"), "{field}: {refused}");
        assert!(field != "state" || fresh().verify(&key).is_err(), "{forged}");
        assert!(fresh().learn(&record, Revision(1)).is_err(), "{field} = {forged}");
        sealer.learn(&record, Revision(9)).unwrap();
        assert!(sealer.seals(), "{field} = {forged}: the verified state stays");
    }
    // The record of a key file that this server does not have yet cannot be verified.
    let other = Sealer::new(Some(masters(&[("b", 2), ("a", 1)])));
    let elsewhere = other.in_state(&first, KeyState::Retired).unwrap();
    sealer.verify(&elsewhere).unwrap();
    sealer.learn(&object(&elsewhere), Revision(1)).unwrap();
    assert!(sealer.seals(), "a state that cannot be verified is not taken over");
}

#[test]
fn data_keys_of_older_versions_open_and_are_bound_once() {
    let sealer = Sealer::new(Some(masters(&[("a", 1)])));
    let old = sealer.unbound_data_key(KeyState::Complete);
    sealer.verify(&old).unwrap();
    sealer.learn(&object(&old), Revision(1)).unwrap();
    assert!(sealer.seals() && !sealer.is_stray(&key("x"), b"{}"), "it is not known to be complete");
    let bound = sealer.in_state(&old, KeyState::Complete).unwrap();
    sealer.learn(&object(&bound), Revision(1)).unwrap();
    assert!(sealer.is_stray(&key("x"), b"{}"));
    assert!(sealer.verify(&old).is_err(), "a bound key is not replaced by its older record");
    let later = new_key(&sealer, KeyState::Active);
    assert!(later.number() > bound.number(), "newer keys have higher numbers");
}

#[test]
fn data_keys_of_older_versions_have_no_state_and_are_complete() {
    let (_, first) = sealer(&[("a", 1)]);
    let mut stored = object(&first);
    stored.remove("state");
    assert_eq!(DataKey::parse(&stored).unwrap().state, KeyState::Complete);
    stored.insert("state".to_owned(), "Sleeping".into());
    assert!(matches!(DataKey::parse(&stored), Err(KeyError::Damaged { .. })));
}

#[test]
fn records_of_servers_and_data_keys_are_never_sealed() {
    let (sealer, _) = sealer(&[("a", 1)]);
    for plural in NEVER_SEALED {
        let key = Key::new(&Resource::new(INTERNAL, plural), None, "x");
        assert!(sealer.seal(&key, b"{}").is_none() && sealer.is_current(&key, b"{}"), "{plural}");
    }
    let tokens = Key::new(&Resource::new(INTERNAL, "tokens"), None, "x");
    assert!(sealer.seal(&tokens, b"{}").is_some());
}

#[test]
fn key_files_are_read_line_by_line() {
    let good = MasterKeys::new_line("k1").unwrap();
    assert!(MasterKeys::parse(&format!("# keys\n\n{good}\n")).is_ok());
    for (text, expected) in [
        ("", "no key"),
        ("nonsense", "line 1: it has no colon"),
        ("a:xxx", "line 1: it is not base64"),
        ("a:AAAA", "line 1: it is not 32 bytes"),
        (":AAAA", "line 1: its name"),
        (&format!("{good}\n{good}"), "line 2: its name is there already"),
    ] {
        let error = MasterKeys::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
