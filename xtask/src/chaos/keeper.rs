//! Cleans up after a round, also after one that was killed: a shell that outlives this process.
//!
//! It reads every process, mount and folder of the round from its input. When the input ends, it
//! kills the processes, unmounts the mounts and removes the folder.

use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=; mounts=; folder=
while read -r what value; do
  case "$what" in
    pid) pids="$pids $value" ;;
    gone) left=; for pid in $pids; do [ "$pid" = "$value" ] || left="$left $pid"; done; pids="$left" ;;
    mount) mounts="$value $mounts" ;;
    folder) folder="$value" ;;
    keep) folder= ;;
  esac
done
for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
for mount in $mounts; do
  for again in 1 2 3 4 5; do umount "$mount" 2>/dev/null && break; sleep 0.2; done
  mountpoint -q "$mount" && umount -l "$mount"
done
[ -z "$folder" ] || rm -rf -- "$folder"
"#;

/// The shell that cleans up.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    told: Option<ChildStdin>,
}

impl Keeper {
    /// Starts the shell for a folder.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped());
        let mut child = command.spawn().context("cannot start a shell")?;
        let told = child.stdin.take();
        let mut keeper = Self { child, told };
        keeper.tell("folder", folder.display());
        Ok(keeper)
    }

    fn tell(&mut self, what: &str, value: impl std::fmt::Display) {
        if let Some(told) = &mut self.told {
            // Without the shell the round is not cleaned up, which is no reason to fail.
            let _ = writeln!(told, "{what} {value}");
        }
    }

    pub(crate) fn has_process(&mut self, pid: u32) {
        self.tell("pid", pid);
    }

    /// Forgets a process that has ended: its number may be reused.
    pub(crate) fn process_ended(&mut self, pid: u32) {
        self.tell("gone", pid);
    }

    pub(crate) fn has_mount(&mut self, at: &Path) {
        self.tell("mount", at.display());
    }

    /// Keeps the folder for people to look at.
    pub(crate) fn keep_folder(&mut self) {
        self.tell("keep", "");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.told.take());
        // The end of its input ends the shell; a failed wait changes nothing.
        let _ = self.child.wait();
    }
}
