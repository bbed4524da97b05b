//! Patterns as shells know them: `*`, `?` and `[a-z]`, over the whole text.
//!
//! A pattern that cannot be read matches nothing but itself: a mistake in a rule must not select
//! other disks.

/// Whether a pattern matches the whole of a text. `*` also matches `/`.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?', '[']) {
        return pattern == text;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    if readable(&pattern) { here(&pattern, &text) } else { pattern == text }
}

fn readable(pattern: &[char]) -> bool {
    let mut rest = pattern;
    while let Some((first, tail)) = rest.split_first() {
        rest = match first {
            '[' => match set(tail) {
                Some((_, after)) => after,
                None => return false,
            },
            _ => tail,
        };
    }
    true
}

/// The members of a set after its `[`, and what follows it.
fn set(pattern: &[char]) -> Option<(&[char], &[char])> {
    let first = pattern.iter().skip(1).position(|c| *c == ']')? + 1;
    Some((&pattern[..first], &pattern[first + 1..]))
}

fn contains(members: &[char], wanted: char) -> bool {
    let (negated, mut rest) = match members {
        ['!' | '^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    while let Some((first, tail)) = rest.split_first() {
        if let ['-', last, after @ ..] = tail {
            found |= (*first..=*last).contains(&wanted);
            rest = after;
        } else {
            found |= *first == wanted;
            rest = tail;
        }
    }
    found != negated
}

/// Matches without recursion: the last star is the only place worth going back to.
fn here(pattern: &[char], text: &[char]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while read < text.len() {
        let step = match pattern.get(at) {
            Some('*') => {
                back = Some((at + 1, read));
                at += 1;
                continue;
            }
            Some('?') => Some(at + 1),
            Some('[') => set(&pattern[at + 1..])
                .filter(|(members, _)| contains(members, text[read]))
                .map(|(_, after)| pattern.len() - after.len()),
            Some(c) if *c == text[read] => Some(at + 1),
            _ => None,
        };
        match (step, back) {
            (Some(next), _) => (at, read) = (next, read + 1),
            (None, Some((star, from))) => {
                back = Some((star, from + 1));
                (at, read) = (star, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases = [
            ("*", "", true),
            ("*", "/dev/sda", true),
            ("/dev/sd*", "/dev/sdab", true),
            ("/dev/sd?", "/dev/sdab", false),
            ("/dev/sd[b-d]", "/dev/sdc", true),
            ("/dev/sd[!b-d]", "/dev/sdc", false),
            ("/dev/loop[12]*", "/dev/loop17", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("", "", true),
            ("", "a", false),
            ("[", "[", true),
            ("/dev/[", "/dev/a", false),
            ("COS_*", "COS_STATE", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_longer() {
        let text = "a".repeat(5_000);
        assert!(!matches(&"*a".repeat(50).replace("*a*a", "*a*ab"), &text));
    }
}
