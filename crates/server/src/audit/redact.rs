//! Takes secrets out of what a line shows: paths, query parameters, and fields of bodies.
//!
//! Clients encode more than once, put documents into parameters and parameters into parameters. So
//! every value is looked at as it is after all percent-encoding is undone: if a secret shows up there,
//! the whole value is hidden.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::secret::{
    Colons, MOST_NESTED, decoded, hidden, inline, is_secret, names_secret, plain_shows,
    shows_secret,
};

/// Stands in the place of a secret.
pub(crate) const REDACTED: &str = "REDACTED";

/// The longest address of a request that a line shows, in bytes.
const LONGEST_URI: usize = 2048;

/// The shortest value that is hidden wherever else in a body it stands.
const SHORTEST_REPEATED: usize = 4;

/// A path without the segments that show a secret.
fn path(path: &str) -> String {
    let segment = |segment| match shows_secret(&inline(segment), Colons::Spaced) {
        true => REDACTED,
        false => segment,
    };
    path.split('/').map(segment).collect::<Vec<_>>().join("/")
}

/// The path and query of a request, without tokens and without the values of secret parameters.
pub(crate) fn uri(path: &str, query: Option<&str>) -> String {
    let mut shown = self::path(path);
    if let Some(query) = query {
        shown.push('?');
        // Some servers and clients take a semicolon for an ampersand.
        for pair in query.split_inclusive(['&', ';']) {
            let (pair, separator) = pair.split_at(pair.trim_end_matches(['&', ';']).len());
            push_pair(&mut shown, pair);
            shown.push_str(separator);
        }
    }
    let mut text = inline(&shown).into_owned();
    if text.len() > LONGEST_URI {
        let end = (0..=LONGEST_URI).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn push_pair(shown: &mut String, pair: &str) {
    match pair.split_once('=') {
        Some((name, value)) if names_secret(name) || shows_secret(&inline(value), Colons::All) => {
            shown.extend([name, "=", REDACTED]);
        }
        // `password%3Dx` is a parameter with a value for those that decode first.
        None if shows_secret(&inline(pair), Colons::All) => shown.push_str(REDACTED),
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
    let mut found = Found::new();
    redact(&mut value, MOST_NESTED, &mut found);
    if secrets {
        hide_content(&mut value, &mut found);
    }
    if !found.is_empty() {
        hide_repeated(&mut value, &found);
    }
    Ok(value)
}

/// The values that were hidden.
type Found = BTreeSet<String>;

/// Hides a secret also where its name does not stand beside it: an anchor of YAML, used twice.
fn hide_repeated(value: &mut Value, found: &Found) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|value| hide_repeated(value, found));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| hide_repeated(value, found)),
        Value::String(text) if found.contains(text) => *value = Value::from(REDACTED),
        Value::Number(number) if found.contains(&number.to_string()) => {
            *value = Value::from(REDACTED);
        }
        _ => {}
    }
}

fn hide_content(value: &mut Value, found: &mut Found) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "type") {
                    hide(value, found);
                }
            }
        }
        Value::Array(steps) => {
            let steps = steps.iter_mut().filter_map(|step| step.get_mut("value"));
            steps.for_each(|value| hide(value, found));
        }
        _ => {}
    }
}

/// Hides secrets in a document; `depth` is how deep documents may still lie in its texts.
fn redact(value: &mut Value, depth: usize, found: &mut Found) {
    match value {
        Value::Object(fields) => redact_object(fields, depth, found),
        Value::Array(items) => redact_array(items, depth, found),
        Value::String(text) => redact_text(text, depth, found),
        _ => {}
    }
}

fn redact_array(items: &mut [Value], depth: usize, found: &mut Found) {
    let mut flag = false;
    for item in items {
        // The words of a command: `--password`, and the value behind it.
        let next = item.as_str().is_some_and(|word| word.starts_with('-') && is_secret(word));
        match flag {
            true => hide(item, found),
            false => redact(item, depth, found),
        }
        flag = next;
    }
}

fn redact_text(text: &mut String, depth: usize, found: &mut Found) {
    if let Some(shown) = redact_document(text, depth, found) {
        *text = shown;
        return;
    }
    if let Cow::Owned(shown) = inline(text) {
        *text = shown;
    }
    let plain = decoded(text);
    if plain.is_none_or(|plain| plain_shows(&plain, Colons::Spaced)) {
        REDACTED.clone_into(text);
    }
}

/// A text that is itself a JSON document, without its secrets; `None` if there are none.
fn redact_document(text: &str, depth: usize, found: &mut Found) -> Option<String> {
    if !text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '[', '"']) {
        return None;
    }
    let before = serde_json::from_str::<Value>(text.trim_start_matches('\u{feff}')).ok()?;
    let Some(depth) = depth.checked_sub(1) else { return Some(REDACTED.to_owned()) };
    let mut after = before.clone();
    redact(&mut after, depth, found);
    (after != before).then(|| after.to_string())
}

/// Whether a text is a JSON document with a secret in it.
pub(super) fn document_shows(text: &str, depth: usize) -> bool {
    redact_document(text, depth, &mut Found::new()).is_some()
}

fn redact_object(fields: &mut Map<String, Value>, depth: usize, found: &mut Found) {
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
            true => hide(value, found),
            false => redact(value, depth, found),
        }
    }
    hide_names(fields);
}

/// Hides values, but not the names of fields: which key of a Secret changed is worth knowing.
fn hide(value: &mut Value, found: &mut Found) {
    match value {
        Value::Object(fields) => {
            hide_names(fields);
            fields.values_mut().for_each(|value| hide(value, found));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| hide(value, found)),
        Value::Null => {}
        other => {
            let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            if text.len() >= SHORTEST_REPEATED && other.as_bool().is_none() && text != REDACTED {
                found.insert(text);
            }
            *other = Value::from(REDACTED);
        }
    }
}

/// Hides tokens that are the names of fields.
fn hide_names(fields: &mut Map<String, Value>) {
    if fields.keys().any(|name| hidden(name) != *name) {
        let shown = std::mem::take(fields).into_iter();
        *fields = shown.map(|(name, value)| (hidden(&name).into_owned(), value)).collect();
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
            ("/x/q=%7B%22password%22%3A%22s%22%7D", None, "/x/REDACTED"),
            ("/x/user%5Bpassword%5D=s", None, "/x/REDACTED"),
            ("/x/user%5Bpass%5D=s/secrets/y", None, "/x/REDACTED/secrets/y"),
            ("/x/q=password%3A%20s", None, "/x/REDACTED"),
            ("/a", Some("user[pass]=s"), "/a?user[pass]=REDACTED"),
            ("/a", Some("q=[{\"name\":\"password\",\"value\":\"s\"}]"), "/a?q=REDACTED"),
            ("/a", Some("q=[{name:password,value:s"), "/a?q=REDACTED"),
            ("/a", Some("q={\"pass\\u0077ord\":\"s\"}"), "/a?q=REDACTED"),
            ("/a", Some("labelSelector=password%20in%20(s)"), "/a?labelSelector=REDACTED"),
            ("/a", Some("labelSelector=a,token+notin+(s)"), "/a?labelSelector=REDACTED"),
            ("/a", Some("labelSelector=app%20in%20(s)"), "/a?labelSelector=app%20in%20(s)"),
            ("/a", Some("u=https://bob:a/s@host/"), "/a?u=https://bob:REDACTED@host/"),
            ("/a", Some("u=https%3A%2F%2Fbob%3Aa%2Fs%40host"), "/a?u=REDACTED"),
            ("/a", Some("u=https://host:8443/a@b"), "/a?u=https://host:8443/a@b"),
            ("/a", Some("x=Zk3vQ9sXb7TgLm2RwYp5Hc8Nd1Jf6Ku4Ae0Bi-So_Dq"), "/a?x=REDACTED"),
            ("/a", Some("q=Bearer%20s"), "/a?q=REDACTED"),
        ] {
            assert_eq!(uri(path, query), shown);
        }
        assert!(uri(&"x".repeat(1 << 20), None).len() < 3000);
    }

    #[test]
    fn secrets_are_hidden_in_any_text_and_other_texts_are_shown() {
        for text in [
            "password=s",
            "{\"password\":\"s\"}",
            "q={\"password\":\"s\"}",
            "user[password]=s",
            "q=password: s",
            "q=Authorization: Basic s",
            "Authorization: Bearer s",
            "https://h/?token=s",
            "x --password=s",
            "-----BEGIN PRIVATE KEY-----\ns",
        ] {
            assert_eq!(hidden(text), REDACTED, "{text}");
        }
        let token = "Zk3vQ9sXb7TgLm2RwYp5Hc8Nd1Jf6Ku4Ae0Bi-So_Dq";
        assert_eq!(hidden(&format!("curl mst_{token}.")), "curl mst_REDACTED.");
        assert_eq!(hidden(&format!("mst-{token}")), REDACTED);
        for text in [
            "system:serviceaccount:external-secrets:token-controller",
            "kubectl/v1.30.1 (linux/amd64) kubernetes/6911225",
            "secret:name",
            "data18_13TeV_physics_Main_merge_AOD_f961_m2",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "a+b 100%",
        ] {
            assert_eq!(hidden(text), text);
        }
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
            (
                json!({"data": {"mst_aaaaaaaaaabbbbbbbbbb": "x"}, "token": {"mst_aaaaaaaaaabbbbbbbbbb": "x"}}),
                json!({"data": {"mst_REDACTED": "x"}, "token": {"mst_REDACTED": REDACTED}}),
            ),
            (
                json!({"u": "https://h/?token=s", "command": ["x", "--password", "s", "y"]}),
                json!({"u": REDACTED, "command": ["x", "--password", REDACTED, "y"]}),
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
        for yaml in ["password: &a hunter2\nx: *a\n", "x: &a hunter2\npassword: {b: [*a]}\n"] {
            assert_eq!(body(yaml.as_bytes(), 100, false).unwrap()["x"], REDACTED);
        }
        let deep = (0..12).fold(json!(["x"]), |inner, _| json!([inner.to_string()]));
        let shown = body(deep.to_string().as_bytes(), 1 << 20, false).unwrap().to_string();
        assert!(shown.contains(REDACTED), "documents in documents have a bound: {shown}");
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
