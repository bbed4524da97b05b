//! Mount tables: this process', and those of every other mount namespace.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::sysfs::{line, names};
use crate::MountLine;

/// Reads the lines of a mountinfo file.
fn parse(text: &str) -> impl Iterator<Item = Entry<'_>> {
    text.lines().filter_map(Entry::read)
}

/// A line of a mountinfo file as it stands there.
struct Entry<'a> {
    number: &'a str,
    point: &'a str,
    options: &'a str,
    filesystem: &'a str,
    source: &'a str,
    /// The options of the filesystem itself, whatever those of this mount of it.
    whole: &'a str,
}

impl<'a> Entry<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (left, right) = text.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let mut right = right.split(' ');
        Some(Self {
            number: left.next()?,
            point: left.nth(1)?,
            options: left.next()?,
            filesystem: right.next()?,
            source: right.next()?,
            whole: right.next().unwrap_or_default(),
        })
    }

    fn line(&self) -> MountLine {
        MountLine {
            number: self.number.to_owned(),
            point: plain(self.point),
            source: plain(self.source),
            filesystem: self.filesystem.to_owned(),
            read_only: [self.options, self.whole]
                .iter()
                .any(|options| options.split(',').any(|option| option == "ro")),
        }
    }
}

/// Undoes the octal escapes of blanks and the like.
fn plain(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The mount table of this process, read anew only when the kernel says that it changed.
#[derive(Debug)]
pub(super) struct Own {
    path: PathBuf,
    last: Mutex<Option<Read>>,
}

/// The mount table as it was last read, and the file that tells whether it changed.
#[derive(Debug)]
struct Read {
    file: File,
    lines: Arc<[MountLine]>,
}

impl Own {
    pub(super) fn new(proc: &Path) -> Self {
        Self { path: proc.join("self/mountinfo"), last: Mutex::default() }
    }

    /// The table as it is now.
    pub(super) fn lines(&self) -> io::Result<Arc<[MountLine]>> {
        let mut last = self.last.lock();
        let mut file = match last.take() {
            Some(Read { file, lines }) if !changed(&file) => {
                *last = Some(Read { file, lines: lines.clone() });
                return Ok(lines);
            }
            Some(Read { mut file, .. }) => {
                file.rewind()?;
                file
            }
            None => {
                let file = File::open(&self.path)?;
                // From here on the kernel counts what this reader has not seen.
                changed(&file);
                file
            }
        };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let lines: Arc<[MountLine]> = parse(&text).map(|entry| entry.line()).collect();
        *last = Some(Read { file, lines: lines.clone() });
        Ok(lines)
    }
}

/// Whether a table changed since it was asked last. A file that stands in for the kernel's cannot
/// tell.
fn changed(file: &File) -> bool {
    const PROC: rustix::fs::FsWord = 0x9fa0;
    let real = rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == PROC);
    let mut asked = [PollFd::new(file, PollFlags::PRI)];
    let still = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    !real || poll(&mut asked, Some(&still)) != Ok(0)
}

/// The lines of all mount namespaces that `wanted` picks by number and source, each namespace
/// once, with a process that is in it.
pub(super) fn everywhere(
    proc: &Path,
    wanted: impl Fn(&str, &str) -> bool,
) -> Vec<(String, MountLine)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let is_process = |name: &String| name.chars().all(|c| c.is_ascii_digit());
    for process in names(proc).into_iter().filter(is_process) {
        let folder = proc.join(&process);
        let namespace = std::fs::read_link(folder.join("ns/mnt")).unwrap_or_default();
        if !namespace.as_os_str().is_empty() && !seen.insert(namespace) {
            continue;
        }
        let text = std::fs::read_to_string(folder.join("mountinfo")).unwrap_or_default();
        let lines = parse(&text).filter(|entry| wanted(entry.number, &plain(entry.source)));
        found.extend(lines.map(|entry| (process.clone(), entry.line())));
    }
    found
}

/// The swap spaces in use, by path.
pub(super) fn swaps(proc: &Path) -> Vec<String> {
    let text = line(&proc.join("swaps"));
    text.lines().skip(1).filter_map(|line| Some(plain(line.split_whitespace().next()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_table_is_read_with_all_its_oddities() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n37 35 7:1 / /a ro - xfs /dev/loop1 rw\n38 35 7:2 / /b rw - ext4 /dev/loop2 ro,errors=remount-ro\nnonsense\n";
        let lines: Vec<_> = parse(text).map(|entry| entry.line()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].point.as_str(), lines[0].number.as_str()), ("/mnt 2", "98:0"));
        assert!(!lines[0].read_only && lines[1].read_only);
        assert!(lines[2].read_only, "the kernel made the filesystem read-only after an error");
        assert_eq!((lines[1].source.as_str(), lines[1].filesystem.as_str()), ("/dev/loop1", "xfs"));
    }

    #[test]
    fn a_mount_table_is_read_again_when_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("self")).unwrap();
        let file = folder.path().join("self/mountinfo");
        let table = Own::new(folder.path());
        assert!(table.lines().is_err(), "there is none");
        for points in [&["/a"][..], &["/a", "/b"], &[]] {
            let line = |point: &&str| format!("36 35 7:0 / {point} rw - ext4 /dev/loop0 rw\n");
            std::fs::write(&file, points.iter().map(line).collect::<String>()).unwrap();
            let now: Vec<_> = table.lines().unwrap().iter().map(|l| l.point.clone()).collect();
            assert_eq!(now, points);
        }
    }
}
