//! Decodes a body: JSON into a tree, noting fields that occur twice, in one pass.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::status::Error;

/// A body that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object. Where a field occurred twice, the last one counts.
    pub object: Map<String, Value>,
    /// The paths of fields that occurred twice.
    pub duplicates: Vec<String>,
}

/// Reads a JSON object.
///
/// # Errors
/// 400 if it is not well-formed JSON, is nested too deeply, or is not an object.
pub fn decode(body: &[u8]) -> Result<Decoded, Error> {
    let findings = RefCell::new(Findings::default());
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let tree = Tree(&findings)
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| {
            Error::bad_request(format!(
                "the object provided is unrecognized: couldn't get version/kind; json parse error: {error}"
            ))
        })?;
    let Value::Object(object) = tree else {
        return Err(Error::bad_request(format!(
            "the object provided is unrecognized: couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type object",
            super::validate::go_type(&tree)
        )));
    };
    Ok(Decoded { object, duplicates: findings.into_inner().duplicates })
}

/// The most duplicates that are reported.
const REPORTED: usize = 100;

#[derive(Default)]
struct Findings {
    /// The path of the value being read: names of fields, or indexes.
    path: String,
    duplicates: Vec<String>,
}

#[derive(Clone, Copy)]
struct Tree<'f>(&'f RefCell<Findings>);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let length = self.0.borrow().path.len();
        loop {
            self.0.borrow_mut().enter_index(items.len());
            let item = access.next_element_seed(self);
            self.0.borrow_mut().path.truncate(length);
            match item? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let length = self.0.borrow().path.len();
        while let Some(name) = access.next_key::<String>()? {
            self.0.borrow_mut().enter_field(&name);
            let value = access.next_value_seed(self);
            if object.insert(name, value?).is_some() {
                self.0.borrow_mut().note();
            }
            self.0.borrow_mut().path.truncate(length);
        }
        Ok(Value::Object(object))
    }
}

impl Findings {
    fn enter_field(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn enter_index(&mut self, index: usize) {
        use fmt::Write as _;
        let _ = write!(self.path, "[{index}]");
    }

    fn note(&mut self) {
        if self.duplicates.len() < REPORTED && !self.duplicates.contains(&self.path) {
            self.duplicates.push(self.path.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_occur_twice_are_named_and_the_last_counts() {
        let body = br#"{"a":{"b":1,"b":2,"c":[{"d":1},{"d":1,"d":2}]},"e":1,"e":3}"#;
        let decoded = decode(body).unwrap();
        assert_eq!(decoded.duplicates, ["a.b", "a.c[1].d", "e"]);
        let expected = json!({"a": {"b": 2, "c": [{"d": 1}, {"d": 2}]}, "e": 3});
        assert_eq!(Value::Object(decoded.object), expected);
    }

    #[test]
    fn malformed_bodies_are_refused() {
        let deep = "[".repeat(1_000_000);
        let nested = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
        for body in ["", "nonsense", "[]", "1", "{\"a\":1}x", &deep, &nested, "{\"a\":\"\u{0}\"}"] {
            let error = decode(body.as_bytes()).unwrap_err();
            assert_eq!(error.reason.code(), 400);
        }
        assert_eq!(decode(b"{\"a\":\"\xff\"}").unwrap_err().reason.code(), 400);
    }
}
