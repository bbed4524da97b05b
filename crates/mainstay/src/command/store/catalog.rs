//! The rule catalog in `mainstay store check` and `mainstay store repair`: which file it is, whether
//! it belongs to the data folder, what is wrong with it, and what to do.

use std::path::{Path, PathBuf};

use mainstay_catalog::{Catalog, opening};
use mainstay_store::identity::{self, Decision, Marker, decide};
use mainstay_store::sqlite::lock::Lock;
use mainstay_terminal::output;

use crate::error::Error;

/// A catalog in a file that no server uses.
#[derive(Clone, Debug)]
pub(super) struct CatalogFile {
    path: PathBuf,
    /// Whether the command line names it.
    given: bool,
    /// The data folder that it should belong to.
    data_dir: Option<PathBuf>,
}

/// The result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    /// There is nothing to repair.
    Sound,
    /// The losses were shown, or accepted: the exit code of the command.
    Done(u8),
    /// It is damaged beyond repair, missing or foreign. The reason was printed.
    Impossible,
}

impl CatalogFile {
    /// The file that `--catalog` names, or the one in the data folder.
    pub(super) fn meant(given: Option<&Path>, data_dir: Option<&Path>) -> Option<Self> {
        let own = || Some(data_dir?.join("catalog.db"));
        let path = given.map(Path::to_owned).or_else(own)?;
        Some(Self { path, given: given.is_some(), data_dir: data_dir.map(Path::to_owned) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps servers away from the file, if there is one.
    fn lock(&self) -> Result<Option<Lock>, Error> {
        let locked = self.path.is_file().then(|| Lock::on_file(&self.path));
        locked.transpose().map_err(negative)
    }

    /// Checks whose catalog this is, then its pages, then its invariants. Returns the findings of the
    /// first of these that finds anything.
    pub(super) async fn verified(&self) -> Result<Vec<String>, Error> {
        let _lock = self.lock()?;
        let file = self.clone();
        let check = move || {
            let copy = Copy::of(&file.path)?;
            Ok((file.damage(&copy)?, copy))
        };
        let (wrong, copy) = aside(check).await?;
        if !wrong.is_empty() || !has_content(&copy.path()) {
            return Ok(wrong);
        }
        let failed = |error: mainstay_rules::Error| copy.negative(error);
        let address = copy.path().display().to_string();
        let peeked = Catalog::peek(&address).await.map_err(|error| failed(error.into()))?;
        // Tables of an older version stay as they are; their invariants are checked once it is served.
        if !peeked.current {
            return Ok(wrong);
        }
        let catalog = Catalog::open(&address).await.map_err(|error| failed(error.into()))?;
        mainstay_rules::check::verify(&catalog).await.map_err(failed)
    }

    /// Shows which commits the catalog has lost, or continues without them if `accept` is the word for
    /// that loss.
    pub(super) async fn repair(&self, accept: Option<&str>) -> Result<Repair, Error> {
        let lock = self.lock()?;
        let file = self.clone();
        let (wrong, losses) = aside(move || file.losses()).await?;
        if !wrong.is_empty() {
            output::print(&format!("{}\n", wrong.join("\n")))?;
            anstream::eprintln!(
                "{} cannot be repaired: put the right file back, or restore a backup with `mainstay \
                 restore`",
                self.path.display()
            );
            return Ok(Repair::Impossible);
        }
        if losses.lines.is_empty() || accept.is_some_and(|word| word != losses.word) {
            return Ok(Repair::Sound);
        }
        if accept.is_none() {
            output::print(&format!("{}\n", losses.lines.join("\n")))?;
            anstream::eprintln!(
                "to go on without this, run the same command with --accept {}",
                losses.word
            );
            return Ok(Repair::Done(1));
        }
        let file = self.path.clone();
        let accepted = aside(move || opening::accept(&file, &losses.word).map_err(negative));
        for copy in accepted.await? {
            anstream::eprintln!("kept as it was: {}", copy.display());
        }
        drop(lock);
        anstream::eprintln!("{} is repaired", self.path.display());
        Ok(Repair::Done(0))
    }

    /// The damage that cannot be repaired; without any, the commits that are lost.
    fn losses(&self) -> Result<(Vec<String>, opening::Losses), Error> {
        let copy = Copy::of(&self.path)?;
        let wrong = self.damage(&copy)?;
        // A catalog of another folder is not repaired, whatever its commits.
        if wrong.is_empty() || self.foreign(&copy)?.is_some() {
            return Ok((wrong, opening::Losses::default()));
        }
        match opening::inspect(&copy.path()) {
            Ok(losses) if !losses.lines.is_empty() => Ok((Vec::new(), losses)),
            _ => Ok((wrong, opening::Losses::default())),
        }
    }

    /// Everything that is wrong with the file. Changes nothing.
    fn damage(&self, copy: &Copy) -> Result<Vec<String>, Error> {
        if !has_content(&self.path) && self.given {
            let path = self.path.display();
            return Err(Error::usage(format!("there is no rule catalog {path}")));
        }
        if let Some(refusal) = self.foreign(copy)? {
            return Ok(vec![refusal]);
        }
        let wrong = opening::verify_file(&copy.path()).map_err(|error| copy.negative(error))?;
        let wrong: Vec<String> = wrong.iter().map(|line| copy.named(line)).collect();
        if wrong.is_empty() && !has_content(&self.path) && self.marker()?.catalog.is_some() {
            anstream::eprintln!(
                "{} is missing or empty; unless the catalog is in PostgreSQL, name its file with \
                 --catalog",
                self.path.display()
            );
        }
        Ok(wrong)
    }

    fn marker(&self) -> Result<Marker, Error> {
        self.data_dir.as_deref().map_or(Ok(Marker::default()), Marker::read).map_err(negative)
    }

    /// Why the file is not the catalog that its data folder belongs to. This comes first: the number
    /// of commits of another catalog means nothing.
    fn foreign(&self, copy: &Copy) -> Result<Option<String>, Error> {
        let Some(data_dir) = &self.data_dir else { return Ok(None) };
        let marker = self.marker()?;
        // A file without an identity is missing, empty, damaged or not a catalog: see its own check.
        let found = opening::identity_of(&copy.path()).unwrap_or_default();
        let Some(found) = found else { return Ok(None) };
        match decide(marker.catalog.as_deref(), Some(&found), false, false) {
            Decision::Foreign => {
                let place = format!("the rule catalog {}", self.path.display());
                let named = |id: &str| format!("catalog {id}");
                let expected = named(marker.catalog.as_deref().unwrap_or_default());
                let found = named(&found);
                let decision = Decision::Foreign;
                let refused = identity::refusal(data_dir, place, &decision, found, expected);
                Ok(Some(refused.to_string()))
            }
            _ => Ok(None),
        }
    }
}

/// A private copy of the files of a catalog, which is removed when this is dropped: SQLite creates
/// and deletes files when it opens a database, so a check opens the copy.
#[derive(Debug)]
struct Copy {
    folder: tempfile::TempDir,
    original: PathBuf,
}

impl Copy {
    /// Copies the files of the catalog at `original`, if there are any, into a new folder beside
    /// them, which has the space if any disk has.
    fn of(original: &Path) -> Result<Self, Error> {
        let beside = original.parent().filter(|parent| parent.is_dir());
        let beside = beside.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed =
            |error| negative(format!("cannot copy {} to check it: {error}", original.display()));
        let folder = tempfile::Builder::new().prefix(".check-").tempdir_in(beside);
        let copy = Self { folder: folder.map_err(failed)?, original: original.to_owned() };
        for ending in ["", "-wal", ".acknowledged"] {
            let named = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
            match std::fs::copy(named(original), named(&copy.path())) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
        Ok(copy)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("catalog.db")
    }

    /// A message about the copy as one about the original.
    fn named(&self, message: &str) -> String {
        let (copy, original) = (self.path(), self.original.display());
        message.replace(&copy.display().to_string(), &original.to_string())
    }

    fn negative(&self, error: impl std::fmt::Display) -> Error {
        negative(self.named(&error.to_string()))
    }
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

fn negative(error: impl std::fmt::Display) -> Error {
    Error::negative(error.to_string())
}

/// Runs work that waits for a disk on a thread of its own.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(negative)?
}
