//! Golden files: what a person has read and found good, and tests compare with.
//!
//! `UPDATE_GOLDEN=1 cargo test` writes them anew; the difference is for a person to review.

use std::path::PathBuf;

/// Compares a text with the golden file of this name.
pub(crate) fn check(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (expected, actual)) in expected.lines().zip(actual.lines()).enumerate() {
        assert_eq!(actual, expected, "{name}, line {}", number + 1);
    }
    assert_eq!(actual, expected, "{name} has more or fewer lines");
}
