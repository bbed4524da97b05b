//! Verifies the end of a round, independently of the product's own checker: every replica of the
//! catalog is on disk, every file on disk is in the catalog, and no file is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::step::{SITES, TINY};
use super::world::World;

/// How many files are listed at once: the error about an unknown name cuts a long list off.
const LISTED_AT_ONCE: usize = 8;

/// A copy as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) rse: String,
    pub(crate) state: String,
    pub(crate) path: PathBuf,
}

impl Replica {
    pub(crate) fn is_available(&self) -> bool {
        self.state == "AVAILABLE"
    }
}

/// Reads a listing of replicas.
pub(crate) fn replicas(listed: &Value) -> Vec<Replica> {
    let mut all = Vec::new();
    for file in listed.as_array().into_iter().flatten() {
        let name = file["name"].as_str().unwrap_or_default();
        for (rse, state) in file["states"].as_object().into_iter().flatten() {
            let place = file["rses"][rse][0].as_str().unwrap_or_default();
            all.push(Replica {
                name: name.to_owned(),
                rse: rse.clone(),
                state: state.as_str().unwrap_or_default().to_owned(),
                path: PathBuf::from(place.trim_start_matches("file://localhost:0")),
            });
        }
    }
    all
}

/// A file that lies on a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) rse: String,
    pub(crate) path: PathBuf,
}

/// The differences between the replicas of the catalog and the files on disk. `differs` compares
/// the content of one file.
pub(crate) fn compare(
    listed: &[Replica],
    found: &[Found],
    differs: &dyn Fn(&str, &Path) -> Option<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for replica in listed.iter().filter(|replica| replica.is_available()) {
        let there = |one: &&Found| one.rse == replica.rse && one.path == replica.path;
        let why = match found.iter().find(there) {
            None => Some("is not on the disk".to_owned()),
            Some(one) => differs(&replica.name, &one.path),
        };
        if let Some(why) = why {
            wrong.push(format!("{} is available on {} but {why}", replica.name, replica.rse));
        }
    }
    let known: BTreeSet<(&str, &str)> =
        listed.iter().map(|one| (one.rse.as_str(), one.name.as_str())).collect();
    for one in found {
        let name = one.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !known.contains(&(one.rse.as_str(), name)) {
            wrong.push(format!(
                "{} lies on {} but is not in the catalog",
                one.path.display(),
                one.rse
            ));
        }
    }
    wrong
}

/// The lines of a rule's explanation about copies in a state.
pub(crate) fn lines_in_state<'a>(
    explained: &'a str,
    state: &'a str,
) -> impl Iterator<Item = &'a str> {
    explained.lines().filter(move |line| line.split_whitespace().nth(2) == Some(state))
}

/// Whether, by its explanation, a rule lacks only room on the full site.
fn waits_for_room(explained: &str) -> bool {
    let mut lacking = lines_in_state(explained, "STUCK").peekable();
    let full = |line: &str| line.contains(SITES[TINY]) && line.contains("is full");
    lacking.peek().is_some() && lacking.all(full)
}

/// Every file below a folder.
fn walk(at: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => walk(&entry.path(), into),
            false => into.push(entry.path()),
        }
    }
}

impl World {
    /// Everything that is wrong, one line each.
    pub(crate) fn verify(&mut self) -> Vec<String> {
        let mut wrong = std::mem::take(&mut self.wrong);
        match self.rules(&["check"]) {
            Ok(_) => {}
            Err(said) => {
                let list = fs::read_to_string(self.folder.join("stdout")).unwrap_or_default();
                wrong.push(format!("`rules check` is not clean: {list}{said}"));
            }
        }
        let listed = match self.listed() {
            Ok(listed) => listed,
            Err(error) => {
                wrong.push(format!("the replicas cannot be listed: {error}"));
                return wrong;
            }
        };
        let mut found = Vec::new();
        for (number, rse) in SITES.iter().enumerate().take(self.sites) {
            let mut paths = Vec::new();
            walk(&self.site(number), &mut paths);
            found.extend(paths.into_iter().map(|path| Found { rse: (*rse).to_owned(), path }));
        }
        let contents: BTreeMap<&str, Vec<u8>> =
            self.known.iter().map(|known| (known.name.as_str(), known.content())).collect();
        wrong.extend(compare(&listed, &found, &|name, path| {
            let (there, right) = (fs::read(path).ok()?, contents.get(name)?);
            (there != *right)
                .then(|| format!("its content is wrong ({} bytes of {})", there.len(), right.len()))
        }));
        wrong.extend(self.lost(&listed));
        wrong.extend(self.unsatisfied(&listed));
        wrong.extend(self.said_wrong());
        wrong
    }

    /// Every copy of every known file, in any state.
    fn listed(&mut self) -> Result<Vec<Replica>, String> {
        let names: Vec<String> = self.known.iter().map(|known| known.did()).collect();
        let mut all = Vec::new();
        for some in names.chunks(LISTED_AT_ONCE) {
            let mut some: Vec<&str> = some.iter().map(String::as_str).collect();
            while !some.is_empty() {
                match self.ask(&[&["replica", "list", "--all"], some.as_slice()].concat()) {
                    Ok(listed) => {
                        all.extend(replicas(&listed));
                        break;
                    }
                    Err(error) => {
                        // The name of a file that no longer exists.
                        let (gone, before) = (error.split('\'').nth(1), some.len());
                        some.retain(|name| Some(*name) != gone);
                        if some.len() == before {
                            return Err(error);
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    /// Files that lost all copies though no step allowed that.
    fn lost(&self, listed: &[Replica]) -> Vec<String> {
        let has = |name: &str| listed.iter().any(|one| one.is_available() && one.name == name);
        let kept = self
            .known
            .iter()
            .enumerate()
            .filter(|(at, known)| !known.may_go || self.members[0].contains(at));
        let lost = kept.filter(|(_, known)| known.unfinished.is_none() && !has(&known.name));
        lost.map(|(_, known)| format!("{} is lost, though no step deleted it", known.name))
            .collect()
    }

    /// Rules that are not OK without a reason, and copies that stay unavailable without a rule.
    fn unsatisfied(&mut self, listed: &[Replica]) -> Vec<String> {
        let rules = match self.ask(&["list"]) {
            Ok(rules) => rules,
            Err(error) => return vec![format!("the rules cannot be listed: {error}")],
        };
        let mut wrong = Vec::new();
        let mut excused = BTreeSet::new();
        for rule in rules.as_array().into_iter().flatten().filter(|rule| rule["state"] != "OK") {
            let below = self.below(rule["name"].as_str().unwrap_or_default());
            excused.extend(below.iter().map(|file| self.known[*file].name.clone()));
            let (id, state) = (rule["id"].as_str().unwrap_or_default(), &rule["state"]);
            let why = self.rules(&["explain", id]).unwrap_or_else(|error| error);
            if !waits_for_room(&why) && !self.has_lost(&below, listed) {
                wrong.push(format!(
                    "rule {id} is {state} though all is well: {}\n{why}",
                    rule["error"]
                ));
            }
        }
        for one in listed.iter().filter(|one| !one.is_available() && !excused.contains(&one.name)) {
            wrong.push(format!("{} on {} is {} for ever", one.name, one.rse, one.state));
        }
        wrong
    }

    /// Whether no source is left, because a step allowed a file to be lost.
    fn has_lost(&self, files: &[usize], listed: &[Replica]) -> bool {
        let has = |name: &str| listed.iter().any(|one| one.is_available() && one.name == name);
        files.iter().map(|file| &self.known[*file]).any(|file| file.may_go && !has(&file.name))
    }

    /// Lines that no process may ever log.
    fn said_wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|kind| kind != "log") || path.ends_with("steps.log") {
                continue;
            }
            let said = fs::read(&path).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let lines =
                said.lines().filter(|line| line.contains("panicked") || line.contains("deadlock"));
            wrong.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replica(name: &str, rse: &str, state: &str) -> Replica {
        let path = PathBuf::from(format!("/{rse}/s/aa/bb/{name}"));
        Replica { name: name.to_owned(), rse: rse.to_owned(), state: state.to_owned(), path }
    }

    fn found(rse: &str, name: &str) -> Found {
        Found { rse: rse.to_owned(), path: PathBuf::from(format!("/{rse}/s/aa/bb/{name}")) }
    }

    #[test]
    fn catalog_and_disks_must_agree() {
        let right = |_: &str, _: &Path| None;
        let spoilt = |name: &str, _: &Path| (name == "f1").then(|| "is spoilt".to_owned());
        let (a, b) = (replica("f1", "A", "AVAILABLE"), replica("f1", "B", "COPYING"));
        let both = [a.clone(), b.clone()];
        let law = |listed: &[Replica], found: &[Found]| compare(listed, found, &right).len();
        assert_eq!(law(&both, &[found("A", "f1")]), 0, "a copy in transfer need not be there");
        assert_eq!(law(&both, &[found("A", "f1"), found("B", "f1")]), 0, "but may");
        assert_eq!(law(&both, &[]), 1, "a copy that is gone");
        assert_eq!(law(&both, &[found("A", "f1"), found("C", "f1")]), 1, "an orphan");
        assert_eq!(law(&both, &[found("A", "f1"), found("A", ".f1.7-1.part")]), 1, "a draft");
        assert_eq!(compare(&both, &[found("A", "f1")], &spoilt).len(), 1);
    }

    #[test]
    fn only_missing_room_on_the_full_site_excuses_a_rule() {
        let said = |rows: &[&str]| format!("NAME RSE STATE WHY\n{}", rows.join("\n"));
        let full = "f1  SITE-TINY  STUCK  the last transfer failed (f1 is full)";
        let there = "f2  SITE-D  OK  the copy is there";
        assert!(waits_for_room(&said(&[full, there])));
        assert!(!waits_for_room(&said(&[there])));
        assert!(!waits_for_room(&said(&[full, "f2  SITE-D  STUCK  nobody knows why"])));
    }

    #[test]
    fn a_listing_is_read_with_its_states_and_places() {
        let listed = json!([{"name": "f", "states": {"A": "AVAILABLE", "B": "COPYING"},
            "rses": {"A": ["file://localhost:0/x/s/f"]}}]);
        let all = replicas(&listed);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].path, Path::new("/x/s/f"));
        assert!(all[0].is_available() && !all[1].is_available());
    }
}
