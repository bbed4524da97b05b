//! The programs that the tests need besides the toolchain, and how to install them.
//!
//! The list is data: a new need is a new row. A program that exists is left alone, a missing one is
//! installed if we are root. If that fails, its tests are skipped with a warning; with `CI=true` the
//! run fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::run_to_end;

/// One thing the tests use.
struct Need {
    name: &'static str,
    why: &'static str,
    there: fn() -> bool,
    /// Debian packages that bring it.
    packages: &'static [&'static str],
    /// Further steps once the packages are installed.
    after: fn() -> Result<()>,
}

/// Needed to build the fuzz targets.
pub(crate) const CPP: &str = "C++ compiler";

/// Needed for the rounds of chaos on PostgreSQL.
pub(crate) const POSTGRES: &str = "PostgreSQL";

const NEEDS: &[Need] = &[
    Need {
        name: "kubectl",
        why: "a scripted session with the stock client",
        there: || on_path("kubectl"),
        packages: &["kubernetes-client"],
        after: || Ok(()),
    },
    Need {
        name: "etcd",
        why: "the store's conformance suite on a real cluster, with faults",
        there: || on_path("etcd"),
        packages: &["etcd-server"],
        after: || Ok(()),
    },
    Need {
        name: "etcdctl",
        why: "a second client of etcd, for faults and for waiting until it serves",
        there: || on_path("etcdctl"),
        packages: &["etcd-client"],
        after: || Ok(()),
    },
    Need {
        name: POSTGRES,
        why: "the catalog of rules on a real database server",
        there: || on_path("initdb") || Path::new("/usr/lib/postgresql").is_dir(),
        packages: &["postgresql"],
        after: || Ok(()),
    },
    Need {
        name: "nginx",
        why: "files are moved to and from a real WebDAV server",
        there: || on_path("nginx"),
        packages: &["nginx-light"],
        after: || Ok(()),
    },
    Need {
        name: CPP,
        why: "libFuzzer, which runs the fuzz targets",
        there: || on_path("c++"),
        packages: &["g++"],
        after: || Ok(()),
    },
    Need {
        name: "e2fsprogs",
        why: "disks are formatted with ext4",
        there: || on_path("mkfs.ext4"),
        packages: &["e2fsprogs"],
        after: || Ok(()),
    },
    Need {
        name: "xfsprogs",
        why: "disks are formatted with xfs",
        there: || on_path("mkfs.xfs"),
        packages: &["xfsprogs"],
        after: || Ok(()),
    },
    Need {
        name: "lvm2",
        why: "disks become volume groups",
        there: || on_path("pvcreate"),
        packages: &["lvm2"],
        after: || Ok(()),
    },
    Need {
        name: "util-linux",
        why: "loop devices stand for disks: losetup, partx, blkid, wipefs, fsfreeze",
        there: || {
            ["losetup", "partx", "blkid", "wipefs", "fsfreeze"].iter().all(|name| on_path(name))
        },
        packages: &["util-linux", "mount"],
        after: || Ok(()),
    },
    Need {
        name: "chromium",
        why: "the picture of a graph in a real browser",
        there: || {
            ["chromium", "chromium-browser", "google-chrome"].iter().any(|name| on_path(name))
        },
        packages: &["chromium", "fonts-dejavu-core"],
        after: || Ok(()),
    },
    Need {
        name: "diff",
        why: "kubectl diff calls it",
        there: || on_path("diff"),
        packages: &["diffutils"],
        after: || Ok(()),
    },
    Need {
        name: "python venv",
        why: "a folder for the Python clients that leaves the system alone",
        there: || python().exists() || runs("python3", &["-c", "import venv, ensurepip"]),
        packages: &["python3-venv"],
        after: || Ok(()),
    },
    Need {
        name: "python kubernetes client",
        why: "list, watch and patch with PyPI's client",
        there: || runs(&python().display().to_string(), &["-c", "import kubernetes"]),
        packages: &[],
        after: || install_python_client("kubernetes"),
    },
    Need {
        name: "python rucio client",
        why: "every resource of the rule engine with Rucio's own client",
        there: || runs(&python().display().to_string(), &["-c", "import rucio.client"]),
        packages: &[],
        after: || install_python_client("rucio-clients==41.5.1"),
    },
];

/// Installs missing programs; returns the names of those that could not be installed.
pub(crate) fn provide() -> Result<Vec<&'static str>> {
    let mut updated = false;
    let mut missing = Vec::new();
    for need in NEEDS {
        if (need.there)() {
            continue;
        }
        println!("xtask: {} is missing ({}); installing it", need.name, need.why);
        if let Err(error) = fetch(need, &mut updated) {
            eprintln!("xtask: {error:#}");
        }
        if !(need.there)() {
            eprintln!(
                "xtask: !!! {} COULD NOT BE INSTALLED: {} is not tested !!!",
                need.name, need.why
            );
            missing.push(need.name);
        }
    }
    if !missing.is_empty() && std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("CI must test everything, but these could not be installed: {}", missing.join(", "));
    }
    Ok(missing)
}

/// Prints the list.
pub(crate) fn show() -> Result<()> {
    for need in NEEDS {
        let there = if (need.there)() { "there  " } else { "missing" };
        println!("{there}  {}: {}", need.name, need.why);
    }
    Ok(())
}

fn fetch(need: &Need, updated: &mut bool) -> Result<()> {
    if !need.packages.is_empty() {
        if !*updated {
            run_to_end(apt().arg("update"))?;
            *updated = true;
        }
        let options = ["install", "--yes", "--no-install-recommends"];
        run_to_end(apt().args(options).args(need.packages))?;
    }
    (need.after)()
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// The folder that keeps downloads between runs.
fn cache() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || set("HOME").map(|home| Path::new(&home).join(".cache"));
    base.or_else(home).unwrap_or_else(std::env::temp_dir).join("mainstay")
}

/// The interpreter with the Python client; the tests find it by the same rule.
pub(crate) fn python() -> PathBuf {
    cache().join("python/bin/python")
}

fn install_python_client(package: &str) -> Result<()> {
    let folder = cache().join("python");
    let interpreter = python().display().to_string();
    if !runs(&interpreter, &["-m", "pip", "--version"]) {
        run_to_end(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    }
    run_to_end(Command::new(interpreter).args(["-m", "pip", "install", "--quiet", package]))
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
