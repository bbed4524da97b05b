//! Reads single fields of stored JSON, without building a tree.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The labels of an object.
pub(super) fn labels(json: &[u8]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    #[derive(Deserialize)]
    struct Shell<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        labels: Pairs<'a>,
    }
    serde_json::from_slice::<Shell<'_>>(json)
        .map(|shell| shell.metadata.labels.0)
        .unwrap_or_default()
}

#[derive(Default)]
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for All<'a> {
            type Value = Pairs<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Pairs<'a>, A::Error> {
                let mut pairs = Vec::with_capacity(access.size_hint().unwrap_or(4));
                while let Some((Text(key), Text(value))) = access.next_entry()? {
                    pairs.push((key, value));
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(All(std::marker::PhantomData))
    }
}

/// The value at a dotted path as text; empty if there is none.
pub(super) fn text(json: &[u8], path: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Descend { path }.deserialize(&mut deserializer).unwrap_or_default()
}

struct Descend<'p> {
    path: &'p str,
}

impl<'de> DeserializeSeed<'de> for Descend<'_> {
    type Value = String;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Descend<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<String, A::Error> {
        let (name, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        let mut found = String::new();
        while let Some(key) = access.next_key::<Cow<'_, str>>()? {
            if key == name {
                found = access.next_value_seed(Descend { path: rest })?;
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<String, A::Error> {
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(String::new())
    }

    fn visit_str<E>(self, value: &str) -> Result<String, E> {
        Ok(self.at_end(value))
    }

    fn visit_bool<E>(self, value: bool) -> Result<String, E> {
        Ok(self.at_end(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<String, E> {
        Ok(self.at_end(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<String, E> {
        Ok(self.at_end(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<String, E> {
        Ok(self.at_end(serde_json::Value::from(value)))
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

impl Descend<'_> {
    fn at_end(&self, value: impl fmt::Display) -> String {
        if self.path.is_empty() { value.to_string() } else { String::new() }
    }
}
