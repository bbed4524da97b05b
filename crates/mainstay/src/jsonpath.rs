//! The part of JSONPath that `wait --for=jsonpath=…` and printing need: fields, indexes, `[*]` and
//! filters such as `[?(@.type=="Ready")]`. Braces around the whole are optional.

use serde_json::Value;

/// Why an expression cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error(
        "{expression:?} is not a JSONPath this program reads (such as {{.status.phase}}): {why}"
    )]
    Parse { expression: String, why: &'static str },
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Every,
    Where { path: Vec<Step>, equal: bool, value: Value },
}

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
}

impl JsonPath {
    pub(crate) fn parse(expression: &str) -> Result<Self, Error> {
        let inner = expression.trim();
        let inner = match inner.strip_prefix('{') {
            Some(rest) => rest.strip_suffix('}').ok_or("the brace is not closed"),
            None => Ok(inner),
        };
        inner
            .and_then(|inner| steps(inner.trim().trim_start_matches('$')))
            .map(|steps| Self { steps })
            .map_err(|why| Error::Parse { expression: expression.to_owned(), why })
    }

    /// All parts of `value` that the expression selects, in order.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        find(&self.steps, value)
    }
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found.into_iter().flat_map(|value| take(step, value)).collect();
    }
    found
}

fn take<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(list)) => {
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let index = if *index < 0 { length + index } else { *index };
            usize::try_from(index).ok().and_then(|index| list.get(index)).into_iter().collect()
        }
        (Step::Every, Value::Array(list)) => list.iter().collect(),
        (Step::Every, Value::Object(map)) => map.values().collect(),
        (Step::Where { path, equal, value }, Value::Array(list)) => {
            list.iter().filter(|item| find(path, item).contains(&value) == *equal).collect()
        }
        _ => Vec::new(),
    }
}

fn steps(mut text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    if !text.is_empty() && !text.starts_with(['.', '[']) {
        (steps, text) = field(text, steps)?;
    }
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix('.') {
            if rest.is_empty() && steps.is_empty() {
                break;
            }
            if rest.starts_with('[') {
                text = rest;
                continue;
            }
            (steps, text) = field(rest, steps)?;
        } else if let Some(rest) = text.strip_prefix('[') {
            let end = closing(rest).ok_or("a bracket is not closed")?;
            steps.push(bracket(&rest[..end])?);
            text = &rest[end + 1..];
        } else {
            return Err("a dot or a bracket is missing");
        }
    }
    Ok(steps)
}

fn field(text: &str, mut steps: Vec<Step>) -> Result<(Vec<Step>, &str), &'static str> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.extend(letters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => {
                end = at;
                break;
            }
            letter => name.push(letter),
        }
    }
    match name.as_str() {
        "" => return Err("a name is empty"),
        "*" => steps.push(Step::Every),
        _ => steps.push(Step::Field(name)),
    }
    Ok((steps, &text[end..]))
}

/// Where the bracket that is open at the start of `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut quote = None;
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Result<Step, &'static str> {
    let text = text.trim();
    if text == "*" {
        return Ok(Step::Every);
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return condition(filter);
    }
    if let Some(Value::String(name)) = literal(text) {
        return Ok(Step::Field(name));
    }
    text.parse()
        .map(Step::Index)
        .map_err(|_| "only an index, a quoted name, * or ?() may stand in brackets")
}

fn condition(text: &str) -> Result<Step, &'static str> {
    let (path, equal, value) = match (text.split_once("=="), text.split_once("!=")) {
        (Some((path, value)), _) => (path, true, value),
        (None, Some((path, value))) => (path, false, value),
        (None, None) => return Err("a filter compares with == or !="),
    };
    let path = path.trim().strip_prefix('@').ok_or("a filter starts with @")?;
    let value = literal(value.trim()).ok_or("a filter compares with a quoted text or a number")?;
    Ok(Step::Where { path: steps(path)?, equal, value })
}

fn literal(text: &str) -> Option<Value> {
    let quoted = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    match quoted('\'').or_else(|| quoted('"')) {
        Some(inner) => Some(Value::from(inner)),
        None => serde_json::from_str(text).ok(),
    }
    .filter(|value| value.is_string() || text.parse::<i64>().is_err() || value.is_number())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_select_values() {
        let value = json!({
            "metadata": {"name": "a", "labels": {"x.y/z": "1"}},
            "status": {"phase": "Ready", "count": 3, "conditions": [
                {"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}]},
        });
        let cases = [
            ("{.status.phase}", json!(["Ready"])),
            (".status.phase", json!(["Ready"])),
            ("status.count", json!([3])),
            ("$.metadata.name", json!(["a"])),
            ("{.metadata.labels['x.y/z']}", json!(["1"])),
            (r"{.metadata.labels.x\.y/z}", json!(["1"])),
            (r#"{.status.conditions[?(@.type=="Ready")].status}"#, json!(["True"])),
            ("{.status.conditions[?(@.type!='Ready')].type}", json!(["Synced"])),
            ("{.status.conditions[*].type}", json!(["Ready", "Synced"])),
            ("{.status.conditions[-1].type}", json!(["Synced"])),
            ("{.status.conditions[7]}", json!([])),
            ("{.nothing.here}", json!([])),
        ];
        for (expression, expected) in cases {
            let path = JsonPath::parse(expression).unwrap();
            assert_eq!(json!(path.find(&value)), expected, "{expression}");
        }
    }

    #[test]
    fn unsupported_expressions_are_errors() {
        for expression in ["{.a", "{.a[}", "{..a}", "{.a[?(@.b)]}", "{.a[?(b=='c')]}", "{.a[b]}"] {
            assert!(JsonPath::parse(expression).is_err(), "{expression}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[.a-c\\[\\]{}@?()='\"*0-9\\\\-]{0,24}") {
            if let Ok(path) = JsonPath::parse(&text) {
                path.find(&json!({"a": [{"b": 1}, "c"]}));
            }
        }
    }
}
