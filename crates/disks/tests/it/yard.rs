//! Loop devices that clean up after themselves, and programs that wait for a command.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use parking_lot::Mutex;

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Whether this machine can run these tests; fails where they must run.
pub(crate) fn possible() -> bool {
    let tools = ["losetup", "mkfs.ext4", "mkfs.xfs", "pvcreate", "wipefs", "blkid", "partx"];
    let missing: Vec<_> = tools.iter().filter(|tool| find(tool).is_none()).collect();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    if root && missing.is_empty() {
        return true;
    }
    let why = format!("root: {root}, missing: {missing:?}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must run the tests of disks: {why}");
    eprintln!("!!! NOT TESTED on real loop devices: {why} !!!");
    false
}

fn find(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Where the real program of a name is.
pub(crate) fn real(name: &str) -> String {
    find(name).unwrap().display().to_string()
}

pub(crate) fn attempt(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LVM_SUPPRESS_FD_WARNINGS", "1");
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let said = attempt(program, arguments);
    let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{program} {arguments:?}: {complaint}");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// Held while loop devices are given out: a path that was just released goes to the next request.
static ATTACHING: Mutex<()> = Mutex::new(());

/// A folder with loop devices; everything goes with it.
pub(crate) struct Yard {
    folder: Option<tempfile::TempDir>,
    pub(crate) root: PathBuf,
    swaps: Mutex<Vec<String>>,
    mounts: Mutex<Vec<PathBuf>>,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mainstay-disks-").tempdir().unwrap();
        for inside in ["mnt", "state", "bin"] {
            std::fs::create_dir(folder.path().join(inside)).unwrap();
        }
        let root = folder.path().to_owned();
        let mut yard = Self::of(&root);
        yard.folder = Some(folder);
        yard
    }

    /// The yard of another process, which looks after it.
    pub(crate) fn of(root: &Path) -> Self {
        Self {
            folder: None,
            root: root.to_owned(),
            swaps: Mutex::default(),
            mounts: Mutex::default(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A sparse file of so many MiB.
    pub(crate) fn image(&self, name: &str, mib: u64) -> PathBuf {
        let file = self.path(name);
        File::create(&file).unwrap().set_len(mib << 20).unwrap();
        file
    }

    /// A loop device on a file.
    pub(crate) fn attach(&self, image: &Path, more: &[&str]) -> String {
        let image = image.display().to_string();
        let _alone = ATTACHING.lock();
        run("losetup", &[&["--find", "--show"][..], more, &[image.as_str()]].concat())
    }

    /// Lets go of devices, and attaches other images at the same paths.
    pub(crate) fn exchange(&self, devices: &[String], images: &[&Path]) {
        let _alone = ATTACHING.lock();
        for device in devices {
            run("losetup", &["--detach", device]);
        }
        for (device, image) in devices.iter().zip(images) {
            run("losetup", &[device, &image.display().to_string()]);
        }
    }

    pub(crate) fn detach(&self, device: &str) {
        run("losetup", &["--detach", device]);
    }

    /// A blank disk of so many MiB.
    pub(crate) fn disk(&self, name: &str, mib: u64) -> String {
        self.attach(&self.image(name, mib), &[])
    }

    /// Mounts something that must go in the end.
    pub(crate) fn mount(&self, arguments: &[&str], name: &str) -> PathBuf {
        let point = self.path(name);
        std::fs::create_dir(&point).unwrap();
        let place = point.display().to_string();
        run("mount", &[arguments, &[place.as_str()]].concat());
        self.mounts.lock().push(point.clone());
        point
    }

    /// Swaps to a device until the yard goes.
    pub(crate) fn swap(&self, device: &str) {
        run("mkswap", &[device]);
        run("swapon", &[device]);
        self.swaps.lock().push(device.to_owned());
    }

    /// A program that is found before the real one of that name.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn unprogram(&self, name: &str) {
        std::fs::remove_file(self.path("bin").join(name)).unwrap();
    }

    /// A program that reports its start, and continues on command.
    pub(crate) fn slow(&self, name: &str) -> Valve {
        let [begun, go, pid, log] =
            ["begun", "go", "pid", "log"].map(|part| self.text(&format!("{name}.{part}")));
        run("mkfifo", &[&begun, &go]);
        let real = real(name);
        let script = format!(
            "echo run >> {log}\necho $$ > {pid}\necho begun > {begun}\nread word < {go}\nexec {real} \"$@\""
        );
        self.program(name, &script);
        Valve { begun, go, pid, log }
    }

    /// The mounts under the yard's mount root.
    pub(crate) fn mount_table(&self) -> Vec<String> {
        let root = self.text("mnt");
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = text.lines().filter_map(|line| line.split(' ').nth(4).map(str::to_owned));
        points.filter(|point| point.starts_with(&root)).collect()
    }
}

impl Yard {
    /// The devices whose images are in the yard, the newest first.
    fn attached(&self) -> Vec<String> {
        let root = self.root.display().to_string();
        let columns = "NAME,BACK-FILE";
        let said = attempt("losetup", &["--list", "--noheadings", "--output", columns]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let pairs = said.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
        let ours = pairs.filter(|(_, image)| image.trim().starts_with(&root));
        let mut names: Vec<String> = ours.map(|(name, _)| name.to_owned()).collect();
        names.reverse();
        names
    }

    /// Takes away whatever can be taken away now.
    fn clear(&self) {
        let noted = self.mounts.lock().clone();
        for point in &noted {
            let _ = attempt("fsfreeze", &["--unfreeze", &point.display().to_string()]);
        }
        for device in self.swaps.lock().iter() {
            let _ = attempt("swapoff", &[device]);
        }
        for point in self.mount_table() {
            let _ = attempt("umount", &[&point]);
        }
        for device in &self.attached() {
            let groups = attempt("pvs", &["--noheadings", "-o", "vg_name", device]);
            let group = String::from_utf8_lossy(&groups.stdout).trim().to_owned();
            if group.starts_with("mainstaytest") {
                let _ = attempt("vgremove", &["--force", &group]);
            }
            for point in &noted {
                let _ = attempt("umount", &[&point.display().to_string()]);
            }
            let _ = attempt("partx", &["--delete", device]);
            let _ = attempt("losetup", &["--detach", device]);
        }
        for point in noted {
            let _ = attempt("umount", &[&point.display().to_string()]);
        }
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if self.folder.is_none() {
            return;
        }
        // After a test that failed, something may still be at work here.
        for _ in 0..50 {
            self.clear();
            if self.attached().is_empty() && self.mount_table().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("!!! something is left of {} !!!", self.root.display());
    }
}

/// Holds a slowed program back.
pub(crate) struct Valve {
    begun: String,
    go: String,
    pid: String,
    log: String,
}

impl Valve {
    /// Waits until the program has begun.
    pub(crate) async fn begun(&self) {
        let pipe = self.begun.clone();
        let wait = tokio::task::spawn_blocking(move || {
            let mut word = String::new();
            File::open(pipe).unwrap().read_to_string(&mut word).unwrap();
        });
        tokio::time::timeout(PATIENCE, wait).await.expect("the program never began").unwrap();
    }

    /// Lets it go on.
    pub(crate) async fn go(&self) {
        let pipe = self.go.clone();
        let write = tokio::task::spawn_blocking(move || {
            File::create(pipe).unwrap().write_all(b"go\n").unwrap();
        });
        tokio::time::timeout(PATIENCE, write)
            .await
            .expect("the program did not read its input")
            .unwrap();
    }

    /// Ends it with kill -9.
    pub(crate) fn kill(&self) {
        let pid = std::fs::read_to_string(&self.pid).unwrap();
        run("sh", &["-c", &format!("kill -9 {}", pid.trim())]);
    }

    /// How often it was run.
    pub(crate) fn runs(&self) -> usize {
        std::fs::read_to_string(&self.log).map(|text| text.lines().count()).unwrap_or(0)
    }
}
