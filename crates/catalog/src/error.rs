//! Why the catalog, or a transaction on it, failed.

/// Everything that can go wrong with the catalog.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was read changed before it could be locked. The transaction is retried whole.
    #[error("the catalog changed while the request was being worked on")]
    Moved,
    /// The database is away or asked for a retry. The transaction is retried whole.
    #[error("the catalog's database cannot be reached: {0}")]
    Unavailable(String),
    /// The database crashed while it committed. Look whether the change is there before repeating it.
    #[error(
        "the catalog's database restarted while this change was being committed, so it is unknown \
         whether the change took place: look, and repeat it if it did not"
    )]
    Unknown,
    /// A number does not fit 64 bits. Retrying gives the same answer.
    #[error("a sum is larger than the catalog can count")]
    Overflow,
    /// The function that takes rows returned an error of its own, which is reported in place of this.
    #[error("reading rows was stopped by their reader")]
    Stopped,
    /// A column does not hold what it should. The catalog is damaged, or written by another program.
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
    /// The catalog was written by a newer Mainstay.
    #[error("the catalog has schema {found}, this version knows up to {known}; start a newer one")]
    NewerSchema {
        /// The version found in the catalog.
        found: i64,
        /// The newest version this program knows.
        known: i64,
    },
    /// A restore into the catalog broke off. Do not retry: restore again.
    #[error("a restore into the catalog did not finish: run `mainstay restore` again")]
    HalfRestored,
    /// A backup is not what it should be.
    #[error("{0}")]
    Backup(String),
    /// A PostgreSQL's address asks for what cannot be.
    #[error("the catalog {address:?} cannot be used: {why}")]
    Catalog {
        /// The address, without a password.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The catalog's address is not understood.
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
    /// The catalog's own error, if it is one: that decides whether the transaction is run again.
    fn catalog(&self) -> Option<&Error>;
}

impl TxError for Error {
    fn catalog(&self) -> Option<&Error> {
        Some(self)
    }
}
