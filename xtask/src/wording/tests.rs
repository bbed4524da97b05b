use super::*;

fn texts(findings: Vec<Finding>) -> Vec<String> {
    findings.into_iter().map(|one| format!("{}: {}", one.line, one.text)).collect()
}

#[test]
fn sentences_without_a_subject_are_found_in_comments() {
    let bad = [
        "//! What the module does.",
        "/// Reads a file. Nobody else may.",
        "/// Reads a file.\n/// Whoever asks gets it.",
        "fn f() {\n    // Nothing is lost.\n}",
        "/// - Those that wait.",
    ];
    for source in bad {
        assert_eq!(code(source, true).len(), 1, "{source}");
    }
    let good = [
        "//! Reads a file, and\n//! Nothing more.",
        "/// `Whole` values.",
        "/// Whose turn it is: Whatever comes first.",
        "// What if the file is gone?",
        "// What if the file\n// is gone? Then it is made.",
        "let text = \"What is it\";",
    ];
    for source in good {
        assert_eq!(texts(code(source, false)), Vec::<String>::new(), "{source}");
    }
}

#[test]
fn pages_follow_the_same_rules_outside_code() {
    let text = "# What it does\n\nReads. Nothing else.\n\n```sh\nWhat\n```\n\n| Who reads |\n";
    let lines: Vec<usize> = page(text).iter().map(|one| one.line).collect();
    assert_eq!(lines, [3, 9]);
}

#[test]
fn log_messages_are_found_past_fields_and_calls() {
    let source = r#"
warn!(node, kind = "disk", %error, "lease renewal failed");
tracing::info!(target: "audit", count = list("x").len(), "started");
error!("interpolated {error}");
println!("not a log");
debug!(value = ?call("inner"));
info!("after it");
#[cfg(test)]
mod tests {
    info!("started");
}"#;
    let found: Vec<(usize, String)> =
        log_messages(source, false).into_iter().map(|one| (one.line, one.text)).collect();
    let expected =
        [(2, "lease renewal failed"), (3, "started"), (4, "interpolated {error}"), (7, "after it")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    let findings = texts(code(source, false));
    assert_eq!(findings, ["4: log message with interpolated values; use fields"]);
    assert!(log_messages(source, true).is_empty());
}

#[test]
fn phrases_types_and_lengths_are_found() {
    let long = "x\n".repeat(MOST_LINES + 1);
    let cases = [
        ("// The caller is told so.", 1),
        ("let a = \"the server says so\";", 1),
        ("pub(crate) struct Said(u8);", 1),
        ("enum Kept<'a> {\n}", 1),
        ("struct SaidBefore;", 0),
        ("let held = Hold;", 0),
        (long.as_str(), 1),
    ];
    for (source, count) in cases {
        assert_eq!(code(source, false).len(), count, "{source:.40}");
    }
    assert!(code(&long, true).is_empty());
}
