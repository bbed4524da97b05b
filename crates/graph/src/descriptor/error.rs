//! The errors that descriptors return.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Why an operation failed.
///
/// Any `io::Error` becomes one with `?`. Other errors are attached with [`Self::with_source`]; the
/// engine shows the whole chain, and [`Descriptor::is_retriable`](super::Descriptor::is_retriable)
/// can look for a cause with [`Self::find`].
///
/// ```
/// use std::io;
///
/// use mainstay_graph::OperationError;
///
/// assert_eq!(OperationError::new("device busy").retriable(), None);
/// assert_eq!(OperationError::permanent("no such device").retriable(), Some(false));
///
/// let error: OperationError = io::Error::from(io::ErrorKind::TimedOut).into();
/// assert_eq!(error.find::<io::Error>().map(|cause| cause.kind()), Some(io::ErrorKind::TimedOut));
/// let error = OperationError::new("cannot reach the switch").with_source(error);
/// assert_eq!(error.chain(), "cannot reach the switch: I/O error: timed out");
/// ```
#[derive(Debug, Clone)]
pub struct OperationError {
    message: String,
    retriable: Option<bool>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl OperationError {
    /// A failure; [`Descriptor::is_retriable`](super::Descriptor::is_retriable) decides whether a
    /// retry may help.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retriable: None, source: None }
    }

    /// A failure that a retry cannot repair.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { retriable: Some(false), ..Self::new(message) }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// Whether a retry may help, if the error itself decides that.
    pub fn retriable(&self) -> Option<bool> {
        self.retriable
    }

    /// The first cause of this type.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        self.causes().find_map(|cause| cause.downcast_ref())
    }

    /// The message followed by those of all causes.
    pub fn chain(&self) -> String {
        self.causes().fold(self.message.clone(), |text, cause| format!("{text}: {cause}"))
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        std::iter::successors(self.source(), |cause| (*cause).source())
    }
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for OperationError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Compares the texts of the causes too.
impl PartialEq for OperationError {
    fn eq(&self, other: &Self) -> bool {
        self.retriable == other.retriable && self.chain() == other.chain()
    }
}

impl Eq for OperationError {}

impl From<String> for OperationError {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

impl From<&str> for OperationError {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<std::io::Error> for OperationError {
    fn from(error: std::io::Error) -> Self {
        Self::new("I/O error").with_source(error)
    }
}

/// Why a value is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct InvalidValue {
    /// The reason, for people.
    pub reason: String,
    /// The fields that are wrong.
    pub fields: Vec<String>,
}

impl InvalidValue {
    /// An invalid value, with the fields that are wrong.
    pub fn new(
        reason: impl Into<String>,
        fields: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { reason: reason.into(), fields: fields.into_iter().map(Into::into).collect() }
    }
}
