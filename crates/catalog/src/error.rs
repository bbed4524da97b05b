//! Errors of the catalog and of transactions on it.

/// An error of the catalog.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A row that was read changed before it was locked. The whole transaction is retried.
    #[error("the catalog changed while the request was being worked on")]
    Moved,
    /// The database is unreachable or asked for a retry. The whole transaction is retried.
    #[error("the catalog's database cannot be reached: {0}")]
    Unavailable(String),
    /// The database crashed during the commit. Check whether the change was made before repeating
    /// it.
    #[error(
        "the catalog's database restarted while this change was being committed, so it is unknown \
         whether the change took place: look, and repeat it if it did not"
    )]
    Unknown,
    /// A number does not fit 64 bits. Retrying gives the same answer.
    #[error("a sum is larger than the catalog can count")]
    Overflow,
    /// The function that receives rows returned an error, which is reported instead of this one.
    #[error("the function that receives rows stopped the query")]
    Stopped,
    /// A column has an unexpected value. The catalog is damaged, or was written by another program.
    #[error("column {column} is damaged: found {found}, expected {expected}, in {statement}")]
    Column {
        /// The column, as the statement names it.
        column: String,
        /// The type or state it should have.
        expected: String,
        /// The value that was read.
        found: String,
        /// The statement.
        statement: String,
    },
    /// The database refused a statement.
    #[error("the catalog's database answered: {0}")]
    Database(String),
    /// A page of the catalog is damaged. Do not retry: restore a backup.
    #[error(
        "the rule catalog {place} is damaged: {what}; stop the server and restore a backup with \
         `mainstay restore`"
    )]
    Damaged {
        /// The file, or the kind of database.
        place: String,
        /// The damage.
        what: String,
    },
    /// The disk is full. Retry when there is space.
    #[error(
        "the disk of the rule catalog {place} is full: free disk space, then try again; reads go on"
    )]
    Full {
        /// The file, or the kind of database.
        place: String,
    },
    /// The file was deleted while it was open. Do not retry: restore a backup.
    #[error(
        "the rule catalog {place} was deleted while the server was using it, and its content is \
         lost when the server stops: put the same file back, or stop the server and restore a \
         backup with `mainstay restore`"
    )]
    Deleted {
        /// The file.
        place: String,
    },
    /// The file was replaced while it was open. Do not retry.
    #[error(
        "the rule catalog {place} was replaced by another file while the server was using it, and \
         changes go to the old file, which is lost when the server stops: stop the server, and put \
         the right file back or restore a backup with `mainstay restore`"
    )]
    Replaced {
        /// The file.
        place: String,
    },
    /// The disk failed. Retry when it works again.
    #[error("the disk of the rule catalog {place} failed: {what}; see the kernel's log")]
    Disk {
        /// The file.
        place: String,
        /// The error of SQLite.
        what: String,
    },
    /// The catalog is missing. Do not retry.
    #[error(
        "the rule catalog {place} is missing or empty, but commit {acknowledged} was acknowledged: \
         put it back, restore a backup with `mainstay restore`, or begin anew with `mainstay serve \
         --new-cluster`"
    )]
    Lost {
        /// The file.
        place: String,
        /// The last commit that was acknowledged.
        acknowledged: u64,
    },
    /// The catalog lost commits. Do not retry.
    #[error(
        "the rule catalog {place} ends at commit {found}, but commit {acknowledged} was \
         acknowledged: {} commits are missing, because its write-ahead log is damaged or the file \
         is an older copy; restore a backup with `mainstay restore`, or see `mainstay store repair` \
         to go on without them",
        .acknowledged - .found
    )]
    EndsEarly {
        /// The file.
        place: String,
        /// The last commit acknowledged.
        acknowledged: u64,
        /// The last commit in the file.
        found: u64,
    },
    /// The counter of acknowledged commits is damaged. Do not retry.
    #[error(
        "{counter} is damaged: it has no valid commit number, so lost commits of the rule catalog \
         {place} cannot be ruled out; restore a backup with `mainstay restore`, or see `mainstay \
         store repair` to go on"
    )]
    Counter {
        /// The file of the catalog.
        place: String,
        /// The file of the counter.
        counter: String,
    },
    /// The file belongs to another program.
    #[error("{0} is a SQLite database, but not a rule catalog; check where the catalog is kept")]
    NotACatalog(String),
    /// The catalog was written by a newer Mainstay.
    #[error("the catalog has schema {found}, this version knows up to {known}; start a newer one")]
    NewerSchema {
        /// The version found in the catalog.
        found: i64,
        /// The newest version this program knows.
        known: i64,
    },
    /// A restore into the catalog was interrupted. Do not retry: restore again.
    #[error("a restore into the catalog did not finish: run `mainstay restore` again")]
    HalfRestored,
    /// The backup is invalid.
    #[error("{0}")]
    Backup(String),
    /// The address of a PostgreSQL database has invalid options.
    #[error("the catalog {address:?} cannot be used: {why}")]
    Catalog {
        /// The address, without a password.
        address: String,
        /// The reason.
        why: String,
    },
    /// The address of the catalog cannot be parsed.
    #[error("the catalog address {0:?} is neither a file nor postgres://…")]
    Address(String),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the whole transaction should be tried again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Moved | Self::Unavailable(_))
    }
}

/// The error of a function that runs within a transaction.
pub trait TxError: From<Error> {
    /// The catalog's own error, if it is one. It decides whether the transaction is retried.
    fn catalog(&self) -> Option<&Error>;
}

impl TxError for Error {
    fn catalog(&self) -> Option<&Error> {
        Some(self)
    }
}
