//! Every program that is run, in one place: found once, in its own process group, with a time limit.
//!
//! A child gets the locked disk as its input, so that the lock lasts as long as it does, whatever
//! becomes of the agent. Too late means: asked to end, then ended, with everything it started; what
//! cannot be ended is handed back as still running. A time-out is never a success.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::Trouble;

/// How long a child has to end after it was asked to, and after it was made to.
const GRACE: Duration = Duration::from_secs(5);
/// The most that is read of what a child says.
const LONGEST: u64 = 1 << 20;

/// Where programs are looked for when the environment does not say.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The output of a program.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    pub(crate) fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// Its error message, in one line.
    pub(crate) fn complaint(&self) -> String {
        let text = if self.err.trim().is_empty() { &self.out } else { &self.err };
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let code = self.code.map_or("a signal".to_owned(), |code| format!("code {code}"));
        let said = lines.join("; ");
        let short: String = said.chars().take(500).collect();
        if short.is_empty() { format!("it ended with {code}") } else { format!("{short} ({code})") }
    }
}

/// The programs that were found.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    path: OsString,
    found: BTreeMap<&'static str, PathBuf>,
    home: PathBuf,
}

impl Programs {
    /// Looks for the programs once. `home` is where wipefs leaves copies of what it erased.
    pub(crate) fn find(path: Option<OsString>, home: PathBuf) -> Self {
        let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_else(|| USUAL.into());
        let names = [
            "blkid",
            "wipefs",
            "mkfs.ext4",
            "mkfs.xfs",
            "mount",
            "umount",
            "pvcreate",
            "vgcreate",
            "vgremove",
            "pvremove",
            "vgs",
            "pvs",
        ];
        let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        folders.extend(std::env::split_paths(USUAL));
        let find = |name: &'static str| {
            let place = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
            place.map(|place| (name, place))
        };
        let found = names.into_iter().filter_map(find).collect();
        Self { path, found, home }
    }

    /// The whole command line.
    pub(crate) fn line(&self, program: &'static str, arguments: &[String]) -> Vec<String> {
        let place = self.found.get(program).map_or(program.into(), |p| p.display().to_string());
        std::iter::once(place).chain(arguments.iter().cloned()).collect()
    }

    /// Runs a program to its end, within `limit`.
    pub(crate) async fn run(
        &self,
        program: &'static str,
        arguments: &[String],
        held: Option<&File>,
        limit: Duration,
    ) -> Result<Output, Trouble> {
        let Some(place) = self.found.get(program) else {
            return Err(Trouble::Failed(format!("{program} is not installed")));
        };
        let input = match held.map(File::try_clone) {
            Some(Ok(mut file)) => {
                // A program that reads its input finds the end of it, not the disk.
                let _ = file.seek(SeekFrom::End(0));
                Stdio::from(file)
            }
            Some(Err(error)) => return Err(Trouble::Failed(format!("the lock is lost: {error}"))),
            None => Stdio::null(),
        };
        let mut child = Command::new(place)
            .args(arguments)
            .env_clear()
            .env("PATH", &self.path)
            .env("LC_ALL", "C")
            .env("HOME", &self.home)
            .env("LVM_SUPPRESS_FD_WARNINGS", "1")
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| Trouble::Failed(format!("{program} cannot be started: {error}")))?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (mut said, mut complained) = (Vec::new(), Vec::new());
        let ended = {
            let talk = async {
                if let Some(out) = out {
                    let _ = out.take(LONGEST).read_to_end(&mut said).await;
                }
            };
            let complain = async {
                if let Some(err) = err {
                    let _ = err.take(LONGEST).read_to_end(&mut complained).await;
                }
            };
            let whole = async { tokio::join!(child.wait(), talk, complain).0 };
            timeout(limit, whole).await
        };
        let status = match ended {
            Ok(status) => {
                status.map_err(|error| Trouble::Failed(format!("{program} got lost: {error}")))?
            }
            Err(_) => {
                let why = format!("{program} did not end within {}s", limit.as_secs());
                for signal in [Signal::TERM, Signal::KILL] {
                    if let Some(group) = group {
                        // A group that is gone already has ended.
                        let _ = kill_process_group(group, signal);
                    }
                    if timeout(GRACE, child.wait()).await.is_ok() {
                        if let Some(group) = group {
                            // Its own children may have outlived it.
                            let _ = kill_process_group(group, Signal::KILL);
                        }
                        return Err(Trouble::TimedOut(why));
                    }
                }
                let reaped = async move {
                    let _ = child.wait().await;
                };
                return Err(Trouble::Stuck(format!("{why} and cannot be ended"), reaped.boxed()));
            }
        };
        let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { code: status.code(), out: words(said), err: words(complained) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder with one program called blkid that is this script.
    fn script(text: &str) -> (tempfile::TempDir, Programs) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("blkid");
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut path = folder.path().as_os_str().to_owned();
        path.push(":/usr/bin:/bin");
        let programs = Programs::find(Some(path), folder.path().to_owned());
        (folder, programs)
    }

    #[tokio::test]
    async fn the_output_of_a_program_is_returned() {
        let (_folder, programs) = script("echo out; echo err >&2; exit 3");
        let said = programs.run("blkid", &[], None, Duration::from_secs(30)).await.unwrap();
        assert_eq!((said.code, said.out.as_str()), (Some(3), "out\n"));
        assert_eq!(said.complaint(), "err (code 3)");
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_ends_with_all_its_children() {
        let (folder, programs) = script("sleep 600 & echo $! > $HOME/child; wait");
        let limit = Duration::from_millis(300);
        let trouble = programs.run("blkid", &[], None, limit).await.unwrap_err();
        assert!(matches!(trouble, Trouble::TimedOut(_)), "{trouble:?}");
        let child = std::fs::read_to_string(folder.path().join("child")).unwrap();
        let dead = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.trim()));
            status.is_err() || status.is_ok_and(|text| text.contains("State:\tZ"))
        };
        // The kernel takes a moment to deliver the signal.
        for _ in 0..1_000 {
            if dead() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("something of it still runs");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut programs = Programs::find(None, folder.path().to_owned());
        programs.found.clear();
        let trouble = programs.run("mkfs.xfs", &[], None, GRACE).await.unwrap_err();
        assert_eq!(trouble.message(), "mkfs.xfs is not installed");
    }
}
