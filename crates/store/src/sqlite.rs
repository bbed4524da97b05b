//! Objects in one SQLite file: the default, which needs no set-up and survives `kill -9`.
//!
//! All writes go through one committer thread, which drains whatever waits into one transaction
//! (group commit), makes it durable with a single sync, publishes the new state to readers, and
//! only then answers the writers. Reads never touch the file: they come from the published state.
//!
//! Checkpoints, which move the write-ahead log into the main file, run on a thread of their own;
//! see [`checkpoint`] for how the log stays bounded without stalling commits.

mod checkpoint;
mod committer;
mod disk;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::cache::{Cache, Collection, Retention, Watch};
use crate::clock::Clock;
use crate::memory::check_size;
use crate::object::{Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Objects, Scope, Write};
use crate::snapshot::{Medium, Snapshot};

use committer::{Committer, Job};

/// How many writes may wait for the committer before new ones are refused.
const QUEUE: usize = 8192;

/// Why a database could not be opened. It was not changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{} is in use by another process", .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// It was written by a newer Mainstay.
    #[error(
        "{} has format {found}, but this version reads up to {known}: use a newer mainstay",
        .path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest one known here.
        known: i64,
    },
    /// It is not one of ours.
    #[error("{} is a SQLite database, but not one of Mainstay's", .path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// What it says cannot be true.
    #[error("{} is damaged: {what}; restore it from a backup", .path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file system did not let us.
    #[error("cannot open {}", .path.display())]
    Io {
        /// The database or its lock.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// SQLite did not let us.
    #[error("cannot open {}", .path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
}

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    cache: Arc<Cache>,
    jobs: mpsc::Sender<Job>,
    largest: usize,
    running: Mutex<Option<Running>>,
}

/// What ends with the store: its threads, and the lock that keeps other processes away.
#[derive(Debug)]
struct Running {
    threads: [JoinHandle<()>; 2],
    lock: File,
}

impl SqliteStore {
    /// Opens the database at `path`, or makes one. Reads all of it: 100,000 objects take well
    /// under a second.
    ///
    /// # Errors
    /// [`OpenError`]; the file is as it was.
    pub fn open(
        path: &Path,
        retention: Retention,
        largest: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let lock = lock(path)?;
        make_private(path)?;
        let (disk, loaded) = disk::open(path)?;
        let cache = Arc::new(Cache::new(loaded.state, retention));
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (checkpointer, checkpoints) = checkpoint::start(path)?;
        let committer =
            Committer::new(disk, cache.clone(), loaded.ledger, checkpoints, clock, queue);
        let committer = std::thread::Builder::new()
            .name("store-committer".into())
            .spawn(move || committer.run())
            .map_err(|source| OpenError::Io { path: path.into(), source })?;
        let running = Running { threads: [committer, checkpointer], lock };
        let path = path.to_owned();
        Ok(Self { path, cache, jobs, largest, running: Mutex::new(Some(running)) })
    }

    /// Queues a job without ever waiting for the committer.
    fn submit<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Job,
    ) -> Result<oneshot::Receiver<Result<T, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        match self.jobs.try_send(job(reply)) {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Error::Busy { waiting: QUEUE }),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Error::Closed),
        }
    }
}

/// Makes the file, if it is not there, for its owner alone: it holds the key of the certificate
/// authority. SQLite gives the files beside it the same mode.
fn make_private(path: &Path) -> Result<(), OpenError> {
    let made = File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    made.map(drop).map_err(|source| OpenError::Io { path: path.into(), source })
}

/// Keeps a second process away from the file for as long as the lock is held.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let io = |source| OpenError::Io { path: name.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&name).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.into() }),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or(Err(Error::Closed))
}

impl Objects for SqliteStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        let submitted = check_size(&write, self.largest)
            .and_then(|()| self.submit(|reply| Job::Write { write, reply }));
        async move { answered(submitted?).await }.boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        ready(Ok(self.cache.get(key))).boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        ready(self.cache.collection(resource, at)).boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        ready(self.cache.watch(scope, from)).boxed()
    }

    fn revision(&self, _resource: &Resource) -> Revision {
        self.cache.revision()
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        let submitted = self.submit(|reply| Job::Compact { through, reply });
        async move { answered(submitted?).await }.boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        ready(Ok(self.cache.load().snapshot())).boxed()
    }

    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        let submitted = self.submit(|reply| Job::Advance { to, reply });
        async move { answered(submitted?).await }.boxed()
    }

    fn medium(&self) -> Medium {
        Medium::Sqlite(self.path.clone())
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        let path = self.path.clone();
        async move {
            let verified = tokio::task::spawn_blocking(move || disk::verify(&path)).await;
            let verified =
                verified.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            verified.map_err(|error| Error::Unavailable { reason: error.to_string() })
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            let mut running = self.running.lock().await;
            let Some(Running { threads, lock }) = running.take() else { return };
            let (reply, closed) = oneshot::channel();
            if self.jobs.send(Job::Close { reply }).await.is_ok() {
                // A committer that died has nothing left to finish.
                let _ = closed.await;
            }
            self.cache.close();
            let join = || threads.into_iter().all(|thread| thread.join().is_ok());
            if !tokio::task::spawn_blocking(join).await.unwrap_or(false) {
                tracing::error!("a thread of the store panicked");
            }
            // Said outright, since a child process that is just being started may still share the
            // file and would keep the lock a moment longer.
            if let Err(error) = lock.unlock() {
                tracing::warn!(%error, "the lock on the database was not released");
            }
        }
        .boxed()
    }
}
