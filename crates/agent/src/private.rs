//! Files and folders of the agent that only its own user reads, whatever the umask is.
//!
//! Files are 0600. Folders are 0700, but those on the way to the working folder of an instance,
//! which may run as another user: these are 0711 if the agent is root, so that they can be passed
//! and not be listed. Looser modes of an older version are tightened when the agent starts.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::Path;

/// The mode of files.
pub(crate) const FILE: u32 = 0o600;

/// The mode of folders on the way to an instance's own.
fn passed() -> u32 {
    if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 }
}

/// Makes a folder on the way to those of instances; one that is there is tightened.
pub(crate) fn passed_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(passed()).create(path)?;
    tighten_to(path, passed())
}

/// Makes a folder that only its owner uses.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A file that is written anew.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    create(path)?.write_all(content)
}

/// Takes from others what they have beyond `mode`.
fn tighten_to(path: &Path, mode: u32) -> io::Result<()> {
    let before = fs::symlink_metadata(path)?.permissions().mode() & 0o777;
    if before & !mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(before & (mode | 0o700)))
}

/// Tightens what an older version left in a state folder. The working folders of instances, and what
/// is mounted, are left alone.
pub(crate) fn tighten(state: &Path) -> io::Result<()> {
    passed_folder(state)?;
    files_in(state)?;
    let (disks, runtime) = (state.join("disks"), state.join("instances"));
    if disks.is_dir() {
        tighten_to(&disks, 0o700)?;
        files_in(&disks)?;
    }
    if !runtime.is_dir() {
        return Ok(());
    }
    tighten_to(&runtime, passed())?;
    files_in(&runtime)?;
    for part in folders_in(&runtime)? {
        tighten_to(&part, passed())?;
    }
    for namespace in folders_in(&runtime.join("instances"))? {
        tighten_to(&namespace, passed())?;
        for instance in folders_in(&namespace)? {
            tighten_to(&instance, passed())?;
            files_in(&instance)?;
            give_settings(&instance)?;
        }
    }
    Ok(())
}

/// The settings of an instance are for the user it runs as, who owns its working folder. A folder that
/// is the user's already is left alone: the user could put links there.
fn give_settings(instance: &Path) -> io::Result<()> {
    let settings = instance.join("config");
    let Ok(owner) = fs::metadata(instance.join("work")) else { return Ok(()) };
    let ours =
        |found: fs::Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !fs::symlink_metadata(&settings).is_ok_and(ours) {
        return Ok(());
    }
    let entries: Vec<_> = fs::read_dir(&settings)?.collect::<io::Result<_>>()?;
    let files = entries.iter().map(fs::DirEntry::path);
    for file in files.filter(|file| fs::symlink_metadata(file).is_ok_and(|found| found.is_file())) {
        tighten_to(&file, FILE)?;
        lchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    tighten_to(&settings, 0o700)?;
    // Last: from here on its contents are not ours.
    lchown(&settings, Some(owner.uid()), Some(owner.gid()))
}

/// Tightens the files in a folder.
fn files_in(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            tighten_to(&entry.path(), FILE)?;
        }
    }
    Ok(())
}

fn folders_in(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn loose_modes_of_an_older_version_are_tightened() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let instance = state.join("instances/instances/default/a");
        for open in ["work", "config"] {
            fs::create_dir_all(instance.join(open)).unwrap();
        }
        let files = ["state.json", "log", "config/level", "work/own"].map(|at| instance.join(at));
        for file in
            files.iter().chain([&state.join("identity.json"), &state.join("instances/revision")])
        {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
        }
        for at in [&state, &state.join("instances"), &instance, &instance.join("config")] {
            fs::set_permissions(at, Permissions::from_mode(0o755)).unwrap();
        }
        tighten(&state).unwrap();
        tighten(&state).unwrap();
        for file in files
            .iter()
            .take(3)
            .chain([&state.join("identity.json"), &state.join("instances/revision")])
        {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        assert_eq!(mode(&files[3]), 0o644, "an instance's own files are its own affair");
        for at in [&state, &state.join("instances"), &instance] {
            assert_eq!(mode(at), passed(), "{}", at.display());
        }
        assert_eq!(mode(&instance.join("config")), 0o700);
    }
}
