//! `mainstay version`: the version of this program, and of the server if one answers.

use clap::Args;
use jiff::Timestamp;
use mainstay_server::build_info::BuildInfo;
use mainstay_terminal::output::{self, cell};
use serde_json::{Value, json};

use crate::client::Call;
use crate::connect::Connect;
use crate::error::Error;

/// Show the version of this program and of the server
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Show the version of this program only; do not connect to a server
    #[arg(long)]
    client: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<VersionFormat>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum VersionFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

impl Version {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let (own, build) = (env!("CARGO_PKG_VERSION"), build());
        let asked = if self.client { None } else { Some(self.server().await) };
        let server = asked.as_ref().and_then(|answer| answer.as_ref().ok());
        match self.output {
            Some(format) => {
                let mut value = json!({"clientVersion": {
                    "gitVersion": format!("v{own}"),
                    "gitCommit": build.commit,
                    "buildDate": build.date_text(),
                }});
                if let Some(server) = server {
                    value["serverVersion"] = server.clone();
                }
                output::print(&match format {
                    VersionFormat::Json => output::json(&value),
                    VersionFormat::Yaml => output::yaml(&value),
                })?;
            }
            None => {
                let date = build.date_text();
                output::print_line(&line("Client", &format!("v{own}"), build.commit, &date))?;
                if let Some(server) = server {
                    let field = |name: &str| cell(&server[name]);
                    let (version, commit) = (field("gitVersion"), field("gitCommit"));
                    output::print_line(&line("Server", &version, &commit, &field("buildDate")))?;
                }
            }
        }
        match asked {
            Some(Err(error)) => Err(error),
            _ => Ok(0),
        }
    }

    async fn server(&self) -> Result<Value, Error> {
        Ok(self.connect.client()?.json(Call::get("/version")).await?)
    }
}

/// The build of this program, as its build script found it.
pub(crate) fn build() -> BuildInfo {
    let seconds = env!("MAINSTAY_BUILD_SECONDS").parse().ok();
    let date = seconds.filter(|seconds| *seconds > 0);
    BuildInfo {
        commit: env!("MAINSTAY_COMMIT"),
        date: date.and_then(|seconds| Timestamp::from_second(seconds).ok()),
    }
}

/// One line: the version, with the first digits of the commit.
fn line(side: &str, version: &str, commit: &str, date: &str) -> String {
    let commit: String = commit.chars().take(12).collect();
    format!("{side}: {version} (commit {commit}, built {date})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_has_a_commit_and_a_date_after_1970() {
        let build = build();
        assert!(!build.commit.is_empty());
        assert!(build.date.is_none_or(|date| date.as_second() > 1_600_000_000), "{build:?}");
        let text = line("Client", "v1", "0123456789abcdef", "2026-01-01T00:00:00Z");
        assert_eq!(text, "Client: v1 (commit 0123456789ab, built 2026-01-01T00:00:00Z)");
    }
}
