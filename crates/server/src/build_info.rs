//! Which build of the program this is, for `/version`.
//!
//! The program sets it once at its start: this crate is not compiled anew for every commit.

use std::sync::OnceLock;

use jiff::Timestamp;

/// The commit and the time of a build.
#[derive(Clone, Copy, Debug)]
pub struct BuildInfo {
    /// The commit, or `unknown`.
    pub commit: &'static str,
    /// When the program was built, if that is known.
    pub date: Option<Timestamp>,
}

static BUILD: OnceLock<BuildInfo> = OnceLock::new();

impl BuildInfo {
    /// Makes this the build that `/version` shows. Only the first call counts.
    pub fn set(self) {
        // A second call in the same process comes from the same build.
        let _ = BUILD.set(self);
    }

    /// The build that was set, or an unknown one.
    #[must_use]
    pub fn get() -> Self {
        BUILD.get().copied().unwrap_or(Self { commit: "unknown", date: None })
    }

    /// The time of the build as RFC 3339, or `unknown`.
    #[must_use]
    pub fn date_text(&self) -> String {
        self.date.map_or_else(|| "unknown".to_owned(), |date| date.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_was_not_set_is_unknown() {
        let build = BuildInfo::get();
        assert_eq!((build.commit, build.date_text().as_str()), ("unknown", "unknown"));
        let date = Timestamp::from_second(1_700_000_000).ok();
        assert_eq!(BuildInfo { commit: "a", date }.date_text(), "2023-11-14T22:13:20Z");
    }
}
