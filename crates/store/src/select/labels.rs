//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::{Error, extract};
use crate::names;
use crate::object::Record;

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// It has this value.
    Equals(String),
    /// It is missing or has another value.
    NotEquals(String),
    /// It has one of these values.
    In(BTreeSet<String>),
    /// It is missing or has none of these values.
    NotIn(BTreeSet<String>),
    /// It is there.
    Exists,
    /// It is missing.
    DoesNotExist,
    /// It is a number greater than this.
    GreaterThan(i64),
    /// It is a number less than this.
    LessThan(i64),
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// The condition.
    pub operator: Operator,
}

impl Requirement {
    /// Whether a value, or the lack of one, is what is asked for.
    #[must_use]
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::Equals(wanted) => value == Some(wanted),
            Operator::NotEquals(other) => value != Some(other),
            Operator::In(wanted) => value.is_some_and(|value| wanted.contains(value)),
            Operator::NotIn(others) => value.is_none_or(|value| !others.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &BTreeSet<String>| {
            let all: Vec<&str> = values.iter().map(String::as_str).collect();
            // A set of nothing but the empty value needs its comma to be seen.
            if all == [""] { ",".to_owned() } else { all.join(",") }
        };
        let key = &self.key;
        match &self.operator {
            Operator::Equals(value) => write!(f, "{key}={value}"),
            Operator::NotEquals(value) => write!(f, "{key}!={value}"),
            Operator::In(values) => write!(f, "{key} in ({})", set(values)),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", set(values)),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Operator::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

/// Requirements that must all be met; none selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// A selector of these requirements.
    #[must_use]
    pub fn new(requirements: Vec<Requirement>) -> Self {
        Self { requirements }
    }

    /// Reads a selector.
    ///
    /// # Errors
    /// [`Error::Syntax`] in Kubernetes' wording.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let requirements = Parser::new(text).selector().map_err(Error::Syntax)?;
        Ok(Self { requirements })
    }

    /// Adds a requirement: the label must have this value.
    pub fn require(&mut self, key: &str, value: &str) {
        let operator = Operator::Equals(value.to_owned());
        self.requirements.push(Requirement { key: key.to_owned(), operator });
    }

    /// Its requirements.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether a stored object is selected.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        if self.is_everything() {
            return true;
        }
        let labels = extract::labels(record.json());
        self.requirements.iter().all(|requirement| {
            let label = labels.iter().find(|(key, _)| *key == requirement.key);
            requirement.accepts(label.map(|(_, value): &(Cow<'_, str>, _)| &**value))
        })
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches_object(&self, object: &Map<String, Value>) -> bool {
        let labels = object.get("metadata").and_then(|metadata| metadata.get("labels"));
        self.requirements.iter().all(|requirement| {
            let label = labels.and_then(|labels| labels.get(&requirement.key));
            requirement.accepts(label.and_then(Value::as_str))
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    /// A word; where an operator may stand, `in` and `notin` are operators.
    Word(&'a str),
    Unknown(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End => "",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Word(text) | Self::Unknown(text) => text,
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    fn new(rest: &'a str) -> Self {
        Self { rest }
    }

    fn scan(&self) -> (Token<'a>, &'a str) {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let special = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
        let Some(first) = rest.chars().next() else {
            return (Token::End, rest);
        };
        if !special(first) {
            let end = rest.find(|c: char| special(c) || blank(c)).unwrap_or(rest.len());
            let (word, tail) = rest.split_at(end);
            return (Token::Word(word), tail);
        }
        let run_end = rest.find(|c: char| !special(c)).unwrap_or(rest.len());
        let run = &rest[..run_end];
        let (token, length) = match run.as_bytes() {
            [b'=', b'=', ..] => (Token::DoubleEquals, 2),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'!', ..] => (Token::Not, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b',', ..] => (Token::Comma, 1),
            [b'>', ..] => (Token::Greater, 1),
            [b'<', ..] => (Token::Less, 1),
            _ => (Token::Unknown(run), run_end),
        };
        (token, &rest[length..])
    }

    fn peek(&self) -> Token<'a> {
        self.scan().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.scan();
        self.rest = rest;
        token
    }

    fn selector(&mut self) -> Parsed<Vec<Requirement>> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Not => {
                    let requirement = self
                        .requirement()
                        .map_err(|why| format!("unable to parse requirement: {why}"))?;
                    requirements.push(requirement);
                    match self.next() {
                        Token::End => return Ok(requirements),
                        Token::Comma => {
                            let after = self.peek();
                            if !matches!(after, Token::Word(_) | Token::Not) {
                                return Err(format!(
                                    "found '{}', expected: identifier after ','",
                                    after.text()
                                ));
                            }
                        }
                        other => {
                            return Err(format!(
                                "found '{}', expected: ',' or 'end of string'",
                                other.text()
                            ));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Parsed<Requirement> {
        let mut token = self.next();
        let absent = token == Token::Not;
        if absent {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        if let Some(problem) = names::qualified_name_problems(key).first() {
            return Err(format!("<nil>: Invalid value: {}: {problem}", quote(key)));
        }
        let key = key.to_owned();
        if absent || matches!(self.peek(), Token::End | Token::Comma) {
            let operator = if absent { Operator::DoesNotExist } else { Operator::Exists };
            return Ok(Requirement { key, operator });
        }
        let operator = match self.next() {
            Token::Word("in") => Operator::In(self.values(&key)?),
            Token::Word("notin") => Operator::NotIn(self.values(&key)?),
            Token::Equals | Token::DoubleEquals => Operator::Equals(self.value(&key)?),
            Token::NotEquals => Operator::NotEquals(self.value(&key)?),
            Token::Greater => Operator::GreaterThan(self.number(&key)?),
            Token::Less => Operator::LessThan(self.number(&key)?),
            other => {
                return Err(format!(
                    "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                    other.text()
                ));
            }
        };
        Ok(Requirement { key, operator })
    }

    fn value(&mut self, key: &str) -> Parsed<String> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => {
                check_value(key, 0, value)?;
                Ok(value.to_owned())
            }
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    fn number(&mut self, key: &str) -> Parsed<i64> {
        let value = self.value(key)?;
        value.parse().map_err(|_| {
            format!(
                "values[0]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
                quote(&value)
            )
        })
    }

    fn values(&mut self, key: &str) -> Parsed<BTreeSet<String>> {
        let open = self.next();
        if open != Token::Open {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let values = match self.peek() {
            Token::Word(_) | Token::Comma => {
                let values = self.list()?;
                let close = self.next();
                if close != Token::Close {
                    return Err(format!("found '{}', expected: ')'", close.text()));
                }
                values
            }
            Token::Close => {
                return Err(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                        .to_owned(),
                );
            }
            other => {
                return Err(format!("found '{}', expected: ',', ')' or identifier", other.text()));
            }
        };
        for (index, value) in values.iter().enumerate() {
            check_value(key, index, value)?;
        }
        Ok(values)
    }

    fn list(&mut self) -> Parsed<BTreeSet<String>> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.insert(value.to_owned());
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        other => {
                            return Err(format!("found '{}', expected: ',' or ')'", other.text()));
                        }
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek() {
                        Token::Close => {
                            values.insert(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.next();
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                other => {
                    return Err(format!("found '{}', expected: ',', or identifier", other.text()));
                }
            }
        }
    }
}

fn check_value(key: &str, index: usize, value: &str) -> Parsed<()> {
    match names::label_value_problems(value).first() {
        None => Ok(()),
        Some(problem) => {
            Err(format!("values[{index}][{key}]: Invalid value: {}: {problem}", quote(value)))
        }
    }
}

fn quote(text: &str) -> String {
    crate::status::quoted(text)
}
