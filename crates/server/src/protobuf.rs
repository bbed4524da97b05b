//! Bodies in Kubernetes' protobuf, read into the JSON they stand for.
//!
//! Some commands of kubectl, and clients that are set up so, send protobuf whatever the server
//! says it likes. They send few kinds in a plain encoding, so each kind is a table of
//! field numbers and names, and one reader turns any of them into an object. Answers are
//! never in protobuf: every client that sends it also accepts JSON.

pub(crate) mod write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use mainstay_store::status::Error;
use serde_json::{Map, Value};

/// The first bytes of every such body.
pub(crate) const MAGIC: &[u8] = b"k8s\0";
/// How deep messages may be nested.
const DEPTH: usize = 16;

/// A field of a message: its number, its name in JSON, and what it holds.
pub(crate) type Field = (u32, &'static str, Shape);

/// The type of a field.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    Text,
    Texts,
    Number,
    Flag,
    /// A moment to the second.
    Time,
    /// A moment to the microsecond.
    MicroTime,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// From names to texts.
    TextMap,
    /// From names to bytes, which JSON has in base64.
    BytesMap,
}

use Shape::{BytesMap, Flag, Message, Messages, MicroTime, Number, Text, TextMap, Texts, Time};

const OWNER: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Flag),
    (7, "blockOwnerDeletion", Flag),
];

const METADATA: Field = (
    1,
    "metadata",
    Message(&[
        (1, "name", Text),
        (2, "generateName", Text),
        (3, "namespace", Text),
        (5, "uid", Text),
        (6, "resourceVersion", Text),
        (7, "generation", Number),
        (8, "creationTimestamp", Time),
        (9, "deletionTimestamp", Time),
        (10, "deletionGracePeriodSeconds", Number),
        (11, "labels", TextMap),
        (12, "annotations", TextMap),
        (13, "ownerReferences", Messages(OWNER)),
        (14, "finalizers", Texts),
    ]),
);

const REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

/// The kinds that are sent so.
pub(crate) const KINDS: &[(&str, &str, &[Field])] = &[
    (
        "v1",
        "Namespace",
        &[
            METADATA,
            (2, "spec", Message(&[(1, "finalizers", Texts)])),
            (3, "status", Message(&[(1, "phase", Text)])),
        ],
    ),
    (
        "v1",
        "ConfigMap",
        &[METADATA, (2, "data", TextMap), (3, "binaryData", BytesMap), (4, "immutable", Flag)],
    ),
    (
        "v1",
        "Secret",
        &[
            METADATA,
            (2, "data", BytesMap),
            (3, "type", Text),
            (4, "stringData", TextMap),
            (5, "immutable", Flag),
        ],
    ),
    (
        "v1",
        "Event",
        &[
            METADATA,
            (2, "involvedObject", Message(REFERENCE)),
            (3, "reason", Text),
            (4, "message", Text),
            (5, "source", Message(&[(1, "component", Text), (2, "host", Text)])),
            (6, "firstTimestamp", Time),
            (7, "lastTimestamp", Time),
            (8, "count", Number),
            (9, "type", Text),
            (10, "eventTime", MicroTime),
            (11, "series", Message(&[(1, "count", Number), (2, "lastObservedTime", MicroTime)])),
            (12, "action", Text),
            (13, "related", Message(REFERENCE)),
            (14, "reportingComponent", Text),
            (15, "reportingInstance", Text),
        ],
    ),
    (
        "coordination.k8s.io/v1",
        "Lease",
        &[
            METADATA,
            (
                2,
                "spec",
                Message(&[
                    (1, "holderIdentity", Text),
                    (2, "leaseDurationSeconds", Number),
                    (3, "acquireTime", MicroTime),
                    (4, "renewTime", MicroTime),
                    (5, "leaseTransitions", Number),
                    (6, "strategy", Text),
                    (7, "preferredHolder", Text),
                ]),
            ),
        ],
    ),
    (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        &[
            METADATA,
            (
                2,
                "spec",
                Message(&[
                    (
                        1,
                        "resourceAttributes",
                        Message(&[
                            (1, "namespace", Text),
                            (2, "verb", Text),
                            (3, "group", Text),
                            (4, "version", Text),
                            (5, "resource", Text),
                            (6, "subresource", Text),
                            (7, "name", Text),
                        ]),
                    ),
                    (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
                ]),
            ),
        ],
    ),
    (
        "authorization.k8s.io/v1",
        "SelfSubjectRulesReview",
        &[METADATA, (2, "spec", Message(&[(1, "namespace", Text)]))],
    ),
    ("authentication.k8s.io/v1", "SelfSubjectReview", &[METADATA]),
    ("v1", "DeleteOptions", DELETE_OPTIONS),
    ("meta.k8s.io/v1", "DeleteOptions", DELETE_OPTIONS),
];

const DELETE_OPTIONS: &[Field] = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Flag),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];

/// The envelope around every object.
const ENVELOPE: &[Field] = &[(1, "type", Message(&[(1, "apiVersion", Text), (2, "kind", Text)]))];

/// Reads a body.
///
/// # Errors
/// 400 if it is not what it claims to be, or of a kind that nobody sends so.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, Error> {
    let broken = || Error::bad_request("the body of the request is not Kubernetes' protobuf");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(broken)?;
    let head = message(ENVELOPE, envelope, DEPTH).ok_or_else(broken)?;
    let said = |name: &str| head.get("type").and_then(|said| said.get(name)?.as_str());
    let (version, kind) = (said("apiVersion").unwrap_or(""), said("kind").unwrap_or(""));
    let known = KINDS.iter().find(|known| (known.0, known.1) == (version, kind));
    let Some((_, _, fields)) = known else {
        return Err(Error::bad_request(format!(
            "a {kind} of {version} cannot be read from protobuf: send it as application/json"
        )));
    };
    let mut raw: &[u8] = &[];
    let mut reader = Reader { rest: envelope };
    while let Some(part) = reader.next() {
        if let (2, Wire::Bytes(bytes)) = part.ok_or_else(broken)? {
            raw = bytes;
        }
    }
    let mut object = message(fields, raw, DEPTH).ok_or_else(broken)?;
    object.insert("apiVersion".to_owned(), Value::from(version));
    object.insert("kind".to_owned(), Value::from(kind));
    Ok(object)
}

/// A value as it is on the wire.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Numbers of fixed size, which none of our fields is.
    Other,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next field; `Some(None)` if the message is broken.
    fn next(&mut self) -> Option<Option<(u32, Wire<'a>)>> {
        (!self.rest.is_empty()).then(|| self.field())
    }

    fn field(&mut self) -> Option<(u32, Wire<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.bytes(8).map(|_| Wire::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Wire::Other)?,
            _ => return None,
        };
        Some((number, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

/// A message as a JSON object. Fields that are empty or zero are left out, as in JSON; so are fields the
/// table does not have. `None` if it is broken.
fn message(fields: &[Field], bytes: &[u8], depth: usize) -> Option<Map<String, Value>> {
    let depth = depth.checked_sub(1)?;
    let mut object = Map::new();
    let mut reader = Reader { rest: bytes };
    while let Some(part) = reader.next() {
        let (number, wire) = part?;
        let Some((_, name, shape)) = fields.iter().find(|field| field.0 == number) else {
            continue;
        };
        match (shape, wire) {
            (Text, Wire::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes).ok()?;
                if !text.is_empty() {
                    object.insert((*name).to_owned(), Value::from(text));
                }
            }
            (Texts, Wire::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes).ok()?;
                list(&mut object, name).push(Value::from(text));
            }
            (Number, Wire::Varint(number)) => {
                if number != 0 {
                    object.insert((*name).to_owned(), Value::from(number.cast_signed()));
                }
            }
            (Flag, Wire::Varint(flag)) => {
                object.insert((*name).to_owned(), Value::from(flag != 0));
            }
            (Time | MicroTime, Wire::Bytes(bytes)) => {
                if let Some(moment) = moment(bytes, matches!(shape, MicroTime))? {
                    object.insert((*name).to_owned(), Value::from(moment));
                }
            }
            (Message(fields), Wire::Bytes(bytes)) => {
                let below = message(fields, bytes, depth)?;
                if !below.is_empty() {
                    object.insert((*name).to_owned(), Value::Object(below));
                }
            }
            (Messages(fields), Wire::Bytes(bytes)) => {
                let below = message(fields, bytes, depth)?;
                list(&mut object, name).push(Value::Object(below));
            }
            (TextMap | BytesMap, Wire::Bytes(bytes)) => {
                let (key, value) = entry(bytes, matches!(shape, BytesMap))?;
                let map = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()?.insert(key, value);
            }
            _ => return None,
        }
    }
    Some(object)
}

fn list<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let items = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    items.as_array_mut().expect("only lists are put under the name of a list")
}

fn entry(bytes: &[u8], binary: bool) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), &[][..]);
    let mut reader = Reader { rest: bytes };
    while let Some(part) = reader.next() {
        match part? {
            (1, Wire::Bytes(bytes)) => std::str::from_utf8(bytes).ok()?.clone_into(&mut key),
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => return None,
        }
    }
    let value = if binary {
        Value::from(STANDARD.encode(value))
    } else {
        Value::from(std::str::from_utf8(value).ok()?)
    };
    Some((key, value))
}

/// A moment in the form JSON has it; an empty one is none.
fn moment(bytes: &[u8], micro: bool) -> Option<Option<String>> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader { rest: bytes };
    while let Some(part) = reader.next() {
        match part? {
            (1, Wire::Varint(number)) => seconds = number.cast_signed(),
            (2, Wire::Varint(number)) => nanos = i32::try_from(number.cast_signed()).ok()?,
            _ => {}
        }
    }
    if (seconds, nanos) == (0, 0) {
        return Some(None);
    }
    let moment = Timestamp::new(seconds, if micro { nanos } else { 0 }).ok()?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Some(Some(moment.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        [&[number << 3 | 2, length], bytes].concat()
    }

    fn enveloped(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let said = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &said), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn kinds_are_read_by_their_tables() {
        let metadata = |name: &str| field(1, &[field(1, name.as_bytes()), field(2, b"")].concat());
        let map = |key: &str, value: &[u8]| [field(1, key.as_bytes()), field(2, value)].concat();
        let data = [metadata("c"), field(2, &map("k", b"v")), field(3, &map("b", &[0, 255]))];
        let spec = [field(1, b"me"), vec![2 << 3, 15], field(4, &[1 << 3, 100, 2 << 3, 0])];
        let cases = [
            (
                enveloped("v1", "Namespace", &metadata("team")),
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
            ),
            (
                enveloped("v1", "ConfigMap", &data.concat()),
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
                       "data": {"k": "v"}, "binaryData": {"b": "AP8="}}),
            ),
            (
                enveloped("coordination.k8s.io/v1", "Lease", &field(2, &spec.concat())),
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                       "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
                                "renewTime": "1970-01-01T00:01:40.000000Z"}}),
            ),
        ];
        for (body, expected) in cases {
            assert_eq!(Value::Object(object(&body).unwrap()), expected);
        }
    }

    #[test]
    fn broken_and_unknown_input_is_refused() {
        let namespace = enveloped("v1", "Namespace", &field(1, &field(1, b"x")));
        for end in 0..namespace.len() {
            // A message that is cut off between two fields is still a message.
            let _ = object(&namespace[..end]);
        }
        for body in [
            b"".to_vec(),
            b"{}".to_vec(),
            enveloped("v1", "Pod", b""),
            enveloped("v1", "Namespace", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            enveloped("v1", "Namespace", &field(1, &field(1, &[0xff]))),
            enveloped("v1", "Namespace", &[0x0b]),
        ] {
            assert!(object(&body).is_err(), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = object(&[MAGIC, &bytes].concat());
            let length = bytes.len().min(120);
            let _ = object(&enveloped("v1", "Event", &bytes[..length]));
        }
    }
}
