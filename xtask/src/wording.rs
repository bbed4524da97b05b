//! The wording check: rules of plain English that a text scan can decide.
//!
//! It fails on a log message that is used twice or is not constant, a sentence of a comment or a
//! page that begins with one of [`OPENINGS`], a phrase or type name of [`BANNED`] and
//! [`GESTURES`], and a file that is longer than [`MOST_LINES`]. Test code is exempt from all but the
//! sentences. Without arguments it scans the folders and pages of `wording/clean.txt`: add yours there
//! once `cargo xtask wording crates/NAME` finds nothing in it.

mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::source::{Piece, Sort, pieces};
use crate::root;

/// Folders with Rust code and Markdown pages that follow the rules, one a line.
const CLEAN: &str = include_str!("wording/clean.txt");

/// A longer file asks to be split along a seam that it already has.
const MOST_LINES: usize = 600;

/// A sentence that begins with one of these hides its subject; name it.
const OPENINGS: &[&str] = &["What", "Who", "Whoever", "Nobody", "Nothing", "Those that"];

/// Phrases that are hard to read, one a line, each with what to write instead.
const BANNED: &str = include_str!("wording/banned.txt");

/// Types are named for what they are.
const GESTURES: &[&str] = &["Said", "Kept", "Several", "Afar", "Hold"];

const LOG_MACROS: &[&str] = &["error!", "warn!", "info!", "debug!", "trace!"];

/// A breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    line: usize,
    text: String,
}

/// A log message and where it stands.
struct Message {
    line: usize,
    text: String,
}

/// Checks these folders and pages, or those of `wording/clean.txt` if none is named.
pub(crate) fn check(named: &[&str]) -> Result<()> {
    let mut report = Vec::new();
    let mut messages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut files = 0;
    for path in scanned(named)? {
        let text = fs::read_to_string(root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        files += 1;
        let shown = path.display();
        let findings = match path.extension().is_some_and(|ending| ending == "md") {
            true => page(&text),
            false => {
                let tests = is_test(&path);
                for message in log_messages(&text, tests) {
                    let place = format!("{shown}:{}", message.line);
                    messages.entry(message.text).or_default().push(place);
                }
                code(&text, tests)
            }
        };
        report
            .extend(findings.into_iter().map(|one| format!("{shown}:{}: {}", one.line, one.text)));
    }
    for (message, places) in messages.iter().filter(|(_, places)| places.len() > 1) {
        report.push(format!("log message {message:?} is used twice: {}", places.join(" and ")));
    }
    if !report.is_empty() {
        bail!("wording (the rules are in CONTRIBUTING.md):\n  {}", report.join("\n  "));
    }
    println!("xtask: the wording of {files} files follows the rules");
    Ok(())
}

/// Every file that is scanned, from the root of the workspace.
fn scanned(named: &[&str]) -> Result<Vec<PathBuf>> {
    let clean: Vec<&str> = CLEAN.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut files = Vec::new();
    for line in if named.is_empty() { &clean } else { named } {
        let path = root().join(line);
        if path.is_dir() {
            collect(&path, &mut files)?;
        } else if path.is_file() {
            files.push(path);
        } else {
            bail!("there is no folder or page {line}");
        }
    }
    let from_root = |path: PathBuf| path.strip_prefix(root()).map(Path::to_owned).unwrap_or(path);
    let mut files: Vec<PathBuf> = files.into_iter().map(from_root).collect();
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a whole file is test code.
fn is_test(path: &Path) -> bool {
    let inside = path.components().any(|part| part.as_os_str() == "tests");
    inside || path.file_name().is_some_and(|name| name == "tests.rs")
}

/// The rules for a file of Rust.
fn code(text: &str, tests: bool) -> Vec<Finding> {
    let pieces = pieces(text);
    let product = if tests { 0 } else { before_tests(&pieces) };
    let mut found = sentences(&comments(&pieces));
    for piece in &pieces[..product] {
        match piece.sort {
            Sort::Comment => found.extend(phrases(piece.line, piece.text)),
            // A literal of one word is a name, not prose.
            Sort::Literal if !piece.text.contains(' ') => {}
            Sort::Literal => found.extend(phrases(piece.line, piece.text)),
            Sort::Code => found.extend(gestures(piece)),
        }
    }
    for message in log_messages(text, tests) {
        if message.text.replace("{{", "").contains('{') {
            found.push(Finding {
                line: message.line,
                text: "log message with interpolated values; use fields".to_owned(),
            });
        }
    }
    let lines = text.lines().count();
    if !tests && lines > MOST_LINES {
        found.push(Finding { line: lines, text: format!("more than {MOST_LINES} lines") });
    }
    found
}

/// The rules for a page of Markdown. Questions may be asked in headings.
fn page(text: &str) -> Vec<Finding> {
    let mut fenced = false;
    let mut lines = Vec::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let prose = !fenced && !fence && !line.starts_with('#') && !line.starts_with("    ");
        if prose {
            found.extend(phrases(index + 1, line));
        }
        let content = line.trim_start_matches(['-', '*', '|', '>', ' ']);
        let begins = content.len() != line.len();
        lines.push((index + 1, if prose { content } else { "" }, begins));
    }
    found.extend(sentences(&lines));
    found
}

/// How many pieces there are before the inline tests.
fn before_tests(pieces: &[Piece<'_>]) -> usize {
    let marker = |piece: &Piece<'_>| {
        piece.sort == Sort::Code
            && piece.text.split("#[cfg(test)]").skip(1).any(|rest| {
                rest.trim_start().strip_prefix("mod ").is_some_and(|rest| rest.contains('{'))
            })
    };
    pieces.iter().position(marker).map_or(pieces.len(), |at| at + 1)
}

/// The lines of all comments, without their slashes, and whether each begins a paragraph.
fn comments<'a>(pieces: &[Piece<'a>]) -> Vec<(usize, &'a str, bool)> {
    let mut lines = Vec::new();
    let mut last = 0;
    for piece in pieces.iter().filter(|piece| piece.sort == Sort::Comment) {
        for (index, line) in piece.text.lines().enumerate() {
            let number = piece.line + index;
            let text = line.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
            let content = text.trim_start_matches(['-', '*', '|', ' ']);
            lines.push((number, content, number != last + 1 || content.len() != text.len()));
            last = number;
        }
    }
    lines
}

/// Sentences that begin with one of [`OPENINGS`]. Questions may.
fn sentences(lines: &[(usize, &str, bool)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut fresh = true;
    for (position, (number, text, begins)) in lines.iter().enumerate() {
        let first = (fresh || *begins).then_some(0);
        let later = [". ", "! ", "? "].iter().flat_map(|end| text.match_indices(end));
        for start in first.into_iter().chain(later.map(|(at, _)| at + 2)) {
            let sentence = text[start..].trim_start();
            let Some(opening) = OPENINGS.iter().find(|opening| opens(sentence, opening)) else {
                continue;
            };
            let following = lines[position + 1..].iter().map(|(_, text, _)| *text);
            if !is_question(std::iter::once(sentence).chain(following)) {
                let text = format!("a sentence begins with \"{opening}\"; name its subject");
                found.push(Finding { line: *number, text });
            }
        }
        fresh = text.is_empty() || text.ends_with(['.', '!', '?', ':']);
    }
    found
}

/// Whether a sentence begins with these words.
fn opens(sentence: &str, words: &str) -> bool {
    let rest = sentence.strip_prefix(words);
    rest.is_some_and(|rest| {
        !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
    })
}

/// Whether the sentence at the beginning of these lines ends with a question mark.
fn is_question<'a>(mut lines: impl Iterator<Item = &'a str>) -> bool {
    let end = lines.find_map(|line| line.chars().find(|letter| ".?!".contains(*letter)));
    end == Some('?')
}

/// The banned phrases in a comment or literal.
fn phrases(line: usize, text: &str) -> Vec<Finding> {
    let lower = text.to_lowercase();
    let breach = |row: &str| {
        let (phrase, instead) = row.split_once(": ")?;
        let at = lower.find(phrase)?;
        let line = line + lower[..at].matches('\n').count();
        Some(Finding { line, text: format!("\"{phrase}\" is hard to read; {instead}") })
    };
    BANNED.lines().filter_map(breach).collect()
}

/// The definitions of types that are named for a gesture.
fn gestures(piece: &Piece<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, line) in piece.text.lines().enumerate() {
        let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let defines = words.any(|word| ["struct", "enum", "trait", "type"].contains(&word));
        if let Some(name) = words.next().filter(|name| defines && GESTURES.contains(name)) {
            let text = format!("`{name}` does not say what the type is");
            found.push(Finding { line: piece.line + index, text });
        }
    }
    found
}

/// The messages of all log macros outside tests.
fn log_messages(text: &str, tests: bool) -> Vec<Message> {
    let pieces = pieces(text);
    let product = if tests { 0 } else { before_tests(&pieces) };
    let mut found = Vec::new();
    // The depth of parentheses inside the arguments of a log macro; none outside.
    let mut depth: Option<usize> = None;
    let mut before = "";
    for piece in &pieces[..product] {
        match piece.sort {
            Sort::Code => {
                depth = depth_after(piece.text, depth);
                before = piece.text.trim_end();
            }
            // Deeper literals belong to other calls, those after `=` or `:` are fields.
            Sort::Literal if depth == Some(1) && before.ends_with(['(', ',']) => {
                found.push(Message { line: piece.line, text: piece.text.to_owned() });
                depth = None;
            }
            Sort::Literal | Sort::Comment => {}
        }
    }
    found
}

/// How deep the end of `code` is inside the arguments of a log macro; none outside.
fn depth_after(code: &str, before: Option<usize>) -> Option<usize> {
    let mut depth = before;
    let mut rest = code;
    loop {
        let Some(inside) = depth else {
            let open = |name: &str| Some(rest.find(&format!("{name}("))? + name.len() + 1);
            let start = LOG_MACROS.iter().filter_map(|name| open(name)).min()?;
            rest = &rest[start..];
            depth = Some(1);
            continue;
        };
        let Some(at) = rest.find(['(', ')', '[', ']', '{', '}']) else { break };
        let opens = matches!(rest.as_bytes()[at], b'(' | b'[' | b'{');
        let next = if opens { inside + 1 } else { inside - 1 };
        depth = (next > 0).then_some(next);
        rest = &rest[at + 1..];
    }
    depth
}

#[cfg(test)]
mod tests;
