//! The flags of `mainstay serve` for the audit log.

use std::path::{Path, PathBuf};

use clap::Args;
use mainstay_server::audit::{Policy, Settings};

use crate::error::Error;

/// The flags of the audit log.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Which requests leave a line in the audit log: a TOML file, or YAML if its name ends so
    /// [default: those that change something or are denied]
    #[arg(long = "audit-policy", value_name = "FILE", env = "MAINSTAY_AUDIT_POLICY")]
    policy: Option<PathBuf>,
    /// Where audit lines go; repeat for several: file:PATH, stderr, syslog, syslog:unix:///PATH,
    /// syslog:udp://HOST:PORT or syslog:tcp://HOST:PORT [default: audit.log in the data folder]
    #[arg(long = "audit-sink", value_name = "SINK")]
    sinks: Vec<String>,
}

impl Flags {
    /// The policy's file, and the files that lines are written to.
    pub(super) fn files(&self, policy: Option<&Path>, sinks: &[String]) -> Vec<PathBuf> {
        let sinks = if self.sinks.is_empty() { sinks } else { self.sinks.as_slice() };
        let written = sinks.iter().filter_map(|sink| sink.strip_prefix("file:"));
        let policy = self.policy.as_deref().or(policy);
        policy.into_iter().chain(written.map(Path::new)).map(Path::to_owned).collect()
    }

    /// The settings of these flags, or else of the configuration file.
    pub(super) fn settings(
        &self,
        policy: Option<&Path>,
        sinks: &[String],
    ) -> Result<Settings, Error> {
        let policy = match self.policy.as_deref().or(policy) {
            Some(path) => read(path)?,
            None => Policy::default(),
        };
        let sinks = if self.sinks.is_empty() { sinks } else { self.sinks.as_slice() };
        let sinks = sinks.iter().map(|sink| {
            sink.parse().map_err(|error| Error::usage(format!("--audit-sink: {error}")))
        });
        Ok(Settings { policy, sinks: sinks.collect::<Result<_, _>>()? })
    }
}

fn read(path: &Path) -> Result<Policy, Error> {
    let place = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("--audit-policy: cannot read {place}: {error}")))?;
    let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    parse(&text, yaml).map_err(|error| Error::usage(format!("--audit-policy: {place}: {error}")))
}

fn parse(text: &str, yaml: bool) -> Result<Policy, String> {
    match yaml {
        true => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
        false => toml::from_str(text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_server::audit::{Level, OnFailure};

    use super::*;

    #[test]
    fn the_policy_of_the_page_is_one() {
        let page = include_str!("../../../../../docs/audit.md");
        let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let policy = parse(block.unwrap(), false).unwrap();
        assert_eq!(policy.rules.len(), 3);
    }

    #[test]
    fn a_policy_reads_the_same_as_toml_and_as_yaml() {
        let toml =
            "on-failure = \"refuse\"\n[[rules]]\nkinds = [\"secrets\"]\nlevel = \"Request\"\n";
        let yaml = "on-failure: refuse\nrules:\n- kinds: [secrets]\n  level: Request\n";
        let policy = parse(toml, false).unwrap();
        assert_eq!(policy, parse(yaml, true).unwrap());
        assert_eq!(policy.on_failure, OnFailure::Refuse);
        assert_eq!(policy.rules[0].level, Level::Request);
        for (text, yaml) in [("rules = 1", false), ("rulez: []", true)] {
            assert!(parse(text, yaml).is_err(), "{text}");
        }
        let flags = Flags { policy: None, sinks: vec!["syslog:smoke".to_owned()] };
        assert!(flags.settings(None, &[]).is_err());
    }
}
