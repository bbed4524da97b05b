//! RSE expressions: which storage elements a rule may use.
//!
//! `tier=1&region=eu\SITE-X`: terms joined by union `|`, intersection `&` and difference `\`,
//! all of equal rank and read from left to right; only parentheses group. A bare word is an
//! attribute that must be true, and every RSE has its own name as such an attribute. Parsing
//! checks parentheses first, then syntax; an empty result is an error, an unknown name is not.
//!
//! Parsing and evaluation use explicit stacks, so nesting depth is bounded only by the length.
//! Enter at [`Expression::parse`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Class, Refusal};

/// A storage element as expressions and selection see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rse {
    /// The catalog's own number for it.
    pub id: i64,
    /// The identity clients see.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// `DISK` or `TAPE`.
    pub rse_type: String,
    /// Whether physical names follow from logical ones.
    pub deterministic: bool,
    /// Whether it may lose data without a deletion.
    pub volatile: bool,
    /// Whether it is a staging area.
    pub staging_area: bool,
    /// Whether it may be read.
    pub read: bool,
    /// Whether it may be written.
    pub write: bool,
    /// Whether it may be deleted from.
    pub delete: bool,
    /// Attributes, booleans as `true` / `false`.
    pub attributes: BTreeMap<String, String>,
    /// Limits such as `MaxSpaceAvailable`.
    pub limits: BTreeMap<String, i64>,
    /// How its files are reached.
    pub protocols: Vec<Arc<mainstay_transfers::protocol::Protocol>>,
    /// When it was created and changed, in microseconds.
    pub times: (i64, i64),
}

impl Rse {
    /// An attribute's value.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }

    /// Whether an attribute is true.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.attribute(key), Some("true" | "1"))
    }

    /// Whether it is a test endpoint, on which quotas do not apply.
    #[must_use]
    pub fn is_mock(&self) -> bool {
        self.flag("mock")
    }

    fn column(&self, key: &str) -> Option<String> {
        let flag = |value: bool| Some(value.to_string());
        match key {
            "rse" => Some(self.name.clone()),
            "rse_type" => Some(self.rse_type.clone()),
            "deterministic" => flag(self.deterministic),
            "volatile" => flag(self.volatile),
            "staging_area" => flag(self.staging_area),
            "availability_read" => flag(self.read),
            "availability_write" => flag(self.write),
            "availability_delete" => flag(self.delete),
            _ => None,
        }
    }
}

/// Attribute values as stored and compared: all spellings of true and false are unified.
#[must_use]
pub fn normalise(value: &str) -> String {
    if value.eq_ignore_ascii_case("true") {
        "true".to_owned()
    } else if value.eq_ignore_ascii_case("false") {
        "false".to_owned()
    } else {
        value.to_owned()
    }
}

/// How two sets are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `|`
    Union,
    /// `&`
    Intersection,
    /// `\`
    Difference,
}

/// The comparison of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<`
    Less,
    /// `>`
    Greater,
}

/// The smallest part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// `*`
    All,
    /// An attribute that must be true.
    Word(String),
    /// A comparison.
    Compare(String, Comparison, String),
}

impl Term {
    fn matches(&self, rse: &Rse) -> bool {
        match self {
            Self::All => true,
            Self::Word(key) => rse.attribute(key) == Some("true"),
            Self::Compare(key, Comparison::Equal, value) => {
                let value = normalise(value);
                rse.column(key).or_else(|| rse.attributes.get(key).cloned()) == Some(value)
            }
            Self::Compare(key, comparison, value) => {
                let left = rse.attribute(key).and_then(|text| text.parse::<f64>().ok());
                let right = value.parse::<f64>().ok();
                match (left, right) {
                    (Some(left), Some(right)) if *comparison == Comparison::Less => left < right,
                    (Some(left), Some(right)) => left > right,
                    _ => false,
                }
            }
        }
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => formatter.write_str("*"),
            Self::Word(word) => formatter.write_str(word),
            Self::Compare(key, comparison, value) => {
                let sign = match comparison {
                    Comparison::Equal => '=',
                    Comparison::Less => '<',
                    Comparison::Greater => '>',
                };
                write!(formatter, "{key}{sign}{value}")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Operator(Operator),
    Term(Term),
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    tokens: Vec<Token>,
}

/// The result of one term of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermResult {
    /// The term as written.
    pub term: String,
    /// The operator before it.
    pub operator: Option<Operator>,
    /// The RSEs the term alone matches.
    pub matched: BTreeSet<i64>,
    /// The RSEs of its group after it was combined.
    pub after: BTreeSet<i64>,
}

const SYNTAX: &str = "Expression does not comply to RSE Expression syntax";

fn invalid(message: &str) -> Refusal {
    Refusal { class: Class::InvalidRSEExpression, message: message.to_owned() }
}

/// The length limit of an expression.
const LONGEST: usize = 3_000;

impl Expression {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() > LONGEST {
            return Err(invalid(&format!("RSE Expression is longer than {LONGEST} letters.")));
        }
        check_parentheses(text)?;
        let tokens = tokenise(text)?;
        check_order(&tokens)?;
        Ok(Self { tokens })
    }

    /// The RSEs in `rses` that match; an empty set is an error.
    pub fn resolve(&self, rses: &[Rse]) -> Result<BTreeSet<i64>, Refusal> {
        let found = self.evaluate(rses, |_| ());
        if found.is_empty() {
            return Err(invalid("RSE Expression resulted in an empty set."));
        }
        Ok(found)
    }

    /// The same, with the result of each term.
    #[must_use]
    pub fn explain(&self, rses: &[Rse]) -> (BTreeSet<i64>, Vec<TermResult>) {
        let mut terms = Vec::new();
        let found = self.evaluate(rses, |term| terms.push(term));
        (found, terms)
    }

    fn evaluate(&self, rses: &[Rse], mut seen: impl FnMut(TermResult)) -> BTreeSet<i64> {
        let mut outer: Vec<(BTreeSet<i64>, Option<Operator>)> = Vec::new();
        let mut held = BTreeSet::new();
        let mut operator = None;
        for token in &self.tokens {
            match token {
                Token::Operator(next) => operator = Some(*next),
                Token::Open => outer.push((std::mem::take(&mut held), operator.take())),
                Token::Close => {
                    if let Some((left, before)) = outer.pop() {
                        let right = std::mem::take(&mut held);
                        held = combine(left, before, &right);
                    }
                }
                Token::Term(term) => {
                    let matched: BTreeSet<i64> =
                        rses.iter().filter(|rse| term.matches(rse)).map(|rse| rse.id).collect();
                    held = combine(held, operator, &matched);
                    let term = term.to_string();
                    seen(TermResult { term, operator, matched, after: held.clone() });
                    operator = None;
                }
            }
        }
        held
    }
}

fn combine(
    left: BTreeSet<i64>,
    operator: Option<Operator>,
    right: &BTreeSet<i64>,
) -> BTreeSet<i64> {
    match operator {
        None => right.clone(),
        Some(Operator::Union) => left.union(right).copied().collect(),
        Some(Operator::Intersection) => left.intersection(right).copied().collect(),
        Some(Operator::Difference) => left.difference(right).copied().collect(),
    }
}

fn check_parentheses(text: &str) -> Result<(), Refusal> {
    let mut depth = 0_i64;
    for character in text.bytes() {
        match character {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    if depth == 0 { Ok(()) } else { Err(invalid("Problem with parentheses.")) }
}

fn tokenise(text: &str) -> Result<Vec<Token>, Refusal> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let token = match byte {
            b'(' => Some(Token::Open),
            b')' => Some(Token::Close),
            b'|' => Some(Token::Operator(Operator::Union)),
            b'&' => Some(Token::Operator(Operator::Intersection)),
            b'\\' => Some(Token::Operator(Operator::Difference)),
            b'*' => Some(Token::Term(Term::All)),
            _ => None,
        };
        if let Some(token) = token {
            tokens.push(token);
            at += 1;
            continue;
        }
        let end = bytes[at..]
            .iter()
            .position(|byte| matches!(byte, b'(' | b')' | b'|' | b'&' | b'\\' | b'*'))
            .map_or(bytes.len(), |length| at + length);
        tokens.push(Token::Term(term(&bytes[at..end]).ok_or_else(|| invalid(SYNTAX))?));
        at = end;
    }
    Ok(tokens)
}

fn term(bytes: &[u8]) -> Option<Term> {
    let text = std::str::from_utf8(bytes).ok()?;
    let Some(sign) = text.find(['=', '<', '>']) else {
        return is_word(text).then(|| Term::Word(text.to_owned()));
    };
    let (key, value) = (&text[..sign], &text[sign + 1..]);
    let comparison = match bytes[sign] {
        b'=' => Comparison::Equal,
        b'<' => Comparison::Less,
        _ => Comparison::Greater,
    };
    let legal = |text: &str, extra: &str| {
        !text.is_empty()
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || extra.contains(letter))
    };
    (legal(key, "._-") && legal(value, "_-"))
        .then(|| Term::Compare(key.to_owned(), comparison, value.to_owned()))
}

fn is_word(text: &str) -> bool {
    text.split(['_', '-'])
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Terms and operators must alternate inside every pair of parentheses.
fn check_order(tokens: &[Token]) -> Result<(), Refusal> {
    let mut wants_term = true;
    for token in tokens {
        let fits = match token {
            Token::Open => wants_term,
            Token::Close => !wants_term,
            Token::Operator(_) => !std::mem::replace(&mut wants_term, true),
            Token::Term(_) => std::mem::replace(&mut wants_term, false),
        };
        if !fits {
            return Err(invalid(SYNTAX));
        }
    }
    if wants_term { Err(invalid(SYNTAX)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nesting_is_limited_only_by_the_length() {
        let nested = |deep| format!("{}A{}", "(".repeat(deep), ")".repeat(deep));
        let text = nested(LONGEST / 2 - 1);
        assert!(Expression::parse(&text).is_ok());
        assert_eq!(Expression::parse(&text[1..]).unwrap_err().message, "Problem with parentheses.");
        let refused = Expression::parse(&nested(100_000)).unwrap_err();
        assert_eq!(refused.message, "RSE Expression is longer than 3000 letters.");
    }

    #[test]
    fn operators_have_equal_precedence() {
        let rse = |id: i64, keys: &[&str]| Rse {
            id,
            attributes: keys.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect(),
            ..Rse::default()
        };
        let rses = [rse(1, &["A", "T"]), rse(2, &["B"]), rse(3, &["C", "T"])];
        let resolve = |text: &str| Expression::parse(text).unwrap().resolve(&rses);
        assert_eq!(resolve("A|B&T").unwrap(), [1].into());
        assert_eq!(resolve("A|(B&T)|C").unwrap(), [1, 3].into());
        assert_eq!(resolve("*\\T").unwrap(), [2].into());
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "[ -~]{0,60}") {
            if let Ok(expression) = Expression::parse(&text) {
                let _ = expression.resolve(&[Rse::default()]);
            }
        }
    }
}
