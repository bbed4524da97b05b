//! Keeps the wanted state of disks durably, besides their objects: deleting an object is a way to start
//! anew, not a way to lose the wanted state.
//!
//! An acknowledgement of data loss or an adoption is never remembered: it counts for what was seen when
//! it was given.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;

use crate::api::{BlockDevice, BlockDeviceSpec, FormatRecord, Identity};
use crate::identity;

/// The remembered state of one disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// The identity of the disk.
    pub identity: Identity,
    /// Its spec.
    pub spec: BlockDeviceSpec,
    /// The record of its formatting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatted: Option<FormatRecord>,
}

/// The part of an object to remember; `None` if it has only defaults.
#[must_use]
pub fn worth(device: &BlockDevice, identity: &Identity) -> Option<Remembered> {
    let mut spec = device.spec.clone();
    spec.acknowledge_data_loss.clear();
    spec.file_system.adopt.clear();
    let plain = BlockDeviceSpec {
        node_name: spec.node_name.clone(),
        dev_path: spec.dev_path.clone(),
        ..BlockDeviceSpec::default()
    };
    let formatted = device.status.formatted.clone();
    let dull = spec == plain && formatted.is_none();
    (!dull).then(|| Remembered { identity: identity.clone(), spec, formatted })
}

/// The first line of a file that remembers; one without it is of an older version.
const FIRST: &[u8] = b"mainstay disks 1\n";

/// How many lines a file may have more than disks are remembered, before it is written anew.
const SPARE: usize = 1_000;

/// A file that remembers: a line for every change, the last one of a disk counts. Every change is on
/// disk before it counts; changes that come together are written together. The cost of a change does not
/// depend on how many disks there are.
#[derive(Debug)]
pub struct Memory {
    file: Option<PathBuf>,
    disks: Mutex<Disks>,
    /// Held while the file is written.
    written: AsyncMutex<Written>,
}

/// The state of the file.
#[derive(Debug, Default)]
struct Written {
    /// The newest change.
    change: u64,
    /// How many bytes and lines are whole; unknown before the first write.
    whole: Option<(u64, usize)>,
}

#[derive(Debug, Default)]
struct Disks {
    /// The number of the last change.
    changes: u64,
    /// The remembered state, and the number of the change that set it.
    known: BTreeMap<String, (u64, Option<Remembered>)>,
    /// Disks with changes that are not being written yet.
    waiting: BTreeSet<String>,
}

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    name: String,
    disk: Option<Remembered>,
}

/// A line of the file that is about to be written.
#[derive(Serialize)]
struct NewLine<'a> {
    name: &'a str,
    disk: Option<&'a Remembered>,
}

impl Disks {
    fn line(&self, name: &str) -> io::Result<Vec<u8>> {
        let disk = self.known.get(name).and_then(|(_, disk)| disk.as_ref());
        let mut line = serde_json::to_vec(&NewLine { name, disk })?;
        line.push(b'\n');
        Ok(line)
    }

    /// The whole file.
    fn text(&self) -> io::Result<(Vec<u8>, usize)> {
        let mut text = FIRST.to_vec();
        let kept = self.known.iter().filter(|(_, (_, disk))| disk.is_some());
        let mut lines = 0;
        for (name, _) in kept {
            text.extend(self.line(name)?);
            lines += 1;
        }
        Ok((text, lines))
    }
}

impl Memory {
    /// Remembers until the process ends.
    #[must_use]
    pub fn fleeting() -> Self {
        Self { file: None, disks: Mutex::default(), written: AsyncMutex::default() }
    }

    /// Remembers in a file; one that is not there yet holds nothing.
    ///
    /// # Errors
    /// If the file cannot be read, or is not of this sort: what was wanted must not be forgotten
    /// silently.
    pub fn open(file: &Path) -> io::Result<Self> {
        let known = match std::fs::read(file) {
            Ok(bytes) => read(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let known = known.into_iter().map(|(name, disk)| (name, (0, Some(disk)))).collect();
        let disks = Mutex::new(Disks { known, ..Disks::default() });
        Ok(Self { file: Some(file.to_owned()), disks, written: AsyncMutex::default() })
    }

    /// The remembered state of an object.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Remembered> {
        self.lock().known.get(name)?.1.clone()
    }

    /// The name and wishes of a disk that was here before.
    #[must_use]
    pub fn recall(&self, wanted: &Identity) -> Option<(String, Remembered)> {
        let disks = self.lock();
        let known = disks.known.iter().filter_map(|(name, (_, disk))| Some((name, disk.as_ref()?)));
        let mut same = known.filter(|(_, disk)| identity::same(&disk.identity, wanted));
        same.next().map(|(name, disk)| (name.clone(), disk.clone()))
    }

    /// Remembers (or forgets) what is wanted under a name.
    ///
    /// # Errors
    /// If it cannot be written; the next call tries again.
    pub async fn set(&self, name: &str, disk: Option<Remembered>) -> io::Result<()> {
        let change = {
            let mut disks = self.lock();
            match disks.known.get(name) {
                None if disk.is_none() => return Ok(()),
                Some((change, known)) if *known == disk => *change,
                _ => {
                    disks.changes += 1;
                    let change = disks.changes;
                    disks.known.insert(name.to_owned(), (change, disk));
                    if self.file.is_some() {
                        disks.waiting.insert(name.to_owned());
                    }
                    change
                }
            }
        };
        self.write(change).await
    }

    /// Waits until a change is on disk, and writes it if no other task does.
    async fn write(&self, change: u64) -> io::Result<()> {
        let Some(file) = self.file.clone().filter(|_| change > 0) else { return Ok(()) };
        let mut written = self.written.lock().await;
        if written.change >= change {
            return Ok(());
        }
        let (newest, at, text, after) = {
            let mut disks = self.lock();
            let names = std::mem::take(&mut disks.waiting);
            let most = disks.known.len() + SPARE;
            match written.whole.filter(|(_, lines)| *lines < most) {
                Some((bytes, lines)) => {
                    let new = names.iter().map(|name| disks.line(name));
                    let new = new.collect::<io::Result<Vec<_>>>()?.concat();
                    let after = (bytes + new.len() as u64, lines + names.len());
                    (disks.changes, Some(bytes), new, after)
                }
                None => {
                    let (text, lines) = disks.text()?;
                    let after = (text.len() as u64, lines);
                    (disks.changes, None, text, after)
                }
            }
        };
        // Until this succeeds the content of the file is unknown: the next write rewrites all of it.
        written.whole = None;
        let done = tokio::task::spawn_blocking(move || match at {
            Some(at) => append(&file, at, &text),
            None => replace(&file, &text),
        });
        done.await.map_err(io::Error::other)??;
        *written = Written { change: newest, whole: Some(after) };
        Ok(())
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Disks> {
        self.disks.lock()
    }
}

/// Reads a file. A last line that is incomplete was never acknowledged, and is ignored.
fn read(bytes: &[u8]) -> io::Result<BTreeMap<String, Remembered>> {
    let Some(lines) = bytes.strip_prefix(FIRST) else {
        return Ok(serde_json::from_slice(bytes)?);
    };
    let mut known = BTreeMap::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let Line { name, disk } = serde_json::from_slice(line)?;
        match disk {
            Some(disk) => known.insert(name, disk),
            None => known.remove(&name),
        };
    }
    Ok(known)
}

/// Writes after the first `at` bytes of a file.
fn append(file: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(file)?;
    file.write_all_at(bytes, at)?;
    file.sync_data()
}

/// Replaces a file by another in one step that survives a crash.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let next = file.with_extension("next");
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut written = options.open(&next)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(&next, file)?;
    if let Some(folder) = file.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> BlockDevice {
        let spec = serde_json::json!({
            "nodeName": "n", "devPath": "/dev/a", "provision": true,
            "acknowledgeDataLoss": ["ext4"],
        });
        serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap()
    }

    #[tokio::test]
    async fn wishes_survive_but_acknowledgements_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        let identity = Identity { serial: "s1".to_owned(), ..Identity::default() };
        let memory = Memory::open(&file).unwrap();
        memory.set("a", worth(&device(), &identity)).await.unwrap();
        drop(memory);
        let (name, remembered) = Memory::open(&file).unwrap().recall(&identity).unwrap();
        assert_eq!(name, "a");
        assert!(remembered.spec.provision);
        assert!(remembered.spec.acknowledge_data_loss.is_empty());
    }

    #[test]
    fn an_unwanted_disk_is_not_remembered() {
        let mut device = device();
        device.spec.provision = false;
        device.spec.acknowledge_data_loss.clear();
        assert_eq!(worth(&device, &Identity::default()), None);
    }

    #[tokio::test]
    async fn concurrent_changes_are_all_durable_and_removed_ones_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        let memory = Memory::open(&file).unwrap();
        let identity = |n: u32| Identity { serial: format!("s{n}"), ..Identity::default() };
        let names: Vec<_> = (0..50).map(|n| (n, format!("d{n}"))).collect();
        let set = |(n, name): &(u32, String)| {
            let worth = worth(&device(), &identity(*n));
            let (memory, name) = (&memory, name.clone());
            async move { memory.set(&name, worth).await }
        };
        let all = futures_util::future::join_all(names.iter().map(set)).await;
        assert!(all.iter().all(Result::is_ok));
        memory.set("d7", None).await.unwrap();
        memory.set("never there", None).await.unwrap();
        let again = Memory::open(&file).unwrap();
        for (n, name) in names {
            assert_eq!(again.of(&name).is_some(), n != 7, "{name}");
        }
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_by_the_next_call() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("later/disks.json");
        let memory = Memory::open(&file).unwrap();
        let wish = worth(&device(), &Identity { serial: "s".to_owned(), ..Identity::default() });
        assert!(memory.set("a", wish.clone()).await.is_err());
        std::fs::create_dir(folder.path().join("later")).unwrap();
        memory.set("a", wish).await.unwrap();
        assert!(Memory::open(&file).unwrap().of("a").is_some());
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        for text in ["{", "mainstay disks 1", "mainstay disks 1\n{}\n", "mainstay disks 1\n{\n{}"] {
            std::fs::write(&file, text).unwrap();
            assert!(Memory::open(&file).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_change_that_was_not_finished_never_counted_and_the_file_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        let identity = Identity { serial: "s1".to_owned(), ..Identity::default() };
        let memory = Memory::open(&file).unwrap();
        let mut changing = device();
        let lines = || std::fs::read_to_string(&file).unwrap().lines().count();
        let mut most = 0;
        for n in 0..2 * SPARE + 10 {
            changing.spec.retry = n.to_string();
            memory.set("a", worth(&changing, &identity)).await.unwrap();
            most = most.max(lines());
        }
        assert!(most > SPARE / 2 && most <= SPARE + 3, "{most} lines");
        let whole = std::fs::read(&file).unwrap();
        let last = |file: &Path| Memory::open(file).unwrap().of("a").map(|disk| disk.spec.retry);
        assert_eq!(last(&file), Some((2 * SPARE + 9).to_string()));
        std::fs::write(&file, &whole[..whole.len() - 5]).unwrap();
        assert_eq!(last(&file), Some((2 * SPARE + 8).to_string()));
        // The next write overwrites the broken end.
        let again = Memory::open(&file).unwrap();
        again.set("b", worth(&device(), &identity)).await.unwrap();
        again.set("a", None).await.unwrap();
        let found = Memory::open(&file).unwrap();
        assert!(found.of("a").is_none() && found.of("b").is_some());
    }

    #[test]
    fn a_file_of_an_older_version_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        let old = serde_json::json!({"a": worth(&device(), &Identity::default())});
        std::fs::write(&file, old.to_string()).unwrap();
        assert!(Memory::open(&file).unwrap().of("a").is_some());
    }
}
