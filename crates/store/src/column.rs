//! The columns of a kind's table: what `kubectl get` prints of an object.
//!
//! A cell is read with a small part of JSONPath (`.status.phase`,
//! `.status.conditions[?(@.type=="Ready")].status`, `.spec.nodes[0]`, `.spec.names[*]`), compiled
//! once, or is computed by a function. Ages are texts as kubectl writes them.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::meta;

/// The type of a column, as OpenAPI names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// True or false.
    Boolean,
    /// A moment, shown as the time since.
    Date,
}

impl ColumnType {
    /// Its name in a column definition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Date => "date",
        }
    }
}

/// A function that computes a cell from an object, given the time of day.
pub type Compute = fn(&Map<String, Value>, Timestamp) -> Value;

/// Where the value of a cell comes from.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A path into the object.
    Path(&'static str),
    /// A function of the object.
    Computed(Compute),
}

/// Why a column's path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The path is not of the supported form.
    #[error("the path {path:?} cannot be read at {rest:?}")]
    Path {
        /// The path.
        path: String,
        /// The path that could not be read.
        rest: String,
    },
}

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The type of its cells.
    pub kind: ColumnType,
    /// The OpenAPI format, or `name` for the column that identifies the object.
    pub format: &'static str,
    /// Its description.
    pub description: &'static str,
    /// 0 is always shown, 1 and above only on request (`-o wide`).
    pub priority: i32,
    /// Where its value comes from.
    pub cell: Cell,
    path: Option<Path>,
}

impl Column {
    fn new(name: &'static str, kind: ColumnType, cell: Cell) -> Self {
        Self { name, kind, format: "", description: "", priority: 0, cell, path: None }
    }

    /// A column of texts at a path.
    #[must_use]
    pub fn string(name: &'static str, path: &'static str) -> Self {
        Self::new(name, ColumnType::String, Cell::Path(path))
    }

    /// A column of whole numbers at a path.
    #[must_use]
    pub fn integer(name: &'static str, path: &'static str) -> Self {
        Self::new(name, ColumnType::Integer, Cell::Path(path))
    }

    /// A column of numbers at a path.
    #[must_use]
    pub fn number(name: &'static str, path: &'static str) -> Self {
        Self::new(name, ColumnType::Number, Cell::Path(path))
    }

    /// A column of truths at a path.
    #[must_use]
    pub fn boolean(name: &'static str, path: &'static str) -> Self {
        Self::new(name, ColumnType::Boolean, Cell::Path(path))
    }

    /// A column of times since the moment at a path.
    #[must_use]
    pub fn date(name: &'static str, path: &'static str) -> Self {
        Self::new(name, ColumnType::Date, Cell::Path(path))
    }

    /// The column of ages that nearly every kind has.
    #[must_use]
    pub fn age() -> Self {
        Self::date("Age", ".metadata.creationTimestamp").about("How long ago it was created.")
    }

    /// A column of computed texts.
    #[must_use]
    pub fn computed(name: &'static str, kind: ColumnType, compute: Compute) -> Self {
        Self::new(name, kind, Cell::Computed(compute))
    }

    /// Shows it on request only.
    #[must_use]
    pub fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    /// Sets the OpenAPI format.
    #[must_use]
    pub fn format(mut self, format: &'static str) -> Self {
        self.format = format;
        self
    }

    /// Says what it shows.
    #[must_use]
    pub fn about(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub(crate) fn compile(&mut self) -> Result<(), Error> {
        if let Cell::Path(path) = self.cell {
            self.path = Some(Path::parse(path)?);
        }
        Ok(())
    }

    /// The cell for an object: null where there is nothing to show.
    #[must_use]
    pub fn value(&self, object: &Map<String, Value>, now: Timestamp) -> Value {
        let path = match (&self.cell, &self.path) {
            (Cell::Computed(compute), _) => return compute(object, now),
            (Cell::Path(_), Some(path)) => path,
            (Cell::Path(_), None) => return Value::Null,
        };
        let Some(value) = path.first(object) else {
            return Value::Null;
        };
        match self.kind {
            ColumnType::Date => age(value, now),
            ColumnType::String => text(path, object, value),
            ColumnType::Integer => match value {
                Value::Number(number) => number
                    .as_i64()
                    .map(Value::from)
                    .or_else(|| number.as_f64().map(|float| Value::from(float as i64)))
                    .unwrap_or(Value::Null),
                _ => Value::Null,
            },
            ColumnType::Number if value.is_number() => value.clone(),
            ColumnType::Boolean if value.is_boolean() => value.clone(),
            ColumnType::Number | ColumnType::Boolean => Value::Null,
        }
    }
}

/// The time since a moment, as kubectl writes it; `<unknown>` if there is no time.
#[must_use]
pub fn age(moment: &Value, now: Timestamp) -> Value {
    let moment = moment.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    moment.map_or_else(
        || Value::from("<unknown>"),
        |moment| Value::from(meta::human_duration(now.duration_since(moment))),
    )
}

fn text(path: &Path, object: &Map<String, Value>, first: &Value) -> Value {
    if !path.is_plural() {
        return match first {
            Value::String(_) => first.clone(),
            other => Value::from(other.to_string()),
        };
    }
    let mut all = String::new();
    path.visit(object, &mut |value| {
        if !all.is_empty() {
            all.push(' ');
        }
        match value {
            Value::String(text) => all.push_str(text),
            other => all.push_str(&other.to_string()),
        }
    });
    Value::from(all)
}

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(usize),
    Every,
    Where { field: Vec<String>, equals: Value },
}

impl Path {
    /// Reads a path. Braces around it are allowed, as JSONPath templates have them.
    ///
    /// # Errors
    /// If it uses anything but fields, indexes, `[*]` and filters on equality.
    pub fn parse(path: &str) -> Result<Self, Error> {
        let inner = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
        let mut rest = inner.strip_prefix('$').unwrap_or(inner);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, tail) = Self::step(rest)
                .ok_or_else(|| Error::Path { path: path.to_owned(), rest: rest.to_owned() })?;
            steps.push(step);
            rest = tail;
        }
        Ok(Self(steps))
    }

    fn step(rest: &str) -> Option<(Step, &str)> {
        if let Some(tail) = rest.strip_prefix('.') {
            let end = tail.find(['.', '[']).unwrap_or(tail.len());
            let (name, tail) = tail.split_at(end);
            return (!name.is_empty()).then(|| (Step::Field(name.to_owned()), tail));
        }
        let inside = rest.strip_prefix('[')?;
        if let Some(filter) = inside.strip_prefix("?(@.") {
            let (filter, tail) = filter.split_once(")]")?;
            let (field, literal) = filter.split_once("==")?;
            let field = field.trim().split('.').map(str::to_owned).collect();
            let equals = literal.trim().replace('\'', "\"");
            let equals = serde_json::from_str(&equals).ok()?;
            return Some((Step::Where { field, equals }, tail));
        }
        if let Some(quoted) = inside.strip_prefix(['\'', '"']) {
            let (name, tail) = quoted.split_once("']").or_else(|| quoted.split_once("\"]"))?;
            return Some((Step::Field(name.to_owned()), tail));
        }
        let (index, tail) = inside.split_once(']')?;
        let step = match index {
            "*" => Step::Every,
            number => Step::Index(number.parse().ok()?),
        };
        Some((step, tail))
    }

    fn is_plural(&self) -> bool {
        self.0.contains(&Step::Every)
    }

    /// The first value at the path.
    #[must_use]
    pub fn first<'a>(&self, object: &'a Map<String, Value>) -> Option<&'a Value> {
        let mut found = None;
        self.visit(object, &mut |value| {
            if found.is_none() {
                found = Some(value);
            }
        });
        found
    }

    fn visit<'a>(&self, object: &'a Map<String, Value>, found: &mut dyn FnMut(&'a Value)) {
        if let Some((Step::Field(name), rest)) = self.0.split_first()
            && let Some(value) = object.get(name)
        {
            Self::descend(rest, value, found);
        }
    }

    fn descend<'a>(steps: &[Step], value: &'a Value, found: &mut dyn FnMut(&'a Value)) {
        let Some((step, rest)) = steps.split_first() else {
            if !value.is_null() {
                found(value);
            }
            return;
        };
        match (step, value) {
            (Step::Field(name), Value::Object(object)) => {
                if let Some(value) = object.get(name) {
                    Self::descend(rest, value, found);
                }
            }
            (Step::Index(index), Value::Array(items)) => {
                if let Some(value) = items.get(*index) {
                    Self::descend(rest, value, found);
                }
            }
            (Step::Every, Value::Array(items)) => {
                for value in items {
                    Self::descend(rest, value, found);
                }
            }
            (Step::Where { field, equals }, Value::Array(items)) => {
                for value in items {
                    let actual = field.iter().try_fold(value, |value, name| value.get(name));
                    if actual == Some(equals) {
                        Self::descend(rest, value, found);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn paths_select_their_values() {
        let object = object(json!({
            "spec": {"names": ["a", "b"], "a.b": 1},
            "status": {"conditions": [
                {"type": "Other", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]},
        }));
        for (path, expected) in [
            (".spec.names[1]", json!("b")),
            (".spec.names[*]", json!("a b")),
            (".spec['a.b']", json!("1")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            ("{.status.conditions[?(@.type=='Other')].status}", json!("False")),
            (".status.conditions[?(@.type==\"None\")].status", Value::Null),
            (".spec.nothing.deeper", Value::Null),
        ] {
            let mut column = Column::string("X", "");
            column.path = Some(Path::parse(path).unwrap());
            assert_eq!(column.value(&object, Timestamp::UNIX_EPOCH), expected, "{path}");
        }
    }

    #[test]
    fn paths_that_cannot_be_read_are_refused() {
        for path in ["spec", ".spec..a", ".a[", ".a[x]", ".a[?(@.b>1)]"] {
            assert!(Path::parse(path).is_err(), "{path}");
        }
    }
}
