//! The errors of this crate, with the exception names that clients of replication rules know.
//!
//! A [`Refusal`] is an answer: the request was understood and cannot be done. Its [`Class`] is the
//! exception name that a client maps to its own type, so the names are part of the interface. Most
//! other variants of [`Error`] are failures of the catalog itself.

use std::fmt;

use mainstay_catalog as catalog;
use mainstay_transfers::protocol::Invalid;

/// The exception name of a refusal.
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
    /// The HTTP status of the exception. 401 is reserved for authentication.
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

/// A request that cannot be done, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The exception name clients know.
    pub class: Class,
    /// One sentence for the user.
    pub message: String,
}

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be done. Retrying it unchanged gives the same answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many passwords are being verified.
    #[error("a password cannot be hashed now: {0}")]
    Busy(#[from] crate::logins::Refused),
    /// Too many large requests are being worked on. Retry later.
    #[error("{0}")]
    Crowded(String),
    /// A part of this program failed, not the request.
    #[error("internal error: {0}")]
    Internal(String),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(catalog::Error),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A row that the transaction has read changed before it could be locked: the transaction is
    /// retried.
    pub(crate) fn moved() -> Self {
        Self::Catalog(catalog::Error::Moved)
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

impl From<catalog::Error> for Error {
    fn from(error: catalog::Error) -> Self {
        match error {
            catalog::Error::Overflow => {
                refuse(Class::InvalidObject, "A sum of sizes is larger than can be counted")
            }
            other => Self::Catalog(other),
        }
    }
}

impl From<Invalid> for Error {
    fn from(Invalid(message): Invalid) -> Self {
        refuse(Class::InvalidObject, message)
    }
}

impl catalog::TxError for Error {
    fn catalog(&self) -> Option<&catalog::Error> {
        match self {
            Self::Catalog(error) => Some(error),
            _ => None,
        }
    }
}

/// Makes a refusal as an [`Error`].
pub fn refuse(class: Class, message: impl Into<String>) -> Error {
    Error::Refused(Refusal { class, message: message.into() })
}
