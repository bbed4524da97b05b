//! Test fixture: worlds whose RSEs have real files, with a check that accounts for every byte.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use mainstay_catalog::Daemon;
use mainstay_rules::api::{NewFile, SECOND};
use mainstay_rules::judge::{self, Managed, Pass};
use mainstay_rules::{protocol, queue, replica};
use mainstay_transfers::allowed::Allowed;
use mainstay_transfers::copy::{self, Adding};
use mainstay_transfers::credential::Credentials;
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::{Access, Opened, SupportedProtocols};
use mainstay_transfers::{Job, Outcome};
use serde_json::{Value, json};

use crate::world::World;

pub(crate) const LEASE: i64 = 60 * SECOND;

/// A world whose RSEs have files, each in a local folder that may be served by S3 or WebDAV.
pub(crate) struct Disks {
    pub(crate) world: World,
    root: tempfile::TempDir,
    folders: RefCell<BTreeMap<String, PathBuf>>,
    keys: RefCell<Credentials>,
    allowed: Allowed,
    access: RefCell<Arc<Access>>,
}

impl Disks {
    /// A world for each catalog, with the folders A, B and C.
    pub(crate) fn each() -> Vec<Self> {
        let bound = |root: &Path| Allowed::new(&[root.to_owned()], &[], &[]).unwrap();
        Self::each_allowed(&Credentials::new(), bound)
    }

    /// The same, with keys to S3 and WebDAV storage.
    pub(crate) fn each_with(keys: &Credentials) -> Vec<Self> {
        Self::each_allowed(keys, |_| Allowed::anywhere())
    }

    fn each_allowed(keys: &Credentials, allowed: impl Fn(&Path) -> Allowed) -> Vec<Self> {
        let disks = |world: World| {
            let root = tempfile::tempdir().unwrap();
            let allowed = allowed(root.path());
            let access = RefCell::new(Arc::new(Access::new(keys.clone(), allowed.clone())));
            let (folders, keys) = (RefCell::default(), RefCell::new(keys.clone()));
            let disks = Self { world, root, folders, keys, allowed, access };
            for name in ["A", "B", "C"] {
                disks.folder_rse(name);
            }
            disks
        };
        World::each().into_iter().map(disks).collect()
    }

    /// An RSE that is a folder.
    pub(crate) fn folder_rse(&self, name: &str) {
        self.world.rse(name);
        self.folder_protocol(name);
    }

    /// Makes an RSE's storage a folder.
    pub(crate) fn folder_protocol(&self, rse: &str) {
        let folder = self.root.path().join(rse);
        self.protocol(rse, "file", json!({"prefix": folder.display().to_string()}), &folder);
    }

    /// Sets the protocol of an RSE and the folder of its files, and binds its keys to the endpoint.
    pub(crate) fn protocol(&self, rse: &str, scheme: &str, body: Value, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        let new = Protocol::read(scheme, body.as_object().unwrap()).unwrap();
        self.world.write(|tx| protocol::add(tx, rse, &new));
        self.folders.borrow_mut().insert(rse.to_owned(), folder.to_owned());
        if let Some(key) = self.keys.borrow_mut().get_mut(rse) {
            key.endpoint = Some(format!("{scheme}://{}:{}", new.hostname, new.port));
            key.insecure = true;
        }
        let keys = self.keys.borrow().clone();
        *self.access.borrow_mut() = Arc::new(Access::new(keys, self.allowed.clone()));
    }

    pub(crate) fn folder(&self, rse: &str) -> PathBuf {
        self.folders.borrow()[rse].clone()
    }

    pub(crate) fn place(&self, rse: &str, file: &str) -> PathBuf {
        self.folder(rse).join(mainstay_transfers::protocol::hashed_path(&World::did(file)))
    }

    /// Access to all storage.
    pub(crate) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.borrow())
    }

    /// Moves one file.
    pub(crate) fn copy(&self, job: &Job) -> Result<(), copy::Error> {
        copy::copy(&mut Opened::new(&self.access()), job, &AtomicI64::new(0), &|| false)
    }

    /// Registers a file on an RSE with the size and checksum of `said`; the storage holds `found`.
    pub(crate) fn file(&self, name: &str, rse: &str, said: &[u8], found: Option<&[u8]>) {
        let mut adding = Adding::new(true);
        adding.add(said);
        let sums = adding.sums();
        let file = NewFile {
            did: World::did(name),
            bytes: said.len() as i64,
            adler32: Some(sums.adler32),
            md5: sums.md5,
            path: None,
            state: None,
        };
        let now = self.world.now();
        self.world
            .write(|tx| replica::add_replicas(tx, rse, std::slice::from_ref(&file), "root", now));
        if let Some(found) = found {
            let place = self.place(rse, name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, found).unwrap();
        }
    }

    pub(crate) fn take(&self, worker: &str, most: usize) -> Vec<Job> {
        self.take_by(worker, most, SupportedProtocols::Ours)
    }

    pub(crate) fn take_by(
        &self,
        worker: &str,
        most: usize,
        supported: SupportedProtocols,
    ) -> Vec<Job> {
        let (now, settings) = (self.world.now(), &self.world.settings);
        let wanted = queue::Wanted { worker: worker.to_owned(), most, lease: LEASE, supported };
        self.world.write(|tx| queue::take(tx, &wanted, settings, now))
    }

    pub(crate) fn tell(&self, worker: &str, job: &Job, error: Option<String>) -> Vec<i64> {
        let outcome = Outcome::of(job, error);
        queue::finish_each(&self.world.catalog, worker, &[outcome], self.world.now())
            .unwrap()
            .unwanted
    }

    /// Reports the result of a copy.
    pub(crate) fn end(&self, worker: &str, job: &Job, done: &Result<(), copy::Error>) {
        let (outcome, now) = (Outcome::after(job, done), self.world.now());
        queue::finish_each(&self.world.catalog, worker, &[outcome], now).unwrap();
    }

    /// Takes and copies all available requests, and reports the results.
    pub(crate) fn work(&self, worker: &str) -> usize {
        let mut moved = 0;
        loop {
            let jobs = self.take(worker, 10);
            if jobs.is_empty() {
                return moved;
            }
            for job in jobs {
                let done = self.copy(&job);
                moved += usize::from(done.is_ok());
                self.end(worker, &job, &done);
            }
        }
    }

    pub(crate) fn reap(&self) {
        let storage = Arc::new(Managed(self.access()));
        let pass = Pass { storage, ..Pass::new(self.world.now(), self.world.seed()) };
        judge::pass(&self.world.catalog, Daemon::Reaper, &self.world.settings, &pass).unwrap();
    }

    pub(crate) fn finish(&self) {
        self.world.judge(Daemon::Finisher);
    }

    /// Asserts that the catalog is consistent and that the disk holds exactly its replicas.
    pub(crate) fn check(&self) {
        self.world.check();
        let rows = self.world.write(|tx| {
            Ok(tx.query("SELECT d.name, r.rse, p.bytes FROM replicas p JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id WHERE p.state = 'A'", &[])?)
        });
        let said: BTreeMap<PathBuf, u64> = rows
            .iter()
            .map(|row| {
                let place = self.place(row.text(1).unwrap(), row.text(0).unwrap());
                (place, u64::try_from(row.int(2).unwrap()).unwrap())
            })
            .collect();
        let mut found = BTreeMap::new();
        for folder in self.folders.borrow().values() {
            walk(folder, &mut found);
        }
        assert_eq!(found, said, "on {}", self.world.catalog.backend());
    }
}

fn walk(at: &Path, found: &mut BTreeMap<PathBuf, u64>) {
    for entry in std::fs::read_dir(at).unwrap().flatten() {
        if entry.path().is_dir() {
            walk(&entry.path(), found);
        } else {
            found.insert(entry.path(), entry.metadata().unwrap().len());
        }
    }
}
