//! The default data folder.

use std::env;
use std::path::PathBuf;

/// `$MAINSTAY_DATA_DIR`, else the user's data folder (`$XDG_DATA_HOME` or `~/.local/share`).
pub(crate) fn data_dir() -> Option<PathBuf> {
    choose(|name| env::var_os(name).map(PathBuf::from))
}

fn choose(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    set("MAINSTAY_DATA_DIR")
        .or_else(|| set("XDG_DATA_HOME").map(|path| path.join("mainstay")))
        .or_else(|| set("HOME").map(|path| path.join(".local/share/mainstay")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested_first() {
        let cases = [
            ("MAINSTAY_DATA_DIR=/a HOME=/h", Some("/a")),
            ("XDG_DATA_HOME=/x HOME=/h", Some("/x/mainstay")),
            ("HOME=/h", Some("/h/.local/share/mainstay")),
            ("XDG_DATA_HOME= HOME=/h", Some("/h/.local/share/mainstay")),
            ("", None),
        ];
        for (variables, expected) in cases {
            let chosen = choose(|name| {
                let mut pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
                pairs.find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
            });
            assert_eq!(chosen, expected.map(PathBuf::from));
        }
    }
}
