//! Handles `/dids/SCOPE/dids/search`: finds data identifiers by name, size, age and metadata.
//!
//! Clients write the filters as a Python literal: a list of dictionaries of conditions. A data
//! identifier matches if all conditions of at least one dictionary hold. A condition is a key, with an
//! optional suffix `.gt`, `.gte`, `.lt`, `.lte` or `.ne`, and a value in which `*` matches any text.

use std::collections::BTreeSet;

use mainstay_catalog::values;
use mainstay_rules::api::{DidRecord, DidType, Micros};
use mainstay_rules::did;
use mainstay_rules::error::{Class, Error, Result, refuse};
use mainstay_rules::rule::update::read_time;
use serde_json::{Map, Value, json};

use super::{Call, Reply, query_flag};

fn malformed(what: &str) -> Error {
    refuse(Class::DIDFilterSyntaxError, format!("The filters cannot be read: {what}"))
}

/// How deep a literal may be nested.
const MAX_DEPTH: usize = 8;

/// Reads a Python literal made of lists, dictionaries, texts, numbers, True, False and None.
pub(super) fn literal(text: &str) -> Result<Value> {
    let mut reader = Reader { rest: text, depth: 0 };
    let value = reader.value()?;
    reader.skip();
    if reader.rest.is_empty() { Ok(value) } else { Err(malformed("unexpected text after the end")) }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, word: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Result<Value> {
        self.skip();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(malformed("nested too deeply"));
        }
        let value = match self.rest.chars().next() {
            Some('[') => self.items('[', ']').map(Value::Array),
            Some('(') => self.items('(', ')').map(Value::Array),
            Some('{') => self.pairs().map(Value::Object),
            Some('\'' | '"') => self.text().map(Value::String),
            Some(_) => self.word(),
            None => Err(malformed("unexpected end")),
        };
        self.depth -= 1;
        value
    }

    fn items(&mut self, open: char, close: char) -> Result<Vec<Value>> {
        let (open, close) = (open.to_string(), close.to_string());
        let mut items = Vec::new();
        self.take(&open);
        loop {
            if self.take(&close) {
                return Ok(items);
            }
            items.push(self.value()?);
            if !self.take(",") && !self.rest.trim_start().starts_with(close.as_str()) {
                return Err(malformed("a comma is missing"));
            }
        }
    }

    fn pairs(&mut self) -> Result<Map<String, Value>> {
        let mut pairs = Map::new();
        self.take("{");
        loop {
            if self.take("}") {
                return Ok(pairs);
            }
            self.skip();
            let key = self.text()?;
            if !self.take(":") {
                return Err(malformed("a colon is missing"));
            }
            let value = self.value()?;
            pairs.insert(key, value);
            if !self.take(",") && !self.rest.trim_start().starts_with('}') {
                return Err(malformed("a comma is missing"));
            }
        }
    }

    fn text(&mut self) -> Result<String> {
        let mut letters = self.rest.char_indices();
        let quote = match letters.next() {
            Some((_, quote @ ('\'' | '"'))) => quote,
            _ => return Err(malformed("a text should be in quotes")),
        };
        let mut text = String::new();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => match letters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, other)) => text.push(other),
                    None => break,
                },
                letter if letter == quote => {
                    self.rest = &self.rest[at + letter.len_utf8()..];
                    return Ok(text);
                }
                letter => text.push(letter),
            }
        }
        Err(malformed("a closing quote is missing"))
    }

    fn word(&mut self) -> Result<Value> {
        let end = self.rest.find([',', ']', '}', ')', ':', ' ']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Ok(Value::Bool(true)),
            "False" | "false" => Ok(Value::Bool(false)),
            "None" | "null" => Ok(Value::Null),
            number => serde_json::from_str(number).map_err(|_| malformed("unknown word")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    Not,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// One condition.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    key: String,
    relation: Relation,
    value: Value,
}

/// Reads the filters: groups of conditions, of which one group must hold.
fn filters(value: Value) -> Result<Vec<Vec<Condition>>> {
    let groups = match value {
        Value::Array(groups) => groups,
        group @ Value::Object(_) => vec![group],
        Value::Null => Vec::new(),
        _ => return Err(malformed("it should be a list of dictionaries")),
    };
    let group = |group: Value| {
        let Value::Object(conditions) = group else {
            return Err(malformed("it should be a list of dictionaries"));
        };
        conditions.into_iter().map(|(key, value)| condition(&key, value)).collect()
    };
    groups.into_iter().map(group).collect()
}

fn condition(key: &str, value: Value) -> Result<Condition> {
    let (key, relation) = match key.rsplit_once('.') {
        Some((key, "gt")) => (key, Relation::More),
        Some((key, "gte")) => (key, Relation::AtLeast),
        Some((key, "lt")) => (key, Relation::Less),
        Some((key, "lte")) => (key, Relation::AtMost),
        Some((key, "ne")) => (key, Relation::Not),
        // Metadata keys may contain dots, the catalog's own keys do not.
        Some((key, relation)) if did::is_own(key) => {
            return Err(malformed(&format!(
                "{relation:.40} is not an operator; use gt, gte, lt, lte or ne"
            )));
        }
        _ => match key {
            "created_before" => ("created_at", Relation::AtMost),
            "created_after" => ("created_at", Relation::AtLeast),
            key => (key, Relation::Equal),
        },
    };
    if key == "created_at" && value.as_str().and_then(read_time).is_none() {
        return Err(malformed("created_at should be a date such as 2026-11-15T22:02:54"));
    }
    Ok(Condition { key: key.to_owned(), relation, value })
}

/// Whether a text matches a pattern in which `*` matches any text and no other character is special.
/// Takes linear time and cannot fail: patterns come from clients.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + middle.len()..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

impl Condition {
    fn holds(&self, found: &DidRecord, meta: &Map<String, Value>) -> bool {
        if self.key == "created_at" {
            let wanted = self.value.as_str().and_then(read_time);
            return wanted
                .is_some_and(|wanted: Micros| self.judge(found.created_at.partial_cmp(&wanted)));
        }
        let held = match self.key.as_str() {
            "name" => Some(json!(found.did.name)),
            "scope" => Some(json!(found.did.scope)),
            "account" => Some(json!(found.account)),
            "length" => found.length.map(Value::from),
            "bytes" => found.bytes.map(Value::from),
            "did_type" | "type" => Some(json!(found.did_type)),
            "is_open" => Some(json!(found.is_open)),
            "monotonic" => Some(json!(found.monotonic)),
            "adler32" => found.adler32.clone().map(Value::from),
            "md5" => found.md5.clone().map(Value::from),
            key => meta.get(key).cloned(),
        };
        let Some(held) = held else { return self.relation == Relation::Not };
        let number = |value: &Value| match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse::<f64>().ok(),
            _ => None,
        };
        if let (Some(held), Some(wanted)) = (number(&held), number(&self.value)) {
            return self.judge(held.partial_cmp(&wanted));
        }
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (held, wanted) = (plain(&held), plain(&self.value));
        match self.relation {
            Relation::Equal => fits(&wanted, &held),
            Relation::Not => !fits(&wanted, &held),
            _ => self.judge(held.partial_cmp(&wanted)),
        }
    }

    fn judge(&self, order: Option<std::cmp::Ordering>) -> bool {
        order.is_some_and(|order| match self.relation {
            Relation::Equal => order.is_eq(),
            Relation::Not => order.is_ne(),
            Relation::Less => order.is_lt(),
            Relation::AtMost => order.is_le(),
            Relation::More => order.is_gt(),
            Relation::AtLeast => order.is_ge(),
        })
    }
}

/// The common prefix of all matching names, which narrows the SQL query.
fn common_start(groups: &[Vec<Condition>]) -> String {
    let [group] = groups else { return String::new() };
    let name = group.iter().find(|one| one.key == "name" && one.relation == Relation::Equal);
    let start = name.and_then(|one| one.value.as_str()).map(|text| text.split('*').next());
    start.flatten().unwrap_or("").to_owned()
}

/// The types that the name of a type covers.
fn kinds(name: &str) -> Option<&'static [DidType]> {
    Some(match name {
        "all" => &[DidType::File, DidType::Dataset, DidType::Container],
        "collection" => &[DidType::Dataset, DidType::Container],
        "dataset" => &[DidType::Dataset],
        "container" => &[DidType::Container],
        "file" => &[DidType::File],
        _ => return None,
    })
}

/// The types that a group of conditions asks for, and its other conditions. A condition on the type
/// overrides the argument `type` (`default`): Rucio's command line sends only the condition.
fn typed(
    mut group: Vec<Condition>,
    default: &'static [DidType],
) -> (&'static [DidType], Vec<Condition>) {
    let asked = |one: &Condition| {
        let plain = one.key == "type" && one.relation == Relation::Equal;
        one.value.as_str().filter(|_| plain).and_then(|name| kinds(&name.to_ascii_lowercase()))
    };
    let found = group.iter().enumerate().find_map(|(at, one)| Some((at, asked(one)?)));
    match found {
        Some((at, kinds)) => {
            group.remove(at);
            (kinds, group)
        }
        None => (default, group),
    }
}

pub(super) fn search(call: &Call, scope: &str) -> Result<Reply> {
    let scope = scope.to_owned();
    let default = kinds(call.arg("type").unwrap_or("collection")).ok_or_else(|| {
        let message = "type is all, collection, dataset, container or file";
        refuse(Class::UnsupportedOperation, message)
    })?;
    let groups = filters(literal(call.arg("filters").unwrap_or("None"))?)?;
    let (long, recursive) = (query_flag(call, "long")?, query_flag(call, "recursive")?);
    let start = common_start(&groups);
    // `~` sorts after every character of a name.
    let end = format!("{start}~~");
    let mut groups: Vec<_> = groups.into_iter().map(|group| typed(group, default)).collect();
    if groups.is_empty() {
        groups.push((default, Vec::new()));
    }
    let types: BTreeSet<DidType> =
        groups.iter().flat_map(|(kinds, _)| kinds.iter().copied()).collect();
    let types: Vec<String> = types.iter().map(|kind| format!("'{}'", kind.letter())).collect();
    let sql = did::search_sql(&types.join(", "));
    Ok(Reply::Lines(Box::new(move |tx, line| {
        let mut below = Vec::new();
        tx.for_each(&sql, values![&scope, &start, &end], &mut |row| {
            let found = did::from_row(&row)?;
            let meta = did::meta_of(&row)?;
            let taken = |(kinds, group): &(&[DidType], Vec<Condition>)| {
                kinds.contains(&found.did_type) && group.iter().all(|one| one.holds(&found, &meta))
            };
            if !groups.iter().any(taken) {
                return Ok(());
            }
            if recursive && found.did_type != DidType::File {
                below.push(found.id);
            }
            line(show_found(&found, long))
        })?;
        if recursive {
            did::below(tx, &below, &mut |found| line(show_found(&found, long)))?;
        }
        Ok(())
    })))
}

fn show_found(found: &DidRecord, long: bool) -> String {
    if !long {
        return json!(found.did.name).to_string();
    }
    let length = found.length.filter(|_| found.did_type != DidType::File);
    json!({
        "scope": found.did.scope, "name": found.did.name, "did_type": found.did_type, "bytes": found.bytes,
        "length": length,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_literals_are_parsed() {
        for (text, expected) in [
            ("[{'name': '*'}]", json!([{"name": "*"}])),
            ("[{'a.gte': 3, 'b': True}, {}]", json!([{"a.gte": 3, "b": true}, {}])),
            ("{\"it's\": None, 'x': -1.5}", json!({"it's": null, "x": -1.5})),
            ("[]", json!([])),
            ("['a\\'b',]", json!(["a'b"])),
        ] {
            assert_eq!(literal(text).unwrap(), expected, "{text}");
        }
        let deep = "[".repeat(100_000);
        for text in ["", "[", "{'a' 1}", "{a: 1}", "['a' 'b']", "[1] 2", "import os", deep.as_str()]
        {
            assert!(literal(text).is_err(), "{:.40}", text);
        }
    }

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, fit) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "ab", false),
            ("a*b*c", "a-b-b-c", true),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*b", "ab", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
        }
    }
}
