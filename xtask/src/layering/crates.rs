//! The crates of the workspace: what each is for, and which others it may use.
//!
//! This table is the only place to edit when a crate is added or may use another one.
//! [`super::check`] compares it with every `Cargo.toml`; `cargo xtask docs` writes the table
//! of ARCHITECTURE.md from it. Lower crates come first: a row may name only rows above it, so the
//! table cannot describe a cycle.

/// One crate of the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The short name: the folder below `crates/`, and the package without `mainstay-`.
    pub(crate) name: &'static str,
    /// One line for the table of ARCHITECTURE.md.
    pub(crate) purpose: &'static str,
    /// Short names of the crates it may use, for tests too. [`FOR_ALL`] need not be named.
    pub(crate) may_use: &'static [&'static str],
}

/// The crate that every other one may use.
pub(crate) const FOR_ALL: &str = "clock";

pub(crate) const CRATES: &[Row] = &[
    Row {
        name: "clock",
        purpose: "time, back-off and durations: one `Clock` trait, the system clock and a manual one for tests",
        may_use: &[],
    },
    Row {
        name: "placement",
        purpose: "pure: candidates, filters, scores, choice, and the reason for every exclusion",
        may_use: &[],
    },
    Row {
        name: "client",
        purpose: "the HTTP client of the Kubernetes dialect: TLS, tokens, fail-over between servers, watches, retries",
        may_use: &[],
    },
    Row {
        name: "terminal",
        purpose: "the output of commands: tables, JSON, YAML, rows of measurements, errors with exit codes",
        may_use: &["client"],
    },
    Row {
        name: "graph",
        purpose: "the transaction engine: applies values in dependency order, retries, reverts, refreshes; a library of its own that knows no disks or volumes",
        may_use: &[],
    },
    Row {
        name: "store",
        purpose: "versioned objects with compare-and-swap, list, watch; leases; the registry of kinds; backends memory, SQLite, etcd, Kubernetes",
        may_use: &["client"],
    },
    Row {
        name: "controller",
        purpose: "the runtime of every reconciler: watch → keyed queue → reconcile; leader election; the bounded job queue; which nodes are alive",
        may_use: &["store"],
    },
    Row {
        name: "host",
        purpose: "a Linux machine: programs, mounts, loop devices, kernel events; a real and a simulated one behind one trait",
        may_use: &[],
    },
    Row {
        name: "volumes",
        purpose: "storage classes, pools, volumes, replicas, attachments; the capacity ledger and the scheduler extender",
        may_use: &["placement", "client", "terminal", "store", "controller"],
    },
    Row {
        name: "disks",
        purpose: "block devices: discovery, identity, safety gate, phase table, operations; a `Backend` trait for what uses a disk",
        may_use: &["client", "terminal", "store", "controller", "host"],
    },
    Row {
        name: "catalog",
        purpose: "the SQL of the rule engine: schema, migrations, typed rows, lock order; SQLite and PostgreSQL",
        may_use: &[],
    },
    Row {
        name: "transfers",
        purpose: "moves files between storage elements: protocols, checksums, leases, limits; knows a queue trait, no SQL",
        may_use: &[],
    },
    Row {
        name: "rules",
        purpose: "data identifiers, storage elements, rules, locks, quotas, the judge",
        may_use: &["placement", "catalog", "transfers"],
    },
    Row {
        name: "rucio",
        purpose: "Rucio's REST dialect, served below `/rucio`",
        may_use: &["placement", "catalog", "transfers", "rules"],
    },
    Row {
        name: "sessions",
        purpose: "applications, sessions and instances; pools, monitors, ports, the gateway; the agents' protocol",
        may_use: &["placement", "client", "terminal", "store", "controller", "volumes"],
    },
    Row {
        name: "agent",
        purpose: "the node side: joins, keeps its node's objects, manages its disks and instances; reaches the server through `store`'s Kubernetes backend and one gRPC stream",
        may_use: &[
            "graph",
            "client",
            "store",
            "controller",
            "host",
            "volumes",
            "disks",
            "transfers",
            "sessions",
        ],
    },
    Row {
        name: "server",
        purpose: "HTTP, authentication, authorization, the Kubernetes dialect, metrics; composes and starts the engines",
        may_use: &[
            "placement",
            "graph",
            "client",
            "store",
            "controller",
            "host",
            "volumes",
            "disks",
            "catalog",
            "transfers",
            "rules",
            "rucio",
            "sessions",
        ],
    },
    Row {
        name: "mainstay",
        purpose: "the binary: command line, configuration, `up`, benchmarks",
        may_use: &[
            "placement",
            "graph",
            "client",
            "terminal",
            "store",
            "controller",
            "host",
            "volumes",
            "disks",
            "catalog",
            "transfers",
            "rules",
            "rucio",
            "sessions",
            "agent",
            "server",
        ],
    },
    Row {
        name: "xtask",
        purpose: "tests, generated docs, the layering check; nothing of it is part of the product",
        may_use: &[],
    },
];

impl Row {
    /// The name of the crate's package.
    pub(crate) fn package(&self) -> String {
        match self.name {
            "mainstay" | "xtask" => self.name.to_owned(),
            name => format!("mainstay-{name}"),
        }
    }

    /// The crate's folder, from the root of the workspace.
    pub(crate) fn folder(&self) -> String {
        match self.name {
            "xtask" => self.name.to_owned(),
            name => format!("crates/{name}"),
        }
    }

    /// Whether this crate may use the one with the short name `other`.
    pub(crate) fn may_use(&self, other: &str) -> bool {
        let for_all = other == FOR_ALL && self.name != "xtask";
        for_all || self.may_use.contains(&other)
    }
}

/// The row of a package.
pub(crate) fn of_package(package: &str) -> Option<&'static Row> {
    CRATES.iter().find(|row| row.package() == package)
}

/// The table as Markdown, with the rows of the packages that exist.
pub(crate) fn table(exists: impl Fn(&str) -> bool) -> String {
    let shown = |name: &str| {
        CRATES.iter().any(|row| row.name == name && exists(&row.package())).then(|| name.to_owned())
    };
    let mut text = String::from("| crate | purpose | may use |\n|---|---|---|\n");
    for row in CRATES.iter().filter(|row| exists(&row.package())) {
        let used: Vec<String> = row.may_use.iter().filter_map(|name| shown(name)).collect();
        let used = if used.is_empty() { "–".to_owned() } else { used.join(", ") };
        text += &format!("| [`{}`]({}) | {} | {used} |\n", row.name, row.folder(), row.purpose);
    }
    if exists(&format!("mainstay-{FOR_ALL}")) {
        text += &format!("\nEvery crate of the product may use `{FOR_ALL}`.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_only_rows_above_it() {
        for (index, row) in CRATES.iter().enumerate() {
            for used in row.may_use {
                let above = CRATES[..index].iter().any(|other| other.name == *used);
                assert!(above, "{} may use {used}, which is not above it", row.name);
            }
        }
    }

    #[test]
    fn the_table_shows_only_crates_that_exist() {
        let text = table(|package| package == "mainstay-store" || package == "mainstay-controller");
        assert_eq!(text.matches("\n| [").count(), 2, "{text}");
        assert!(text.contains("| [`store`](crates/store) |"), "{text}");
        assert!(text.ends_with("| store |\n"), "{text}");
        assert!(!text.contains("client |"), "{text}");
    }
}
