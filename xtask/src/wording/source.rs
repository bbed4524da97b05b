//! Splits Rust source into code, comments and string literals.
//!
//! A scanner, not a parser: it knows enough to tell the three apart (nested block comments, raw
//! strings, character literals and lifetimes), which is all that the wording rules need. It reads
//! a file once, so that the whole tree takes a fraction of a second.

/// A stretch of source of one sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) sort: Sort,
    /// The number of its first line, from 1.
    pub(super) line: usize,
    /// Its text: a comment with its slashes, a literal without its quotes.
    pub(super) text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Code,
    Comment,
    Literal,
}

/// Splits `source`; the pieces are in order.
pub(super) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut scanner =
        Scanner { source, start: 0, at: 0, line: 1, start_line: 1, found: Vec::new() };
    while scanner.step() {}
    scanner.found
}

struct Scanner<'a> {
    source: &'a str,
    /// Where the present stretch of code began.
    start: usize,
    at: usize,
    line: usize,
    start_line: usize,
    found: Vec<Piece<'a>>,
}

impl<'a> Scanner<'a> {
    /// Takes the next token; false at the end.
    fn step(&mut self) -> bool {
        let rest = &self.source[self.at..];
        let Some(first) = rest.chars().next() else {
            self.end_code();
            return false;
        };
        if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            self.take(Sort::Comment, 0, length, 0);
        } else if rest.starts_with("/*") {
            self.take(Sort::Comment, 0, block_comment(rest), 0);
        } else if let Some((open, close)) = self.raw_string(rest) {
            let inner = rest[open..].find(&close).unwrap_or(rest.len() - open);
            self.take(Sort::Literal, open, inner, close.len());
        } else if first == '"' {
            self.take(Sort::Literal, 1, quoted(&rest[1..]), 1);
        } else if first == '\'' {
            self.advance(character(rest));
        } else {
            self.advance(first.len_utf8());
        }
        true
    }

    /// The lengths of the opening, and the closing, of a raw string that begins here.
    fn raw_string(&self, rest: &str) -> Option<(usize, String)> {
        let before = self.source[..self.at].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            return None;
        }
        let hashes_from = ["r", "br", "cr"].iter().find(|prefix| {
            rest.strip_prefix(**prefix).is_some_and(|rest| rest.starts_with(['"', '#']))
        })?;
        let after = &rest[hashes_from.len()..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        let quote = after[hashes..].starts_with('"');
        quote.then(|| (hashes_from.len() + hashes + 1, format!("\"{}", "#".repeat(hashes))))
    }

    fn take(&mut self, sort: Sort, open: usize, inner: usize, close: usize) {
        self.end_code();
        let from = self.at + open;
        let text = &self.source[from..from + inner];
        self.found.push(Piece { sort, line: self.line, text });
        self.advance((open + inner + close).min(self.source.len() - self.at));
        self.start = self.at;
        self.start_line = self.line;
    }

    fn end_code(&mut self) {
        if self.start < self.at {
            let text = &self.source[self.start..self.at];
            self.found.push(Piece { sort: Sort::Code, line: self.start_line, text });
        }
        self.start = self.at;
    }

    fn advance(&mut self, by: usize) {
        let passed = &self.source.as_bytes()[self.at..self.at + by];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        self.at += by;
    }
}

/// The length of a block comment, which may hold others.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a string up to its closing quote.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal, or of the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            let escaped = letters.next().map_or(text.len(), |(at, letter)| at + letter.len_utf8());
            text[escaped..].find('\'').map_or(text.len(), |at| escaped + at + 1)
        }
        Some((at, letter)) if text[at + letter.len_utf8()..].starts_with('\'') => {
            at + letter.len_utf8() + 1
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sort: Sort, source: &str) -> Vec<(usize, &str)> {
        pieces(source)
            .into_iter()
            .filter(|piece| piece.sort == sort)
            .map(|piece| (piece.line, piece.text))
            .collect()
    }

    #[test]
    fn comments_and_literals_are_told_apart() {
        let source = r####"
/// Doc "not a literal".
fn f<'a>(x: &'a str) -> char { // it's
    call("a // no comment \" still", r#"raw "x" "#, b"bytes", '"', '\'', '\u{1f}');
    /* one /* two */ "no" */ let r = br"b";
}"####;
        assert_eq!(
            of(Sort::Comment, source),
            [(2, "/// Doc \"not a literal\"."), (3, "// it's"), (5, "/* one /* two */ \"no\" */")]
        );
        assert_eq!(
            of(Sort::Literal, source),
            [(4, r#"a // no comment \" still"#), (4, r#"raw "x" "#), (4, "bytes"), (5, "b")]
        );
    }

    #[test]
    fn every_byte_of_code_is_in_one_piece() {
        let source = "let a = 1;\n// c\nlet b = \"x\";";
        assert_eq!(of(Sort::Code, source), [(1, "let a = 1;\n"), (2, "\nlet b = "), (3, ";")]);
        assert!(pieces("").is_empty());
        assert_eq!(of(Sort::Literal, "\"open"), [(1, "open")]);
    }
}
