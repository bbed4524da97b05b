//! The interface to the storage of an RSE's protocol: local folders, S3 and WebDAV.
//!
//! Every storage creates a file in the same steps: it is written as a draft ([`Draft::add`]),
//! sealed once the content that was read is known to be correct, read back and compared, and only
//! then kept. In a folder and on WebDAV it has a temporary name until then. S3 cannot rename: an
//! object appears as a whole when it is sealed, or not at all. An object that reads back wrong is
//! removed, and the catalog records no object before it was read back.
//!
//! All functions block on disks and networks: call them from blocking threads only.

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

/// An error of storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Workers do not support the protocol.
    #[error("no worker supports {0}://")]
    Unknown(String),
    /// The path would leave the RSE's folder.
    #[error("the path {0:?} leaves the RSE's folder")]
    Leaves(String),
    /// The storage is full.
    #[error("{0} is full")]
    Full(String),
    /// The file does not exist.
    #[error("{0} is not there")]
    Missing(String),
    /// The folder or bucket of the storage is missing, and with it all its files.
    #[error("the folder {0} is not there: make it, or mount what belongs there")]
    NoFolder(String),
    /// The path from a storage root to the folder has a symbolic link.
    #[error(
        "the folder {0} is not a folder, or is reached through a symbolic link: below a storage root none is followed"
    )]
    Linked(String),
    /// The operator of this machine does not allow it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The path is not a regular file.
    #[error("{0} is not a file")]
    NoFile(String),
    /// A file with this name exists already.
    #[error("{0} is there already")]
    There(String),
    /// The service does not support listing.
    #[error("{0} does not list its files")]
    Unlisted(String),
    /// A disk of this machine failed.
    #[error("{what}: {source}")]
    Io {
        /// The file or service concerned.
        what: String,
        /// How it failed.
        source: std::io::Error,
    },
    /// Remote storage failed, or refused the request.
    #[error("{what}: {why}")]
    Elsewhere {
        /// The file or service concerned.
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

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Identifies the owner of the draft, in digits and dashes.
    pub tag: String,
    /// The length of the file.
    pub bytes: u64,
    /// Whether writing must fail if the file exists.
    pub new: bool,
}

/// The metadata of a file in storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path below the protocol's prefix.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When its content last changed; in local folders also when its name last changed.
    pub changed: Micros,
}

/// The names of files while they are being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafts {
    /// `.NAME.TAG.part`: the tag identifies the owner.
    Tagged,
    /// `.NAME.part`, for every owner.
    Plain,
    /// Drafts are not visible.
    Unseen,
}

/// The storage of an RSE. Paths are below the protocol's prefix.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Opens a file for reading, and returns its length.
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error>;
    /// Begins to write a file. Removes drafts of earlier attempts, unless the file must be new:
    /// then they may belong to other writers.
    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn Draft>, Error>;
    /// Removes a file and its drafts; a missing file is not an error.
    fn remove(&self, path: &str) -> Result<(), Error>;
    /// Returns when every file that was kept survives a power failure.
    fn sync(&self) -> Result<(), Error>;
    /// Reads the metadata of files, in the order of `paths`. An error of one file is returned in
    /// its place; any other error fails the whole call.
    fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error>;
    /// Calls `each` for every file, drafts included, and with an error for every folder that cannot
    /// be read, until `each` breaks. Files that are created or removed meanwhile may be listed or
    /// not. Symbolic links are not followed.
    fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error>;
    /// The names of drafts in this storage.
    fn drafts(&self) -> Drafts;
    /// At most `most` symbolic links that point into this storage, each with its target.
    fn links(&self, _most: usize) -> Result<Vec<(String, String)>, Error> {
        Ok(Vec::new())
    }
}

/// A file that is being written. Dropping it before it is kept removes it, unless it has its final
/// name already and others may have found it: then the reaper decides.
pub trait Draft {
    /// Writes more of it.
    fn add(&mut self, piece: &[u8]) -> Result<(), Error>;
    /// Ends the file: all of it was added, and its content is correct.
    fn seal(&mut self) -> Result<(), Error>;
    /// Reads back what arrived, once it is sealed.
    fn read_back(&self) -> Result<Box<dyn Read + Send>, Error>;
    /// Marks the stored content as wrong, so that dropping the draft removes it in any case.
    fn reject(&mut self);
    /// Gives the file its name.
    fn keep(self: Box<Self>) -> Result<(), Error>;
}

/// Whether workers support a protocol.
#[must_use]
pub fn is_known(protocol: &Protocol) -> bool {
    protocol.scheme == "file" || super::remote::kind(protocol).is_some()
}

/// The location of a protocol's files: two protocols with the same location have the same files.
fn location(protocol: &Protocol) -> String {
    let prefix = protocol.prefix.trim_matches('/');
    if protocol.scheme != "file" {
        return format!("{}:{}/{prefix}", protocol.hostname, protocol.port);
    }
    let folder = Path::new("/").join(prefix);
    let real = folder.canonicalize().unwrap_or(folder);
    real.display().to_string()
}

/// RSE → other RSEs whose files are at the same location. There should be none, but it is not
/// forbidden.
#[must_use]
pub fn shared_places<'a>(
    rses: impl IntoIterator<Item = (i64, &'a [Arc<Protocol>])>,
) -> BTreeMap<i64, Vec<i64>> {
    let mut places: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for (rse, protocols) in rses {
        for protocol in protocols.iter().filter(|protocol| is_known(protocol)) {
            places.entry(location(protocol)).or_default().insert(rse);
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

/// Whether two protocols use the same service, with any prefixes.
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

/// The protocols that a transfer tool supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SupportedProtocols {
    /// The protocols of Mainstay's own workers.
    #[default]
    Ours,
    /// The protocols with these schemes, for another tool.
    Schemes(BTreeSet<String>),
}

impl SupportedProtocols {
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

/// The best of an RSE's protocols for an operation that workers support.
#[must_use]
pub fn way<'a>(protocols: &'a [Arc<Protocol>], operation: &str) -> Option<&'a Protocol> {
    SupportedProtocols::Ours.way(protocols, operation).map(|protocol| &**protocol)
}

/// Access to all storage: the rules for what is allowed, the credentials, and open connections.
///
/// The default allows no local folder.
#[derive(Debug, Default)]
pub struct Access {
    credentials: Credentials,
    allowed: Allowed,
    opened: Mutex<HashMap<String, Arc<Remote>>>,
}

impl Access {
    /// Access with these credentials, to allowed storage.
    #[must_use]
    pub fn new(credentials: Credentials, allowed: Allowed) -> Self {
        Self { credentials, allowed, opened: Mutex::default() }
    }

    /// Opens the storage of an RSE's protocol. Connections are shared.
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

    /// Creates the folder of a `file` protocol; an existing one is not changed.
    pub fn make_folder(&self, protocol: &Protocol) -> Result<(), Error> {
        Folder::open(protocol, &self.allowed)?.make()
    }
}

/// Storage that is opened once for a batch of files. It is not kept open for longer, because
/// another file system may be mounted in its place.
#[derive(Debug)]
pub struct Opened<'a> {
    access: &'a Access,
    stores: Vec<(String, Arc<Protocol>, Arc<dyn Store>)>,
}

impl<'a> Opened<'a> {
    /// Starts with no open storage.
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
