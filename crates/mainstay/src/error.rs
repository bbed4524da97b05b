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
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The command is valid, but its result is negative.
    #[error("{0}")]
    Negative(String),
    #[error(transparent)]
    Client(#[from] client::Error),
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
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl Error {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    pub(crate) fn negative(text: impl Into<String>) -> Self {
        Self::Negative(text.into())
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
            Self::Usage(_) | Self::Kubeconfig(_) | Self::Manifest(_) | Self::JsonPath(_) => 2,
            Self::Rules(mainstay_rules::cli::Error::Usage(_)) => 2,
            Self::Backup(
                backup::Error::NotEmpty { .. } | backup::Error::Store(_) | backup::Error::Part(_),
            ) => 1,
            Self::Backup(_) => 2,
            Self::Document { source, .. } => source.exit_code(),
            Self::Client(client::Error::Status(status)) if status.is_bad_input() => 2,
            _ => 1,
        }
    }

    /// The reader of the output closed the pipe, which is not a failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(source) | Self::Rules(mainstay_rules::cli::Error::Output(source))
            if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Prints the error with all its causes to stderr.
    pub(crate) fn tell(&self) {
        let text = with_causes(self);
        anstream::eprintln!("\x1b[1;31merror:\x1b[0m {text}");
    }
}

/// An error with every cause, in one line.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    if matches!(error, Error::Client(client::Error::Connect { .. })) {
        text.push_str("; is the server running? (`mainstay up` starts one)");
    }
    text
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
