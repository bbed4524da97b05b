//! Objects in one SQLite file: the default, which needs no set-up and survives `kill -9`.
//!
//! All writes go through one committer thread, which writes all waiting changes in one transaction
//! (group commit), makes it durable with a single sync, publishes the new state to readers, and
//! only then answers the writers. Reads never touch the file: they come from the published state.
//!
//! Checkpoints, which move the write-ahead log into the main file, run on a thread of their own;
//! see [`checkpoint`] for how the log stays bounded without stalling commits.
//!
//! Invariants: a value is returned only as it was written ([`load`]); a database that lost
//! acknowledged writes is refused ([`counter`]); on a full disk objects can still be deleted
//! ([`fullness`]); and no other process has the database open ([`lock`]).

mod checkpoint;
mod committer;
mod counter;
mod disk;
mod failure;
mod file;
mod fullness;
mod load;
pub mod lock;
mod rekey;
pub mod repair;
mod reserve;
pub mod unchanged;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::cache::{Cache, Collection, Retention, Watch};
use crate::location::Settings;
use crate::memory::check_size;
use crate::object::{Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Objects, Scope, Write};
use crate::seal::{KeyError, under_way};
use crate::snapshot::{Medium, Snapshot};
use crate::value::Codec;
use mainstay_clock::Clock;

use committer::{Committer, Job};
use failure::Failure;
use file::OpenedFile;
use fullness::Fullness;
use lock::Lock;
use rekey::DataKeyChange;

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
    /// It is missing or empty, and should not be.
    #[error(
        "{} is missing or empty, but revision {acknowledged} was acknowledged: put it back, restore \
         a backup with `mainstay restore`, or begin anew with `mainstay serve --new-cluster`",
        .path.display()
    )]
    Missing {
        /// The database.
        path: PathBuf,
        /// The revision it had at least.
        acknowledged: Revision,
    },
    /// Its write-ahead log is there without it.
    #[error(
        "{} is missing or empty, but its write-ahead log {} has content, which SQLite would delete: \
         put the database back, restore a backup with `mainstay restore`, or begin anew with \
         `mainstay serve --new-cluster`",
        .path.display(), .log.display()
    )]
    LogAlone {
        /// The database.
        path: PathBuf,
        /// Its write-ahead log.
        log: PathBuf,
    },
    /// It lost writes.
    #[error(
        "{} ends at revision {recovered}, but revision {acknowledged} was acknowledged: {} changes \
         are missing, because its write-ahead log is damaged or the file is an older copy; restore \
         a backup with `mainstay restore`, or see `mainstay store repair` to go on without them",
        .path.display(), .acknowledged.0 - .recovered.0
    )]
    EndsEarly {
        /// The database.
        path: PathBuf,
        /// The last revision acknowledged.
        acknowledged: Revision,
        /// The last revision there is.
        recovered: Revision,
    },
    /// It is not as it was written.
    #[error(
        "{} is damaged: {what}; restore a backup with `mainstay restore`, or see `mainstay store \
         repair` to go on without what is damaged",
        .path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// It is encrypted, and its key is not at hand.
    #[error("{} cannot be opened: {source}", .path.display())]
    Key {
        /// The database.
        path: PathBuf,
        /// Which key is missing.
        source: KeyError,
    },
    /// The file system did not let us.
    #[error("cannot open {}", .path.display())]
    Io {
        /// The database or its lock.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// SQLite did not let us.
    #[error("cannot open {}", .path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
}

impl OpenError {
    fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        if disk::is_damage(&source) {
            return Self::Damaged { path: path.into(), what: source.to_string() };
        }
        Self::Sqlite { path: path.into(), source }
    }

    /// Whether the database is damaged, or lost data: a finding rather than a failure.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::EndsEarly { .. }
                | Self::Missing { .. }
                | Self::LogAlone { .. }
        )
    }
}

/// Rewrites every value that is not as a new one would be (see [`crate::seal`]), and leaves
/// no trace of the old ones. Returns how many there were. No other connection may write meanwhile.
///
/// # Errors
/// [`OpenError`]; values that were not rewritten are as they were, and the next call continues.
pub fn rewrite(path: &Path, codec: &Codec) -> Result<u64, OpenError> {
    rekey::rewrite(path, codec).map_err(|source| OpenError::sqlite(path, source))
}

/// A file beside a database.
fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    file: OpenedFile,
    codec: Codec,
    cache: Arc<Cache>,
    fullness: Arc<Fullness>,
    failure: Arc<Failure>,
    unguarded: bool,
    jobs: mpsc::Sender<Job>,
    largest: usize,
    running: Mutex<Option<Running>>,
    /// The change of the data key that is under way, or was.
    rekeying: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

/// Ended with the store: its threads, and the lock that keeps other processes away.
#[derive(Debug)]
struct Running {
    threads: [JoinHandle<()>; 2],
    lock: Arc<Lock>,
}

impl SqliteStore {
    /// Opens the database at `path`, or makes one, with the usual settings but these.
    ///
    /// # Errors
    /// As [`SqliteStore::open_with`].
    pub fn open(
        path: &Path,
        retention: Retention,
        largest: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let settings = Settings { retention, largest_object: largest, ..Settings::default() };
        Self::open_with(path, &settings, clock)
    }

    /// Opens the database at `path`, or makes one. Reads all of it: 100,000 objects take well
    /// under a second.
    ///
    /// # Errors
    /// [`OpenError`]; the file is as it was.
    pub fn open_with(
        path: &Path,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        if !settings.new_database {
            unchanged::refuse_log_alone(path)?;
        }
        let lock = Arc::new(Lock::take(path)?);
        let fullness = Arc::new(Fullness::new(path));
        let codec = settings.codec.clone();
        let open = || disk::open(path, &codec, settings.new_database);
        let (disk, loaded) = match open() {
            Err(OpenError::Sqlite { source, .. }) if fullness.explains(&source) => {
                fullness.give_way();
                open()?
            }
            opened => opened?,
        };
        if fullness.is_tight() {
            disk.may_grow(false);
        }
        let (failure, unguarded) = (disk.failure(), disk.unguarded);
        let cache = Arc::new(Cache::new(loaded.state, settings.retention));
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (checkpointer, checkpoints) =
            checkpoint::start(path, disk.counter(), fullness.stride())?;
        let committer = Committer {
            disk,
            cache: cache.clone(),
            retained: loaded.retained,
            checkpoints,
            clock,
            queue,
            fullness: fullness.clone(),
            forgotten: None,
            _lock: lock.clone(),
        };
        let committer = std::thread::Builder::new()
            .name("store-committer".into())
            .spawn(move || committer.run())
            .map_err(|source| OpenError::Io { path: path.into(), source })?;
        let running = Mutex::new(Some(Running { threads: [committer, checkpointer], lock }));
        let (path, largest) = (path.to_owned(), settings.largest_object);
        let rekeying = Mutex::new(None);
        let file = OpenedFile::at(&path);
        Ok(Self {
            path,
            file,
            codec,
            cache,
            fullness,
            failure,
            unguarded,
            jobs,
            largest,
            running,
            rekeying,
        })
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
        let (path, codec, unguarded) = (self.path.clone(), self.codec.clone(), self.unguarded);
        // Opening another file, or one whose log is gone, could change it.
        if let Err(error) = self.file.is_still_at(&self.path) {
            return ready(Ok(vec![error.to_string()])).boxed();
        }
        async move {
            let verify = move || {
                let mut wrong = disk::verify(&path, &codec)?;
                wrong.extend(disk::verify_counter(&path, unguarded));
                Ok::<_, rusqlite::Error>(wrong)
            };
            let verified = tokio::task::spawn_blocking(verify).await;
            let verified =
                verified.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            verified.map_err(|error| Error::Unavailable { reason: error.to_string() })
        }
        .boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        if let Err(error) = self.file.is_still_at(&self.path) {
            return ready(Err(error)).boxed();
        }
        if !self.fullness.is_full() && !self.failure.is_failing() {
            let closed = self.jobs.is_closed();
            return ready(if closed { Err(Error::Closed) } else { Ok(()) }).boxed();
        }
        let submitted = self.submit(|reply| Job::Recover { reply });
        async move { answered(submitted?).await }.boxed()
    }

    fn rekey(&self) -> BoxFuture<'_, Result<String, Error>> {
        async move {
            let mut rekeying = self.rekeying.lock().await;
            if rekeying.as_ref().is_some_and(|task| !task.is_finished()) {
                return Err(under_way());
            }
            let (jobs, cache) = (self.jobs.clone(), self.cache.clone());
            let change = DataKeyChange { jobs, cache, codec: self.codec.clone() };
            let new = change.begin().await?;
            let id = new.id();
            *rekeying = Some(tokio::spawn(async move {
                let id = new.id();
                match change.finish(new).await {
                    Ok(values) => {
                        tracing::info!(values, id, "store re-encrypted with a new data key")
                    }
                    Err(error) => tracing::warn!(
                        %error, id, "re-encryption of the store stopped; the next start finishes it"
                    ),
                }
            }));
            Ok(id)
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
            if let Some(task) = self.rekeying.lock().await.take()
                && task.await.is_err()
            {
                tracing::error!("the task that re-encrypts the store panicked");
            }
            self.cache.close();
            let join = || threads.into_iter().all(|thread| thread.join().is_ok());
            if !tokio::task::spawn_blocking(join).await.unwrap_or(false) {
                tracing::error!("a thread of the SQLite store panicked");
            }
            lock.release();
        }
        .boxed()
    }
}
