//! Drafts of uploads in folders, and removal of abandoned ones.
//!
//! A killed upload leaves its draft. Workers remove all drafts of a file, but an upload must not:
//! another upload of the same file may be running. Therefore the tag of a draft names its process
//! and machine, and the next upload of the file removes the drafts whose process is gone.

use std::path::Path;

use mainstay_transfers::folder::stem;
use mainstay_transfers::protocol::Protocol;
use md5::{Digest, Md5};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The tag prefix of uploads; those of transfers are request numbers, which start at one.
const UPLOAD: &str = "0";

/// A number for this machine, short because it is part of file names. Folders may be shared by
/// machines, and a process id has a meaning on one machine only.
fn machine() -> u16 {
    let digest = Md5::digest(rustix::system::uname().nodename().to_bytes());
    u16::from_be_bytes([digest[0], digest[1]])
}

/// The tag of drafts that this process writes.
pub(super) fn tag() -> String {
    format!("{UPLOAD}-{}-{}", std::process::id(), machine())
}

/// The process that wrote a draft of a file; none unless it was an upload from this machine.
fn process(draft: &str, file: &str, machine: u16) -> Option<Pid> {
    let tag = draft.strip_prefix('.')?.strip_prefix(&*stem(file))?.strip_prefix('.')?;
    let mut parts = tag.strip_suffix(".part")?.split('-');
    let (first, process, place) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = first == UPLOAD && place.parse() == Ok(machine) && parts.next().is_none();
    Pid::from_raw(process.parse().ok().filter(|number| *number > 0 && ours)?)
}

/// Removes drafts that dead uploads of a file from this machine have left in its folder. Drafts
/// that cannot be removed now are left to the next upload.
pub(super) fn clear(protocol: &Protocol, path: &str) {
    if protocol.scheme != "file" {
        return;
    }
    let place = Path::new("/").join(protocol.prefix.trim_matches('/')).join(path);
    let (Some(folder), Some(file)) = (place.parent(), place.file_name()) else { return };
    let (file, here) = (file.to_string_lossy(), machine());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let gone = process(&entry.file_name().to_string_lossy(), &file, here)
            .is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH));
        if gone {
            // Another process may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_drafts_of_dead_uploads_from_this_machine_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let Value::Object(body) = json!({"prefix": root.path().display().to_string()}) else {
            unreachable!()
        };
        let protocol = Protocol::read("file", &body).unwrap();
        // A process that has been waited for is gone.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let (here, there, own) = (machine(), machine() ^ 1, std::process::id());
        let (left, long) = (format!(".f.0-{dead}-{here}.part"), "n".repeat(250));
        let left_long = format!(".{}.0-{dead}-{here}.part", stem(&long));
        let stay = [
            "f".to_owned(),
            format!(".f.{}.part", tag()),
            format!(".f.0-{own}-{here}.part"),
            format!(".f.0-{dead}-{there}.part"),
            format!(".f.0-{dead}.part"),
            format!(".f.7-{dead}-{here}.part"),
            format!(".f.0-{dead}-{here}-1.part"),
            format!(".f.0--1-{here}.part"),
            format!(".f.0-0-{here}.part"),
            format!(".g.0-{dead}-{here}.part"),
            format!(".f.0-{dead}-{here}"),
        ];
        let folder = root.path().join("a");
        clear(&protocol, "a/f");
        std::fs::create_dir(&folder).unwrap();
        for name in stay.iter().chain([&left, &left_long]) {
            std::fs::write(folder.join(name), "half").unwrap();
        }
        clear(&protocol, "a/f");
        clear(&protocol, &format!("a/{long}"));
        assert!(!folder.join(&left).exists() && !folder.join(&left_long).exists());
        for name in &stay {
            assert!(folder.join(name).exists(), "{name}");
        }
    }
}
