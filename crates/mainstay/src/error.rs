//! The errors of the command line, with their exit codes.
//!
//! 0 is success, 1 a negative finding (nothing found, refused, timed out, no connection), 2 bad
//! usage or input.

use std::io;

use mainstay_store::{backup, location, objects};

use crate::client::kubeconfig;
use crate::{bench, client, jsonpath, manifest};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Command(#[from] mainstay_terminal::Error),
    #[error(transparent)]
    Kubeconfig(#[from] kubeconfig::Error),
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error(transparent)]
    JsonPath(#[from] jsonpath::Error),
    #[error(transparent)]
    Bench(#[from] bench::Error),
    #[error(transparent)]
    Rules(#[from] mainstay_rules::cli::Error),
    #[error(transparent)]
    Server(#[from] mainstay_server::Error),
    #[error(transparent)]
    Service(#[from] mainstay_server::engines::Error),
    #[error(transparent)]
    Ended(#[from] mainstay_server::engines::Ended),
    #[error(transparent)]
    Backup(#[from] backup::Error),
    #[error(transparent)]
    Open(#[from] location::Error),
    #[error(transparent)]
    Store(#[from] objects::Error),
    /// An error in one of several documents.
    #[error("{place}: {source}")]
    Document { place: String, source: Box<Self> },
    #[error("{what}")]
    Io { what: String, source: io::Error },
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Self::Command(error.into())
    }
}

/// An error of writing the output; [`Error::io`] is for all others.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Command(error.into())
    }
}

impl Error {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Command(mainstay_terminal::Error::usage(text))
    }

    pub(crate) fn negative(text: impl Into<String>) -> Self {
        Self::Command(mainstay_terminal::Error::negative(text))
    }

    /// Adds the document in which the error occurred.
    pub(crate) fn within(self, place: String) -> Self {
        let source = Box::new(self);
        Self::Document { place, source }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Command(error) => error.exit_code(),
            Self::Kubeconfig(_) | Self::Manifest(_) | Self::JsonPath(_) => 2,
            Self::Rules(mainstay_rules::cli::Error::Usage(_)) => 2,
            Self::Backup(
                backup::Error::NotEmpty { .. } | backup::Error::Store(_) | backup::Error::Part(_),
            ) => 1,
            Self::Backup(_) => 2,
            Self::Document { source, .. } => source.exit_code(),
            _ => 1,
        }
    }

    /// The reader of the output closed the pipe, which is not a failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Command(error) => error.is_broken_pipe(),
            Self::Rules(mainstay_rules::cli::Error::Output(source)) => {
                source.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Command(error) => error.hint(),
            _ => None,
        }
    }

    /// Prints the error with all its causes to stderr.
    pub(crate) fn tell(&self) {
        mainstay_terminal::error::tell(self, self.hint());
    }

    /// The error with every cause, in one line.
    pub(crate) fn with_causes(&self) -> String {
        mainstay_terminal::with_causes(self, self.hint())
    }
}

/// The failures of several steps: each is printed at once, the worst decides the exit code.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    worst: u8,
}

impl Failures {
    /// Prints a failure and goes on. A closed pipe is returned as an error.
    pub(crate) fn note<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_broken_pipe() => Err(error),
            Err(error) => {
                error.tell();
                self.worst = self.worst.max(error.exit_code());
                Ok(None)
            }
        }
    }

    pub(crate) fn code(&self) -> u8 {
        self.worst
    }
}
