//! The errors of commands, with their exit codes.
//!
//! 0 is success, 1 a negative finding (nothing found, refused, timed out, no connection), 2 bad
//! usage or input.

use std::io;

use mainstay_client as client;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The command is valid, but its result is negative.
    #[error("{0}")]
    Negative(String),
    /// A request failed, or the server refused it.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl Error {
    /// Bad usage or input.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A negative result.
    pub fn negative(text: impl Into<String>) -> Self {
        Self::Negative(text.into())
    }

    /// The exit code of the program after this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Client(client::Error::Status(status)) if status.is_bad_input() => 2,
            Self::Negative(_) | Self::Client(_) | Self::Output(_) => 1,
        }
    }

    /// The reader of the output closed the pipe, which is not a failure.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The advice for this error, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        matches!(self, Self::Client(client::Error::Connect { .. }))
            .then_some("is the server running? (`mainstay up` starts one)")
    }

    /// Prints the error with all its causes to stderr.
    pub fn tell(&self) {
        tell(self, self.hint());
    }
}

/// Prints an error with all its causes, and a hint, to stderr.
pub fn tell(error: &dyn std::error::Error, hint: Option<&str>) {
    let text = with_causes(error, hint);
    anstream::eprintln!("\x1b[1;31merror:\x1b[0m {text}");
}

/// An error with every cause, and a hint, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    if let Some(hint) = hint {
        text.push_str("; ");
        text.push_str(hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_usage_and_negative_results_have_different_exit_codes() {
        assert_eq!(Error::usage("--size must be greater than 0").exit_code(), 2);
        assert_eq!(Error::negative("no disk found").exit_code(), 1);
        let closed = Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(closed.is_broken_pipe() && closed.exit_code() == 1);
    }

    #[test]
    fn every_cause_is_named_once() {
        let text = with_causes(&Error::from(io::Error::other("disk full")), Some("free space"));
        assert_eq!(text, "cannot write the output: disk full; free space");
    }
}
