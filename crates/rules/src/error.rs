//! What can go wrong, in the names clients of replication rules know.
//!
//! A [`Refusal`] is an answer: the request was understood and cannot be done. Its [`Class`] is the
//! exception name a client maps to its own type, so the names are part of the interface. Most
//! other variants of [`Error`] are about the catalog itself.

use std::fmt;

/// The name under which a refusal is known to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the exception name itself")]
pub enum Class {
    AccessDenied,
    AccountNotFound,
    CannotAuthenticate,
    DIDFilterSyntaxError,
    DataIdentifierAlreadyExists,
    DataIdentifierNotFound,
    Duplicate,
    DuplicateContent,
    DuplicateRule,
    FileAlreadyExists,
    FileConsistencyMismatch,
    IdentityError,
    InputValidationError,
    InsufficientAccountLimit,
    InsufficientTargetRSEs,
    InvalidMetadata,
    InvalidObject,
    InvalidPath,
    InvalidRSEExpression,
    InvalidReplicationRule,
    InvalidRuleWeight,
    InvalidSourceReplicaExpression,
    InvalidValueForKey,
    KeyNotFound,
    ManualRuleApprovalBlocked,
    NoDistance,
    RSEAttributeNotFound,
    RSENotFound,
    RSEOperationNotSupported,
    RSEOverQuota,
    RSEProtocolNotSupported,
    RSEWriteBlocked,
    ReplicaIsLocked,
    ReplicaNotFound,
    RequestNotFound,
    RuleNotFound,
    RuleReplaceFailed,
    ScopeNotFound,
    StagingAreaRuleRequiresLifetime,
    UnsupportedMetadataPlugin,
    UnsupportedOperation,
    UnsupportedStatus,
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

impl Class {
    /// The HTTP status that goes with it. 401 is kept for authentication alone.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::CannotAuthenticate => 401,
            Self::AccessDenied => 403,
            Self::AccountNotFound
            | Self::DataIdentifierNotFound
            | Self::KeyNotFound
            | Self::NoDistance
            | Self::RSEAttributeNotFound
            | Self::RSEProtocolNotSupported
            | Self::RequestNotFound
            | Self::IdentityError
            | Self::RSENotFound
            | Self::ReplicaNotFound
            | Self::RuleNotFound
            | Self::ScopeNotFound => 404,
            Self::DIDFilterSyntaxError
            | Self::InputValidationError
            | Self::InvalidMetadata
            | Self::InvalidPath
            | Self::InvalidValueForKey
            | Self::UnsupportedMetadataPlugin => 400,
            Self::FileConsistencyMismatch => 412,
            _ => 409,
        }
    }
}

/// A request that cannot be done, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The exception name clients know.
    pub class: Class,
    /// One sentence for people.
    pub message: String,
}

/// Everything that can go wrong with the catalog.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be done. Retrying it unchanged gives the same answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is nothing where something was asked for, or not by this method.
    #[error("There is nothing at this path for this method")]
    Nowhere,
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
    /// Too many passwords are being judged.
    #[error("a password cannot be hashed now: {0}")]
    Busy(#[from] crate::logins::Refused),
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

    /// The class of a refusal.
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        match self {
            Self::Refused(refusal) => Some(refusal.class),
            _ => None,
        }
    }
}

/// A refusal as an [`Error`], in one call.
pub(crate) fn refuse(class: Class, message: impl Into<String>) -> Error {
    Error::Refused(Refusal { class, message: message.into() })
}

/// A sum that is larger than the catalog can count.
pub(crate) fn uncountable() -> Error {
    refuse(Class::InvalidObject, "A sum of sizes is larger than can be counted")
}
