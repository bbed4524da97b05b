//! The layout of etcd: the names of keys and the format of values.
//!
//! A key is `PREFIX/objects/RESOURCE/PATH`. A value is the object as JSON; on the next line the
//! number of bytes before the hole for its version, and the change's place in its transaction; and
//! on the last line the checksum that the [`Codec`] adds, unless the [`Codec`] seals all of it.
//! Values of the first release end after the hole: their place is 0, and only whether they can be
//! read is known about them.
//!
//! A value that was rewritten without a change of its object (to encrypt it, or with another key)
//! has a third number on that line: the revision of etcd in which the object was last changed. So
//! rewriting a value changes neither the version of its object nor what watches see.

use crate::cache::State;
use crate::object::{Body, Key, Record, Resource, Revision};
use crate::objects::Error;
use crate::seal::{DataKey, KeyState, Sealer, data_keys, is_data_keys};
use crate::value::Codec;

use super::proto::KeyValue;
use super::version::version;

/// Where our keys are, and how values are written.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: String,
    codec: Codec,
}

impl Layout {
    /// Encrypts values, if anything does.
    pub(super) fn sealer(&self) -> &Sealer {
        self.codec.sealer()
    }

    pub(super) fn new(prefix: &str, codec: Codec) -> Self {
        Self { root: format!("{prefix}/objects/"), codec }
    }

    pub(super) fn encode(&self, key: &Key) -> Vec<u8> {
        self.name(key).into_bytes()
    }

    /// The key as `etcdctl` takes it.
    pub(super) fn name(&self, key: &Key) -> String {
        format!("{}{}/{}", self.root, key.resource(), key.path())
    }

    /// The object's key; `None` if this is not one of Mainstay's.
    pub(super) fn decode(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let (resource, path) = rest.split_once('/')?;
        Some(Key::from_stored(Resource::from_stored(resource), path))
    }

    /// The value of an object that is written at this place of a transaction.
    pub(super) fn write(&self, key: &Key, body: &Body, place: u8) -> Vec<u8> {
        self.encode_stored(key, body, format_args!("\n{} {place}", body.hole()))
    }

    /// A value that says the same about its object as `kv`, encrypted as new values are.
    ///
    /// # Errors
    /// As [`Layout::read`].
    pub(super) fn rewrite(&self, key: &Key, kv: &KeyValue) -> Result<Vec<u8>, String> {
        let stored = self.read(key, &kv.value)?;
        let (hole, place) = (stored.body.hole(), stored.place);
        let changed = stored.changed.unwrap_or(kv.mod_revision);
        Ok(self.encode_stored(key, &stored.body, format_args!("\n{hole} {place} {changed}")))
    }

    fn encode_stored(&self, key: &Key, body: &Body, line: std::fmt::Arguments<'_>) -> Vec<u8> {
        let mut value = Vec::with_capacity(body.len() + 32);
        value.extend_from_slice(body.json());
        value.extend_from_slice(line.to_string().as_bytes());
        self.codec.encode(key, &value)
    }

    /// Whether values may be written to a store in this state.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store is encrypted with a data key that this server cannot
    /// open, because it would write in the clear; or if the data key is no longer in the store,
    /// because no other server, and none after a restart, could open what is written.
    pub(super) fn writable(&self, state: &State) -> Result<(), Error> {
        if let Some(error) = self.sealer().locked(&[KeyState::Active, KeyState::Complete]) {
            return Err(Error::Unavailable {
                reason: format!("{error}; restart this server with the key file"),
            });
        }
        let current = self.sealer().current().map(|id| Key::new(&data_keys(), None, &id));
        match current {
            Some(key) if state.get(&key).is_none() => Err(Error::Unavailable {
                reason: format!(
                    "the data key {} that encrypts this store was removed from etcd: run `mainstay \
                     store rekey` while this server runs, which still has it; after a restart no \
                     value can be read",
                    key.name()
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a value is not encrypted as new values are.
    pub(super) fn is_stale(&self, key: &Key, value: &[u8]) -> bool {
        !self.codec.sealer().is_current(key, value)
    }

    /// The object in a value.
    ///
    /// # Errors
    /// Why the value cannot be read, and what to do about it.
    pub(super) fn read(&self, key: &Key, value: &[u8]) -> Result<Stored, String> {
        let decoded = self.codec.decode(key, value).map_err(|error| error.to_string());
        let unreadable = || format!("{key}: the stored value is damaged: it is not an object");
        let read = decoded.and_then(|text| Stored::parse(&text).ok_or_else(unreadable));
        let read = read.and_then(|stored| self.authentic(key, value, &stored).map(|()| stored));
        read.map_err(|problem| {
            let name = self.name(key);
            if *key.resource() == data_keys() {
                return format!(
                    "{problem}; values are encrypted with this data key, so never remove it: put \
                     the right value of {name} back (`etcdctl get --rev` may still have it), or run \
                     `mainstay store rekey` while a server that has read it runs"
                );
            }
            // The value itself is as it was written.
            if self.sealer().lacks_key_of(value) {
                return problem;
            }
            format!("{problem}; put the right value back, or remove it with `etcdctl del {name}`")
        })
    }

    /// Fails for a value that another program wrote to an encrypted store.
    fn authentic(&self, key: &Key, value: &[u8], stored: &Stored) -> Result<(), String> {
        if self.sealer().is_stray(key, value) {
            return Err(format!(
                "{key}: the stored value is not encrypted although the store is: another program \
                 wrote it"
            ));
        }
        if self.sealer().has_keys() && is_data_keys(key.resource()) {
            let object = serde_json::from_slice(stored.body.json()).unwrap_or_default();
            let verified = DataKey::parse(&object).and_then(|it| self.sealer().verify(&it));
            return verified.map_err(|error| format!("{key}: {error}"));
        }
        Ok(())
    }

    /// The version of the object in a key and value, also if the value cannot be read.
    pub(super) fn version(&self, kv: &KeyValue) -> Revision {
        let read = self.decode(&kv.key).and_then(|key| self.read(&key, &kv.value).ok());
        read.map_or(version(kv.mod_revision, 0), |stored| stored.version(kv))
    }

    /// The keys of one collection: the first, and the first behind all of them.
    pub(super) fn range(&self, resource: &Resource) -> (Vec<u8>, Vec<u8>) {
        let range = |end: char| format!("{}{resource}{end}", self.root).into_bytes();
        // '0' is the character after '/'.
        (range('/'), range('0'))
    }

    pub(super) fn start(&self) -> Vec<u8> {
        self.root.clone().into_bytes()
    }

    /// The first key behind all of ours: the root with its last byte one up.
    pub(super) fn end(&self) -> Vec<u8> {
        let mut end = self.start();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }
}

/// An object as a value holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) body: Body,
    /// The place of its last change in that change's transaction.
    pub(super) place: u8,
    /// The revision of etcd in which the object was last changed, if the value was rewritten since.
    pub(super) changed: Option<i64>,
}

impl Stored {
    fn parse(text: &[u8]) -> Option<Self> {
        let end = text.iter().rposition(|byte| *byte == b'\n')?;
        let mut numbers = std::str::from_utf8(&text[end + 1..]).ok()?.split(' ');
        let body = Body::from_parts(text[..end].to_vec(), numbers.next()?.parse().ok()?)?;
        let place = numbers.next().unwrap_or("0").parse().ok()?;
        let changed = numbers.next().map(str::parse).transpose().ok()?;
        numbers.next().is_none().then_some(Self { body, place, changed })
    }

    fn changed_at(&self, kv: &KeyValue) -> i64 {
        self.changed.unwrap_or(kv.mod_revision)
    }

    /// The version of the object in this key and value.
    fn version(&self, kv: &KeyValue) -> Revision {
        version(self.changed_at(kv), self.place)
    }

    /// The object that was read from this key and value, at its version.
    pub(super) fn record(&self, kv: &KeyValue, key: Key) -> Record {
        let changed = self.version(kv);
        // Only the place of the last change is known.
        let created = if kv.create_revision == self.changed_at(kv) {
            changed
        } else {
            version(kv.create_revision, 0)
        };
        self.body.at(key, created, changed)
    }

    /// The revision of etcd that rewrote the value since the object's last change.
    pub(super) fn rewritten(&self, kv: &KeyValue) -> Option<i64> {
        self.changed.map(|_| kv.mod_revision)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(&Resource::new("", "configmaps"), Some("default"), name)
    }

    fn body(text: &str) -> Body {
        Body::new(json!({"data": {"text": text}}).as_object().unwrap())
    }

    #[test]
    fn values_of_the_first_release_are_read_at_place_0() {
        let layout = Layout::new("mainstay", Codec::default());
        let body = body("x");
        let stored = Stored { body: body.clone(), place: 0, changed: None };
        assert_eq!(layout.read(&key("a"), &body.to_stored()), Ok(stored));
    }

    #[test]
    fn errors_name_the_object_and_the_etcd_key() {
        let layout = Layout::new("mainstay", Codec::default());
        let elsewhere = layout.write(&key("b"), &body("x"), 3);
        for value in [&b""[..], b"junk", b"{}\n1", b"{\"a\": 1", &elsewhere] {
            let error = layout.read(&key("a"), value).unwrap_err();
            assert!(error.starts_with("configmaps \"default/a\": "), "{error}");
            let told = "`etcdctl del mainstay/objects/configmaps/default/a`";
            assert!(error.ends_with(told), "{error}");
        }
    }

    #[test]
    fn a_value_that_only_lacks_its_data_key_is_not_to_be_removed() {
        use crate::seal::MasterKeys;
        let line = MasterKeys::new_line("k").unwrap();
        let sealer = Sealer::new(Some(MasterKeys::parse(&line).unwrap()));
        let new = sealer.new_data_key(KeyState::Complete).unwrap().unwrap();
        let object = serde_json::from_slice(new.body().json()).unwrap();
        sealer.learn(&object, Revision(1)).unwrap();
        let sealed =
            Layout::new("mainstay", Codec::sealing(sealer)).write(&key("a"), &body("x"), 0);
        let without = Layout::new("mainstay", Codec::default());
        let error = without.read(&key("a"), &sealed).unwrap_err();
        assert!(error.contains("its data key is not in the store"), "{error}");
        assert!(!error.contains("etcdctl"), "the value is as it was written: {error}");
        // Without the key file the message names the key instead.
        without.sealer().learn(&object, Revision(1)).unwrap_err();
        let error = without.read(&key("a"), &sealed).unwrap_err();
        assert!(error.contains("--store-key") && !error.contains("etcdctl"), "{error}");
        let mut damaged = sealed;
        *damaged.last_mut().unwrap() ^= 1;
        let error = without.read(&key("a"), &damaged).unwrap_err();
        assert!(!error.contains("etcdctl"), "nothing is known about it without its key: {error}");
    }

    #[test]
    fn a_rewritten_value_keeps_the_version_of_its_object() {
        let layout = Layout::new("mainstay", Codec::default());
        let value = layout.write(&key("a"), &body("x"), 3);
        let first = KeyValue { create_revision: 5, mod_revision: 7, value, key: Vec::new() };
        let record =
            |kv: &KeyValue| layout.read(&key("a"), &kv.value).unwrap().record(kv, key("a"));
        let value = layout.rewrite(&key("a"), &first).unwrap();
        let second = KeyValue { mod_revision: 20, value, ..first.clone() };
        let value = layout.rewrite(&key("a"), &second).unwrap();
        let third = KeyValue { mod_revision: 30, value, ..first.clone() };
        assert_eq!(record(&first).revision(), version(7, 3));
        assert_eq!((record(&second), record(&third)), (record(&first), record(&first)));
        let stored = layout.read(&key("a"), &third.value).unwrap();
        assert_eq!((stored.changed, stored.rewritten(&third)), (Some(7), Some(30)));
    }

    proptest! {
        #[test]
        fn a_value_comes_back_and_no_flipped_bit_passes_for_it(
            text in "\\PC{0,60}", place in any::<u8>(), bit in any::<prop::sample::Index>(),
        ) {
            let layout = Layout::new("mainstay", Codec::default());
            let body = body(&text);
            let mut value = layout.write(&key("a"), &body, place);
            let stored = Stored { body, place, changed: None };
            prop_assert_eq!(layout.read(&key("a"), &value), Ok(stored));
            let bit = bit.index(value.len() * 8);
            value[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(layout.read(&key("a"), &value).is_err());
        }
    }
}
