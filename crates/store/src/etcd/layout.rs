//! Where our keys are in etcd, and what stands in their values.
//!
//! A key is `PREFIX/objects/RESOURCE/PATH`. A value is the object as JSON; on the next line the
//! number of bytes before the hole for its version, and the change's place in its transaction; and
//! on the last line the checksum that the [`Codec`] adds. Values of the first release end after the
//! hole: their place is 0, and nothing can be said about them but whether they can be read.

use crate::object::{Body, Key, Record, Resource, Revision};
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

    /// Whose key this is; `None` if it is not one of ours.
    pub(super) fn decode(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let (resource, path) = rest.split_once('/')?;
        Some(Key::from_stored(Resource::from_stored(resource), path))
    }

    /// The value of an object that is written at this place of a transaction.
    pub(super) fn write(&self, key: &Key, body: &Body, place: u8) -> Vec<u8> {
        let mut value = Vec::with_capacity(body.len() + 32);
        value.extend_from_slice(body.json());
        value.extend_from_slice(format!("\n{} {place}", body.hole()).as_bytes());
        self.codec.encode(key, &value)
    }

    /// The object in a value, and its place.
    ///
    /// # Errors
    /// What is wrong with the value, and what to do about it.
    pub(super) fn read(&self, key: &Key, value: &[u8]) -> Result<(Body, u8), String> {
        let decoded = self.codec.decode(key, value).map_err(|error| error.to_string());
        let unreadable = || format!("{key}: the stored value is damaged: it is not an object");
        decoded.and_then(|text| split(&text).ok_or_else(unreadable)).map_err(|problem| {
            let name = self.name(key);
            format!("{problem}; put the right value back, or remove it with `etcdctl del {name}`")
        })
    }

    /// The version of what etcd shows, whatever the value is.
    pub(super) fn version(&self, kv: &KeyValue) -> Revision {
        let read = self.decode(&kv.key).and_then(|key| self.read(&key, &kv.value).ok());
        version(kv.mod_revision, read.map_or(0, |(_, place)| place))
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

fn split(text: &[u8]) -> Option<(Body, u8)> {
    let end = text.iter().rposition(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&text[end + 1..]).ok()?;
    let (hole, place) = line.split_once(' ').unwrap_or((line, "0"));
    let body = Body::from_parts(text[..end].to_vec(), hole.parse().ok()?)?;
    Some((body, place.parse().ok()?))
}

/// The object that was read from this key and value, at its version.
pub(super) fn record(kv: &KeyValue, key: Key, body: &Body, place: u8) -> Record {
    let changed = version(kv.mod_revision, place);
    // Only the place of the last change is known.
    let created = if kv.create_revision == kv.mod_revision {
        changed
    } else {
        version(kv.create_revision, 0)
    };
    body.at(key, created, changed)
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
        assert_eq!(layout.read(&key("a"), &body.to_stored()), Ok((body, 0)));
    }

    #[test]
    fn what_is_wrong_names_the_object_and_the_key() {
        let layout = Layout::new("mainstay", Codec::default());
        let elsewhere = layout.write(&key("b"), &body("x"), 3);
        for value in [&b""[..], b"junk", b"{}\n1", b"{\"a\": 1", &elsewhere] {
            let error = layout.read(&key("a"), value).unwrap_err();
            assert!(error.starts_with("configmaps \"default/a\": "), "{error}");
            let told = "`etcdctl del mainstay/objects/configmaps/default/a`";
            assert!(error.ends_with(told), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_value_comes_back_and_no_flipped_bit_passes_for_it(
            text in "\\PC{0,60}", place in any::<u8>(), bit in any::<prop::sample::Index>(),
        ) {
            let layout = Layout::new("mainstay", Codec::default());
            let body = body(&text);
            let mut value = layout.write(&key("a"), &body, place);
            prop_assert_eq!(layout.read(&key("a"), &value), Ok((body, place)));
            let bit = bit.index(value.len() * 8);
            value[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(layout.read(&key("a"), &value).is_err());
        }
    }
}
