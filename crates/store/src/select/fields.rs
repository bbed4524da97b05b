//! Field selectors: `metadata.name=a,spec.nodeName!=b`.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use super::{Error, extract};
use crate::object::Record;
use crate::registry::Kind;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    equals: bool,
    value: String,
}

/// Terms that must all hold; none selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

impl FieldSelector {
    /// The field that has the name of an object.
    pub(crate) const NAME: &str = "metadata.name";

    /// The first field that may have only one value, and that value.
    pub(crate) fn first_equality(&self) -> Option<(&str, &str)> {
        let term = self.terms.iter().find(|term| term.equals)?;
        Some((&term.field, &term.value))
    }

    /// The value of a field of a stored object, as a selector compares it.
    pub(crate) fn value<'a>(record: &'a Record, field: &str) -> Cow<'a, str> {
        match field {
            Self::NAME => Cow::Borrowed(record.key().name()),
            "metadata.namespace" => Cow::Borrowed(record.key().namespace().unwrap_or_default()),
            field => Cow::Owned(extract::text(record.json(), field)),
        }
    }

    /// Adds a term: the field must have this value.
    pub fn require(&mut self, field: &str, value: &str) {
        self.terms.push(Term { field: field.to_owned(), equals: true, value: value.to_owned() });
    }

    /// Reads a selector.
    ///
    /// # Errors
    /// [`Error::Syntax`] in Kubernetes' wording.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (field, equals, value) = split_term(term).ok_or_else(|| {
                Error::Syntax(format!("invalid selector: '{text}'; can't understand '{term}'"))
            })?;
            terms.push(Term { field: field.to_owned(), equals, value: unescape(value)? });
        }
        Ok(Self { terms })
    }

    /// Checks that a kind lets itself be selected by these fields.
    ///
    /// # Errors
    /// [`Error::Field`] for the first it does not.
    pub fn check(&self, kind: &Kind) -> Result<(), Error> {
        let known = |field: &str| {
            field == "metadata.name"
                || field == "metadata.namespace"
                || kind.selectable.contains(&field)
        };
        match self.terms.iter().find(|term| !known(&term.field)) {
            None => Ok(()),
            Some(term) => Err(Error::Field(term.field.clone())),
        }
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The one value a field may have, if it may have only one.
    #[must_use]
    pub fn exactly(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| term.equals && term.field == field)
            .map(|term| term.value.as_str())
    }

    /// Whether a stored object is selected.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        self.terms.iter().all(|term| {
            let same = Self::value(record, &term.field) == term.value;
            same == term.equals
        })
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches_object(&self, object: &Map<String, Value>) -> bool {
        self.terms.iter().all(|term| {
            let mut path = term.field.split('.');
            let top = path.next().and_then(|name| object.get(name));
            let value = path.fold(top, |value, name| value.and_then(|value| value.get(name)));
            let same = match value {
                None | Some(Value::Null) => term.value.is_empty(),
                Some(Value::String(text)) => *text == term.value,
                Some(other) => {
                    let text = other.to_string();
                    text == term.value
                }
            };
            same == term.equals
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let operator = if term.equals { "=" } else { "!=" };
            write!(f, "{}{operator}", term.field)?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// The terms between commas that are not escaped.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in term.char_indices() {
        let rest = &term[at..];
        for (operator, equals) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((&term[..at], equals, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, Error> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => plain.push(escaped),
                other => {
                    let sequence = other.map(String::from).unwrap_or_default();
                    return Err(Error::Syntax(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(Error::Syntax(format!(
                    "invalid field selector: unescaped character in value: {c}"
                )));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}
