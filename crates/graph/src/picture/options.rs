//! The options of a view: which values are shown, and which tiles are open.

use std::collections::BTreeSet;

use super::{Figure, Picture};
use crate::state::ValueState;

/// The values that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Only {
    /// Every value.
    #[default]
    All,
    /// Values that are not well, and the values they wait for.
    Unwell,
    /// Values in one state, and the values they wait for.
    State(ValueState),
}

impl Only {
    /// Reads the argument of a request: `unwell` or the name of a state, in any case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("unwell") {
            return Some(Self::Unwell);
        }
        let state = ValueState::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(text));
        state.map(Self::State)
    }

    /// The argument of a request; none for every value.
    pub(super) fn argument(self) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::Unwell => Some("unwell"),
            Self::State(state) => Some(state.name()),
        }
    }

    fn accepts(self, figure: &Figure) -> bool {
        match self {
            Self::All => true,
            Self::Unwell => !figure.placeholder && !figure.is_well(),
            Self::State(state) => !figure.placeholder && figure.state == state,
        }
    }
}

/// The arguments of one view of a picture. A view is addressed by them, so that each has a link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ViewOptions {
    /// The transaction after which the graph is shown; none for now.
    pub(crate) transaction: Option<u64>,
    pub(crate) only: Only,
    /// Keys of values: a tile that holds one of them is open.
    pub(crate) open: BTreeSet<String>,
}

impl ViewOptions {
    /// The address of this view, relative to the address of any other.
    pub(super) fn link(&self) -> String {
        let mut arguments = Vec::new();
        if let Some(seq) = self.transaction {
            arguments.push(format!("txn={seq}"));
        }
        if let Some(only) = self.only.argument() {
            arguments.push(format!("only={only}"));
        }
        arguments.extend(self.open.iter().map(|key| format!("open={}", encoded(key))));
        match arguments.is_empty() {
            true => "graph".to_owned(),
            false => format!("graph?{}", arguments.join("&")),
        }
    }

    pub(super) fn opening(&self, key: &str) -> Self {
        let mut options = self.clone();
        options.open.insert(key.to_owned());
        options
    }

    pub(super) fn showing(&self, only: Only) -> Self {
        Self { only, open: BTreeSet::new(), ..self.clone() }
    }

    /// Whether each figure is shown: those asked for, the dependencies they miss, and their bases.
    pub(super) fn visible(&self, picture: &Picture) -> Vec<bool> {
        let mut shown: Vec<bool> =
            picture.figures.iter().map(|figure| self.only.accepts(figure)).collect();
        let asked = shown.clone();
        for arrow in &picture.arrows {
            match arrow.kind {
                super::ArrowKind::Unmet if asked[arrow.from] => shown[arrow.to] = true,
                super::ArrowKind::Derives if asked[arrow.to] => shown[arrow.from] = true,
                _ => {}
            }
        }
        shown
    }
}

/// Text escaped for the value of a query argument.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                out.push(byte as char);
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_addressed_by_its_options_relative_to_any_path() {
        assert_eq!(ViewOptions::default().link(), "graph");
        let options = ViewOptions {
            transaction: Some(7),
            only: Only::Unwell,
            open: BTreeSet::from(["a b&c".to_owned(), "/x".to_owned()]),
        };
        assert_eq!(options.link(), "graph?txn=7&only=unwell&open=/x&open=a%20b%26c");
        assert_eq!(options.showing(Only::All).link(), "graph?txn=7");
        assert_eq!(options.showing(Only::All).opening("k").link(), "graph?txn=7&open=k");
    }

    #[test]
    fn the_filter_is_read_in_any_case() {
        assert_eq!(Only::parse("Unwell"), Some(Only::Unwell));
        assert_eq!(Only::parse("pending"), Some(Only::State(ValueState::Pending)));
        assert_eq!(Only::parse("blue"), None);
    }
}
