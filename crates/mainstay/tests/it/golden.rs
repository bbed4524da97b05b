//! Golden files: what a client printed, with everything that changes from run to run replaced.

use std::path::Path;

/// Compares with `tests/golden/NAME`, or writes it when `MAINSTAY_GOLDEN=rewrite`.
pub(crate) fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = normalised(text);
    if std::env::var("MAINSTAY_GOLDEN").is_ok_and(|value| value == "rewrite") {
        std::fs::write(&path, text).expect("the golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if expected == text {
        return;
    }
    let (mut ours, mut theirs) = (text.lines(), expected.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (ours.next(), theirs.next()) {
            (one, other) if one == other => assert!(one.is_some(), "line ends differ in {name}"),
            (one, other) => panic!(
                "{name}, line {number}\n  expected: {}\n  found:    {}\n\n{text}\n\
                 (MAINSTAY_GOLDEN=rewrite cargo test accepts what was found)",
                other.unwrap_or("<nothing more>"),
                one.unwrap_or("<nothing more>"),
            ),
        }
    }
}

/// Compares only which commands of a transcript succeeded: for clients that word things otherwise.
pub(crate) fn compare_outcomes(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let expected = std::fs::read_to_string(&path).expect("the golden file is there");
    assert_eq!(outcomes(text), outcomes(&expected));
}

/// The commands of a transcript, each with its exit code if that was not 0.
fn outcomes(text: &str) -> Vec<String> {
    let mut outcomes: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with("$ ") {
            outcomes.push(normalised(line).trim_end().to_owned());
        } else if line.starts_with("[exit code ")
            && let Some(last) = outcomes.last_mut()
        {
            last.push(' ');
            last.push_str(line);
        }
    }
    outcomes
}

/// Ages, times, identities and versions by their names; columns one way whatever their width.
fn normalised(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut out = line[..indent].to_owned();
        let mut word = String::new();
        for letter in line[indent..].chars().chain(['\n']) {
            if letter.is_ascii_alphanumeric() || "-.:".contains(letter) {
                word.push(letter);
                continue;
            }
            let shown = replaced(&word, &out);
            // YAML quotes a uid that reads as a number; whether it does is chance.
            let quoted_uid = shown == "UID" && letter == '"' && out.ends_with("uid: \"");
            if quoted_uid {
                out.pop();
            }
            out.push_str(&shown);
            word.clear();
            if quoted_uid {
                continue;
            }
            let doubled = letter == ' ' && out.ends_with("  ");
            if !doubled {
                out.push(letter);
            }
        }
        lines.push_str(out.trim_end());
        lines.push('\n');
    }
    lines
}

fn replaced(word: &str, before: &str) -> String {
    let hex = |part: &str| part.chars().all(|letter| letter.is_ascii_hexdigit());
    let parts: Vec<&str> = word.split('-').collect();
    let is_uid = word.len() == 36 && parts.len() == 5 && parts.iter().all(|part| hex(part));
    let is_time = word.len() >= 19 && word.get(10..11) == Some("T") && word.contains(':');
    let is_version = before.trim_end_matches(['"', ' ', ':']).ends_with("resourceVersion")
        && word.chars().all(|letter| letter.is_ascii_digit());
    match word {
        _ if before.ends_with("gitCommit: ") => "COMMIT".to_owned(),
        _ if is_uid => "UID".to_owned(),
        _ if is_time => "TIME".to_owned(),
        _ if is_version && !word.is_empty() => "VERSION".to_owned(),
        _ if is_age(word) => "AGE".to_owned(),
        _ => word.to_owned(),
    }
}

/// `5s`, `2m10s`, `3h`.
fn is_age(word: &str) -> bool {
    let mut digits = 0;
    let mut units = 0;
    for letter in word.chars() {
        match letter {
            '0'..='9' => digits += 1,
            's' | 'm' | 'h' | 'd' if digits > 0 => {
                units += 1;
                digits = 0;
            }
            _ => return false,
        }
    }
    units > 0 && digits == 0
}

#[test]
fn values_that_differ_between_runs_are_replaced() {
    let text = "NAME    DATA   AGE\na       1      12s\n  uid: 0f0e6a0c-3c1b-4d5a-9b0e-0123456789ab\n  resourceVersion: \"17\"\n  at: \"2026-01-01T00:00:00Z\"\n";
    let expected =
        "NAME  DATA  AGE\na  1  AGE\n  uid: UID\n  resourceVersion: \"VERSION\"\n  at: \"TIME\"\n";
    assert_eq!(normalised(text), expected);
    let quoted = text.replace(
        "0f0e6a0c-3c1b-4d5a-9b0e-0123456789ab",
        "\"12345678-3c1b-4d5a-9b0e-0123456789ab\"",
    );
    assert_eq!(normalised(&quoted), expected);
}
