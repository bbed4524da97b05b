//! How an object becomes a [`Body`]: its fields in order, and a hole where its version will stand.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Body;

const METADATA: &str = "metadata";
const VERSION: &str = "resourceVersion";

/// Fields whose values stay the text they came as.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// An object as a server sent it, taken over without building a tree of its values.
#[derive(Debug)]
pub(crate) struct Received {
    /// `metadata.name`; empty if it has none.
    pub(crate) name: String,
    /// `metadata.namespace`.
    pub(crate) namespace: Option<String>,
    /// `metadata.resourceVersion`; empty if it has none.
    pub(crate) version: String,
    /// All of it.
    pub(crate) body: Body,
}

impl Received {
    /// Reads an object. `tags` are fields that are added if they are missing, and `without` is a
    /// field of its metadata that is left out.
    pub(crate) fn read(
        json: &[u8],
        tags: [(&str, &str); 2],
        without: &str,
    ) -> serde_json::Result<Self> {
        let mut object: Fields<'_> = serde_json::from_slice(json)?;
        let tags = tags.map(|(name, text)| (name, serde_json::value::to_raw_value(text)));
        for (name, text) in &tags {
            if let (false, Ok(text)) = (object.contains_key(*name), text) {
                object.insert((*name).to_owned(), text);
            }
        }
        let mut metadata: Fields<'_> = match object.get(METADATA) {
            Some(metadata) => serde_json::from_str(metadata.get())?,
            None => Fields::new(),
        };
        metadata.remove(without);
        let text = |name: &str| {
            metadata.get(name).and_then(|raw| serde_json::from_str::<String>(raw.get()).ok())
        };
        Ok(Self {
            name: text("name").unwrap_or_default(),
            namespace: text("namespace").filter(|namespace| !namespace.is_empty()),
            version: text(VERSION).unwrap_or_default(),
            body: body(&object, &metadata),
        })
    }
}

/// Writes an object whose metadata is `metadata`, whatever it says itself.
pub(super) fn body<'a, V: Serialize + 'a>(
    object: impl IntoIterator<Item = (&'a String, &'a V)>,
    metadata: impl IntoIterator<Item = (&'a String, &'a V)>,
) -> Body {
    let mut encoder = Encoder { json: Vec::with_capacity(512), hole: 0, first: true };
    let mut metadata = Some(metadata);
    encoder.json.push(b'{');
    for (name, value) in object {
        encoder.name(name);
        match metadata.take_if(|_| name == METADATA) {
            Some(metadata) => encoder.metadata(metadata),
            None => encoder.value(value),
        }
    }
    if let Some(metadata) = metadata {
        encoder.name(METADATA);
        encoder.metadata(metadata);
    }
    encoder.json.push(b'}');
    Body { json: encoder.json, hole: encoder.hole }
}

struct Encoder {
    json: Vec<u8>,
    hole: usize,
    first: bool,
}

impl Encoder {
    fn name(&mut self, name: &str) {
        if !std::mem::replace(&mut self.first, false) {
            self.json.push(b',');
        }
        self.value(name);
        self.json.push(b':');
    }

    fn value<V: Serialize + ?Sized>(&mut self, value: &V) {
        serde_json::to_writer(&mut self.json, value).expect("a JSON value always encodes");
    }

    fn metadata<'a, V: Serialize + 'a>(
        &mut self,
        metadata: impl IntoIterator<Item = (&'a String, &'a V)>,
    ) {
        self.json.push(b'{');
        self.first = true;
        let mut placed = false;
        for (name, value) in metadata.into_iter().filter(|(name, _)| *name != VERSION) {
            if !placed && name.as_str() > VERSION {
                self.version();
                placed = true;
            }
            self.name(name);
            self.value(value);
        }
        if !placed {
            self.version();
        }
        self.json.push(b'}');
        self.first = false;
    }

    fn version(&mut self) {
        self.name(VERSION);
        self.json.push(b'"');
        self.hole = self.json.len();
        self.json.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn objects_received_as_text_equal_objects_encoded_here() {
        let wide = json!({
            "apiVersion": "v1", "kind": "Thing", "data": {"b": [1, {"x": "\u{e9}\n"}], "a": null},
            "metadata": {
                "name": "n", "namespace": "s", "resourceVersion": "17", "uid": "u", "zeta": {},
                "managedFields": [{"manager": "m"}],
            },
        });
        let bare = json!({"spec": 1});
        let empty = json!({"metadata": {}, "kind": "Other"});
        for object in [wide, bare, empty] {
            let text = serde_json::to_vec_pretty(&object).unwrap();
            let tags = [("apiVersion", "v9"), ("kind", "Tagged")];
            let received = Received::read(&text, tags, "managedFields").unwrap();
            let mut expected: Map<String, Value> = object.as_object().unwrap().clone();
            for (name, tag) in tags {
                expected.entry(name).or_insert_with(|| Value::from(tag));
            }
            if let Some(Value::Object(metadata)) = expected.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            let decoded = |body: &Body| serde_json::from_slice::<Value>(body.json()).unwrap();
            let plain = Body::new(&expected);
            assert_eq!(decoded(&received.body), decoded(&plain), "{object}");
            let hole = received.body.hole();
            assert_eq!(&received.body.json()[hole - 1..=hole], b"\"\"", "{object}");
            let known = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            assert_eq!(received.version, known);
        }
    }

    #[test]
    fn text_that_is_not_an_object_is_refused() {
        for text in ["", "[]", "3", "{\"metadata\": 3}", "{\"a\": }", "{} {}", "{\"a\": \"\u{1}\"}"]
        {
            let tags = [("apiVersion", "v1"), ("kind", "k")];
            assert!(Received::read(text.as_bytes(), tags, "").is_err(), "{text}");
        }
    }
}
