//! `--dry-run`: the server checks a request without storing its result.

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    /// Write
    None,
    /// Let the server do everything but write
    Server,
}

/// Whether changes are stored.
#[derive(Debug, Clone, Args)]
pub(crate) struct DryRun {
    /// Let the server check everything, but change nothing
    #[arg(
        long,
        value_name = "WHERE",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "server",
        hide_default_value = true
    )]
    dry_run: Where,
}

impl DryRun {
    pub(crate) fn is_on(&self) -> bool {
        self.dry_run == Where::Server
    }

    /// The query parameter of a request.
    pub(crate) fn query(&self) -> &'static str {
        if self.is_on() { "dryRun=All" } else { "" }
    }

    /// The text that is added to the output.
    pub(crate) fn note(&self) -> &'static str {
        if self.is_on() { " (dry run)" } else { "" }
    }
}
