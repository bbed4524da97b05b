//! Key selectors: which keys a descriptor serves.
//!
//! A selector is a list of prefixes, patterns and functions. Where several descriptors could serve a
//! key, a pattern beats a function and a function beats a prefix; of two functions the one registered
//! first wins. Two patterns, or two prefixes, that have a key in common are refused at registration.

use std::fmt;
use std::sync::Arc;

type KeyTest = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The keys that a descriptor serves.
///
/// ```
/// use mainstay_graph::KeySelector;
///
/// let members = KeySelector::pattern("bd/*/interface/*");
/// assert!(members.accepts("bd/bd1/interface/tap1"));
/// assert!(!members.accepts("bd/bd1"));
///
/// let even = KeySelector::function("port/", |key| key.ends_with(['0', '2', '4', '6', '8']));
/// assert!(even.accepts("port/12") && !even.accepts("port/13"));
///
/// let both = KeySelector::prefix("route/").or(even);
/// assert!(both.accepts("route/default") && both.accepts("port/12"));
/// ```
#[derive(Clone, Default)]
pub struct KeySelector {
    pub(crate) rules: Vec<Rule>,
}

/// One part of a selector.
#[derive(Debug, Clone)]
pub(crate) enum Rule {
    Prefix(Arc<str>),
    Pattern(KeyPattern),
    Function(KeyFunction),
}

/// A predicate on keys with a common beginning.
#[derive(Clone)]
pub(crate) struct KeyFunction {
    pub(crate) prefix: Arc<str>,
    test: KeyTest,
}

impl fmt::Debug for KeyFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFunction").field(&self.prefix).finish()
    }
}

impl KeyFunction {
    pub(crate) fn accepts(&self, key: &str) -> bool {
        key.starts_with(&*self.prefix) && (self.test)(key)
    }
}

impl KeySelector {
    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl AsRef<str>) -> Self {
        Self { rules: vec![Rule::Prefix(prefix.as_ref().into())] }
    }

    /// Every key that begins with one of the prefixes.
    pub fn prefixes(prefixes: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let rules = prefixes.into_iter().map(|prefix| Rule::Prefix(prefix.as_ref().into()));
        Self { rules: rules.collect() }
    }

    /// Every key of this shape: `*` stands for one part between slashes, and `**` at the end for
    /// everything that follows. Registration refuses a pattern that is empty or has other `*`.
    pub fn pattern(pattern: impl AsRef<str>) -> Self {
        Self { rules: vec![Rule::Pattern(KeyPattern::new(pattern.as_ref()))] }
    }

    /// Every key that begins with `prefix`, which may be empty, and that the function accepts. The
    /// function must answer the same for the same key every time.
    pub fn function(
        prefix: impl AsRef<str>,
        test: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (prefix, test) = (prefix.as_ref().into(), Arc::new(test));
        Self { rules: vec![Rule::Function(KeyFunction { prefix, test })] }
    }

    /// The keys of either selector.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// Whether the selector accepts a key.
    pub fn accepts(&self, key: &str) -> bool {
        self.rules.iter().any(|rule| rule.accepts(key))
    }
}

impl Rule {
    fn accepts(&self, key: &str) -> bool {
        match self {
            Self::Prefix(prefix) => key.starts_with(&**prefix),
            Self::Pattern(pattern) => pattern.accepts(key),
            Self::Function(function) => function.accepts(key),
        }
    }

    /// The beginning of every key that the rule accepts.
    pub(crate) fn start(&self) -> &str {
        match self {
            Self::Prefix(prefix) => prefix,
            Self::Pattern(pattern) => pattern.start(),
            Self::Function(function) => &function.prefix,
        }
    }
}

impl fmt::Debug for KeySelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.rules).finish()
    }
}

/// The shape of a key: literal parts and wildcards between slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPattern {
    text: Arc<str>,
    /// The length of the text before the first wildcard.
    start: usize,
}

impl KeyPattern {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.into(), start: text.find('*').unwrap_or(text.len()) }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The literal beginning of the pattern.
    pub(crate) fn start(&self) -> &str {
        &self.text[..self.start]
    }

    /// Why the pattern is not valid, if it is not.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        if self.text.is_empty() {
            return Some("it is empty");
        }
        let mut parts = self.text.split('/').peekable();
        while let Some(part) = parts.next() {
            match part {
                "**" if parts.peek().is_some() => return Some("** must be its last part"),
                "*" | "**" => {}
                part if part.contains('*') => {
                    return Some("a * must stand alone between two slashes");
                }
                _ => {}
            }
        }
        None
    }

    pub(crate) fn accepts(&self, key: &str) -> bool {
        if !key.starts_with(self.start()) {
            return false;
        }
        let mut rest = Some(key);
        for part in self.text.split('/') {
            let Some(left) = rest else { return false };
            if part == "**" {
                return !left.is_empty();
            }
            let (first, after) = match left.split_once('/') {
                Some((first, after)) => (first, Some(after)),
                None => (left, None),
            };
            let fits = if part == "*" { !first.is_empty() } else { first == part };
            if !fits {
                return false;
            }
            rest = after;
        }
        rest.is_none()
    }

    /// Whether some key fits both patterns.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (mut own, mut others) = (self.text.split('/'), other.text.split('/'));
        loop {
            match (own.next(), others.next()) {
                (None, None) => return true,
                (Some("**"), Some(_)) | (Some(_), Some("**")) => return true,
                (Some("*"), Some(part)) | (Some(part), Some("*")) if !part.is_empty() => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }

    /// The key with these texts in place of the wildcards; none if they do not fit.
    pub(crate) fn fill(&self, texts: &[String]) -> Option<String> {
        let mut texts = texts.iter();
        let mut parts = Vec::new();
        for part in self.text.split('/') {
            parts.push(match part {
                "*" | "**" => texts.next()?.as_str(),
                literal => literal,
            });
        }
        let key = parts.join("/");
        (texts.next().is_none() && self.accepts(&key)).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_part_by_part() {
        for (pattern, key, accepts) in [
            ("bd/*/interface/*", "bd/a/interface/b", true),
            ("bd/*/interface/*", "bd/a/interface/b/c", false),
            ("bd/*/interface/*", "bd/a/interface/", false),
            ("bd/*/interface/*", "bd//interface/b", false),
            ("bd/*/interface/*", "bd/a/interface", false),
            ("bd/*/interface/*", "bd/a/fib/b", false),
            ("bd/*/interface/*", "bx/a/interface/b", false),
            ("/bd/*", "/bd/a", true),
            ("/bd/*", "bd/a", false),
            ("a/*/**", "a/b/c/d", true),
            ("a/*/**", "a/b/c", true),
            ("a/*/**", "a/b/", false),
            ("a/*/**", "a/b", false),
            ("*/x", "y/x", true),
            ("plain", "plain", true),
            ("plain", "plainer", false),
        ] {
            assert_eq!(KeyPattern::new(pattern).accepts(key), accepts, "{pattern} {key}");
        }
    }

    #[test]
    fn patterns_overlap_if_a_key_fits_both() {
        for (a, b, overlaps) in [
            ("a/*/b/*", "a/x/b/y", true),
            ("a/*/b/*", "a/*/c/*", false),
            ("a/*/b/*", "a/*/b", false),
            ("a/**", "a/*/b/*", true),
            ("a/*", "*/b", true),
            ("a/*", "b/*", false),
            ("/a/*", "*/a/b", false),
        ] {
            let (a, b) = (KeyPattern::new(a), KeyPattern::new(b));
            assert_eq!(a.overlaps(&b), overlaps, "{a:?} {b:?}");
            assert_eq!(b.overlaps(&a), overlaps, "{b:?} {a:?}");
        }
    }

    #[test]
    fn a_pattern_is_filled_only_with_texts_that_fit() {
        let fill = |pattern: &str, texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            KeyPattern::new(pattern).fill(&texts)
        };
        assert_eq!(fill("bd/*/interface/*", &["a", "b"]).as_deref(), Some("bd/a/interface/b"));
        assert_eq!(fill("a/**", &["b/c"]).as_deref(), Some("a/b/c"));
        assert_eq!(fill("bd/*/interface/*", &["a"]), None);
        assert_eq!(fill("bd/*/interface/*", &["a", "b", "c"]), None);
        assert_eq!(fill("bd/*/interface/*", &["a", ""]), None);
        assert_eq!(fill("bd/*/interface/*", &["a", "b/c"]), None);
    }
}
