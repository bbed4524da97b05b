//! The steps of a plan: commands of users, and faults.

use std::fmt;
use std::time::Duration;

/// Storage elements. The last one is so small that it fills up.
pub(crate) const SITES: [&str; 5] = ["SITE-A", "SITE-B", "SITE-C", "SITE-D", "SITE-TINY"];

/// The one that fills up.
pub(crate) const TINY: usize = 4;

/// The datasets. Files of the first one must never be lost.
pub(crate) const DATASETS: [&str; 4] = ["keep", "d0", "d1", "d2"];

/// A container of some of the datasets.
pub(crate) const CONTAINER: &str = "all";

/// Where rules want copies, and how many there can be at most.
pub(crate) const EXPRESSIONS: [(&str, usize); 7] = [
    ("tier=1", 4),
    ("SITE-A|SITE-B|SITE-C", 3),
    ("SITE-B|SITE-C", 2),
    ("SITE-D", 1),
    ("tier=1\\SITE-A", 3),
    ("SITE-TINY|SITE-D", 2),
    ("*", 5),
];

/// A file to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewFile {
    pub(crate) bytes: usize,
    pub(crate) site: usize,
    pub(crate) dataset: usize,
}

/// A rule to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewRule {
    /// A dataset by its number, then the container, then a single file.
    pub(crate) did: usize,
    pub(crate) file: usize,
    pub(crate) expression: usize,
    pub(crate) copies: usize,
    pub(crate) grouping: &'static str,
    /// After how many seconds it expires.
    pub(crate) lifetime: Option<usize>,
}

/// How a rule is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    AtOnce,
    Soft,
    Purge,
}

/// A process of the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Server(usize),
    Worker(usize),
    Database,
}

/// Where a worker reads its requests from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Server,
    Catalog,
}

/// One step. Rules, files and copies are picked by number from those that exist at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    AddRule(NewRule),
    DeleteRule {
        rule: usize,
        how: Deletion,
    },
    MoveRule {
        rule: usize,
        expression: usize,
    },
    ReduceRule {
        rule: usize,
    },
    RepairRule {
        rule: usize,
    },
    Attach {
        dataset: usize,
        file: usize,
    },
    Detach {
        dataset: usize,
        file: usize,
    },
    Nest {
        dataset: usize,
        into: bool,
    },
    DeclareBad {
        file: usize,
        copy: usize,
    },
    Corrupt {
        file: usize,
        copy: usize,
        cut: bool,
    },
    Tombstone {
        file: usize,
        copy: usize,
    },
    Upload {
        files: Vec<NewFile>,
        killed: Option<Duration>,
    },
    Close {
        site: usize,
        what: &'static str,
        during: Duration,
    },
    Download {
        file: usize,
    },
    Check,
    /// Several users at once: rules are added and others deleted.
    Rush {
        add: Vec<NewRule>,
        delete: Vec<usize>,
        attach: Vec<(usize, usize)>,
    },
    Reap,
    Kill {
        who: Who,
        during: Duration,
    },
    Freeze {
        who: Who,
        during: Duration,
    },
    KillBackend {
        which: usize,
        crash: bool,
    },
    Away {
        site: usize,
        during: Duration,
    },
    ReadOnly {
        site: usize,
        during: Duration,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}
