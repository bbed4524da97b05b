//! Mount tables: this process', and those of every other mount namespace.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::sysfs::{line, names};
use crate::host::MountLine;

/// Reads the lines of a mountinfo file.
pub(super) fn parse(text: &str) -> Vec<MountLine> {
    text.lines().filter_map(one).collect()
}

fn one(text: &str) -> Option<MountLine> {
    let (left, right) = text.split_once(" - ")?;
    let left: Vec<_> = left.split(' ').collect();
    let mut right = right.split(' ');
    let (filesystem, source) = (right.next()?, right.next()?);
    Some(MountLine {
        number: (*left.get(2)?).to_owned(),
        point: plain(left.get(4)?),
        source: plain(source),
        filesystem: filesystem.to_owned(),
        read_only: left.get(5)?.split(',').any(|option| option == "ro"),
    })
}

/// Undoes the octal escapes of blanks and the like.
fn plain(text: &str) -> String {
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

/// The mount table of this process.
pub(super) fn own(proc: &Path) -> io::Result<Vec<MountLine>> {
    Ok(parse(&std::fs::read_to_string(proc.join("self/mountinfo"))?))
}

/// The mount tables of all namespaces, each once, with a process that is in it.
pub(super) fn everywhere(proc: &Path) -> Vec<(String, Vec<MountLine>)> {
    let mut seen = BTreeSet::new();
    let mut tables = Vec::new();
    let is_process = |name: &String| name.chars().all(|c| c.is_ascii_digit());
    for process in names(proc).into_iter().filter(is_process) {
        let folder = proc.join(&process);
        let namespace = std::fs::read_link(folder.join("ns/mnt")).unwrap_or_default();
        if !namespace.as_os_str().is_empty() && !seen.insert(namespace) {
            continue;
        }
        if let Ok(text) = std::fs::read_to_string(folder.join("mountinfo")) {
            tables.push((process, parse(&text)));
        }
    }
    tables
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
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n37 35 7:1 / /a ro - xfs /dev/loop1 rw\nnonsense\n";
        let lines = parse(text);
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].point.as_str(), lines[0].number.as_str()), ("/mnt 2", "98:0"));
        assert!(!lines[0].read_only && lines[1].read_only);
        assert_eq!((lines[1].source.as_str(), lines[1].filesystem.as_str()), ("/dev/loop1", "xfs"));
    }
}
