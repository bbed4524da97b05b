//! Finds secrets in any text: tokens, passwords in addresses, and values behind the name of a secret.
//!
//! [`hidden`] is the one way for a text into a line of the log. Tokens and the passwords of addresses
//! are replaced where they stand. A text in which a secret shows up in another way, or only once its
//! encoding is undone, is hidden as a whole. Every step takes time in proportion to the text.

use std::borrow::Cow;

use super::redact::{self, REDACTED};
use crate::path::percent_decode;
use crate::tokens;

/// Words that make the name of a field or parameter that of a secret.
const SECRET_WORDS: [&str; 10] = [
    "token",
    "password",
    "passwd",
    "pwd",
    "apikey",
    "passphrase",
    "secret",
    "authorization",
    "credential",
    "signature",
];

/// Names that are secret as a whole.
const SECRET_NAMES: [&str; 9] =
    ["key", "privatekey", "csr", "pass", "auth", "bearer", "jwt", "otp", "sig"];

/// How often a text may be percent-encoded; beyond that its value is hidden.
const MOST_ENCODED: usize = 6;

/// How deep documents may lie in texts of documents; beyond that they are hidden.
pub(super) const MOST_NESTED: usize = 4;

/// The length of a token behind its prefix.
const BARE_TOKEN: usize = 43;

/// How often the letters of a token change between small, large and digit, at least. A random one has
/// about 26 changes; names that people give have few.
const CHANGES: usize = 13;

/// Which colons separate a name from its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colons {
    All,
    /// Those beside a quote or before a space: in paths and names, others separate a scope from a name.
    Spaced,
}

/// Whether a field or parameter of this name holds a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = letters(name);
    has_secret_word(&name) || SECRET_NAMES.contains(&name.as_str())
}

fn letters(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

fn has_secret_word(letters: &str) -> bool {
    SECRET_WORDS.iter().any(|word| letters.contains(word))
}

/// Whether a parameter holds a secret, however its name is encoded.
pub(super) fn names_secret(name: &str) -> bool {
    decoded(name).is_none_or(|name| is_secret(&name) || is_secret(last_word(&name)))
}

/// A text as a line shows it: without secrets.
pub(super) fn hidden(text: &str) -> Cow<'_, str> {
    // Most texts are short words.
    let signs = [b'=', b':', b'(', b'%', b'+', b'\\', b'_', b' '];
    if text.len() < BARE_TOKEN && !text.bytes().any(|byte| signs.contains(&byte)) {
        return Cow::Borrowed(text);
    }
    let shown = inline(text);
    match shows_secret(&shown, Colons::Spaced) {
        true => Cow::Borrowed(REDACTED),
        false => shown,
    }
}

/// Whether a text shows a secret once it is decoded: a token, a password in an address, the name of
/// a secret before its value (`a=b;password=x`), or a document with a secret in it.
pub(super) fn shows_secret(text: &str, colons: Colons) -> bool {
    let Some(plain) = decoded(text) else { return true };
    plain_shows(&plain, colons) || redact::document_shows(&plain, MOST_NESTED)
}

/// The same for a text without percent-encoding that is no document.
pub(super) fn plain_shows(plain: &str, colons: Colons) -> bool {
    let plain = unescaped(plain);
    let lower = plain.to_ascii_lowercase();
    lower.contains("bearer ")
        || lower.contains("private key-----")
        || matches!(inline(&plain), Cow::Owned(_))
        || assigns_secret(&plain, colons)
}

/// A text without percent-encoding, however often it was encoded; `None` if that is too often, or if
/// the bytes are not UTF-8.
pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    let mut plain = Cow::Borrowed(text);
    for _ in 0..MOST_ENCODED {
        if !plain.contains(['%', '+']) {
            return Some(plain);
        }
        let next = percent_decode(&plain, true)?.into_owned();
        if next == plain {
            return Some(plain);
        }
        plain = Cow::Owned(next);
    }
    None
}

/// A text without the escapes of JSON for letters (`\u0077`), however many backslashes they have.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut pieces = text.split("\\u");
    plain.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let code = piece.get(..4).and_then(|code| u32::from_str_radix(code, 16).ok());
        match code.and_then(char::from_u32) {
            Some(letter) => {
                plain.truncate(plain.trim_end_matches('\\').len());
                plain.push(letter);
                plain.push_str(&piece[4..]);
            }
            None => plain.extend(["\\u", piece]),
        }
    }
    Cow::Owned(plain)
}

/// Whether the name of a secret stands before a sign that gives it a value.
fn assigns_secret(plain: &str, colons: Colons) -> bool {
    let pairs = plain.contains("value");
    plain.split(['&', ';', '?', ',', '{', '}', '\n']).any(|part| {
        let (mut from, mut last) = (0, None);
        for (at, end) in signs(part, colons) {
            let word = last_word(part.get(from..end).unwrap_or_default());
            // `{name: PASSWORD, value: x}`, as in the environment of a process.
            let names = pairs && matches!(word, "name" | "key" | "path");
            if is_secret(word) || (names && is_secret(&part[at + 1..])) {
                return true;
            }
            (from, last) = (at + 1, Some(end));
        }
        // All names of the part at once.
        last.is_some_and(|end| has_secret_word(&letters(&part[..end])))
    })
}

/// The places of signs between a name and its value, each with the place where the name ends.
fn signs(part: &str, colons: Colons) -> impl Iterator<Item = (usize, usize)> {
    let quotes = ['"', '\'', '\\'];
    part.match_indices(['=', ':', '(']).filter_map(move |(at, sign)| {
        let (before, after) = (&part[..at], &part[at + 1..]);
        match sign {
            "=" => Some((at, at)),
            ":" => {
                let quoted = before.ends_with(quotes) || after.starts_with(quotes);
                let spaced = after.is_empty() || after.starts_with(char::is_whitespace);
                (colons == Colons::All || quoted || spaced).then_some((at, at))
            }
            // `name in (value)` and `name notin (value)`.
            _ => {
                let name = before.trim_end().strip_suffix("in")?;
                Some((at, name.strip_suffix("not").unwrap_or(name).len()))
            }
        }
    })
}

/// The last word of a text: `b` of `a[b]`.
fn last_word(text: &str) -> &str {
    let in_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
    let text = text.trim_end_matches(|letter| !in_word(letter));
    text.rsplit(|letter| !in_word(letter)).next().unwrap_or_default()
}

/// A text without tokens of Mainstay and without the passwords of addresses (`//user:password@host`),
/// wherever in it they stand; borrowed if there are none.
pub(super) fn inline(text: &str) -> Cow<'_, str> {
    if text.len() < BARE_TOKEN && !text.contains(tokens::PREFIX) && !text.contains("//") {
        return Cow::Borrowed(text);
    }
    let shown = without_passwords(&without_bare_tokens(&without_tokens(text)));
    if shown == text { Cow::Borrowed(text) } else { Cow::Owned(shown) }
}

fn in_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

fn without_tokens(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(tokens::PREFIX) {
        let (before, token) = rest.split_at(at + tokens::PREFIX.len());
        let end = token.find(|letter| !in_token(letter)).unwrap_or(token.len());
        shown.push_str(before);
        shown.push_str(if end < tokens::SHORTEST { &token[..end] } else { REDACTED });
        rest = &token[end..];
    }
    shown.push_str(rest);
    shown
}

/// Hides tokens that came without their prefix, or with a dash in it.
fn without_bare_tokens(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(|letter| !in_token(letter)) {
        let run = piece.trim_end_matches(|letter| !in_token(letter));
        let token = run.strip_prefix("mst-").unwrap_or(run);
        match token.len() == BARE_TOKEN && is_random(token) {
            true => shown.extend([REDACTED, &piece[run.len()..]]),
            false => shown.push_str(piece),
        }
    }
    shown
}

fn is_random(token: &str) -> bool {
    let class = |byte: u8| (byte.is_ascii_lowercase(), byte.is_ascii_uppercase());
    let classes: Vec<_> = token.bytes().filter(u8::is_ascii_alphanumeric).map(class).collect();
    let all = [(true, false), (false, true), (false, false)];
    all.iter().all(|class| classes.contains(class))
        && classes.windows(2).filter(|pair| pair[0] != pair[1]).count() >= CHANGES
}

fn without_passwords(text: &str) -> String {
    let ends = |letter: char| letter.is_whitespace() || "\"'&<>".contains(letter);
    text.split_inclusive(ends).map(without_password).collect()
}

/// Hides the password of a word that is an address: all from the colon behind the user to the last `@`.
fn without_password(word: &str) -> Cow<'_, str> {
    let found = || {
        let start = word.find("//")? + 2;
        let end = word.rfind('@').filter(|end| *end > start)?;
        let colons = word[start..end].match_indices(':').map(|(at, _)| start + at);
        let colon = colons.into_iter().find(|at| !is_port(&word[at + 1..]))?;
        Some((colon + 1, end))
    };
    match found() {
        Some((from, end)) => Cow::Owned([&word[..from], REDACTED, &word[end..]].concat()),
        None => Cow::Borrowed(word),
    }
}

/// Whether a text begins with a port and the path or query behind it.
fn is_port(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (1..=5).contains(&digits) && text[digits..].starts_with(['/', '?'])
}
