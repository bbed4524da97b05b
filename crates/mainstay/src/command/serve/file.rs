//! The configuration file of `mainstay serve`: TOML with the names of the flags.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Error;

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) store: Option<String>,
    pub(super) store_key: Option<PathBuf>,
    pub(super) catalog: Option<String>,
    pub(super) only: Option<Vec<String>>,
    pub(super) extender_url: Option<String>,
    pub(super) extender_ca: Option<PathBuf>,
    pub(super) transfer_workers: Option<u32>,
    pub(super) gateway_address: Option<IpAddr>,
    pub(super) gateway_advertise: Option<String>,
    pub(super) gateway_ports: Option<String>,
    pub(super) node_timeout: Option<String>,
    pub(super) credentials: Option<PathBuf>,
    pub(super) audit_policy: Option<PathBuf>,
    pub(super) audit_sinks: Vec<String>,
    pub(super) storage_root: Vec<PathBuf>,
    pub(super) storage_endpoint: Vec<String>,
    pub(super) tls_san: Vec<String>,
    pub(super) plain_http: bool,
    pub(super) limits: FileLimits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct FileLimits {
    pub(super) connections: Option<usize>,
    pub(super) connections_per_address: Option<usize>,
    pub(super) in_flight: Option<usize>,
    pub(super) unauthenticated: Option<usize>,
    pub(super) watches: Option<usize>,
    pub(super) bodies: Option<usize>,
    pub(super) body_bytes: Option<usize>,
    pub(super) body_memory: Option<usize>,
    pub(super) answer_memory: Option<usize>,
    pub(super) unauthenticated_body_memory: Option<usize>,
    pub(super) body_rate: Option<u32>,
    pub(super) events: Option<usize>,
}

impl FileLimits {
    /// Puts the values of the file in the place of the defaults.
    pub(super) fn apply(self, limits: &mut mainstay_server::Limits) {
        let put = |place: &mut usize, given: Option<usize>| *place = given.unwrap_or(*place);
        put(&mut limits.connections, self.connections);
        limits.connections_per_address = self.connections_per_address;
        put(&mut limits.in_flight, self.in_flight);
        put(&mut limits.strangers, self.unauthenticated);
        put(&mut limits.watches, self.watches);
        put(&mut limits.bodies, self.bodies);
        put(&mut limits.body, self.body_bytes);
        put(&mut limits.body_memory, self.body_memory);
        put(&mut limits.answer_memory, self.answer_memory);
        put(&mut limits.stranger_body_memory, self.unauthenticated_body_memory);
        limits.body_rate = self.body_rate.unwrap_or(limits.body_rate);
        put(&mut limits.events, self.events);
    }
}

impl File {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let place = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("cannot read {place}: {error}")))?;
        Self::parse(&text).map_err(|error| Error::usage(format!("{place}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_names_of_the_flags_and_no_others() {
        let file = File::parse(
            "listen = \"127.0.0.1:1\"\nplain-http = true\n[limits]\nwatches = 5\nbody-rate = 7\n",
        )
        .unwrap();
        assert_eq!(file.listen.unwrap().port(), 1);
        assert!(file.plain_http);
        assert_eq!(file.limits.watches, Some(5));
        let mut limits = mainstay_server::Limits::default();
        let usual = limits.clone();
        file.limits.apply(&mut limits);
        assert_eq!((limits.watches, limits.body_rate), (5, 7));
        assert_eq!((limits.in_flight, limits.bodies), (usual.in_flight, usual.bodies));
        for (text, named) in [
            ("lisen = 1", "lisen"),
            ("[limits]\nwatchers = 1", "watchers"),
            ("listen = \"here\"", "listen"),
        ] {
            let error = File::parse(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
