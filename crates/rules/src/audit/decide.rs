//! Decisions of the audit, from the catalog's expectation and the observed storage. Pure functions,
//! so that they can be tested without storage.

use std::collections::{HashMap, HashSet};

use mainstay_transfers::copy::{self, Sums};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::{Drafts, Found, is_same_service};

use crate::api::{Did, Micros, SECOND};

/// How long a file is ignored after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a file that the catalog does not know, or that a worker has left: twice a worker's
    /// lease.
    pub file: Micros,
    /// For a possible upload in progress, which the catalog learns of only at its end.
    pub upload: Micros,
}

impl Default for Patience {
    fn default() -> Self {
        Self { file: 120 * SECOND, upload: 86_400 * SECOND }
    }
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A replica's file is not there.
    Missing,
    /// A replica's file is not the one in the catalog.
    Differs,
    /// A file belongs to no replica.
    Orphan,
    /// It could not be inspected.
    Unread,
}

impl Kind {
    /// The word used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "MISSING",
            Self::Differs => "DIFFERS",
            Self::Orphan => "ORPHAN",
            Self::Unread => "UNREAD",
        }
    }
}

/// A replica's file according to the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The number of the file, and of the RSE.
    pub unit: (i64, i64),
    /// The file's name.
    pub did: Did,
    /// Its path below the RSE's prefix, or why that is unknown.
    pub path: Result<String, String>,
    /// Its size.
    pub bytes: i64,
    /// Its Adler-32 checksum, if known.
    pub adler32: Option<String>,
    /// Its MD5 checksum, if known.
    pub md5: Option<String>,
    /// When the catalog last changed the replica. Two reads with the same time mean that it did not
    /// change in between.
    pub updated_at: Micros,
}

impl Expected {
    /// Whether a checksum is known.
    #[must_use]
    pub fn has_sums(&self) -> bool {
        self.adler32.is_some() || self.md5.is_some()
    }
}

/// The observation at the path of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A file of this length.
    Length(u64),
    /// A file with these checksums.
    Whole(Sums),
    /// No file, and the reason given by the storage.
    Nothing(String),
    /// Unknown, because of this error.
    Unread(String),
}

/// The difference between a replica and its file, if any.
#[must_use]
pub fn replica(expected: &Expected, seen: &Observation) -> Option<(Kind, String)> {
    match seen {
        Observation::Nothing(why) => Some((Kind::Missing, why.clone())),
        Observation::Unread(why) => Some((Kind::Unread, why.clone())),
        Observation::Length(bytes) if i64::try_from(*bytes) == Ok(expected.bytes) => None,
        Observation::Length(bytes) => {
            Some((Kind::Differs, format!("size is {bytes} bytes, expected {}", expected.bytes)))
        }
        Observation::Whole(sums) => {
            let (adler32, md5) = (expected.adler32.as_deref(), expected.md5.as_deref());
            let why = copy::differs(sums, expected.bytes, adler32, md5)?;
            Some((Kind::Differs, why))
        }
    }
}

/// A file that is being written, recognised by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The path of the finished file; none if the name of the draft is shortened.
    pub owner: Option<String>,
    /// The kind of writer.
    pub of: Writer,
}

/// The kind of process that writes a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A worker, for this request.
    Worker(i64),
    /// A client's upload.
    Upload,
    /// A worker or an upload.
    Either,
}

/// The suffix that Rucio's own client appends until a file is complete.
const BY_RUCIO: &str = ".rucio.upload";

/// Parses the name of a draft; none for other files.
#[must_use]
pub fn draft(path: &str, drafts: Drafts) -> Option<Draft> {
    if let Some(owner) = path.strip_suffix(BY_RUCIO) {
        return Some(Draft { owner: Some(owner.to_owned()), of: Writer::Either });
    }
    let (folder, name) = path.rsplit_once('/').map_or(("", path), |(above, name)| (above, name));
    let within = |name: &str| match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    };
    let inner = name.strip_prefix('.')?.strip_suffix(".part").filter(|name| !name.is_empty())?;
    match drafts {
        Drafts::Unseen => None,
        Drafts::Plain => Some(Draft { owner: Some(within(inner)), of: Writer::Either }),
        Drafts::Tagged => {
            let (stem, tag) = inner.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?;
            let numbers: Option<Vec<i64>> = tag
                .split('-')
                .map(|part| part.parse().ok().filter(|number| *number >= 0))
                .collect();
            let of = match numbers?.as_slice() {
                [0, _, _] => Writer::Upload,
                [request, _] => Writer::Worker(*request),
                _ => return None,
            };
            // A shortened stem ends with the checksum of the full name.
            let sum = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
            let shortened = stem.rsplit_once('~').is_some_and(|(_, end)| sum(end));
            Some(Draft { owner: (!shortened).then(|| within(stem)), of })
        }
    }
}

/// The catalog's records about some paths of an RSE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Paths with a replica, and whether a worker or an upload may be writing there.
    pub standing: HashMap<String, bool>,
    /// Live requests to the RSE, and requests given up while a worker may still be writing.
    pub requests: HashSet<i64>,
}

/// Why a file is an orphan; none if it belongs to a replica or changed too recently.
#[must_use]
pub fn orphan(
    found: &Found,
    drafts: Drafts,
    known: &Known,
    now: Micros,
    patience: Patience,
) -> Option<&'static str> {
    if known.standing.contains_key(&found.path) {
        return None;
    }
    let age = now.saturating_sub(found.changed);
    let Some(draft) = draft(&found.path, drafts) else {
        return (age >= patience.file).then_some("no replica has this path");
    };
    let standing = draft.owner.as_ref().and_then(|owner| known.standing.get(owner));
    let wanted = match draft.of {
        Writer::Worker(request) => known.requests.contains(&request),
        Writer::Upload | Writer::Either => false,
    };
    if wanted || standing == Some(&true) {
        return None;
    }
    let least = match (draft.of, standing) {
        (Writer::Worker(_), _) | (Writer::Either, Some(_)) => patience.file,
        (Writer::Upload, _) | (Writer::Either, None) => patience.upload,
    };
    (age >= least).then_some("it is an abandoned draft: no worker or upload is writing it")
}

/// The files that may be at a path of a deterministic RSE, by inverting the name hash. A path omits
/// the leading slashes of a name: up to `slashes` are considered.
#[must_use]
pub fn names(path: &str, slashes: usize) -> Vec<Did> {
    let parts: Vec<&str> = path.split('/').collect();
    let hashed = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut all = Vec::new();
    for at in 1..parts.len().saturating_sub(2) {
        if !hashed(parts[at]) || !hashed(parts[at + 1]) {
            continue;
        }
        let (scope, name) = (parts[..at].join("."), parts[at + 2..].join("/"));
        for more in 0..=slashes.min(250_usize.saturating_sub(name.len())) {
            let did = Did::new(scope.as_str(), format!("{}{name}", "/".repeat(more)));
            if mainstay_transfers::protocol::hashed_path(&did) == path {
                all.push(did);
            }
        }
    }
    all
}

/// A path of one protocol, translated to another; none if the other does not reach it.
#[must_use]
pub fn same_place(path: &str, of: &Protocol, by: &Protocol) -> Option<String> {
    if !is_same_service(of, by) {
        return None;
    }
    let parts = |protocol: &Protocol| -> Vec<String> {
        let parts = protocol.prefix.split('/').filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    let (of, by) = (parts(of), parts(by));
    let whole: Vec<&str> = of.iter().map(String::as_str).chain(path.split('/')).collect();
    let rest = whole.strip_prefix(by.iter().map(String::as_str).collect::<Vec<_>>().as_slice())?;
    (!rest.is_empty()).then(|| rest.join("/"))
}

/// How many other paths of a file are considered where links form circles.
const ALIASES: usize = 100;

/// The paths that reach a file through links, each of which leads from one path to another.
#[must_use]
pub fn aliases(path: &str, links: &[(String, String)]) -> Vec<String> {
    let mut all = vec![path.to_owned()];
    let mut next = 0;
    while let Some(known) = all.get(next).cloned() {
        next += 1;
        for (link, target) in links {
            let rest = match target.as_str() {
                "" => Some(format!("/{known}")),
                target => known.strip_prefix(target).map(str::to_owned),
            };
            let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
                continue;
            };
            let alias = format!("{link}{rest}");
            if all.len() < ALIASES && !all.contains(&alias) {
                all.push(alias);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn expected(bytes: i64) -> Expected {
        Expected {
            unit: (1, 2),
            did: Did::new("s", "f"),
            path: Ok("s/00/00/f".to_owned()),
            bytes,
            adler32: Some("00620062".to_owned()),
            md5: None,
            updated_at: 5,
        }
    }

    #[test]
    fn missing_files_and_wrong_sizes_or_checksums_are_reported() {
        let sums = |bytes: u64, adler32: &str| {
            Observation::Whole(Sums { bytes, adler32: adler32.to_owned(), md5: None })
        };
        for (seen, meant) in [
            (Observation::Length(1), None),
            (Observation::Length(0), Some("DIFFERS size is 0 bytes, expected 1")),
            (sums(1, "00620062"), None),
            (sums(1, "00000001"), Some("DIFFERS adler32 checksum is 00000001, expected 00620062")),
            (sums(2, "00620062"), Some("DIFFERS size is 2 bytes, expected 1")),
            (Observation::Nothing("gone".to_owned()), Some("MISSING gone")),
            (Observation::Unread("a disk".to_owned()), Some("UNREAD a disk")),
        ] {
            let found = replica(&expected(1), &seen);
            let told = found.map(|(kind, why)| format!("{} {why}", kind.name()));
            assert_eq!(told.as_deref(), meant, "{seen:?}");
        }
    }

    #[test]
    fn drafts_are_distinguished_from_files_with_similar_names() {
        let long = "n".repeat(250);
        let shortened = format!("a/.{}.7-1.part", mainstay_transfers::folder::stem(&long));
        let (worker, upload, either) = (Writer::Worker(7), Writer::Upload, Writer::Either);
        for (path, drafts, meant) in [
            ("a/.f.7-1.part", Drafts::Tagged, Some((Some("a/f"), worker))),
            (".f.7-1.part", Drafts::Tagged, Some((Some("f"), worker))),
            ("a/.f.x.7-1.part", Drafts::Tagged, Some((Some("a/f.x"), worker))),
            ("a/.f.0-12-99.part", Drafts::Tagged, Some((Some("a/f"), upload))),
            (&*shortened, Drafts::Tagged, Some((None, worker))),
            ("a/.f.notes.part", Drafts::Tagged, None),
            ("a/.f.7.part", Drafts::Tagged, None),
            ("a/.f.7-1-2.part", Drafts::Tagged, None),
            ("a/.f.-7-1.part", Drafts::Tagged, None),
            ("a/.7-1.part", Drafts::Tagged, None),
            ("a/f.7-1.part", Drafts::Tagged, None),
            ("a/.f.7-1", Drafts::Tagged, None),
            ("a/.part", Drafts::Tagged, None),
            ("a/.f.part", Drafts::Plain, Some((Some("a/f"), either))),
            ("a/.f.7-1.part", Drafts::Plain, Some((Some("a/f.7-1"), either))),
            ("a/.f.7-1.part", Drafts::Unseen, None),
            ("a/f.rucio.upload", Drafts::Unseen, Some((Some("a/f"), either))),
        ] {
            let found = draft(path, drafts);
            let found = found.as_ref().map(|one| (one.owner.as_deref(), one.of));
            assert_eq!(found, meant, "{path} {drafts:?}");
        }
    }

    #[test]
    fn recent_requested_or_registered_files_are_not_orphans() {
        let patience = Patience { file: 10, upload: 100 };
        let known = Known {
            standing: [("a/f".to_owned(), false), ("a/busy".to_owned(), true)].into(),
            requests: [7].into(),
        };
        for (path, drafts, ages) in [
            // Never, from some age on, or always: the least age at which it is reported.
            ("a/f", Drafts::Tagged, None),
            ("a/busy", Drafts::Tagged, None),
            ("a/g", Drafts::Tagged, Some(10)),
            ("g", Drafts::Unseen, Some(10)),
            ("a/.f.7-1.part", Drafts::Tagged, None),
            ("a/.f.8-1.part", Drafts::Tagged, Some(10)),
            ("a/.g.8-1.part", Drafts::Tagged, Some(10)),
            ("a/.busy.8-1.part", Drafts::Tagged, None),
            ("a/.f.0-1-1.part", Drafts::Tagged, Some(100)),
            ("a/.g.0-1-1.part", Drafts::Tagged, Some(100)),
            ("a/.f.part", Drafts::Plain, Some(10)),
            ("a/.g.part", Drafts::Plain, Some(100)),
            ("a/.busy.part", Drafts::Plain, None),
            ("a/.f.8-1.part", Drafts::Unseen, Some(10)),
            ("a/busy.rucio.upload", Drafts::Tagged, None),
            ("a/g.rucio.upload", Drafts::Tagged, Some(100)),
        ] {
            let found = Found { path: path.to_owned(), bytes: 1, changed: 1_000 };
            for age in [-5, 0, 9, 10, 99, 100, 5_000] {
                let accused = orphan(&found, drafts, &known, 1_000 + age, patience).is_some();
                assert_eq!(accused, ages.is_some_and(|least| age >= least), "{path} {age}");
            }
        }
    }

    #[test]
    fn a_hashed_path_yields_every_name_it_may_belong_to() {
        for (scope, name) in [
            ("user.alice", "f0"),
            ("user.alice.sub", "a/b/c.root"),
            ("data17", "a/b.root"),
            ("group", "00/11/22"),
            ("s.t", "x..y"),
        ] {
            let did = Did::new(scope, name);
            assert_eq!(names(&mainstay_transfers::protocol::hashed_path(&did), 0), [did]);
        }
        for name in ["/a", "///a/b"] {
            let did = Did::new("s", name);
            assert!(
                names(&mainstay_transfers::protocol::hashed_path(&did), 250).contains(&did),
                "{name}"
            );
        }
        for path in ["", "f", "s/00/f", "s/00/00/f", "s/zz/yy/f", "s/34/c4/"] {
            assert_eq!(names(path, 250), [], "{path}");
        }
    }

    fn protocol(scheme: &str, prefix: &str) -> Protocol {
        let Value::Object(body) = json!({"prefix": prefix}) else { unreachable!() };
        Protocol::read(scheme, &body).unwrap()
    }

    #[test]
    fn paths_are_translated_between_rses_that_share_a_folder() {
        for (of, by, path, meant) in [
            ("/data", "/data", "a/f", Some("a/f")),
            ("/data", "/data/b", "b/a/f", Some("a/f")),
            ("/data", "/data/b", "bb/f", None),
            ("/data/b", "/data", "a/f", Some("b/a/f")),
            ("/data", "/other", "a/f", None),
            ("/", "/data/", "data/f", Some("f")),
            ("//data/", "", "f", Some("data/f")),
            ("/data", "/data/f", "f", None),
        ] {
            let found = same_place(path, &protocol("file", of), &protocol("file", by));
            assert_eq!(found.as_deref(), meant, "{of} {by} {path}");
        }
        let (s3, dav) = (protocol("s3", "/data"), protocol("davs", "/data"));
        assert_eq!(same_place("f", &s3, &dav), None);
        assert_eq!(same_place("f", &dav, &protocol("https", "/data")).as_deref(), Some("f"));
        assert_eq!(same_place("f", &dav, &protocol("file", "/data")), None);
    }

    #[test]
    fn aliases_follow_links_and_stop_at_circles() {
        let links = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(link, to)| ((*link).to_owned(), (*to).to_owned())).collect()
        };
        for (path, all, meant) in [
            ("disk/s/f", &[][..], &["disk/s/f"][..]),
            ("disk/s/f", &[("s", "disk/s")], &["disk/s/f", "s/f"]),
            ("disk/s/f", &[("x", "disk/s/f")], &["disk/s/f", "x"]),
            ("disk2/s/f", &[("s", "disk")], &["disk2/s/f"]),
            ("a/f", &[("b", "a"), ("c", "b")], &["a/f", "b/f", "c/f"]),
        ] {
            assert_eq!(aliases(path, &links(all)), meant);
        }
        assert_eq!(aliases("f", &links(&[("whole", "")])).len(), ALIASES);
    }
}
