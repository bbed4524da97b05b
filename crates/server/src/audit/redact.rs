//! Takes secrets out of what a line shows: paths, query parameters, and fields of bodies.
//!
//! Clients encode more than once, put documents into parameters and parameters into parameters. So
//! every value is looked at as it is after all percent-encoding is undone: if a secret shows up there,
//! the whole value is hidden.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::path::percent_decode;
use crate::tokens;

/// Stands in the place of a secret.
pub(crate) const REDACTED: &str = "REDACTED";

/// The longest address of a request that a line shows, in bytes.
const LONGEST_URI: usize = 2048;

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
const SECRET_NAMES: [&str; 6] = ["key", "privatekey", "csr", "pass", "auth", "bearer"];

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    SECRET_WORDS.iter().any(|word| name.contains(word)) || SECRET_NAMES.contains(&name.as_str())
}

/// How often a text may be percent-encoded; beyond that its value is hidden.
const MOST_ENCODED: usize = 6;

/// A text without percent-encoding, however often it was encoded; `None` if that is too often, or if
/// the bytes are not UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
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

/// Whether a parameter holds a secret, however its name is encoded.
fn names_secret(name: &str) -> bool {
    decoded(name).is_none_or(|name| is_secret(&name))
}

/// Whether a value shows a secret once it is decoded: a token, a password in an address, or the name
/// of a secret before one of the signs `assign` (`a=b;password=x`, `{"password": "x"}`).
fn shows_secret(value: &str, assign: &[char]) -> bool {
    let Some(plain) = decoded(value) else { return true };
    if matches!(text(&plain), Cow::Owned(shown) if shown != *plain) {
        return true;
    }
    // Inside a document, quotes may be escaped as often as it is nested.
    let bare = |name: &str| is_secret(name.trim_matches([' ', '"', '\'', '\\', '\t', '\n', '\r']));
    plain.split(['&', ';', '?', ',', '{', '}', '[', ']', '\n']).any(|part| {
        let mut names = part.match_indices(assign).map(|(at, _)| &part[..at]);
        names.any(bare)
    })
}

/// A text without tokens of Mainstay and without the passwords of addresses (`//user:password@host`),
/// wherever in it they stand.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(tokens::PREFIX) && !text.contains("//") {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(tokens::PREFIX) {
        let (before, token) = rest.split_at(at + tokens::PREFIX.len());
        let in_token = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        let end = token.find(|letter| !in_token(letter)).unwrap_or(token.len());
        shown.push_str(before);
        shown.push_str(if end < tokens::SHORTEST { &token[..end] } else { REDACTED });
        rest = &token[end..];
    }
    shown.push_str(rest);
    Cow::Owned(without_passwords(&shown))
}

fn without_passwords(text: &str) -> String {
    let mut parts = text.split("//");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str("//");
        let (authority, rest) = part.split_at(part.find(['/', '?', '&']).unwrap_or(part.len()));
        match authority.rsplit_once('@').map(|(login, host)| (login.split_once(':'), host)) {
            Some((Some((user, _)), host)) => {
                shown.extend([user, ":", REDACTED, "@", host, rest]);
            }
            _ => shown.push_str(part),
        }
    }
    shown
}

/// A path or a part of one, without the segments that show a secret.
pub(crate) fn path(path: &str) -> Cow<'_, str> {
    // Most have none of these signs.
    if !path.contains(['%', '=', '+']) {
        return text(path);
    }
    let shown = path.split('/').map(shown_segment).collect::<Vec<_>>().join("/");
    Cow::Owned(text(&shown).into_owned())
}

/// A segment of a path. A colon assigns nothing there: it separates scopes from names.
fn shown_segment(segment: &str) -> &str {
    if shows_secret(&text(segment), &['=']) { REDACTED } else { segment }
}

/// The path and query of a request, without tokens and without the values of secret parameters.
pub(crate) fn uri(path: &str, query: Option<&str>) -> String {
    let mut shown = self::path(path).into_owned();
    if let Some(query) = query {
        shown.push('?');
        // Some servers and clients take a semicolon for an ampersand.
        for pair in query.split_inclusive(['&', ';']) {
            let (pair, separator) = pair.split_at(pair.trim_end_matches(['&', ';']).len());
            push_pair(&mut shown, pair);
            shown.push_str(separator);
        }
    }
    let mut text = text(&shown).into_owned();
    if text.len() > LONGEST_URI {
        let end = (0..=LONGEST_URI).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn push_pair(shown: &mut String, pair: &str) {
    match pair.split_once('=') {
        Some((name, value)) if names_secret(name) || shows_secret(&text(value), &['=', ':']) => {
            shown.extend([name, "=", REDACTED]);
        }
        // `password%3Dx` is a parameter with a value for those that decode first.
        None if shows_secret(pair, &['=', ':']) => shown.push_str(REDACTED),
        _ => shown.push_str(pair),
    }
}

/// A body as a line shows it, without secrets; the reason if it cannot be shown. Of what is sent to
/// a collection of `secrets` only metadata is shown: a patch does not say its kind.
pub(crate) fn body(bytes: &[u8], limit: usize, secrets: bool) -> Result<Value, String> {
    if bytes.len() > limit {
        return Err(format!("{} bytes, more than the {limit} of body-limit", bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "not text".to_owned())?;
    let parsed = serde_json::from_str::<Value>(text).ok();
    let parsed = parsed.or_else(|| serde_saphyr::from_str::<Value>(text).ok());
    // A text by itself may be anything, a password too.
    let mut value = parsed
        .filter(|value| value.is_object() || value.is_array())
        .ok_or_else(|| "neither JSON nor YAML".to_owned())?;
    redact(&mut value);
    if secrets {
        hide_content(&mut value);
    }
    Ok(value)
}

fn hide_content(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "type") {
                    hide(value);
                }
            }
        }
        Value::Array(steps) => {
            let steps = steps.iter_mut().filter_map(|step| step.get_mut("value"));
            steps.for_each(hide);
        }
        _ => {}
    }
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => redact_object(fields),
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::String(found) => {
            if let Cow::Owned(shown) = text(found) {
                *found = shown;
            }
            redact_document(found);
        }
        _ => {}
    }
}

/// Hides secrets in a text that is itself a JSON document.
fn redact_document(found: &mut String) {
    if !found.trim_start().starts_with(['{', '[']) {
        return;
    }
    if let Ok(before) = serde_json::from_str::<Value>(found) {
        let mut after = before.clone();
        redact(&mut after);
        if after != before {
            *found = after.to_string();
        }
    }
}

fn redact_object(fields: &mut Map<String, Value>) {
    let kept_secret = fields.get("kind").is_some_and(|kind| kind == "Secret");
    // The environment of a process: `{name: PASSWORD, value: …}`; a JSON patch: `{path: …, value: …}`.
    let names_secret = ["name", "path", "key"]
        .iter()
        .any(|field| fields.get(*field).and_then(Value::as_str).is_some_and(is_secret));
    for (name, value) in fields.iter_mut() {
        let whole = is_secret(name)
            || (kept_secret && matches!(name.as_str(), "data" | "stringData"))
            || (names_secret && name == "value")
            // `kubectl apply` repeats the whole object in an annotation.
            || name == "kubectl.kubernetes.io/last-applied-configuration";
        match whole {
            true => hide(value),
            false => redact(value),
        }
    }
}

/// Hides values, but not the names of fields: which key of a Secret changed is worth knowing.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(hide),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Null => {}
        other => *other = Value::from(REDACTED),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_parameters_are_hidden() {
        for (path, query, shown) in [
            ("/a", None, "/a"),
            ("/a", Some("x=1&token=abc&y"), "/a?x=1&token=REDACTED&y"),
            ("/a", Some("X-Amz-Signature=z"), "/a?X-Amz-Signature=REDACTED"),
            ("/a", Some("labelSelector=a%3Db"), "/a?labelSelector=a%3Db"),
            ("/a", Some("pass%77ord=x"), "/a?pass%77ord=REDACTED"),
            ("/a", Some("%54OKEN=x&n=%70"), "/a?%54OKEN=REDACTED&n=%70"),
            ("/a", Some("%ff=x"), "/a?%ff=REDACTED"),
            ("/a", Some("pwd=x&auth=y&author=z"), "/a?pwd=REDACTED&auth=REDACTED&author=z"),
            ("/tokens/mst_aaaaaaaaaabbbbbbbbbb-_c/x", None, "/tokens/mst_REDACTED/x"),
            ("/configmaps/mst_short", None, "/configmaps/mst_short"),
            ("/rses/https://u:secret@h/x", None, "/rses/https://u:REDACTED@h/x"),
            ("/a", Some("url=https://u:p:w@h&b=//c@d"), "/a?url=https://u:REDACTED@h&b=//c@d"),
            ("/a", Some("a=b;password=x;c"), "/a?a=b;password=REDACTED;c"),
            ("/a", Some("pass%2577ord=x"), "/a?pass%2577ord=REDACTED"),
            ("/a", Some("%2525%2574oken=x"), "/a?%2525%2574oken=REDACTED"),
            ("/a", Some("q=mst_aaaaaaaaaabbbbbbbbbb%26pwd%3Dx"), "/a?q=REDACTED"),
            ("/a", Some("q=a%26password%3Dx"), "/a?q=REDACTED"),
            ("/a", Some("q=password%253Dx"), "/a?q=REDACTED"),
            ("/a", Some("url=https%253A%252F%252Fu%253Ap%2540h"), "/a?url=REDACTED"),
            ("/a", Some("q=%6Dst_aaaaaaaaaabbbbbbbbbb"), "/a?q=REDACTED"),
            ("/a", Some("q={\"password\":\"x\"}"), "/a?q=REDACTED"),
            ("/a", Some("q=%7B%22a%22%3A%7B%22api_key%22%20%3A%20%22x%22%7D%7D"), "/a?q=REDACTED"),
            ("/a", Some("q={\"a\":\"{\\\"token\\\":1}\"}"), "/a?q=REDACTED"),
            ("/a", Some("q={\"name\":\"x\"}&b={\"did"), "/a?q={\"name\":\"x\"}&b={\"did"),
            ("/a", Some("password%3Dx"), "/a?REDACTED"),
            ("/a", Some("q=%25252525252525252541"), "/a?q=REDACTED"),
            ("/x/%6Dst_aaaaaaaaaabbbbbbbbbb/y", None, "/x/REDACTED/y"),
            ("/x/https%3A%2F%2Fu%3Ap%40h/y", None, "/x/REDACTED/y"),
            ("/dids/scope/key:value%20a", None, "/dids/scope/key:value%20a"),
            ("/rses/tier=1&password=x", None, "/rses/REDACTED"),
        ] {
            assert_eq!(uri(path, query), shown);
        }
        assert!(uri(&"x".repeat(1 << 20), None).len() < 3000);
    }

    #[test]
    fn secrets_in_bodies_are_hidden_and_all_else_is_shown() {
        let cases = [
            (
                json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "MQ=="}}),
                json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": REDACTED}}),
            ),
            (
                json!({"kind": "ConfigMap", "data": {"a": "1"}, "role": "admin"}),
                json!({"kind": "ConfigMap", "data": {"a": "1"}, "role": "admin"}),
            ),
            (
                json!([{"auth_token": "x", "password": {"deep": ["y"]}, "n": 1}]),
                json!([{"auth_token": REDACTED, "password": {"deep": [REDACTED]}, "n": 1}]),
            ),
            (
                json!({"env": [{"name": "DB_PASSWORD", "value": "x"}, {"name": "A", "value": "1"}]}),
                json!({"env": [{"name": "DB_PASSWORD", "value": REDACTED}, {"name": "A", "value": "1"}]}),
            ),
        ];
        for (sent, shown) in cases {
            assert_eq!(body(sent.to_string().as_bytes(), 1 << 20, false).unwrap(), shown);
        }
        let nested = json!({"data": {"a.json": "{\"user\": \"u\", \"password\": \"hidden\"}"}});
        let shown = body(nested.to_string().as_bytes(), 1 << 20, false).unwrap().to_string();
        assert!(!shown.contains("hidden") && shown.contains("user"), "{shown}");
        let yaml = "kind: Secret\nstringData:\n  a: hidden\n";
        assert_eq!(body(yaml.as_bytes(), 100, false).unwrap()["stringData"]["a"], REDACTED);
        let patch = json!({"data": {"a": "x"}});
        let shown = body(patch.to_string().as_bytes(), 100, true).unwrap();
        assert_eq!(shown, json!({"data": {"a": REDACTED}}));
        let patch = json!([{"op": "add", "path": "/data/a", "value": "x"}]);
        let shown = body(patch.to_string().as_bytes(), 100, true).unwrap();
        assert_eq!(shown[0]["value"], REDACTED);
        assert!(body(b"\"just a password\"", 100, false).is_err());
        assert!(body(b"{\"a\": 1}", 3, false).unwrap_err().contains("8 bytes"));
        assert!(body(b"k8s\0\xff", 100, false).is_err());
    }
}
