//! The storage behind an RSE's protocol: folders of this machine, S3 and WebDAV.
//!
//! Whatever it is, a file comes into being in three steps: it is written where nobody looks for it
//! ([`Draft::add`]), sealed once what was read is known to be right, read back and compared, and
//! only then it is kept. In a folder and on WebDAV it has a temporary name until then. S3 has no
//! names that change: an object appears whole, when it is sealed, or not at all; one that does not
//! read back right is removed, and the catalog is told of none before it was read back.
//!
//! Everything here waits for disks and networks: it is called where waiting is allowed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::End;
use super::allowed::{Allowed, Refused};
use super::credential::{Credential, Credentials};
use super::folder::Folder;
use super::remote::Remote;
use crate::did::Micros;
use crate::protocol::Protocol;

/// Why storage could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The protocol is not one that workers speak.
    #[error("no worker speaks {0}://")]
    Unknown(String),
    /// The path would leave the RSE's folder.
    #[error("the path {0:?} leaves the RSE's folder")]
    Leaves(String),
    /// The storage has no room left.
    #[error("{0} is full")]
    Full(String),
    /// The file is not there.
    #[error("{0} is not there")]
    Missing(String),
    /// What the storage is kept in is not there, and with it all its files.
    #[error("the folder {0} is not there: make it, or mount what belongs there")]
    NoFolder(String),
    /// The way from a storage root to the folder leads through a link.
    #[error(
        "the folder {0} is not a folder, or is reached through a symbolic link: below a storage root none is followed"
    )]
    Linked(String),
    /// This machine's operator does not allow it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Something else has this name.
    #[error("{0} is not a file")]
    NoFile(String),
    /// Another file has this name.
    #[error("{0} is there already")]
    There(String),
    /// The service does not say what it holds.
    #[error("{0} does not list its files")]
    Unlisted(String),
    /// A disk of this machine failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// How it failed.
        source: std::io::Error,
    },
    /// Storage elsewhere failed, or refused.
    #[error("{what}: {why}")]
    Elsewhere {
        /// What was tried.
        what: String,
        /// How it failed.
        why: String,
    },
}

impl Error {
    pub(super) fn at(place: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| {
            let what = place.display().to_string();
            match source.kind() {
                ErrorKind::NotFound => Self::Missing(what),
                ErrorKind::AlreadyExists => Self::There(what),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full(what),
                _ => Self::Io { what, source },
            }
        }
    }
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tells whose draft it is, in digits and dashes.
    pub tag: String,
    /// How long the file will be.
    pub bytes: u64,
    /// Whether nothing may have its name yet.
    pub new: bool,
}

/// A file as storage has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is below the protocol's prefix.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// When its content, or where that can be told its name, last changed.
    pub changed: Micros,
}

/// What files are called while they are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafts {
    /// `.NAME.TAG.part`: the tag tells whose it is.
    Tagged,
    /// `.NAME.part`, whoever writes it.
    Plain,
    /// Nothing is seen of them.
    Unseen,
}

/// Where the files of an RSE are. Paths are below the protocol's prefix.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Opens a file for reading, and says how long it is.
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error>;
    /// Begins to write a file. What earlier attempts at it have left goes, unless it must be new:
    /// then others may be at it.
    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn Draft>, Error>;
    /// Removes a file and what was under way to its place; one that is not there is removed.
    fn remove(&self, path: &str) -> Result<(), Error>;
    /// Returns when everything that was kept will be there after the power has failed.
    fn sync(&self) -> Result<(), Error>;
    /// Looks at files, in the order of their paths. What is wrong with one of them alone is said in its
    /// place; anything else is an error of the whole.
    fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error>;
    /// Hands over every file there is, drafts too, until it is told to stop, and what of it all could not
    /// be looked into. What comes and goes meanwhile may be among them or not. No link leads it
    /// anywhere.
    fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error>;
    /// What files under way are called here.
    fn drafts(&self) -> Drafts;
    /// Links that lead to other places of this storage, each with where it leads; at most so many.
    fn links(&self, _most: usize) -> Result<Vec<(String, String)>, Error> {
        Ok(Vec::new())
    }
}

/// A file under way. Dropped before it is kept, it is gone, unless it has its name already and
/// others may have found it there: that is left to whoever looks after the replica.
pub trait Draft {
    /// Writes more of it.
    fn add(&mut self, piece: &[u8]) -> Result<(), Error>;
    /// Says that this was all, and that it is right.
    fn seal(&mut self) -> Result<(), Error>;
    /// Reads back what arrived, once it is sealed.
    fn read_back(&self) -> Result<Box<dyn Read + Send>, Error>;
    /// Says that what arrived is wrong: dropped, it is gone in any case.
    fn reject(&mut self);
    /// Gives the file its name.
    fn keep(self: Box<Self>) -> Result<(), Error>;
}

/// Whether workers can use a protocol.
#[must_use]
pub fn is_known(protocol: &Protocol) -> bool {
    protocol.scheme == "file" || super::remote::kind(protocol).is_some()
}

/// Where a protocol leads: two that lead to the same place lead to the same files.
fn place(protocol: &Protocol) -> String {
    let prefix = protocol.prefix.trim_matches('/');
    if protocol.scheme != "file" {
        return format!("{}:{}/{prefix}", protocol.hostname, protocol.port);
    }
    let folder = Path::new("/").join(prefix);
    let real = folder.canonicalize().unwrap_or(folder);
    real.display().to_string()
}

/// RSE → others whose files are at the same place. There should be none, but nobody forbids it.
#[must_use]
pub fn shared_places<'a>(
    rses: impl IntoIterator<Item = (i64, &'a [Arc<Protocol>])>,
) -> BTreeMap<i64, Vec<i64>> {
    let mut places: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for (rse, protocols) in rses {
        for protocol in protocols.iter().filter(|protocol| is_known(protocol)) {
            places.entry(place(protocol)).or_default().insert(rse);
        }
    }
    let mut shared: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for together in places.values() {
        for one in together {
            let others = together.iter().copied().filter(|other| other != one);
            shared.entry(*one).or_default().extend(others);
        }
    }
    shared
}

/// Whether two protocols lead to the same service, wherever their prefixes begin.
#[must_use]
pub fn is_same_service(one: &Protocol, other: &Protocol) -> bool {
    let kind = |protocol| super::remote::kind(protocol).map(|(kind, _)| kind);
    match (one.scheme.as_str(), other.scheme.as_str()) {
        ("file", "file") => true,
        _ => {
            kind(one).is_some()
                && kind(one) == kind(other)
                && one.hostname == other.hostname
                && one.port == other.port
        }
    }
}

/// Which protocols somebody who moves files speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speaks {
    /// Those of our own workers.
    #[default]
    Ours,
    /// Those with these schemes: another tool.
    Schemes(BTreeSet<String>),
}

impl Speaks {
    fn knows(&self, protocol: &Protocol) -> bool {
        match self {
            Self::Ours => is_known(protocol),
            Self::Schemes(schemes) => schemes.contains(&protocol.scheme),
        }
    }

    /// The best of an RSE's protocols for an operation.
    #[must_use]
    pub fn way<'a>(
        &self,
        protocols: &'a [Arc<Protocol>],
        operation: &str,
    ) -> Option<&'a Arc<Protocol>> {
        let known = protocols.iter().filter(|protocol| self.knows(protocol));
        known
            .filter_map(|protocol| Some((protocol.rank("wan", operation)?, protocol)))
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, protocol)| protocol)
    }
}

/// The best way to an RSE's files that workers know, for an operation.
#[must_use]
pub fn way<'a>(protocols: &'a [Arc<Protocol>], operation: &str) -> Option<&'a Protocol> {
    Speaks::Ours.way(protocols, operation).map(|protocol| &**protocol)
}

/// The way into all storage: what may be touched, the keys to it, and what is open already.
///
/// The default reaches no folder of this machine.
#[derive(Debug, Default)]
pub struct Access {
    credentials: Credentials,
    allowed: Allowed,
    opened: Mutex<HashMap<String, Arc<Remote>>>,
}

impl Access {
    /// Storage with these keys, as far as it is allowed.
    #[must_use]
    pub fn new(credentials: Credentials, allowed: Allowed) -> Self {
        Self { credentials, allowed, opened: Mutex::default() }
    }

    /// The storage an RSE's protocol leads to. Connections are shared by all who ask.
    pub fn open(&self, rse: &str, protocol: &Protocol) -> Result<Arc<dyn Store>, Error> {
        if protocol.scheme == "file" {
            return Ok(Arc::new(Folder::open(protocol, &self.allowed)?));
        }
        let key = format!("{rse} {}", protocol.base());
        let mut opened = self.opened.lock();
        if let Some(remote) = opened.get(&key) {
            return Ok(Arc::clone(remote) as Arc<dyn Store>);
        }
        let none = Credential::default();
        let credential = self.credentials.get(rse).unwrap_or(&none);
        let remote = Arc::new(Remote::open(protocol, credential, &self.allowed)?);
        opened.insert(key, Arc::clone(&remote));
        Ok(remote)
    }

    /// Makes the folder of a `file` protocol; one that is there stays as it is.
    pub fn make_folder(&self, protocol: &Protocol) -> Result<(), Error> {
        Folder::open(protocol, &self.allowed)?.make()
    }
}

/// Storage that a few files in a row are moved through: what was opened for one serves the next.
/// It is not kept for longer, as others may be mounted in its place.
#[derive(Debug)]
pub struct Opened<'a> {
    access: &'a Access,
    stores: Vec<(String, Arc<Protocol>, Arc<dyn Store>)>,
}

impl<'a> Opened<'a> {
    /// Nothing yet.
    #[must_use]
    pub fn new(access: &'a Access) -> Self {
        Self { access, stores: Vec::new() }
    }

    /// The storage at one end of a transfer.
    pub fn at(&mut self, end: &End) -> Result<Arc<dyn Store>, Error> {
        let End { rse, protocol, .. } = end;
        let same = |one: &&(String, Arc<Protocol>, _)| {
            one.0 == *rse && (Arc::ptr_eq(&one.1, protocol) || one.1 == *protocol)
        };
        if let Some((_, _, store)) = self.stores.iter().find(same) {
            return Ok(Arc::clone(store));
        }
        let store = self.access.open(rse, protocol)?;
        self.stores.push((rse.clone(), Arc::clone(protocol), Arc::clone(&store)));
        Ok(store)
    }
}
