//! Selectors: what is read is printed so that it is read as the same, and an object is selected or
//! not whether it is looked at as stored bytes or as a tree.

use mainstay_server::laws::Draw;
use mainstay_store::object::{Body, Record, Revision};
use mainstay_store::select::{FieldSelector, LabelSelector};
use serde_json::{Map, Value, json};

use crate::kind;

const NAMES: [&str; 12] = [
    "a",
    "b",
    "app",
    "tier",
    "example.com/x",
    "spec",
    "status",
    "phase",
    "nodeName",
    "type",
    "web",
    "in",
];

/// Names an object or a namespace can have: a slash would end the segment of the key it is in.
const PLACES: [&str; 5] = ["a", "b", "web", "in", "example.com"];

/// A text: as it came, or put together from the words of selectors.
fn text(draw: &mut Draw<'_>, words: &[&str]) -> String {
    if draw.below(4) == 0 {
        return String::from_utf8_lossy(draw.rest()).into_owned();
    }
    let mut text = String::new();
    for _ in 0..draw.below(12) {
        match draw.below(8) {
            0 => text.push_str(&draw.text()),
            1 => text.push_str(&draw.number().to_string()),
            2 | 3 => text += *draw.pick(&NAMES),
            _ => text += *draw.pick(words),
        }
    }
    text
}

/// An object and how it would be stored.
fn object(draw: &mut Draw<'_>) -> (Map<String, Value>, Record) {
    let mut object = draw.object(&NAMES, 2);
    let labels: Map<String, Value> = (0..draw.below(4))
        .map(|_| ((*draw.pick(&NAMES)).to_owned(), Value::from(draw.text())))
        .collect();
    let (name, namespace) = (*draw.pick(&PLACES), *draw.pick(&PLACES));
    let version = Revision(7);
    object.insert(
        "metadata".to_owned(),
        json!({"name": name, "namespace": namespace, "labels": labels, "resourceVersion": "7"}),
    );
    let key = kind("configmaps").key(Some(namespace), name);
    let record = Body::new(&object).at(key, version, version);
    (object, record)
}

/// Label selectors.
pub fn label_selector(data: &[u8]) {
    let mut draw = Draw::new(data);
    let (object, record) = object(&mut draw);
    let words = ["=", "==", "!=", ",", "!", "(", ")", " in ", " notin ", ">", "<", " "];
    let text = text(&mut draw, &words);
    let Ok(selector) = LabelSelector::parse(&text) else { return };
    let printed = selector.to_string();
    let again = LabelSelector::parse(&printed);
    assert_eq!(again.as_ref(), Ok(&selector), "{text:?} is printed as {printed:?}");
    let (stored, tree) = (selector.matches(&record), selector.matches_object(&object));
    assert_eq!(stored, tree, "{text:?} of {object:?}");
    let all = selector.requirements().iter().all(|requirement| {
        let value = object["metadata"]["labels"].get(&requirement.key);
        requirement.accepts(value.and_then(Value::as_str))
    });
    assert_eq!(tree, all, "{text:?} of {object:?}");
}

/// Field selectors.
pub fn field_selector(data: &[u8]) {
    let mut draw = Draw::new(data);
    let (object, record) = object(&mut draw);
    let words = ["=", "==", "!=", ",", "\\", "\\,", ".", "metadata.name", "metadata.namespace"];
    let text = text(&mut draw, &words);
    let Ok(selector) = FieldSelector::parse(&text) else { return };
    let printed = selector.to_string();
    let again = FieldSelector::parse(&printed);
    assert_eq!(again.as_ref(), Ok(&selector), "{text:?} is printed as {printed:?}");
    // Only fields that a kind declares are ever looked at, and they are texts or flags.
    let (stored, tree) = (selector.matches(&record), selector.matches_object(&object));
    if selector.check(kind("configmaps")).is_ok() {
        assert_eq!(stored, tree, "{text:?} of {object:?}");
    }
}
