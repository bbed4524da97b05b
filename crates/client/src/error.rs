//! Why a request failed, and whether another try may help.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use mainstay_clock::duration;

use crate::status::Status;
use crate::tls;

/// Why a request brought no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client was made without any server. Do not retry.
    #[error("no server address is configured")]
    NoServer,
    /// TLS cannot be set up. Do not retry.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// No connection. Retry later.
    #[error("cannot connect to {server}")]
    Connect {
        /// The server's address.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// The server is not trusted, or does not trust us. Retry later, or correct the credentials.
    #[error("the TLS handshake with {server} failed")]
    Handshake {
        /// The server's address.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// No answer in time; a write may have happened. Retry later.
    #[error("{server} did not answer within {}", duration::format(*timeout))]
    Timeout {
        /// The server's address.
        server: String,
        /// How long the client waited.
        timeout: Duration,
    },
    /// The connection broke; a write may have happened. Retry later.
    #[error("the connection to {server} broke")]
    Broken {
        /// The server's address.
        server: String,
        /// The cause.
        source: hyper::Error,
    },
    /// The server answered with an error.
    #[error("{0}")]
    Status(Box<Status>),
    /// The request or the answer cannot be used. Do not retry.
    #[error("{path}: {why}")]
    Malformed {
        /// The path of the request.
        path: String,
        /// The reason.
        why: String,
    },
}

impl Error {
    /// The server's own error, if it gave one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The server does not know the object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }

    /// The object exists already, or has changed since it was read.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Another try may succeed: the server did not refuse the request.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Handshake { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. } => true,
            Self::Status(status) => status.code == 429 || status.code >= 500,
            Self::NoServer | Self::Tls(_) | Self::Malformed { .. } => false,
        }
    }

    /// The error with all its causes, in one line.
    #[must_use]
    pub fn explained(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        text
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}
