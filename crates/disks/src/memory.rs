//! What the agent remembers of disks besides their objects: deleting an object is a way to start
//! anew, not a way to lose what was wanted.
//!
//! An acknowledgement of data loss is never remembered: it counts for what was seen when it was
//! given.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::api::{BlockDevice, BlockDeviceSpec, FormatRecord, Identity};
use crate::identity;

/// What is remembered of one disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// What tells the disk apart.
    pub identity: Identity,
    /// What shall become of it.
    pub spec: BlockDeviceSpec,
    /// What we did to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatted: Option<FormatRecord>,
}

/// What is worth remembering of an object; `None` if nothing is.
#[must_use]
pub fn worth(device: &BlockDevice, identity: &Identity) -> Option<Remembered> {
    let mut spec = device.spec.clone();
    spec.acknowledge_data_loss.clear();
    let plain = BlockDeviceSpec {
        node_name: spec.node_name.clone(),
        dev_path: spec.dev_path.clone(),
        ..BlockDeviceSpec::default()
    };
    let formatted = device.status.formatted.clone();
    let dull = spec == plain && formatted.is_none();
    (!dull).then(|| Remembered { identity: identity.clone(), spec, formatted })
}

/// A file that remembers. Every change is on disk before it counts.
#[derive(Debug)]
pub struct Memory {
    file: Option<PathBuf>,
    disks: Mutex<BTreeMap<String, Remembered>>,
}

impl Memory {
    /// Remembers until the process ends.
    #[must_use]
    pub fn fleeting() -> Self {
        Self { file: None, disks: Mutex::default() }
    }

    /// Remembers in a file; one that is not there yet holds nothing.
    ///
    /// # Errors
    /// If the file cannot be read, or is not of this sort: what was wanted must not be forgotten
    /// silently.
    pub fn open(file: &Path) -> io::Result<Self> {
        let disks = match std::fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { file: Some(file.to_owned()), disks: Mutex::new(disks) })
    }

    /// What is remembered under a name.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Remembered> {
        self.lock().get(name).cloned()
    }

    /// The name and wishes of a disk that was here before.
    #[must_use]
    pub fn recall(&self, wanted: &Identity) -> Option<(String, Remembered)> {
        let disks = self.lock();
        let found = disks.iter().find(|(_, disk)| identity::same(&disk.identity, wanted));
        found.map(|(name, disk)| (name.clone(), disk.clone()))
    }

    /// Remembers (or forgets) what is wanted under a name.
    ///
    /// # Errors
    /// If it cannot be written; it is then not remembered.
    pub fn set(&self, name: &str, disk: Option<Remembered>) -> io::Result<()> {
        let mut disks = self.lock();
        if disks.get(name) == disk.as_ref() {
            return Ok(());
        }
        let mut next = disks.clone();
        match disk {
            Some(disk) => drop(next.insert(name.to_owned(), disk)),
            None => drop(next.remove(name)),
        }
        if let Some(file) = &self.file {
            replace(file, &serde_json::to_vec_pretty(&next)?)?;
        }
        *disks = next;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Remembered>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces a file by another in one step that survives a crash.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let next = file.with_extension("next");
    let mut written = std::fs::File::create(&next)?;
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

    #[test]
    fn wishes_survive_but_acknowledgements_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        let identity = Identity { serial: "s1".to_owned(), ..Identity::default() };
        let memory = Memory::open(&file).unwrap();
        memory.set("a", worth(&device(), &identity)).unwrap();
        drop(memory);
        let (name, remembered) = Memory::open(&file).unwrap().recall(&identity).unwrap();
        assert_eq!(name, "a");
        assert!(remembered.spec.provision);
        assert!(remembered.spec.acknowledge_data_loss.is_empty());
    }

    #[test]
    fn a_disk_nobody_wants_is_not_remembered() {
        let mut device = device();
        device.spec.provision = false;
        device.spec.acknowledge_data_loss.clear();
        assert_eq!(worth(&device, &Identity::default()), None);
    }

    #[test]
    fn a_damaged_file_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disks.json");
        std::fs::write(&file, "{").unwrap();
        assert!(Memory::open(&file).is_err());
    }
}
