//! Compares storage with the catalog in both directions, while both are in use.
//!
//! Every available replica should have its file, with the right length and, if requested, the right
//! checksums; every file in storage should belong to a replica. Replicas are read page by page,
//! files are listed by storage, and the catalog is queried in batches of a thousand, so memory
//! stays bounded.
//!
//! Files come and go during the comparison, so a finding is reported only after a second look:
//!
//! - A replica's file is inspected twice, and the catalog is read before and after. A finding is
//!   reported only if the replica did not change in between and the file was wrong both times. The
//!   reaper marks a replica before it removes the file, and a worker names a file before the
//!   catalog counts it, so neither causes a false finding.
//! - A file without a replica is inspected again and looked up again. Files that changed a short
//!   time ago are skipped ([`decide::Patience`]): they may be about to be registered. Files that a
//!   worker may be writing are recognised by their replica, their request, or as given up.
//!
//! A file that two RSEs share, because the folder of one lies within that of the other, or that is
//! reached through links within a folder, belongs to any RSE with a replica for it. Storage and
//! catalog are never changed. [`audit`] runs the comparison; the decisions are in [`decide`].

mod ask;
pub mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;

use decide::{Expected, Kind, Known, Observation, Patience};
use mainstay_catalog::Catalog;
use mainstay_transfers::copy;
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::{self, Access, Found, Store};

use crate::api::{Did, Micros};
use crate::error::{Error, Result};
use crate::expression::Rse;

/// How many replicas or files are processed in one batch.
const BATCH: usize = 1_000;

/// How many links of a folder are resolved at most.
const LINKS: usize = 10_000;

/// More slashes than a name can begin with.
const SLASHES: usize = 250;

/// The scope and depth of an audit.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The RSEs.
    pub rses: BTreeSet<i64>,
    /// Whether files are read and their checksums compared.
    pub checksums: bool,
    /// The current time.
    pub now: Micros,
    /// How long recent changes are ignored.
    pub patience: Patience,
}

/// A difference between storage and catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of difference.
    pub kind: Kind,
    /// The name of the RSE.
    pub rse: String,
    /// The file of the replica, if it is about a replica.
    pub did: Option<Did>,
    /// The path below the RSE's prefix, if it is about one path.
    pub path: Option<String>,
    /// The description, in one sentence.
    pub what: String,
}

/// A progress event. The observer may stop the audit after any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This many replicas were read; their files are inspected next.
    Replicas(usize),
    /// This many files were listed; they are looked up in the catalog next.
    Files(usize),
    /// This many are not as expected; they are inspected a second time next.
    Again(usize),
    /// A file is being read.
    Reading,
    /// A difference was found.
    Found(Finding),
    /// A part was skipped, and why.
    Note(String),
}

/// The observer of an audit.
pub type Follow<'a> = dyn FnMut(Step) -> ControlFlow<()> + 'a;

/// An RSE whose storage can be reached.
struct Site<'a> {
    rse: &'a Rse,
    protocol: &'a Arc<Protocol>,
    /// Other RSEs that may have files in the same places.
    beside: Vec<(&'a Rse, &'a Protocol)>,
}

struct Audit<'a, 'f> {
    catalog: &'a Catalog,
    access: &'a Access,
    wanted: &'a Wanted,
    follow: &'f mut Follow<'f>,
    /// The observer has stopped the audit.
    stopped: bool,
}

/// Compares storage with the catalog. It changes neither, and ends early only if the observer stops
/// it.
pub fn audit(
    catalog: &Catalog,
    access: &Access,
    wanted: &Wanted,
    follow: &mut Follow<'_>,
) -> Result<()> {
    let rses = catalog.read_blocking(crate::rse::all)?;
    let mut follow = follow;
    let mut audit = Audit { catalog, access, wanted, follow: &mut follow, stopped: false };
    let mut sites = BTreeMap::new();
    for rse in rses.iter().filter(|rse| wanted.rses.contains(&rse.id)) {
        match store::SupportedProtocols::Ours.way(&rse.protocols, "read") {
            None => {
                audit.note(format!("{} is skipped: no worker supports its protocols", rse.name))
            }
            Some(protocol) => {
                let all = rses.iter().filter(|other| other.id != rse.id);
                let beside = all
                    .flat_map(|other| other.protocols.iter().map(move |one| (other, &**one)))
                    .filter(|(_, one)| overlaps(protocol, one))
                    .collect();
                sites.insert(rse.id, Site { rse, protocol, beside });
            }
        }
    }
    let mut whole = BTreeSet::new();
    for (id, site) in &sites {
        match audit.files(site)? {
            Ok(()) => drop(whole.insert(*id)),
            Err(store::Error::Unlisted(what)) => {
                audit.note(format!(
                    "{}: {what} does not list its files: only what is missing there is looked for",
                    site.rse.name
                ));
                whole.insert(*id);
            }
            Err(error) => audit.unread(site, &error),
        }
    }
    sites.retain(|id, _| whole.contains(id));
    audit.replicas(sites)
}

/// Whether one of two prefixes lies within the other.
fn overlaps(one: &Protocol, other: &Protocol) -> bool {
    // Any name works that is in neither prefix.
    let within = |of: &Protocol, by: &Protocol| decide::same_place("\0", of, by).is_some();
    within(one, other) || within(other, one)
}

/// Whether a file can be requested by its path. Others can only be listed.
fn can_be_named(path: &str) -> bool {
    mainstay_transfers::protocol::stays_below(path) && !path.contains(char::REPLACEMENT_CHARACTER)
}

impl Audit<'_, '_> {
    fn step(&mut self, step: Step) {
        self.stopped |= (self.follow)(step).is_break();
    }

    fn note(&mut self, text: String) {
        self.step(Step::Note(text));
    }

    /// Reports that the storage of an RSE, or a part of it, cannot be read.
    fn unread(&mut self, site: &Site<'_>, error: &store::Error) {
        let rse = site.rse.name.clone();
        let what = format!("{rse} cannot be read: {error}");
        let finding = Finding { kind: Kind::Unread, rse, did: None, path: None, what };
        self.step(Step::Found(finding));
    }

    fn open(&self, site: &Site<'_>) -> Result<Arc<dyn Store>, store::Error> {
        self.access.open(&site.rse.name, site.protocol)
    }

    /// Looks for files without a replica.
    fn files(&mut self, site: &Site<'_>) -> Result<Result<(), store::Error>> {
        let store = match self.open(site) {
            Ok(store) => store,
            Err(error) => return Ok(Err(error)),
        };
        let mut links = None;
        let mut batch = Vec::with_capacity(BATCH);
        let mut failed = Ok(Ok(()));
        let listed = store.list(&mut |found| {
            match found {
                Ok(found) => batch.push(found),
                Err(error) => self.unread(site, &error),
            }
            if batch.len() >= BATCH {
                failed = self.files_of(site, &*store, std::mem::take(&mut batch), &mut links);
            }
            match (&failed, self.stopped) {
                (Ok(Ok(())), false) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        if let (Ok(Ok(())), Ok(()), false) = (&failed, &listed, self.stopped) {
            failed = self.files_of(site, &*store, batch, &mut links);
        }
        Ok(failed?.and(listed))
    }

    fn files_of(
        &mut self,
        site: &Site<'_>,
        store: &dyn Store,
        batch: Vec<Found>,
        links: &mut Option<Vec<(String, String)>>,
    ) -> Result<Result<(), store::Error>> {
        self.step(Step::Files(batch.len()));
        let suspects = self.orphans(site, store, batch, &[], 0)?;
        if suspects.is_empty() || self.stopped {
            return Ok(Ok(()));
        }
        self.step(Step::Again(suspects.len()));
        let again = self.look_again(site, suspects).and_then(|still| {
            let links = match links {
                Some(links) => links,
                None => links.insert(store.links(LINKS)?),
            };
            Ok((still, &*links))
        });
        let (still, links) = match again {
            Ok(again) => again,
            Err(error) => return Ok(Err(error)),
        };
        if links.len() >= LINKS {
            return Ok(Err(store::Error::Elsewhere {
                what: site.protocol.base(),
                why: format!("there are more than {LINKS} links"),
            }));
        }
        for (found, why) in self.orphans(site, store, still, links, SLASHES)? {
            let (rse, bytes) = (&site.rse.name, found.bytes);
            let changed = crate::api::show_time(found.changed);
            let what = format!("{} on {rse}: {why} ({bytes} bytes, changed {changed})", found.path);
            let path = Some(found.path);
            let rse = rse.clone();
            let finding = Finding { kind: Kind::Orphan, rse, did: None, path, what };
            self.step(Step::Found(finding));
        }
        Ok(Ok(()))
    }

    /// The suspects that still exist. The storage is opened again, because another one may be
    /// mounted now.
    fn look_again(
        &self,
        site: &Site<'_>,
        suspects: Vec<(Found, &'static str)>,
    ) -> Result<Vec<Found>, store::Error> {
        let (named, odd): (Vec<Found>, Vec<Found>) = suspects
            .into_iter()
            .map(|(found, _)| found)
            .partition(|found| can_be_named(&found.path));
        let paths: Vec<&str> = named.iter().map(|found| found.path.as_str()).collect();
        let seen = self.open(site)?.look(&paths)?;
        Ok(seen.into_iter().flatten().chain(odd).collect())
    }

    /// The files without a replica, on the RSE or on the RSEs that share its place, under any of
    /// their paths.
    fn orphans(
        &self,
        site: &Site<'_>,
        store: &dyn Store,
        files: Vec<Found>,
        links: &[(String, String)],
        slashes: usize,
    ) -> Result<Vec<(Found, &'static str)>> {
        let (drafts, Wanted { now, patience, .. }) = (store.drafts(), self.wanted);
        // Every file with its paths on each RSE.
        let places: Vec<Vec<(&Rse, String)>> = files
            .iter()
            .map(|found| {
                let own = decide::aliases(&found.path, links);
                let others = own.iter().flat_map(|path| {
                    site.beside.iter().filter_map(|(other, by)| {
                        Some((*other, decide::same_place(path, site.protocol, by)?))
                    })
                });
                let others: Vec<(&Rse, String)> = others.collect();
                own.into_iter().map(|path| (site.rse, path)).chain(others).collect()
            })
            .collect();
        let mut asked: BTreeMap<i64, (&Rse, Vec<&str>)> = BTreeMap::new();
        for (rse, path) in places.iter().flatten() {
            asked.entry(rse.id).or_insert((rse, Vec::new())).1.push(path);
        }
        let mut known: BTreeMap<i64, Known> = BTreeMap::new();
        for (id, (rse, paths)) in asked {
            let answer =
                self.catalog.read_blocking(|tx| ask::known(tx, rse, &paths, drafts, slashes))?;
            known.insert(id, answer);
        }
        let verdict = |found: &Found, places: &[(&Rse, String)]| {
            let mut why = None;
            for (rse, path) in places {
                let found = Found { path: path.clone(), ..*found };
                why = Some(decide::orphan(&found, drafts, known.get(&rse.id)?, *now, *patience)?);
            }
            why
        };
        let judged = files.into_iter().zip(&places);
        Ok(judged
            .filter_map(|(found, places)| verdict(&found, places).map(|why| (found, why)))
            .collect())
    }

    /// Inspects the files of all available replicas, in one pass over the catalog.
    fn replicas(&mut self, mut sites: BTreeMap<i64, Site<'_>>) -> Result<()> {
        let mut after = (i64::MIN, i64::MIN);
        while !sites.is_empty() && !self.stopped {
            let rses: BTreeMap<i64, &Rse> =
                sites.iter().map(|(id, site)| (*id, site.rse)).collect();
            let page = self.catalog.read_blocking(|tx| ask::replicas(tx, &rses, after, BATCH))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.unit;
            self.step(Step::Replicas(page.len()));
            let mut parts: BTreeMap<i64, Vec<Expected>> = BTreeMap::new();
            for one in page {
                parts.entry(one.unit.1).or_default().push(one);
            }
            for (id, part) in parts {
                let Some(site) = sites.get(&id) else { continue };
                if let Err(error) = self.replicas_of(site, part)? {
                    self.unread(site, &error);
                    sites.remove(&id);
                }
                if self.stopped {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn replicas_of(
        &mut self,
        site: &Site<'_>,
        replicas: Vec<Expected>,
    ) -> Result<Result<(), store::Error>> {
        let suspects = match self.wrong(site, replicas) {
            Ok(suspects) => suspects,
            Err(error) => return Ok(Err(error)),
        };
        if suspects.is_empty() || self.stopped {
            return Ok(Ok(()));
        }
        self.step(Step::Again(suspects.len()));
        let again = suspects.into_iter().map(|(expected, ..)| expected).collect();
        let still = match self.wrong(site, again) {
            Ok(still) => still,
            Err(error) => return Ok(Err(error)),
        };
        let files: Vec<i64> = still.iter().map(|(expected, ..)| expected.unit.0).collect();
        let now = self.catalog.read_blocking(|tx| ask::again(tx, site.rse, &files))?;
        for (expected, kind, why) in still {
            // Skip replicas that the catalog has changed since.
            if now.get(&expected.unit.0) != Some(&expected) || self.stopped {
                continue;
            }
            let rse = site.rse.name.clone();
            let what = format!("{} on {rse}: {why}", expected.did);
            let (did, path) = (Some(expected.did), expected.path.ok());
            self.step(Step::Found(Finding { kind, rse, did, path, what }));
        }
        Ok(Ok(()))
    }

    /// The replicas whose files are not as expected, and the difference.
    fn wrong(
        &mut self,
        site: &Site<'_>,
        replicas: Vec<Expected>,
    ) -> Result<Vec<(Expected, Kind, String)>, store::Error> {
        let store = self.open(site)?;
        let paths: Vec<&str> = replicas.iter().filter_map(|one| one.path.as_deref().ok()).collect();
        let mut looks = store.look(&paths)?.into_iter();
        let mut wrong = Vec::new();
        for expected in replicas {
            if self.stopped {
                break;
            }
            let seen = match &expected.path {
                Err(why) => Observation::Nothing(why.clone()),
                Ok(path) => match looks.next() {
                    Some(Ok(found)) => self.read(&*store, &expected, path, &found),
                    Some(Err(error)) => failed_observation(&error),
                    None => break,
                },
            };
            if let Some((kind, why)) = decide::replica(&expected, &seen) {
                wrong.push((expected, kind, why));
            }
        }
        Ok(wrong)
    }

    /// The checksums of a file, if requested and if its length is right; else its length.
    fn read(
        &mut self,
        store: &dyn Store,
        expected: &Expected,
        path: &str,
        found: &Found,
    ) -> Observation {
        let right = i64::try_from(found.bytes) == Ok(expected.bytes);
        if !self.wanted.checksums || !right || !expected.has_sums() {
            return Observation::Length(found.bytes);
        }
        let file = match store.read(path) {
            Ok((file, _)) => file,
            Err(error) => return failed_observation(&error),
        };
        match copy::sums(StoppableReader { file, audit: self }, expected.md5.is_some()) {
            Ok(sums) => Observation::Whole(sums),
            Err(error) => Observation::Unread(error.to_string()),
        }
    }
}

/// The observation after a storage error.
fn failed_observation(error: &store::Error) -> Observation {
    use store::Error::{Leaves, Missing, NoFile};
    match error {
        Missing(_) | NoFile(_) | Leaves(_) => Observation::Nothing(error.to_string()),
        _ => Observation::Unread(error.to_string()),
    }
}

/// A reader that fails once the observer has stopped the audit.
struct StoppableReader<'r, 'a, 'f> {
    file: Box<dyn Read + Send>,
    audit: &'r mut Audit<'a, 'f>,
}

impl Read for StoppableReader<'_, '_, '_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.audit.step(Step::Reading);
        match self.audit.stopped {
            true => Err(std::io::Error::other("the audit was stopped")),
            false => self.file.read(into),
        }
    }
}

/// The RSEs that match an expression; all RSEs without one.
pub fn within(
    tx: &mut mainstay_catalog::Tx<'_>,
    expression: Option<&str>,
) -> Result<BTreeSet<i64>, Error> {
    match expression {
        Some(text) => crate::rse::resolve(tx, text),
        None => Ok(crate::rse::all(tx)?.iter().map(|rse| rse.id).collect()),
    }
}
